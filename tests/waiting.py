"""Waiting for a condition in tests."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import psutil

PATIENCE_SECONDS = 180.0
"""Time that a condition has to become true: a start takes a second, and a minute where ten programs share a core."""


def wait_until(condition: Callable[[], Any], what: str, seconds: float = PATIENCE_SECONDS) -> None:
    """Poll `condition` every 5 ms until it holds. Raises AssertionError that names `what` after `seconds`.

    A condition that is slow to ask is asked less often: what is waited for needs the core.
    """
    deadline = time.monotonic() + seconds
    while True:
        asked = time.monotonic()
        if condition():
            return
        assert time.monotonic() < deadline, f"waited {seconds:g} s in vain for {what}"
        time.sleep(max(0.005, 4 * (time.monotonic() - asked)))


def is_running(pid: int) -> bool:
    """Whether a process exists and has not ended; one that has ended may wait to be reaped."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
