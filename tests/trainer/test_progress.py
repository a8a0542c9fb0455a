"""What `learn` shows of a run: in a terminal, elsewhere, and nothing."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from waiting import PATIENCE_SECONDS

import asyncrl
from asyncrl import DQN, Trainer

SCRIPT = """
import sys, threading
from asyncrl import DQN, Trainer

class Says:
    def on_report(self, trainer, snapshot):
        sys.stdout.write(f"mine {trainer.config.seed} [bold]{snapshot.env_steps} steps\\n")  # whole, of two threads

def learn(seed):
    trainer = Trainer("CartPole-v1", DQN(learning_starts=100), num_actors=1, seed=seed, eval_episodes=1,
                      eval_interval_steps=10**9, report_interval_steps=200)
    with trainer:
        trainer.learn(total_steps=600, callbacks=[Says()])

threads = [threading.Thread(target=learn, args=(seed,)) for seed in map(int, sys.argv[1:])]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("the end")
"""
CONTROL = re.compile(r"\x1b\[[\d;?]*[A-Za-z]|\x1b\]8;[^\x1b]*\x1b\\|\r")


def environment() -> dict[str, str]:
    root = str(Path(asyncrl.__file__).parents[1])
    given = {**os.environ, "PYTHONPATH": root, "COLUMNS": "120", "LINES": "40", "TERM": "xterm-256color"}
    given.pop("NO_COLOR", None)
    return given


def test_standard_output_of_a_script_in_a_pipe_is_its_own() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, "0"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        env=environment(),
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert said[-1] == "the end"
    assert all(re.fullmatch(r"mine 0 \[bold\]\d+ steps", line) for line in said[:-1])
    shown = [line for line in done.stderr.splitlines() if not line.startswith("compiling ")]
    assert re.fullmatch(r"page http://127\.0\.0\.1:\d+/#token=\S+", shown[0])
    assert shown[1] == "dqn CartPole-v1 seed 0"
    assert re.match(r"\d+s finished \d+/600 steps \| return", shown[-1])


def test_two_runs_of_a_script_share_a_terminal() -> None:
    """One has the screen, the other lines; what the script prints is whole, and above the screen."""
    ours, theirs = pty.openpty()
    parts: list[bytes] = []

    def read() -> None:
        with contextlib.suppress(OSError):  # Linux says EIO when the other side is gone
            while part := os.read(ours, 65536):
                parts.append(part)

    reader = threading.Thread(target=read, daemon=True)
    command = [sys.executable, "-c", SCRIPT, "0", "1"]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment())
    os.close(theirs)
    reader.start()
    try:
        assert process.wait(PATIENCE_SECONDS) == 0, b"".join(parts).decode()[-3000:]
        reader.join(PATIENCE_SECONDS)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    lines = [line.rstrip() for line in CONTROL.sub("", b"".join(parts).decode()).split("\n")]
    said = [line for line in lines if "mine" in line]
    assert said and all(re.fullmatch(r"mine [01] \[bold\]\d+ steps", line) for line in said)
    assert {line[5] for line in said} == {"0", "1"}
    titles = [line for line in lines if re.match(r"dqn CartPole-v1 seed \d  (training|finished)", line)]
    assert len({line[21] for line in titles}) == 1, "one screen"
    other = "1" if titles[0][21] == "0" else "0"
    page = next(i for i, line in enumerate(lines) if line.startswith("page http://127.0.0.1:"))
    assert lines[page + 1] == f"dqn CartPole-v1 seed {other}"
    assert any(re.match(r"http://127\.0\.0\.1:\d+/#token=\S+$", line) for line in lines)
    assert lines[-2:] == ["the end", ""] or lines[-1] == "the end"


def test_progress_is_auto_or_a_bool() -> None:
    with (
        Trainer("CartPole-v1", DQN()) as trainer,
        pytest.raises(ValueError, match="progress must be 'auto', True or False, got 'bar'"),
    ):
        trainer.learn(total_steps=1, progress="bar")  # type: ignore[arg-type]


def test_silence(capfd: pytest.CaptureFixture[str]) -> None:
    trainer = Trainer("CartPole-v1", DQN(learning_starts=100), num_actors=1, eval_episodes=1, http="off")
    with trainer:
        trainer.learn(total_steps=300, progress=False)
    assert capfd.readouterr() == ("", "")
