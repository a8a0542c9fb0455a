"""Rings in one process, random actors that record all rows they write, and a replay over them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from oracles import SlowReplay, SlowRow, slow_joint, slow_joint_sequence, slow_sequence

from asyncrl.interfaces import (
    FROZEN,
    RESET,
    TERMINATED,
    TRUNCATED,
    Agent,
    Batch,
    BoxAction,
    DiscreteAction,
    EnvSpec,
    FieldSpec,
    JointBatch,
    JointSequenceBatch,
    SequenceBatch,
    SequenceShape,
)
from asyncrl.replay import JointReplay, JointSequenceReplay, PrioritizedReplay, SequenceReplay
from asyncrl.replay.hindsight import Hindsight
from asyncrl.replay.tables import ID_BITS, IGNORED, RETIRED
from asyncrl.shm import RingLayout, RingReader, RingWriter, Segment
from asyncrl.shm.segment import POISON

EPS = 2.0**-10
"""A priority_eps that keeps dyadic priorities dyadic."""


class RandomActor:
    """Writes random rows like an actor (next observation first, then publish) and keeps a copy of each in `rows`.

    All granted slots that are not written yet are poisoned: poison in data shows that they were read too late or too
    early.
    """

    def __init__(self, writer: RingWriter, rows: list[SlowRow], rng: np.random.Generator) -> None:
        self.writer, self.rows, self.rng = writer, rows, rng
        self.gone = np.zeros((writer.environments, writer.layout.spec.num_agents), np.bool_)
        self.frozen = np.zeros(self.gone.shape, np.bool_)
        self.self_play = False
        self.version = self.policy_updates = self.incarnation = 0
        self.next_obs: Any = None
        self.next_state: Any = None

    def restart(self) -> None:
        """Begin a new life: the observation without action is replaced, and episodes begin anew."""
        self.incarnation += 1
        self.gone[:] = False
        self.next_obs = None

    def poison(self) -> None:
        """Overwrite all slots that this actor may write, as a fast actor soon would."""
        w = self.writer
        positions = np.arange(w.published, w.granted)
        slots = positions & (w.num_slots - 1)
        arrays = [w.action, w.reward, w.flags, *w.extras.values()]
        for array in arrays:
            array[:, slots] = np.full(array.dtype.itemsize, POISON, np.uint8).view(array.dtype)[0]
        for array in (w.version, w.policy_updates, w.incarnation):
            array[slots] = np.full(array.dtype.itemsize, POISON, np.uint8).view(array.dtype)[0]
        for seen in (w.obs, w.global_state):
            if seen is not None:
                seen[:, slots if self.next_obs is None else slots[1:]] = np.full(
                    seen.dtype.itemsize, POISON, np.uint8
                ).view(seen.dtype)[0]

    def write(self, rows: int) -> int:
        """Publish at most `rows` rows, as far as the grant allows; returns their number."""
        done = 0
        while done < rows and self.writer.writable() >= 2:
            self._row()
            done += 1
        return done

    def _random(self, array: np.ndarray[Any, Any]) -> Any:
        if array.dtype.kind == "f":
            return self.rng.integers(-64, 64, array.shape).astype(array.dtype)
        return self.rng.integers(0, 200, array.shape).astype(array.dtype)

    def _row(self) -> None:
        w = self.writer
        slot, after = w.published & (w.num_slots - 1), (w.published + 1) & (w.num_slots - 1)
        if self.next_obs is None:
            self.next_obs = self._random(w.obs[:, slot])
            w.obs[:, slot] = self.next_obs
            if w.global_state is not None:
                self.next_state = w.global_state[:, slot] = self._random(w.global_state[:, slot])
        ended, over = self.gone.reshape(-1), self.gone.all(axis=1, keepdims=True)
        chance = self.rng.random(w.num_envs)
        flags = np.select([ended, chance < 0.1, chance < 0.2, chance < 0.23], [RESET, 1, 2, 3], 0)
        if self.self_play:  # other agents act with past versions in every episode
            self.frozen = np.where(over, self.rng.random(self.gone.shape) < 0.5, self.frozen)
        flags = flags.astype(np.uint8) | (FROZEN * self.frozen.reshape(-1)).astype(np.uint8)
        row = SlowRow(
            obs=self.next_obs,
            action=self._random(w.action[:, slot]),
            reward=np.where(ended, 0, self._random(w.reward[:, slot])).astype(np.float32),
            flags=flags,
            version=self.version,
            policy_updates=self.policy_updates,
            incarnation=self.incarnation,
            extras={name: self._random(array[:, slot]) for name, array in w.extras.items()},
            state=self.next_state,
        )
        w.action[:, slot], w.reward[:, slot], w.flags[:, slot] = row.action, row.reward, row.flags
        for name, values in row.extras.items():
            w.extras[name][:, slot] = values
        w.version[slot], w.policy_updates[slot] = row.version, row.policy_updates
        w.incarnation[slot] = row.incarnation
        self.next_obs = self._random(w.obs[:, after])
        w.obs[:, after] = self.next_obs
        if w.global_state is not None:
            self.next_state = w.global_state[:, after] = self._random(w.global_state[:, after])
        self.gone = (self.gone | (flags & (TERMINATED | TRUNCATED) != 0).reshape(self.gone.shape)) & ~over
        self.rows.append(row)
        w.publish()


def interpret(monkeypatch: pytest.MonkeyPatch, *modules: ModuleType) -> None:
    """Replace all kernels in `modules`, and the kernels that they call, by their Python functions.

    `poll` stays compiled: it holds atomics, which exist in compiled form only.
    """
    for module in modules:
        for name in dir(module):
            if hasattr(function := getattr(module, name), "py_func") and name != "poll":
                monkeypatch.setattr(module, name, function.py_func)


@dataclass
class Rig:
    """A replay, its slow reference, and the actors that feed both."""

    replay: Any
    twin: SlowReplay
    actors: list[RandomActor]
    rng: np.random.Generator

    def batch(self, size: int) -> Batch:
        """A poisoned batch of the replay's size."""
        layout, stack = self.replay.rings[0].layout, self.twin.frame_stack
        batch = Batch.allocate(size, layout.spec, layout.extra_fields)
        if stack > 1:
            shape = (size, stack, *layout.spec.observation_shape)
            batch.obs, batch.next_obs = (np.empty(shape, layout.spec.observation_dtype) for _ in range(2))
        return batch

    def keys(self, ids: np.ndarray[Any, Any]) -> list[tuple[int, int, int]]:
        """(ring, position, env) of ids."""
        bits = (self.twin.num_envs - 1).bit_length()
        steps = ids & (1 << ID_BITS) - 1
        parts = (ids >> ID_BITS, steps >> bits, steps % (1 << bits))
        return list(zip(*(part.tolist() for part in parts), strict=True))

    def ids(self, keys: list[tuple[int, int, int]]) -> np.ndarray[Any, Any]:
        """Inverse of `keys`."""
        bits = (self.twin.num_envs - 1).bit_length()
        return np.array([(r << ID_BITS) + (p << bits) + e for r, p, e in keys], np.int64)

    def ingest(self) -> None:
        assert self.replay.ingest() == self.twin.ingest()

    def grant(self, ring: int, position: int) -> None:
        self.replay.grant(ring, position)
        self.twin.grant(ring, position)
        self.actors[ring].poison()

    def check_batch(self, batch: Batch) -> None:
        """Check that every item is sampleable and equals the actor's rows."""
        for i, key in enumerate(self.keys(batch.ids)):
            assert key in self.twin.priority, f"{key} must not be sampled"
            expected = self.twin.transition(key)
            np.testing.assert_array_equal(batch.obs[i], expected.obs)
            np.testing.assert_array_equal(batch.next_obs[i], expected.next_obs)
            np.testing.assert_array_equal(batch.action[i], expected.action)
            assert batch.reward[i] == np.float32(expected.reward)
            assert batch.discount[i] == np.float32(expected.discount)
            assert batch.version[i] == expected.version
            assert batch.policy_updates[i] == expected.policy_updates
            for name, value in expected.extras.items():
                np.testing.assert_array_equal(batch.extras[name][i], value)


