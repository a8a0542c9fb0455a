"""The examples do what they say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "least"), [("ppo", 475.0), ("sac", -200.0)])
def test_a_network_of_ones_own_learns(name: str, least: float) -> None:
    command = [sys.executable, str(ROOT / "examples" / "own_network.py"), name]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, env=environment)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[-1]) >= least and "target_return" in done.stdout


def test_the_example_is_short() -> None:
    assert len((ROOT / "examples" / "own_network.py").read_text().splitlines()) < 60
