"""Actor without a process, stepped by the test row by row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import fakes
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv
from numpy.typing import NDArray

from asyncrl.actors import actor as actor_module
from asyncrl.actors.actor import Actor, actor_seeds
from asyncrl.actors.statistics import StepTimes
from asyncrl.actors.streams import PlainStreams, Streams, VectorStreams
from asyncrl.envs.checks import spec_of
from asyncrl.errors import EnvironmentRaised, NonFiniteStep
from asyncrl.interfaces import RESET, FieldSpec
from asyncrl.shm import RingLayout, RingReader, RingWriter, Segment, WeightMailbox


class Bench:
    """An actor and both ends of its ring."""

    def __init__(
        self, env: Any, num_envs: int = 2, num_slots: int = 8, extra_fields: tuple[FieldSpec, ...] = ()
    ) -> None:
        self.envs = [env() for _ in range(num_envs)]
        spec = spec_of("fake", self.envs[0])
        self.layout = RingLayout(num_envs, num_slots, spec, extra_fields)
        self.segment = Segment.create("ring", self.layout.arrays(), poison=True)
        self.reader = RingReader(self.segment, self.layout)
        self.mailbox = WeightMailbox.create(3)
        self.policy: Any = fakes.RandomPolicy()

    def actor(self, incarnation: int = 0, streams: Streams | None = None) -> Actor:
        actor = Actor(
            streams or PlainStreams(self.envs, self.layout.spec),
            self.policy,
            RingWriter(self.segment, self.layout),
            self.mailbox,
            index=1,
            num_actors=4,
            seed=3,
            incarnation=incarnation,
        )
        actor.begin()
        return actor

    def close(self) -> None:
        self.segment.close()
        self.mailbox.close()


@pytest.fixture
def benches() -> Iterator[list[Bench]]:
    made: list[Bench] = []
    yield made
    for bench in made:
        bench.close()
    made.clear()


def make(benches: list[Bench], env: Any, **options: Any) -> Bench:
    benches.append(Bench(env, **options))
    return benches[-1]


def test_step_waits_for_weights_and_for_the_next_rows_slot(benches: list[Bench]) -> None:
    bench = make(benches, fakes.SimpleEnv)
    actor = bench.actor()
    assert bench.policy.streams == (2, 2, 8)
    bench.reader.grant(2)
    assert not actor.step(), "no weights yet"
    bench.mailbox.publish(np.ones(3, np.float32))
    assert actor.step()
    assert not actor.step(), "slot 2 was not granted, and row 1 needs it for its next observation"
    assert bench.reader.published() == 1
    bench.reader.grant(3)
    assert actor.step() and not actor.step()
    assert bench.reader.version[:2].tolist() == [1, 1]
    assert np.all(bench.policy.weights == 1)


def test_rows_are_stamped_with_version_and_updates_of_the_weights_that_acted(benches: list[Bench]) -> None:
    bench = make(benches, fakes.SimpleEnv)
    actor = bench.actor()
    own = bench.policy.weights
    bench.reader.grant(8)
    for version, updates in ((1, 0), (2, 5), (3, 5), (4, 17)):
        bench.mailbox.publish(np.full(3, version, np.float32), updates)
        assert actor.step()
        assert bench.policy.weights is own and own.tolist() == [version] * 3, "refreshed in place"
        assert actor.weights_version == version == bench.policy.changes
    assert actor.step() and bench.policy.changes == 4, "nothing new, nothing refreshed"
    assert bench.reader.version[:5].tolist() == [1, 2, 3, 4, 4]
    assert bench.reader.policy_updates[:5].tolist() == [0, 5, 5, 17, 17]


class Explores(fakes.RandomPolicy):
    """Its exploration rate is a tenth of the steps that the last `act` was told, as a schedule's is."""

    def act(
        self, obs: NDArray[Any], rng: np.random.Generator, total_steps: int
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        self.exploration_rate = total_steps / 10
        return super().act(obs, rng, total_steps)


def test_the_rate_shown_with_new_weights_is_that_of_the_rows_they_act_in(benches: list[Bench]) -> None:
    bench = make(benches, fakes.SimpleEnv)
    bench.policy = Explores()
    bench.mailbox.publish(np.ones(3, np.float32))
    bench.reader.grant(4)
    actor = bench.actor()
    while actor.step():
        pass
    assert bench.reader.statistics().exploration_rate == 0, "rates change with the weights only"
    bench.policy = Explores()
    bench.reader.grant(8)
    later = bench.actor(incarnation=1)
    assert later.step() and bench.reader.statistics().exploration_rate == 0, "a RESET row has no action"
    assert later.step() and bench.reader.statistics().exploration_rate == 6 * 4 / 10
    bench.mailbox.publish(np.ones(3, np.float32))
    assert later.step() and bench.reader.statistics().exploration_rate == 8 * 4 / 10


def test_slots_beyond_the_grant_stay_untouched(benches: list[Bench]) -> None:
    bench = make(benches, fakes.SimpleEnv)
    poison = bench.reader.obs.copy()
    actor = bench.actor()
    bench.mailbox.publish(np.ones(3, np.float32))
    bench.reader.grant(4)
    while actor.step():
        pass
    assert bench.reader.published() == 3
    assert np.array_equal(bench.reader.obs[:, 4:], poison[:, 4:])
    assert bench.reader.obs[:, :4, 0].tolist() == [[0, 1, 2, 3]] * 2


def test_next_life_goes_on_in_the_ring_with_other_seeds(benches: list[Bench]) -> None:
    bench = make(benches, fakes.CountingEnv)
    bench.mailbox.publish(np.ones(3, np.float32))
    bench.reader.grant(4)
    actor = bench.actor()
    while actor.step():
        pass
    steps = bench.reader.statistics().env_steps
    second = bench.actor(incarnation=1)
    bench.reader.grant(8)
    while second.step():
        pass
    assert bench.reader.incarnation[:7].tolist() == [0, 0, 0, 1, 1, 1, 1]
    assert bench.reader.statistics().env_steps > steps
    assert actor_seeds(3, 1, 0, 4)[0] != actor_seeds(3, 1, 1, 4)[0]


class Lives(fakes.SimpleEnv):
    """Environment that observes 100, 101, ... after its first reset, 200, 201, ... after the second."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.steps = 100 * (self.steps // 100 + 1)
        return super().reset(seed=seed)


def test_next_life_begins_with_a_reset_row_from_the_true_next_observation(benches: list[Bench]) -> None:
    bench = make(benches, Lives, extra_fields=(FieldSpec("echo", (2,), "float32"),))
    bench.policy = fakes.EchoPolicy(num_actions=1)
    bench.mailbox.publish(np.ones(3, np.float32))
    bench.reader.grant(5)
    bench.policy.weights[:] = 7
    actor = bench.actor()
    assert [actor.step() for _ in range(3)] == [True] * 3
    ring = bench.reader
    ring.reward[:, 3] = ring.action[:, 3] = 99  # what a death in the middle of row 3 may have left
    ring.extras["echo"][:, 3] = 99
    second = bench.actor(incarnation=4)
    bench.mailbox.publish(np.full(3, 2, np.float32), updates=40)
    assert second.step(), "the reset row"
    assert not second.step(), "row 4 needs slot 5"
    assert ring.published() == 4
    assert ring.statistics().env_steps == 3 * 2, "a reset is no step"
    ring.grant(8)
    while second.step():
        pass
    assert ring.obs[:, 1:8, 0].tolist() == [[101, 102, 103, 200, 201, 202, 203]] * 2
    assert ring.flags[:, :7].tolist() == [[0, 0, 0, RESET, 0, 0, 0]] * 2
    assert ring.reward[:, 3].tolist() == [0, 0] and ring.action[:, 3].tolist() == [0, 0]
    assert ring.extras["echo"][:, 3].tolist() == [[0, 0]] * 2
    assert ring.extras["echo"][:, 4].tolist() == [[2, 2], [2, 3]]
    assert ring.version[:7].tolist() == [1, 1, 1, 2, 2, 2, 2]
    assert ring.policy_updates[:7].tolist() == [0, 0, 0, 40, 40, 40, 40]
    assert ring.incarnation[:7].tolist() == [0, 0, 0, 4, 4, 4, 4]


def test_life_that_published_nothing_leaves_no_reset_row(benches: list[Bench]) -> None:
    bench = make(benches, Lives)
    bench.mailbox.publish(np.ones(3, np.float32))
    bench.actor()
    bench.reader.grant(4)
    second = bench.actor(incarnation=1)
    while second.step():
        pass
    assert bench.reader.flags[:, :3].tolist() == [[0, 0, 0]] * 2
    assert bench.reader.obs[:, :4, 0].tolist() == [[200, 201, 202, 203]] * 2


class Counted:
    """Flags, rewards and episodes of the environments `first` to `first + E - 1` of `CountingEnv`, computed slowly."""

    def __init__(self, first: int, num_envs: int, rows: int) -> None:
        self.flags = np.zeros((num_envs, rows), np.uint8)
        self.rewards = np.zeros((num_envs, rows), np.float32)
        ended: list[tuple[int, int, float, int]] = []
        for e in range(num_envs):
            total, length = 0.0, 0
            for t, (_, reward, flags) in zip(range(rows), fakes.counting_rows(first + e), strict=False):
                self.flags[e, t], self.rewards[e, t] = flags, reward
                total, length = (0.0, 0) if flags & RESET else (total + reward, length + 1)
                if flags and not flags & RESET:
                    ended.append((t, e, total, length))
                    total, length = 0.0, 0
        ended.sort()
        self.returns = [total for _, _, total, _ in ended]
        self.lengths = [length for _, _, _, length in ended]
        self.steps = int((self.flags & RESET == 0).sum())


@pytest.mark.parametrize("vector", [False, True])
def test_many_simultaneous_ends_are_logged_exactly(benches: list[Bench], vector: bool) -> None:
    envs, rows = 300, 30
    bench = make(benches, fakes.CountingEnv, num_envs=envs, num_slots=64)
    first = bench.envs[0].index
    streams = None
    if vector:
        built = iter(bench.envs)
        streams = VectorStreams(SyncVectorEnv([lambda: next(built)] * envs), bench.layout.spec)
    bench.mailbox.publish(np.ones(3, np.float32))
    actor = bench.actor(streams=streams)
    bench.reader.grant(rows + 1)
    while actor.step():
        pass
    expected = Counted(first, envs, rows)
    assert np.array_equal(bench.reader.flags[:, :rows], expected.flags)
    assert np.array_equal(bench.reader.reward[:, :rows], expected.rewards)
    count, returns, lengths, _ = bench.reader.episodes_since(0)
    assert count == len(expected.returns) > 2000
    assert returns.tolist() == expected.returns
    assert lengths.tolist() == expected.lengths
    assert bench.reader.statistics().env_steps == expected.steps
    together = [int((expected.flags[:, t] & 3 != 0).sum()) for t in range(rows)]
    assert max(together) > 50, "many ends in one row"


def test_seeds_differ_over_actors_and_environments_and_repeat_over_runs() -> None:
    all_seeds = [seed for index in range(8) for seed in actor_seeds(5, index, 0, 16)[0]]
    assert len(set(all_seeds)) == 8 * 16
    assert all_seeds[:16] == actor_seeds(5, 0, 0, 16)[0]
    assert actor_seeds(5, 0, 0, 2)[1].random() == actor_seeds(5, 0, 0, 16)[1].random()


def test_double_observations_are_stored_as_float32(benches: list[Bench]) -> None:
    bench = make(benches, fakes.DoubleSpace)
    actor = bench.actor()
    bench.mailbox.publish(np.ones(3, np.float32))
    bench.reader.grant(2)
    assert actor.step()
    assert bench.reader.obs.dtype == np.float32
    assert bench.reader.obs[0, :2, 0].tolist() == [0.5, 1.5]


def test_failed_row_is_not_published_and_names_its_place(benches: list[Bench]) -> None:
    bench = make(benches, fakes.Raises, num_slots=16)
    actor = bench.actor()
    bench.mailbox.publish(np.ones(3, np.float32))
    bench.reader.grant(16)
    with pytest.raises(
        EnvironmentRaised, match=r"ASYNC002\] Environment 0 of actor 1 raised UnicodeTranslateError"
    ) as e:
        while actor.step():
            pass
    assert bench.reader.published() == 6
    assert e.value.facts["episode step"] == 6
    assert e.value.facts["seed"] == actor_seeds(3, 1, 0, 2)[0][0]
    assert isinstance(e.value.__cause__, UnicodeTranslateError)


class RaisesInSecondReset(fakes.FixedLength):
    """Environment whose level is lost after its first episode."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if seed is None:
            raise RuntimeError("no map for this level")
        return super().reset(seed=seed)


def test_failure_of_a_reset_between_episodes_is_told_as_one(benches: list[Bench]) -> None:
    bench = make(benches, RaisesInSecondReset)
    actor = bench.actor()
    bench.mailbox.publish(np.ones(3, np.float32))
    bench.reader.grant(8)
    with pytest.raises(EnvironmentRaised, match=r"raised RuntimeError in reset: no map for this level"):
        while actor.step():
            pass
    assert bench.reader.published() == 3


def test_non_finite_first_observation_is_refused(benches: list[Bench]) -> None:
    class Broken(fakes.SimpleEnv):
        def observe(self) -> Any:
            return np.array([np.nan, 0], np.float32)

    with pytest.raises(NonFiniteStep, match=r"ASYNC011\].* returned an observation that is NaN"):
        make(benches, Broken).actor()


def test_reward_beyond_float32_is_refused(benches: list[Bench]) -> None:
    class Huge(fakes.SimpleEnv):
        def step(self, action: Any) -> Any:
            obs, _, *rest = super().step(action)
            return obs, 1e39, *rest

    bench = make(benches, Huge)
    actor = bench.actor()
    bench.mailbox.publish(np.ones(3, np.float32))
    bench.reader.grant(2)
    with (
        np.errstate(all="raise"),
        pytest.raises(NonFiniteStep, match=r"returned a reward that is NaN or inf"),
    ):
        actor.step()
    assert bench.reader.published() == 0


# --- times ----------------------------------------------------------------------------------------------


class CountedClock:
    """Clock that advances by a microsecond at each reading."""

    def __init__(self) -> None:
        self.readings = 0

    def __call__(self) -> int:
        self.readings += 1
        return self.readings * 1000


def test_clocks_are_read_in_one_row_of_many(benches: list[Bench], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = CountedClock()
    monkeypatch.setattr(actor_module, "perf_counter_ns", clock)
    bench = make(benches, fakes.SimpleEnv, num_slots=512)
    actor = bench.actor()
    bench.mailbox.publish(np.ones(3, np.float32))
    bench.reader.grant(131)
    times = StepTimes([bench.reader])
    assert times.statistics() == {}
    while actor.step():
        pass
    assert bench.reader.published() == 130
    assert clock.readings == 4 * 3, "rows 0, 64 and 128"
    of_a_step = 1e-6 / 2  # a row is a step of both environments
    assert times.statistics() == pytest.approx(
        {
            "time/step_inference_seconds": of_a_step,
            "time/step_env_seconds": of_a_step,
            "time/step_write_seconds": of_a_step,
            "time/step_wait_seconds": 0.0,
        }
    )
    assert times.statistics()["time/step_env_seconds"] == pytest.approx(of_a_step), "the last known"
    assert bench.reader.check_header()
