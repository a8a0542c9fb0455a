"""Snapshots for HTTP clients: taken at most five times a second, encoded once, kept as a thinned history."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import msgspec

from asyncrl.interfaces import Metrics
from asyncrl.show.metrics import BY_KEY, UNMEASURED, EvaluationResult, Snapshot, flat

LOGGER = logging.getLogger("asyncrl.server")

FRESH_SECONDS = 0.2
TICK_SECONDS = 1.0
"""Interval at which streams get a snapshot and the history grows."""
HISTORY_POINTS = 600

CHARTED = {key: metric.name for key, metric in BY_KEY.items() if metric.charted}
"""Public name of each column of the history."""


@dataclass(frozen=True)
class Reading:
    """One snapshot with its encodings, each computed at most once."""

    snapshot: Snapshot

    @cached_property
    def json(self) -> bytes:
        """Strict JSON on one line: the fields, then the metrics by public name; NaN and infinity are null.

        It has only the last and the best evaluation; `/history` and `/events` have all.
        """
        snapshot, last = self.snapshot, self.snapshot.evaluation
        return msgspec.json.encode(snapshot.fields() | flat(snapshot) | (flat(last) if last else {}))

    @cached_property
    def prometheus(self) -> bytes:
        """Prometheus text format 0.0.4."""
        # Imported at the first request: a run that is not scraped does not load the client.
        from asyncrl.server.prometheus import prometheus_text

        return prometheus_text(self.snapshot)


class SnapshotFeed:
    """Source of snapshots for all clients of the server; event-loop thread only.

    Args:
        take: returns the newest snapshot; called at most five times a second.
    """

    def __init__(self, take: Callable[[], Snapshot]) -> None:
        self._take = take
        self._tick_seconds = TICK_SECONDS
        self._reading: Reading | None = None
        self._taken_at = float("-inf")
        self._tick: asyncio.Future[None] | None = None
        self._history: list[Metrics] = []
        self._evaluations: tuple[EvaluationResult, ...] = ()
        self._stride = 1
        self._ticks = 0
        self._failing = False
        self.closed = False

    def current(self) -> Reading:
        """Return a snapshot at most `FRESH_SECONDS` old. Raises what `take` raises."""
        now = asyncio.get_running_loop().time()
        if self._reading is None or now - self._taken_at >= FRESH_SECONDS:
            snapshot = self._take()
            if self._reading is None or self._reading.snapshot is not snapshot:
                self._reading = Reading(snapshot)
            self._taken_at = now
        return self._reading

    async def run(self) -> None:
        """Extend the history and wake the streams at every tick until cancelled; a failing `take` is logged once."""
        while True:
            try:
                self._remember(self.current().snapshot)
                self._failing = False
            except Exception:
                if not self._failing:
                    LOGGER.exception("no snapshot for the page")
                self._failing = True
            self._wake()
            await asyncio.sleep(self._tick_seconds)

    async def next_tick(self) -> None:
        """Wait for the next tick, or for `close`."""
        if not self.closed:
            if self._tick is None:
                self._tick = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._tick)

    def close(self) -> None:
        """Wake every stream for the last time; the next call of `current` takes a new snapshot."""
        self.closed = True
        self._taken_at = float("-inf")
        self._wake()

    def let_go(self) -> None:
        """Drop the reference to the run; the last snapshot remains available."""
        if self._reading is not None:
            last = self._reading.snapshot
            self._take = lambda: last

    def history(self) -> bytes:
        """JSON object of columns of equal lengths, oldest first, and `evaluations`, all of them.

        The columns are `CHARTED` and, under `train`, one for each further number of the algorithm's updates.
        """
        columns = {key: [moment[name] for moment in self._history] for key, name in CHARTED.items()}
        further = dict.fromkeys(name for moment in self._history for name in moment if name not in UNMEASURED)
        train = {name: [moment.get(name) for moment in self._history] for name in further}
        return msgspec.json.encode({**columns, "train": train, "evaluations": self._evaluations})

    def _remember(self, snapshot: Snapshot) -> None:
        self._evaluations = snapshot.evaluations
        if self._ticks % self._stride == 0:
            self._history.append(snapshot.metrics)
        self._ticks += 1
        if len(self._history) > HISTORY_POINTS:
            # Halve the resolution instead of dropping the oldest moments.
            del self._history[1::2]
            self._stride *= 2

    def _wake(self) -> None:
        if self._tick is not None and not self._tick.done():
            self._tick.set_result(None)
        self._tick = None
