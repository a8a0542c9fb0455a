"""Terminal view: a screen redrawn once a second, or lines every ten seconds if the stream is no terminal.

A separate thread draws, so that a paused terminal or a stalled reader of a pipe delays only the view. A closed stream
ends only the view. What the process prints meanwhile appears above the screen.

A terminal has one screen: that of the first run of the process that asks for it. Further runs, and runs in child
processes of `multiprocessing`, which share its terminal, get lines.
"""

from __future__ import annotations

import contextlib
import io
import os
import stat
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TextIO, TypeVar, cast

from rich.console import Console
from rich.live import Live

from asyncrl.show.metrics import Snapshot
from asyncrl.show.notebook import in_kernel
from asyncrl.show.numbers import plain
from asyncrl.show.progress import UNLIMITED, progress_text
from asyncrl.show.readout import readout
from asyncrl.show.screen import screen

T = TypeVar("T")

SCREEN_SECONDS = 1.0
LINE_SECONDS = 10.0
PATIENCE_SECONDS = 10.0
"""Start-up time after which the view shows that the run is starting."""
RETURN_POINTS = 400
"""Most points of the return curve; beyond it every second one is dropped."""
LEADS = os.environ.get("RANK", "0") == "0"
"""Whether this process shows the run: under torchrun only rank 0 does."""
READABLE_TOKEN = "note others can read this file, and its page's token lets them {}: chmod 600 it"
"""Note where the address of a page goes to a file that others can read; the gap is what the token allows."""
TOKEN_IS_READABLE = READABLE_TOKEN.format("stop the run")


_terminal = threading.Lock()
"""Held by the view that has the terminal's screen."""
_views: set[StreamView[Any]] = set()
"""Views of this process that are drawn; lines of several name their runs."""


def script_console() -> RunConsole | None:
    """View of a run that a script starts; None in a notebook, whose card shows the run, and on ranks above 0.

    The screen is for a terminal at standard output. Otherwise lines go to standard error, so that redirected standard
    output has only what the script prints.
    """
    if in_kernel() or not LEADS:
        return None
    view = RunConsole()
    return view if view.live else RunConsole(stream=cast(TextIO, _StandardError()), live=False)


class _StandardError(io.TextIOBase):
    """Standard error of the moment: the screen of another run takes its place, so as to print above itself."""

    def write(self, text: str) -> int:
        return 0 if sys.stderr is None else sys.stderr.write(text)

    def flush(self) -> None:
        if sys.stderr is not None:
            sys.stderr.flush()

    def fileno(self) -> int:
        if sys.stderr is None:
            raise OSError("there is no standard error")
        return sys.stderr.fileno()


def is_worth_showing(snapshot: Snapshot) -> bool:
    """Whether a snapshot is more than zeros: an error before training is printed without a view."""
    if snapshot.env_steps or snapshot.state not in ("starting", "failed"):
        return True
    return snapshot.state == "starting" and snapshot.wall_seconds > PATIENCE_SECONDS


