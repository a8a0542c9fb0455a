"""Atari games in the standard protocol; skipped if ale-py or OpenCV is not installed."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import AtariPreprocessing

from asyncrl import DQN, IMPALA, PPO, Rainbow
from asyncrl.acting.images import network_text
from asyncrl.envs.atari import DirectPreprocessing, EpisodicLife
from asyncrl.envs.source import EnvSource, describe
from asyncrl.errors import EnvironmentNotBuilt
from asyncrl.interfaces import EnvSpec

pytestmark = pytest.mark.usefixtures("atari_games")


class Lives(gymnasium.Env[Any, Any]):
    """Environment with three lives of four steps; the observation counts steps of the game."""

    observation_space = gymnasium.spaces.Box(0, 255, (1,), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.uint8), {"lives": 3}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        lives = 3 - self.steps // 4
        return np.full(1, self.steps, np.uint8), 1.0, lives == 0, False, {"lives": lives}


def test_every_life_is_an_episode_and_only_a_lost_game_begins_again() -> None:
    env = EpisodicLife(Lives())
    seen = [int(env.reset(seed=1)[0][0])]
    for _ in range(2 * 3):
        terminated = False
        while not terminated:
            obs, _, terminated, _, _ = env.step(1)
        seen += [int(obs[0]), int(env.reset()[0][0])]
    # A life ends at steps 4, 8 and 12; the no-op that begins the next one is a step of the game.
    assert seen == [0, 4, 5, 8, 9, 12, 0, 4, 5, 8, 9, 12, 0]
    env.step(1)
    assert env.reset(seed=2)[0][0] == 0, "a seed begins the game again"


class LateEnd(Lives):
    """Environment with one life less, whose game ends only two steps after the last life is lost."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, _, truncated, info = super().step(action)
        return obs, reward, self.steps == 14, truncated, {"lives": max(info["lives"], 0)}


def test_the_last_life_ends_with_the_game() -> None:
    env, ends = EpisodicLife(LateEnd()), []
    env.reset(seed=1)
    while len(ends) < 3:
        obs, _, terminated, _, _ = env.step(1)
        if terminated:
            ends.append(int(obs[0]))
            env.reset()
    assert ends == [4, 8, 14], "lives fall to 0 at 12, and no episode of two steps follows"


def built(training: bool = False, **kwargs: Any) -> Any:
    source = EnvSource.from_user("ALE/Breakout-v5").changed(kwargs, ())
    return source.build(training=training)


def test_a_game_is_one_grey_frame_and_the_nature_cnn_takes_four() -> None:
    built().close()
    for game in ("ALE/Pong-v5", "ALE/Asterix-v5"):
        spec: EnvSpec = describe(EnvSource.from_user(game))
        assert (spec.observation_shape, spec.observation_dtype) == ((84, 84), "uint8")
        for record in (DQN, IMPALA, Rainbow, *([PPO] if game == "ALE/Asterix-v5" else [])):
            policy = record.preset(game).make_policy(spec)
            assert network_text(policy) == "images 84x84x1, 4 frames: Nature CNN (Mnih et al. 2015)"
            assert policy.frame_stack == 4


def test_ppos_preset_for_pong_sees_small_frames_but_in_memory_none() -> None:
    kwargs = PPO.preset_options("ALE/Pong-v5")["env_kwargs"]
    spec = describe(EnvSource.from_user("ALE/Pong-v5").changed(kwargs, ()))
    policy = PPO.preset("ALE/Pong-v5").make_policy(spec)
    assert network_text(policy) == "images 42x42x1, 4 frames: small convolutional network with large strides"
    memory = describe(EnvSource.from_user("ALE/Pong-v5").changed({**kwargs, "obs_type": "ram"}, ()))
    assert memory.observation_shape == (128,)


def test_frames_and_rewards_are_those_of_gymnasiums_preprocessing() -> None:
    own = built(repeat_action_probability=0.0)
    game = gymnasium.make("ALE/Breakout-v5", frameskip=1, repeat_action_probability=0.0)
    peer = AtariPreprocessing(game)
    rng = np.random.default_rng(0)
    for episode in range(2):
        first, second = own.reset(seed=episode)[0], peer.reset(seed=episode)[0]
        ended = False
        while not ended:
            np.testing.assert_array_equal(first, second)
            action = int(rng.integers(4))
            first, reward, terminated, truncated, _ = own.step(action)
            second, *peers, _ = peer.step(action)
            assert [reward, terminated, truncated] == peers
            ended = terminated or truncated
    own.close()
    peer.close()


