"""Restoring a run from a checkpoint: rings and actors before any process starts, everything else before training.

`run_state.py` describes the content of the checkpoint.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.actors.pool import ActorPool
from asyncrl.errors import AsyncRLError
from asyncrl.learning.clock import TrainClock
from asyncrl.learning.learner import Learner
from asyncrl.learning.weight_snapshots import WeightSnapshot
from asyncrl.printable import error_text
from asyncrl.run.evaluate import EvaluationSchedule
from asyncrl.run.reporting import Reporting
from asyncrl.run.run_state import shares
from asyncrl.shm.ring_rows import RingPosition, begin_at, put_rows
from asyncrl.show.metrics import EvaluationResult
from asyncrl.storage.checkpoint import does_not_fit
from asyncrl.storage.replay_file import split_rings
from asyncrl.storage.resume import Resumption
from asyncrl.storage.resume_rules import refused_change


@contextlib.contextmanager
def _refused_if_damaged(path: Path) -> Iterator[None]:
    """Turn an error about a missing or wrong part of the checkpoint into `CheckpointError` (ASYNC019)."""
    try:
        yield
    except AsyncRLError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        lacks = f"it lacks {error}" if isinstance(error, KeyError) else error_text(error)
        raise does_not_fit(path, lacks or type(error).__name__) from error


def restore_rings(pool: ActorPool, resumed: Resumption, segment_length: int) -> None:
    """Restore rings and actors from the checkpoint; before the pool starts.

    Args:
        pool: the pool; its actors do not run yet.
        resumed: the checkpoint.
        segment_length: rows per segment; ring positions are multiples of it. 1 for a replay.

    Raises:
        ConfigurationError: the rings have no room for the rows (ASYNC017).
        CheckpointError: the rows have other shapes (ASYNC019).
    """
    with _refused_if_damaged(resumed.path):
        positions = _positions(pool, resumed, segment_length)
        rings = split_rings(resumed.rows) if resumed.rows is not None else []
        firsts = resumed.run["rings"]["first"].tolist()
        for index, (actor, position) in enumerate(zip(pool.actors, positions, strict=True)):
            if rings and (rows := len(rings[index]["version"])) > (room := actor.ring.num_slots):
                kept, why = f"{rows:,} rows kept of each actor", "the checkpoint holds more"
                raise refused_change("replay_capacity", kept, f"{room:,} rows", why)
            begin_at(actor.ring, position)
            if rings:
                put_rows(actor.ring, firsts[index], rings[index])
            actor.first_incarnation = position.incarnation + (resumed.states is None)
            actor.first_state = resumed.states[index] if resumed.states is not None else None


def _positions(pool: ActorPool, resumed: Resumption, segment_length: int) -> list[RingPosition]:
    """First position of each ring: the saved one, or, without saved rows, one after all rows that can have existed."""
    saved, num = resumed.run["rings"], len(pool.actors)
    if resumed.rows is not None:
        columns = (saved[field.name].tolist() for field in dataclasses.fields(RingPosition))
        return [RingPosition(*row) for row in zip(*columns, strict=True)]
    inserted, envs = resumed.meta.env_steps, pool.rings[0].num_envs
    rows = max(int(saved["published"].max()), -(-inserted // (num * envs)))
    rows = -(-rows // segment_length) * segment_length
    life, exploration = int(saved["incarnation"].max()), int(saved["exploration"].mean())
    return [RingPosition(rows, rows, steps, life, exploration) for steps in shares(inserted, num)]


async def restore_parts(
    learner: Learner,
    schedule: EvaluationSchedule,
    reporting: Reporting,
    clock: TrainClock,
    resumed: Resumption,
) -> None:
    """Restore the learner, evaluations, episodes and times. Raises `CheckpointError` if they do not fit (ASYNC019)."""
    with _refused_if_damaged(resumed.path):
        await _restore_learner(learner, resumed)
    report = await learner.report()
    with _refused_if_damaged(resumed.path):
        run = resumed.run
        clock.go_on_from(*run["clock"])
        evaluations = _records(run["evaluations"])
        saved_best = _records(resumed.best.get("evaluations", {}))
        best = max((*evaluations, *saved_best), key=lambda result: result.return_mean, default=None)
        weights = resumed.best["weights"] if best is not None and best in saved_best else None
        schedule.go_on_from(evaluations, int(run["rounds"]), best, weights)
        waiting = [WeightSnapshot(**copy) for copy in run["pending"]]
        learner.snapshots.go_on_from(waiting, run["next_copy"])
        reporting.episodes.restore(run["episodes"])
        assert reporting.pool is not None
        counted = float(run["actor_wait_seconds"]), int(run["actor_restarts"])
        reporting.builder.go_on_from(reporting.pool.statistics(), report, *counted)


async def _restore_learner(learner: Learner, resumed: Resumption) -> None:
    priorities: list[tuple[int, NDArray[np.float32]]] | None = None
    if resumed.rows is not None:
        firsts = resumed.run["rings"]["first"].tolist()
        rings = split_rings(resumed.rows)
        priorities = [
            (first, np.asarray(ring["priorities"])[:-1])
            for first, ring in zip(firsts, rings, strict=True)
            if "priorities" in ring
        ]
    state = {**resumed.run["learner"], "core": resumed.core}
    if resumed.another_group:
        state |= await _own_random_numbers(learner, state)
    await learner.restore(state, priorities)


async def _own_random_numbers(learner: Learner, state: Mapping[str, Any]) -> dict[str, Any]:
    """Own state of a group that takes over another's: its generators, for other draws, and no past segments."""
    from asyncrl.groups.state import OWN

    own = await learner.state_dict()
    core = {name: own["core"][name] for name in OWN if name in own["core"]}
    kept = {"core": {**state["core"], **core}, "past": None}
    return kept | ({"generator": own["generator"]} if "generator" in own else {})


def _records(columns: Mapping[str, Any]) -> tuple[EvaluationResult, ...]:
    names = list(columns)
    rows = zip(*(columns[name].tolist() for name in names), strict=True)
    return tuple(EvaluationResult(**dict(zip(names, row, strict=True))) for row in rows)
