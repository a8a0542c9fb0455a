"""Signals during a command: the first ends it in good order, a second SIGINT or SIGTERM kills.

A run is stopped by SIGINT, SIGTERM or SIGHUP (`Interrupts`); a command without one is cancelled (`run_until_signal`). A
closing terminal causes several SIGHUPs (one from the kernel, one from the shell), so SIGHUP never counts as the second
signal. SIGHUP stays ignored if it was ignored at the start (`nohup`).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import signal
import threading
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any, Protocol, TypeVar

from asyncrl.cli.entry import received

EXIT_CODE = 130
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


_T = TypeVar("_T")


def run_until_signal(main: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine as `asyncio.run` does; for commands without a run. Signals are those of the main thread.

    The first signal cancels it, so that it closes what it has opened, also one that came before and that an import
    swallowed. A handler that raises KeyboardInterrupt would lose a signal that comes in a `__del__`.

    Raises:
        KeyboardInterrupt: a signal has ended it.
    """
    import asyncio

    ended_by: list[int] = list(received)
    heeded = SIGNALS if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.getsignal(number) for number in heeded}

    async def cancelled_by_signals() -> _T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def cancel(number: int) -> None:
            ended_by.append(number)
            loop.remove_signal_handler(number)
            task.cancel()

        for number, handler in before.items():
            if handler is not signal.SIG_IGN:
                loop.add_signal_handler(number, cancel, number)
        if ended_by:
            task.cancel()
        return await main

    try:
        return asyncio.run(cancelled_by_signals())
    except asyncio.CancelledError as error:
        if not ended_by:
            raise
        raise KeyboardInterrupt from error
    finally:  # the loop leaves the default handlers
        for number, handler in before.items():
            signal.signal(number, handler)


class Stoppable(Protocol):
    """Protocol of a run that signals can end."""

    def stop(self, reason: str) -> None:
        """Stop in good order; any thread."""
        ...

    def kill(self) -> None:
        """Kill every process of the run immediately; any thread."""
        ...


class Interrupts:
    """Context manager that forwards signals to the run; main thread only.

    Before `run` is set (torch is still being imported) a signal raises KeyboardInterrupt, as nothing has been learned
    that could be lost. A module being imported may swallow it, so it is raised again when `run` is set, or turn it into
    an ImportError (NumPy does), so it also replaces any error before `run` is set.

    Attributes:
        count: number of signals received.
        notify: shows a message if a redrawn screen would overwrite standard error; None prints it.
    """

    def __init__(self) -> None:
        self._run: Stoppable | None = None
        self._numbers = itertools.count(1)
        self.count = len(received)  # while the command line was imported
        self.notify: Callable[[str], None] | None = None
        self._before: dict[int, Any] = {}

    @property
    def run(self) -> Stoppable | None:
        """Receiver of the signals."""
        return self._run

    @run.setter
    def run(self, run: Stoppable) -> None:
        self._run = run
        if self.count:
            raise KeyboardInterrupt

    def __enter__(self) -> Interrupts:
        for number in SIGNALS:
            if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self.count and self._run is None and isinstance(error, Exception):
            raise KeyboardInterrupt from error

    def _handle(self, number: int, frame: FrameType | None) -> None:
        # `next` is atomic: the handler may be interrupted by another signal between any two bytecodes.
        count = self.count = next(self._numbers)
        if number == signal.SIGHUP and count > 1:
            return
        if self._run is None:
            raise KeyboardInterrupt
        if count == 1:
            again = "Ctrl-C" if number == signal.SIGHUP else "once more"
            text = f"{signal.Signals(number).name}: stopping, {again} to kill"
            # On another thread: the interrupted one may hold a lock that `stop` or `notify` takes, and a text to a full
            # pipe that nobody reads never returns.
            threading.Thread(
                target=self._stop, args=(self._run, text), name="asyncrl-stop", daemon=True
            ).start()
            return
        self._run.kill()
        self._print("killed\n")
        os._exit(EXIT_CODE)

    def _stop(self, run: Stoppable, text: str) -> None:
        run.stop("interrupted")
        if self.notify is not None:
            self.notify(text)
        else:
            self._print(f"{text}\n")

    def _print(self, text: str) -> None:
        # `os.write`, as the handler may have interrupted a `print`; and only if there is room for it.
        with contextlib.suppress(OSError):
            if select.select((), (2,), (), 0)[1]:
                os.write(2, text.encode())
