"""Checkpoints of a run: written at intervals, at the end and of the best weights; restored when a run is resumed.

Writing may fail because the disk is full, or the directory is gone or read-only. Training then continues, one warning
(ASYNC040) is given until a save succeeds again, existing checkpoints stay intact, and the next save tries again.

A checkpoint holds

    always                       acting weights; critics, for the values of a loaded policy; the best checkpoint has
                                 those that were evaluated, and beside them the learner's own, some steps newer
                                 learner: network, optimiser, schedules' counters, normalisers, generators, pace,
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
import itertools
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from asyncrl.actors.pool import ActorPool
from asyncrl.actors.statistics import over_actors
from asyncrl.actors.supervised import states_of
from asyncrl.errors import FilesNotWritten, ResourceError, TrainingDiverged, warn
from asyncrl.learning.learner import Learner
from asyncrl.learning.weight_snapshots import WeightSnapshot
from asyncrl.policies.portable_policy import PolicyOrigin
from asyncrl.run.callbacks import Callbacks
from asyncrl.run.evaluate import EvaluatedRun, EvaluationSchedule
from asyncrl.run.reporting import Reporter
from asyncrl.run.slow_stop import within_limit
from asyncrl.shm.ring_rows import (
    RingPosition,
    arrays_of,
    begin_at,
    first_kept,
    pieces,
    position_of,
    put_rows,
)
from asyncrl.show.evaluation_result import BY_NAME, EvaluationResult
from asyncrl.storage.checkpoint import CheckpointMeta, refused_if_damaged
from asyncrl.storage.disk_space import reason_of, warn_of_file, warn_of_little_space
from asyncrl.storage.replay_file import SUFFIX, split_rings, write_rows
from asyncrl.storage.resume import Resumption
from asyncrl.storage.resume_rules import refused_change
from asyncrl.storage.run_directory import DirectoryLost, RunDirectory
from asyncrl.storage.tensor_file import StoredArray

ACTORS_SECONDS = 10.0
"""Time limit for the actors to use up their grants and to send their state."""
CLOSE_SECONDS = 5.0
"""Time that the end of a run waits for a save that goes on, before it is given up."""
BEST_SECONDS = 60.0
"""Time that an evaluation waits until the best weights are written; a disk that hangs would end no run."""


class SavedRun(EvaluatedRun, Protocol):
    """What checkpoints need of their run: its parts."""

    callbacks: Callbacks
    directory: RunDirectory
    origin: PolicyOrigin
    pool: ActorPool
    reporter: Reporter
    schedule: EvaluationSchedule


class CheckpointSaver:
    """Writes the checkpoints of one run, one at a time, in a worker thread; event-loop thread only.

    Args:
        run: the run, whose parts exist; without a run directory nothing is saved.

    Attributes:
        keeps_rows: whether checkpoints hold the rows of the rings.
        failure: why the last save failed, "" if it succeeded.
        hangs: whether a save at the end failed or did not answer in time; no further save is tried then.
    """

    def __init__(self, run: SavedRun) -> None:
        self._run, self._directory, self._learner = run, run.directory, run.learner
        loop, self._exact = run.origin.algorithm.update_loop, run.origin.algorithm.exact
        self.keeps_rows = (
            self._exact if loop == "segments" else run.config.save_replay_buffer and loop != "dataset"
        )
        self.failure = ""
        self.hangs = False
        self._turn = asyncio.Lock()
        self._saving: set[asyncio.Task[str]] = set()
        self._closed = threading.Event()
        self._unsaved_best: tuple[dict[str, Any], CheckpointMeta] | None = None
        self._written: tuple[str, tuple[object, ...]] = ("", ())
        """Path of the last checkpoint, and the key of its state."""
        self._announced: tuple[str, set[int]] = ("", set())
        """Path of the last checkpoint that the callbacks were told of, and hashes of its acting weights."""
        self._rows_written: tuple[str, tuple[int, ...]] = ("", ())
        """Name of the last rows file; steps, updates and ring positions at that time."""

    async def look_at_disk(self, rows_bytes: int) -> None:
        """Warn if there is little space for the checkpoints; `rows_bytes` are those of the rows of all rings."""
        if self._directory.path is None:
            return
        core, critics = (await self._learner.state_dict())["core"], await self._learner.critics()
        rows_bytes *= self.keeps_rows
        warn_of_little_space(
            self._directory.path,
            self._run.config.checkpoints_kept,
            {"core": core, "critics": critics},
            self._learner.core.weight_count,
            rows_bytes,
        )

    async def save_latest(
        self, weights: NDArray[np.float32] | None = None, evaluation: EvaluationResult | None = None
    ) -> str:
        """Save the learner; returns the path, "" if none was written.

        A state that is already on disk is not written again: the end of a run saves before every step that may fail.

        Args:
            weights: acting weights; None saves the learner's current ones.
            evaluation: an evaluation of these weights.

        Raises:
            TrainingDiverged: the weights are NaN or infinite.
        """
        return await self._save(weights, evaluation, best=False)

    async def save_best(self, result: EvaluationResult, weights: NDArray[np.float32]) -> None:
        """Save the learner with the best weights so far; if this fails, the next save writes them too.

        Evaluations go on after `BEST_SECONDS`, while the file is still being written.
        """
        if self.hangs:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BEST_SECONDS):
                await self._save(weights, result, best=True)

    async def save_on_request(self) -> str:
        """Save the learner now; returns the path, "" without a directory.

        Raises:
            ResourceError: it cannot be written.
        """
        path = await self.save_latest()
        if not path and self.failure:
            raise ResourceError(
                f"The checkpoint cannot be written: {self.failure}.",
                facts={"run_dir": self._directory.path},
                fix="make space, or make the directory writable; training goes on meanwhile",
            )
        return path

    async def close(self) -> None:
        """Wait for a save that goes on, for `CLOSE_SECONDS`, then give it up; a later one returns the last path.

        The rows of the rings are written from shared memory, which is freed after this. A writer that is given up
        leaves no file, even if its disk answers later.
        """
        if self._saving and not self.hangs:
            await asyncio.wait(self._saving, timeout=CLOSE_SECONDS)
        self._closed.set()
        if self._saving:
            await asyncio.wait(self._saving, timeout=1.0)

    async def save_regularly(self) -> None:
        """Save at every `checkpoint_interval_seconds`, until cancelled."""
        while self._directory.path is not None:
            await asyncio.sleep(self._run.config.checkpoint_interval_seconds)
            await self.save_latest()

    async def save_after_training(
        self, weights: NDArray[np.float32] | None = None, evaluation: EvaluationResult | None = None
    ) -> None:
        """Save like `save_latest`, before anything that may fail or take long and after the final evaluation.

        Raises `TrainingDiverged` if they are NaN or infinite. Any other error, or no answer within the limit of a
        step, gives a warning and sets `hangs`; later calls then return at once, so that a disk that hangs is waited
        for once.
        """
        if self.hangs:
            return
        try:
            await within_limit(self.save_latest(weights, evaluation))
        except TrainingDiverged:
            raise
        except Exception as error:
            self.hangs = True
            warn_of_file("the last checkpoint", error)

    async def _save(
        self, weights: NDArray[np.float32] | None, evaluation: EvaluationResult | None, *, best: bool
    ) -> str:
        # If the caller is cancelled, the task keeps the lock until its file is written: no two threads write at a time.
        saving = asyncio.create_task(
            self._save_in_turn(weights, evaluation, best=best), name="save-checkpoint"
        )
        self._saving.add(saving)
        saving.add_done_callback(self._saving.discard)
        saving.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.wait((saving,))  # no shield: in Python 3.14 it logs an error whose caller has gone
        return saving.result()

    async def _save_in_turn(
        self, weights: NDArray[np.float32] | None, evaluation: EvaluationResult | None, *, best: bool
    ) -> str:
        if self._directory.path is None:
            return ""
        async with self._turn:
            if self._closed.is_set():
                return self._written[0]
            try:
                self._directory.check()
                if weights is None:
                    weights, _ = await self._learner.current_weights()
                key = self._state_key(weights)
                if not best and self._is_written(key):
                    return self._written[0]
                state = {"weights": weights, **await self._take(rows=not best)}
                if self._closed.is_set():
                    return self._written[0]
                meta = self._meta(state["run"]["learner"], evaluation)
                if best:
                    self._unsaved_best = await self._best_of(state, meta, evaluation)
                if self._unsaved_best is not None:
                    best_state, best_meta = self._unsaved_best
                    path = await self._write(best_state, best_meta, best=True)
                    self._unsaved_best = None
                if not best:
                    path = await self._write(state, meta, best=False)
                    self._written = (path, key)
            except TrainingDiverged:
                raise
            except Exception as error:  # a full disk or a bug must not end training
                if not self._closed.is_set():
                    self._warn(error)
                return ""
            self.failure = ""
            return path

    async def _best_of(
        self, state: dict[str, Any], meta: CheckpointMeta, evaluation: EvaluationResult | None
    ) -> tuple[dict[str, Any], CheckpointMeta]:
        """Content of the best checkpoint: the learner has gone on since the copy of the weights, so it has both."""
        own, _ = await self._learner.current_weights()
        current = {"weights": own, "critics": state["critics"], "reward_scale": meta.reward_scale}
        schedule, state = self._run.schedule, {**state, "current": current}
        if schedule.best_weights is not None and evaluation is schedule.best:
            state["critics"] = schedule.best_weights.critics
            meta = dataclasses.replace(meta, reward_scale=schedule.best_weights.reward_scale)
        return state, meta

    def _is_written(self, key: tuple[object, ...]) -> bool:
        """Whether this state was the last one written, and its file still exists."""
        return self._written[1] == key and Path(self._written[0]).exists()

    def _state_key(self, weights: NDArray[np.float32]) -> tuple[object, ...]:
        """Key that identifies a state of the run."""
        learner = self._learner
        counters = (learner.updates, learner.inserted_steps, len(self._run.schedule.evaluations))
        return (
            *counters,
            self._run.env_kwargs.state()["number"],
            self._unsaved_best is None,
            weights.tobytes(),
        )

    async def _write(self, state: dict[str, Any], meta: CheckpointMeta, *, best: bool) -> str:
        self._directory.check()
        folder = self._directory.checkpoints
        assert folder is not None
        # The best weights are written without rows, so that file is not the one to resume from.
        latest = not (best and self.keeps_rows)
        path = str(await asyncio.to_thread(folder.save, state, meta, best=best, latest=latest))
        before, hashes = self._announced
        hashes, weights = hashes if path == before else set(), hash(state["weights"].tobytes())
        # The end of a run adds its evaluations to the checkpoint that it has just written.
        if weights not in hashes:
            self._announced = path, {*hashes, weights}
            self._run.callbacks.checkpoint(path)
        return path

    def _warn(self, error: Exception) -> None:
        before, self.failure = self.failure, reason_of(error)
        if not before and not isinstance(error, DirectoryLost):
            text = (
                f"[ASYNC040] the checkpoint of update {self._learner.updates:,} cannot be written: {self.failure}; "
                "training goes on, the checkpoints that are there stay, and the next one is tried as usual; make "
                "space, or make the directory writable"
            )
            warn(FilesNotWritten(text))

    def _meta(self, learner: Mapping[str, Any], evaluation: EvaluationResult | None) -> CheckpointMeta:
        """Header with the counters of the learner's state; the learner itself has gone on since."""
        return dataclasses.replace(
            self._run.origin.meta,
            env_steps=int(learner["loop"]["inserted_steps"]),
            updates=int(learner["publisher"]["updates"]),
            episodes=self._run.reporter.episodes.count,
            policy_version=evaluation.policy_version if evaluation else self._learner.policy_version,
            train_seconds=self._run.clock.train_seconds,
            weights_env_steps=evaluation.env_steps if evaluation else None,
            return_mean=evaluation.return_mean if evaluation else None,
            policy_returns=evaluation.policy_returns if evaluation else {},
            reward_scale=self._learner.reward_scale,
        )

    # --- state -------------------------------------------------------------------------------------------------------

    async def _take(self, *, rows: bool) -> dict[str, Any]:
        """Entries `core`, `critics` and `run` of a checkpoint; with rows if the run keeps them and `rows` is set."""
        if not (rows and self.keeps_rows):
            return await self._state()
        await self._learner.hold()
        try:
            states, why = None, ""
            if self._exact:
                positions = [max(ring.granted - 1, 0) for ring in self._run.pool.rings]
                states, why = await states_of(self._run.pool.actors, positions, ACTORS_SECONDS)
            state = await self._state()
            name = await self._write_rows(state["run"]["rings"], states)
        finally:
            self._learner.resume()
        state["run"] |= {"rows": name, "why": why}
        return state

    async def _state(self) -> dict[str, Any]:
        critics = await self._learner.critics()
        learner = await self._learner.state_dict()
        return {"core": learner.pop("core"), "critics": critics, "run": self._run_state(learner)}

    async def _write_rows(self, rings: Mapping[str, Any], states: list[bytes] | None) -> str:
        """Write rows and actor states to a file beside the checkpoints; returns its name. Raises OSError.

        Its name is a new one: `latest` refers to an older file until its successor is complete.
        """
        folder, steps = self._directory.checkpoints, self._learner.inserted_steps
        assert folder is not None
        name, written = self._rows_written
        where = (steps, self._learner.updates, *map(int, (*rings["published"], *rings["granted"])))
        if written != where or not (folder.directory / name).exists():
            names = (f"{steps}-{count}{SUFFIX}" for count in itertools.count(1))
            name = next(name for name in names if not (folder.directory / name).exists())
            await asyncio.to_thread(write_rows, folder.directory / name, self._row_arrays(rings, states))
            self._rows_written = (name, where)
        return name

    def _run_state(self, learner: dict[str, Any]) -> dict[str, Any]:
        self._run.reporter.read_actors(self._run.pool)
        schedule = self._run.schedule
        return {
            "learner": learner,
            "rings": self._positions(learner),
            "episodes": self._run.reporter.episodes.state(),
            "groups": self._run.group.others(),
            "env_kwargs": self._run.env_kwargs.state(),
            "evaluations": _columns(schedule.evaluations),
            "rounds": schedule.rounds,
            "has_final": schedule.has_final,
            "pending": [
                {**vars(timed.copy), "other_steps": timed.other_steps} for timed in schedule.pending()
            ],
            "next_copy": self._learner.snapshots.next_steps,
            "clock": [
                self._run.clock.train_seconds,
                self._run.clock.startup_seconds,
                self._run.clock.wall_seconds,
            ],
            "logged": self._run.reporter.logged.newest(),
            "actor_wait_seconds": self._run.reporter.actor_wait_seconds,
            "actor_restarts": self._run.reporter.restarts_before
            + sum(actor.restarts for actor in self._run.pool.actors),
        }

    def _positions(self, learner: Mapping[str, Any]) -> dict[str, Any]:
        """Positions of the rings: the current ones if exact, else those up to which the learner has inserted."""
        rings = self._run.pool.rings
        taken_in = learner["replay"]["cursors"][:, 0] if "replay" in learner else learner["queue"]["complete"]
        published = [ring.statistics().published for ring in rings] if self._exact else map(int, taken_in)
        at = [position_of(ring, p) for ring, p in zip(rings, published, strict=True)]
        inserted = int(learner["loop"]["inserted_steps"])
        steps = [p.steps for p in at] if self._exact else shares(inserted, [p.published for p in at])
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
        """Restore the learner, evaluations and episodes, before training.

        Raises `CheckpointError` if they do not fit (ASYNC019).
        """
        with refused_if_damaged(resumed.path):
            await _restore_learner(self._learner, resumed)
        learned = (await self._learner.report()).metrics
        with refused_if_damaged(resumed.path):
            run = resumed.run
            evaluations = _records(run["evaluations"])
            saved_best = _records(resumed.best.get("evaluations", {}))
            best = best_of(evaluations, saved_best)
            kept = resumed.best.get("weights") if best is not None and best in saved_best else None
            self._run.schedule.go_on_from(evaluations, int(run["rounds"]), best, kept)
            names = [field.name for field in dataclasses.fields(WeightSnapshot)]
            waiting = [WeightSnapshot(**{name: copy[name] for name in names}) for copy in run["pending"]]
            self._learner.snapshots.go_on_from(waiting, run["next_copy"])
            self._run.reporter.episodes.restore(run["episodes"])
            self._run.reporter.logged.restore(run.get("logged", {}))
            self._run.reporter.go_on_from(
                learned | over_actors(self._run.pool.statistics()),
                waited=float(run["actor_wait_seconds"]),
                restarts=int(run["actor_restarts"]),
            )

    def _row_arrays(self, rings: Mapping[str, Any], states: list[bytes] | None) -> list[StoredArray]:
        """Arrays of the rows file; they are views of shared memory."""
        found = []
        for i, state in enumerate(states or ()):
            data = functools.partial(iter, (np.frombuffer(state, np.uint8),))
            found.append(StoredArray(f"actor{i}", "uint8", (len(state),), data))
        priorities = self._learner.priorities
        firsts, ends = rings["first"].tolist(), rings["published"].tolist()
        for index, (ring, first, end) in enumerate(zip(self._run.pool.rings, firsts, ends, strict=True)):
            arrays = arrays_of(ring)
            if priorities is not None:
                arrays["priorities"] = (priorities[index], 0)
            for name, (array, axis) in arrays.items():
                rows = end - first + 1
                shape = (*array.shape[:axis], rows, *array.shape[axis + 1 :])
                parts = functools.partial(pieces, array, axis, first, rows, ring.num_slots)
                data = functools.partial(self._until_closed, parts)
                found.append(StoredArray(f"ring{index}/{name}", str(array.dtype), shape, data))
        return found

    def _until_closed(self, parts: Callable[[], Iterator[NDArray[Any]]]) -> Iterator[NDArray[Any]]:
        """`parts`, until the saver is closed; in the writer's thread."""
        for piece in parts():
            yield piece
            if self._closed.is_set():  # the piece may have been read from memory that was freed
                raise OSError("the run has ended before the rows were written")


