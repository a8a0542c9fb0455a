"""State of a run in its checkpoints: taken while it trains, and restored before a resumed run trains.

    always                       learner: network, optimiser, schedules' counters, normalisers, generators, pace,
                                 staleness and lag; evaluations so far and weights that wait for one; training episodes;
                                 clocks; positions of the rings
    save_replay_buffer           also the rows of the replay with their priorities, in a file beside the checkpoint
    lockstep, synchronous        also the actors' state: environments, generators, exploration. With a replay loop only
                                 together with save_replay_buffer

The learner is held while rows or actor states are written. Before actor states are taken, the actors use up their
grants (`states_of`). A lockstep run that stops anywhere and is resumed therefore ends with the same
numbers as one that never stopped. If the environments' state cannot be saved (`envs/env_state.py`), the actors start
new incarnations, as after a crash, each with a reset row that ends the trajectories in its ring.

Rings and actors are restored before any process starts (`restore_rings`), everything else before training.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.actors.pool import ActorPool
from asyncrl.actors.supervised import states_of
from asyncrl.config import TrainerConfig
from asyncrl.errors import AsyncRLError
from asyncrl.learning.clock import TrainClock
from asyncrl.learning.learner import Learner
from asyncrl.learning.weight_snapshots import WeightSnapshot
from asyncrl.printable import error_text
from asyncrl.protocols import Algorithm
from asyncrl.run.evaluate import EvaluationSchedule
from asyncrl.run.reporting import Reporter
from asyncrl.shm.ring_rows import (
    RingPosition,
    arrays_of,
    begin_at,
    first_kept,
    pieces,
    position_of,
    put_rows,
)
from asyncrl.show.metrics import EvaluationResult
from asyncrl.storage.checkpoint import does_not_fit
from asyncrl.storage.replay_file import SUFFIX, RowArray, split_rings, write_rows
from asyncrl.storage.resume import Resumption
from asyncrl.storage.resume_rules import refused_change

ACTORS_SECONDS = 10.0
"""Time limit for the actors to use up their grants and to send their state."""


class RunState:
    """Takes the state of a run in progress for its checkpoints, and restores it; event-loop thread only.

    Args:
        config, algorithm: options of the run.
        learner, pool, reporter, schedule, clock: parts of the run.
        others: returns the counters of the other groups.

    Attributes:
        rows: whether the rows of the rings are saved.
    """

    def __init__(
        self,
        config: TrainerConfig,
        algorithm: Algorithm,
        learner: Learner,
        pool: ActorPool,
        reporter: Reporter,
        schedule: EvaluationSchedule,
        clock: TrainClock,
        others: Callable[[], dict[str, list[int]]],
    ) -> None:
        self.rows = algorithm.exact if algorithm.update_loop == "segments" else config.save_replay_buffer
        self._schedule = schedule
        self._learner, self._pool, self._reporter, self._clock = learner, pool, reporter, clock
        self._exact, self._others = algorithm.exact, others
        self._written: tuple[str, tuple[int, ...]] = ("", ())
        """Name of the last rows file, and the learner's updates and ring positions at that time."""

    @property
    def evaluations(self) -> int:
        """Number of evaluations."""
        return len(self._schedule.evaluations)

    @property
    def episodes(self) -> int:
        """Number of finished training episodes."""
        return self._reporter.episodes.count

    async def take(self) -> dict[str, Any]:
        """Return the entries `core` and `run` of a checkpoint without rows."""
        learner = await self._learner.state_dict()
        return {"core": learner.pop("core"), "run": self._run_state(learner)}

    async def take_with_rows(self, folder: Path) -> dict[str, Any]:
        """`take`, with rows and actor states written to a file in `folder`; the learner is held. Raises OSError."""
        await self._learner.hold()
        try:
            states, why = await self._actor_states()
            learner = await self._learner.state_dict()
            run = self._run_state(learner)
            name = f"{self._learner.inserted_steps}{SUFFIX}"
            positions = run["rings"]
            where = (self._learner.updates, *map(int, (*positions["published"], *positions["granted"])))
            if self._written != (name, where) or not (folder / name).exists():
                await asyncio.to_thread(write_rows, folder / name, self._row_arrays(run["rings"], states))
                self._written = (name, where)
        finally:
            self._learner.resume()
        run |= {"rows": name, "why": why}
        return {"core": learner.pop("core"), "run": run}

    async def _actor_states(self) -> tuple[list[bytes] | None, str]:
        if not self._exact:
            return None, ""
        rings = self._pool.rings
        positions = [max(ring.granted - 1, 0) for ring in rings]
        return await states_of(self._pool.actors, positions, ACTORS_SECONDS)

    def _run_state(self, learner: dict[str, Any]) -> dict[str, Any]:
        self._reporter.read_actors(self._pool)
        schedule = self._schedule
        return {
            "learner": learner,
            "rings": self._positions(learner),
            "episodes": self._reporter.episodes.state(),
            "groups": self._others(),
            "evaluations": _columns(EvaluationResult, schedule.evaluations),
            "rounds": schedule.rounds,
            "pending": [vars(copy) for copy in schedule.pending(self._learner.snapshots.waiting())],
            "next_copy": self._learner.snapshots.next_steps,
            "clock": [self._clock.train_seconds, self._clock.startup_seconds, self._clock.wall_seconds],
            "actor_wait_seconds": self._reporter.actor_wait_seconds,
            "actor_restarts": self._reporter.restarts_before
            + sum(actor.restarts for actor in self._pool.actors),
        }

    def _positions(self, learner: Mapping[str, Any]) -> dict[str, Any]:
        """Positions of the rings: the current ones if exact, else those up to which the learner has inserted."""
        rings = self._pool.rings
        taken_in = learner["replay"]["cursors"][:, 0] if "replay" in learner else learner["queue"]["complete"]
        published = [ring.statistics().published for ring in rings] if self._exact else map(int, taken_in)
        at = [position_of(ring, p) for ring, p in zip(rings, published, strict=True)]
        steps = [p.steps for p in at] if self._exact else shares(self._learner.inserted_steps, len(rings))
        return {
            "num_actors": len(rings),
            "published": np.array([p.published for p in at], np.int64),
            "granted": np.array([p.granted if self._exact else p.published for p in at], np.int64),
            "steps": np.array(steps, np.int64),
            "incarnation": np.array([p.incarnation for p in at], np.int64),
            "exploration": np.array([p.exploration for p in at], np.int64),
            "first": np.array([first_kept(p.published, p.granted, rings[0].num_slots) for p in at], np.int64),
        }

    async def restore(self, resumed: Resumption) -> None:
        """Restore the learner, evaluations, episodes and times, before training.

        Raises `CheckpointError` if they do not fit (ASYNC019).
        """
        with _refused_if_damaged(resumed.path):
            await _restore_learner(self._learner, resumed)
        report = await self._learner.report()
        with _refused_if_damaged(resumed.path):
            run = resumed.run
            self._clock.go_on_from(*run["clock"])
            evaluations = _records(run["evaluations"])
            saved_best = _records(resumed.best.get("evaluations", {}))
            best = max((*evaluations, *saved_best), key=lambda result: result.return_mean, default=None)
            weights = resumed.best["weights"] if best is not None and best in saved_best else None
            self._schedule.go_on_from(evaluations, int(run["rounds"]), best, weights)
            waiting = [WeightSnapshot(**copy) for copy in run["pending"]]
            self._learner.snapshots.go_on_from(waiting, run["next_copy"])
            self._reporter.episodes.restore(run["episodes"])
            counted = float(run["actor_wait_seconds"]), int(run["actor_restarts"])
            self._reporter.go_on_from(self._pool.statistics(), report, *counted)

    def _row_arrays(self, rings: Mapping[str, Any], states: list[bytes] | None) -> list[RowArray]:
        """Arrays of the rows file; they are views of shared memory."""
        found = []
        for i, state in enumerate(states or ()):
            data = functools.partial(iter, (np.frombuffer(state, np.uint8),))
            found.append(RowArray(f"actor{i}", "uint8", (len(state),), data))
        priorities = self._learner.priorities
        firsts, ends = rings["first"].tolist(), rings["published"].tolist()
        for index, (ring, first, end) in enumerate(zip(self._pool.rings, firsts, ends, strict=True)):
            arrays = arrays_of(ring)
            if priorities is not None:
                arrays["priorities"] = (priorities[index], 0)
            for name, (array, axis) in arrays.items():
                rows = end - first + 1
                shape = (*array.shape[:axis], rows, *array.shape[axis + 1 :])
                parts = functools.partial(pieces, array, axis, first, rows, ring.num_slots)
                found.append(RowArray(f"ring{index}/{name}", str(array.dtype), shape, parts))
        return found


def _columns(record: type, records: tuple[Any, ...]) -> dict[str, NDArray[Any]]:
    """Convert records of numbers to one array per field, so that thousands of them are few values of a checkpoint."""
    names = [field.name for field in dataclasses.fields(record)]
    return {name: np.array([getattr(r, name) for r in records]) for name in names}


def shares(total: int, parts: int) -> list[int]:
    """Split `total` into equal integer parts; the first also gets the remainder."""
    return [total // parts + (total % parts if part == 0 else 0) for part in range(parts)]


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
