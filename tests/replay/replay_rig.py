"""Rings in one process, an actor made of random numbers that remembers all it wrote, and a replay over them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from oracles import SlowReplay, SlowRow

from asyncrl.interfaces import (
    RESET,
    TERMINATED,
    TRUNCATED,
    Batch,
    BoxAction,
    DiscreteAction,
    EnvSpec,
    FieldSpec,
)
from asyncrl.replay import PrioritizedReplay
from asyncrl.replay.tables import ID_BITS
from asyncrl.shm import RingLayout, RingReader, RingWriter, Segment
from asyncrl.shm.segment import POISON

EPS = 2.0**-10
"""A priority_eps that keeps dyadic priorities dyadic."""


class RandomActor:
    """Writes rows as an actor does (next observation first, then publish) and keeps a copy of each in `rows`.

    Every slot it has been granted and not yet written is poisoned: what shows poison was read too late or too
    early.
    """

    def __init__(self, writer: RingWriter, rows: list[SlowRow], rng: np.random.Generator) -> None:
        self.writer, self.rows, self.rng = writer, rows, rng
        self.flags = np.zeros(writer.num_envs, np.uint8)
        self.version = self.policy_updates = self.incarnation = 0
        self.next_obs: Any = None

    def restart(self) -> None:
        """A new life: the observation that waited for its action is replaced, episodes begin anew."""
        self.incarnation += 1
        self.flags[:] = 0
        self.next_obs = None

    def poison(self) -> None:
        """Spoil all that this actor may write, as a fast actor soon would."""
        w = self.writer
        positions = np.arange(w.published, w.granted)
        slots = positions & (w.num_slots - 1)
        arrays = [w.action, w.reward, w.flags, *w.extras.values()]
        for array in arrays:
            array[:, slots] = np.full(array.dtype.itemsize, POISON, np.uint8).view(array.dtype)[0]
        for array in (w.version, w.policy_updates, w.incarnation):
            array[slots] = np.full(array.dtype.itemsize, POISON, np.uint8).view(array.dtype)[0]
        w.obs[:, slots if self.next_obs is None else slots[1:]] = np.full(
            w.obs.dtype.itemsize, POISON, np.uint8
        ).view(w.obs.dtype)[0]

    def write(self, rows: int) -> int:
        """Publish up to `rows` rows, as far as the grant goes; returns how many."""
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
        ended = self.flags & (TERMINATED | TRUNCATED) != 0
        chance = self.rng.random(w.num_envs)
        flags = np.select([ended, chance < 0.1, chance < 0.2, chance < 0.23], [RESET, 1, 2, 3], 0)
        self.flags = flags.astype(np.uint8)
        row = SlowRow(
            obs=self.next_obs,
            action=self._random(w.action[:, slot]),
            reward=np.where(ended, 0, self._random(w.reward[:, slot])).astype(np.float32),
            flags=self.flags.copy(),
            version=self.version,
            policy_updates=self.policy_updates,
            incarnation=self.incarnation,
            extras={name: self._random(array[:, slot]) for name, array in w.extras.items()},
        )
        w.action[:, slot], w.reward[:, slot], w.flags[:, slot] = row.action, row.reward, row.flags
        for name, values in row.extras.items():
            w.extras[name][:, slot] = values
        w.version[slot], w.policy_updates[slot] = row.version, row.policy_updates
        w.incarnation[slot] = row.incarnation
        self.next_obs = self._random(w.obs[:, after])
        w.obs[:, after] = self.next_obs
        self.rows.append(row)
        w.publish()


def interpret(monkeypatch: pytest.MonkeyPatch, *modules: ModuleType) -> None:
    """Replace all kernels in `modules`, and all that they call, by their Python forms.

    `poll` stays compiled: it holds atomics, which exist in compiled form only.
    """
    for module in modules:
        for name in dir(module):
            if hasattr(function := getattr(module, name), "py_func") and name != "poll":
                monkeypatch.setattr(module, name, function.py_func)


@dataclass
class Rig:
    """A replay, its slow twin, and the actors that feed both."""

    replay: PrioritizedReplay
    twin: SlowReplay
    actors: list[RandomActor]
    rng: np.random.Generator

    def batch(self, size: int) -> Batch:
        """A poisoned batch that fits."""
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
        """The other way round."""
        bits = (self.twin.num_envs - 1).bit_length()
        return np.array([(r << ID_BITS) + (p << bits) + e for r, p, e in keys], np.int64)

    def ingest(self) -> None:
        assert self.replay.ingest() == self.twin.ingest()

    def grant(self, ring: int, position: int) -> None:
        self.replay.grant(ring, position)
        self.twin.grant(ring, position)
        self.actors[ring].poison()

    def check_batch(self, batch: Batch) -> None:
        """Every item is sampleable, and equals what its actor wrote."""
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


DEFAULT_SPEC = EnvSpec("random", (3,), "float32", DiscreteAction(5))
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
) -> Iterator[Rig]:
    """A rig whose rings are granted in full once; gamma and alpha keep all sums exact."""
    rng = np.random.default_rng(seed)
    layout = RingLayout(envs, slots, spec, extras)
    segments = [Segment.create(f"ring {r}", layout.arrays(), poison=True) for r in range(rings)]
    try:
        readers = [RingReader(segment, layout) for segment in segments]
        replay = PrioritizedReplay(
            readers,
            n_step=n_step,
            gamma=gamma,
            alpha=alpha,
            uniform=uniform,
            frame_stack=frame_stack,
            priority_eps=EPS,
            priority_window_updates=window,
            rng=np.random.default_rng(seed),
        )
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
        )
        actors = [
            RandomActor(RingWriter(segment, layout), twin.rows[r], rng) for r, segment in enumerate(segments)
        ]
        made = Rig(replay, twin, actors, rng)
        for ring in range(rings):
            made.grant(ring, slots)
        yield made
    finally:
        for segment in segments:
            segment.close()