class SequenceRig(Rig):
    """A rig whose replay holds sequences."""

    def batch(self, size: int) -> Any:
        """A sequence batch of the replay's size."""
        layout = self.replay.rings[0].layout
        spec = layout.spec.stacked(self.twin.frame_stack)
        return SequenceBatch.allocate(size, self.replay.shape, spec, layout.extra_fields)

    def check_batch(self, batch: Any) -> None:
        """Check that every item is sampleable and equals the actor's rows."""
        for i, key in enumerate(self.keys(batch.ids)):
            assert key in self.twin.priority, f"{key} must not be sampled"
            for name, wanted in slow_sequence(self.twin, key).items():
                found = batch.extras[name] if name in batch.extras else getattr(batch, name)
                np.testing.assert_array_equal(found[i], wanted, err_msg=f"{name} of {key}")


class JointRig(Rig):
    """A rig whose replay holds joint rows."""

    def batch(self, size: int) -> Any:
        """A joint batch of the replay's size."""
        layout = self.replay.rings[0].layout
        spec, states = layout.spec.stacked(self.twin.frame_stack), layout.state_values
        batch = JointBatch.allocate(size, spec, layout.extra_fields, states)
        batch.state[:] = batch.next_state[:] = np.nan
        return batch

    def check_batch(self, batch: Any) -> None:
        """Check that every item is sampleable and equals the actor's rows."""
        for i, key in enumerate(self.keys(batch.ids)):
            assert key in self.twin.priority, f"{key} must not be sampled"
            assert batch.trained[i].any()
            for name, wanted in slow_joint(self.twin, key).items():
                found = batch.extras[name] if name in batch.extras else getattr(batch, name)
                np.testing.assert_array_equal(found[i], wanted, err_msg=f"{name} of {key}")


