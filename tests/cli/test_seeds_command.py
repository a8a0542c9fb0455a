"""`asyncrl train --seeds`: flags, the view of several runs, the summary, and Ctrl-C."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import psutil
import pytest
from rich.console import Console
from snapshots import make_snapshot
from waiting import PATIENCE_SECONDS, is_running, wait_until

import asyncrl
from asyncrl import DQN, Trainer
from asyncrl.actors.forkserver import ForkServer
from asyncrl.cli.runs_shown import how_it_ended
from asyncrl.cli.seeds import summary
from asyncrl.cli.train import SeedOptions, parse, run
from asyncrl.config import TrainerConfig
from asyncrl.errors import ConfigurationError, EnvironmentRaised, ResourceError, StoppedWhileStarting
from asyncrl.run.job import Job
from asyncrl.show.console import TOKEN_IS_READABLE
from asyncrl.show.kept_run import KeptRun
from asyncrl.show.run_groups import group_runs
from asyncrl.show.runs_view import RunRow, RunsConsole, RunsView, runs_screen
from asyncrl.trainer.run_pool import Ended, RunPool
from asyncrl.trainer.seeds import SeedResults, train_seeds

ROOT = Path(__file__).parents[2]
TRAIN = ["CartPole-v1", "--algo", "dqn"]


def options(*arguments: str) -> SeedOptions:
    parsed = parse([*TRAIN, *arguments])
    assert isinstance(parsed, SeedOptions)
    return parsed


def test_seeds_are_counted_from_seed_or_given() -> None:
    assert list(options("--seeds", "3", "--seed", "5").folders) == [5, 6, 7]
    assert list(options("--seeds", "9,2", "--jobs", "2").folders) == [9, 2]
    assert options("--seeds", "9,2", "--jobs", "2").at_once == 2


def test_every_seed_has_a_directory_of_its_own() -> None:
    names = [folder.name for folder in options("--seeds", "2").folders.values() if folder]
    assert [name.rsplit("-", 2)[0] for name in names] == ["CartPole-v1-dqn-s0", "CartPole-v1-dqn-s1"]
    assert len({name.split("-s")[1][1:] for name in names}) == 1, "one date for all"
    assert options("--seeds", "2", "--run-dir", "x").folders == {0: Path("x/s0"), 1: Path("x/s1")}
    assert options("--seeds", "2", "--run-dir", "none").folders == {0: None, 1: None}


def test_the_seeds_of_a_run_that_is_there_are_refused(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "latest").touch()
    with pytest.raises(ConfigurationError, match="holds a run: checkpoints/latest"):
        options("--seeds", "2", "--run-dir", str(tmp_path))
    with pytest.raises(ConfigurationError, match="holds a run: checkpoints/latest"):
        train_seeds("CartPole-v1", "dqn", seeds=2, run_dir=tmp_path, total_steps=100)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            ["--seeds", "0"],
            "argument --seeds: must be a number of seeds, or different seeds as 0,1,2, got '0'",
        ),
        (["--seeds", "1,1"], "argument --seeds: must be"),
        (["--seeds", "x"], "argument --seeds: must be"),
        (["--jobs", "2"], "--jobs needs --seeds"),
        (["--seeds", "2", "--jobs", "0"], "argument --jobs: must be a whole number of at least 1, got '0'"),
        (["--seeds", "2", "--http", "8000"], "argument --http: must be auto or off with --seeds"),
    ],
)
def test_wrong_flags_are_usage_errors(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        parse([*TRAIN, *arguments])
    assert stop.value.code == 2
    assert text in " ".join(capsys.readouterr().err.split())


# --- the view ---------------------------------------------------------------------------------------------------------


def drawn(view: RunsView, width: int = 100, height: int = 24, notice: str = "") -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None)
    with console.capture() as capture:
        console.print(runs_screen(view, width, height, notice))
    return capture.get().splitlines()


def rows(count: int, ended: int) -> tuple[RunRow, ...]:
    state = {"end": "finished"}
    return tuple(
        RunRow(f"seed {n}", make_snapshot(seed=n), f"http://x/{n}", **(state if n < ended else {}))
        for n in range(count)
    )


def test_the_screen_has_a_line_per_run() -> None:
    lines = drawn(RunsView("dqn CartPole-v1  3 seeds", (*rows(2, 1), RunRow("seed 2"))))
    assert lines[0].startswith("dqn CartPole-v1  3 seeds")
    of_seed = {line.split()[1]: line for line in lines if line.startswith("seed")}
    assert "finished" in of_seed["0"] and "training" in of_seed["1"] and "starting" in of_seed["2"]
    assert "1,000/4,000 steps" in of_seed["1"] and "123.5" in of_seed["1"]


def test_a_small_screen_shows_the_runs_in_progress_first() -> None:
    lines = drawn(RunsView("many", rows(30, 24)), 80, 14, "SIGINT: stopping, once more to kill")
    assert len(lines) <= 14 and max(map(len, lines)) <= 80
    shown = [line.split()[1] for line in lines if line.startswith("seed")]
    assert shown == ["21", "22", "23", "24", "25", "26", "27", "28", "29"]
    assert "and 21 more" in "\n".join(lines)
    assert lines[-1].startswith("SIGINT")


def test_lines_of_text_say_each_end_and_page_once() -> None:
    stream, time = io.StringIO(), iter(range(0, 10_000, 100))
    console = RunsConsole(stream=stream, live=False, clock=lambda: float(next(time)))
    console._draw(RunsView("two seeds", rows(2, 1)))
    console._draw(RunsView("two seeds", rows(2, 1)))
    text = stream.getvalue()
    assert text.count("two seeds") == text.count("seed 0  page") == text.count("seed 0  12s finished") == 1
    assert text.count("seed 1  12s training 1,000/4,000 steps, 30s left | return 123.5, evaluation 200,") == 2


def test_a_token_in_a_file_is_said_whenever_its_page_comes(tmp_path: Path) -> None:
    with (tmp_path / "log.txt").open("w") as stream:
        Path(stream.name).chmod(0o644)
        console = RunsConsole(stream=stream, live=False)
        console._draw(RunsView("two seeds", (RunRow("seed 0", end="failed"),)))
        for _ in range(2):
            console._draw(RunsView("two seeds", (RunRow("seed 0", end="failed"), *rows(2, 1))))
    assert (tmp_path / "log.txt").read_text().splitlines().count(TOKEN_IS_READABLE) == 1


# --- the summary ------------------------------------------------------------------------------------------------------


def test_the_directories_are_one_argument_of_a_shell(tmp_path: Path) -> None:
    folders = {seed: tmp_path / f"CartPole-v1-dqn-s{seed}-20260101-120000" for seed in (0, 1, 12)}
    for folder in folders.values():
        left_by_a_run(folder)
    text = summary(SeedResults({}, {}), folders)
    argument = text.partition("asyncrl plot ")[2].splitlines()[0]
    assert argument == f"{tmp_path}/CartPole-v1-dqn-s{{0,1,12}}-20260101-120000"
    shell = subprocess.run(["bash", "-c", f"echo {argument}"], capture_output=True, text=True)
    assert shell.stdout.split() == list(map(str, folders.values()))


def test_folders_that_differ_in_more_than_the_seed_are_named_one_by_one(tmp_path: Path) -> None:
    """As where another command of the same second has taken a name."""
    names = {0: "0-20260101-120000", 1: "1-20260101-120000-2"}
    folders = {seed: left_by_a_run(tmp_path / f"CartPole-v1-dqn-s{name}") for seed, name in names.items()}
    text = summary(SeedResults({}, {}), folders)
    assert text.partition("asyncrl plot ")[2].splitlines()[0].split() == list(map(str, folders.values()))


def test_only_runs_are_suggested_and_those_that_can_go_on_are_named(tmp_path: Path) -> None:
    """Stopped while it started, lost before it had written its options, killed with a checkpoint, and finished."""
    folders = {seed: left_by_a_run(tmp_path / f"s{seed}") for seed in range(4)}
    (folders[1] / "config.toml").unlink()
    for seed in (2, 3):
        (folders[seed] / "checkpoints" / "latest").touch()
    errors = {0: StoppedWhileStarting("stopped"), 1: ResourceError("killed"), 2: ResourceError("killed")}
    finished: Any = SimpleNamespace(
        summary={"state": "finished", "env_steps": 1, "train_seconds": 1.0},
        evaluation=None,
        best=None,
        stop_reason="total_steps",
    )
    text = summary(SeedResults({3: finished}, errors), folders)
    assert f"asyncrl plot {tmp_path}/s{{2,3}}\n" in text
    assert [line.split()[-1] for line in text.splitlines() if "asyncrl resume" in line] == [f"{folders[2]}"]
    alone = SeedResults({}, {0: errors[0]})
    assert summary(alone, {0: folders[0]}).endswith("\nfiles         none")
    assert summary(alone, {0: None}).endswith("none (they are kept without --run-dir none)")


def test_a_run_that_was_stopped_while_it_started_has_not_failed() -> None:
    stopped = StoppedWhileStarting("The run was stopped while it started; it leaves no policy.")
    assert how_it_ended(Ended(0, None, stopped)) == "interrupted"
    assert how_it_ended(Ended(0, None, EnvironmentRaised("third step"))) == "failed"
    assert SeedResults({}, {3: stopped}).rows() == [
        "seed 3      stopped while it started; it leaves no policy"
    ]


@pytest.mark.parametrize("seeds", [[], ["--seeds", "2"]])
def test_a_run_that_was_stopped_while_it_started_leaves_no_folder(
    seeds: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stopped = StoppedWhileStarting("The run was stopped while it started; it leaves no policy.")

    def train(config: TrainerConfig, *_: object) -> int:
        left_by_a_run(Path(config.run_dir or ""))
        raise stopped

    def train_all(_: object, jobs: dict[int, Job], at_once: int) -> Iterator[Ended]:
        for seed, job in jobs.items():
            left_by_a_run(Path(job.config.run_dir or ""))
            yield Ended(seed, None, stopped)

    monkeypatch.setenv("ASYNCRL_RUNS", str(tmp_path / "runs"))
    monkeypatch.setattr("asyncrl.cli.training.train", train)
    monkeypatch.setattr("asyncrl.cli.seeds.train_all", train_all)
    with contextlib.suppress(StoppedWhileStarting):
        run(parse([*TRAIN, *seeds]), ForkServer())
    assert list((tmp_path / "runs").iterdir()) == []


def test_ctrl_c_after_a_worker_was_killed_is_an_interruption_though_no_run_has_a_result(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def train_all(pool: RunPool, jobs: dict[int, Job], at_once: int) -> Iterator[Ended]:
        yield Ended(0, None, ResourceError("The process of a run was killed by SIGKILL."))
        os.kill(os.getpid(), signal.SIGINT)
        wait_until(lambda: pool.stop_reason is not None, "the signal")
        yield Ended(1, None, StoppedWhileStarting("The run was stopped while it started."))

    monkeypatch.setattr("asyncrl.cli.seeds.train_all", train_all)
    assert run(options("--seeds", "2"), ForkServer()) == 130
    out, err = capsys.readouterr()
    assert "was killed by SIGKILL.\nseed 1      stopped while it started" in out
    assert "The process of a run was killed by SIGKILL." in err


@pytest.mark.parametrize("before_it_began", [False, True])
def test_a_signal_to_the_process_of_a_run_is_in_the_exit_code(
    before_it_began: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ended(seed: int, reason: str) -> Ended:
        summary = {"state": reason, "env_steps": 1, "train_seconds": 1.0}
        result: Any = SimpleNamespace(
            summary=summary, evaluation=None, best=None, stop_reason=reason, unsaved="", run_dir=None
        )
        return Ended(seed, result, None)

    def train_all(pool: RunPool, jobs: dict[int, Job], at_once: int) -> Iterator[Ended]:
        yield ended(0, "total_steps")
        lost = Ended(1, None, StoppedWhileStarting("The run was stopped by SIGTERM while it started."))
        yield lost if before_it_began else ended(1, "interrupted")

    monkeypatch.setattr("asyncrl.cli.seeds.train_all", train_all)
    assert run(options("--seeds", "2", "--run-dir", "none"), ForkServer()) == 130
    assert capsys.readouterr().err == ""


def left_by_a_run(folder: Path) -> Path:
    """Make the folder of a run that has made no step."""
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "config.toml").touch()
    (folder / "summary.json").write_text('{"env_steps": 0}')
    return folder


def test_ctrl_c_during_the_imports_leaves_no_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Interrupted(ModuleType):
        @property
        def train_seeds(self) -> None:
            raise KeyboardInterrupt

    monkeypatch.setenv("ASYNCRL_RUNS", str(tmp_path / "runs"))
    monkeypatch.setitem(sys.modules, "asyncrl.cli.seeds", Interrupted("seeds"))
    with pytest.raises(KeyboardInterrupt):
        run(options("--seeds", "2"), ForkServer())
    assert list((tmp_path / "runs").iterdir()) == []


def test_policies_of_seeds_whose_disk_stays_full_are_kept_elsewhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def ended(job: Job) -> Ended:
        unsaved = "No space left on device"
        made = Trainer("CartPole-v1", DQN(hidden_sizes=(4,)), **small).learn(8)
        return Ended(
            job.config.seed,
            dataclasses.replace(made, run_dir=Path(job.config.run_dir or ""), unsaved=unsaved),
            None,
        )

    small: dict[str, Any] = {"num_actors": 1, "envs_per_actor": 2, "http": "off", "target_eval_episodes": 1}
    monkeypatch.setattr("asyncrl.cli.seeds.train_all", lambda _, jobs, at_once: map(ended, jobs.values()))
    monkeypatch.chdir(tmp_path)
    assert run(options("--seeds", "2", "--run-dir", str(tmp_path / "x")), ForkServer()) == 4
    out = capsys.readouterr().out
    for seed in (0, 1):
        assert f"policy        {tmp_path}/x-s{seed}.policy (the last checkpoint could not be written" in out
        assert asyncrl.load(tmp_path / f"x-s{seed}.policy").meta.algo == "dqn"


# --- the whole command ------------------------------------------------------------------------------------------------


def test_ctrl_c_stops_all_runs_with_their_checkpoints_and_leaves_nothing(tmp_path: Path) -> None:
    flags = ["--actors", "1", "--envs-per-actor", "4", "--dqn.learning-starts", "200", "--device", "cpu"]
    flags += [
        "--checkpoint-interval-seconds",
        "0.2",
        "--seeds",
        "3",
        "--jobs",
        "2",
        "--run-dir",
        str(tmp_path),
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "asyncrl", "train", *TRAIN, *flags],
        env={**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1", "PYTHONWARNINGS": "ignore:[ASYNC021]"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        latest = [tmp_path / f"s{seed}" / "checkpoints" / "latest" for seed in (0, 1)]
        wait_until(lambda: process.poll() is not None or all(map(Path.exists, latest)), "two checkpoints")
        assert process.poll() is None, process.communicate()
        children = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
        assert len(children) >= 6, "two workers with a fork server and an actor each"
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does it
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
    finally:
        process.kill()
        process.communicate()
    assert (process.returncode, err) == (130, "SIGINT: stopping, once more to kill\n")
    wait_until(lambda: not any(map(is_running, children)), "all its processes gone")
    summaries = [json.loads((tmp_path / f"s{seed}" / "summary.json").read_text()) for seed in (0, 1)]
    assert [found["stop_reason"] for found in summaries] == ["interrupted", "interrupted"]
    assert not (tmp_path / "s2").exists(), "it was not begun"
    assert out.count("not evaluated") == 2 and "interrupted" in out
    (group,) = group_runs([KeptRun(tmp_path / f"s{seed}") for seed in (0, 1)])
    assert group.size == "2 seeds"
