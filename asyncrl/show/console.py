"""The terminal view: a screen redrawn once a second, or a line every ten seconds where there is no terminal.

Drawing has a thread of its own, so that a paused terminal or a stalled reader of a pipe delays the view only. A closed
stream ends the view only.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from asyncrl.actors.statistics import ActorStatistics
from asyncrl.show.metrics import Snapshot
from asyncrl.show.readout import Field, Readout, duration, percent, plain, readout

SCREEN_SECONDS = 1.0
LINE_SECONDS = 10.0
THREE_GROUPS_COLUMNS = 108
"""Minimum width for the three groups of values side by side."""
TWO_GROUPS_COLUMNS = 80
"""Minimum width for two columns of groups; a narrower screen stacks them."""
ALL_OF_AN_ACTOR_COLUMNS = 96
"""Minimum width for all cells of an actor's row."""
ROOMY_LINES = 30
"""Minimum height for an empty line above and below."""

STATE_STYLES = {
    "training": "bold green",
    "running": "green",
    "evaluating": "bold cyan",
    "stopped": "bold",
    "failed": "bold red",
    "restarting": "yellow",
    "waiting": "cyan",
}


class RunConsole:
    """Shows a run on a text stream.

    `show` may be called from any thread, never blocks and keeps the newest snapshot only. The stream is drawn on at
    most once a second (a terminal) or once in ten seconds (anything else, `TERM=dumb` included). `NO_COLOR` is obeyed.

    Args:
        stream: output stream; None is standard output.
        live: whether to redraw a screen; None does if the stream is a terminal.
        url: address of the run's page, shown on the screen.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        *,
        stream: TextIO | None = None,
        live: bool | None = None,
        url: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.url = url
        self._stream = sys.stdout if stream is None else stream
        self._clock = clock
        self._latest: Snapshot | None = None
        self._closing = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._screen = _open_screen(self._stream, live)
        self.interval_seconds = LINE_SECONDS if self._screen is None else SCREEN_SECONDS
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

    def close(self, timeout_seconds: float = 1.0) -> None:
        """Draw the last snapshot and end the thread; idempotent, gives up after the time-out."""
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
        """Wait for the next snapshot to draw; None when the view is closing and all is drawn."""
        due = self._due
        with self._changed:
            while not self._closing:
                wait = due - self._clock()
                if self._latest is not None and wait <= 0:
                    break
                self._changed.wait(max(0.01, wait) if self._latest is not None else None)
            snapshot, self._latest = self._latest, None
        self._due = self._clock() + self.interval_seconds
        return snapshot

    _due = float("-inf")

    def _draw(self, snapshot: Snapshot) -> None:
        if self._screen is not None:
            size = self._screen.console.size
            view = screen(snapshot, width=size.width, height=size.height, url=self.url)
            self._screen.update(view, refresh=True)
        else:
            self._stream.write(readout(snapshot).line() + "\n")
            self._stream.flush()


def _open_screen(stream: TextIO | None, live: bool | None) -> Live | None:
    if stream is None or live is False:
        return None
    console = Console(file=stream, force_terminal=live)
    if live is None and (not console.is_terminal or console.is_dumb_terminal):
        return None
    return Live(console=console, auto_refresh=False)


def discard(stream: TextIO) -> None:
    """Point the broken standard output `stream` at the null device; the interpreter would fail on it at exit."""
    with contextlib.suppress(OSError, ValueError):
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, stream.fileno())
        os.close(nothing)


def screen(snapshot: Snapshot, *, width: int, height: int, url: str | None = None) -> RenderableType:
    """The view as one rich renderable for `width` columns; at 80 columns or more it fits `height` lines of 24 or more.

    Pure. Actors beyond the height are counted, not listed; at least one is listed.
    """
    words = readout(snapshot)
    inside = width - 6
    groups, group_lines = _groups(words, width)
    parts: list[RenderableType] = [_progress(words), Text(), groups]
    padding = int(height >= ROOMY_LINES)
    used = 2 + 2 * padding + _progress_lines(words, inside) + 1 + group_lines
    if words.error:
        used += padding - (-len(words.error) // inside)
    if snapshot.actors:
        narrow = width < ALL_OF_AN_ACTOR_COLUMNS
        parts += [Text(), _actors(snapshot.actors, height - used - 2, narrow=narrow)]
    if words.error:
        parts += [Text()] * padding + [Text(words.error, style="bold red")]
    title = Text.assemble((words.title, "bold"), "  ", (words.state, STATE_STYLES.get(snapshot.state, "")))
    subtitle = Text(plain(url), style="dim") if url else None
    return Panel(
        Group(*parts),
        title=title,
        title_align="left",
        subtitle=subtitle,
        subtitle_align="right",
        padding=(padding, 2),
    )


def _progress(words: Readout) -> RenderableType:
    if words.fraction is None:
        return Text(words.progress)
    bar = ProgressBar(
        total=1.0, completed=words.fraction, complete_style="green", finished_style="bold green"
    )
    # A bar alone does not end its line; a grid does.
    grid = Table.grid(expand=True)
    grid.add_row(bar)
    grid.add_row(Text(words.progress))
    return grid


def _progress_lines(words: Readout, inside: int) -> int:
    """Lines of `_progress` in `inside` columns; the text wraps."""
    return (words.fraction is not None) + -(-len(words.progress) // inside)


def _groups(words: Readout, width: int) -> tuple[RenderableType, int]:
    """The three groups of values in as many columns as `width` allows, and their number of lines."""
    lines = [1 + len(fields) for _, fields in words.groups]
    tables = [_group(name, fields) for name, fields in words.groups]
    if width < TWO_GROUPS_COLUMNS:
        return Group(*tables), sum(lines)
    # The last group has the longest values.
    if width < THREE_GROUPS_COLUMNS:
        cells = ((30, Group(*tables[:2])), (44, tables[2]))
        return _beside(*cells), max(sum(lines[:2]), lines[2])
    return _beside(*zip((27, 26, 44), tables, strict=True)), max(lines)


def _beside(*cells: tuple[int, RenderableType]) -> Table:
    """One row of renderables, each with its fraction of the width."""
    grid = Table.grid(expand=True, padding=(0, 3))
    for ratio, _ in cells:
        grid.add_column(ratio=ratio)
    grid.add_row(*(cell for _, cell in cells))
    return grid


def _group(name: str, fields: tuple[Field, ...]) -> Table:
    table = Table.grid(expand=True, padding=(0, 1))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_row(Text(name, style="bold"), "")
    for field in fields:
        table.add_row(field.label, Text(field.value))
    return table


def _actors(actors: tuple[ActorStatistics, ...], rows: int, *, narrow: bool) -> RenderableType:
    """A heading and at most `rows` lines below it: actors, the number of those not listed, the last errors."""
    table = Table(box=None, expand=True, padding=(0, 1), pad_edge=False, header_style="dim")
    for heading in ("actor", "pid", "state"):
        table.add_column(heading, no_wrap=True)
    for heading in (
        ("steps/s", "ring") if narrow else ("steps/s", "waits", "ring", "heard", "restarts", "memory")
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    errors = [f"actor {actor.index}: {plain(actor.last_error)}" for actor in actors if actor.last_error]
    errors = errors[: max(0, min(2, rows - 2))]
    listed = rows - len(errors)
    if len(actors) > listed:
        listed = max(1, listed - 1)
    for actor in actors[:listed]:
        table.add_row(*_actor_cells(actor, narrow=narrow))
    parts: list[RenderableType] = [table]
    if len(actors) > listed:
        parts.append(Text(f" and {len(actors) - listed} more", style="dim"))
    parts += [Text(error, style="yellow", no_wrap=True, overflow="ellipsis") for error in errors]
    return Group(*parts)


def _actor_cells(actor: ActorStatistics, *, narrow: bool) -> list[Text]:
    state = Text(actor.state, style=STATE_STYLES.get(actor.state, ""))
    cells = [
        Text(str(actor.index)),
        Text(str(actor.pid or "-")),
        state,
        Text(f"{actor.env_steps_per_second:,.0f}"),
    ]
    if narrow:
        return [*cells, Text(percent(actor.ring_fill))]
    memory = f"{actor.private_bytes / 1e6:,.0f} MB" if actor.private_bytes else "-"
    age = actor.heartbeat_age_seconds
    heard = f"{age * 1000:.0f}ms" if 0 <= age < 1 else duration(age)
    more = (percent(actor.wait_fraction), percent(actor.ring_fill), heard, str(actor.restarts), memory)
    return cells + [Text(text) for text in more]
