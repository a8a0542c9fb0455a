"""The snippets of docs/callbacks.md and docs/notebooks.md run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from asyncrl import PPO, TrainResult

DOCS = Path(__file__).parents[1] / "docs"
pytestmark = pytest.mark.usefixtures("short_evaluations")


def blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(), flags=re.M | re.S)


def run(block: str) -> dict[str, Any]:
    space: dict[str, Any] = {}
    exec(compile(block, "docs", "exec"), space)
    return space


def test_a_callback_of_the_page_ends_its_run() -> None:
    block, *_, schedules = blocks("callbacks.md")
    found = run(block.replace("20_000", "2_000"))["result"]
    assert isinstance(found, TrainResult) and found.stop_reason in ("total_steps", "stopped")
    ppo = run(schedules)["ppo"]
    assert isinstance(ppo, PPO) and ppo._clip_ranges(1.0)[0] == 0.1


def test_the_numbers_of_the_page_are_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    space = run(blocks("callbacks.md")[1].replace("5_000", "1_200").replace("2_000", "500"))
    text = (tmp_path / "runs" / "probed" / "metrics.jsonl").read_text()
    assert space["result"].stop_reason == "total_steps"
    assert '"probe/longest_episode":' in text and '"probe/score":' in text.splitlines()[-1]


@pytest.mark.parametrize("number", [2, 3])
def test_the_curricula_of_the_page_change_the_environments(number: int) -> None:
    block = blocks("callbacks.md")[number].replace("20_000", "1_200").replace("2_000", "400")
    space = run(block.replace("0.9", "-1.0"))
    assert space["result"].stop_reason == "total_steps"
    assert space["trainer"].env_kwargs == {"is_slippery": True}


def test_the_network_of_the_page_is_taken() -> None:
    (block,) = (b for b in blocks("extending.md") if "nn.Sequential" in b)
    ppo = run(block)["ppo"]
    assert ppo.network(4, 2)[0].in_features == 4


def test_the_other_snippets_are_python() -> None:
    for page in ("notebooks.md", "extending.md"):
        for block in blocks(page):
            compile("async def cell():\n" + re.sub(r"^", "    ", block, flags=re.M), page, "exec")
