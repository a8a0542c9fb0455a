"""Fixture: one fork server for all tests of this folder."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from asyncrl.actors.forkserver import ForkServer
from asyncrl.actors.probe import probe
from asyncrl.envs.source import EnvSource


@pytest.fixture(scope="session")
def server() -> Iterator[ForkServer]:
    server = ForkServer()
    server.start()
    asyncio.run(probe(server, EnvSource.from_user("CartPole-v1")))  # it has forked its guardian then
    yield server
    server.close()
