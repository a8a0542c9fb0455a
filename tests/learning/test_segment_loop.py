"""Publication, waiting and dropped segments in the three disciplines, with actors stepped by the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import fakes
import numpy as np
import pytest
import torch

from asyncrl.actors.actor import Actor
from asyncrl.actors.streams import PlainStreams
from asyncrl.algorithms import IMPALA
from asyncrl.algorithms.on_policy import OnPolicy
from asyncrl.config import TrainerConfig
from asyncrl.envs.checks import spec_of
from asyncrl.errors import GPUOutOfMemory
from asyncrl.interfaces import RESET, Segment
from asyncrl.learning.make_loop import make_loop
from asyncrl.learning.segment_loop import SegmentLoop
from asyncrl.learning.weight_snapshots import WeightSnapshots
from asyncrl.replay.past_segments import PastSegments
from asyncrl.replay.segments import SegmentQueue
from asyncrl.shm import RingLayout, RingReader, RingWriter, WeightMailbox
from asyncrl.shm import Segment as Memory

T, E = 4, 2
Discipline = Literal["relaxed", "lockstep", "synchronous"]


@dataclass(frozen=True)
class Seen:
    """Data that a fake core keeps of a segment, whose arrays belong to the ring."""

    ring: int
    first: int
    fresh: bool
    steps: int
    size: int


class FakeCore:
    """Core whose weights are its number of finished iterations. Each iteration takes `steps` steps."""

    weight_count = 3

    def __init__(self, steps: int = 2, reuse: int = 0) -> None:
        self.steps, self.most_reuses = steps, reuse
        self.batches: list[list[Seen]] = []
        self.stamps: list[list[list[int]]] = []
        self.staleness: list[int] = []
        self.progress: list[float] = []
        self.finished = self.samples = self.left = self.reuses = 0
        self.weights_are = np.float32(0)

    def begin(self, segments: Sequence[Segment], progress: float) -> None:
        assert self.left == 0, "one iteration at a time"
        self.batches.append([Seen(s.ring, s.first, s.fresh, s.steps, s.reward.size) for s in segments])
        self.stamps.append([s.version.tolist() for s in segments])
        self.staleness.append(max(int(s.staleness.max()) for s in segments))
        self.progress.append(progress)
        self.left, self.reuses = self.steps, 0

    def step(self) -> bool:
        assert self.left > 0, "a step needs a batch"
        self.left -= 1
        self.samples += sum(s.size for s in self.batches[-1]) // self.steps
        if self.left == 0:
            self.finished += 1
        return self.left > 0

    def reuse(self) -> bool:
        if self.reuses == self.most_reuses:
            return False
        self.reuses, self.left = self.reuses + 1, self.steps
        return True

    def batch(self) -> Mapping[str, Any]:
        return {"reward": np.zeros(1)}

    def write_weights(self, out: np.ndarray) -> None:
        out[:] = self.finished + self.weights_are

    def metrics(self) -> Mapping[str, float]:
        return {}

    def state_dict(self) -> Mapping[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        raise NotImplementedError


class World:
    """`actors` actors stepped by the test, and a learner over their rings."""

    def __init__(
        self,
        discipline: Discipline,
        actors: int = 2,
        per_batch: int | None = None,
        queue_batches: int = 1,
        max_staleness: int | None = None,
        total_steps: int | None = None,
        core: FakeCore | None = None,
        past: PastSegments | None = None,
        snapshots: WeightSnapshots | None = None,
        other_steps: Callable[[], int] = lambda: 0,
    ) -> None:
        self.snapshots = snapshots or WeightSnapshots(None)
        spec = spec_of("fake", fakes.CountingEnv())
        layout = RingLayout(E, 32, spec)
        self.memory = [Memory.create(f"ring{i}", layout.arrays(), poison=True) for i in range(actors)]
        self.readers = [RingReader(m, layout) for m in self.memory]
        self.mailbox = WeightMailbox.create(3)
        self.policies = [fakes.RandomPolicy() for _ in range(actors)]
        self.actors = [
            Actor(
                PlainStreams([fakes.CountingEnv() for _ in range(E)], spec),
                policy,
                RingWriter(memory, layout),
                self.mailbox,
                index=i,
                num_actors=actors,
                seed=0,
            )
            for i, (policy, memory) in enumerate(zip(self.policies, self.memory, strict=True))
        ]
        for actor in self.actors:
            actor.begin()
        self.core = core or FakeCore()
        self.woken: list[int] = []
        self.learning = SegmentLoop(
            OnPolicy(
                discipline=discipline,
                segment_length=T,
                segments_per_batch=per_batch,
                queue_batches=queue_batches,
                max_staleness=max_staleness,
            ),
            SegmentQueue(self.readers, length=T),
            self.core,
            self.mailbox,
            wake=self.woken.append,
            snapshots=self.snapshots,
            total_steps=total_steps,
            max_env_steps=total_steps,
            other_steps=other_steps,
            past=past,
        )
        self.meter = self.learning.staleness
        self.learning.prepare()

    def run(self, actor: int, rows: int = 100) -> int:
        """Let this actor write at most `rows` rows, as far as it may go."""
        for row in range(rows):
            if not self.actors[actor].step():
                return row
        return rows

    def iteration(self) -> None:
        """Tick until the current iteration ends."""
        assert self.learning.tick()
        while self.core.left:
            self.learning.tick()

    def close(self) -> None:
        for memory in self.memory:
            memory.close()
        self.mailbox.close()


@pytest.fixture
def worlds() -> Iterator[list[World]]:
    made: list[World] = []
    yield made
    for world in made:
        world.close()
    made.clear()


def make(worlds: list[World], discipline: Discipline, **options: Any) -> World:
    worlds.append(World(discipline, **options))
    return worlds[-1]


def test_lockstep_lag_is_exactly_one_whatever_the_order(worlds: list[World]) -> None:
    world = make(worlds, "lockstep")
    rng = np.random.default_rng(0)
    for _ in range(12):
        for actor in rng.permutation([0, 1, 0, 1]):  # each may try twice: there is nothing to gain
            world.run(int(actor), int(rng.integers(1, 4)))
            world.learning.tick()
        for actor in (0, 1):
            world.run(actor)
        world.iteration()
    assert world.core.stamps[:3] == [[[1] * T] * 2, [[1] * T] * 2, [[2] * T] * 2]
    for i, batch in enumerate(world.core.stamps):
        assert batch == [[max(1, i)] * T] * 2, f"segment {i} is acted by the weights of iteration {i - 2}"
        assert world.core.staleness[i] == min(i, 1)
        assert [s.ring for s in world.core.batches[i]] == [0, 1]


def test_lockstep_overlaps_collecting_with_learning(worlds: list[World]) -> None:
    world = make(worlds, "lockstep", core=FakeCore(steps=10**9))
    assert world.run(0) == T and world.run(1) == T
    assert world.run(0) == 0, "one segment, no more"
    world.learning.tick()
    assert world.core.left > 0, "the iteration is under way"
    assert world.run(0) == T and world.run(1) == T, "and the next segment is collected meanwhile"
    assert world.run(0) == 0


def test_lockstep_waits_for_every_actor(worlds: list[World]) -> None:
    world = make(worlds, "lockstep")
    world.run(0)
    assert not world.learning.tick() and not world.core.batches
    world.run(1, T - 1)
    assert not world.learning.tick()
    world.run(1)
    assert world.learning.tick() and len(world.core.batches) == 1


def test_synchronous_actors_stand_while_the_learner_learns(worlds: list[World]) -> None:
    world = make(worlds, "synchronous", core=FakeCore(steps=3))
    for iteration in range(4):
        assert world.run(0) == T and world.run(1) == T
        world.core.steps = 10**9
        world.learning.tick()
        assert world.run(0) == 0 and world.run(1) == 0, "nothing is granted before the update is published"
        world.core.left = 1
        world.iteration()
        assert world.core.stamps[-1] == [[iteration + 1] * T] * 2 and world.core.staleness[-1] == 0
    assert world.mailbox.version == 5


def test_relaxed_takes_whatever_came_first_and_waits_for_nobody(worlds: list[World]) -> None:
    world = make(worlds, "relaxed", queue_batches=1)
    for _ in range(20):  # actor 1 never answers
        world.run(0)
        world.learning.tick()
    rings = [[s.ring for s in batch] for batch in world.core.batches]
    assert len(rings) >= 5 and all(r == [0, 0] for r in rings)
    firsts = [s.first for batch in world.core.batches for s in batch]
    assert firsts == [T * i for i in range(len(firsts))], "each segment once, in order"


def test_relaxed_actors_go_on_while_the_learner_learns_up_to_the_bound(worlds: list[World]) -> None:
    world = make(worlds, "relaxed", queue_batches=2, core=FakeCore(steps=10**9))
    world.run(0), world.run(1)
    world.learning.tick()
    assert world.core.left
    while world.run(0) + world.run(1):
        world.learning.tick()
    ahead = sum(reader.published() for reader in world.readers) - 2 * T
    assert ahead == 2 * 2 * T, "two batches of two segments beyond the one that is trained on"


def test_staleness_bound_drops_segments_and_counts_them(worlds: list[World]) -> None:
    world = make(worlds, "relaxed", actors=2, per_batch=1, max_staleness=2)
    world.run(1, 1)  # actor 1 begins its segment with version 1 and then falls asleep
    for _ in range(6):
        world.run(0)
        world.iteration()
    assert world.mailbox.version >= 6
    world.run(1)
    before = len(world.core.batches)
    while world.learning.tick():
        pass
    assert all(s.ring == 0 for batch in world.core.batches for s in batch), (
        "what it began is too old to be used"
    )
    steps = int(np.count_nonzero(world.readers[1].flags[:, :T] & RESET == 0))
    assert world.learning.discarded_steps == steps > 0 and max(world.core.staleness) <= 2
    world.run(1)
    while world.learning.tick():
        pass
    assert any(s.ring == 1 for batch in world.core.batches[before:] for s in batch), (
        "its next one is fresh again"
    )


def test_bound_lets_exactly_its_own_staleness_through(worlds: list[World]) -> None:
    world = make(worlds, "relaxed", actors=2, per_batch=1, max_staleness=2, queue_batches=4)
    world.run(1, 1)
    for _ in range(2):
        world.run(0, T)
        world.iteration()
    assert world.mailbox.version == 3
    world.run(1, T - 1)
    world.learning.tick()
    assert world.core.batches[-1][0].ring == 1 and world.core.staleness[-1] == 2
    assert world.learning.discarded_steps == 0


@pytest.mark.parametrize("discipline", ["relaxed", "lockstep", "synchronous"])
def test_steps_end_with_whole_batches_and_everything_is_trained_on(
    worlds: list[World], discipline: Discipline
) -> None:
    world = make(worlds, discipline, total_steps=100)
    for _ in range(60):
        world.run(0), world.run(1)
        if not world.learning.tick() and world.learning.finished():
            break
    else:
        pytest.fail("never finished")
    taken = sum(s.steps for batch in world.core.batches for s in batch)
    assert 100 <= world.learning.inserted_steps < 100 + 2 * T * E
    assert taken == world.learning.inserted_steps == world.learning.pace.statistics()["received_steps"]
    assert world.core.left == 0 and world.run(0) == world.run(1) == 0
    before = np.cumsum([0] + [sum(s.steps for s in batch) for batch in world.core.batches[:-1]])
    assert world.core.progress == (before / 100).tolist()


def test_progress_counts_the_steps_of_other_groups(worlds: list[World]) -> None:
    elsewhere = iter((0, 30, 60, 1000))
    world = make(worlds, "synchronous", total_steps=100, other_steps=lambda: next(elsewhere))
    own = [0]
    for _ in range(4):
        world.run(0), world.run(1)
        world.iteration()
        own.append(own[-1] + sum(s.steps for s in world.core.batches[-1]))
    expected = [(steps + others) / 100 for steps, others in zip(own, (0, 30, 60, 1000), strict=False)]
    assert world.core.progress == [min(1.0, fraction) for fraction in expected]


def test_samples_and_steps_are_counted_on_both_sides(worlds: list[World]) -> None:
    world = make(worlds, "synchronous")
    for _ in range(5):
        world.run(0), world.run(1)
        world.iteration()
    statistics = world.learning.statistics()
    steps = sum(r.statistics().env_steps for r in world.readers)
    assert world.learning.inserted_steps == statistics["received_steps"] == steps
    assert statistics["consumed_samples"] == 5 * 2 * T * E, "the fake core counts RESET rows as well"
    assert world.learning.updates == 10


def test_a_step_that_only_stops_early_is_no_update(worlds: list[World]) -> None:
    class StopsEarly(FakeCore):
        def step(self) -> bool:
            if self.left == 1:
                self.left, self.finished = 0, self.finished + 1
                return False
            return super().step()

    world = make(worlds, "synchronous", core=StopsEarly(steps=2))
    world.run(0), world.run(1)
    world.iteration()
    assert world.learning.updates == 1 and world.learning.pace.statistics()["consumed_samples"] == T * E


TORCH_SAYS = "CUDA out of memory. Tried to allocate {}. GPU 0 has a total capacity of 79.10 GiB of which ..."


class NoMemory(FakeCore):
    """Core without memory for `begin` or for `step`."""

    def __init__(self, where: str, size: str) -> None:
        super().__init__()
        self.where, self.size = where, size

    def _fail(self, where: str) -> None:
        if where == self.where:
            raise torch.cuda.OutOfMemoryError(TORCH_SAYS.format(self.size))

    def begin(self, segments: Sequence[Segment], progress: float) -> None:
        self._fail("begin")
        super().begin(segments, progress)

    def step(self) -> bool:
        self._fail("step")
        return super().step()


@pytest.mark.parametrize("where", ["begin", "step"])
@pytest.mark.parametrize(
    ("size", "asked"),
    [("2.50 GiB", "2,684,354,560 bytes"), ("512 bytes", "512 bytes"), ("a lot", "unknown")],
)
def test_asyncrl_009_says_what_was_asked_for_held_and_free(
    worlds: list[World], monkeypatch: pytest.MonkeyPatch, where: str, size: str, asked: str
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1_000, 80_000))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 70_000)
    world = make(worlds, "relaxed", core=NoMemory(where, size))
    world.run(0), world.run(1)
    with pytest.raises(GPUOutOfMemory, match=r"ASYNC009\].*out of memory in an update") as raised:
        world.iteration()
    assert raised.value.facts == {
        "segments_per_batch": 2,
        "segment_length": T,
        "asked": asked,
        "held by this process": "70,000 bytes",
        "free": "1,000 of 80,000 bytes",
    }
    assert "lower segments_per_batch or segment_length or hidden_sizes" in str(raised.value)
    assert isinstance(raised.value.__cause__, torch.cuda.OutOfMemoryError)


def test_waiting_actors_are_woken_when_they_may_go_on(worlds: list[World]) -> None:
    world = make(worlds, "synchronous")
    world.run(0), world.run(1)
    assert all(a.writer.must_sleep(a.writer.published + 2) for a in world.actors)
    world.iteration()
    assert sorted(world.woken) == [0, 1]


def test_learner_uses_a_batch_again_only_while_nothing_new_is_there(worlds: list[World]) -> None:
    world = make(worlds, "relaxed", core=FakeCore(steps=1, reuse=2))
    assert not world.learning.tick(), "there is nothing yet to use again"
    world.run(0), world.run(1)
    assert [world.learning.tick() for _ in range(4)] == [True, True, True, False], "one pass, and two more"
    assert len(world.core.batches) == 1 and world.mailbox.version == 4
    world.run(0), world.run(1)
    world.learning.tick()
    assert len(world.core.batches) == 2, "new segments come first"


def test_a_segment_that_grows_too_stale_while_its_batch_is_incomplete_is_dropped(worlds: list[World]) -> None:
    """Each further pass over the last batch publishes, so the waiting segment ages."""
    world = make(worlds, "relaxed", per_batch=2, max_staleness=2, core=FakeCore(steps=1, reuse=3))
    world.run(0), world.run(1)
    while len(world.core.batches) < 1:
        world.learning.tick()
    world.run(0, T)  # half a batch, acted by an old version
    while world.learning.tick():
        pass
    assert world.mailbox.version - int(world.readers[0].version[T]) > 2
    for _ in range(2):
        world.run(0), world.run(1)
        while world.learning.tick():
            pass
    assert len(world.core.batches) > 1 and max(world.core.staleness) <= 2
    assert world.learning.discarded_steps > 0


def test_lockstep_never_uses_a_batch_again(worlds: list[World]) -> None:
    world = make(worlds, "lockstep", core=FakeCore(steps=1, reuse=5))
    world.run(0), world.run(1)
    assert world.learning.tick() and not world.learning.tick()


def test_the_target_counts_the_past_segments_of_every_batch(worlds: list[World]) -> None:
    world = make(worlds, "relaxed", actors=1)
    algorithm = IMPALA(
        discipline="relaxed", segment_length=T, segments_per_batch=2, past_segments=4, past_per_batch=3
    )
    config = TrainerConfig(env="fake", algo="impala", num_actors=1, envs_per_actor=E)
    spec = spec_of("fake", fakes.CountingEnv())
    channels: dict[str, Any] = {"wake": world.woken.append, "snapshots": WeightSnapshots(None)}
    loop = make_loop(algorithm, config, spec, world.core, tuple(world.readers), world.mailbox, **channels)
    assert loop.pace.statistics()["async/samples_per_insert_target"] == algorithm.samples_per_insert * (
        1 + 3 / 2
    )


def test_past_segments_join_later_batches_and_are_measured(worlds: list[World]) -> None:
    past = PastSegments(4, 1, None, np.random.default_rng(0))
    world = make(worlds, "relaxed", actors=1, per_batch=1, past=past)
    for _ in range(4):
        world.run(0, T)
        world.iteration()
    fresh = [[s.fresh for s in batch] for batch in world.core.batches]
    assert fresh == [[True]] + [[True, False]] * 3
    assert world.meter.in_versions.overall().samples == 7 * T * E and world.core.staleness[-1] >= 1


def test_reading_the_present_weights_publishes_nothing(worlds: list[World]) -> None:
    world = make(worlds, "lockstep")
    world.run(0), world.run(1)
    world.iteration()
    weights, version = world.learning.publisher.current()
    assert weights.tolist() == [1.0] * 3 and version == 2
    assert world.mailbox.version == 1, "an evaluation must not move what actors see in lockstep"


def test_weights_that_are_not_finite_are_never_published(worlds: list[World]) -> None:
    from asyncrl.errors import TrainingDiverged

    world = make(worlds, "relaxed")
    world.core.weights_are = np.float32(np.nan)
    world.run(0), world.run(1)
    with pytest.raises(TrainingDiverged, match="the weights became NaN or infinite"):
        world.iteration()
    assert world.mailbox.version == 1


@pytest.mark.parametrize("discipline", ["relaxed", "lockstep", "synchronous"])
def test_copies_for_evaluation_are_made_between_iterations_and_none_is_skipped(
    worlds: list[World], discipline: Discipline
) -> None:
    snapshots = WeightSnapshots(40, capacity=1)
    world = make(worlds, discipline, total_steps=200, snapshots=snapshots)
    copied = []
    for _ in range(400):
        world.run(0), world.run(1)
        if world.learning.tick():
            continue
        if world.learning.finished():
            break
        if snapshots.full:  # the learner waits for the evaluator
            copied.append(snapshots.take())
    else:
        pytest.fail("never finished")
    copied.append(snapshots.take())
    trained = np.cumsum([sum(s.steps for s in batch) for batch in world.core.batches]).tolist()
    expected, multiple = [], 0
    for iteration, steps in enumerate(trained, 1):
        if steps // 40 > multiple:
            multiple = steps // 40
            expected.append((steps, float(iteration), 2 * iteration))
    assert [(s.env_steps, float(s.weights[0]), s.updates) for s in copied] == expected and len(expected) >= 4


def test_learner_waits_for_the_evaluator_and_uses_no_batch_again_meanwhile(worlds: list[World]) -> None:
    snapshots = WeightSnapshots(16, capacity=1)
    world = make(worlds, "relaxed", core=FakeCore(steps=1, reuse=10**9), snapshots=snapshots)
    for _ in range(20):
        world.run(0), world.run(1)
        world.learning.tick()
    updates = world.learning.updates
    assert snapshots.full and not world.learning.tick() and world.learning.updates == updates
    assert snapshots.take() is not None
    assert world.learning.tick() and world.learning.updates > updates


def test_policy_lag_counts_fresh_segments_in_updates(worlds: list[World]) -> None:
    world = make(worlds, "lockstep", core=FakeCore(steps=3))
    for _ in range(5):
        world.run(0), world.run(1)
        world.iteration()
    lag = world.learning.policy_lag.overall()
    assert lag.samples == 5 * 2 * T * E
    # versions 1, 1, 2, 3, 4 act; they were published after 0, 0, 3, 6, 9 of the 0, 3, 6, 9, 12 updates
    assert (lag.mean, lag.max) == ((0 + 3 + 3 + 3 + 3) / 5, 3)
    in_updates, in_versions = world.meter.in_updates.overall(), world.meter.in_versions.overall()
    assert (in_updates.max, in_versions.max) == (3, 1)
