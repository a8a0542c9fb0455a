"""Curves as ASCII plots for a terminal."""

from __future__ import annotations

import string
from collections.abc import Sequence

import numpy as np

from asyncrl.show.curves import Curve

MARKS = "*o+x#@%&" + "".join(c for c in string.ascii_letters + string.digits if c not in "ox")
"""Marks of the curves, in their order; beyond them they begin again."""
BAND = "."
LEAST_DIGITS, MOST_DIGITS = 4, 17
"""Significant digits of an axis's labels; with a unit (k, M) one less."""


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
    labels = _labels(low, high)
    columns, rows = max(20, width - _margin(labels) - 1), max(5, height - 3 - len(curves))
    grid = [[" "] * columns for _ in range(rows)]
    at = np.linspace(left, right, columns)
    for mark, curve in reversed(list(zip(MARKS * len(curves), curves, strict=False))):
        _draw(grid, curve, mark, at, low, high)
    margin = _margin(labels)
    lines = [title, *_rows(grid, labels), " " * margin + "+" + "-" * columns]
    ends = f"{_number(left)}{_number(right):>{columns - len(_number(left))}}"
    lines.append(" " * (margin + 1) + _overlaid(ends, x_label.center(columns)))
    lines += [f"  {mark} {curve.label}" for mark, curve in zip(MARKS * len(curves), curves, strict=False)]
    return "\n".join(lines)


def return_plot(
    training: Sequence[tuple[float, float]],
    evaluations: Sequence[tuple[float, float]],
    *,
    width: int,
    height: int,
) -> list[str]:
    """Plot returns over environment steps in lines of plain ASCII, the marks' meanings in the first line.

    Args:
        training: steps, rising, and mean return of training episodes, drawn as a curve.
        evaluations: steps and mean return of evaluations, drawn as marks.
        width: total width in characters.
        height: number of lines.

    Returns:
        `height` lines, or none if there are fewer than two points of training.
    """
    finite = [point for point in training if np.isfinite(point[1])]
    marked = [point for point in evaluations if np.isfinite(point[1])]
    if len(finite) < 2 or finite[-1][0] <= finite[0][0]:
        return []
    values = [value for _, value in (*finite, *marked)]
    low, high = min(values), max(values)
    if high == low:
        low, high = low - 1, high + 1
    left, right = finite[0][0], max(step for step, _ in (*finite, *marked))
    labels = _labels(low, high)
    columns, rows = max(20, width - _margin(labels) - 1), max(3, height - 2)
    grid = [[" "] * columns for _ in range(rows)]
    steps, means = np.array(finite).T
    _draw_line(grid, np.interp(np.linspace(left, right, columns), steps, means, right=np.nan), low, high)
    for step, value in marked:
        if step >= left:
            column = round((step - left) / (right - left) * (columns - 1))
            grid[round((high - value) / (high - low) * (rows - 1))][column] = MARKS[1]
    title = f"return   {MARKS[0]} training, 100 episodes   {MARKS[1]} evaluation"
    first, last = _number(left), _number(right)
    axis = f"{first} {' environment steps '.center(columns - len(first) - len(last) - 2, '-')} {last}"
    return [title, *_rows(grid, labels), " " * _margin(labels) + "+" + axis]


def _draw_line(grid: list[list[str]], values: np.ndarray, low: float, high: float) -> None:
    """Draw a value per column; where it jumps, the rows between are filled."""
    rows = len(grid)
    before = None
    for column, value in enumerate(values):
        if not np.isfinite(value):
            continue
        row = round((high - value) / (high - low) * (rows - 1))
        start = row if before is None else before + (row > before) - (row < before)
        for filled in range(min(start, row), max(start, row) + 1):
            grid[filled][column] = MARKS[0]
        before = row


def _labels(low: float, high: float) -> list[str]:
    """Five numbers from the top down, with as many digits as tell them apart."""
    values = np.linspace(high, low, 5)
    values[np.abs(values) < 1e-9 * (high - low)] = 0.0  # what rounding leaves of a zero
    texts = ([_number(value, digits) for value in values] for digits in range(LEAST_DIGITS, MOST_DIGITS))
    return next((own for own in texts if len(set(own)) == len(own)), [_number(value) for value in values])


def _margin(labels: Sequence[str]) -> int:
    return max(map(len, labels)) + 2


def _rows(grid: list[list[str]], labels: Sequence[str]) -> list[str]:
    """The grid behind its axis, with `labels` from the top down; of few rows only the outer ones and the middle."""
    rows = len(grid)
    shown = labels if rows >= 5 else (labels[0], labels[2], labels[4])
    ticks = {round(i * (rows - 1) / (len(shown) - 1)): label for i, label in enumerate(shown)}
    return [
        f"{ticks.get(i, ''):>{_margin(labels) - 1}} |{''.join(row)}".rstrip() for i, row in enumerate(grid)
    ]


def _range(curves: Sequence[Curve]) -> tuple[float, float]:
    low = min(float(curve.low.min()) for curve in curves)
    high = max(float(curve.high.max()) for curve in curves)
    return (low, high) if high > low else (low - 1, high + 1)


def _draw(grid: list[list[str]], curve: Curve, mark: str, at: np.ndarray, low: float, high: float) -> None:
    rows = len(grid)

    def row_of(value: float) -> int:
        return round((high - value) / (high - low) * (rows - 1))

    # From the column nearest to the first point to that nearest to the last: one at least, however short the curve is.
    first, last = (int(np.abs(at - x).argmin()) for x in (curve.x[0], curve.x[-1]))
    for column in range(first, last + 1):
        x = at[column]
        mean, below, above = (float(np.interp(x, curve.x, y)) for y in (curve.line, curve.low, curve.high))
        for row in range(row_of(above), row_of(below) + 1):
            if grid[row][column] == " ":
                grid[row][column] = BAND
        grid[row_of(mean)][column] = mark


def _number(value: float, digits: int = LEAST_DIGITS) -> str:
    text = f"{value:.{digits}g}"
    size = abs(float(f"{value:.{digits - 1}g}"))  # as it is shown with a unit: 999,999 is 1M
    if 1_000_000_000 > size >= 1_000_000:
        return f"{value / 1_000_000:.{digits - 1}g}M"
    return f"{value / 1000:.{digits - 1}g}k" if size < 1_000_000 and abs(float(text)) >= 10_000 else text


def _overlaid(ends: str, middle: str) -> str:
    return "".join(
        b if a == " " else a for a, b in zip(ends.ljust(len(middle)), middle, strict=False)
    ).rstrip()