def best_of(
    evaluations: Sequence[EvaluationResult], until_best: Sequence[EvaluationResult]
) -> EvaluationResult | None:
    """Best evaluation of a resumed run, None without one.

    Args:
        evaluations: those of its checkpoint.
        until_best: those of the best checkpoint, whose last one is the best of them: it may have replaced a higher
            return of the same weights over fewer episodes.
    """
    best = until_best[-1] if until_best else None
    later = [each for each in evaluations if best is None or each.env_steps > best.env_steps]
    known = later if best is None else [best, *later]
    return max(known, key=lambda result: result.return_mean, default=None)


def _columns(evaluations: tuple[EvaluationResult, ...]) -> dict[str, NDArray[Any]]:
    """Convert evaluations to one array per field, so that thousands of them are few values of a checkpoint.

    Returns by name are a column for each, `agent_returns/first_0`. NaN stands for None, and for a name that an
    evaluation does not have, as the levels of a resumed run may be others.
    """
    columns = {}
    for field in dataclasses.fields(EvaluationResult):
        if field.name not in BY_NAME:
            values = [getattr(each, field.name) for each in evaluations]
            columns[field.name] = np.array([math.nan if value is None else value for value in values])
    for by in BY_NAME:
        for name in dict.fromkeys(name for each in evaluations for name in getattr(each, by)):
            columns[f"{by}/{name}"] = np.array(
                [getattr(each, by).get(name, math.nan) for each in evaluations]
            )
    return columns


