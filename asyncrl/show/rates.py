"""Production, receipt and consumption per second: differences of three counters over the time between two reports.

    I   environment steps that the actors took (RESET rows are not steps)
    R   steps that the learner received: replay ingested them, or a segment with them was taken
    s   samples trained on, repetitions included

    production P = (I' - I) / (t' - t)     receipt = (R' - R) / (t' - t)     consumption C = (s' - s) / (t' - t)

    consumption per production = C / P = (s' - s) / (I' - I)

In balance C / P is `samples_per_insert` and receipt is P. Receipt below production means that steps wait in the rings
or were discarded; C / P below its target means that the learner falls behind or has just received steps. The names are
TianJi's (arXiv 2502.20190), the formulas ours.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rates:
    """Rates over one interval; all 0 before the first.

    Attributes:
        production_per_second: P, environment steps.
        receipt_per_second: steps received.
        consumption_per_second: C, training samples.
        consumption_per_production: C / P in samples per step, 0 where nothing was produced.
    """

    production_per_second: float = 0.0
    receipt_per_second: float = 0.0
    consumption_per_second: float = 0.0
    consumption_per_production: float = 0.0


class RateMeter:
    """Turns the three counters into rates from call to call; one caller."""

    def __init__(self) -> None:
        self._last: tuple[float, int, int, int] | None = None
        self._rates = Rates()

    def observe(self, now_seconds: float, produced: int, received: int, consumed: int) -> Rates:
        """Rates since the last call; zeros at the first. A call at the same instant repeats the last result.

        Args:
            now_seconds: a monotonic clock.
            produced: I, counted from any fixed moment, like the next two.
            received: R.
            consumed: s.

        Raises:
            ValueError: the clock went back.
        """
        if self._last is not None:
            then, i, r, s = self._last
            seconds = now_seconds - then
            if seconds < 0:
                raise ValueError(f"now_seconds must not go back from {then}, got {now_seconds}")
            if seconds == 0:
                return self._rates
            self._rates = Rates(
                production_per_second=(produced - i) / seconds,
                receipt_per_second=(received - r) / seconds,
                consumption_per_second=(consumed - s) / seconds,
                consumption_per_production=(consumed - s) / (produced - i) if produced != i else 0.0,
            )
        self._last = (now_seconds, produced, received, consumed)
        return self._rates
