"""Command line with real actors: output in a user's shell, and no leftovers whichever way a run ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from waiting import PATIENCE_SECONDS as SECONDS
from waiting import is_running, wait_until

from asyncrl.cli.main import main
from asyncrl.show.console import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
SMALL = ["--actors", "2", "--envs-per-actor", "4", "--device", "cpu", "--dqn.learning-starts", "200"]
QUICK = ["--checkpoint-interval-seconds", "0.2", "--target-eval-episodes", "1"]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "asyncrl", *arguments]


def environment() -> dict[str, str]:
    one_core = "ignore:[ASYNC021]"  # two actors warn of it there
    return {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1", "PYTHONWARNINGS": one_core}


def asyncrl(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), env=environment(), capture_output=True, text=True, timeout=SECONDS
    )


@pytest.fixture
def here(capfd: pytest.CaptureFixture[str]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a command in this process, which has imported torch already."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        try:
            code = main(arguments)
        except SystemExit as stop:
            code = stop.code
        return subprocess.CompletedProcess(arguments, code, *capfd.readouterr())

    return run


def running(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [process for process in processes if is_running(process.pid)]


@pytest.fixture
def endless(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], list[psutil.Process], Path]]:
    """An endless run that has learned something, its processes, and its directory."""
    directory = tmp_path / "run"
    process = subprocess.Popen(
        command("train", "CartPole-v1", "--algo", "dqn", *SMALL, *QUICK, "--run-dir", str(directory)),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        lines = directory / "metrics.jsonl"

        def learning() -> bool:
            assert process.poll() is None, process.communicate()
            reported = lines.exists() and '"train/loss"' in lines.read_text()
            return reported and (directory / "checkpoints" / "latest").exists()

        wait_until(learning, "a report with a loss, and a checkpoint")
        yield process, psutil.Process(process.pid).children(recursive=True), directory
    finally:
        process.kill()
        process.communicate()


def test_a_run_is_trained_played_and_trained_again(
    tmp_path: Path, here: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    directory = tmp_path / "first"
    options = ["--steps", "2k", "--http", "off", "--target-eval-episodes", "3", *SMALL]
    first = asyncrl("train", "CartPole-v1", "--algo", "dqn", *options, "--run-dir", str(directory))
    assert (first.returncode, first.stderr) == (0, "")
    assert "stopped by    total_steps\n" in first.stdout
    assert "over 3 greedy episodes\n" in first.stdout
    assert f"files         {directory}\n" in first.stdout

    played = here("eval", str(directory), "--checkpoint", "latest", "--episodes", "4", "--json")
    assert (played.returncode, played.stderr) == (0, "")
    result = json.loads(played.stdout)
    assert (result["env"], result["algo"], result["episodes"]) == ("CartPole-v1", "dqn", 4)
    assert 2_000 <= result["env_steps"] <= 2_008

    again = ["--config", str(directory / "config.toml"), "--steps", "1k"]
    refused = here("train", *again, "--run-dir", str(directory))
    assert refused.returncode == 1
    assert "run_dir must be a new or empty directory" in refused.stderr
    second = here("train", *again)
    assert (second.returncode, second.stderr) == (0, "")
    kept = Path(next(line.split()[1] for line in second.stdout.splitlines() if line.startswith("files")))
    assert kept.parent == Path(os.environ["ASYNCRL_RUNS"])
    assert (kept / "summary.json").exists() and (kept / "checkpoints" / "latest").exists()


def assert_goes_on(here: Callable[..., subprocess.CompletedProcess[str]], run: Path) -> None:
    """Resume the run for 500 steps, and check the files."""
    done = here("resume", str(run), "--steps", "+500", "--dqn.learning-rate", "2e-3")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"goes on from {run}/checkpoints/latest: ")
    assert "stopped by    total_steps" in done.stdout
    entries = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [entry["time/total_timesteps"] for entry in entries if "time/total_timesteps" in entry]
    summary = json.loads((run / "summary.json").read_text())
    assert steps == sorted(steps) and steps[-1] == summary["env_steps"]
    assert summary["state"] == "finished"
    assert "learning_rate = 0.002" in (run / "config.toml").read_text()


def test_ctrl_c_stops_writes_a_checkpoint_and_leaves_nothing(
    endless: tuple[subprocess.Popen[str], list[psutil.Process], Path],
    here: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    process, children, directory = endless
    assert len(children) >= 3, "a fork server and two actors"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=SECONDS)
    assert (process.returncode, err) == (130, "SIGINT: stopping, once more to kill\n")
    assert "stopped by    interrupted\n" in out
    assert json.loads((directory / "summary.json").read_text())["stop_reason"] == "interrupted"
    assert not (directory / "http.json").exists()
    assert running(children) == []
    assert (directory / "checkpoints" / "latest").exists()
    assert_goes_on(here, directory)


def test_sigkill_leaves_no_process_and_the_run_goes_on(
    endless: tuple[subprocess.Popen[str], list[psutil.Process], Path],
    here: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    process, children, directory = endless
    process.kill()
    process.wait(SECONDS)
    wait_until(lambda: running(children) == [], "all its processes gone")
    assert not (directory / "summary.json").exists()
    assert_goes_on(here, directory)


def test_a_pace_that_would_deadlock_is_a_wrong_argument(
    here: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    options = ["--steps", "1k", "--http", "off", "--dqn.samples-per-insert-error", "0.1"]
    options += ["--dqn.discipline", "relaxed"]
    done = here("train", "CartPole-v1", "--algo", "dqn", *options)
    assert done.returncode == 2
    flag = "asyncrl train: error: argument --dqn.samples-per-insert-error"
    assert done.stderr.startswith(f"{flag}: samples_per_insert_error must be at least")
    assert done.stderr.count("\n") == 1


def test_a_port_in_use_is_named(here: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = here("train", "CartPole-v1", "--algo", "dqn", "--steps", "1k", "--http", str(port))
    assert done.returncode == 4
    assert "[ASYNC007]" in done.stderr
    assert str(port) in done.stderr


def test_an_error_before_training_is_printed_alone() -> None:
    runs, begin = set(Path(os.environ["ASYNCRL_RUNS"]).iterdir()), time.monotonic()
    done = asyncrl("train", "Cartpole-v1", "--algo", "dqn", "--http", "off")
    assert done.returncode == 1
    # A start that takes longer than people wait in silence is told of.
    assert done.stdout == "" or time.monotonic() - begin > PATIENCE_SECONDS
    assert done.stderr.startswith("[ASYNC006] There is no environment Cartpole-v1.")
    assert set(Path(os.environ["ASYNCRL_RUNS"]).iterdir()) == runs, "a mistake leaves no directory"


def test_an_error_before_training_is_printed_alone_where_nothing_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    done = asyncrl("train", "Pendulum-v1", "--algo", "dqn", "--http", "off", "--run-dir", "none")
    assert done.returncode == 1
    assert done.stderr.startswith("[ASYNC005]") and "compiling" not in done.stderr
    assert any(tmp_path.rglob("*.nbi")), "kernels were compiled"


MODULE = '''
import gymnasium

class Marked(gymnasium.Wrapper):
    """Leaves a file that says which environment it has wrapped."""

    def __init__(self, env):
        super().__init__(env)
        with open("marked", "a") as file:
            file.write(f"{env.unwrapped._sutton_barto_reward}\\n")

gymnasium.register("Mine-v0", entry_point="gymnasium.envs.classic_control:CartPoleEnv", max_episode_steps=50)
'''


def test_modules_of_the_working_directory_are_found_by_the_script(tmp_path: Path) -> None:
    (tmp_path / "my_module_here.py").write_text(MODULE)
    options = ["--algo", "dqn", *SMALL, "--actors", "1", "--steps", "1k", "--http", "off", "--run-dir", "x"]
    options += ["--env-kwargs", "sutton_barto_reward:True", "--wrapper", "my_module_here:Marked"]
    # As an installed script is started: without the working directory on sys.path.
    line = [sys.executable, "-P", "-m", "asyncrl", "train", "my_module_here:Mine-v0", *options]
    line += ["--target-eval-episodes", "1", "--eval-interval-steps", "500"]
    done = subprocess.run(
        line, env=environment(), capture_output=True, text=True, timeout=SECONDS, cwd=tmp_path
    )
    assert (done.returncode, done.stderr) == (0, "")
    marks = (tmp_path / "marked").read_text().split()
    assert set(marks) == {"True"}, "every environment has its keyword arguments"
    assert len(marks) >= 1 + 4 + 1, "the probe's, the actor's and the evaluator's"
    config = (tmp_path / "x" / "config.toml").read_text()
    assert 'wrappers = [\n    "my_module_here:Marked",\n]' in config and "sutton_barto_reward:True" in config
