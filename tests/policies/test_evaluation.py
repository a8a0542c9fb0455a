"""`asyncrl.evaluate`: returns and lengths are the environment's, and those of `asyncrl eval`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from portable_policies import random_policy
from several_agents import NAMES, Parallel, Together

import asyncrl
from asyncrl import DQN, PPO, errors
from asyncrl.cli.main import main


class Drawn(gymnasium.Env[Any, Any]):
    """An episode has 2 to 6 steps, by the seed of its reset, each with the reward `reward`; some of 4 and 6 succeed."""

    played: ClassVar[list[tuple[int, float]]] = []
    """Steps and return of every episode that ended in this process."""
    open: ClassVar[int] = 0

    def __init__(self, reward: float = 1.0, values: int = 2) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (values,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.reward = reward
        Drawn.open += 1

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps, self.last = 0, int(self.np_random.integers(2, 7))
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        over = self.steps == self.last
        if over:
            Drawn.played.append((self.steps, self.steps * self.reward))
        return self.observation_space.sample(), self.reward, over, False, {"is_success": self.steps % 2 == 0}

    def close(self) -> None:
        Drawn.open -= 1


class Narrow(Drawn):
    """The same with one value less."""

    def __init__(self) -> None:
        super().__init__(values=1)


def test_its_figures_are_those_of_the_episodes_that_ended() -> None:
    policy = random_policy(DQN(hidden_sizes=(8,)), Drawn)
    Drawn.played, before = [], Drawn.open
    found = asyncrl.evaluate(policy, episodes=130, env_kwargs={"reward": 0.5})
    assert len(found.returns) == 130 and Drawn.open == before
    assert sorted(zip(found.lengths, found.returns, strict=True)) == sorted(Drawn.played)
    lengths = np.array([steps for steps, _ in Drawn.played])
    assert set(lengths) == {2, 3, 4, 5, 6}
    assert found.return_mean == pytest.approx(lengths.mean() / 2)
    assert found.return_std == pytest.approx(lengths.std() / 2)
    assert found.length_mean == pytest.approx(lengths.mean())
    assert found.success_rate == pytest.approx((lengths % 2 == 0).mean())
    assert found.agent_returns == found.policy_returns == {}
    assert "returns=(" not in repr(found) and f"return_mean={found.return_mean}" in repr(found)


@pytest.mark.parametrize("deterministic", [True, False])
def test_the_episodes_are_those_of_the_command(
    deterministic: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = random_policy(PPO(hidden_sizes=(8,)), "CartPole-v1")
    file = str(policy.save(tmp_path / "x.policy"))
    found = asyncrl.evaluate(asyncrl.load(file), episodes=6, seed=3, deterministic=deterministic)
    flag = "--deterministic" if deterministic else "--no-deterministic"
    assert main(["eval", file, "--episodes", "6", "--seed", "3", "--json", flag]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["return_mean"] == found.return_mean and record["return_std"] == found.return_std
    assert record["return_min"] == min(found.returns) and record["return_max"] == max(found.returns)
    assert record["length_mean"] == found.length_mean and record["success_rate"] is found.success_rate is None


def test_the_policy_is_not_changed() -> None:
    policy = random_policy(PPO(hidden_sizes=(8,)), "CartPole-v1")
    obs = np.zeros((3, 4), np.float32)
    policy.rng = np.random.default_rng(5)
    before = policy.predict(obs)[0].tolist()
    policy.rng = np.random.default_rng(5)
    first = asyncrl.evaluate(policy, episodes=3, deterministic=False)
    assert policy.predict(obs)[0].tolist() == before
    assert asyncrl.evaluate(policy, episodes=3, deterministic=False) == first
    assert asyncrl.evaluate(policy, episodes=3, deterministic=False, seed=1) != first


def test_another_environment_is_played_with_the_policys_spaces_only() -> None:
    policy = random_policy(DQN(hidden_sizes=(8,)), "FrozenLake-v1")
    with pytest.raises(errors.SpacesDoNotFit, match="The observation space of FrozenLake8x8-v1"):
        asyncrl.evaluate(policy, "FrozenLake8x8-v1")
    assert asyncrl.evaluate(policy, "FrozenLake-v1", env_kwargs={"is_slippery": False}, episodes=2).returns
    policy, before = random_policy(DQN(hidden_sizes=(8,)), Drawn), Drawn.open
    with pytest.raises(errors.SpacesDoNotFit):
        asyncrl.evaluate(policy, Narrow)
    assert Drawn.open == before, "what was built is closed"


def test_several_agents_have_returns_by_name() -> None:
    policy = random_policy(DQN(hidden_sizes=(8,)), Together)
    found = asyncrl.evaluate(policy, episodes=4)
    assert found.lengths == (5,) * 4 and found.policy_returns == {}
    assert tuple(found.agent_returns) == NAMES
    assert sum(found.agent_returns.values()) == pytest.approx(found.return_mean)
    # All see the same, so all take the same action, which is the own one of at most one of them.
    assert found.return_mean in (0.0, 1.0, 2.0, 3.0, 4.0, 5.0) and max(found.agent_returns.values()) <= 5.0
    ended = asyncrl.evaluate(random_policy(DQN(hidden_sizes=(8,)), Parallel), episodes=30)
    assert max(ended.lengths) <= 7 and len(set(ended.lengths)) > 1


def test_a_path_is_loaded(tmp_path: Path) -> None:
    policy = random_policy(DQN(hidden_sizes=(8,)), "CartPole-v1")
    file = policy.save(tmp_path / "x.policy")
    assert asyncrl.evaluate(file, episodes=2) == asyncrl.evaluate(str(file), episodes=2)
    assert asyncrl.evaluate(file, episodes=2) == asyncrl.evaluate(policy, episodes=2)
    with pytest.raises(errors.CheckpointError, match=r"none\.policy"):
        asyncrl.evaluate(tmp_path / "none.policy")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"n_eval_episodes": 2}, "evaluate() has no argument 'n_eval_episodes'; asyncrl calls it episodes"),
        ({"episode": 2}, "evaluate() has no argument 'episode'; did you mean episodes?"),
        ({"zzz": 2}, "evaluate() has no argument 'zzz'; it has policy, env, env_kwargs, episodes, determ"),
        (
            {"env": gymnasium.make("CartPole-v1")},
            "env must be an id, a gymnasium EnvSpec or a zero-argument factory, got an environment (CartPoleEnv); "
            "every use of it makes its own: give its id, 'CartPole-v1', or a function that makes it: lambda: Cart",
        ),
        (
            {"env": Drawn()},
            "env must be an id, a gymnasium EnvSpec or a zero-argument factory, got an environment (Drawn); every use "
            "of it makes its own: give a function that makes it: lambda: Drawn(...)",
        ),
    ],
)
def test_what_users_of_other_libraries_write_first(given: Any, text: str) -> None:
    with pytest.raises(TypeError) as raised:
        asyncrl.evaluate(random_policy(DQN(hidden_sizes=(8,)), "CartPole-v1"), **given)
    assert str(raised.value).startswith(text)


def test_what_is_no_policy_and_no_number_is_refused() -> None:
    with pytest.raises(
        TypeError, match=r"policy must be result\.policy, asyncrl\.load\(RUN\) or a path, got None"
    ):
        asyncrl.evaluate(None)  # type: ignore[arg-type]
    policy = random_policy(DQN(hidden_sizes=(8,)), Drawn)
    with pytest.raises(ValueError, match="episodes must be at least 1, got 0"):
        asyncrl.evaluate(policy, episodes=0)
    with pytest.raises(ValueError, match="seed must be at least 0, got -1"):
        asyncrl.evaluate(policy, seed=-1)
