"""`asyncrl tune`: its flags, the plot of trials, and a small search as a whole."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from asyncrl.algorithms.search_spaces import Interval, SearchSpace
from asyncrl.cli.interrupts import Interrupts
from asyncrl.cli.main import COMMANDS, main
from asyncrl.cli.tune import TuneOptions, _search, parse
from asyncrl.errors import EnvironmentRaised, StoppedWhileStarting
from asyncrl.show.kept_run import KeptRun, find_runs
from asyncrl.trainer.run_pool import Ended
from asyncrl.tuning.study import Study

pytest.importorskip("optuna")

TUNE = ["CartPole-v1", "--algo", "dqn"]


def test_the_options_to_beat_are_those_that_train_takes() -> None:
    options = parse([*TUNE, "--trials", "7", "--dqn.batch-size", "32", "--max-seconds", "9"])
    assert (options.trials, options.max_seconds, options.held_out) == (7, 9.0, 5)
    assert options.algorithm.gamma == 0.995, "the preset's"  # type: ignore[attr-defined]
    assert "batch_size" not in options.space.options and "gamma" in options.space.options
    assert (options.config.total_steps, options.config.max_seconds) == (50_000, None)
    assert (options.config.eval_interval_steps, options.config.http) == (5_000, "off")
    assert options.folder == Path(os.environ["ASYNCRL_RUNS"]) / "tune-CartPole-v1-dqn"
    given = parse([*TUNE, "--steps", "1k", "--eval-interval-steps", "7", "--run-dir", "x", "--jobs", "3"])
    assert (given.config.total_steps, given.config.eval_interval_steps) == (1000, 7)
    assert (given.folder, given.at_once) == (Path("x"), 3)


def test_an_own_space_is_read(tmp_path: Path) -> None:
    (tmp_path / "space.toml").write_text("total_steps = 300\n[gamma]\nlow = 0.9\nhigh = 0.99\n")
    options = parse([*TUNE, "--space", str(tmp_path / "space.toml")])
    assert options.space == SearchSpace({"gamma": Interval(0.9, 0.99)}, 300)
    assert options.config.total_steps == 300


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--trials", "0"], "argument --trials: must be a whole number of at least 1"),
        (["--held-out", "-1"], "argument --held-out: must be a whole number of at least 0, got '-1'"),
        (["--held-out", "x"], "argument --held-out: must be a whole number of at least 0, got 'x'"),
        (["--run-dir", "none"], "argument --run-dir: must be a directory"),
        (["--target-return", "3"], "unknown option --target-return"),
        (["--http", "8000"], "argument --http: must be auto or off"),
        (["--max-seconds", "0"], "argument --max-seconds: must be a finite number above 0"),
    ],
)
def test_wrong_flags_are_usage_errors(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        parse([*TUNE, *arguments])
    assert stop.value.code == 2
    assert text in " ".join(capsys.readouterr().err.split())


def test_an_algorithm_without_its_dataset_is_a_usage_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", "CartPole-v1", "--algo", "bc", "--run-dir", str(tmp_path / "search")]) == 2
    assert "asyncrl tune: error: argument --dataset: dataset must be given for bc" in capsys.readouterr().err
    assert not (tmp_path / "search").exists()


def test_the_reason_of_a_run_that_failed_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task = SimpleNamespace(label="trial 1", folder=tmp_path)
    errors = (EnvironmentRaised("it raised", facts={"actor": 0}), StoppedWhileStarting("stopped"), None)
    search: Any = SimpleNamespace(
        at_once=1,
        early_end=lambda task: "",
        run=lambda pool: ((task, Ended(key, None, error)) for key, error in enumerate(errors)),
        result=lambda: "trials        3: 1 failed",
    )
    with Interrupts() as interrupts:
        assert _search(search, parse([*TUNE, "--run-dir", str(tmp_path)]), interrupts) == 0
    told = capsys.readouterr()
    assert "trial 1: [ASYNC002] it raised\n" in told.err and "stopped" not in told.err
    assert "trials        3: 1 failed" in told.out


def test_help_needs_no_algorithm(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["tune"])
    assert "ENV is missing, for example: asyncrl tune CartPole-v1" in " ".join(
        capsys.readouterr().err.split()
    )


SMALL = ["--actors", "1", "--envs-per-actor", "4", "--device", "cpu", "--dqn.learning-starts", "100"]
SMALL += [
    "--dqn.discipline",
    "lockstep",
    "--eval-episodes",
    "2",
    "--target-eval-episodes",
    "2",
    "--steps",
    "300",
]


def test_a_small_search_ends_with_a_preset_that_trains(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "runs" / "search"
    command = ["tune", *TUNE, *SMALL, "--trials", "3", "--held-out", "1", "--jobs", "1"]
    command += ["--run-dir", str(folder)]
    assert main(command) == 0
    out = capfd.readouterr().out
    result = json.loads((folder / "result.json").read_text())
    assert sum(result["trials"].values()) == 3 and "trials        3: " in out
    runs = {run.path.name: run for run in find_runs(folder.parent)}
    assert {"trial-000", "trial-001", "trial-002", "finalist-000-s1"} <= set(runs)
    assert (
        runs["trial-000"].tags == ["trial"] and runs["trial-001"].options["dqn"]["discipline"] == "lockstep"
    )
    if result["trial"]:
        assert f"best-{result['trial']:03}-s1000" in runs and "best - default" in out

    assert main(command) == 0, "it goes on, and has nothing to do"
    again = capfd.readouterr().out
    assert again.splitlines()[-8:] == out.splitlines()[-8:]

    assert main(["plot", str(folder)]) == 0
    assert "value over trials, search" in capfd.readouterr().out
    pytest.importorskip("matplotlib")
    assert main(["plot", str(folder), "--out", str(tmp_path / "trials.png")]) == 0
    assert (tmp_path / "trials.png").read_bytes().startswith(b"\x89PNG")

    trained = tmp_path / "trained"
    command = ["train", "--config", str(folder / "best.toml"), "--run-dir", str(trained), "--seed", "7"]
    assert main(command) == 0
    best = KeptRun(folder / f"trial-{result['trial']:03}").options["dqn"]
    assert KeptRun(trained).options["dqn"] == best and KeptRun(trained).summary["seed"] == 7
    capfd.readouterr()


def test_a_folder_that_is_no_search_is_told_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "study.db").write_text("no database")
    assert main(["plot", str(tmp_path)]) == 1
    assert "the study cannot be read" in capsys.readouterr().err


def test_a_search_before_its_first_return_says_what_to_wait_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = Study(tmp_path, SearchSpace({"gamma": Interval(0.9, 0.99)}), {"gamma": 0.95}, 0)
    study.end(study.ask(1).number, "failed", None)
    study.ask(1)
    for more in ([], ["--out", str(tmp_path / "trials.png")]):
        assert main(["plot", str(tmp_path), *more]) == 1
        told = capsys.readouterr().err
        assert "has a return yet" in told and "trials begun: 2" in told and "failed: 1" in told
        assert f"asyncrl ls {tmp_path} shows how far it is" in told


def test_the_command_is_listed() -> None:
    assert isinstance(COMMANDS["tune"].parse(TUNE), TuneOptions)
