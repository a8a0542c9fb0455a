"""State of a run in its checkpoints; `restore.py` is how a run goes on from it.

    always                       learner: network, optimiser, schedules' counters, normalisers, generators, pace,
                                 staleness and lag; evaluations so far and weights that wait for one; training episodes;
                                 clocks; positions of the rings
    save_replay_buffer           and the rows of the replay with their priorities, in a file beside the checkpoint
    lockstep, synchronous        and what the actors hold: environments, generators, exploration. Of an algorithm that
                                 learns from replay only with save_replay_buffer

For the last two the learner stands still while they are written, and for the last the actors have made all that they
were granted (`actors/actor_states.py`). So a run in lockstep that stops anywhere, goes on and ends has the same numbers
as one that never stopped. Where the environments cannot be kept (`envs/env_state.py`) the actors begin new lives, as
after a death: their first rows cut what the rings hold.
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

from asyncrl.actors.actor_states import states_of
from asyncrl.actors.pool import ActorPool
from asyncrl.learning.clock import TrainClock
from asyncrl.learning.learner import Learner
from asyncrl.learning.segment_balance import is_exact
from asyncrl.protocols import Algorithm
from asyncrl.run.evaluate import EvaluationSchedule
from asyncrl.run.reporting import Reporting
from asyncrl.shm.ring_rows import arrays_of, first_kept, pieces, position_of
from asyncrl.show.metrics import EvaluationResult
from asyncrl.storage.replay_file import SUFFIX, RowArray, write_rows

ACTORS_SECONDS = 10.0
"""How long actors may take to reach the end of what they were granted and to send their state."""


def keeps_rows(algorithm: Any, save_replay_buffer: bool) -> bool:
    """Whether checkpoints hold the rows of the rings."""
    return is_exact(algorithm) if algorithm.update_loop == "segments" else save_replay_buffer


@dataclass
class RunCapture:
    """Takes the state of a running run; event-loop thread only.

    Attributes:
        learner, pool, reporting, schedule, clock: its parts.
        algorithm: its record.
        rows: whether rows are kept; see `keeps_rows`.
        written: the file of rows that was written last, and where learner and rings stood.
        others: counters of the other groups.
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
        """The entries `core` and `run` of a checkpoint, without rows."""
        learner = await self.learner.state_dict()
        return {"core": learner.pop("core"), "run": self._run_state(learner)}

    async def take_with_rows(self, folder: Path) -> dict[str, Any]:
        """The same, with rows and actors in a file of `folder`; learning stands still meanwhile. Raises OSError."""
        await self.learner.hold()
        try:
            states, why = await self._actor_states()
            learner = await self.learner.state_dict()
            run = self._run_state(learner)
            name = f"{self.learner.inserted_steps}{SUFFIX}"
            where = (
                self.learner.updates,
                *run["rings"]["published"].tolist(),
                *run["rings"]["granted"].tolist(),
            )
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
        """Where the rings stand: exactly, or as far as the learner has taken them in."""
        rings = self.pool.rings
        taken_in = learner["replay"]["cursors"][:, 0] if "replay" in learner else learner["queue"]["complete"]
        at = [position_of(ring, int(p)) for ring, p in zip(rings, taken_in, strict=True)]
        if is_exact(self.algorithm):
            at = [position_of(ring, ring.statistics().published) for ring in rings]
        steps = (
            [p.steps for p in at]
            if is_exact(self.algorithm)
            else shares(self.learner.inserted_steps, len(rings))
        )
        return {
            "num_actors": len(rings),
            "published": np.array([p.published for p in at], np.int64),
            "granted": np.array(
                [p.granted if is_exact(self.algorithm) else p.published for p in at], np.int64
            ),
            "steps": np.array(steps, np.int64),
            "incarnation": np.array([p.incarnation for p in at], np.int64),
            "exploration": np.array([p.exploration for p in at], np.int64),
            "first": np.array([first_kept(p.published, p.granted, rings[0].num_slots) for p in at], np.int64),
        }

    def _row_arrays(self, rings: Mapping[str, Any], states: list[bytes] | None) -> list[RowArray]:
        """What the file of rows holds; the arrays are views of shared memory."""
        found = [
            RowArray(
                f"actor{i}",
                "uint8",
                (len(state),),
                functools.partial(iter, (np.frombuffer(state, np.uint8),)),
            )
            for i, state in enumerate(states or ())
        ]
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
                found.append(RowArray(f"ring{index}/{name}", str(array.dtype), shape, parts))
        return found


def _columns(record: type, records: tuple[Any, ...]) -> dict[str, NDArray[Any]]:
    """Records of numbers as an array per field: thousands of them are few values of a checkpoint."""
    names = [field.name for field in dataclasses.fields(record)]
    return {name: np.array([getattr(r, name) for r in records]) for name in names}


def shares(total: int, parts: int) -> list[int]:
    """`total` in equal parts; the first has the rest."""
    return [total // parts + (total % parts if part == 0 else 0) for part in range(parts)]
