"""Rates of a run: growth of its counters over the time between two reports.

    I   environment steps that the actors took (RESET rows are not steps)
    R   steps that the learner received: ingested by replay, or in a segment that was taken
    s   samples trained on, repetitions included

    production P = (I' - I) / (t' - t)     receipt = (R' - R) / (t' - t)     consumption C = (s' - s) / (t' - t)

    consumption per production = C / P = (s' - s) / (I' - I)

In balance C / P is `samples_per_insert` and receipt is P. Receipt below production: steps wait in the rings or were
discarded. C / P below its target: the learner falls behind or has just received steps. The names are TianJi's (arXiv
2502.20190), the formulas ours.
"""

from __future__ import annotations

from asyncrl.interfaces import Metrics
from asyncrl.show.metrics import RUN_METRICS, Metric

RATES = tuple(metric for metric in RUN_METRICS if metric.of)


class RateMeter:
    """Converter of numbers that grow into their rates between two calls, by the table of metrics; for one caller."""

    def __init__(self) -> None:
        self._last: tuple[float, Metrics] | None = None
        self._rates: Metrics = {metric.name: None if metric.optional else 0.0 for metric in RATES}

    def observe(self, now_seconds: float, now: Metrics) -> Metrics:
        """Rates since the last call by public name, none below 0, a number that `now` lacks counting as 0.

        The first call returns zeros, a call at the same time the last result. A rate is None while an optional number
        of it is unknown.

        Raises:
            ValueError: `now_seconds`, of a monotonic clock, is less than at the last call.
        """
        if self._last is not None:
            then_seconds, then = self._last
            seconds = now_seconds - then_seconds
            if seconds < 0:
                raise ValueError(f"now_seconds must not go back from {then_seconds}, got {now_seconds}")
            if seconds == 0:
                return self._rates
            self._rates = {metric.name: _rate(metric, then, now, seconds) for metric in RATES}
        self._last = now_seconds, now
        return self._rates


def _rate(metric: Metric, then: Metrics, now: Metrics, seconds: float) -> float | None:
    if metric.optional and now.get(metric.of) is None:
        return None
    passed = _growth(metric.per, then, now) if metric.per else seconds
    rate = _growth(metric.of, then, now) / passed if passed else 0.0
    return rate if metric.unit else min(1.0, rate)


def _growth(name: str, then: Metrics, now: Metrics) -> float:
    return max(0, (now.get(name) or 0) - (then.get(name) or 0))
