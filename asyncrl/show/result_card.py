"""Notebook card of a run's result: learning curve and figures as one piece of HTML without external resources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from asyncrl.show.notebook import ACCENT, LINE, MUTED, box

WIDTH, HEIGHT, MARGIN = 720, 160, 8

Points = Sequence[tuple[float, float]]


def result_html(
    title: str, figures: Mapping[str, str], evaluations: Points, returns: Points, film: str = ""
) -> str:
    """HTML of a result's card.

    Args:
        title: heading of the card.
        figures: rows of the table by label.
        evaluations: steps and mean return of every evaluation, in order.
        returns: steps and mean return of training, in order.
        film: HTML of an episode, "" for none.
    """
    rows = "".join(
        f'<tr><td style="color:{MUTED};padding:1px 18px 1px 0;text-align:left">{escape(label)}</td>'
        f'<td style="padding:1px 0;text-align:left">{escape(value)}</td></tr>'
        for label, value in figures.items()
    )
    style = "border-collapse:collapse;margin-top:8px;background:none;font:inherit;color:inherit"
    table = f'<table style="{style}">{rows}</table>'
    return box(
        f'<b style="font-size:15px">{escape(title)}</b>{curve_html(evaluations, returns)}{table}{film}'
    )


def curve_html(evaluations: Points, returns: Points) -> str:
    """SVG of the learning curve over steps: training returns as a thin line, evaluations as dots on a bold line."""
    finite = [p for p in (*evaluations, *returns) if abs(p[1]) < float("inf")]
    if len(finite) < 2:
        return ""
    low, high = min(y for _, y in finite), max(y for _, y in finite)
    last = max(x for x, _ in finite) or 1.0
    span = (high - low) or 1.0

    def place(point: tuple[float, float]) -> tuple[float, float]:
        x = MARGIN + point[0] / last * (WIDTH - 2 * MARGIN)
        return x, HEIGHT - MARGIN - (point[1] - low) / span * (HEIGHT - 2 * MARGIN)

    drawn = [_line([place(p) for p in returns if p in finite], MUTED, 1)]
    bold = [place(p) for p in evaluations if p in finite]
    drawn.append(_line(bold, ACCENT, 2))
    drawn += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{ACCENT}"/>' for x, y in bold]
    return (
        f'<div style="color:{MUTED};margin-top:8px">return, {low:,.4g} to {high:,.4g}, over {last:,.0f} steps: '
        f'<span style="color:{ACCENT}">&#9679; evaluations</span>, <span>&#8212; training</span></div>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" style="width:100%;display:block;border-left:1px solid {LINE};'
        f'border-bottom:1px solid {LINE}">{"".join(drawn)}</svg>'
    )


def _line(points: Points, colour: str, width: int) -> str:
    if len(points) < 2:
        return ""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}"/>'
