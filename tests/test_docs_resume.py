"""All snippets of docs/resume.md run, in order and in one folder."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "resume.md"
BLOCKS = re.findall(r"^```(sh|python)\n(.*?)^```", PAGE.read_text(), flags=re.M | re.S)
QUICK = 'num_actors=1, envs_per_actor=2, target_eval_episodes=2, eval_episodes=2, http="off"'


def program_of(block: str) -> list[str]:
    """Arguments that run a block's Python, or its one command."""
    if not block.startswith("asyncrl"):
        return ["-c", block.replace("num_actors=1", QUICK)]
    return ["-m", *shlex.split(block)]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_page_runs_from_top_to_bottom(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
    for _, block in BLOCKS:
        older = [path for path in tmp_path.glob("runs/cartpole/checkpoints/*") if path.name.isdecimal()]
        text = block.replace(
            "--checkpoint 1500", f"--steps +100 --checkpoint {older[0].name if older else ''}"
        )
        done = subprocess.run(
            [sys.executable, *program_of(text.replace("+50k", "+1k"))],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
    assert len(BLOCKS) >= 6
