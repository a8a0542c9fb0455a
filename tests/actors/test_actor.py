"""An actor driven by hand, row by row, without a process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import fakes
import numpy as np
import pytest

from asyncrl.actors.actor import Actor, actor_seeds
from asyncrl.actors.streams import PlainStreams
from asyncrl.env_checks import spec_of
from asyncrl.errors import EnvironmentRaised, NonFiniteStep
from asyncrl.shm import RingLayout, RingReader, RingWriter, Segment, WeightMailbox


class Bench:
    """An actor and both ends of its ring."""

    def __init__(self, env: Any, num_envs: int = 2, num_slots: int = 8) -> None:
        self.envs = [env() for _ in range(num_envs)]
        spec = spec_of("fake", self.envs[0])
        self.layout = RingLayout(num_envs, num_slots, spec)
        self.segment = Segment.create("ring", self.layout.arrays(), poison=True)
        self.reader = RingReader(self.segment, self.layout)
        self.mailbox = WeightMailbox.create(3)
        self.policy = fakes.RandomPolicy()

    def actor(self, incarnation: int = 0) -> Actor:
        actor = Actor(
            PlainStreams(self.envs, self.layout.spec),
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
    assert bench.reader.obs[:, 3, 2:].tolist() == [[0, -1]] * 2, (
        "its own first observation, not the old row's"
    )
    assert bench.reader.statistics().env_steps > steps
    assert actor_seeds(3, 1, 0, 4)[0] != actor_seeds(3, 1, 1, 4)[0]


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


def test_non_finite_first_observation_is_refused(benches: list[Bench]) -> None:
    class Broken(fakes.SimpleEnv):
        def observe(self) -> Any:
            return np.array([np.nan, 0], np.float32)

    with pytest.raises(NonFiniteStep, match=r"ASYNC011\].*observation that is NaN or infinite"):
        make(benches, Broken).actor()
