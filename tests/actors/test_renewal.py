"""New keyword arguments of environments: at the end of an episode, with a seed, and for the successor of an actor."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
from typing import Any, ClassVar

import levels
import numpy as np
import pytest
from actors_rig import Rig, until
from gymnasium.spaces import Discrete
from several_agents import NAMES, Parallel, Tuples

from asyncrl.actors.actor import renewal_seeds
from asyncrl.actors.forkserver import ForkServer
from asyncrl.actors.probe import probe_renewal
from asyncrl.actors.streams import AgentStreams, PlainStreams, VectorStreams, make_streams
from asyncrl.envs.checks import spec_of
from asyncrl.envs.renewal import Renewal
from asyncrl.envs.source import EnvSource
from asyncrl.errors import AsyncRLError, ConfigurationError, EnvironmentNotBuilt, SpacesDoNotFit
from asyncrl.shm.env_kwargs import EnvKwargs


def streams_of(env: Any, count: int = 2) -> Any:
    source = EnvSource.from_user(env)
    built = source.build()
    return make_streams(source, spec_of(source.name, built), count)


def levels_shown(
    streams: Any, rows: int, change_at: int, seeds: tuple[int, ...] = (5, 6)
) -> list[list[float]]:
    """Level of every stream's observation in each row, if level 2 is set before row `change_at`."""
    obs, rewards = np.zeros((streams.num_envs, 3), np.float32), np.zeros(streams.num_envs)
    streams.reset([1, 2], obs)
    shown = [obs[:, 0].tolist()]
    for row in range(rows):
        if row == change_at:
            streams.renew(1, {"level": 2}, seeds)
        streams.step(np.zeros(streams.num_envs, np.int64), obs, rewards)
        shown.append(obs[:, 0].tolist())
    streams.close()
    return shown


def test_an_environment_is_made_anew_when_its_episode_has_ended_and_seeded() -> None:
    """An episode of level 0 has three steps; the row after them resets it."""
    streams = streams_of(levels.Level)
    assert isinstance(streams, PlainStreams)
    before = list(streams.envs)
    assert levels_shown(streams, 6, 1) == [[0, 0]] * 4 + [[2, 2]] * 3
    assert all(new is not old and new.episode == 1 for new, old in zip(streams.envs, before, strict=True))
    twin = levels.Level(2)
    twin.reset(seed=6)
    assert (
        streams.envs[1].np_random.bit_generator.state["state"]["inc"]
        == twin.np_random.bit_generator.state["state"]["inc"]
    )


def test_an_environment_with_the_method_lives_on() -> None:
    streams = streams_of(levels.Settable)
    before = list(streams.envs)
    assert levels_shown(streams, 6, 1) == [[0, 0]] * 4 + [[2, 2]] * 3
    assert streams.envs == before and [env.episode for env in before] == [2, 2]


def test_a_vector_takes_them_by_its_method_and_is_refused_without() -> None:
    streams = streams_of(levels.SettableVector)
    assert isinstance(streams, VectorStreams)
    assert levels_shown(streams, 6, 1) == [[0, 0]] * 4 + [[2, 2]] * 3
    with pytest.raises(ConfigurationError, match="needs a method of that name of the vector environment"):
        levels_shown(streams_of(levels.plain_vector), 2, 1)


def test_an_environment_of_several_agents_is_made_anew() -> None:
    streams = streams_of(Parallel, 6)
    assert isinstance(streams, AgentStreams)
    before, obs = list(streams.envs), np.zeros((6, 4), np.float32)
    streams.reset(range(6), obs)
    streams.renew(1, {"render_mode": "rgb_array"}, tuple(range(6)))
    for _ in range(60):
        streams.step(np.zeros(6, np.int64), obs, np.zeros(6))
    assert all(new is not old for new, old in zip(streams.envs, before, strict=True))
    assert [env.render_mode for env in streams.envs] == ["rgb_array"] * 2


class Settable(Parallel):
    """Its constructor does not take what its method does."""

    level = 0

    def set_env_kwargs(self, level: int) -> None:
        self.level = level


class SettableTuples(Tuples):
    """The same for a gymnasium environment of several agents."""

    level = 0
    set_env_kwargs = Settable.set_env_kwargs


