"""The interpreter's switch interval while runs train."""

from __future__ import annotations

import contextlib
import sys

from asyncrl.run.switching import SWITCH_SECONDS, fast_switching


def test_the_interval_is_restored_after_the_last_of_overlapping_runs() -> None:
    before = sys.getswitchinterval()
    first, second = contextlib.ExitStack(), contextlib.ExitStack()
    first.enter_context(fast_switching())
    second.enter_context(fast_switching())
    first.close()
    assert abs(sys.getswitchinterval() - SWITCH_SECONDS) < 1e-9
    second.close()
    assert abs(sys.getswitchinterval() - before) < 1e-9
