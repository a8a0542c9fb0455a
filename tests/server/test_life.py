"""Start, close, ports, and the file by which a run is found."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import re
import socket
import threading
from itertools import pairwise

import pytest
from serving import PATIENCE_SECONDS, TOKEN, ServerThread
from snapshots import make_snapshot
from waiting import wait_until

from asyncrl.errors import CheckpointError, ConfigurationError, PortInUse
from asyncrl.server import http_server
from asyncrl.server.run_server import HISTORY_POINTS, SnapshotFeed


def start_on(port: int, host: str = "127.0.0.1", loops: str = "asyncio") -> None:
    thread = ServerThread(port=port, host=host, loops=loops)
    try:
        thread.start()
    finally:
        thread.close()


@pytest.mark.parametrize("loops", ["asyncio", "uvloop"])
def test_a_port_that_a_run_of_ours_holds(server: ServerThread, loops: str) -> None:
    with pytest.raises(PortInUse) as caught:
        start_on(server.port, loops=loops)
    assert caught.value.code == "ASYNC007" and caught.value.exit_code == 4
    assert str(caught.value) == (
        f"[ASYNC007] port {server.port} on 127.0.0.1 is in use\n"
        f"  host: 127.0.0.1\n"
        f"  port: {server.port}\n"
        f"  held by: a run of asyncrl: dqn on CartPole-v1, training, pid {os.getpid()}\n"
        f"  fix: choose another port, or any free one: `--http auto`, of `asyncrl ui` `--port 0`"
    )


def test_a_port_that_a_silent_stranger_holds_is_asked_once_for_half_a_second() -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        with pytest.raises(PortInUse, match="held by: another program"):
            start_on(stranger.getsockname()[1])
        stranger.setblocking(False)
        requests = []
        with contextlib.suppress(BlockingIOError):
            while True:
                with stranger.accept()[0] as connection:
                    requests.append(connection.recv(4096))
    assert sum(b"aiohttp" in request for request in requests) == 1, (
        "`asyncrl ls` of another test asks by urllib"
    )
    assert http_server.ASK_SECONDS == 0.5


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 200 OK\r\nServer: other\r\nContent-Length: 2\r\n\r\n{}", b"220 smtp\r\n"]
)
def test_a_port_that_a_talking_stranger_holds(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:

        def talk() -> None:
            connection, _ = stranger.accept()
            with connection:
                while connection.recv(4096):
                    connection.sendall(answer)

        thread = threading.Thread(target=talk)
        thread.start()
        with pytest.raises(PortInUse, match="held by: another program"):
            start_on(stranger.getsockname()[1])
        thread.join()


def test_a_port_that_a_guarded_run_holds() -> None:
    thread = ServerThread(host="0.0.0.0").start()
    try:
        with pytest.raises(PortInUse, match="held by: a run of asyncrl that tells nothing without its token"):
            start_on(thread.port, host="0.0.0.0")
    finally:
        thread.close()


@pytest.mark.parametrize("loops", ["asyncio", "uvloop"])
def test_an_address_of_another_machine_cannot_be_bound(loops: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape("cannot listen on 192.0.2.1 port 0")) as caught:
        start_on(0, host="192.0.2.1", loops=loops)
    assert set(caught.value.facts) == {"host", "port", "reason"}


def wait_longer_than_the_test(thread: ServerThread) -> None:
    """Give the server's other limits more time than its `close` has here, so that it must not wait for one."""
    assert http_server.GOODBYE_SECONDS == 0.5
    thread.server._keepalive_seconds = 10 * PATIENCE_SECONDS
    thread.server._write_seconds = thread.server._feed._tick_seconds = 10 * PATIENCE_SECONDS


@pytest.mark.parametrize("loops", ["asyncio", "uvloop"])
def test_close_ends_streams_at_once_with_a_last_snapshot(loops: str) -> None:
    thread = ServerThread(loops=loops)
    wait_longer_than_the_test(thread)
    thread.start()
    stream = thread.stream()
    assert stream.event() == "retry: 2000"
    assert stream.event().startswith("event: evaluations")
    assert stream.event().startswith("data: ")
    with thread.open(b"GET /st"), thread.open():
        wait_until(lambda: thread.server.connections == 3, "all three connections")
        thread.run.snapshot = make_snapshot(state="stopped", stop_reason="total_steps", env_steps=4000)
        thread.close()
    events = []
    while event := stream.event():
        events.append(event)
    stream.close()
    last = json.loads(events[-2].removeprefix("data: "))
    assert (last["state"], last["env_steps"]) == ("stopped", 4000)
    assert events[-1] == "event: end\ndata: {}"


def test_close_is_idempotent_and_frees_the_port() -> None:
    thread = ServerThread().start()
    port = thread.port
    assert thread.server.url == f"http://127.0.0.1:{port}"
    thread.call(thread.server.close())
    thread.call(thread.server.close())
    thread.close()
    start_on(port)


def test_close_does_not_wait_for_a_stream_that_nobody_reads() -> None:
    thread = ServerThread()
    wait_longer_than_the_test(thread)
    thread.start()
    thread.run.snapshot = make_snapshot(error="x" * 12_000_000)
    with thread.open(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n"):
        wait_until(lambda: len(thread.server._streams) == 1, "the stream")
        thread.close()


def test_close_leaves_a_checkpoint_under_way_alone() -> None:
    thread = ServerThread().start()
    thread.run.checkpoint_gate.clear()
    head = f"POST /checkpoint HTTP/1.1\r\nHost: localhost\r\nX-AsyncRL-Token: {TOKEN}\r\n\r\n"
    with thread.open(head.encode()):
        wait_until(lambda: thread.run.checkpoints == 1, "the checkpoint's beginning")
        thread.call(thread.server.close())
        task = thread.server._writing
        assert task is not None and not task.cancelled()
        thread.run.checkpoint_gate.set()
        wait_until(task.done, "the checkpoint")
        assert task.result() == "runs/x/checkpoints/latest"
    thread.close()


def test_a_checkpoint_that_fails_after_its_caller_has_gone_logs_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    thread = ServerThread().start()
    thread.run.checkpoint_gate.clear()
    thread.run.checkpoint_fails = CheckpointError("no space left")
    head = f"POST /checkpoint HTTP/1.1\r\nHost: localhost\r\nX-AsyncRL-Token: {TOKEN}\r\n\r\n"
    with thread.open(head.encode()):
        wait_until(lambda: thread.run.checkpoints == 1, "the checkpoint's beginning")
        thread.call(thread.server.close())
        task = thread.server._writing
        assert task is not None
        thread.run.checkpoint_gate.set()
        wait_until(task.done, "the checkpoint's failure")
    thread.server._writing = task = None
    thread.close()
    gc.collect()
    assert [record.message for record in caplog.records if record.name == "asyncio"] == []


def test_a_long_history_keeps_its_beginning_and_stays_short() -> None:
    feed = SnapshotFeed(make_snapshot)
    for second in range(10 * HISTORY_POINTS):
        feed._remember(make_snapshot(wall_seconds=float(second)))
    seconds = json.loads(feed.history())["wall_seconds"]
    assert HISTORY_POINTS / 2 <= len(seconds) <= HISTORY_POINTS
    assert seconds[0] == 0.0 and seconds[-1] > 9.9 * HISTORY_POINTS
    gaps = {later - earlier for earlier, later in pairwise(seconds)}
    assert gaps == {16.0}


def test_a_history_of_nothing_has_its_columns() -> None:
    history = json.loads(SnapshotFeed(make_snapshot).history())
    assert history["wall_seconds"] == [] and history["evaluations"] == []