def test_lives_end_episodes_in_training_only_and_rewards_are_clipped() -> None:
    lengths = {}
    for training in (True, False):
        env, rng, total, lives = (
            built(training, repeat_action_probability=0.0),
            np.random.default_rng(0),
            [],
            [],
        )
        env.reset(seed=0)
        for _ in range(2000):
            _, reward, terminated, truncated, info = env.step(int(rng.integers(4)))
            total.append(reward)
            if terminated or truncated:
                lives.append(info["lives"])
                env.reset()
        env.close()
        lengths[training] = lives
        assert set(total) <= {0.0, 1.0} if training else max(total) >= 1.0
    assert set(lengths[False]) == {0} and {0, 1, 2, 3, 4} <= set(lengths[True])


def test_sticky_actions_are_the_default_and_an_option() -> None:
    for kwargs, wanted in (({}, 0.25), ({"repeat_action_probability": 0.0}, 0.0)):
        env = built(**kwargs)
        assert env.unwrapped.ale.getFloat("repeat_action_probability") == wanted
        env.close()
    ram = built(obs_type="ram")
    assert ram.observation_space.shape == (128,)
    ram.close()


def test_frames_and_no_ops_are_options_and_what_is_no_truth_value_is_refused() -> None:
    env = built(screen_size=42, noop_max=0, repeat_action_probability=0.0)
    first = env.reset(seed=0)[0]
    assert first.shape == env.observation_space.shape == (42, 42)
    np.testing.assert_array_equal(first, env.reset(seed=1)[0], "without no-ops every game begins alike")
    env.close()
    with pytest.raises(EnvironmentNotBuilt, match="terminal_on_life_loss must be True or False, got 'false'"):
        built(True, terminal_on_life_loss="false")


def test_a_life_may_end_the_game_or_no_episode() -> None:
    ends = {}
    for wanted in (True, False):
        env = built(True, terminal_on_life_loss=wanted, repeat_action_probability=0.0)
        env.reset(seed=0)
        lives = []
        for _ in range(300):
            _, _, terminated, _, info = env.step(1)
            if terminated:
                lives.append(info["lives"])
                env.reset()
        ends[wanted] = set(lives)
        env.close()
    assert ends == {True: {4}, False: {0}}


def test_frames_are_played_on_the_emulator_unless_something_stands_between() -> None:
    env = built(render_mode="rgb_array")
    env.reset(seed=0)
    assert isinstance(env, DirectPreprocessing) and env.render().shape == (210, 160, 3)
    env.close()
    limited = built(max_episode_steps=10, noop_max=0)
    limited.reset(seed=0)
    assert not isinstance(limited, DirectPreprocessing)
    assert [limited.step(0)[3] for _ in range(3)] == [False, False, True], "the limit counts frames"
    limited.close()


def test_ale_pys_vector_learns_for_lives_and_is_evaluated_for_games() -> None:
    from asyncrl.envs.atari_vector import AtariVector

    source = EnvSource.from_user(partial(AtariVector, "breakout", 2, repeat_action_probability=0.0))
    spec = describe(source)
    assert (spec.observation_shape, spec.observation_dtype, spec.vector_envs) == ((84, 84), "uint8", 2)
    single = describe(EnvSource.from_user("ALE/Breakout-v5"))
    as_single = replace(spec, name=single.name, vector_envs=None, resets_itself=False)
    assert single == as_single, "a policy of one plays the other"
    lives = {}
    for training in (True, False):
        env: Any = source.build(training=training)
        obs, _ = env.reset(seed=2**32 - 1)
        assert obs.shape == (2, 84, 84)
        lives[training] = set()
        for _ in range(400):
            _, _, terminated, _, info = env.step(np.ones(2, np.int64))
            lives[training] |= set(info["lives"][terminated].tolist())
        env.close()
    assert lives == {True: {4}, False: {0}}
