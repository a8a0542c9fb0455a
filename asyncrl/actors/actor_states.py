"""The states of all actors at one moment, asked for by the coordinator.

    coordinator                                         actors
    learner stands still (nothing more is granted)      go on to the end of what they were granted, then sleep
    every ring has published it? ── SAVE ──>            answer between two rows: rows published, state
    takes the answers of those rows

Every wait has a limit, and an actor that dies answers None at once. One state that is missing makes all useless: then
the caller is told why, in words, and the checkpoint holds none.
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
    """The state of every actor once its ring stands at its position; or None, and why not.

    Args:
        actors: in the order of their rings.
        positions: rows that each will have published when it stands still.
        limit_seconds: of both waits together.
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
