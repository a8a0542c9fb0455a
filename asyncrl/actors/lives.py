"""The end of an actor process: the error that describes it, and the pause before a restart."""

from __future__ import annotations

import contextlib
import warnings

from asyncrl.actors.child import ChildDied
from asyncrl.actors.exit_errors import actor_killed
from asyncrl.actors.supervised import SupervisedActor
from asyncrl.errors import AsyncRLError, RingQuarantined


def why_it_died(actor: SupervisedActor, died: ChildDied) -> AsyncRLError:
    """Return the error for a life that ended without an error frame; append a crash report to the actor's log."""
    if actor.log is not None and died.crash:
        with contextlib.suppress(OSError), actor.log.open("a") as lines:
            lines.write(died.crash)
    if actor.killed_for is not None:
        return actor.killed_for
    return actor_killed(f"Actor {actor.index}", died.exit, actor.restarts, crash=died.crash, log=actor.log)


def pause_after_death(actor: SupervisedActor, died: ChildDied) -> float | None:
    """Return the pause before its next life in seconds, or None if there will be none."""
    if died.exit.server_lost:
        return 0.0
    if actor.killed_for is not None and not actor.ever_ready:
        return None
    return actor.budget.spend(useful=actor.useful)


def quarantine(actor: SupervisedActor) -> float | None:
    """Mark the ring of an actor that has ended as abandoned, for the learner's thread to reset, with a warning.

    Returns the pause before the next life as `pause_after_death` does; with None nothing is marked.
    """
    pause = actor.budget.spend(useful=False)
    if pause is None:
        return None
    text = (
        f"[ASYNC043] the ring of actor {actor.index} was overwritten from outside ({actor.ring.fault}); its rows are "
        "given up and the actor is started again; look for native code in the environment that writes outside of its "
        "own arrays"
    )
    warnings.warn(RingQuarantined(text), stacklevel=2)
    actor.ring.abandoned = True
    return pause
