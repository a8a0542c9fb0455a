"""Terminal screen: a snapshot as one rich renderable that fits the window.

The first line is the address of the page. A window of at least 80 columns and 24 lines shows everything, with a table
of actors; one of at least 120 columns also draws the returns in the lines that are left. A smaller window shows short
lines, the most important first, as many as fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.style import Style
from rich.table import Table
from rich.text import Text

from asyncrl.actors.statistics import ActorStatistics
from asyncrl.show.metrics import Snapshot
from asyncrl.show.numbers import duration, plain
from asyncrl.show.readout import Field, Readout, readout
from asyncrl.show.text_plot import return_plot

FULL_COLUMNS, FULL_LINES = 80, 24
"""Smallest window that shows everything."""
THREE_GROUPS_COLUMNS = 112
"""Minimum width for the three groups of values side by side."""
CURVE_COLUMNS = 120
"""Minimum width for the return curve."""
LEAST_CURVE_LINES, MOST_CURVE_LINES = 5, 24
"""Lines of the return curve with its axes; of many actors it takes a third of the lines."""
LEAST_ACTOR_ROWS = 2
"""Rows that the table of actors keeps below the curve."""
ERROR_LINES = 3
"""Maximum number of lines of the run's error; the full error is printed below the screen."""

STATE_STYLES = {
    "training": "bold green",
    "running": "green",
    "evaluating": "bold cyan",
    "starting": "cyan",
    "stopping": "bold yellow",
    "stopped": "bold",
    "failed": "bold red",
    "restarting": "yellow",
    "waiting": "cyan",
    "ended": "dim",
}


def screen(
    snapshot: Snapshot,
    width: int,
    height: int,
    *,
    url: str | None = None,
    notice: str = "",
    returns: Sequence[tuple[int, float]] = (),
) -> RenderableType:
    """Renderable for a window of `width` columns and `height` lines: at most that high, nothing in it is cut. Pure.

    Args:
        snapshot: the run.
        width: columns of the window.
        height: lines of the window.
        url: address of the page.
        notice: a permanent message, such as the answer to Ctrl-C.
        returns: steps and mean return of the training episodes so far, for the curve.
    """
    # The last line stays empty: the terminal echoes Ctrl-C there, and after a full line that would scroll the screen.
    last = [] if notice else [Text()]
    height -= len(last)
    if width < FULL_COLUMNS or height + len(last) < FULL_LINES:
        return Group(*_small(snapshot, width, height, url, notice), *last)
    return Group(*_full(snapshot, width, height, url, notice, returns), *last)


def _full(
    snapshot: Snapshot,
    width: int,
    height: int,
    url: str | None,
    notice: str,
    returns: Sequence[tuple[int, float]],
) -> list[RenderableType]:
    """All values, the return curve if there is room, and a table of as many actors as fit."""
    words = readout(snapshot)
    groups, lines = _groups(words, width)
    head: list[RenderableType] = [*_address(url), _title(words, snapshot.state, width), _bar(words)]
    head.append(Text(words.progress, no_wrap=len(words.progress) <= width))
    foot = _messages(words.error, notice, width)
    more = [*_packed(words.fusion, width)[:1], *_levels(words, width)[:1], *_packed(words.logged, width)[:1]]
    texts = [part for part in head[:-1] if isinstance(part, Text)]
    used = len(head) - len(texts) + (len(words.progress) - 1) // width + 1 + lines + len(more)
    used += _height([*texts, *foot], width)
    if height < used + (2 + min(2, len(snapshot.actors)) if snapshot.actors else 0):  # a very long name
        return _small(snapshot, width, height, url, notice)
    curve = _curve(snapshot, returns, width, height - used)
    used += len(curve)
    parts = [*head, Text(), groups, *more, *curve]
    if snapshot.actors:
        parts += [Text(), _actors(snapshot.actors, height - used - 2)]
    return [*parts, *foot]