class JointSequenceRig(Rig):
    """A rig whose replay holds joint sequences."""

    def batch(self, size: int) -> Any:
        """A batch of joint sequences of the replay's size."""
        layout = self.replay.rings[0].layout
        spec, states = layout.spec.stacked(self.twin.frame_stack), layout.state_values
        batch = JointSequenceBatch.allocate(size, self.replay.shape, spec, layout.extra_fields, states)
        batch.state[:] = np.nan
        return batch

    def check_batch(self, batch: Any) -> None:
        """Check that every item is sampleable and equals the actor's rows."""
        for i, key in enumerate(self.keys(batch.ids)):
            assert key in self.twin.priority, f"{key} must not be sampled"
            assert batch.trained[i].any()
            for name, wanted in slow_joint_sequence(self.twin, key).items():
                found = batch.extras[name] if name in batch.extras else getattr(batch, name)
                np.testing.assert_array_equal(found[i], wanted, err_msg=f"{name} of {key}")


DEFAULT_SPEC = EnvSpec("random", (3,), "float32", DiscreteAction(5))
AGENTS_SPEC = EnvSpec(
    "agents", (3,), "float32", DiscreteAction(5), agents=tuple(Agent(name) for name in ("a", "b", "c"))
)
FRAMES_SPEC = EnvSpec("frames", (5, 3), "uint8", BoxAction((-1.0,) * 3, (1.0,) * 3, (3,)))
EXTRAS = (FieldSpec("log_probability", (), "float32"), FieldSpec("hidden", (2, 3), "float64"))


@contextmanager
def rig(
    seed: int,
    *,
    rings: int = 1,
    envs: int = 1,
    slots: int = 16,
    n_step: int = 1,
    gamma: float = 0.5,
    alpha: float = 1.0,
    frame_stack: int = 1,
    uniform: bool = False,
    spec: EnvSpec = DEFAULT_SPEC,
    extras: tuple[FieldSpec, ...] = (),
    window: int = 1_000,
    sequences: tuple[int, int, int] | None = None,
    hindsight: Hindsight | None = None,
    joint: bool = False,
    of_team: bool = False,
    states: int = 0,
) -> Iterator[Rig]:
    """A rig whose rings are granted in full once; gamma and alpha keep all sums exact.

    With `sequences` (burn-in, length, period) it holds sequences, with `joint` joint rows, with both joint sequences,
    else transitions. Joint sequences are those of a team, joint rows with `of_team`.
    """
    rng = np.random.default_rng(seed)
    layout = RingLayout(envs, slots, spec, extras, state_values=states)
    segments = [Segment.create(f"ring {r}", layout.arrays(), poison=True) for r in range(rings)]
    try:
        readers = [RingReader(segment, layout) for segment in segments]
        options: dict[str, Any] = {
            "alpha": None if uniform else alpha,
            "priority_eps": EPS,
            "priority_window_updates": window,
            "frame_stack": frame_stack,
            "rng": np.random.default_rng(seed),
        }
        replay: PrioritizedReplay | SequenceReplay | JointReplay | JointSequenceReplay
        shape = None if sequences is None else SequenceShape(*sequences, n_step, gamma)
        if joint and shape is not None:
            replay = JointSequenceReplay(readers, shape=shape, **options)
        elif joint:
            replay = JointReplay(readers, n_step=n_step, gamma=gamma, of_team=of_team, **options)
        elif shape is None:
            replay = PrioritizedReplay(readers, n_step=n_step, gamma=gamma, hindsight=hindsight, **options)
        else:
            replay = SequenceReplay(readers, shape=shape, **options)
        burn_in, length, period = sequences or (0, 1, 1)
        twin = SlowReplay(
            rings,
            envs,
            slots,
            n_step=n_step,
            gamma=gamma,
            alpha=alpha,
            eps=EPS,
            frame_stack=frame_stack,
            window=window,
            burn_in=burn_in,
            length=length,
            period=period,
            num_agents=spec.num_agents,
            joint=joint,
            of_team=of_team or shape is not None,
        )
        actors = [
            RandomActor(RingWriter(segment, layout), twin.rows[r], rng) for r, segment in enumerate(segments)
        ]
        kinds = {(False, False): Rig, (False, True): SequenceRig, (True, False): JointRig}
        kind = kinds.get((joint, sequences is not None), JointSequenceRig)
        made = kind(replay, twin, actors, rng)
        for ring in range(rings):
            made.grant(ring, slots)
        yield made
    finally:
        for segment in segments:
            segment.close()


