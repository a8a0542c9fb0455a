"""Heartbeat of a rank: a thread that exchanges statuses, stops and failures with the other ranks.

Twice a second it writes its status to the job's store and reads those of all ranks. A status that does not change for
`SILENT_SECONDS` means that the rank is suspended or disconnected; a killed rank is noticed at once, by its lifeline.
Torch's calls of the store have no time limit, so a second thread notices one that does not return.
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
OFTEN_SECONDS = 0.05
"""Interval of beats after `beat_often`."""
SILENT_SECONDS = 30.0
"""Longest time without a new status of a rank, well above the time that a thread waits on a busy machine."""
MOST_SECONDS = 4.0
"""Most seconds that count as silence between two beats: all ranks may have been suspended, and go on one by one."""
ANSWER_SECONDS = 5.0
"""Time limit of the wait for a beat, and for the end of the thread."""
STORE_FAILURES = 4
"""Number of failed beats after which rank 0 counts as lost; the store's server may be ending the run normally."""

Status = dict[str, Any]


class Heartbeat:
    """One rank's heartbeat; every method from any thread.

    Args:
        store: the job's store.
        place: place of this rank.
        status: returns this rank's status; called on the thread that beats.
        on_stop: called once with the reason when another rank has stopped the job.
        on_failure: called once with the text when another rank has failed the job.
        on_silence: called once per silence with a rank that is silent for `SILENT_SECONDS`, or with -1 for the store.
        on_beat: called with the statuses of all ranks after every beat.

    Attributes:
        statuses: newest status of every rank that has sent one.
        earlier: last statuses of ranks that were started again since.
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
        self.earlier: list[Status] = []
        self._store, self._place = store, place
        self._status, self._on_stop, self._on_failure = status, on_stop, on_failure
        self._on_silence, self._on_beat = on_silence, on_beat
        self._messages: dict[str, str] = {}
        self._handled: set[str] = set()
        self._silent: set[int] = set()
        self._moved: dict[int, tuple[int, float]] = {}
        self._wake, self._closing = threading.Event(), threading.Event()
        self._changed, self._begun, self._done = threading.Condition(), 0, 0
        self._beats, self._turn = 0, threading.Lock()
        self._seconds = BEAT_SECONDS
        self._last, self._listened = time.monotonic(), 0.0
        self._thread = threading.Thread(target=self._run, name="asyncrl-heartbeat", daemon=True)
        self._watcher = threading.Thread(target=self._watch, name="asyncrl-heartbeat-watch", daemon=True)

    def start(self) -> None:
        """Start the threads."""
        self._thread.start()
        self._watcher.start()

    def beat_often(self) -> None:
        """Beat every `OFTEN_SECONDS` from now on; any thread."""
        if self._seconds != OFTEN_SECONDS:
            self._seconds = OFTEN_SECONDS
            self._wake.set()

    def tell_stop(self, reason: str) -> None:
        """Stop the job on every rank; returns at once. The first reason counts."""
        self._messages.setdefault("stop", reason)
        self._wake.set()

    def tell_failure(self, text: str) -> None:
        """Fail the job on every other rank; returns at once. The first text counts."""
        self._messages.setdefault("failure", text)
        self._wake.set()

    def close(self) -> None:
        """Send pending messages, and end the threads; idempotent."""
        self._closing.set()
        self._wake.set()
        for thread in (self._thread, self._watcher):
            if thread.is_alive() and threading.current_thread() is not thread:
                thread.join(timeout=ANSWER_SECONDS)

    def _run(self) -> None:
        failed = 0
        while True:
            closing = self._closing.is_set()
            with self._changed:
                self._begun += 1
            try:
                self._beat(closing)
                failed = 0
            except Exception:  # the store is gone, and the process that serves it
                failed += 1
                if failed == STORE_FAILURES and not closing:
                    self._on_silence(-1)
            with self._changed:
                self._done = self._begun
                self._changed.notify_all()
            if closing:
                return
            if failed:  # no message can be sent any more
                time.sleep(BEAT_SECONDS)
            self._wake.wait(self._seconds)
            self._wake.clear()

    def _watch(self) -> None:
        """Report the store as silent if a beat does not return; time of a suspension counts little."""
        silent, done, then = 0.0, -1, time.monotonic()
        while not self._closing.wait(BEAT_SECONDS):
            now = time.monotonic()
            silent = silent + min(now - then, MOST_SECONDS) if done == self._done else 0.0
            done, then = self._done, now
            if silent > SILENT_SECONDS:
                self._on_silence(-1)
                return

    def beat(self) -> None:
        """Exchange messages now, for at most `ANSWER_SECONDS` once the threads run; any thread."""
        if not self._thread.is_alive():
            with contextlib.suppress(Exception):  # the store is gone
                self._beat(ended=False)
            return
        with self._changed:
            wanted = self._begun + 1
            self._wake.set()
            self._changed.wait_for(lambda: self._done >= wanted, ANSWER_SECONDS)

    def _beat(self, ended: bool) -> None:
        store, place = self._store, self._place
        with self._turn:
            for name, text in list(self._messages.items()):
                if name not in self._handled:
                    store.compare_set(name, "", text)
                    self._handled.add(name)
            self._beats += 1
            status = {**self._status(), "beat": self._beats, "life": place.life, "ended": ended}
            store.set(f"status/{place.rank}", json.dumps(status))
            self._receive("stop", self._on_stop)
            self._receive("failure", self._on_failure)
            now = self._passed()
            for rank in range(place.size):
                key = f"status/{rank}"
                if rank == place.rank:
                    self.statuses[rank] = status
                elif store.check([key]):
                    self._note(rank, json.loads(store.get(key)))
                    self._listen(rank, now)
            self._on_beat(dict(self.statuses))

    def _receive(self, name: str, handle: Callable[[str], None]) -> None:
        if name not in self._handled and self._store.check([name]):
            text = self._store.get(name).decode()
            self._handled.add(name)
            handle(text)

    def _note(self, rank: int, status: Status) -> None:
        before = self.statuses.get(rank, status)
        if int(status["life"]) > int(before["life"]):
            self.earlier.append(before)
        self.statuses[rank] = status

    def _passed(self) -> float:
        """Seconds in which this rank has listened; time in which it or the store was suspended counts little."""
        now = time.monotonic()
        self._listened += min(now - self._last, MOST_SECONDS)
        self._last = now
        return self._listened

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