def _curve(
    snapshot: Snapshot, returns: Sequence[tuple[int, float]], width: int, room: int
) -> list[RenderableType]:
    """The return curve below an empty line, in the part of `room` lines that the actors leave; none in a small part."""
    shown = 2 + len(snapshot.actors) if snapshot.actors else 0
    lines = min(MOST_CURVE_LINES, max(LEAST_CURVE_LINES, room // 3, room - shown - 1))
    if width < CURVE_COLUMNS or room - lines - 1 < min(shown, 2 + LEAST_ACTOR_ROWS):
        return []
    marks = [(evaluation.env_steps, evaluation.return_mean) for evaluation in snapshot.evaluations]
    plot = return_plot(returns, marks, width=width, height=lines)
    return [Text(), *(Text(line, no_wrap=True) for line in plot)] if plot else []


def _address(url: str | None) -> list[RenderableType]:
    if not url:
        return []
    shown = plain(url)
    return [Text(shown, style=Style(color="cyan", underline=True, link=shown), overflow="fold")]


def _title(words: Readout, state: str, width: int) -> RenderableType:
    """Algorithm, environment, seed and state on the left; counts on the right if both fit."""
    left = Text.assemble((words.title, "bold"), "  ", (words.state, STATE_STYLES.get(state, "")))
    room = width - len(left) - len(words.counts)
    return Text.assemble(left, " " * room if room >= 2 else "  ", (words.counts, "dim"))


def _bar(words: Readout) -> RenderableType:
    if words.fraction is None:
        return Text()
    bar = ProgressBar(
        total=1.0, completed=words.fraction, complete_style="green", finished_style="bold green"
    )
    # A bar alone does not end its line; a grid does.
    grid = Table.grid(expand=True)
    grid.add_row(bar)
    return grid


def _messages(error: str, notice: str, width: int) -> list[Text]:
    """The notice, and the run's error in at most `ERROR_LINES` lines."""
    texts = [Text(plain(notice), style="bold yellow")] if notice else []
    room = (ERROR_LINES - 1) * width
    error = error if len(error) <= room else f"{error[: room - 3]}..."
    return [*texts, Text(error, style="bold red")] if error else texts


def _height(texts: Iterable[Text], width: int) -> int:
    """Upper bound of the lines of wrapped texts; wrapping at words may need one more line."""
    return sum((max(1, len(text)) - 1) // width + 1 + (len(text) > width) for text in texts)


def _groups(words: Readout, width: int) -> tuple[RenderableType, int]:
    """The three groups of values and their number of lines."""
    speed, learning, pace = words.speed, words.learning, words.pace
    if width >= THREE_GROUPS_COLUMNS:
        grid = _beside((26, "Learning", learning), (26, "Speed", speed), (44, "Async", pace))
        return grid, 1 + max(len(learning), len(speed), len(pace))
    upper = _beside((1, "Learning", learning), (1, "Speed", speed))
    half = (len(pace) + 1) // 2
    lower = _beside((48, "Async", pace[:half]), (28, "", pace[half:]))
    return Group(upper, lower), 2 + max(len(learning), len(speed)) + half


def _beside(*groups: tuple[int, str, tuple[Field, ...]]) -> Table:
    """Groups of values side by side, each with its ratio of the width."""
    grid = Table.grid(expand=True, padding=(0, 3))
    for ratio, _, _ in groups:
        grid.add_column(ratio=ratio)
    grid.add_row(*(_group(name, fields) for _, name, fields in groups))
    return grid


def _group(name: str, fields: tuple[Field, ...]) -> Table:
    table = Table.grid(expand=True, padding=(0, 1))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_row(Text(name, style="bold cyan"), "")
    for field in fields:
        table.add_row(field.label, Text(field.value))
    return table


def _actors(actors: tuple[ActorStatistics, ...], rows: int) -> RenderableType:
    """Heading and at most `rows` lines below it: actors, the number of actors not listed, the last errors."""
    table = Table(box=None, expand=True, padding=(0, 1), pad_edge=False, header_style="dim")
    for heading in ("actor", "pid", "state"):
        table.add_column(heading, no_wrap=True)
    for heading in ("steps/s", "waits", "ring", "heard", "restarts", "memory"):
        table.add_column(heading, justify="right", no_wrap=True)
    errors = [f"actor {actor.index}: {plain(actor.last_error)}" for actor in actors if actor.last_error]
    errors = errors[: max(0, min(2, rows - 2))]
    listed = rows - len(errors)
    if len(actors) > listed:
        listed = max(1, listed - 1)
    for actor in actors[:listed]:
        table.add_row(*_actor_cells(actor))
    parts: list[RenderableType] = [table]
    if len(actors) > listed:
        parts.append(Text(f"and {len(actors) - listed} more", style="dim"))
    parts += [Text(error, style="yellow", no_wrap=True, overflow="ellipsis") for error in errors]
    return Group(*parts)


def _actor_cells(actor: ActorStatistics) -> list[Text]:
    name = "ended" if actor.state == "stopped" else actor.state
    cells = [
        Text(str(actor.index)),
        Text(str(actor.pid or "-")),
        Text(name, style=STATE_STYLES.get(name, "")),
    ]
    memory = f"{actor.private_bytes / 1e6:,.0f} MB" if actor.private_bytes else "-"
    age = actor.heartbeat_age_seconds
    heard = f"{age * 1000:.0f}ms" if 0 <= age < 1 else duration(age)
    numbers = (
        f"{actor.env_steps_per_second:,.0f}",
        f"{actor.wait_fraction:.0%}",
        f"{actor.ring_fill:.0%}",
        "-" if name == "ended" else heard,
        str(actor.restarts),
        memory,
    )
    return cells + [Text(text) for text in numbers]


def _small(snapshot: Snapshot, width: int, height: int, url: str | None, notice: str) -> list[RenderableType]:
    """Short lines, as many as fit: first the address, title, messages and progress, then values by importance."""
    words = readout(snapshot)
    title = Text.assemble((words.title, "bold"), "  ", (words.state, STATE_STYLES.get(snapshot.state, "")))
    first: list[RenderableType] = [*_address(url), title]
    first += [*_messages(words.error, notice, width), Text(words.progress)]
    room = height - sum(_height([line], width) for line in first if isinstance(line, Text))
    lines: list[RenderableType] = []
    for line in _short_lines(words, width):
        if (room := room - 1) >= 0:
            lines.append(line)
    return [*first, *lines]


def _short_lines(words: Readout, width: int) -> list[Text]:
    """All values in order of importance, packed into lines of `width` columns."""
    first = [*words.learning[:2], words.speed[0], Field("", words.actors), *words.fusion]
    rest = [*words.learning[2:], *words.speed[1:], Field("", words.counts), *words.pace]
    return [*_packed((*first, *rest), width), *_levels(words, width)]


def _levels(words: Readout, width: int) -> list[Text]:
    """The returns of the levels in lines of `width` columns; none without levels."""
    return _packed((Field("levels", ""), *words.levels), width) if words.levels else []


def _packed(fields: Iterable[Field], width: int) -> list[Text]:
    """Labelled values in lines of at most `width` columns, as many on each as fit."""
    lines: list[Text] = []
    for field in fields:
        text = Text.assemble((field.label, "dim"), " " if field.label else "", field.value)
        text.no_wrap, text.overflow = True, "ellipsis"
        if lines and len(lines[-1]) + 3 + len(text) <= width:
            lines[-1].append("   ").append_text(text)
        else:
            lines.append(text)
    return lines
