"""State of a run in its checkpoints; `restore.py` reads it back.

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
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.actors.pool import ActorPool
from asyncrl.actors.supervised import states_of
from asyncrl.learning.clock import TrainClock
from asyncrl.learning.learner import Learner
from asyncrl.learning.segment_balance import is_exact
from asyncrl.protocols import Algorithm
from asyncrl.run.evaluate import EvaluationSchedule
from asyncrl.run.reporting import Reporting
from asyncrl.shm.ring_rows import arrays_of, first_kept, pieces, position_of
from asyncrl.show.metrics import EvaluationResult
from asyncrl.storage.replay_file import SUFFIX, write_rows
from asyncrl.storage.tensor_file import StoredArray

ACTORS_SECONDS = 10.0
"""Time limit for the actors to use up their grants and to send their state."""


def keeps_rows(algorithm: Any, save_replay_buffer: bool) -> bool:
    """Whether checkpoints hold the rows of the rings."""
    return is_exact(algorithm) if algorithm.update_loop == "segments" else save_replay_buffer


@dataclass
class RunCapture:
    """Captures the state of a run in progress; event-loop thread only.

    Attributes:
        learner, pool, reporting, schedule, clock: parts of the run.
        algorithm: the algorithm's record.
        rows: whether rows are saved; see `keeps_rows`.
        written: name of the last rows file, and the learner's updates and ring positions at that time.
        others: returns the counters of the other groups.
    """

    learner: Learner
    pool: ActorPool
    reporting: Reporting
    schedule: EvaluationSchedule
    clock: TrainClock
    algorithm: Algorithm
    rows: bool
    written: tuple[str, tuple[int, ...]] = ("", ())
    others: Callable[[], dict[str, list[int]]] = dict

    async def take(self) -> dict[str, Any]:
        """Return the entries `core` and `run` of a checkpoint without rows."""
        learner = await self.learner.state_dict()
        return {"core": learner.pop("core"), "run": self._run_state(learner)}

    async def take_with_rows(self, folder: Path) -> dict[str, Any]:
        """`take`, with rows and actor states written to a file in `folder`; the learner is held. Raises OSError."""
        await self.learner.hold()
        try:
            states, why = await self._actor_states()
            learner = await self.learner.state_dict()
            run = self._run_state(learner)
            name = f"{self.learner.inserted_steps}{SUFFIX}"
            positions = run["rings"]
            where = (self.learner.updates, *map(int, (*positions["published"], *positions["granted"])))
            if self.written != (name, where) or not (folder / name).exists():
                await asyncio.to_thread(write_rows, folder / name, self._row_arrays(run["rings"], states))
                self.written = (name, where)
        finally:
            self.learner.resume()
        run |= {"rows": name, "why": why}
        return {"core": learner.pop("core"), "run": run}

    async def _actor_states(self) -> tuple[list[bytes] | None, str]:
        if not is_exact(self.algorithm):
            return None, ""
        rings = self.pool.rings
        positions = [max(ring.granted - 1, 0) for ring in rings]
        return await states_of(self.pool.actors, positions, ACTORS_SECONDS)

    def _run_state(self, learner: dict[str, Any]) -> dict[str, Any]:
        self.reporting.read_actors()
        schedule = self.schedule
        return {
            "learner": learner,
            "rings": self._positions(learner),
            "episodes": self.reporting.episodes.state(),
            "groups": self.others(),
            "evaluations": _columns(EvaluationResult, schedule.evaluations),
            "rounds": schedule.rounds,
            "pending": [vars(copy) for copy in schedule.pending(self.learner.snapshots.waiting())],
            "next_copy": self.learner.snapshots.next_steps,
            "clock": [self.clock.train_seconds, self.clock.startup_seconds, self.clock.wall_seconds],
            "actor_wait_seconds": self.reporting.actor_wait_seconds(),
            "actor_restarts": self.reporting.builder.restarts_before
            + sum(actor.restarts for actor in self.pool.actors),
        }

    def _positions(self, learner: Mapping[str, Any]) -> dict[str, Any]:
        """Positions of the rings: the current ones if `is_exact`, else those up to which the learner has inserted."""
        rings = self.pool.rings
        taken_in = learner["replay"]["cursors"][:, 0] if "replay" in learner else learner["queue"]["complete"]
        exact = is_exact(self.algorithm)
        published = [ring.statistics().published for ring in rings] if exact else map(int, taken_in)
        at = [position_of(ring, p) for ring, p in zip(rings, published, strict=True)]
        steps = [p.steps for p in at] if exact else shares(self.learner.inserted_steps, len(rings))
        return {
            "num_actors": len(rings),
            "published": np.array([p.published for p in at], np.int64),
            "granted": np.array([p.granted if exact else p.published for p in at], np.int64),
            "steps": np.array(steps, np.int64),
            "incarnation": np.array([p.incarnation for p in at], np.int64),
            "exploration": np.array([p.exploration for p in at], np.int64),
            "first": np.array([first_kept(p.published, p.granted, rings[0].num_slots) for p in at], np.int64),
        }

    def _row_arrays(self, rings: Mapping[str, Any], states: list[bytes] | None) -> list[StoredArray]:
        """Arrays of the rows file; they are views of shared memory."""
        found = []
        for i, state in enumerate(states or ()):
            data = functools.partial(iter, (np.frombuffer(state, np.uint8),))
            found.append(StoredArray(f"actor{i}", "uint8", (len(state),), data))
        priorities = self.learner.priorities
        firsts, ends = rings["first"].tolist(), rings["published"].tolist()
        for index, (ring, first, end) in enumerate(zip(self.pool.rings, firsts, ends, strict=True)):
            arrays = arrays_of(ring)
            if priorities is not None:
                arrays["priorities"] = (priorities[index], 0)
            for name, (array, axis) in arrays.items():
                rows = end - first + 1
                shape = (*array.shape[:axis], rows, *array.shape[axis + 1 :])
                parts = functools.partial(pieces, array, axis, first, rows, ring.num_slots)
                found.append(StoredArray(f"ring{index}/{name}", str(array.dtype), shape, parts))
        return found


def _columns(record: type, records: tuple[Any, ...]) -> dict[str, NDArray[Any]]:
    """Convert records of numbers to one array per field, so that thousands of them are few values of a checkpoint."""
    names = [field.name for field in dataclasses.fields(record)]
    return {name: np.array([getattr(r, name) for r in records]) for name in names}


def shares(total: int, parts: int) -> list[int]:
    """Split `total` into equal integer parts; the first also gets the remainder."""
    return [total // parts + (total % parts if part == 0 else 0) for part in range(parts)]
