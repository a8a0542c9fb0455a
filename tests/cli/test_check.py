"""`asyncrl check`: a trial of an environment in a separate process, and of faulty ones in this process."""

from __future__ import annotations

import itertools
import json
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fakes
import gymnasium
import numpy as np
import pytest

from asyncrl.cli import check
from asyncrl.cli.check import rate_text
from asyncrl.cli.main import main
from asyncrl.envs import trial as trial_module
from asyncrl.envs.source import EnvSource
from asyncrl.envs.trial import try_out
from asyncrl.errors import EnvironmentRaised


class Odd(gymnasium.Env[Any, Any]):
    """Environment with faults that a run may survive."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, fault: str = "") -> None:
        self.fault, self.count = fault, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.count += 1
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs = np.full(2, 0.5, np.float32)
        if self.fault == "broken" and self.count > 5:
            raise RuntimeError("boom")
        if self.fault == "unseeded":
            obs[0] = np.random.default_rng().uniform()
        if self.fault == "outside" and self.count > 1:
            obs[0] = 2.0
        reward = {"nan": float("nan") if self.count > 1 else 1.0, "large": 1000.0 * action}.get(
            self.fault, float(action)
        )
        if self.fault == "flat":
            reward = 1.0
        return obs, reward, self.fault != "endless", False, {}


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clock that every look advances by 0.1 ms, so that the number of steps does not depend on the machine."""
    looks = itertools.count()
    monkeypatch.setattr(trial_module, "time", SimpleNamespace(perf_counter=lambda: next(looks) * 1e-4))


def problems(fault: str) -> tuple[str, ...]:
    return try_out(EnvSource.from_user(lambda: Odd(fault)), 0.05).problems


def test_a_sound_environment_has_no_problem() -> None:
    trial = try_out(EnvSource.from_user(Odd), 0.05)
    assert trial.problems == ()
    assert trial.episodes == trial.steps > 10 and trial.length_mean == 1.0
    assert (trial.reward_low, trial.reward_high) == (0, 1) and 0.2 < (trial.return_mean or 0) < 0.8
    assert trial.steps_per_second > 100 and trial.autoreset == ""


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("unseeded", "the same seed does not give the same episode"),
        ("outside", "an observation lies outside of observation_space"),
        ("nan", "a reward is NaN or infinite"),
        ("large", "rewards reach from 0 to 1000"),
        ("flat", "every reward was 1"),
        ("endless", "no episode ended within"),
    ],
)
def test_what_is_odd_is_said(fault: str, text: str) -> None:
    assert any(problem.startswith(text) for problem in problems(fault)), problems(fault)


