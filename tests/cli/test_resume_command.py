"""`asyncrl resume`: its arguments; test_cli_run.py continues interrupted and killed runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from kept_runs import write_run

from asyncrl.cli.main import main
from asyncrl.cli.resume import parse
from asyncrl.interfaces import DiscreteAction, EnvSpec
from asyncrl.storage.checkpoint import save
from asyncrl.storage.checkpoint_meta import CheckpointMeta


def test_wrong_arguments(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for arguments, text in (
        (["resume"], "the following arguments are required: RUN"),
        (["resume", str(tmp_path), "--seed", "1"], "error: --seed may not change when a run goes on"),
        (["resume", str(tmp_path), "--env-kwargs", "gravity:8"], "begin a new run, with --init-from RUN"),
        (
            ["resume", str(tmp_path), "--dqn.gamma", "0.9"],
            "error: --dqn.gamma changes a run of dqn, and no argument is",
        ),
        (["resume", str(tmp_path), "--stepz", "1"], "did you mean --steps?"),
    ):
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        assert stop.value.code == 2
        assert text in " ".join(capsys.readouterr().err.split())
    assert main(["resume", str(tmp_path)]) == 1
    assert "there is no run in" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["resume", "doctor"])
def test_a_run_of_several_seeds_is_named(
    command: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for seed in range(2):
        write_run(tmp_path / f"s{seed}", seed=seed)
    assert main([command, str(tmp_path)]) == 1
    told = "".join(capsys.readouterr().err.split("\n"))
    assert f"it is a folder of runs: name one of them, such as {tmp_path / 's0'}" in told


@pytest.mark.parametrize("command", ["resume", "doctor"])
def test_an_address_of_the_hub_is_a_policy_and_no_run(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "hf://user/name"]) == 1
    told = " ".join(capsys.readouterr().err.split())
    assert "hf://user/name has a policy and no run: `asyncrl eval hf://user/name` plays it" in told
    assert "`asyncrl train ENV --init-from hf://user/name` begins a run with it" in told


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--steps", "-5"], "argument --steps: total_steps must be at least 1, got -5"),
        (["--eval-episodes", "0"], "argument --eval-episodes: eval_episodes must be at least 1, got 0"),
        (["--dqn.gamma", "2"], "argument --dqn.gamma: gamma must be from 0 to 1, got 2.0"),
    ],
)
def test_a_value_outside_its_range_is_reported_like_a_wrong_flag(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run = write_run(tmp_path / "run")
    spec = EnvSpec("CartPole-v1", (4,), "float32", DiscreteAction(2))
    meta = CheckpointMeta(env="CartPole-v1", algo="dqn", spec=spec)
    save(run / "checkpoints" / "latest", {"core": {}, "run": {"rows": None}}, meta)
    assert main(["resume", str(run), *arguments]) == 2
    assert capsys.readouterr().err == f"asyncrl resume: error: {text}\n"


def test_an_option_of_another_algorithm_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run = write_run(tmp_path / "run")
    with pytest.raises(SystemExit):
        main(["resume", str(run), "--ppo.gamma", "0.9"])
    assert "error: --ppo.gamma is an option of ppo, and the run is of dqn\n" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["resume", str(run), "--dqn.gama", "0.9"])
    assert "did you mean --dqn.gamma?" in capsys.readouterr().err


def test_options_are_those_that_may_change() -> None:
    options = parse(["runs/x", "--steps", "+1k", "--http", "off", "--new-episodes"])
    assert (options.RUN, options.steps, options.new_episodes) == ("runs/x", "+1k", True)
    assert options.changes == {"http": "off"}
