"""All snippets of docs/saving.md run, in order and in one folder."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "saving.md"
BLOCKS = re.findall(r"^```(sh|python)\n(.*?)^```", PAGE.read_text(), flags=re.M | re.S)
SHORT = {
    "20k": "1500",
    "20_000": "1_500",
    "2_000": "1_000",
    "--steps 2k": "--steps 1000",
    "--episodes 20": "--episodes 3",
    "eval_interval_steps=1_000": "eval_interval_steps=500",
    "num_actors=1": 'target_eval_episodes=3, eval_episodes=3, http="off", num_actors=1',
}
MORE = {
    "train": ["--actors", "1", "--http", "off", "--target-eval-episodes", "3"],
    "enjoy": ["--episodes", "1"],
}
# Runs block after block in one module, like a reader who types them.
READER = """
import json, sys
for line in sys.stdin:
    exec(compile(json.loads(line), "saving.md", "exec"), globals())
    print("block done", flush=True)
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_page_runs_from_top_to_bottom(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("imageio_ffmpeg")
    env = {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1", "SDL_VIDEODRIVER": "dummy"}
    reader = subprocess.Popen(
        [sys.executable, "-c", READER],
        cwd=tmp_path,
        env=env,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with reader:
        assert reader.stdin is not None
        assert reader.stdout is not None
        for language, block in BLOCKS:
            for long, short in SHORT.items():
                block = block.replace(long, short)
            if language == "python":
                reader.stdin.write(json.dumps(block) + "\n")
                reader.stdin.flush()
                assert "block done\n" in iter(reader.stdout.readline, ""), block
                continue
            for line in block.splitlines():
                program, command, *arguments = line.split()
                assert program == "asyncrl"
                arguments += [] if "--episodes" in arguments else MORE.get(command, [])
                done = subprocess.run(
                    [sys.executable, "-m", "asyncrl", command, *arguments],
                    cwd=tmp_path,
                    env=env,
                    capture_output=True,
                    text=True,
                    timeout=100,
                )
                assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
    assert reader.returncode == 0
    for name in ("cartpole.policy", "cartpole.mp4", "cartpole.gif", "cartpole.onnx", "short.mp4"):
        assert (tmp_path / name).stat().st_size > 0, name
    assert (tmp_path / "runs" / "again" / "environment.pkl").exists()


def test_the_page_shows_every_command_of_its_subject() -> None:
    text = " ".join(block for language, block in BLOCKS if language == "sh")
    for command in ("train", "eval", "enjoy", "export"):
        assert f"asyncrl {command} " in text
    assert len(BLOCKS) >= 12
