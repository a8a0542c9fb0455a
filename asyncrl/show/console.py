"""Terminal view: a screen redrawn once a second, or a line every ten seconds if the stream is no terminal.

A separate thread draws, so that a paused terminal or a stalled reader of a pipe delays only the view. A closed stream
ends only the view.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import threading
import time
from collections.abc import Callable
from typing import TextIO

from rich.console import Console
from rich.live import Live

from asyncrl.show.metrics import Snapshot
from asyncrl.show.numbers import plain
from asyncrl.show.progress import UNLIMITED, progress_text
from asyncrl.show.readout import readout
from asyncrl.show.screen import screen

SCREEN_SECONDS = 1.0
LINE_SECONDS = 10.0
TOKEN_IS_READABLE = (
    "note others can read this file, and its page's token lets them stop the run: chmod 600 it"
)


class RunConsole:
    """View of a run on a text stream.

    `show` may be called from any thread, never blocks and keeps only the newest snapshot. The stream is written at
    most once a second (terminal) or once in ten seconds (anything else, `TERM=dumb` included). `NO_COLOR` is obeyed.

    Args:
        stream: output stream; None is standard output.
        live: whether to redraw a screen; None: if the stream is a terminal.
        clock: monotonic seconds.

    Attributes:
        url: address of the run's page with its token, shown in the first line; None at first.
        live: whether a screen is redrawn.
        broken: whether the stream can no longer be written.
    """

    def __init__(
        self,
        *,
        stream: TextIO | None = None,
        live: bool | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.url: str | None = None
        self._stream = sys.stdout if stream is None else stream
        self._clock = clock
        self._latest: Snapshot | None = None
        self._drawn: Snapshot | None = None
        self._due = float("-inf")
        self._notice = ""
        self._titled = False
        self._closing = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._screen = _open_screen(self._stream, live)
        self.interval_seconds = LINE_SECONDS if self._screen is None else SCREEN_SECONDS
        self.live = self._screen is not None
        self.broken = self._stream is None

    def start(self) -> None:
        """Start the drawing thread; `show` calls it."""
        if self._thread is None and not self.broken:
            self._thread = threading.Thread(target=self._run, name="asyncrl-console", daemon=True)
            self._thread.start()

    def show(self, snapshot: Snapshot) -> None:
        """Draw `snapshot` at the next drawing time, unless a newer one replaces it."""
        self.start()
        with self._changed:
            self._latest = snapshot
            self._changed.notify()

    def notify(self, text: str) -> None:
        """Show `text` on the screen immediately and until the end; it replaces an earlier notice."""
        with self._changed:
            self._notice, self._due = text, float("-inf")
            self._latest = self._latest or self._drawn
            self._changed.notify()

    def close(self, timeout_seconds: float = 1.0) -> None:
        """Draw the last snapshot and end the thread; idempotent. Returns after the time-out at the latest."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(timeout_seconds)

    def _run(self) -> None:
        try:
            with self._screen or contextlib.nullcontext():
                while (snapshot := self._next()) is not None:
                    self._draw(snapshot)
        except (OSError, ValueError):
            # The reader went away (BrokenPipeError), or the stream was closed (ValueError).
            self.broken = True
            if sys.__stdout__ is not None and self._stream is sys.__stdout__:
                discard(sys.__stdout__)

    def _next(self) -> Snapshot | None:
        """Wait for the next snapshot to draw; None if the view is closing and all is drawn."""
        with self._changed:
            while not self._closing:
                wait = self._due - self._clock()
                if self._latest is not None and wait <= 0:
                    break
                self._changed.wait(max(0.01, wait) if self._latest is not None else None)
            snapshot, self._latest = self._latest, None
            self._drawn = snapshot or self._drawn
            self._due = self._clock() + self.interval_seconds
        return snapshot

    def _draw(self, snapshot: Snapshot) -> None:
        if self._screen is not None:
            size = self._screen.console.size
            view = screen(snapshot, size.width, size.height, url=self.url, notice=self._notice)
            self._screen.update(view, refresh=True)
            return
        if not self._titled:
            self._titled = True
            page = [f"page {plain(self.url)}"] if self.url else []
            page += [TOKEN_IS_READABLE] if self.url and is_readable_by_others(self._stream) else []
            chosen = [plain(text) for text in (snapshot.network, snapshot.goals) if text]
            limit = [f"no limit: goes on {UNLIMITED}"] if progress_text(snapshot) == UNLIMITED else []
            self._stream.writelines(f"{line}\n" for line in [readout(snapshot).title, *page, *chosen, *limit])
        self._stream.write(readout(snapshot).line() + "\n")
        self._stream.flush()


def _open_screen(stream: TextIO | None, live: bool | None) -> Live | None:
    if stream is None or live is False:
        return None
    console = Console(file=stream, force_terminal=live)
    if live is None and (not console.is_terminal or console.is_dumb_terminal):
        return None
    return Live(console=console, auto_refresh=False)


def is_readable_by_others(stream: TextIO) -> bool:
    """Whether the stream is a file that other users can read."""
    try:
        mode = os.fstat(stream.fileno()).st_mode
    except (OSError, ValueError, AttributeError):
        return False
    return stat.S_ISREG(mode) and bool(mode & (stat.S_IRGRP | stat.S_IROTH))


def discard(stream: TextIO) -> None:
    """Redirect the broken standard output `stream` to the null device, as the interpreter flushes it at exit."""
    with contextlib.suppress(OSError, ValueError):
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, stream.fileno())
        os.close(nothing)
