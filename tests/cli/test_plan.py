"""`asyncrl plan`: flags, and one real plan."""

from __future__ import annotations

import json
import warnings

import pytest

from asyncrl.cli import plan
from asyncrl.cli.main import main
from asyncrl.cli.pilots import Pilot


def test_presets_and_flags_become_the_records_of_the_pilots() -> None:
    parsed = plan.parse(["CartPole-v1", "--algo", "DQN", "--dqn.batch-size", "96", "--steps", "200k"])
    assert parsed.config.env == "CartPole-v1" and parsed.config.total_steps == 200_000
    assert parsed.algorithm.batch_size == 96 and parsed.algorithm.discipline == "lockstep"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["CartPole-v1"], "--algo is missing"),
        (["CartPole-v1", "--algo", "dqm"], "did you mean dqn?"),
        (["CartPole-v1", "--algo", "dqn", "--cores", "0"], "--cores must be at least 1"),
        (["CartPole-v1", "--algo", "dqn", "--seconds", "0"], "--seconds: must be a finite number above 0"),
        (["CartPole-v1", "--algo", "dqn", "--seconds", "nan"], "--seconds: must be a finite number above 0"),
        (["CartPole-v1", "--algo", "dqn", "--dqn.gamma", "2"], "argument --dqn.gamma"),
    ],
)
def test_wrong_arguments_are_named(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        plan.parse(arguments)
    assert stop.value.code == 2 and text in capsys.readouterr().err


def test_the_text_names_the_fastest_the_limit_and_the_duration() -> None:
    slow, fast = (
        Pilot(1, 16, 500.0, 10.0, 0.02, 0.9, 10_000_000),
        Pilot(2, 16, 1000.0, 20.0, 0.6, 0.0, 20_000_000),
    )
    text = plan._text([slow, fast], fast, 600_000)
    assert "fastest  --actors 2 --envs-per-actor 16: 600,000 steps in 10.0 minutes" in text
    assert "limit    the actors" in text
    assert "limit    the learner" in plan._text([slow], slow, None)
    assert max(map(len, text.splitlines())) <= 110


def test_a_plan_measures_real_runs(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["CartPole-v1", "--algo", "ppo", "--cores", "1", "--seconds", "0.4", "--json"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert main(["plan", *arguments]) == 0
    facts = json.loads(capsys.readouterr().out)
    pilots = facts["pilots"]
    assert [pilot["num_actors"] for pilot in pilots] == [1, 1, 1]
    assert len({pilot["envs_per_actor"] for pilot in pilots}) == 3
    assert all(pilot["env_steps_per_second"] > 0 for pilot in pilots) and facts["fastest"] in pilots
