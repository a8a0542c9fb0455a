from __future__ import annotations

import asyncio
import errno
import os
import resource
from collections.abc import Iterator

import fakes
import pytest
from actors_rig import Rig

from asyncrl.actors.descriptors import PER_ACTOR, descriptors_or_error, require_descriptors
from asyncrl.actors.forkserver import ForkServer
from asyncrl.actors.probe import probe
from asyncrl.envs.source import EnvSource
from asyncrl.errors import TooFewDescriptors


@pytest.fixture
def limits() -> Iterator[tuple[int, int]]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_need_is_told_before_anything_starts(limits: tuple[int, int]) -> None:
    require_descriptors(4)
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, limits[1]))
    with pytest.raises(
        TooFewDescriptors, match=r"(?s)ASYNC030\].*200 actors needs 1,.*100 are allowed.*ulimit -n 2048"
    ):
        require_descriptors(200)
    assert TooFewDescriptors.exit_code == 4


def test_only_want_of_descriptors_is_translated() -> None:
    for number in (errno.EMFILE, errno.ENFILE):
        text = "The probe process cannot be started: "
        with pytest.raises(TooFewDescriptors, match=text), descriptors_or_error("The probe process"):
            raise OSError(number, os.strerror(number))
    with pytest.raises(FileNotFoundError), descriptors_or_error("The probe process"):
        raise FileNotFoundError(errno.ENOENT, "no such file")


def test_pool_holds_no_more_than_is_said(server: ForkServer) -> None:
    async def story() -> None:
        held = []
        for num_actors in (1, 4):
            async with Rig(server, fakes.SimpleEnv, num_actors=num_actors):
                held.append(len(os.listdir("/proc/self/fd")))
        assert held[1] - held[0] <= 3 * PER_ACTOR

    asyncio.run(story())


def test_running_out_of_descriptors_is_a_coded_error_and_leaves_none(
    server: ForkServer, limits: tuple[int, int]
) -> None:
    async def story() -> None:
        source = EnvSource.from_user(fakes.SimpleEnv)
        before = sorted(os.listdir("/proc/self/fd"))
        top = max(int(fd) for fd in before)
        for spare in range(4):  # two for the socket, one for the stack, one for the payload
            taken = [os.dup(0)]
            while taken[-1] <= top or len(taken) < spare:
                taken.append(os.dup(0))
            resource.setrlimit(resource.RLIMIT_NOFILE, (taken[-1] + 1, limits[1]))
            try:
                for _ in range(spare):
                    os.close(taken.pop())
                with pytest.raises(TooFewDescriptors, match=r"(?s)Too many open files.*ulimit -n"):
                    await probe(server, source)
            finally:
                for fd in taken:
                    os.close(fd)
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            assert sorted(os.listdir("/proc/self/fd")) == before
        await probe(server, source)

    asyncio.run(story())
