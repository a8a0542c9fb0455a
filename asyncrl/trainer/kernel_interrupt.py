"""SIGINT handler for a notebook cell that waits for runs: an Interrupt stops the runs, and the cell gets their results.

By default the kernel cancels the cell, and its result is lost. A second Interrupt calls the kernel's own handler: it
cancels the cell, and the runs are killed if they do not end.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from asyncrl.show.notebook import in_kernel

_stops: list[Callable[[], None]] = []
_kernels_handler: Any = None
_interrupted = False


@contextlib.contextmanager
def interrupt_stops(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` at the first SIGINT inside the block, in the main thread of a kernel; elsewhere do nothing."""
    global _kernels_handler, _interrupted
    if not in_kernel() or threading.current_thread() is not threading.main_thread():
        yield
        return
    if not _stops:
        _interrupted = False
        _kernels_handler = signal.signal(signal.SIGINT, _handle)
    _stops.append(stop)
    try:
        yield
    finally:
        _stops.remove(stop)
        if not _stops and signal.getsignal(signal.SIGINT) is _handle:
            signal.signal(signal.SIGINT, _kernels_handler)


def _handle(number: int, frame: FrameType | None) -> None:
    global _interrupted
    if _interrupted and callable(_kernels_handler):
        _kernels_handler(number, frame)
        return
    _interrupted = True
    for stop in tuple(_stops):
        stop()
