"""One fork server for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from asyncrl.actors.forkserver import ForkServer


@pytest.fixture(scope="session")
def server() -> Iterator[ForkServer]:
    server = ForkServer()
    server.start()
    yield server
    server.close()
