"""Update loop from replay, with actors stepped by the test and a core that records its inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import fakes
import numpy as np
from numpy.typing import NDArray

from asyncrl.actors.actor import Actor
from asyncrl.actors.streams import PlainStreams
from asyncrl.algorithms import DQN
from asyncrl.envs.checks import spec_of
from asyncrl.interfaces import RESET, Batch, UpdateResult
from asyncrl.learning.lockstep_replay import LockstepReplayLoop, quantum_rows
from asyncrl.learning.relaxed_replay import RelaxedReplayLoop
from asyncrl.learning.weight_snapshots import WeightSnapshots
from asyncrl.replay.replay import PrioritizedReplay
from asyncrl.shm import RingLayout, RingReader, RingWriter, Segment, WeightMailbox


class MovedPolicy(fakes.RandomPolicy):
    """Random actions shifted by the first weight, so that different weights act differently."""

    def act(
        self, obs: NDArray[Any], rng: np.random.Generator, total_steps: int
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        actions, extras = super().act(obs, rng, total_steps)
        return (actions + int(self.weights[0])) % self.num_actions, extras


class FakeCore:
    """Core whose weights are its number of updates; keeps every batch. Priorities follow from ids and update."""

    weight_count = 3

    def __init__(self, prioritized: bool) -> None:
        self.prioritized = prioritized
        self.updates = 0
        self.progress: list[float] = []
        self.batches: list[tuple[Any, ...]] = []
        self.acted: list[tuple[list[int], list[int]]] = []
        self.staleness: list[list[int]] = []
        self.weights_are = np.float32(0)

    def update(self, batch: Batch) -> UpdateResult:
        self.updates += 1
        self.progress.append(batch.progress)
        arrays = (batch.ids, batch.version, batch.policy_updates, batch.staleness, batch.obs, batch.action)
        arrays += (batch.reward, batch.discount, batch.next_obs, batch.weight)
        self.batches.append(tuple(array.tobytes() for array in arrays))
        self.acted.append((batch.version.tolist(), batch.policy_updates.tolist()))
        self.staleness.append(batch.staleness.tolist())
        if not self.prioritized:
            return UpdateResult()
        return UpdateResult(((batch.ids * 31 + self.updates * 17) % 64 / 16).astype(np.float32))

    def write_weights(self, out: NDArray[np.float32]) -> None:
        out[:] = self.updates + self.weights_are

    def metrics(self) -> Mapping[str, float]:
        return {}

    def state_dict(self) -> Mapping[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        raise NotImplementedError


@dataclass(frozen=True)
class Setting:
    """Options of a world. `rows` None: `quantum_rows`; `samples_per_insert` None: a free pace."""

    discipline: Literal["relaxed", "lockstep"] = "lockstep"
    actors: int = 2
    envs: int = 2
    slots: int = 64
    n_step: int = 1
    batch: int = 4
    samples_per_insert: float | None = 2.0
    learning_starts: int = 8
    total_steps: int | None = None
    max_staleness: int | None = None
    prioritized: bool = True
    publish_interval: int | Literal["auto"] = 1
    lag: int = 4
    rows: int | None = None
    eval_steps: int | None = None
    eval_waiting: int = 8
    mirror: Any = None
    other_steps: Callable[[], int] = lambda: 0


@dataclass(frozen=True)
class Received:
    """Data ingested by one call to `tick`.

    Attributes:
        inserted_steps: steps inserted by then.
        updates: updates made before.
        lags: updates between the weights that acted and `updates`, of every row.
    """

    inserted_steps: int
    updates: int
    lags: list[int]


class World:
    """Actors stepped by the test, and an update loop over their rings."""

    def __init__(self, setting: Setting) -> None:
        self.setting = s = setting
        envs = [[self._env(i * s.envs + e) for e in range(s.envs)] for i in range(s.actors)]
        spec = spec_of("fake", envs[0][0])
        layout = RingLayout(s.envs, s.slots, spec)
        self.memory = [Segment.create(f"ring{i}", layout.arrays(), poison=True) for i in range(s.actors)]
        self.readers = [RingReader(m, layout) for m in self.memory]
        self.mailbox = WeightMailbox.create(3)
        self.actors = [
            Actor(
                PlainStreams(own, spec),
                MovedPolicy(),
                RingWriter(memory, layout),
                self.mailbox,
                index=i,
                num_actors=s.actors,
                seed=5,
            )
            for i, (own, memory) in enumerate(zip(envs, self.memory, strict=True))
        ]
        for actor in self.actors:
            actor.begin()
        self.core = FakeCore(s.prioritized)
        self.woken: list[int] = []
        self.snapshots = WeightSnapshots(s.eval_steps, s.eval_waiting)
        self.received: list[Received] = []
        self.taken: list[tuple[float, int, int, int]] = []
        self.learning = self._learning(Batch.allocate(s.batch, spec))
        self.meter = self.learning.staleness
        self.learning.prepare()

    @staticmethod
    def _env(index: int) -> fakes.CountingEnv:
        env = fakes.CountingEnv()
        env.index = index
        return env

    def _learning(self, batch: Batch) -> RelaxedReplayLoop | LockstepReplayLoop:
        s = self.setting
        algorithm = DQN(
            discipline=s.discipline,
            batch_size=s.batch,
            samples_per_insert=s.samples_per_insert,
            learning_starts=s.learning_starts,
            max_staleness=s.max_staleness,
            publish_interval=s.publish_interval,
            lockstep_lag=s.lag,
        )
        replay = PrioritizedReplay(
            self.readers,
            n_step=s.n_step,
            gamma=0.5,
            alpha=0.6 if s.prioritized else None,
            rng=np.random.default_rng(9),
        )
        loop = RelaxedReplayLoop if s.discipline == "relaxed" else LockstepReplayLoop
        made = loop(
            algorithm,
            replay,
            batch,
            self.core,
            self.mailbox,
            wake=self.woken.append,
            snapshots=self.snapshots,
            total_steps=s.total_steps,
            max_env_steps=s.total_steps,
            other_steps=s.other_steps,
            mirror=s.mirror,
        )
        if s.rows is not None:
            made.pace.rows = s.rows  # type: ignore[union-attr]
        return made

    @property
    def quantum(self) -> int:
        """Number of rows of a quantum."""
        s = self.setting
        assert s.samples_per_insert is not None
        return s.rows or quantum_rows(
            samples_per_insert=s.samples_per_insert,
            batch_size=s.batch,
            streams=s.actors * s.envs,
            num_slots=s.slots,
            lag=s.lag,
        )

    def run(self, actor: int, rows: int = 1000) -> int:
        """Let this actor write at most `rows` rows, as far as it may go."""
        for row in range(rows):
            if not self.actors[actor].step():
                return row
        return rows

    def run_all(self) -> None:
        """Let every actor write as far as it may go."""
        for actor in range(self.setting.actors):
            self.run(actor)

    def tick(self) -> bool:
        """Tick the learner once and record what it ingested."""
        updates, before = self.learning.updates, self.learning._positions.tolist()
        worked = self.learning.tick()
        after = self.learning._positions.tolist()
        if after != before:  # no actor has run since, so the rows are still there
            lags = [
                updates - int(reader.policy_updates[row % self.setting.slots])
                for reader, first, stop in zip(self.readers, before, after, strict=True)
                for row in range(first, stop)
            ]
            self.received.append(Received(self.learning.inserted_steps, updates, lags))
        return worked

    def evaluate(self) -> bool:
        """Take the oldest copy of weights, as the event loop does; False if there is none."""
        taken = self.snapshots.take()
        if taken is not None:
            self.taken.append((float(taken.weights[0]), taken.version, taken.updates, taken.env_steps))
        return taken is not None

    def finish(self, rng: np.random.Generator, rounds: int = 100_000) -> None:
        """Run actors, learner and evaluator in random order until the end; fails if none of them can continue."""
        actors, idle = self.setting.actors, 0
        for _ in range(rounds):
            went_on = False
            for who in rng.permutation(actors + 2):
                for _ in range(int(rng.integers(1, 5))):
                    if who < actors:
                        went_on |= self.run(int(who), 1) > 0
                    elif who == actors:
                        went_on |= self.tick()
                    else:
                        went_on |= self.evaluate()
            idle = 0 if went_on else idle + 1
            if (
                idle == 3
            ):  # a tick that makes no update may have granted rows to an actor that was asked before
                assert self.learning.finished(), f"actors and learner wait for each other: {self.setting}"
                return
        raise AssertionError(f"{rounds} rounds were not enough: {self.setting}")

    @property
    def steps(self) -> int:
        """Environment steps that the actors published, without RESET rows; only while no ring has wrapped around."""
        return sum(
            int(np.count_nonzero(reader.flags[:, : reader.published()] & RESET == 0))
            for reader in self.readers
        )

    def close(self) -> None:
        for memory in self.memory:
            memory.close()
        self.mailbox.close()
        vars(self.learning).clear()  # it holds itself; the rings' views shall go now, not with the collector


@contextmanager
def world(**setting: Any) -> Iterator[World]:
    """A world that is closed at the end."""
    made = World(Setting(**setting))
    try:
        yield made
    finally:
        made.close()
