"""Start of a job: missing ranks, and differences between ranks."""

from __future__ import annotations

import dataclasses
import json
import socket
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist
from group_rig import on_ranks
from waiting import PATIENCE_SECONDS, wait_until

from asyncrl.errors import ConfigurationError, GroupLost, StoppedWhileStarting
from asyncrl.groups.heartbeat import Heartbeat
from asyncrl.groups.launch import free_port
from asyncrl.groups.meeting import card_of, hand_out, meet, open_store
from asyncrl.groups.place import Place, place_of_process

PLACE = Place(rank=0, size=3, host="127.0.0.1", port=1)


@pytest.fixture(autouse=True, scope="module")
def libuv_of_torch_has_started() -> None:
    """Start torch's libuv, whose first store opens a pipe for the whole process; that is not a leak of a test."""
    dist.TCPStore("127.0.0.1", free_port(), is_master=True, wait_for_workers=False)


def place(rank: int, size: int = 3) -> Place:
    return dataclasses.replace(PLACE, rank=rank, size=size)


def test_all_ranks_get_all_cards_in_order() -> None:
    store = dist.HashStore()
    found = on_ranks(3, lambda rank: meet(store, place(rank), {**card_of(place(rank), {}), "pid": rank}))
    assert [[card["pid"] for card in cards] for cards in found] == [[0, 1, 2]] * 3


def test_ranks_that_differ_are_refused_on_every_rank_with_what_differs() -> None:
    store = dist.HashStore()

    def rank(index: int) -> str:
        options = {"fusion_interval": 32 if index < 2 else 16, "seed": 0}
        card = card_of(place(index), options)
        if index == 1:
            card["versions"]["torch"] = "1.0"
        with pytest.raises(ConfigurationError, match="differ") as caught:
            meet(store, place(index), card)
        return str(caught.value)

    texts = on_ranks(3, rank)
    for text in texts:
        assert "fusion_interval: 32 on rank 0 (" in text and "16 on rank 2 (" in text
        assert "1.0 on rank 1 (" in text and "seed" not in text


def test_a_rank_that_does_not_come_is_named() -> None:
    store = dist.HashStore()

    def rank(index: int) -> str:
        with pytest.raises(GroupLost) as caught:
            meet(store, place(2 * index), card_of(place(2 * index), {}), seconds=0.3)
        return str(caught.value)

    for text in on_ranks(2, rank):
        assert "[ASYNC032] Rank 1 of 3 did not come within 0 s." in text and "came: 2 of 3" in text


@pytest.mark.parametrize("length", [0, 20 << 20])
def test_a_run_begins_with_any_number_of_bytes(length: int) -> None:
    """Torch's server ends a connection that sends a value of 8 MiB, as a checkpoint of an image network has."""
    port, start = free_port(), bytes(length)
    places = [dataclasses.replace(place(rank, 2), port=port) for rank in range(2)]

    stores = [open_store(of_rank, every_life=False) for of_rank in places]

    def rank(index: int) -> bytes:
        return hand_out(stores[index], places[index], start if index == 0 else b"")

    assert on_ranks(2, rank) == [start, start]


def test_a_run_that_is_stopped_waits_no_longer() -> None:
    with pytest.raises(StoppedWhileStarting):
        meet(dist.HashStore(), place(0), card_of(place(0), {}), cancelled=lambda: True)


def test_a_store_that_nobody_serves_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncrl.groups.meeting.JOIN_SECONDS", 0.5)
    with pytest.raises(GroupLost, match=r"Rank 1 on .* cannot reach rank 0") as caught:
        open_store(dataclasses.replace(PLACE, rank=1), every_life=False)
    assert "127.0.0.1:1" in str(caught.value)


def test_the_wait_for_a_store_ends_when_the_run_is_stopped() -> None:
    started = time.monotonic()
    with pytest.raises(StoppedWhileStarting):
        open_store(dataclasses.replace(PLACE, rank=1), every_life=False, cancelled=lambda: True)
    assert time.monotonic() - started < 10


