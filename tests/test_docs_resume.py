"""All snippets of docs/resume.md run, in order and in one folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from page_reader import PageReader, snippets

QUICK = 'num_actors=1, envs_per_actor=2, target_eval_episodes=2, eval_episodes=2, http="off"'


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_page_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    reader, blocks = PageReader(), snippets("docs/resume.md")
    for language, block in blocks:
        if language == "python":
            reader.python(block.replace("num_actors=1", QUICK))
            continue
        older = [path for path in tmp_path.glob("runs/cartpole/checkpoints/*") if path.name.isdecimal()]
        shorter = block.replace("+50k", "+1k")
        reader.shell(shorter.replace("--checkpoint 1500", f"--steps +100 --checkpoint {older[0].name}"))
    assert len(blocks) >= 6
