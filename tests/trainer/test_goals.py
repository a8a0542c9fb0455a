"""Runs on goal environments: what is relabelled by default, the same numbers in lockstep, and what is refused."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import asyncrl
from asyncrl import DQN, R2D2, SAC, TD3, TQC, Trainer
from asyncrl.envs.bit_flip import BitFlip
from asyncrl.errors import ConfigurationError, OptionNotKept, SpacesDoNotFit

SMALL: dict[str, Any] = {
    "hidden_sizes": (16,),
    "learning_starts": 64,
    "batch_size": 16,
    "discipline": "lockstep",
    "samples_per_insert": 16.0,
}
RUN: dict[str, Any] = {
    "http": "off",
    "num_actors": 1,
    "envs_per_actor": 4,
    "seed": 3,
    "target_eval_episodes": 2,
}


class Push(gymnasium.Env[Any, Any]):
    """A point on a line is pushed to the desired place; an episode has ten steps."""

    observation_space = gymnasium.spaces.Dict(
        {
            key: gymnasium.spaces.Box(-2.0, 2.0, (1,))
            for key in ("observation", "achieved_goal", "desired_goal")
        }
    )
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.at, self.desired = self.np_random.uniform(-1, 1, (2, 1)).astype(np.float32)
        self.steps = 0
        return self.seen(), {}

    def step(self, action: Any) -> Any:
        self.at = np.clip(self.at + 0.3 * action, -2.0, 2.0).astype(np.float32)
        self.steps += 1
        reward = distance(self.at, self.desired, {})
        return self.seen(), float(reward), False, self.steps == 10, {"is_success": bool(reward == 0)}

    def seen(self) -> Any:
        return {"observation": self.at, "achieved_goal": self.at, "desired_goal": self.desired}


def distance(achieved: Any, desired: Any, info: Any) -> Any:
    return -(np.linalg.norm(achieved - desired, axis=-1) > 0.2).astype(np.float64)


class Rewarded(Push):
    """The same with a method for the rewards of other goals."""

    compute_reward = staticmethod(distance)


def trained(env: Any, algorithm: Any, steps: int = 160, **options: Any) -> Any:
    with Trainer(env, algorithm, **{**RUN, **options}) as trainer:
        return trainer.learn(total_steps=steps)


@pytest.mark.parametrize("algorithm", [SAC, TD3, TQC])
def test_goals_are_relabelled_by_default_and_to_the_same_numbers(algorithm: Any) -> None:
    runs = [trained(Rewarded, algorithm(**SMALL)) for _ in range(2)]
    own = trained(Rewarded, algorithm(n_sampled_goal=0, **SMALL))
    assert np.array_equal(runs[0].policy.weights, runs[1].policy.weights)
    assert not np.array_equal(runs[0].policy.weights, own.policy.weights)
    assert runs[0].policy.meta.options["n_sampled_goal"] == 4
    assert runs[0].policy.meta.options["normalize_observations"] is True
    assert own.policy.meta.options["normalize_observations"] is False


def test_a_function_takes_the_place_of_the_environments_method(tmp_path: Any) -> None:
    by_method = trained(Rewarded, SAC(normalize_observations=False, **SMALL))
    by_function = trained(Push, SAC(goal_reward=distance, normalize_observations=False, **SMALL))
    assert by_function.policy.meta.options["normalize_observations"] is False
    assert np.array_equal(by_method.policy.weights, by_function.policy.weights)
    loaded = asyncrl.load(by_function.policy.save(tmp_path / "x"))  # the function is not in the file
    assert np.array_equal(loaded.weights, by_function.policy.weights)


def test_a_function_that_was_not_kept_is_given_again_or_dropped(tmp_path: Path) -> None:
    lock, run = threading.Lock(), tmp_path / "run"

    def rewards(achieved: Any, desired: Any, info: Any) -> Any:
        with lock:
            return distance(achieved, desired, info)

    with pytest.warns(OptionNotKept, match="goal_reward is a function .* only with goal_reward given again"):
        trained(Push, SAC(goal_reward=rewards, **SMALL), run_dir=run)
    with pytest.raises(ConfigurationError, match="goal_reward of the run was a function that did not pickle"):
        Trainer.resume(run, "+40")
    Trainer.resume(run, "+40", goal_reward=distance).learn()
    assert Trainer.resume(run, "+40").algorithm.goal_reward is not None, "this one was kept"
    with pytest.raises(ValueError, match="n_sampled_goal must be above 0 where goal_reward is given, got 0"):
        Trainer.resume(run, "+40", n_sampled_goal=0)
    result = Trainer.resume(run, "+40", goal_reward=None, n_sampled_goal=0).learn()
    assert result.policy.meta.options["n_sampled_goal"] == 0


def test_without_rewards_for_goals_nothing_is_relabelled() -> None:
    assert trained(Push, SAC(**SMALL)).policy.meta.options["n_sampled_goal"] == 0
    recurrent = R2D2(**{**SMALL, "learning_starts": 100}, sequence_length=4, burn_in=0)
    assert trained(BitFlip, recurrent).policy.meta.options["n_sampled_goal"] == 0


def test_numbers_of_a_goal_run_are_written(tmp_path: Any) -> None:
    """A success rate that is a NumPy number is refused by the file's encoder."""
    often: dict[str, Any] = {"report_interval_steps": 100, "eval_interval_steps": 100, "eval_episodes": 2}
    trained(BitFlip, DQN(**SMALL), 200, run_dir=tmp_path / "run", target_eval_episodes=2, **often)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert '"rollout/success_rate":' in lines and '"eval/success_rate":' in lines


