"""The end of an actor process: its reason in words, and the pause before a restart."""

from __future__ import annotations

import contextlib
import warnings

from asyncrl.actors.child import ChildDied
from asyncrl.actors.exit_errors import actor_killed
from asyncrl.actors.supervised import SupervisedActor
from asyncrl.errors import AsyncRLError, RingQuarantined


def why_it_died(actor: SupervisedActor, died: ChildDied) -> AsyncRLError:
    """What ended a life that shipped no error; a crash is written to the actor's log too."""
    if actor.log is not None and died.crash:
        with contextlib.suppress(OSError), actor.log.open("a") as lines:
            lines.write(died.crash)
    if actor.hung is not None:
        return actor.hung
    return actor_killed(f"Actor {actor.index}", died.exit, actor.restarts, crash=died.crash, log=actor.log)


def pause_after_death(actor: SupervisedActor, died: ChildDied) -> float | None:
    """Seconds until its next life, or None where there will be none."""
    if died.exit.server_lost:
        return 0.0
    if actor.hung is not None and not actor.ever_ready:
        return None
    return actor.budget.spend(useful=actor.useful)


def quarantine(actor: SupervisedActor) -> float | None:
    """Leave the ring of an actor that has ended to the learner's thread; the pause as `pause_after_death` says it."""
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
