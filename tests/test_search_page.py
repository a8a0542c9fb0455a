"""The code of docs/search.md runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from asyncrl.algorithms import ALGORITHMS
from asyncrl.algorithms.search_spaces import load_space, read_space
from asyncrl.run.result import TrainResult

TEXT = (Path(__file__).parents[1] / "docs" / "search.md").read_text(encoding="utf-8")
SHORT = {
    "50_000": "600, at_once=1",
    "20_000": "400",
    "trials=30": "trials=2, held_out_seeds=1, at_once=1",
}
"""Shorter runs, one after the other: each worker process takes seconds to import torch."""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, flags=re.M | re.S)


@pytest.mark.slow
def test_the_pages_code_trains_and_searches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    monkeypatch.chdir(tmp_path)
    seeds, search = blocks("python")
    for long, short in SHORT.items():
        assert long in seeds + search
        seeds, search = seeds.replace(long, short), search.replace(long, short)
    found: dict[str, Any] = {}
    exec(seeds, found)
    assert list(found["found"].results) == [0, 1, 2] and found["action"] in (0, 1)
    exec(search, found)
    assert len(found["found"].trials) == 2 and isinstance(found["result"], TrainResult)
    assert (tmp_path / "search" / "best.toml").exists()


def test_the_pages_space_is_read(tmp_path: Path) -> None:
    (space,) = blocks("toml")
    (tmp_path / "space.toml").write_text(space)
    options = set(read_space(tmp_path / "space.toml", ALGORITHMS["dqn"]).options)
    assert options == set(load_space("dqn", ALGORITHMS["dqn"]).options) - {"tau", "dueling"}
