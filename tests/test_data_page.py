"""docs/data.md runs from top to bottom, with fewer steps."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from page_reader import PageReader, snippets

pytest.importorskip("minari")

SHORT = (
    (r"--steps \S+", "--steps 1_500"),
    (r"total_steps=[\d_]+", "total_steps=1_500"),
    (r"\bsteps=[\d_]+", "steps=500"),
)


def shortened(text: str) -> str:
    for pattern, fewer in SHORT:
        text = re.sub(pattern, fewer, text)
    return text


@pytest.mark.slow
def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(
        "MINARI_DATASETS_PATH", str(tmp_path / "nowhere")
    )  # put back after the page has set it
    reader = PageReader()
    for language, block in snippets("docs/data.md"):
        if language == "python":
            reader.python(shortened(block))
            continue
        for line in block.splitlines():
            if line.startswith("asyncrl train"):
                reader.shell(f"{shortened(line)} --http off --target-eval-episodes 1")
            elif line.startswith("asyncrl "):
                reader.shell(shortened(line))