class Converted:
    """What PettingZoo makes of an environment whose agents take turns, as far as its layers go."""

    def __init__(self) -> None:
        self.aec_env = Settable()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.aec_env, name)


@pytest.mark.parametrize("env", [Settable, SettableTuples, Converted])
def test_several_agents_with_the_method_live_on(env: Any) -> None:
    source = EnvSource.from_user(env)
    agents = source.build()
    new, again = Renewal(source, spec_of(source.name, agents), {"level": 3}).renewed(agents)
    assert new is agents and not again
    inside = agents.parallel
    assert getattr(inside, "env", inside).level == 3


class Sized(levels.Level):
    """Its level is the number of its actions; says what is closed."""

    closed: ClassVar[list[int]] = []

    def __init__(self, level: int = 2) -> None:
        super().__init__()
        self.action_space = Discrete(level)

    def close(self) -> None:
        self.closed.append(int(self.action_space.n))


def test_an_environment_of_other_spaces_is_closed_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sized, "closed", [])
    source = EnvSource("Sized", "factory", pickle.dumps(Sized))
    env = source.build()
    with pytest.raises(SpacesDoNotFit, match="a run's spaces cannot change"):
        Renewal(source, spec_of(source.name, env), {"level": 3}).renewed(env)
    assert Sized.closed == [2, 3]


def test_seeds_differ_between_changes_lives_actors_and_streams() -> None:
    places = [(0, 0, 1), (0, 0, 2), (0, 1, 1), (1, 0, 1)]
    seeds = [seed for place in places for seed in renewal_seeds(7, *place, 3)]
    assert len(set(seeds)) == 12 and seeds == [s for place in places for s in renewal_seeds(7, *place, 3)]


@pytest.mark.parametrize(
    ("env", "kwargs", "kind", "text"),
    [
        (levels.Level, {"height": 1}, EnvironmentNotBuilt, "unexpected keyword argument 'height'"),
        (levels.Level, {"wide": True}, SpacesDoNotFit, "a run's spaces cannot change"),
        (levels.Settable, {"height": 1}, AsyncRLError, "set_env_kwargs of Settable raised TypeError"),
        (levels.plain_vector, {"level": 1}, ConfigurationError, "needs a method of that name"),
        (Parallel, {"names": ("tank", "scout", "medic")}, SpacesDoNotFit, "The agents of .* are others"),
        (
            Parallel,
            {"names": NAMES[:-1]},
            SpacesDoNotFit,
            "The agents of .* are others with these env_kwargs",
        ),
    ],
)
def test_a_process_of_its_own_finds_what_an_environment_does_not_take(
    server: ForkServer, env: Any, kwargs: dict[str, Any], kind: type[AsyncRLError], text: str
) -> None:
    source = EnvSource.from_user(env)
    built: Any = source.build()
    renewal = Renewal(source, spec_of(source.name, built), kwargs)
    with pytest.raises(kind, match=text) as found:
        asyncio.run(probe_renewal(server, renewal, 20.0))
    assert found.value.fix and found.value.facts["env_kwargs"] == str(kwargs)


def test_actors_and_their_successors_have_the_newest(server: ForkServer) -> None:
    async def story() -> None:
        async with Rig(server, levels.Level, num_slots=1024) as rig:
            ring = rig.pool.rings[0]
            rig.publish_weights()
            rig.grant(21)
            await rig.rows(20)
            rig.env_kwargs.offer(EnvKwargs(1, ["level:4"]))
            rig.env_kwargs.publish(first_row=30)
            rig.grant(81)
            await rig.rows(100)
            first_of_new = int(np.argmax(ring.obs[0, :, 0] == 4))
            assert first_of_new - 1 == 31, "the first RESET row at row 30 or later, and its next observation"
            assert (ring.obs[0, first_of_new:100, 0] == 4).all()
            rig.env_kwargs.offer(EnvKwargs(2, ["level:6"]))
            rig.env_kwargs.publish()
            pid = rig.pool.statistics()[0].pid
            os.kill(pid, signal.SIGKILL)
            await until(lambda: rig.deaths == [0], "a death")
            rig.grant(41)
            await rig.rows(140)
            assert ring.obs[0, 101, 0] == 6, "the first observation of its successor"

    asyncio.run(story())