class StreamView(Generic[T]):
    """View of something that changes on a text stream; a subclass draws it.

    `show` may be called from any thread, never blocks and keeps only the newest state. The stream is written at
    most once a second (terminal) or once in ten seconds (anything else, `TERM=dumb` included). `NO_COLOR` is obeyed.

    Args:
        stream: output stream; None is standard output.
        live: whether to redraw a screen; None: if the stream is a terminal.
        clock: monotonic seconds.

    Attributes:
        live: whether a screen is redrawn.
        broken: whether the stream can no longer be written.
        error: the error of the write that has failed, None without one.
    """

    def __init__(
        self,
        *,
        stream: TextIO | None = None,
        live: bool | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = sys.stdout if stream is None else stream
        self._clock = clock
        self._latest: T | None = None
        self._drawn: T | None = None
        self._due = float("-inf")
        self._notice = ""
        self._closing = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._has_terminal = live is None and _take_terminal(self._stream)
        self._screen = _open_screen(self._stream, live) if live or self._has_terminal else None
        self.interval_seconds = LINE_SECONDS if self._screen is None else SCREEN_SECONDS
        self.live = self._screen is not None
        self.broken = self._stream is None
        self.error: OSError | ValueError | None = None

    def start(self) -> None:
        """Start the drawing thread; `show` calls it."""
        if self._thread is None and not self.broken:
            _views.add(self)
            self._thread = threading.Thread(target=self._run, name="asyncrl-console", daemon=True)
            self._thread.start()

    def show(self, state: T) -> None:
        """Draw `state` at the next drawing time, unless a newer one replaces it."""
        self.start()
        with self._changed:
            self._latest = state
            self._keep(state)
            self._changed.notify()

    def _keep(self, state: T) -> None:
        """Keep what is drawn of a state that a newer one replaces."""

    def notify(self, text: str) -> None:
        """Show `text` on the screen immediately and until the end; it replaces an earlier notice."""
        with self._changed:
            self._notice, self._due = text, float("-inf")
            self._latest = self._latest or self._drawn
            self._changed.notify()

    def close(self, timeout_seconds: float = 1.0) -> None:
        """Draw the last state and end the thread; idempotent. Returns after the time-out at the latest."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(timeout_seconds)
        _views.discard(self)
        if self._has_terminal:
            self._has_terminal = False
            _terminal.release()

    def _run(self) -> None:
        try:
            with self._screen or contextlib.nullcontext():
                while (state := self._next()) is not None:
                    self._draw(state)
                if self.live:  # an unfinished line that was printed; rich would drop it
                    sys.stdout.flush()
                    sys.stderr.flush()
        except (OSError, ValueError) as error:
            # The reader went away (BrokenPipeError), the disk is full, or the stream was closed (ValueError).
            self.broken, self.error = True, error
            if sys.__stdout__ is not None and self._stream is sys.__stdout__:
                discard(sys.__stdout__)

    def _next(self) -> T | None:
        """Wait for the next state to draw; None if the view is closing and all is drawn."""
        with self._changed:
            while not self._closing:
                wait = self._due - self._clock()
                if self._latest is not None and wait <= 0:
                    break
                self._changed.wait(max(0.01, wait) if self._latest is not None else None)
            state, self._latest = self._latest, None
            self._drawn = state or self._drawn
            self._due = self._clock() + self.interval_seconds
        return state

    def _draw(self, state: T) -> None:
        """Draw `state` on the screen, or write its lines."""
        raise NotImplementedError


class RunConsole(StreamView[Snapshot]):
    """View of a run; arguments of `StreamView`.

    Attributes:
        url: address of the run's page with its token, shown in the first line; None at first.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.url: str | None = None
        self._returns: list[tuple[int, float]] = []
        self._titled = False

    def follow(self, snapshot: Snapshot, url: str | None) -> None:
        """Show `snapshot` and the page's address, unless it is all zeros."""
        self.url = url
        if is_worth_showing(snapshot):
            self.show(snapshot)

    def _keep(self, snapshot: Snapshot) -> None:
        mean, last = snapshot.return_mean, self._returns[-1:]
        if mean is None or (last and last[0][0] == snapshot.env_steps):
            return
        self._returns.append((snapshot.env_steps, mean))
        if len(self._returns) > RETURN_POINTS:
            del self._returns[1::2]

    def _draw(self, snapshot: Snapshot) -> None:
        if self._screen is not None:
            size = self._screen.console.size
            returns = tuple(self._returns)
            view = screen(
                snapshot, size.width, size.height, url=self.url, notice=self._notice, returns=returns
            )
            self._screen.update(view, refresh=True)
            return
        words = readout(snapshot)
        name = f"{words.title}: " if len(_views) > 1 else ""
        lines = [] if self._titled else self._first_lines(snapshot, words.title)
        self._titled = True
        # One write: other threads and screens print between two.
        self._stream.write("".join(f"{line}\n" for line in [*lines, name + words.line()]))
        self._stream.flush()

    def _first_lines(self, snapshot: Snapshot, title: str) -> list[str]:
        """Address of the page, and what does not change."""
        page = [f"page {plain(self.url)}"] if self.url else []
        page += [TOKEN_IS_READABLE] if self.url and is_readable_by_others(self._stream) else []
        chosen = [plain(text) for text in (snapshot.network, snapshot.goals) if text]
        limit = [f"no limit: goes on {UNLIMITED}"] if progress_text(snapshot) == UNLIMITED else []
        return [*page, title, *chosen, *limit]


def _take_terminal(stream: TextIO | None) -> bool:
    """Take the screen for a view if `stream` is a terminal, this process may draw on it, and no view has it."""
    try:
        if stream is None or not stream.isatty():  # to rich a pipe is a terminal, too, with FORCE_COLOR
            return False
    except ValueError:  # it is closed
        return False
    console = Console(file=stream)
    if not console.is_terminal or console.is_dumb_terminal or _is_child():
        return False
    return _terminal.acquire(blocking=False)


def _is_child() -> bool:
    """Whether `multiprocessing` has started this process; it is loaded then."""
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None


def _open_screen(stream: TextIO, live: bool | None) -> Live:
    # No markup: what the process prints passes through the console too.
    console = Console(file=stream, force_terminal=live, markup=False, emoji=False, highlight=False)
    errors = sys.stderr is not None and sys.stderr.isatty()
    return Live(console=console, auto_refresh=False, redirect_stderr=errors)


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
