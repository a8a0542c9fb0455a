"""Line plots as one SVG file, without a plotting library, which may be absent where results are made."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 360, 260, 52, 12, 34, 42
COLOURS = ("#2563c9", "#c05a0c", "#14804a", "#c4302b")

Line = tuple[str, Sequence[tuple[float, float]]]
"""Label and points of a line."""


def panels(path: Path, plots: Sequence[tuple[str, str, Sequence[Line]]]) -> None:
    """Write plots side by side, each with a title, the label of its x axis (base 2 logarithm) and its lines."""
    drawn = [_panel(i * WIDTH, *plot) for i, plot in enumerate(plots)]
    size = f'width="{WIDTH * len(plots)}" height="{HEIGHT}"'
    style = 'font-family="system-ui,sans-serif" font-size="11"'
    background = '<rect width="100%" height="100%" fill="white"/>'
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>{background}{"".join(drawn)}</svg>\n'
    )


def _panel(at: int, title: str, axis: str, lines: Sequence[Line]) -> str:
    points = [p for _, line in lines for p in line if math.isfinite(p[1])]
    if not points:
        return ""
    lowest, highest = (f(math.log2(x) for x, _ in points) for f in (min, max))
    top = max(y for _, y in points) * 1.05 or 1.0
    bottom = min(0.0, min(y for _, y in points))

    def place(x: float, y: float) -> tuple[float, float]:
        across = (math.log2(x) - lowest) / ((highest - lowest) or 1.0)
        up = (y - bottom) / ((top - bottom) or 1.0)
        return (
            at + LEFT + across * (WIDTH - LEFT - RIGHT),
            HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM),
        )

    parts = [_text(at + WIDTH / 2, 14, title, "middle"), _text(at + WIDTH / 2, HEIGHT - 6, axis, "middle")]
    for x in sorted({x for x, _ in points}):
        parts.append(_text(place(x, bottom)[0], HEIGHT - BOTTOM + 15, f"{x:g}", "middle"))
    for i in range(5):
        value = bottom + i * (top - bottom) / 4
        y = place(2**lowest, value)[1]
        parts.append(f'<path d="M{at + LEFT} {y:.1f}H{at + WIDTH - RIGHT}" stroke="#dde"/>')
        parts.append(_text(at + LEFT - 5, y + 4, f"{value:.3g}", "end"))
    for i, (label, line) in enumerate(lines):
        colour = COLOURS[i % len(COLOURS)]
        path = " ".join("{:.1f},{:.1f}".format(*place(x, y)) for x, y in line if math.isfinite(y))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        apart = min(130, (WIDTH - LEFT - RIGHT) / len(lines))
        parts.append(_text(at + LEFT + 8 + apart * i, 28, label, "start", colour))
    return "".join(parts)


def _text(x: float, y: float, text: str, anchor: str, colour: str = "#333") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>'
