"""`asyncrl resume`: continuing an interrupted or killed run from the shell."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from asyncrl.cli.main import main
from asyncrl.cli.resume import parse

TRAIN = ["train", "CartPole-v1", "--algo", "dqn", "--steps", "1M", "--actors", "1", "--envs-per-actor", "2"]
QUICK = [
    "--http",
    "off",
    "--seed",
    "3",
    "--checkpoint-interval-seconds",
    "0.2",
    "--target-eval-episodes",
    "1",
]
SECONDS = 60


def interrupted(run: Path, how: signal.Signals) -> subprocess.Popen[str]:
    """A run that had learned something before a signal ended it."""
    arguments = [sys.executable, "-m", "asyncrl", *TRAIN, *QUICK, "--run-dir", str(run)]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        lines, end = run / "metrics.jsonl", time.monotonic() + SECONDS
        while not (
            lines.exists() and '"train/loss"' in lines.read_text() and (run / "checkpoints/latest").exists()
        ):
            assert process.poll() is None and time.monotonic() < end
            time.sleep(0.01)
        process.send_signal(how)
        process.wait(SECONDS)
    finally:
        process.kill()
        process.communicate()
    return process


@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_it_goes_on(
    how: signal.Signals, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert interrupted(run, how).returncode == code
    assert (run / "summary.json").exists() is (how == signal.SIGINT)
    assert main(["resume", str(run), "--steps", "+500", "--dqn.learning-rate", "2e-3"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"goes on from {run}/checkpoints/latest: ")
    assert "stopped by    total_steps" in out
    entries: list[dict[str, Any]] = [
        json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()
    ]
    steps = [entry["time/total_timesteps"] for entry in entries if "time/total_timesteps" in entry]
    summary = json.loads((run / "summary.json").read_text())
    assert steps == sorted(steps) and steps[-1] == summary["env_steps"]
    assert summary["state"] == "finished"
    assert "learning_rate = 0.002" in (run / "config.toml").read_text()


def test_wrong_arguments(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for arguments, text in (
        (["resume"], "the following arguments are required: RUN"),
        (["resume", str(tmp_path), "--seed", "1"], "it may not change when a run goes on"),
        (["resume", str(tmp_path), "--stepz", "1"], "did you mean --steps?"),
    ):
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        assert stop.value.code == 2
        assert text in capsys.readouterr().err
    assert main(["resume", str(tmp_path)]) == 1
    assert "there is no run in" in capsys.readouterr().err


def test_options_are_those_that_may_change() -> None:
    options = parse(["runs/x", "--steps", "+1k", "--http", "off", "--new-episodes"])
    assert (options.run, options.steps, options.restore_episodes) == (Path("runs/x"), "+1k", False)
    assert options.changes == {"http": "off"}
