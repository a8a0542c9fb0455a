"""Compilation of kernels before a run, with a progress line.

The main process and the fork server do it at the same time. Each compiles the kernels that the other is not compiling,
and finally waits for the other's.
"""

from __future__ import annotations

import sys
import threading
from typing import TextIO

from asyncrl.shm.kernel import Kernel, declared
from asyncrl.shm.kernel_cache import temporary_folder


def prepare_run(
    without: tuple[str, ...] = (),
    cancelled: threading.Event | None = None,
    may_print: threading.Event | None = None,
) -> None:
    """Load or compile the kernels of the imported modules, with a line on stderr if any must be compiled.

    Args:
        without: modules or packages whose kernels this run does not need.
        cancelled: once set, no further kernel is begun.
        may_print: until it is set, nothing is written, so that the error of a run that does not begin is printed alone.
    """
    # From the end, because the fork server begins at the start, with the kernels of actors.
    kernels = [kernel for kernel in reversed(declared()) if not _within(kernel, without)]
    _prepare(kernels, sys.stderr, cancelled, may_print)


def prepare_quietly(without: tuple[str, ...] = ()) -> None:
    """Load or compile the kernels without output, in the fork server or after `prepare_run`."""
    _prepare([kernel for kernel in declared() if not _within(kernel, without)], None)


def _within(kernel: Kernel, modules: tuple[str, ...]) -> bool:
    return any(f"{kernel.__module__}.".startswith(f"{module}.") for module in modules)


def _prepare(
    kernels: list[Kernel],
    stream: TextIO | None,
    cancelled: threading.Event | None = None,
    may_print: threading.Event | None = None,
) -> None:
    missing = []
    for kernel in kernels:
        if not kernel.is_ready:
            if kernel.is_stored:
                kernel.ready()
            elif not kernel.cold:
                missing.append(kernel)
    if not missing:
        return
    progress = Progress(len(missing), stream, _notice(missing), may_print)
    for wait in (False, True):
        busy = []
        for kernel in missing:
            if cancelled is not None and cancelled.is_set():
                return
            if kernel.ready(wait):
                progress.advance()
            else:
                busy.append(kernel)
        missing = busy


def _notice(missing: list[Kernel]) -> str:
    """Text that says how long the compiled kernels are kept."""
    folders = [kernel._cache.folder for kernel in missing]
    if None in folders:
        return "for this run alone, for no cache folder can be written"
    temporary = temporary_folder()
    if temporary is not None and any(folder.is_relative_to(temporary) for folder in folders if folder):
        return f"kept in {temporary}, for no cache folder can be written"
    return "once per installation"


class Progress:
    """Progress line of a compilation: on a terminal it counts, elsewhere it is written once.

    Args:
        total: number of kernels.
        stream: where to write; None or a closed stream writes nothing.
        notice: text of `_notice`.
        may_print: nothing is written before it is set, and nothing at all if all kernels are compiled by then.
    """

    def __init__(
        self,
        total: int,
        stream: TextIO | None,
        notice: str = "once per installation",
        may_print: threading.Event | None = None,
    ) -> None:
        self._total, self._done = total, 0
        self._stream, self._notice, self._may_print = stream, notice, may_print
        self._counts = stream is not None and not stream.closed and stream.isatty()
        self._begun = False
        self._show()

    def advance(self) -> None:
        """Count one more kernel."""
        self._done += 1
        self._show()

    def _show(self) -> None:
        ended = self._done == self._total
        if not self._begun and (ended or (self._may_print is not None and not self._may_print.is_set())):
            return
        if self._counts:
            counted = f"{self._done}/{self._total}" + "\n" * ended
            self._write(f"\rcompiling kernels, {self._notice}: {counted}")
        elif not self._begun:
            self._write(f"compiling {self._total} kernel{'s' * (self._total != 1)}, {self._notice}\n")
        self._begun = True

    def _write(self, text: str) -> None:
        if self._stream is not None:
            try:
                self._stream.write(text)
                self._stream.flush()
            except (OSError, ValueError):  # the stream is broken or closed
                self._stream = None
