"""Sessions: messages before the groups are connected, waits that end, and several runs of one program."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from group_rig import on_ranks, vector_of
from waiting import PATIENCE_SECONDS, wait_until

from asyncrl.config import TrainerConfig
from asyncrl.errors import GroupLost
from asyncrl.groups.place import Place
from asyncrl.groups.session import NO_STORE, Session
from asyncrl.groups.state import packed

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(autouse=True)
def one_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Open the same store for all sessions of a test."""
    store = dist.HashStore()
    monkeypatch.setattr("asyncrl.groups.session.open_store", lambda *_, **__: store)


def joined(mode: str = "average") -> list[Session]:
    """Sessions of two ranks."""

    def join(rank: int) -> Session:
        place = Place(rank, 2, "127.0.0.1", 1, agents=2, agent_store=True)
        return Session(place, TrainerConfig(env="any", algo="any", fusion=mode), {})

    return on_ranks(2, join)


class Core:
    """Updater with two parameters."""

    def __init__(self) -> None:
        self.vector = vector_of(torch.zeros(2))

    def state_dict(self) -> dict[str, Any]:
        return {"parameters": self.vector.parameters}

    def load_state_dict(self, state: Any) -> None:
        self.vector.parameters.copy_(state["parameters"])


def attached(session: Session) -> list[str]:
    """Attach a core; returns the reasons for which another rank stops the job, as they come."""
    core, stops = Core(), list[str]()
    session.attach(
        core,
        status=lambda: {"env_steps": 1},
        state=lambda: packed(core.state_dict()),
        on_stop=stops.append,
        on_failure=lambda _: None,
        on_beat=lambda _: None,
    )
    return stops


def in_background(function: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Run `function` on a thread; the list holds its result or error."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(function())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, found


def test_a_stop_before_the_groups_are_connected_reaches_the_others() -> None:
    sessions = joined()
    sessions[0].tell_stop("stopped")
    try:
        _, stops = on_ranks(2, lambda rank: attached(sessions[rank]))
        wait_until(lambda: stops == ["stopped"], "the stop")
    finally:
        on_ranks(2, lambda rank: sessions[rank].leave())


def test_a_rank_that_fails_before_it_connects_is_named_at_once() -> None:
    first, second = joined()
    second.tell_failure("[ASYNC004] no environment")
    started = time.monotonic()
    connecting, _ = in_background(lambda: attached(first))
    wait_until(lambda: first.failure is not None, "the failure")
    assert "Rank 1 on" in str(first.failure) and "no environment" in str(first.failure)
    connecting.join(20)
    assert not connecting.is_alive() and time.monotonic() - started < 20
    first.leave()
    second.leave()


@pytest.mark.parametrize("mode", ["async", "average"])
def test_a_rank_that_leaves_waits_no_longer_for_the_others(mode: str) -> None:
    """Rank 0 is suspended before it gives its state."""
    first, second = joined(mode)
    kept: list[Any] = []
    if mode == "average":
        connecting, kept = in_background(first._connection.all)
    waiting, _ = in_background(lambda: attached(second))
    if mode == "average":
        wait_until(lambda: bool(second._connection.opened), "the connection")
        connecting.join(PATIENCE_SECONDS)
    opened = list(second._connection.opened)
    second.leave()
    waiting.join(20)
    assert not waiting.is_alive() and len(kept) == (mode == "average")
    heartbeat = second.heartbeat
    assert heartbeat is None or not heartbeat._thread.is_alive()
    first.leave()
    # Rank 1's connection is dropped once its operation has failed, which the end of rank 0's brings about: dropped
    # earlier, by a garbage collection, it would be kept until the process ends, with its sockets.
    kept.clear()
    for peers in opened:
        wait_until(peers._pending._newest.is_completed, "the end of the operation")


def test_a_failure_after_the_last_fusion_does_no_harm() -> None:
    first, _ = joined()
    first._finished = True
    first._fail(GroupLost("Rank 1 has failed."))
    assert first.failure is None


def test_an_error_gives_no_advice_that_was_followed_and_does_not_call_this_rank_lost() -> None:
    first, second = joined("async")
    assert "--fusion async" not in str(second._lost(0, "gone"))
    assert "Rank 0" in str(second._lost(0, NO_STORE))
    assert "The store of the job is lost" in str(first._lost(0, NO_STORE))
    first._asynchronous = False
    assert "--fusion async" in str(first._lost(1, "gone"))


def test_a_second_run_of_the_same_program_hears_nothing_of_the_first() -> None:
    for reason in ("max_seconds", "target_return"):
        sessions = joined()
        _, stops = on_ranks(2, lambda rank: attached(sessions[rank]))  # noqa: B023
        sessions[0].tell_stop(reason)
        wait_until(lambda: stops != [], "the stop")  # noqa: B023
        on_ranks(2, lambda rank: sessions[rank].finish())  # noqa: B023
        on_ranks(2, lambda rank: sessions[rank].leave())  # noqa: B023
        assert stops == [reason]


@pytest.mark.parametrize("mode", ["average", "async"])
def test_a_store_that_is_lost_while_the_groups_connect_is_told(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asyncrl.groups.session.EXPLAIN_SECONDS", 0.1)

    class Lost:
        def __getattr__(self, name: str) -> None:
            raise dist.DistNetworkError("Connection reset by peer")

    _, second = joined(mode)
    object.__setattr__(second._connection, "store", Lost())
    with pytest.raises(GroupLost, match="Connection reset by peer"):
        attached(second)
    second.leave()