def dyadic_errors(rng: np.random.Generator, size: int) -> np.ndarray[Any, Any]:
    """Absolute errors whose priorities (alpha 1) sum exactly."""
    return (rng.integers(0, 4096, size) / 64).astype(np.float32)


def random_operation(r: Rig, batch: Any, old: list[np.ndarray[Any, Any]]) -> None:
    """Apply one random operation to the replay and its reference, and check the invariants afterwards."""
    kind = r.rng.integers(8)
    ring = int(r.rng.integers(len(r.actors)))
    actor = r.actors[ring]
    if kind <= 1:
        actor.version += int(r.rng.integers(0, 2))
        actor.policy_updates += int(r.rng.integers(0, 4))
        actor.write(int(r.rng.integers(1, 12)))
    elif kind == 2:
        r.ingest()
    elif kind == 3:
        granted, seen = actor.writer.granted, r.twin.seen[ring]
        most = min(seen + r.twin.num_slots, granted + 8)
        if most >= granted:
            r.grant(ring, int(r.rng.integers(granted, most + 1)))
    elif kind == 4 and r.rng.random() < 0.3:
        actor.restart()
        actor.poison()
    elif kind == 5 and r.rng.random() < 0.3:
        bound = max(a.policy_updates for a in r.actors) - 18
        assert r.replay.retire_older_than(bound) == r.twin.retire_older_than(bound)
        assert r.replay.retire_older_than(bound) == 0
    elif kind == 6 and old:
        ids = old[int(r.rng.integers(len(old)))].copy()
        ids[: len(ids) // 3] = ids[0]  # repetitions: the last holds
        errors = dyadic_errors(r.rng, len(ids))
        ignored = r.replay.update_priorities(ids, errors)
        assert ignored == r.twin.update_priorities(r.keys(ids), errors)
    elif kind == 7 and r.replay.sampleable:
        sample_and_check(r, batch)
        old.append(batch.ids.copy())
        del old[:-4]


def sample_and_check(r: Rig, batch: Any) -> None:
    """Check that both draw the same rows with the same weights, and only rows that were written and not retired."""
    uniforms = copy_of(r.replay._rng).random(batch.size)
    r.replay.sample(batch, 0.5)
    keys = r.keys(batch.ids)
    assert keys == r.twin.sample(uniforms)
    r.check_batch(batch)
    np.testing.assert_allclose(batch.weight, r.twin.weights(keys, 0.5), rtol=1e-5)


def copy_of(rng: np.random.Generator) -> np.random.Generator:
    twin = np.random.default_rng()
    twin.bit_generator.state = rng.bit_generator.state
    return twin


def count(replay: Any, index: int) -> int:
    """One of the counters of the replay's kernels."""
    return int(replay._state[index])


def check_against_twin(r: Rig) -> None:
    r.replay.tree.check()
    assert r.replay.sampleable == len(r.twin.priority)
    assert r.replay.stored_steps == len(r.twin.priority) * r.twin.period * r.twin.streams_of_item
    assert r.replay.tree.total == sum(r.twin.priority.values())
    assert r.replay.inserted == r.twin.inserted
    assert count(r.replay, IGNORED) == r.twin.ignored
    assert r.replay.discarded_steps == r.twin.discarded
    assert count(r.replay, RETIRED) == r.twin.retired
    assert r.replay.numbers[0] == r.twin.largest()
    assert r.replay.published_rows().tolist() == r.twin.seen
    assert r.replay.published_rows().tolist() == list(r.twin.seen)


def churn(r: Rig, rounds: int) -> None:
    """Actors at full speed: all granted slots are overwritten immediately, and samples are checked."""
    batch = r.batch(32)
    for _ in range(rounds):
        for ring, actor in enumerate(r.actors):
            actor.write(6)
            r.ingest()
            r.grant(ring, max(actor.writer.granted, actor.writer.published + 8))
            r.ingest()
        if r.replay.sampleable:
            r.replay.sample(batch, 0.5)
            r.check_batch(batch)
