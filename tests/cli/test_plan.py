"""`asyncrl plan`: flags, its text for given measurements, and real plans."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace

import pytest

from asyncrl import DQN, PPO
from asyncrl.cli import pilots as module
from asyncrl.cli import plan
from asyncrl.cli.main import main
from asyncrl.cli.pilots import Pilot, Sides, actors_alone, learner_alone
from asyncrl.config import TrainerConfig


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
        (["CartPole-v1", "--algo", "dqn", "--actors", "0"], "argument --actors"),
        (["CartPole-v1", "--algo", "bc"], "argument --algo: bc learns from a dataset alone"),
        (
            ["CartPole-v1", "--algo", "dqn", "--batch-sizes", "64,"],
            "must be whole numbers above 0 such as 64,256",
        ),
        (
            ["CartPole-v1", "--algo", "dqn", "--batch-sizes", "64,0"],
            "must be whole numbers above 0 such as 64,256",
        ),
        (
            ["CartPole-v1", "--algo", "impala", "--batch-sizes", "64"],
            "impala has no option that sets the rows",
        ),
        (
            ["CartPole-v1", "--algo", "dqn", "--actors", "1", "--env-threads", "n"],
            "measures one number alone",
        ),
    ],
)
def test_wrong_arguments_are_named(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        plan.parse(arguments)
    assert stop.value.code == 2 and text in capsys.readouterr().err


def test_options_that_do_not_go_together_are_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["plan", "several_agents:Parallel", "--algo", "qmix", "--policy", "a:.*"]
    assert main([*command, "--actors", "1", "--seconds", "0.1"]) == 2
    assert "asyncrl plan: error: argument --policy: policies must be none for qmix" in capsys.readouterr().err


def test_the_text_names_the_fastest_and_the_duration() -> None:
    slow, fast = (
        Pilot(1, 16, 500.0, 10.0, 0.02, 0.9, 10_000_000),
        Pilot(2, 16, 1000.0, 20.0, 0.6, 0.0, 20_000_000),
    )
    text = plan._text(Sides(500.0, fast, fast, fast), [slow, fast], 600_000)
    assert "fastest      --actors 2 --envs-per-actor 16: 600,000 steps in 10.0 minutes" in text
    assert max(map(len, text.splitlines())) <= 110


def test_efficiency_is_against_the_first_pilot_and_columns_show_what_varies() -> None:
    one = Pilot(1, 4, 100.0, 10.0, 0.0, 0.0, 10_000_000, batch_size=64)
    pilots = [
        one,
        replace(one, num_actors=2, env_steps_per_second=150.0),
        replace(one, env_threads=2, env_steps_per_second=190.0),
        replace(one, num_actors=2, env_threads=2, env_steps_per_second=300.0),
        replace(one, num_actors=2, env_threads=2, env_steps_per_second=400.0, batch_size=256),
    ]
    assert [module.efficiency(each, one) for each in pilots] == [1.0, 0.75, 0.95, 0.75, 1.0]
    best = module.fastest(pilots)
    assert best is pilots[3], "another batch size is another training"
    lines = plan._text(Sides(100.0, best, best, best), pilots, None, "num_threads").splitlines()
    assert lines[0].split()[:6] == ["actors", "threads", "envs", "each", "batch", "steps/s"]
    assert lines[4].split()[:6] == ["2", "2", "4", "64", "300", "75%"]
    assert "fastest      --actors 2 --envs-per-actor 4 --env-kwargs num_threads:2" in lines
    alone = plan._text(Sides(100.0, one, one, one), [one], None).splitlines()[0]
    assert "threads" not in alone and "batch" not in alone and "linear" not in alone


def test_threads_and_batch_sizes_are_varied(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which a step takes 1 / threads, actors share nothing, and 16 environments are fastest."""
    seen = []

    def run(config: TrainerConfig, algorithm: PPO, actors: int, envs: int, seconds: float) -> Pilot:
        threads = config.env_kwargs["n"]
        seen.append((actors, threads, envs, algorithm.minibatch_size))
        speed = 100.0 * actors**0.5 * threads * (2 if envs == 16 else 1)
        return Pilot(actors, envs, speed, 1.0, 0.0, 0.0, 0, batch_size=algorithm.minibatch_size)

    monkeypatch.setattr(module, "run_pilot", run)
    config = TrainerConfig(env="CartPole-v1", algo="ppo", envs_per_actor=4, env_kwargs={"other": 1})
    found = module.plan(config, PPO(), 1.0, cores=4, env_threads="n", batch_sizes=(64, 256))
    grid = [(1, 1), (2, 1), (4, 1), (1, 2), (2, 2), (1, 4)]
    assert seen[:6] == [(actors, threads, 4, 64) for actors, threads in grid]
    assert seen[6:] == [(1, 4, 1, 64), (1, 4, 16, 64), (1, 4, 16, 256)]
    assert module.fastest(found) == found[7]


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
    text = plan._text(found, [found.together], None)
    assert f"limit        {plan.LIMITS[limit]}" in text and "enough for 2,000 steps/s" in text
    assert max(map(len, text.splitlines())) <= 110


def test_a_run_without_updates_names_no_pace() -> None:
    found = Sides(500.0, pilot(500.0, 0.0), pilot(0.0, 0.0), pilot(500.0, 0.0))
    assert found.learner_steps_per_second is None and "enough" not in plan._text(
        found, [found.together], None
    )
    json.dumps(plan._facts(found, [found.together]), allow_nan=False)


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
    assert facts["limit"] in plan.LIMITS


@pytest.mark.parametrize("algo", ["dqn", "ppo"])
def test_one_number_of_actors_is_measured_alone(algo: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["CartPole-v1", "--algo", algo, "--actors", "1", "--seconds", "0.4", "--json"]
    assert main(["plan", *arguments]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["limit"] in plan.LIMITS
    assert [pilot["num_actors"] for pilot in facts["pilots"]] == [1] and facts["pilots"] == [facts["fastest"]]
    for side in ("environment", "actors", "learner", "fastest"):
        assert facts[side]["env_steps_per_second"] > 0
    assert facts["learner"]["updates_per_second"] > 0
