"""`asyncrl bench`: flags, its text for given measurements, and one real measurement."""

from __future__ import annotations

import json

import pytest

from asyncrl import DQN, PPO
from asyncrl.cli import bench
from asyncrl.cli import pilots as module
from asyncrl.cli.main import main
from asyncrl.cli.pilots import Pilot, Sides, actors_alone, learner_alone
from asyncrl.config import TrainerConfig


def pilot(steps: float, updates: float, learner_waits: float = 0.0, actors_wait: float = 0.0) -> Pilot:
    return Pilot(2, 16, steps, updates, learner_waits, actors_wait, 1000)


@pytest.mark.parametrize(
    ("together", "limit"),
    [
        (pilot(900.0, 90.0, learner_waits=0.5, actors_wait=0.1), "actors"),
        (pilot(900.0, 90.0, learner_waits=0.1, actors_wait=0.5), "learner"),
        (pilot(700.0, 70.0, learner_waits=0.5, actors_wait=0.1), "cores"),
    ],
)
def test_the_bottleneck_is_who_waits_less_or_the_cores(together: Pilot, limit: str) -> None:
    found = Sides(500.0, pilot(500.0, 1.0, actors_wait=0.5), pilot(0.0, 200.0), together)
    assert found.actor_steps_per_second == 1000.0
    assert found.learner_steps_per_second == pytest.approx(2000.0)
    assert found.limit == limit
    text = bench._text(found)
    assert f"limit        {bench.LIMITS[limit]}" in text and "enough for 2,000 steps/s" in text
    assert max(map(len, text.splitlines())) <= 118


def test_a_run_without_updates_names_no_pace() -> None:
    found = Sides(500.0, pilot(500.0, 0.0), pilot(0.0, 0.0), pilot(500.0, 0.0))
    assert found.learner_steps_per_second is None and "enough" not in bench._text(found)
    json.dumps(bench._facts(found), allow_nan=False)


def test_one_side_is_given_next_to_nothing_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    records = []
    monkeypatch.setattr(module, "run_pilot", lambda config, algorithm, *_: records.append(algorithm))
    config = TrainerConfig(env="CartPole-v1", algo="dqn")
    for algorithm in (DQN.preset("CartPole-v1"), PPO(target_kl=0.01)):
        actors_alone(config, algorithm, 1.0)
        learner_alone(config, algorithm, 1.0)
    assert all(record.discipline == "relaxed" for record in records)
    assert records[0].samples_per_insert < 0.01 and records[1].samples_per_insert > 1e5
    assert records[2].epochs == 1 and records[3].epochs > 1e6 and records[3].target_kl is None
    assert records[1].learning_rate < 1e-6 and records[3].learning_rate < 1e-6


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["CartPole-v1"], "--algo is missing"),
        (["CartPole-v1", "--algo", "dqn", "--seconds", "0"], "--seconds: must be a finite number above 0"),
        (["CartPole-v1", "--algo", "dqn", "--actors", "0"], "argument --actors"),
    ],
)
def test_wrong_arguments_are_named(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        bench.parse(arguments)
    assert stop.value.code == 2 and text in capsys.readouterr().err


@pytest.mark.parametrize("algo", ["dqn", "ppo"])
def test_a_real_measurement(algo: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["CartPole-v1", "--algo", algo, "--actors", "1", "--seconds", "0.4", "--json"]
    assert main(["bench", *arguments]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["limit"] in bench.LIMITS and facts["together"]["num_actors"] == 1
    for side in ("environment", "actors", "learner", "together"):
        assert facts[side]["env_steps_per_second"] > 0
    assert facts["learner"]["updates_per_second"] > 0
