"""Actor whose network is run by a server, stepped by the test next to an actor that runs it itself."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import fakes
import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit

from asyncrl import DDPG, DQN, PPO, SAC
from asyncrl.actors.actor import Actor
from asyncrl.actors.actor_state import restore_actor, state_frame
from asyncrl.actors.served_actor import ServedActor
from asyncrl.actors.streams import PlainStreams, Streams, VectorStreams
from asyncrl.envs.catch import Catch
from asyncrl.envs.checks import spec_of
from asyncrl.errors import EnvironmentRaised, NonFiniteStep
from asyncrl.interfaces import RESET
from asyncrl.learning.inference_server import InferenceServer, request_layout
from asyncrl.shm import Doorbell, RingLayout, RingReader, RingWriter, Segment, WeightMailbox
from asyncrl.shm.requests import ActorRequests, RequestLayout, ServerRequests

SLOTS = 16


def pendulum() -> Any:
    return TimeLimit(gymnasium.make("Pendulum-v1").unwrapped, 7)


WORLDS: dict[str, tuple[Callable[[], Any], Any]] = {
    "epsilon": (fakes.CountingEnv, DQN(hidden_sizes=(8,), exploration_repeat=3)),
    "images": (Catch, DQN(network="small", frame_stack=2)),
    "noise": (pendulum, DDPG(hidden_sizes=(8,), random_steps=6)),
    "squashed": (pendulum, SAC(hidden_sizes=(8,), random_steps=6)),
    "choices": (fakes.CountingEnv, PPO(hidden_sizes=(8,))),
    "gaussian": (pendulum, PPO(hidden_sizes=(8,), normalize_observations=True)),
}


class World:
    """A ring with its actor, and the server if the actor needs one."""

    def __init__(self, name: str, num_envs: int, parts: int = 0, vector: bool = False) -> None:
        self.make_env, algorithm = WORLDS[name]
        self.spec = spec_of(name, self.make_env())
        self.algorithm, self.vector = algorithm, vector
        self.layout = RingLayout(num_envs, SLOTS, self.spec, algorithm.extra_fields(self.spec))
        self.segment = Segment.create("ring", self.layout.arrays(), poison=True)
        self.ring = RingReader(self.segment, self.layout)
        self.mailbox = WeightMailbox.create(self.policy().weight_count)
        self.block: Segment | None = None
        if parts:
            wanted = request_layout(self.policy(), self.layout)
            stack = wanted.stack, wanted.dtype
            self.requests = RequestLayout(num_envs, wanted.outputs, parts, wanted.parameters, *stack)
            self.block = Segment.create("requests", self.requests.arrays(), poison=True)
            self.bell = Doorbell.create()
            blocks = [ServerRequests(self.block, self.requests, self.ring)]
            self.woken: list[int] = []
            self.server = InferenceServer(
                self.policy(), blocks, self.bell, self.mailbox, self.woken.append, 1
            )

    def policy(self) -> Any:
        return self.algorithm.make_policy(self.spec)

    def actor(self, incarnation: int = 0, begin: bool = True) -> Actor:
        envs = [self.make_env() for _ in range(self.layout.num_envs)]
        streams: Streams = PlainStreams(envs, self.spec)
        if self.vector:
            env = SyncVectorEnv([lambda env=env: env for env in envs], autoreset_mode=AutoresetMode.NEXT_STEP)
            streams = VectorStreams(env, self.spec)
        identity = {"index": 1, "num_actors": 3, "seed": 4, "incarnation": incarnation}
        writer, actor = RingWriter(self.segment, self.layout), None
        if self.block is None:
            actor = Actor(streams, self.policy(), writer, self.mailbox, **identity)
        else:
            requests = ActorRequests(self.block, self.requests)
            policies = [self.policy() for _ in self.requests.slices]
            actor = ServedActor(streams, policies, writer, self.mailbox, requests, **identity)
        if begin:
            actor.begin()
        return actor

    def publish(self, seed: int) -> None:
        weights = np.random.default_rng(seed).normal(0.0, 0.3, self.mailbox.weight_count)
        self.mailbox.publish(weights.astype(np.float32), 10 * seed)

    def grant(self, rows: int) -> None:
        """Grant `rows` more rows; the last one needs a slot for its next observation."""
        self.ring.grant(max(self.ring.granted, self.ring.published() + rows + 1))

    def row(self, actor: Actor) -> dict[str, Any]:
        """Make the next row and return all its fields in the ring."""
        slot = self.ring.published() % SLOTS
        for _ in range(10):
            if actor.step():
                break
            assert self.block is not None and self.server.serve(), "neither a row nor a request"
        return self.held(slot)

    def held(self, slot: int) -> dict[str, Any]:
        ring, after = self.ring, (slot + 1) % SLOTS
        per_row = {
            name: int(getattr(ring, name)[slot]) for name in ("version", "policy_updates", "incarnation")
        }
        streams = {"obs": ring.obs, "action": ring.action, "reward": ring.reward, "flags": ring.flags}
        arrays = {name: values[:, slot].copy() for name, values in (streams | ring.extras).items()}
        return {**per_row, **arrays, "next_obs": ring.obs[:, after].copy()}

    def close(self) -> None:
        if self.block is not None:
            self.server.close()
            self.bell.close()
            self.block.close()
        self.segment.close()
        self.mailbox.close()


Make = Callable[..., World]


@pytest.fixture
def make() -> Iterator[Make]:
    worlds: list[World] = []

    def made(*args: Any, **options: Any) -> World:
        worlds.append(World(*args, **options))
        return worlds[-1]

    yield made
    for world in worlds:
        world.close()
    worlds.clear()


def counted_from_zero() -> None:
    fakes.CountingEnv.built = itertools.count()


def rows_of(world: World, lives: int = 1, rows: int = 40) -> Iterator[dict[str, Any]]:
    """Rows of several lives, with new weights before some of them."""
    seed = 0
    for life in range(lives):
        counted_from_zero()
        actor = world.actor(life)
        for row in range(rows):
            if row % 7 == 0:
                seed += 1
                world.publish(seed)
            world.grant(3)
            yield world.row(actor)


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name, values in one.items():
        np.testing.assert_array_equal(values, other[name], err_msg=name)


@pytest.mark.parametrize("name", WORLDS)
def test_in_one_part_rows_are_those_of_an_actor_to_the_bit(make: Make, name: str) -> None:
    actor, served = make(name, 3), make(name, 3, parts=1)
    for one, other in zip(rows_of(actor, 2), rows_of(served, 2), strict=True):
        assert_same(one, other)
    assert actor.ring.header[:8].tolist()[:3] == served.ring.header[:8].tolist()[:3]
    for mine, theirs in zip(actor.ring.episodes_since(0), served.ring.episodes_since(0), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_a_vector_environment_is_stepped_in_one_part(make: Make) -> None:
    actor, served = make("choices", 4, vector=True), make("choices", 4, parts=1, vector=True)
    for one, other in zip(rows_of(actor), rows_of(served), strict=True):
        assert_same(one, other)
    spec = actor.spec
    layout = RingLayout(4, SLOTS, spec, actor.layout.extra_fields)
    assert request_layout(actor.policy(), layout).parts == 2, "of single environments"
    assert request_layout(actor.policy(), RingLayout(1, SLOTS, spec, layout.extra_fields)).parts == 1


@pytest.mark.parametrize("parts", [1, 2])
def test_streams_of_all_groups_are_shared_out_to_the_parts(make: Make, parts: int) -> None:
    actor = make(next(iter(WORLDS)), 4, parts=parts).actor(begin=False)
    assigned: list[tuple[int, ...]] = []
    for policy in actor.policies:  # type: ignore[attr-defined]
        policy.assign_streams = lambda *streams: assigned.append(streams)
    actor.place_among(6, 9)  # index 1 of the third group of three actors each
    size = 4 // parts
    assert assigned == [(28 + part * size, size, 36) for part in range(parts)]


@pytest.mark.parametrize("num_envs", [2, 5])
@pytest.mark.parametrize("name", WORLDS)
def test_halves_act_as_two_policies_that_share_a_generator(make: Make, name: str, num_envs: int) -> None:
    """The reference runs both policies itself, half by half, and has bitwise equal rows."""
    served, twin = make(name, num_envs, parts=2), make(name, num_envs)
    halves = served.requests.slices
    counted_from_zero()
    actor = served.actor()
    counted_from_zero()
    other = twin.actor()
    policies = [twin.policy() for _ in halves]
    for policy, half in zip(policies, halves, strict=True):
        policy.assign_streams(num_envs + half.start, half.stop - half.start, 3 * num_envs)

    def act(obs: Any, rng: Any, total_steps: int) -> Any:
        parts = []
        for policy, half in zip(policies, halves, strict=True):
            policy.load_weights(other.policy.weights)
            parts.append(policy.act(obs[half], rng, total_steps))
        extras = {key: np.concatenate([extra[key] for _, extra in parts]) for key in parts[0][1]}
        return np.concatenate([actions for actions, _ in parts]), extras

    other.policy.act = act  # type: ignore[method-assign]
    for world in (served, twin):
        world.publish(1)
    for _ in range(40):
        for world in (served, twin):
            world.grant(3)
        assert_same(served.row(actor), twin.row(other))
    flags = served.ring.flags
    assert (flags & RESET).any() and not (flags & RESET).all(), "episodes ended, apart from each other"


def test_one_half_is_stepped_while_the_other_waits(make: Make) -> None:
    world = make("epsilon", 4, parts=2)
    actor: Any = world.actor()
    world.publish(1)
    world.grant(5)
    assert not actor.step() and actor.waits_for == 0, "both halves have asked"
    (first, second) = list(world.server._blocks[0].requests())
    assert (first.part, second.part, len(first.obs), len(second.obs)) == (0, 1, 2, 2)
    world.server._take_newest_weights()
    world.server._answer([first])
    assert not actor.step() and actor.waits_for == 1
    assert world.ring.published() == 0 and not actor.between_rows, "the first half has made its step"
    waiting = list(world.server._blocks[0].requests())
    assert [(request.part, request.count) for request in waiting] == [(1, 1), (0, 2)][::-1], "and asks again"
    np.testing.assert_array_equal(waiting[0].obs, world.ring.obs[:2, 1], "for the row after this one")
    world.server._answer([waiting[1]])
    assert actor.step() and world.ring.published() == 1 and actor.between_rows
    assert actor.waits_for == 0


def test_no_half_asks_beyond_the_grant(make: Make) -> None:
    world = make("epsilon", 4, parts=2)
    actor = world.actor()
    assert not actor.step() and not world.server.serve(), "nothing was granted"
    world.grant(2)
    assert not actor.step()
    assert world.server.serve() and not actor.step(), "no weights yet"
    world.publish(1)
    world.row(actor)
    world.row(actor)
    assert not world.server._blocks[0].pending and not actor.step(), "the third row was not granted"
    world.publish(2)
    world.grant(1)
    assert world.row(actor)["version"] == 2, "acted in by what was published before the grant"


def test_a_row_is_stamped_with_the_older_version_of_its_halves(make: Make) -> None:
    world = make("gaussian", 4, parts=2)
    actor: Any = world.actor()
    world.publish(1)
    world.grant(5)
    actor.step()
    first, second = list(world.server._blocks[0].requests())
    world.server._take_newest_weights()
    world.server._answer([second])
    world.publish(2)
    world.server._take_newest_weights()
    world.server._answer([first])
    assert actor.step()
    held = world.held(0)
    assert (held["version"], held["policy_updates"]) == (1, 10)
    stds = [np.exp(p.weights[p.own_weights]).mean() for p in actor.policies]
    assert stds[0] != stds[1], "each half has drawn with the deviations of its own version"
    assert world.ring.statistics().exploration_rate == pytest.approx(np.mean(stds), abs=1e-5)


def test_a_later_life_takes_no_answer_to_an_earlier_one(make: Make) -> None:
    world = make("epsilon", 4, parts=2)
    counted_from_zero()
    actor: Any = world.actor()
    world.publish(1)
    world.grant(8)
    world.row(actor)
    actor.step()
    asked = list(world.server._blocks[0].requests())
    counted_from_zero()
    second: Any = world.actor(incarnation=1)  # the first is killed while it waits
    assert not second.step()
    world.server._answer(asked)
    assert not second.step() and second.waits_for == 0, "its own request is not answered"
    row = world.row(second)
    assert (row["flags"] == RESET).all() and row["incarnation"] == 1 and row["version"] == 1
    np.testing.assert_array_equal(row["next_obs"], second._first_obs)
    assert world.ring.header[1] == 4, "environment steps of the first life alone"


def test_a_half_that_raises_names_its_environment_and_publishes_nothing(make: Make) -> None:
    WORLDS["raises"] = (fakes.Raises, WORLDS["choices"][1])
    world = make("raises", 4, parts=2)
    del WORLDS["raises"]
    actor: Any = world.actor()
    actor.streams.envs[3].steps = 5  # raises in its second step, the others in their seventh
    actor.streams.envs[2].steps = -5
    world.publish(1)
    world.grant(9)
    world.row(actor)
    with pytest.raises(EnvironmentRaised, match="Environment 3 of actor 1 raised") as raised:
        world.row(actor)
    assert raised.value.facts["episode step"] == 1 and world.ring.published() == 1
    assert raised.value.facts["action"] == str(world.ring.action[3, 1])


def test_a_row_that_is_not_finite_is_not_published(make: Make) -> None:
    world = make("gaussian", 4, parts=2)
    actor: Any = world.actor()
    world.publish(1)
    world.grant(9)
    world.row(actor)
    actor.streams.envs[1].unwrapped.state = np.array([np.nan, 0.0])
    with pytest.raises(NonFiniteStep, match="Environment 1 of actor 1"):
        world.row(actor)
    assert world.ring.published() == 1


@pytest.mark.parametrize("name", ["images", "noise"])
def test_state_goes_on_to_the_bit(make: Make, name: str) -> None:
    going_on, world = make(name, 4, parts=2), make(name, 4, parts=2)
    actors = [going_on.actor(), world.actor()]
    for each in (going_on, world):
        each.publish(1)
    for _ in range(9):
        for each, actor in zip((going_on, world), actors, strict=True):
            each.grant(1)
            each.row(actor)
    frame = state_frame(actors[1])
    assert frame["published"] == 9 and frame["state"] is not None, frame["why"]
    if world.requests.stack:
        world.block["stacks"][...] = 0  # type: ignore[index]
    restored = world.actor(begin=False)
    restore_actor(restored, frame["state"])
    for _ in range(20):
        for each in (going_on, world):
            each.grant(3)
        assert_same(going_on.row(actors[0]), world.row(restored))


def test_state_of_an_actor_that_ran_the_network_itself_is_taken_too(make: Make) -> None:
    before, after = make("noise", 4), make("noise", 4, parts=2)
    actor = before.actor()
    before.publish(1)
    before.grant(1)
    before.row(actor)
    served = after.actor(begin=False)
    restore_actor(served, state_frame(actor)["state"])
    after.publish(1)
    after.grant(3)
    assert after.row(served)["version"] == 1
