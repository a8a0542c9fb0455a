"""Result of training, and its display: one line, a notebook card with curve, table and film, an episode on demand."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncrl.algorithms.other_names import unknown_attribute
from asyncrl.policies.portable_policy import BestPolicy, PortablePolicy
from asyncrl.show.metrics import EvaluationResult
from asyncrl.show.notebook import ACCENT, LINE, MUTED, box

if TYPE_CHECKING:
    from asyncrl.policies.film import Film

CARD_FILM_SECONDS = 3.0
"""Time limit of the film in a card."""
WIDTH, HEIGHT, MARGIN = 720, 160, 8
"""Pixels of a card's learning curve."""

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, repr=False)
class TrainResult:
    """Result of training.

    Attributes:
        policy: policy with the run's final weights, or with those that reached `target_return`; it has `save(path)`.
        best: policy of the best evaluation with that evaluation, or None without an evaluation.
        evaluation: evaluation of `policy`, or None if there was none (the run was stopped).
        stop_reason: `"total_steps"`, `"max_seconds"`, `"target_return"`, `"target_training_return"`, `"stopped"`,
            `"interrupted"`, or `"failed"` (in `Trainer.result` of a run that raised).
        summary: the content of `summary.json`.
        run_dir: absolute path of the directory of the run's files, or None.
        evaluations: the evaluations, in the order of training; of more than 10,000 every second one.
        returns: steps, and mean return of the last 100 training episodes, over the run; thinned to a few hundred.
        unsaved: reason why the last checkpoint could not be written, "" if it was or the run has no directory.
    """

    policy: PortablePolicy
    evaluation: EvaluationResult | None
    stop_reason: str
    summary: dict[str, Any]
    run_dir: Path | None
    best: BestPolicy | None = None
    evaluations: tuple[EvaluationResult, ...] = ()
    returns: tuple[tuple[int, float], ...] = ()
    unsaved: str = ""

    def episode(self, episodes: int = 3, max_seconds: float = 20.0) -> Film:
        """Play greedy episodes with `best`, else with `policy`; returns a film of the one with the highest return.

        The environment is made in this process, with `render_mode="rgb_array"`. A notebook shows the film.

        Raises:
            ConfigurationError: the environment cannot render, or imageio-ffmpeg is not installed (`asyncrl[video]`).
        """
        from asyncrl.policies.film import film

        return film(self.policy if self.best is None else self.best.policy, episodes, max_seconds)

    if not TYPE_CHECKING:  # a type checker would take every name

        def __getattr__(self, name: str) -> Any:
            raise unknown_attribute(self, name)

    def __repr__(self) -> str:
        figures = (f"{label} {value}" for label, value in self._figures().items() if label != "files")
        return f"TrainResult(ended by {self.stop_reason}; {'; '.join(figures)})"

    def _repr_html_(self) -> str:
        summary = self.summary
        return result_html(
            f"{summary['algo']} {summary['env']} seed {summary['seed']}: {self.stop_reason}",
            self._figures() | ({} if self._film else self._film_on_demand()),
            [(evaluation.env_steps, evaluation.return_mean) for evaluation in self.evaluations],
            self.returns,
            self._film,
        )

    @cached_property
    def _renders(self) -> bool | None:
        """Whether the environment's class can render; None if it is not known."""
        from asyncrl.envs.rendering import can_render

        try:
            return can_render(self.policy.source, "rgb_array")
        except Exception:  # a card is shown whatever the environment's modules do
            return None

    @cached_property
    def _film(self) -> str:
        """HTML of the best of a few episodes, played once; "" where the environment's class cannot render."""
        try:
            return self.episode(max_seconds=CARD_FILM_SECONDS)._repr_html_() if self._renders else ""
        except Exception:  # a card is shown whatever the environment and the film's package do
            return ""

    def _film_on_demand(self) -> dict[str, str]:
        """Row of the card that names `episode()`, unless the environment cannot render."""
        if self._renders is False:
            return {}
        condition = "" if self._renders else ", if the environment renders"
        return {"film": f"result.episode() plays the best of three{condition}"}

    def _figures(self) -> dict[str, str]:
        summary = self.summary
        best = None if self.best is None else self.best.evaluation
        figures = {
            "final return": _return_of(self.evaluation),
            "best return": _return_of(best),
            "training": f"{summary['train_seconds']:,.1f} s, {summary['env_steps']:,} steps, "
            f"{summary['updates']:,} updates, {summary['episodes']:,} episodes",
            "staleness": f"{summary['staleness']['mean']:,.1f} updates (p95 {summary['staleness']['p95']:,.1f})",
        }
        if summary.get("error"):
            figures["error"] = str(summary["error"])
        return figures if self.run_dir is None else figures | {"files": str(shown_path(self.run_dir))}


def shown_path(path: Path) -> Path:
    """The path from the working directory if it is inside, else as it is."""
    with contextlib.suppress(OSError, ValueError):  # the directory was deleted, or `path` is not inside
        return path.relative_to(Path.cwd())
    return path


def _return_of(evaluation: EvaluationResult | None) -> str:
    if evaluation is None:
        return "not evaluated"
    return (
        f"{evaluation.return_mean:,.1f} +/- {evaluation.return_std:,.1f} over {evaluation.episodes} episodes, "
        f"after {evaluation.env_steps:,} steps"
    )


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
