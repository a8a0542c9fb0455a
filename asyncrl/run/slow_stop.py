"""Time limit of a step of a run's end, and the warning about a run that was asked to stop and has not ended.

Every step has a limit, but all together may take minutes if a disk or an environment hangs. The warning names the tasks
that the run waits for; a file has their stacks.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from asyncrl.errors import AsyncRLError, StopTakesLong, warn

T = TypeVar("T")

STEP_SECONDS = 60.0
"""Time limit of the report and of the checkpoint; both take milliseconds unless a device or disk hangs."""
WARN_SECONDS = 20.0
"""Time after a request to stop at which a run that has not ended gives the warning."""
FILE = "waiting.txt"


async def within_limit(answer: Awaitable[T]) -> T:
    """Await `answer`. Raises `AsyncRLError` after `STEP_SECONDS`."""
    try:
        async with asyncio.timeout(STEP_SECONDS):
            return await answer
    except TimeoutError as error:
        raise AsyncRLError(
            f"The end of the run waited {STEP_SECONDS:.0f} s for the learner or the disk without an answer.",
            fix="look for a device or a network file system that hangs",
        ) from error


@contextlib.contextmanager
def warned_of_slow_stop(requested: asyncio.Event, directory: Callable[[], Path | None]) -> Iterator[None]:
    """Warn (ASYNC045) `WARN_SECONDS` after `requested` is set, unless the block has ended; event-loop thread.

    Args:
        requested: set when the run is asked to stop.
        directory: returns the directory of the file with the tasks' stacks; None writes none.
    """
    watching = asyncio.create_task(_warn(requested, directory), name="slow-stop")
    try:
        yield
    finally:
        watching.cancel()


async def _warn(requested: asyncio.Event, directory: Callable[[], Path | None]) -> None:
    await requested.wait()
    await asyncio.sleep(WARN_SECONDS)
    waiting = {task.get_name(): _stack(task) for task in asyncio.all_tasks() - {asyncio.current_task()}}
    where, folder = "", directory()
    if folder is not None:
        text = "\n".join(f"{name}\n  " + "\n  ".join(lines) for name, lines in sorted(waiting.items()))
        with contextlib.suppress(OSError):
            (folder / FILE).write_text(f"{text}\n", encoding="utf-8")
            where = f"; {folder / FILE} has their stacks"
    tasks = ", ".join(f"{name} in {lines[-1]}" for name, lines in sorted(waiting.items()) if lines)
    text = (
        f"[ASYNC045] the run was asked to stop {WARN_SECONDS:.0f} s ago and has not ended; it waits for {tasks}{where}"
        "; interrupt once more to kill it"
    )
    warn(StopTakesLong(text))


def _stack(task: asyncio.Task[Any]) -> list[str]:
    """Coroutine stack of a task, the outermost first."""
    return [
        f"{code.co_name} ({Path(code.co_filename).name}:{line})" for code, line in _frames(task.get_coro())
    ]


def _frames(awaited: Any) -> Iterator[tuple[Any, int]]:
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is not None:
            yield frame.f_code, frame.f_lineno
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