def test_a_port_in_use_is_told_by_rank_0_which_serves_the_store() -> None:
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        taken = dataclasses.replace(PLACE, port=other.getsockname()[1])
        with pytest.raises(GroupLost, match=r"Rank 0 on .* cannot serve the store") as caught:
            open_store(taken, every_life=False)
    assert "EADDRINUSE" in str(caught.value) and "MASTER_PORT" in str(caught.value)


def test_a_store_that_is_lost_while_the_ranks_meet_is_told() -> None:
    with pytest.raises(GroupLost, match="store of the job is lost") as caught:
        meet(FailingStore({0}), place(1), card_of(place(1), {}))
    assert "cause: no answer" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [("RANK", "4"), ("RANK", "-1"), ("WORLD_SIZE", "many"), ("MASTER_PORT", "99999"), ("RANK", "")],
)
def test_variables_of_a_place_are_checked(name: str, value: str) -> None:
    variables = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
    with pytest.raises(
        ConfigurationError, match=f"{name} must be a whole number from 0 to .*, got '{value}'"
    ):
        place_of_process(variables | {name: value})


def test_a_place_is_read_from_torchruns_variables() -> None:
    variables = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
    assert place_of_process(variables) == Place(1, 4, "10.0.0.1", 29500)
    agent = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "2"}
    agent["GROUP_WORLD_SIZE"] = "3"
    assert place_of_process(variables | agent) == Place(1, 4, "10.0.0.1", 29500, 2, 3, True)
    assert place_of_process(variables | {"WORLD_SIZE": "1"}) is None
    assert place_of_process({"RANK": "0"}) is None


def heartbeat(store: Any, rank: int, events: list[Any], told: threading.Event) -> Heartbeat:
    def note(kind: str) -> Any:
        def call(value: Any) -> None:
            events.append((rank, kind, value))
            told.set()

        return call

    return Heartbeat(
        store,
        place(rank, 2),
        status=lambda: {"env_steps": 10 * rank},
        on_stop=note("stop"),
        on_failure=note("failure"),
        on_silence=note("silence"),
    )


def test_stops_failures_and_statuses_reach_the_others() -> None:
    store, events, told = dist.HashStore(), [], threading.Event()
    first, second = (heartbeat(store, rank, events, told) for rank in range(2))
    first.start(), second.start()
    first.tell_stop("max_seconds")
    assert told.wait(PATIENCE_SECONDS)
    told.clear()
    second.tell_failure("Rank 1 on x has failed.\nout of memory")
    assert told.wait(PATIENCE_SECONDS)
    while 1 not in first.statuses:
        assert told.wait(0.1) or True
    first.close(), second.close()
    assert events == [(1, "stop", "max_seconds"), (0, "failure", "Rank 1 on x has failed.\nout of memory")]
    assert first.statuses[1]["env_steps"] == 10


