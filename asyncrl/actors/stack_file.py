"""A file to which a forked process writes its Python stacks, on request and on a fatal signal."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable

_CRASH_MARK = "Fatal Python error: "


class StackFile:
    """Unnamed file whose descriptor the process passes to `faulthandler`."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`

    def fileno(self) -> int:
        """File descriptor."""
        return self._file.fileno()

    def close(self) -> None:
        """Close the file; idempotent."""
        self._file.close()

    async def asked(self, ask: Callable[[], None]) -> str:
        """Call `ask` and return what is written within half a second; "" if nothing is, or the file is closed."""
        file = self._file.fileno()
        before = size = os.fstat(file).st_size
        ask()
        for _ in range(50):
            await asyncio.sleep(0.01)
            if self._file.closed:  # the process died meanwhile
                return ""
            last, size = size, os.fstat(file).st_size
            if size > before and size == last:
                break
        return os.pread(file, size - before, before).decode(errors="replace")

    def crash_report(self) -> str:
        """Return the interpreter's report on the fatal signal that ended the process; "" without one."""
        if self._file.closed:
            return ""
        file = self._file.fileno()
        text = os.pread(file, os.fstat(file).st_size, 0).decode(errors="replace")
        _, mark, report = text.rpartition(_CRASH_MARK)
        return mark + report if mark else ""
