"""Tables and short forms of values in plain text, for commands that list something."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from asyncrl.errors import ConfigurationError
from asyncrl.show.kept_run import KeptRun, is_run
from asyncrl.storage.run_directory import advice_without_run

WIDEST = 118
NARROWEST, NARROWEST_BESIDE_WHOLE = 8, 24
"""Least width of a column that is shortened; the second where whole columns alone make the lines too long."""
_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def text_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Sequence[str] = (),
    whole: Sequence[str] = (),
    apart: Sequence[str] = (),
) -> str:
    """Columns two spaces apart, in lines of at most 118 characters: the widest columns are shortened to fit.

    Args:
        header: titles of the columns.
        rows: cells.
        right: titles of the right-aligned columns.
        whole: titles of columns that are not shortened, as their cells are to be copied; lines may be longer then.
        apart: titles of columns that are not shortened where two different cells would look the same.
    """
    table = [list(header), *([_escaped(cell) for cell in row] for row in rows)]
    widths = _widths(table, whole)
    alike = [title for title, *cells in zip(*table, widths, strict=True) if title in apart and _alike(cells)]
    if alike:
        widths = _widths(table, (*whole, *alike))
    return "\n".join(_line(row, widths, [title in right for title in header]) for row in table)


def _alike(column: list[Any]) -> bool:
    """Whether different cells of a column, whose last entry is its width, look the same in it."""
    *cells, width = column
    return len({_cut(cell, width) for cell in cells}) < len(set(cells))


def _widths(table: Sequence[Sequence[str]], whole: Sequence[str]) -> list[int]:
    """Widths of the columns of a table, whose first row has the titles; those of `whole` are not shortened."""
    header = table[0]
    widths = [max(len(row[column]) for row in table) for column in range(len(header))]
    may_be_cut = [column for column, title in enumerate(header) if title not in whole]
    room = WIDEST - 2 * (len(widths) - 1)
    fits = sum(min(w, NARROWEST) if column in may_be_cut else w for column, w in enumerate(widths)) <= room
    while may_be_cut and sum(widths) > room:
        widest = max(may_be_cut, key=widths.__getitem__)
        if widths[widest] <= (NARROWEST if fits or not whole else NARROWEST_BESIDE_WHOLE):
            break
        widths[widest] -= 1
    return widths


def _escaped(text: str) -> str:
    """Escape control characters and bytes that are no text: a run's name or options must not drive the terminal."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _line(row: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    cells = [
        text.rjust(width) if on_right else text.ljust(width)
        for text, width, on_right in zip(map(_cut, row, widths), widths, right, strict=True)
    ]
    return "  ".join(cells).rstrip()


def _cut(text: str, width: int) -> str:
    """Shorten the text to `width` in its middle, as run names differ at both ends."""
    if len(text) <= width:
        return text
    head = (width - 1) // 2
    return text[:head] + "~" + text[len(text) - (width - 1 - head) :]


def age(seconds: float) -> str:
    """Format a duration as `12 s`, `5 min`, `3 h` or `2 d`."""
    unit, name = next(((unit, name) for unit, name in _UNITS if seconds >= unit), (1, "s"))
    return f"{max(0, int(seconds / unit))} {name}"


def existing_run(path: str) -> KeptRun:
    """The run in a directory. Raises `ConfigurationError` if there is none."""
    directory = Path(path).expanduser()
    if is_run(directory):
        return KeptRun(directory)
    what = "is no run's directory" if directory.exists() else "does not exist"
    raise ConfigurationError(
        f"{path} {what}",
        facts={"path": directory},
        fix=advice_without_run(directory, "`asyncrl ls` lists the runs of a folder"),
    )
