"""The heartbeat of a rank: a thread that tells the others how it is, and hears of stops and losses.

Twice a second it writes its status into the job's store and reads those of all ranks. A status that stays the same for
`SILENT_SECONDS` means a rank that is suspended or cut off; one that was killed is noticed at once, by its lifeline.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable
from typing import Any

from asyncrl.groups.place import Place

BEAT_SECONDS = 0.5
SILENT_SECONDS = 30.0
"""Longest time that a rank may say nothing: well above what a busy machine keeps a thread waiting."""
STORE_FAILURES = 4
"""Beats in a row without a store before rank 0 counts as lost: who serves it may be ending the run in good order."""

Status = dict[str, Any]


class Heartbeat:
    """One rank's heartbeat; every method from any thread.

    Args:
        store: of the job.
        place: of this rank.
        status: makes this rank's status; called on the heartbeat's thread.
        on_stop: told the reason when another rank has stopped the job; once.
        on_failure: told the text when another rank has failed it; once.
        on_silence: told a rank that has said nothing for `SILENT_SECONDS`, and -1 where the store is gone; once each.
        on_beat: called with the statuses of all ranks, after every beat.

    Attributes:
        statuses: the newest of every rank that has told one.
    """

    def __init__(
        self,
        store: Any,
        place: Place,
        *,
        status: Callable[[], Status],
        on_stop: Callable[[str], None],
        on_failure: Callable[[str], None],
        on_silence: Callable[[int], None],
        on_beat: Callable[[dict[int, Status]], None] = lambda _: None,
    ) -> None:
        self.statuses: dict[int, Status] = {}
        self._store, self._place = store, place
        self._status, self._on_stop, self._on_failure = status, on_stop, on_failure
        self._on_silence, self._on_beat = on_silence, on_beat
        self._told: dict[str, str] = {}
        self._heard: set[str] = set()
        self._silent: set[int] = set()
        self._moved: dict[int, tuple[int, float]] = {}
        self._wake, self._closing = threading.Event(), False
        self._beats, self._turn = 0, threading.Lock()
        self._thread = threading.Thread(target=self._run, name="asyncrl-heartbeat", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def tell_stop(self, reason: str) -> None:
        """Stop the job on every rank; returns at once. The first reason counts."""
        self._told.setdefault("stop", reason)
        self._wake.set()

    def tell_failure(self, text: str) -> None:
        """Fail the job on every other rank; returns at once. The first text counts."""
        self._told.setdefault("failure", text)
        self._wake.set()

    def close(self) -> None:
        """Tell what is still to be told, and end the thread; idempotent."""
        self._closing = True
        self._wake.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout=5.0)

    def _run(self) -> None:
        failed = 0
        while True:
            closing = self._closing
            try:
                self._beat(closing)
            except Exception:  # of the store: it has gone, and whoever serves it
                failed += 1
                if failed == STORE_FAILURES and not closing:
                    self._on_silence(-1)
            if closing:
                return
            if failed:  # nothing to be told any more
                time.sleep(BEAT_SECONDS)
            self._wake.wait(BEAT_SECONDS)
            self._wake.clear()

    def beat(self) -> None:
        """Tell and hear now; any thread."""
        with contextlib.suppress(Exception):  # the store has gone; the thread notices
            self._beat(ended=False)

    def _beat(self, ended: bool) -> None:
        with self._turn:
            self._tell_and_hear(ended)

    def _tell_and_hear(self, ended: bool) -> None:
        store, place = self._store, self._place
        for name, text in list(self._told.items()):
            if name not in self._heard:
                store.compare_set(name, "", text)
                self._heard.add(name)
        self._beats += 1
        status = {**self._status(), "beat": self._beats, "life": place.life, "ended": ended}
        store.set(f"status/{place.rank}", json.dumps(status))
        self._hear("stop", self._on_stop)
        self._hear("failure", self._on_failure)
        now = time.monotonic()
        for rank in range(place.size):
            key = f"status/{rank}"
            if rank == place.rank:
                self.statuses[rank] = status
            elif store.check([key]):
                with contextlib.suppress(ValueError):
                    self.statuses[rank] = json.loads(store.get(key))
                self._listen(rank, now)
        self._on_beat(dict(self.statuses))

    def _hear(self, name: str, tell: Callable[[str], None]) -> None:
        if name not in self._heard and self._store.check([name]):
            self._heard.add(name)
            tell(self._store.get(name).decode())

    def _listen(self, rank: int, now: float) -> None:
        beat = int(self.statuses[rank]["beat"]) + (int(self.statuses[rank]["life"]) << 32)
        before = self._moved.get(rank)
        if before is None or before[0] != beat:
            self._moved[rank] = beat, now
            self._silent.discard(rank)
        ended = bool(self.statuses[rank].get("ended"))
        if not ended and now - self._moved[rank][1] > SILENT_SECONDS and rank not in self._silent:
            self._silent.add(rank)
            self._on_silence(rank)
