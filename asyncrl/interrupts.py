"""Ctrl-C and SIGTERM during a run: the first stops it in good order, the second kills it."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Protocol

EXIT_CODE = 130
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stoppable(Protocol):
    """What a signal does to a run."""

    def stop(self, reason: str) -> None:
        """End in good order, from any thread."""
        ...

    def kill(self) -> None:
        """Kill every process of the run at once, from any thread."""
        ...


class Interrupts:
    """While it is entered, signals go to the run; main thread only.

    Before there is a run (torch is still being imported) a signal raises KeyboardInterrupt: nothing has been
    learned yet that would be lost.
    """

    def __init__(self) -> None:
        self.run: Stoppable | None = None
        self.count = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        for number in SIGNALS:
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if self.run is None:
            raise KeyboardInterrupt
        if self.count == 1:
            self._say(f"{signal.Signals(number).name}: stopping, once more to kill\n")
            # On another thread: the one that this handler has interrupted may hold a lock that `stop` takes.
            threading.Thread(
                target=self.run.stop, args=("interrupted",), name="asyncrl-stop", daemon=True
            ).start()
            return
        self._say("killed\n")
        self.run.kill()
        os._exit(EXIT_CODE)

    def _say(self, text: str) -> None:
        # Not print: the handler may have interrupted a print.
        with contextlib.suppress(OSError):
            os.write(2, text.encode())
