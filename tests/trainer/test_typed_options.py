"""Errors that a type checker finds in a user's script."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from waiting import PATIENCE_SECONDS

import asyncrl

SCRIPT = """
from asyncrl import DQN, PPO, Callback, Snapshot, Trainer

class Mine(Callback):
    def on_report(self, trainer: Trainer, snapshot: Snapshot) -> bool:
        return snapshot.updates < 10

trainer = Trainer("CartPole-v1", DQN(learning_rate=lambda progress: 1e-3 * progress), num_actors=2, run_dir="x")
trainer.learn(total_steps=10, callbacks=[Mine()])
Trainer("CartPole-v1", "dqn", num_actor=2)
Trainer("CartPole-v1", "dqn", num_actors="two")
Trainer("CartPole-v1", PPO)
"""


def test_mypy_finds_mistakes_in_options(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.strip() + "\n")
    root = Path(asyncrl.__file__).parents[1]
    # The cache is the one that checking the package has filled.
    options = ["--config-file", str(root / "pyproject.toml"), "--cache-dir", str(root / ".mypy_cache")]
    # In a process of its own: its million objects would make every later collection in this one take two seconds.
    command = [sys.executable, "-m", "mypy", str(script), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3 * PATIENCE_SECONDS)
    found = done.stdout
    lines = {int(line) for line in re.findall(r"script\.py:(\d+): error", found)}
    assert not done.stderr and lines == {9, 10, 11}, found
    assert 'Unexpected keyword argument "num_actor"' in found and "num_actors" in found