def test_goals_that_are_not_there_are_refused() -> None:
    with pytest.raises(SpacesDoNotFit, match="CartPole-v1 does not have"):
        trained("CartPole-v1", DQN(n_sampled_goal=4, **SMALL))
    with pytest.raises(SpacesDoNotFit, match=r"goal_reward needs a Dict .* CartPole-v1 does not have"):
        trained("CartPole-v1", DQN(goal_reward=distance, **SMALL))
    with pytest.raises(ValueError, match="n_sampled_goal must be above 0 where goal_reward is given, got 0"):
        SAC(goal_reward=distance, n_sampled_goal=0)
    with pytest.raises(SpacesDoNotFit, match="has no compute_reward"):
        trained(Push, SAC(n_sampled_goal=4, **SMALL))
    with pytest.raises(
        ValueError, match="n_sampled_goal must be 0 for sequences, which have one goal, got 4"
    ):
        R2D2(n_sampled_goal=4)
    with pytest.raises(ValueError, match="goal_reward must be none for sequences, which have one goal, got"):
        R2D2(goal_reward=distance)


@pytest.mark.slow
@pytest.mark.timeout(280)
@pytest.mark.parametrize("n_step", [1, 3])
def test_eight_bits_are_flipped_with_hindsight_and_not_without(n_step: int) -> None:
    """Four bits differ on average, so the best return is -3; a broken goal, reward or bootstrap stays near -8."""
    options: dict[str, Any] = {
        **SMALL, "hidden_sizes": (64, 64), "learning_starts": 500, "batch_size": 64, "gamma": 0.98, "tau": 0.05,
        "samples_per_insert": 32.0, "exploration_steps": 2_000, "exploration_final": 0.1, "n_step": n_step,
    }  # fmt: skip
    run: dict[str, Any] = {
        "env_kwargs": {"bits": 8},
        "envs_per_actor": 8,
        "seed": 0,
        "target_eval_episodes": 100,
    }
    result = trained("asyncrl/BitFlip-v0", DQN(**options), 5_000, **run)
    assert result.summary["eval"]["return_mean"] > -4.5, result.summary
    if n_step == 1:
        without = trained("asyncrl/BitFlip-v0", DQN(n_sampled_goal=0, **options), 5_000, **run)
        assert without.summary["eval"]["return_mean"] < -7.0, without.summary
