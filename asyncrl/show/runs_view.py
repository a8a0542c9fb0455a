"""Terminal view of several runs: a line for each, on a screen or as lines of text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from asyncrl.show.console import TOKEN_IS_READABLE, StreamView, is_readable_by_others
from asyncrl.show.metrics import Snapshot
from asyncrl.show.numbers import NONE, number, plain
from asyncrl.show.readout import readout
from asyncrl.show.screen import STATE_STYLES

FIXED_LINES = 5
"""Lines of a screen that are no runs: title, heads, the last one, a notice and the number of runs left out."""


@dataclass(frozen=True)
class RunRow:
    """One run in the view.

    Attributes:
        label: `seed 3`.
        snapshot: its newest snapshot, None before the first.
        page: address of its page with the token, None without one.
        end: how it ended, "" while it goes on.
    """

    label: str
    snapshot: Snapshot | None = None
    page: str | None = None
    end: str = ""

    @property
    def state(self) -> str:
        """The run's state in a word or two: `training`, `pruned`."""
        if self.end:
            return self.end
        return self.snapshot.state if self.snapshot is not None else "starting"

    def line(self) -> str:
        """The run as one line of text."""
        if self.snapshot is None:
            return plain(f"{self.label}  {self.state}")
        words, (shown, evaluation, best) = readout(self.snapshot), self._returns()
        return plain(
            f"{self.label}  {words.elapsed} {self.state} {words.progress_short} | return {shown}, "
            f"evaluation {evaluation}, best {best} | {words.speed[0].value} steps/s"
        )

    def cells(self) -> list[str]:
        """The run as cells of a table, without its state."""
        if self.snapshot is None:
            return [plain(self.label), *(NONE for _ in range(5))]
        words = readout(self.snapshot)
        return [plain(self.label), words.progress_short, *self._returns(), words.speed[0].value]

    def _returns(self) -> tuple[str, str, str]:
        """Mean return of training episodes, of the last and of the best evaluation."""
        assert self.snapshot is not None
        evaluation, best = self.snapshot.evaluation, self.snapshot.best_evaluation
        return (
            number(self.snapshot.return_mean),
            number(evaluation.return_mean if evaluation else None),
            number(best.return_mean if best else None),
        )


@dataclass(frozen=True)
class RunsView:
    """Several runs at one moment.

    Attributes:
        title: what they are, and how far they have come.
        rows: the runs in progress and those that have ended, in their order.
    """

    title: str
    rows: Sequence[RunRow] = field(default=())


class RunsConsole(StreamView[RunsView]):
    """View of several runs; arguments of `StreamView`.

    As text, the title and every page are written once, a run in progress every ten seconds, and its end once.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._said: set[str] = set()

    def _draw(self, state: RunsView) -> None:
        if self._screen is not None:
            size = self._screen.console.size
            self._screen.update(runs_screen(state, size.width, size.height, self._notice), refresh=True)
            return
        self._stream.writelines(f"{line}\n" for line in self._lines(state))
        self._stream.flush()

    def _lines(self, state: RunsView) -> list[str]:
        """Lines to write now."""
        pages = [f"{row.label}  page {row.page}" for row in state.rows if row.page]
        if pages and is_readable_by_others(self._stream):
            pages.append(TOKEN_IS_READABLE)
        once = [state.title, *pages, *(row.line() for row in state.rows if row.end)]
        new = [line for line in dict.fromkeys(map(plain, once)) if line not in self._said]
        self._said |= set(new)
        going = [
            row.line()
            for row in state.rows
            if row.snapshot is not None and row.snapshot.env_steps and not row.end
        ]
        return [*new, *going]


def runs_screen(view: RunsView, width: int, height: int, notice: str = "") -> RenderableType:
    """Renderable for a window of `width` columns and `height` lines; at most that high. Pure.

    Runs in progress come first where not all fit, then those that ended last.
    """
    room = max(1, height - FIXED_LINES)
    going = [row for row in view.rows if not row.end]
    ended = [row for row in view.rows if row.end]
    shown = going[:room] + ended[len(ended) - max(0, room - len(going)) :]
    rows = [row for row in view.rows if row in shown]
    table = Table(box=None, expand=True, padding=(0, 1), pad_edge=False, header_style="dim")
    table.add_column("run", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("progress", no_wrap=True, overflow="ellipsis", ratio=1)  # what is cut where not all fits
    for heading in ("return", "evaluation", "best", "steps/s"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        label, *cells = row.cells()
        state = Text(plain(row.state), style="dim" if row.end else STATE_STYLES.get(row.state, ""))
        table.add_row(label, state, *cells)
    parts: list[RenderableType] = [
        Text(plain(view.title), style="bold", no_wrap=True, overflow="ellipsis"),
        Text(),
    ]
    parts.append(table)
    if len(rows) < len(view.rows):
        parts.append(Text(f"and {len(view.rows) - len(rows)} more", style="dim"))
    # The last line stays empty, or has the answer to Ctrl-C; see `screen`.
    parts.append(Text(plain(notice), style="bold yellow", no_wrap=True, overflow="ellipsis"))
    return Group(*parts)
