"""Curves as ASCII plots for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from asyncrl.show.curves import Curve

MARKS = "*o+x#@%&"
BAND = "."


def text_plot(curves: Sequence[Curve], title: str, x_label: str, *, width: int = 78, height: int = 20) -> str:
    """Plot curves in plain ASCII: a mark per curve, dots for its band.

    Args:
        curves: at least one.
        title: text above the plot.
        x_label: text below it.
        width: total width in characters.
        height: total height in lines.
    """
    low, high = _range(curves)
    left, right = min(curve.x[0] for curve in curves), max(curve.x[-1] for curve in curves)
    labels = [_number(value) for value in np.linspace(high, low, 5)]
    margin = max(map(len, labels)) + 2
    columns, rows = max(20, width - margin - 1), max(5, height - 3 - len(curves))
    grid = [[" "] * columns for _ in range(rows)]
    at = np.linspace(left, right, columns)
    for mark, curve in reversed(list(zip(MARKS * len(curves), curves, strict=False))):
        _draw(grid, curve, mark, at, low, high)
    ticks = {round(i * (rows - 1) / 4): label for i, label in enumerate(labels)}
    lines = [title]
    lines += [f"{ticks.get(i, ''):>{margin - 1}} |{''.join(row)}".rstrip() for i, row in enumerate(grid)]
    lines.append(" " * margin + "+" + "-" * columns)
    ends = f"{_number(left)}{_number(right):>{columns - len(_number(left))}}"
    middle = x_label.center(columns)
    lines.append(" " * (margin + 1) + _overlaid(ends, middle))
    lines += [f"  {mark} {curve.label}" for mark, curve in zip(MARKS * len(curves), curves, strict=False)]
    return "\n".join(lines)


def _range(curves: Sequence[Curve]) -> tuple[float, float]:
    low = min(float(curve.low.min()) for curve in curves)
    high = max(float(curve.high.max()) for curve in curves)
    return (low, high) if high > low else (low - 1, high + 1)


def _draw(grid: list[list[str]], curve: Curve, mark: str, at: np.ndarray, low: float, high: float) -> None:
    rows = len(grid)

    def row_of(value: float) -> int:
        return round((high - value) / (high - low) * (rows - 1))

    for column, x in enumerate(at):
        if not curve.x[0] <= x <= curve.x[-1]:
            continue
        mean, below, above = (float(np.interp(x, curve.x, y)) for y in (curve.line, curve.low, curve.high))
        for row in range(row_of(above), row_of(below) + 1):
            if grid[row][column] == " ":
                grid[row][column] = BAND
        grid[row_of(mean)][column] = mark
    if len(curve.x) == 1:
        grid[row_of(float(curve.line[0]))][0] = mark


def _number(value: float) -> str:
    if abs(value) >= 1_000_000:
        return f"{value / 1_000_000:.3g}M"
    if abs(value) >= 10_000:
        return f"{value / 1000:.3g}k"
    return f"{value:.4g}"


def _overlaid(ends: str, middle: str) -> str:
    return "".join(
        b if a == " " else a for a, b in zip(ends.ljust(len(middle)), middle, strict=False)
    ).rstrip()
