"""All snippets of docs/saving.md run, in order and in one folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from page_reader import PageReader, snippets

BLOCKS = snippets("docs/saving.md")
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
    "train": "--actors 1 --http off --target-eval-episodes 3",
    "enjoy": "--episodes 1",
}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_page_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("imageio_ffmpeg")
    pytest.importorskip("Box2D")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    reader = PageReader()
    for language, block in BLOCKS:
        for long, short in SHORT.items():
            block = block.replace(long, short)
        if language == "python":
            reader.python(block)
            continue
        for line in block.splitlines():
            command = line.split()[1]
            more = "" if "--episodes" in line else MORE.get(command, "")
            if command == "train" and "--steps" not in line:
                more += " --steps 1000"
            reader.shell(f"{line} {more}")
    for name in ("cartpole.policy", "cartpole.mp4", "cartpole.gif", "cartpole.onnx", "short.mp4"):
        assert (tmp_path / name).stat().st_size > 0, name
    assert (tmp_path / "runs" / "again" / "environment.pkl").exists()


def test_the_page_shows_every_command_of_its_subject() -> None:
    text = " ".join(block for language, block in BLOCKS if language == "sh")
    for command in ("train", "eval", "enjoy", "export"):
        assert f"asyncrl {command} " in text
    assert len(BLOCKS) >= 12