class Large(Odd):
    """Observations of 1 and 500."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.array([1.0, 500.0], np.float32), *super().step(action)[1:]


def test_observations_of_hundreds_are_said() -> None:
    found = try_out(EnvSource.from_user(Large), 0.05).problems
    assert len(found) == 1 and found[0].startswith("observations are large: value 1 of 2 has"), found


def test_a_slow_environment_is_stepped_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counting(Odd):
        steps = 0

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            self.steps += 1
            # One to check the API, then a second's worth, three times.
            assert self.steps <= 5, "too many steps for one second"
            return super().step(action)

    looks = itertools.count()
    monkeypatch.setattr(trial_module, "time", SimpleNamespace(perf_counter=lambda: 0.6 * next(looks)))
    trial = try_out(EnvSource.from_user(lambda: Counting("endless")), 1.0)
    assert rate_text(trial.steps_per_second) == "1.7" and rate_text(1234.5) == "1,234"
    assert any(problem.startswith("no episode ended within ") for problem in trial.problems)


def test_rewards_that_are_not_finite_are_in_no_mean() -> None:
    trial = try_out(EnvSource.from_user(lambda: Odd("nan")), 0.05)
    assert trial.return_mean is None and trial.episodes > 10
    assert not any("every reward" in problem for problem in trial.problems)


@pytest.mark.parametrize(
    ("episodes", "mean", "text"),
    [
        (1, 0.5, "1 episode, return 0.500, 4.0 steps on average"),
        (2, None, "2 episodes, no finite return, 4.0 steps on average"),
    ],
)
def test_the_line_of_random_actions(episodes: int, mean: float | None, text: str) -> None:
    random = {"steps": 8, "episodes": episodes, "length_mean": 4.0, "return_mean": mean}
    assert check._random(random) == text


def test_an_environment_that_raises_later_is_reported_as_in_a_run() -> None:
    with pytest.raises(
        EnvironmentRaised, match=r"ASYNC002\] .* raised RuntimeError in a random episode: boom"
    ) as e:
        problems("broken")
    assert e.value.facts == {"step": 4, "seed": 0} and "boom" in (e.value.remote_traceback or "")


@pytest.mark.parametrize("mode", ["NextStep", "Disabled"])
@pytest.mark.parametrize("count", [1, 3])
def test_a_vector_environment(mode: str, count: int) -> None:
    def make() -> Any:
        vector: Any = gymnasium.vector.SyncVectorEnv(
            [lambda: gymnasium.make("CartPole-v1", max_episode_steps=9)] * count,
            autoreset_mode=gymnasium.vector.AutoresetMode(mode),
        )
        return vector

    trial = try_out(EnvSource.from_user(make), 0.1)
    assert (trial.spec.vector_envs, trial.autoreset) == (count, mode)
    assert trial.episodes > 5 and trial.steps >= 8 * trial.episodes
    # A reward of 1 for every step, at most 9 of them; rows that only reset have none.
    assert trial.length_mean == trial.return_mean and 8 <= (trial.length_mean or 0) <= 9
    assert trial.reward_low == 1.0


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(
            ["check", "CartPole-v1", "--seconds", "0.2", "--json", "--env-kwargs", "sutton_barto_reward:True"]
        )
        == 0
    )
    facts = json.loads(capsys.readouterr().out)
    assert facts["observation"] == {"shape": [4], "dtype": "float32"}
    assert (facts["max_episode_steps"], facts["reward_threshold"]) == (500, 475.0)
    assert (facts["random"]["reward_low"], facts["random"]["reward_high"]) == (-1.0, 0.0), (
        "the keyword argument"
    )
    assert {"dqn", "ppo"} <= set(facts["algorithms"]) and "sac" not in facts["algorithms"]
    assert "dqn" in facts["presets"]


def test_the_command_in_words(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["check", "Pendulum-v1", "--seconds", "0.3"]) == 0
    lines = {line[:13].strip(): line[13:] for line in capsys.readouterr().out.splitlines()}
    assert lines["environment"] == "Pendulum-v1"
    assert lines["observation"] == "float32 of shape (3)"
    assert lines["episodes"] == "at most 200 steps"
    assert "steps/s in one process" in lines["speed"]
    assert "sac" in lines["algorithms"] and "dqn" not in lines["algorithms"]


def own_limit() -> gymnasium.Env[Any, Any]:
    env = fakes.SimpleEnv()
    env.max_steps = 1 << 40  # not one of these ends
    return env


def test_a_limit_of_the_environment_s_own_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["check", "test_check:own_limit", "--seconds", "0.1"]) == 0
    lines = {line[:13].strip(): line[13:] for line in capsys.readouterr().out.splitlines()}
    assert lines["episodes"] == "at most 1,099,511,627,776 steps, by its own limit"
    assert "no time limit" not in lines["problems"]


def test_an_action_space_that_no_algorithm_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = """
        import gymnasium

        class Odd(gymnasium.Env):
            observation_space = gymnasium.spaces.Box(-1, 1, (2,))
            action_space = gymnasium.spaces.Text(3)
    """
    (tmp_path / "odd_actions.py").write_text(textwrap.dedent(text))
    monkeypatch.chdir(tmp_path)
    assert main(["check", "odd_actions:Odd"]) == 1
    assert "[ASYNC005]" in capsys.readouterr().err


def test_mistakes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "Cartpole-v1"]) == 1
    assert capsys.readouterr().err.startswith("[ASYNC006] There is no environment Cartpole-v1.")
    with pytest.raises(SystemExit) as stop:
        main(["check", "CartPole-v1", "--env-kwargs", "nonsense"])
    assert stop.value.code == 2
    assert "env_kwargs must be key:value pairs" in capsys.readouterr().err
    for seconds in ("0", "-1", "nan", "inf", "x"):
        with pytest.raises(SystemExit) as stop:
            main(["check", "CartPole-v1", "--seconds", seconds])
        assert stop.value.code == 2
        said = f"argument --seconds: must be a finite number above 0, got {seconds!r}"
        assert said in capsys.readouterr().err
