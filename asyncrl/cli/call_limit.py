"""Time limit for the environment calls of `asyncrl enjoy`, which plays in this process without a supervisor.

Python cannot interrupt a call of foreign code, least of all one that waits in C. A hung call is therefore reported with
its Python stack, and the process ends.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

from asyncrl.actors.limits import AwakeClock
from asyncrl.cli.output import print_error
from asyncrl.errors import EnvironmentHung
from asyncrl.printable import TRACEBACK_LIMIT, printable

LOOK_SECONDS = 0.1
LOCKED_SECONDS = 10.0
"""Additional time limit for a call that keeps the interpreter locked: then only the stack is printed; exit code 1."""


class CallLimit:
    """Context manager for the main thread that ends the process with ASYNC015 if a call takes too long.

    Args:
        seconds: maximum duration of a call; time in which the process was stopped does not count.
        name: the environment's name.
        on_hang: called on another thread before the process ends.

    Attributes:
        seconds: as given; may be changed between calls.
    """

    def __init__(self, seconds: float, name: str, on_hang: Callable[[], None]) -> None:
        self.seconds, self._name, self._on_hang = seconds, name, on_hang
        self._call, self._calls = "", 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="asyncrl-call-limit", daemon=True)

    def ask(self, call: str, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Call `function` within the limit and return its result."""
        self._call, self._calls = call, self._calls + 1
        try:
            return function(*arguments, **options)
        finally:
            self._call = ""

    def _watch(self) -> None:
        clock, seen, waited = AwakeClock(), 0, 0.0
        while not self._ended.wait(LOOK_SECONDS):
            faulthandler.dump_traceback_later(self.seconds + LOCKED_SECONDS, exit=True, file=2)
            awake, call = clock.advance(), self._call
            waited = waited + awake if call and seen == self._calls else 0.0
            seen = self._calls
            if waited > self.seconds:
                self._end(call)

    def _end(self, call: str) -> None:
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        error = EnvironmentHung(
            f"{self._name} did not return from {call} within {self.seconds:g} s.",
            facts={"environment": self._name, "call": call},
            fix="mend the environment, or give it more time with --step-timeout-seconds",
            remote_traceback=printable("".join(traceback.format_stack(frame)), TRACEBACK_LIMIT),
        )
        with contextlib.suppress(Exception):
            self._on_hang()
        print_error(str(error))
        os._exit(error.exit_code)

    def __enter__(self) -> CallLimit:
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._ended.set()
        self._thread.join()
        faulthandler.cancel_dump_traceback_later()


class LimitedEnv:
    """Environment whose `reset`, `step`, `render` and `close` have a limit; other attributes are passed through."""

    def __init__(self, env: Any, limit: CallLimit) -> None:
        self._env, self._limit = env, limit

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._env, name)
        if name in ("reset", "step", "render", "close"):
            return lambda *arguments, **options: self._limit.ask(name, value, *arguments, **options)
        return value
