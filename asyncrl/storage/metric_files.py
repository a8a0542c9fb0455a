"""Metric files of a resumed run: entries after its checkpoint are removed.

A killed run has reported steps after its last checkpoint, which the resumed run makes and reports again. So
`metrics.jsonl` and `progress.csv` keep only the entries up to the checkpoint; the removed lines of `metrics.jsonl` are
appended to `metrics_lost.jsonl`. TensorBoard gets another event file.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from asyncrl.storage.atomic_file import write_atomically

JSONL, CSV, LOST = "metrics.jsonl", "progress.csv", "metrics_lost.jsonl"
STEPS = ("time/total_timesteps", "eval/total_timesteps")
"""Names of the environment steps in a report and in an evaluation."""


def cut_metrics(directory: Path, env_steps: int, again: Collection[int]) -> None:
    """Keep the entries up to `env_steps`. Raises OSError.

    Also removes evaluations at the steps `again`, which will be repeated, and lines that a kill has truncated.
    """
    kept, lost = _split(_lines(directory / JSONL), _of_json, env_steps, again)
    if lost:
        with (directory / LOST).open("a", encoding="utf-8") as file:
            file.writelines(lost)
        _replace(directory / JSONL, kept)
    lines = _lines(directory / CSV)
    header = next(csv.reader(lines[:1]), [])
    kept, lost = _split(lines[1:], lambda line: _of_csv(header, line), env_steps, again)
    if lost:
        _replace(directory / CSV, lines[:1] + kept)


def _split(
    lines: list[str], parse: Callable[[str], dict[str, Any] | None], env_steps: int, again: Collection[int]
) -> tuple[list[str], list[str]]:
    """Split lines into those up to the checkpoint and the others."""
    kept: list[str] = []
    lost: list[str] = []
    for line in lines:
        entry = parse(line)
        report, evaluated = (entry.get(name) for name in STEPS) if entry is not None else (math.inf, None)
        belongs = (report or 0) <= env_steps and (evaluated or 0) <= env_steps and evaluated not in again
        (kept if belongs else lost).append(line if line.endswith("\n") else line + "\n")
    return kept, lost


def _of_json(line: str) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) else None


def _of_csv(header: list[str], line: str) -> dict[str, Any] | None:
    cells = next(csv.reader(io.StringIO(line)), [])
    if len(cells) != len(header) or not line.endswith("\n"):
        return None
    try:
        return {name: float(cell) for name, cell in zip(header, cells, strict=True) if cell}
    except ValueError:
        return None


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    except FileNotFoundError:
        return []


def _replace(file: Path, lines: list[str]) -> None:
    write_atomically(file, (line.encode() for line in lines), durable=False)
