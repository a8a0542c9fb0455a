"""The README's commands run in order and in one folder, with fewer steps."""

from __future__ import annotations

from pathlib import Path

import pytest
from page_reader import PageReader, snippets

COMMANDS = [
    line.partition("#")[0].strip()
    for language, block in snippets("README.md")
    if language == "sh"
    for line in block.splitlines()
]
MORE = {
    "train": "--actors 1 --http off --target-eval-episodes 3",
    "resume": "--http off",
    "plan": "--seconds 0.2 --cores 1",
    "bench": "--seconds 0.2",
    "eval": "--episodes 3",
    "enjoy": "--episodes 1",
}


def test_the_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("imageio_ffmpeg")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    reader = PageReader()
    for line in COMMANDS:
        reader.shell(f"{line.replace('200k', '2k')} {MORE.get(line.split()[1], '')}")
    for made in ("runs/cartpole/summary.json", "out.mp4", "policy.onnx"):
        assert (tmp_path / made).stat().st_size > 0, made


def test_the_readme_shows_how_to_keep_show_and_continue() -> None:
    shown = [line.split()[1] for line in COMMANDS]
    assert {"train", "ls", "eval", "enjoy", "resume", "export"} <= {*shown}
