"""Rates of a run: differences of its counters over the time between two reports.

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

from dataclasses import dataclass


@dataclass(frozen=True)
class Counters:
    """Totals since any fixed moment: I, R, s, gradient steps, and seconds in which the learner waited.

    `agents`: samples that one step inserts, the number of agents of an environment.

    `inference`: forward passes of the inference server, their rows, and seconds in which the mean actor waited for it;
    None without a server.
    """

    produced: int = 0
    received: int = 0
    consumed: int = 0
    updates: int = 0
    learner_wait_seconds: float = 0.0
    inference: tuple[int, int, float] | None = None
    agents: int = 1


@dataclass(frozen=True)
class Rates:
    """Rates over one interval; all 0 before the first interval, none below 0. `Snapshot` has the same fields.

    Attributes:
        env_steps_per_second: production P, environment steps.
        received_steps_per_second: steps received.
        consumed_samples_per_second: consumption C, training samples.
        consumption_per_production: C / P in samples per step (and agent), 0 if nothing was produced.
        updates_per_second: gradient steps.
        learner_wait_fraction: fraction of the interval in which the learner waited.
        inference_batch_size: mean rows of a pass of the inference server, 0 without passes, None without a server.
        inference_wait_fraction: fraction of the interval in which the mean actor waited for that server.
    """

    env_steps_per_second: float = 0.0
    received_steps_per_second: float = 0.0
    consumed_samples_per_second: float = 0.0
    consumption_per_production: float = 0.0
    updates_per_second: float = 0.0
    learner_wait_fraction: float = 0.0
    inference_batch_size: float | None = None
    inference_wait_fraction: float | None = None


class RateMeter:
    """Converter of counters into rates between two calls; for one caller."""

    def __init__(self) -> None:
        self._last: tuple[float, Counters] | None = None
        self._rates = Rates()

    def observe(self, now_seconds: float, now: Counters) -> Rates:
        """Rates since the last call; zeros at the first. A call at the same time repeats the last result.

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
            produced, consumed = max(0, now.produced - then.produced), max(0, now.consumed - then.consumed)
            waited = max(0.0, now.learner_wait_seconds - then.learner_wait_seconds)
            batch_size = inference_wait = None
            if now.inference is not None:
                before = then.inference or (0, 0, 0.0)
                passes, rows, served = (b - a for a, b in zip(before, now.inference, strict=True))
                batch_size = rows / passes if passes > 0 else 0.0
                inference_wait = min(1.0, max(0.0, served) / seconds)
            self._rates = Rates(
                env_steps_per_second=produced / seconds,
                received_steps_per_second=max(0, now.received - then.received) / seconds,
                consumed_samples_per_second=consumed / seconds,
                consumption_per_production=consumed / (produced * now.agents) if produced else 0.0,
                updates_per_second=max(0, now.updates - then.updates) / seconds,
                learner_wait_fraction=min(1.0, waited / seconds),
                inference_batch_size=batch_size,
                inference_wait_fraction=inference_wait,
            )
        self._last = (now_seconds, now)
        return self._rates