class FailingStore:
    """A store whose `set` fails at the calls in `failures`, counted from 0."""

    def __init__(self, failures: set[int]) -> None:
        self._store, self._failures, self.calls = dist.HashStore(), failures, 0

    def set(self, key: str, value: str) -> None:
        self.calls += 1
        if self.calls - 1 in self._failures:
            raise dist.DistStoreError("no answer")
        self._store.set(key, value)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@pytest.mark.parametrize(
    ("failures", "lost"),
    [({0, 1, 3, 4, 6, 7}, []), ({0, 1, 2, 3}, [(1, "silence", -1)])],
    ids=["scattered", "in a row"],
)
def test_the_store_is_lost_after_failures_in_a_row(
    failures: set[int], lost: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asyncrl.groups.heartbeat.BEAT_SECONDS", 0.01)
    store, events = FailingStore(failures), []
    beating = heartbeat(store, 1, events, threading.Event())
    beating.start()
    wait_until(lambda: store.calls > 9, "ten beats")
    beating.close()
    assert events == lost


def test_a_rank_that_says_nothing_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncrl.groups.heartbeat.SILENT_SECONDS", 0.8)
    monkeypatch.setattr("asyncrl.groups.heartbeat.BEAT_SECONDS", 0.05)
    store, events, told = dist.HashStore(), [], threading.Event()
    first, second = (heartbeat(store, rank, events, told) for rank in range(2))
    first.start()
    second._beat(ended=False)  # once, and then no more, as a suspended process does
    assert told.wait(PATIENCE_SECONDS)
    first.close()
    assert events == [(0, "silence", 1)]


def test_a_suspension_of_all_ranks_is_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """They go on one by one, so that the first one finds the others' beats of before the suspension."""
    store, events, clock = dist.HashStore(), [], SimpleNamespace(now=0.0)
    monkeypatch.setattr("asyncrl.groups.heartbeat.time.monotonic", lambda: clock.now)
    first, second = (heartbeat(store, rank, events, threading.Event()) for rank in range(2))
    for seconds in (0.5, 0.5, 300.0, 0.5, 0.5):
        clock.now += seconds
        if seconds < 1:
            second.beat()
        first.beat()
    assert events == []
    for _ in range(70):
        clock.now += 0.5
        first.beat()
    assert events == [(0, "silence", 1)]


def test_a_stop_is_heard_after_a_store_that_failed_once() -> None:
    class Once(FailingStore):
        failed = False

        def get(self, key: str) -> bytes:
            if key == "stop" and not self.failed:
                self.failed = True
                raise dist.DistStoreError("no answer")
            return bytes(self._store.get(key))

    store, events = Once(set()), []
    listening = heartbeat(store, 1, events, threading.Event())
    store.compare_set("stop", "", "max_seconds")
    listening.beat()
    assert store.failed and events == []
    listening.beat()
    assert events == [(1, "stop", "max_seconds")]


def test_the_last_status_of_a_rank_that_was_started_again_is_kept() -> None:
    store, events = dist.HashStore(), []
    first = heartbeat(store, 0, events, threading.Event())
    for life, steps in ((0, 10), (0, 20), (1, 3), (1, 4)):
        status = {"env_steps": steps, "life": life, "beat": steps}
        store.set("status/1", json.dumps(status))
        first.beat()
    assert [status["env_steps"] for status in first.earlier] == [20]
    assert first.statuses[1]["env_steps"] == 4


class SilentStore(FailingStore):
    """A store whose `check` does not return until `released`: its server is suspended, or cut off."""

    def __init__(self) -> None:
        super().__init__(set())
        self.asked, self.released = threading.Event(), threading.Event()

    def check(self, keys: list[str]) -> bool:
        self.asked.set()
        assert self.released.wait(120)
        return bool(self._store.check(keys))


def test_a_store_that_does_not_answer_is_noticed_and_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncrl.groups.heartbeat.SILENT_SECONDS", 1.0)
    monkeypatch.setattr("asyncrl.groups.heartbeat.ANSWER_SECONDS", 0.2)
    store, events, told = SilentStore(), [], threading.Event()
    waiting = heartbeat(store, 1, events, told)
    waiting.start()
    assert store.asked.wait(PATIENCE_SECONDS)
    waiting.beat()
    assert told.wait(PATIENCE_SECONDS) and events == [(1, "silence", -1)]
    waiting.close()
    store.released.set()
    waiting._thread.join(PATIENCE_SECONDS)
    assert not waiting._thread.is_alive() and not waiting._watcher.is_alive()


def test_a_beat_is_one_that_begins_after_it_was_asked_for() -> None:
    store, steps = dist.HashStore(), iter(range(100_000))
    beating = Heartbeat(
        store,
        place(0, 2),
        status=lambda: {"env_steps": next(steps)},
        on_stop=lambda _: None,
        on_failure=lambda _: None,
        on_silence=lambda _: None,
    )
    beating.start()
    for _ in range(20):
        before = next(steps)
        beating.beat()
        assert json.loads(store.get("status/0"))["env_steps"] > before
    beating.close()


def test_a_connection_to_the_store_ends_when_the_network_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its packets are then not acknowledged; otherwise a call of the store waits for a quarter of an hour."""
    connections: list[socket.socket] = []

    def connect(host: str, port: int, **_: Any) -> Any:
        connections.append(socket.create_connection((host, port)))
        return dist.HashStore()

    monkeypatch.setattr(dist, "TCPStore", connect)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        open_store(dataclasses.replace(PLACE, rank=1, port=server.getsockname()[1]), every_life=False)
        (connection,) = connections
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000
        connection.close()
