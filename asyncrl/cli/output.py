"""Writing to standard output and error without waiting for a reader.

A write to a pipe that is full and that nobody reads, or to a terminal that is paused, never returns. A run must go on
then, stop when it is told to, and end. So every text of a run is written by a thread that is waited for a limited time.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable

READER_SECONDS = 2.0
"""Time that a reader has to take a text; a text that comes after one that was not taken is dropped at once."""

_writing: dict[str, threading.Thread] = {}


def print_error(text: str) -> None:
    """Print a line to standard error; an error of the stream is ignored."""

    def write() -> None:
        with contextlib.suppress(OSError, ValueError):
            print(text, file=sys.stderr, flush=True)

    without_waiting("stderr", write)


def without_waiting(stream: str, write: Callable[[], object]) -> bool:
    """Call `write` on a thread; return whether it has returned within `READER_SECONDS`.

    Args:
        stream: name of the stream that `write` writes. While an earlier call for it has not returned, `write` is not
            called.
        write: what it raises is raised here, if it returns in time.
    """
    before = _writing.get(stream)
    if before is not None and before.is_alive():
        return False
    raised: list[Exception] = []

    def call() -> None:
        try:
            write()
        except Exception as error:
            raised.append(error)

    thread = _writing[stream] = threading.Thread(target=call, name=f"asyncrl-{stream}", daemon=True)
    thread.start()
    thread.join(READER_SECONDS)
    if raised:
        raise raised[0]
    return not thread.is_alive()


def exit_if_unread(code: int) -> None:
    """End the process at once if a stream is not read: its thread holds a lock that the interpreter's end takes."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            without_waiting("stdout" if stream is sys.stdout else "stderr", stream.flush)
    if any(thread.is_alive() for thread in _writing.values()):
        os._exit(code)
