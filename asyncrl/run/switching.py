"""The interpreter's switch interval during runs."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator

SWITCH_SECONDS = 0.0005
"""Interpreter's switch interval during a run: with a busy learner thread the loop answers in 0.3 ms instead of 3.5."""

_lock = threading.Lock()
_runs = 0
_before = 0.0


@contextlib.contextmanager
def fast_switching() -> Iterator[None]:
    """Set `SWITCH_SECONDS`; the last of several runs at once restores the interval from before the first."""
    global _runs, _before
    with _lock:
        _runs += 1
        if _runs == 1:
            _before = sys.getswitchinterval()
            sys.setswitchinterval(SWITCH_SECONDS)
    try:
        yield
    finally:
        with _lock:
            _runs -= 1
            if not _runs:
                sys.setswitchinterval(_before)