def shares(total: int, rows: Sequence[int]) -> list[int]:
    """Split `total` steps in proportion to the rows of each ring; no part is more than a ring's rows hold."""
    if not total:
        return [0] * len(rows)
    ends = [total * end // sum(rows) for end in (0, *itertools.accumulate(rows))]
    return [end - begin for begin, end in itertools.pairwise(ends)]


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
    if not pool.rings:  # a run on a dataset
        return
    with refused_if_damaged(resumed.path):
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
    inserted, envs = resumed.meta.env_steps, pool.rings[0].environments
    rows = max(int(saved["published"].max()), -(-inserted // (num * envs)))
    rows = -(-rows // segment_length) * segment_length
    life, exploration = int(saved["incarnation"].max()), int(saved["exploration"].mean())
    return [RingPosition(rows, rows, steps, life, exploration) for steps in shares(inserted, [rows] * num)]


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
    found = []
    for row in zip(*(columns[name].tolist() for name in names), strict=True):
        values = dict(zip(names, row, strict=True))
        each: dict[str, Any] = {
            field: {
                name.removeprefix(f"{field}/"): value
                for name in names
                if name.startswith(f"{field}/") and not math.isnan(value := values.pop(name))
            }
            for field in BY_NAME
        }
        if math.isnan(values.get("success_rate", math.nan)):
            values["success_rate"] = None
        found.append(EvaluationResult(**values, **each))
    return tuple(found)
