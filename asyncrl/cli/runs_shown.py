"""Several runs as a command shows them while they are trained. Imports no torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from asyncrl.cli.interrupts import Interrupts
from asyncrl.cli.output import print_error
from asyncrl.errors import StoppedWhileStarting
from asyncrl.show.runs_view import RunRow, RunsConsole, RunsView
from asyncrl.trainer.run_pool import Ended, Event, Progressed, Started, Warned


class RunsShown:
    """View of the runs of a pool, a context manager.

    Args:
        title: returns what the runs are, and how far they have come.
        interrupts: shows its message on the screen.

    Attributes:
        rows: the runs by key, in the order in which they are shown.
    """

    def __init__(self, title: Callable[[], str], interrupts: Interrupts) -> None:
        self.rows: dict[int, RunRow] = {}
        self._title, self._console = title, RunsConsole()
        self._warnings: set[str] = set()
        if self._console.live:
            interrupts.notify = self._console.notify

    @property
    def live(self) -> bool:
        """Whether a screen is redrawn."""
        return self._console.live

    def __enter__(self) -> RunsShown:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._console.close()

    def take(self, event: Event) -> None:
        """Show an event of a run in `rows`; a warning is printed once, whichever runs give it."""
        if isinstance(event, Warned):
            if event.text not in self._warnings:
                self._warnings.add(event.text)
                print_error(f"warning: {event.text}")
            return
        row = self.rows[event.key]
        if isinstance(event, Started):
            row = dataclasses.replace(row, page=event.page)
        elif isinstance(event, Progressed):
            row = dataclasses.replace(row, snapshot=event.snapshot)
        elif isinstance(event, Ended) and not row.end:
            row = dataclasses.replace(row, end=how_it_ended(event))
        self.rows[event.key] = row
        self.show()

    def show(self) -> None:
        """Show the rows as they are now."""
        self._console.show(RunsView(self._title(), tuple(self.rows.values())))


def how_it_ended(event: Ended) -> str:
    """State of a run that has ended: `finished`, `stopped`, `interrupted` or `failed`."""
    if event.result is None:
        stopped = event.error is None or isinstance(event.error, StoppedWhileStarting)
        return "interrupted" if stopped else "failed"
    return str(event.result.summary["state"])
