"""Kernels made ready before a run, with a line that says so where something must be compiled.

Two processes do it at the same time, the main process while actors' modules and kernels load in the fork server. Each
takes the kernels that nobody else compiles just now, and in the end waits for those of the other.
"""

from __future__ import annotations

import sys
import threading
from typing import TextIO

from asyncrl.shm.kernel import Kernel, declared
from asyncrl.shm.kernel_cache import temporary_folder


def prepare_run(without: tuple[str, ...] = (), cancelled: threading.Event | None = None) -> None:
    """Make ready what the imported modules define, and say so on stderr where something must be compiled.

    Args:
        without: modules or packages whose kernels this run does not need.
        cancelled: once it is set, no further kernel is begun.
    """
    # From the end: the fork server begins at the other one, with the kernels of actors.
    _prepare(
        [kernel for kernel in reversed(declared()) if not _within(kernel, without)], sys.stderr, cancelled
    )


def prepare_quietly(without: tuple[str, ...] = ()) -> None:
    """The same without a word: in the fork server, or where `prepare_run` has said it."""
    _prepare([kernel for kernel in declared() if not _within(kernel, without)], None)


def _within(kernel: Kernel, modules: tuple[str, ...]) -> bool:
    return any(f"{kernel.__module__}.".startswith(f"{module}.") for module in modules)


def _prepare(kernels: list[Kernel], stream: TextIO | None, cancelled: threading.Event | None = None) -> None:
    missing = []
    for kernel in kernels:
        if not kernel.is_ready:
            if kernel.is_stored:
                kernel.ready()
            elif not kernel.cold:
                missing.append(kernel)
    if not missing:
        return
    progress = Progress(len(missing), stream, _notice(missing))
    busy = []
    for kernel in missing:
        if cancelled is not None and cancelled.is_set():
            return
        if kernel.ready(wait=False):
            progress.advance()
        else:
            busy.append(kernel)
    for kernel in busy:
        if cancelled is not None and cancelled.is_set():
            return
        kernel.ready()
        progress.advance()


def _notice(missing: list[Kernel]) -> str:
    """How long the compiled kernels will last."""
    folders = [kernel._cache.folder for kernel in missing]
    if None in folders:
        return "for this run alone, for no cache folder can be written"
    if any(folder.is_relative_to(temporary_folder()) for folder in folders if folder):
        return f"kept in {temporary_folder()}, for no cache folder can be written"
    return "once per installation"


class Progress:
    """One line about kernels that are compiled: on a terminal it counts, elsewhere it is written once.

    Args:
        total: how many.
        stream: where to; None says nothing, as does one that is closed.
        notice: what else there is to say.
    """

    def __init__(self, total: int, stream: TextIO | None, notice: str = "once per installation") -> None:
        self._total, self._done = total, 0
        self._stream, self._notice = stream, notice
        self._counts = stream is not None and not stream.closed and stream.isatty()
        self._write(f"\rcompiling kernels, {notice}: 0/{total}" if self._counts else self._whole())

    def _whole(self) -> str:
        return f"compiling {self._total} kernel{'s' * (self._total != 1)}, {self._notice}\n"

    def advance(self) -> None:
        """Count one more."""
        self._done += 1
        if self._counts:
            end = "\n" if self._done == self._total else ""
            self._write(f"\rcompiling kernels, {self._notice}: {self._done}/{self._total}{end}")

    def _write(self, text: str) -> None:
        if self._stream is not None:
            try:
                self._stream.write(text)
                self._stream.flush()
            except (OSError, ValueError):  # nobody reads it any more
                self._stream = None
