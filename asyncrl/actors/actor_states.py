"""States of all actors at one position, collected by the coordinator.

    coordinator                                         actors
    learner is paused (no further grants)               make all rows that were granted, then sleep
    waits until every ring has them ── SAVE ──>         answer between two rows: rows published, state
    accepts answers at these positions

Every wait has a limit, and the answer of an actor that dies is None at once. If one state is missing the others are
useless: then the result is the reason, and the checkpoint contains no states.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from asyncrl.actors.supervised import SupervisedActor

_LOOK_SECONDS = 0.002


async def states_of(
    actors: Sequence[SupervisedActor], positions: Sequence[int], limit_seconds: float
) -> tuple[list[bytes] | None, str]:
    """Return the state of every actor at its position; or None and the reason.

    Args:
        actors: in the order of their rings.
        positions: number of rows that each will have published once it has used its grant.
        limit_seconds: time limit of both waits together.
    """
    end = time.monotonic() + limit_seconds
    for actor, position in zip(actors, positions, strict=True):
        while not actor.ring.reached(position):
            if actor.ended or time.monotonic() >= end:
                return None, f"actor {actor.index} did not reach row {position:,}"
            await asyncio.sleep(_LOOK_SECONDS)
    asked = [actor.ask_state() for actor in actors]
    await asyncio.wait(asked, timeout=max(0.0, end - time.monotonic()))
    states: list[bytes] = []
    for actor, position, answer in zip(actors, positions, asked, strict=True):
        frame = answer.result() if answer.done() else None
        if frame is None or frame["published"] != position:
            return None, f"actor {actor.index} did not answer"
        if frame["state"] is None:
            return None, str(frame["why"])
        states.append(frame["state"])
    return states, ""
