"""Correctness of learned values, with real actors and rings: values known in closed form, and CartPole.

In the small environments the reward does not depend on what is done after the first step, so that n-step returns of
exploring actors are unbiased and the learned values can be held to their formulas. What each would show if broken:

    discount or n-step sum wrong                  Fork, Countdown
    a terminal state bootstrapped                 Countdown
    a time limit treated as terminal              Forever
    a RESET row trained on, or its reward taken   Forever, Countdown
"""

import gymnasium
import numpy as np
import pytest

from asyncrl import C51, DQN, QRDQN, Trainer

pytestmark = pytest.mark.slow
GAMMA = 0.8


class Countdown(gymnasium.Env):
    """Environment of five steps of reward 1, then a terminal state; the observation is the number of steps left."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (6,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 5
        return self._see(), {}

    def step(self, action):
        self.left -= 1
        return self._see(), 1.0, self.left == 0, False, {}

    def _see(self):
        return np.eye(6, dtype=np.float32)[self.left]


class Forever(gymnasium.Env):
    """Environment with one state and reward 1, without end; a time limit cuts it into episodes of four steps."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.ones(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.ones(1, np.float32), 1.0, False, self.steps == 4, {}


class Fork(gymnasium.Env):
    """First step: action 0 ends with reward 0.5, action 1 leads to reward 1 four steps later. 0.8^4 = 0.41: take 0."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (5,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = 0
        return self._see(), {}

    def step(self, action):
        if self.at == 0 and action == 0:
            return self._see(), 0.5, True, False, {}
        self.at += 1
        done = self.at == 5
        return self._see(), float(done), done, False, {}

    def _see(self):
        return np.eye(5, dtype=np.float32)[min(self.at, 4)]


def learned_values(env, observations, algorithm=DQN, **changes):
    fields = {
        "gamma": GAMMA, "learning_rate": 1e-3, "hidden_sizes": (32, 32), "learning_starts": 200,
        "replay_capacity": 8_000, "samples_per_insert": 32.0, "exploration_final": 0.5, "exploration_steps": 1_000,
        "n_step": 3, "prioritized": True,
    }  # fmt: skip
    made = algorithm(**{**fields, **changes})
    options = {"num_actors": 2, "envs_per_actor": 4, "http": "off", "target_eval_episodes": 2}
    result = Trainer(env, made, seed=3, **options).learn(total_steps=5_000)
    return result.policy.policy.q_values(np.asarray(observations, np.float32))


@pytest.mark.parametrize("prioritized", [True, False])
def test_values_count_down_to_a_terminal_state(prioritized):
    values = learned_values(Countdown, np.eye(6)[1:], prioritized=prioritized)
    expected = [sum(GAMMA**k for k in range(left)) for left in range(1, 6)]  # 1, 1.8, 2.44, 2.952, 3.3616
    assert values == pytest.approx(np.array([expected, expected]).T, abs=0.1)


@pytest.mark.parametrize(("algorithm", "options"), [(C51, {"v_min": -1.0, "v_max": 7.0}), (QRDQN, {})])
def test_the_mean_of_a_learned_distribution_is_the_value(algorithm, options):
    """Fork has a terminal state after its first step and after its last one."""
    first, *later = learned_values(Fork, np.eye(5), algorithm, learning_rate=2e-3, **options)
    assert first == pytest.approx([0.5, GAMMA**4], abs=0.05)
    assert later[-1] == pytest.approx([1.0, 1.0], abs=0.1)


def test_values_go_on_behind_a_time_limit():
    values = learned_values(Forever, [[1.0]])
    assert values == pytest.approx(
        np.full((1, 2), 1 / (1 - GAMMA)), abs=0.25
    )  # 5; 2.1 if the limit were terminal


@pytest.mark.parametrize("n_step", [1, 5])
def test_the_discount_decides_the_fork(n_step):
    first, *later = learned_values(Fork, np.eye(5), n_step=n_step)
    assert first == pytest.approx([0.5, GAMMA**4], abs=0.04)
    assert first.argmax() == 0
    for at, value in enumerate(later, start=1):
        assert value == pytest.approx([GAMMA ** (4 - at)] * 2, abs=0.06)


def test_cartpole_is_solved_by_its_preset():
    """475 over 100 greedy episodes within 40,000 steps; `benchmarks.learning.held_out` has other seeds."""
    trainer = Trainer("CartPole-v1", "dqn", seed=1, http="off", eval_interval_steps=2_000)
    result = trainer.learn(target_return=475.0, total_steps=40_000)
    assert result.stop_reason == "target_return"
    assert result.evaluation.return_mean >= 475
    assert result.evaluation.episodes == 100
