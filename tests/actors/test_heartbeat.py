from __future__ import annotations

import asyncio
import os
from types import SimpleNamespace

import pytest
from actors_rig import make_ring

from asyncrl.actors.exit_errors import actor_hung, actor_killed, how_it_ended
from asyncrl.actors.heartbeat import Heartbeat, private_bytes
from asyncrl.actors.limits import AwakeClock, ProcessLimits, RestartBudget
from asyncrl.actors.server_process import ChildExit
from asyncrl.actors.supervised import SupervisedActor
from asyncrl.shm.ring import CURRENT_ENV, HEARTBEAT_NS, STEPS


def test_time_in_which_the_supervisor_was_stopped_does_not_count() -> None:
    now = [100.0]
    clock = AwakeClock(lambda: now[0])
    now[0] += 0.1
    assert clock.advance() == pytest.approx(0.1)
    now[0] += 3600.0
    assert clock.advance() == 0.5


def test_any_movement_is_a_sign_of_life() -> None:
    ring = make_ring()
    watched = Heartbeat(0, ring)
    watched.poll(1.0)
    assert watched.poll(1.0) == 2.0
    ring.header[HEARTBEAT_NS] += 1
    assert watched.poll(1.0) == 0.0
    assert watched.poll(1.5) == 1.5
    ring.header[CURRENT_ENV] = 1  # the next environment of the same row
    assert watched.poll(1.0) == 0.0
    watched.poll(2.0)
    watched.begin_life()
    assert watched.poll(0.5) == 0.5


def test_time_before_the_fork_does_not_count() -> None:
    """The fork server may take longer to start than an actor may take to become ready."""
    killed: list[bool] = []
    child = SimpleNamespace(pid=0, exited=None, kill=lambda: killed.append(True), python_stack=_no_stack)
    actor, limits = (
        SupervisedActor(0, make_ring(), RestartBudget(3)),
        ProcessLimits(ready_timeout_seconds=1.0),
    )
    actor.begin_life(child)  # type: ignore[arg-type]
    for _ in range(30):
        asyncio.run(actor.check(0.5, limits))
    child.pid = os.getpid()
    asyncio.run(actor.check(0.1, limits))
    assert not killed
    for _ in range(3):
        asyncio.run(actor.check(0.5, limits))
    assert killed and "was not built and reset within 1." in str(actor.killed_for)


def test_an_overwritten_header_is_not_measured() -> None:
    ring, limits = make_ring(), ProcessLimits()
    actor = SupervisedActor(0, ring, RestartBudget(3))
    ring.grant(4)
    ring.header[STEPS] = 1 << 62
    asyncio.run(actor.check(0.1, limits))
    assert ring.fault
    ring.abandoned = True
    ring.begin_again(4, 8)
    ring.header[STEPS] = 8
    asyncio.run(actor.check(0.1, limits))
    error = actor.heartbeat.hung(1.0, True, "")
    assert error.facts["median step time"] == "12.500 ms"


async def _no_stack() -> str:
    return ""


def test_report_of_a_hang_names_the_median_step() -> None:
    ring = make_ring()
    watched = Heartbeat(3, ring)
    for steps in (10, 20, 30, 130):
        ring.header[STEPS] = steps
        watched.poll(0.1)
    ring.header[CURRENT_ENV] = 1
    watched.poll(0.1)
    error = watched.hung(7.0, True, "  File x, line 3 in step")
    assert error.what == "Environment 1 of actor 3 did not return for 7.0 s."
    assert error.facts["median step time"] == "10.000 ms"
    assert "line 3 in step" in str(error.facts["stack (most recent call first)"])


def test_ends_are_told_in_words() -> None:
    assert how_it_ended(-11) == "was killed by SIGSEGV (Segmentation fault)"
    assert how_it_ended(-9) == "was killed by SIGKILL (Killed)"
    assert how_it_ended(7) == "exited with status 7 without a word"
    assert how_it_ended(-63).startswith("was killed by signal 63")
    twice = actor_killed("Actor 2", ChildExit(9, -6, 0), 2)
    assert twice.what == "Actor 2 was killed by SIGABRT (Aborted), after 2 restarts."
    assert "most memory it had resident" not in twice.facts
    assert "no step yet" in str(actor_hung(0, -1, 1.0, False, None, ""))


def test_out_of_memory_is_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    import psutil

    total = psutil.virtual_memory().total
    assert "looks like" not in actor_killed("Actor 0", ChildExit(9, -9, 1000), 0).facts
    assert (
        actor_killed("Actor 0", ChildExit(9, -9, int(total * 0.6)), 0).facts["looks like"] == "out of memory"
    )


def test_private_bytes_of_this_process_and_of_none() -> None:
    assert 2**20 < private_bytes(os.getpid()) < 2**34
    assert private_bytes(0) == 0 and private_bytes(2**22 + 1) == 0
