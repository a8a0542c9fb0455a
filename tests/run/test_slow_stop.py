"""Report about a run that does not end after a request to stop."""

from __future__ import annotations

import asyncio
import warnings
from pathlib import Path

import pytest
from waiting import PATIENCE_SECONDS

from asyncrl import errors
from asyncrl.run import slow_stop
from asyncrl.run.slow_stop import warned_of_slow_stop


async def deep(event: asyncio.Event) -> None:
    await event.wait()


async def outer(event: asyncio.Event) -> None:
    await deep(event)


def test_a_slow_stop_names_what_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_stop, "WARN_SECONDS", 0.01)

    async def main() -> None:
        requested, never = asyncio.Event(), asyncio.Event()
        stuck = asyncio.create_task(outer(never), name="close-disk")
        with warned_of_slow_stop(requested, lambda: tmp_path):
            requested.set()
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not (tmp_path / "waiting.txt").exists():
                    await asyncio.sleep(0.001)
        stuck.cancel()

    with pytest.warns(
        errors.StopTakesLong, match=r"ASYNC045.*close-disk in wait \(locks.py:\d+\).*waiting.txt"
    ):
        asyncio.run(main())
    text = (tmp_path / "waiting.txt").read_text()
    assert text.index("outer (test_slow_stop.py") < text.index("deep (test_slow_stop.py")
    assert "slow-stop" not in text


def test_a_run_that_ends_in_time_warns_of_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_stop, "WARN_SECONDS", 0.01)

    async def main() -> None:
        requested = asyncio.Event()
        with warned_of_slow_stop(requested, lambda: tmp_path):
            await asyncio.sleep(0.05)  # nobody asked it to stop
            requested.set()
        await asyncio.sleep(0.05)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(main())
    assert not list(tmp_path.iterdir())
