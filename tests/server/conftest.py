"""Fixtures: a server for each module's tests, on both kinds of event loop; a tab of the worker's browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from headless_browser import browser, chromium
from serving import Run, ServerThread

__all__ = ["browser", "chromium"]


@pytest.fixture(scope="module", params=["asyncio", "uvloop"])
def shared(request: pytest.FixtureRequest) -> Iterator[ServerThread]:
    """One server for the tests of a module."""
    thread = ServerThread(loops=request.param).start()
    yield thread
    thread.close()


@pytest.fixture
def server(shared: ServerThread) -> ServerThread:
    """The module's server, with a new run."""
    fresh = Run()
    fresh.checkpoint_gate.set()
    vars(shared.run).update(vars(fresh))
    # What was taken for the test before must not be served to this one.
    shared.server._feed._reading = None
    return shared
