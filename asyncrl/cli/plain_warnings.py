"""Warnings of this package as one line on standard error."""

from __future__ import annotations

import contextlib
import sys
import warnings
from typing import TextIO

from asyncrl.errors import AsyncRLWarning


def show_warnings_plainly() -> None:
    """Print warnings of this package as one line on standard error, without the line of code."""
    before = warnings.showwarning

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if issubclass(category, AsyncRLWarning):
            with contextlib.suppress(OSError, ValueError):  # a closed terminal
                print(f"warning: {message}", file=file or sys.stderr, flush=True)
        else:
            before(message, category, filename, lineno, file, line)

    warnings.showwarning = show
