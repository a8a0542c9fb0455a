"""Display of a result: one line, a notebook card with curve, table and film, and an episode on demand."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncrl.policies.portable_policy import BestPolicy, PortablePolicy
from asyncrl.show.metrics import EvaluationResult
from asyncrl.show.result_card import result_html

if TYPE_CHECKING:
    from asyncrl.policies.film import Film


CARD_FILM_SECONDS = 3.0
"""Time limit of the film in a card."""


class ShownResult:
    """Display methods of a result; `TrainResult` describes the attributes."""

    policy: PortablePolicy
    best: BestPolicy | None
    evaluation: EvaluationResult | None
    evaluations: Sequence[EvaluationResult]
    returns: Sequence[tuple[int, float]]
    stop_reason: str
    summary: dict[str, Any]
    run_dir: Path | None

    def episode(self, episodes: int = 3, max_seconds: float = 20.0) -> Film:
        """Play greedy episodes with `best`, else with `policy`; returns a film of the one with the highest return.

        The environment is made in this process, with `render_mode="rgb_array"`. A notebook shows the film.

        Raises:
            ConfigurationError: the environment cannot render, or imageio-ffmpeg is not installed (`asyncrl[video]`).
        """
        from asyncrl.policies.film import film

        return film(self.policy if self.best is None else self.best.policy, episodes, max_seconds)

    def __repr__(self) -> str:
        figures = (f"{label} {value}" for label, value in self._figures().items() if label != "files")
        return f"TrainResult({self.stop_reason!r}: {'; '.join(figures)})"

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
    def _film(self) -> str:
        """HTML of the best of a few episodes, played once; "" where the environment's class cannot render."""
        from asyncrl.envs.rendering import can_render

        try:
            if not can_render(self.policy.source, "rgb_array"):
                return ""
            return self.episode(max_seconds=CARD_FILM_SECONDS)._repr_html_()
        except Exception:  # a card is shown whatever the environment and the film's package do
            return ""

    def _film_on_demand(self) -> dict[str, str]:
        """Row of the card that names `episode()`, unless the environment cannot render."""
        from asyncrl.envs.rendering import can_render

        try:
            renders = can_render(self.policy.source, "rgb_array")
        except Exception:  # a card is shown whatever the environment's modules do
            renders = None
        if renders is False:
            return {}
        condition = "" if renders else ", if the environment renders"
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
        return figures if self.run_dir is None else figures | {"files": str(self.run_dir)}


def _return_of(evaluation: EvaluationResult | None) -> str:
    if evaluation is None:
        return "not evaluated"
    return (
        f"{evaluation.return_mean:,.1f} +/- {evaluation.return_std:,.1f} over {evaluation.episodes} episodes, "
        f"after {evaluation.env_steps:,} steps"
    )
