"""Limits on the number of connections and event streams, and on the length and time of a request."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from serving import PATIENCE_SECONDS, ServerThread, read_all
from snapshots import make_snapshot
from waiting import wait_until

from asyncrl.server import http_server
from asyncrl.server.http_server import BACKLOG, MAX_CONNECTIONS, Budget
from asyncrl.server.run_server import MAX_STREAMS

HALF = b"GET /stats HTTP/1.1\r\nHost: localhost\r\nX-Slow: "
WHOLE = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture(params=["asyncio", "uvloop"])
def own(request: pytest.FixtureRequest) -> Iterator[ServerThread]:
    """A server of the test's own, as these tests count connections."""
    thread = ServerThread(loops=request.param).start()
    yield thread
    thread.close()


@pytest.fixture(params=["asyncio", "uvloop"])
def impatient(request: pytest.FixtureRequest) -> Iterator[ServerThread]:
    """A server that gives a connection half a second for a request."""
    thread = ServerThread(loops=request.param)
    assert thread.server._keepalive_seconds == 5.0
    thread.server._keepalive_seconds = 0.5
    thread.start()
    yield thread
    thread.close()


def test_a_request_head_has_its_time_however_it_trickles(impatient: ServerThread) -> None:
    began = time.monotonic()
    with impatient.open(HALF) as trickling, impatient.open() as silent, impatient.open(WHOLE) as second:
        assert second.recv(4096).startswith(b"HTTP/1.1 200")
        second.sendall(HALF)
        trickling.settimeout(0.05)
        with contextlib.suppress(ConnectionError):
            while time.monotonic() - began < PATIENCE_SECONDS:
                trickling.sendall(b"x")
                with contextlib.suppress(TimeoutError):
                    if not trickling.recv(4096):
                        break
        assert 0.4 < time.monotonic() - began < PATIENCE_SECONDS
        assert read_all(silent) == b"" and read_all(second) == b""
    wait_until(lambda: impatient.server.connections == 0, "all to be closed")


def test_a_request_in_progress_is_not_cut(impatient: ServerThread) -> None:
    impatient.server._feed._tick_seconds = 0.1
    stream = impatient.stream()
    began = time.monotonic()
    while time.monotonic() - began < 1.0:
        assert stream.event()
    stream.close()


ENDLESS = 3_000_000_000


def send_all_that_is_taken(connection: socket.socket, sent: bytes) -> int:
    """Send until the other side takes no more for half a second, or closes; returns the number of bytes taken."""
    connection.settimeout(0.5)
    taken = 0
    with contextlib.suppress(OSError):
        while taken < ENDLESS:
            taken += connection.send(sent)
    return taken


LONG_HEAD = b"GET / HTTP/1.1\r\nX: "
LONG_BODY = b"POST /stop HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3000000000\r\n\r\n"


@pytest.mark.parametrize(("begin", "status"), [(LONG_HEAD, 400), (LONG_BODY, 401)])
def test_what_is_too_long_is_read_no_further(own: ServerThread, begin: bytes, status: int) -> None:
    with own.open(begin) as connection:
        taken = send_all_that_is_taken(connection, b"x" * 100_000)
        assert taken < ENDLESS, "the server closes it"
        assert own.ask("/healthz").status == 200
        connection.settimeout(PATIENCE_SECONDS)
        answer = read_all(connection)
    assert answer.count(b"HTTP/1") <= 1, "one answer, which a reset may overtake"
    assert answer == b"" or answer[8:13] == b" %d " % status
    assert len(answer) < 10_000, "what was sent is not sent back"
    wait_until(lambda: own.server.connections == 0, "it to be closed")


def test_a_body_within_the_limit_comes_in_pieces(own: ServerThread) -> None:
    body = b"x" * 60_000
    head = b"POST /nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
    with own.open() as connection:
        for _ in range(3):
            connection.sendall(head + body[:30_000])
            connection.sendall(body[30_000:])
            assert connection.recv(65536).startswith(b"HTTP/1.1 404 ")


def test_a_budget_is_spent_into_debt_and_filled_up_to_its_size() -> None:
    now = [10.0]
    budget = Budget(2.0, 8.0, lambda: now[0])
    assert budget.spend(8.0) == 0.0 and budget.spend(1.0) == 0.5
    now[0] += 0.25
    assert budget.spend(0.0) == 0.25
    now[0] += 0.25
    assert budget.spend(0.0) == 0.0 and budget.spend(3.0) == 1.5
    now[0] += 100.0
    assert budget.spend(8.0) == 0.0 and budget.spend(2.0) == 1.0


def test_requests_without_pause_are_answered_at_a_limited_rate_and_all_in_the_end(
    own: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, per_second, at_once = 1_000, 500.0, 200.0
    monkeypatch.setattr(http_server, "READ_COSTS_PER_SECOND", per_second)
    monkeypatch.setattr(http_server, "READ_COSTS_AT_ONCE", at_once)
    began, answers = time.monotonic(), b""
    with own.open(WHOLE * count) as connection:
        while (found := answers.count(b"HTTP/1.1 200 ")) < count:
            # A request costs more than 1; the part that exceeds the budget has been answered.
            most = at_once + per_second * (time.monotonic() - began) + http_server.PART_BYTES / len(WHOLE) + 1
            assert found <= most
            answers += connection.recv(65536)
    assert time.monotonic() - began >= (count - at_once) / per_second - 1.0


def test_connections_made_without_pause_are_read_at_a_limited_rate(
    own: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    own.server._new_connections = Budget(20.0, 3.0)
    began = time.monotonic()
    for made in range(1, 13):
        with own.open(WHOLE) as connection:
            assert connection.recv(4096).startswith(b"HTTP/1.1 200")
        assert made <= 3 + 20.0 * (time.monotonic() - began) + 1


class Reading:
    """Transport and aiohttp's protocol of one connection: whether it is read, and what was passed on."""

    def __init__(self) -> None:
        self.paused, self.received = False, b""

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def connection_made(self, transport: object) -> None: ...

    def data_received(self, data: bytes) -> None:
        self.received += data


def test_a_resting_connection_is_paused_again_where_aiohttp_resumes_it() -> None:
    async def receive() -> Reading:
        end: Any = Reading()
        connection = http_server._PacedConnection(end, 0.1)
        connection.connection_made(end)
        assert end.paused
        for part in (b"first", b"second"):
            end.resume_reading()
            connection.data_received(part)
            assert end.paused and not end.received
        while end.paused:
            await asyncio.sleep(0)
        return end

    assert asyncio.run(receive()).received == b"firstsecond"


def test_600_half_open_connections_hold_neither_descriptors_nor_the_page(impatient: ServerThread) -> None:
    most = 0
    with contextlib.ExitStack() as stack:
        for _ in range(600):
            stack.enter_context(impatient.open()).send(HALF, socket.MSG_NOSIGNAL)
            most = max(most, impatient.server.connections)
        assert most <= MAX_CONNECTIONS + BACKLOG

        def answers() -> bool:
            try:
                return impatient.ask("/healthz").status == 200
            except ConnectionError:
                return False

        wait_until(answers, "an answer while they are open")


def test_there_are_twenty_streams_and_no_more(own: ServerThread) -> None:
    streams = [own.stream() for _ in range(MAX_STREAMS)]
    try:
        refused = own.ask("/events")
        assert refused.status == 503 and "at most 20 event streams" in refused.json()["error"]["message"]
        assert refused.headers["Retry-After"] == "10"
        assert own.ask("/healthz").status == 200
        streams.pop().close()
        wait_until(lambda: len(own.server._streams) < MAX_STREAMS, "the freed place")
        streams.append(own.stream())
        assert streams[-1].response.status == 200
    finally:
        for stream in streams:
            stream.close()


def test_a_stream_nobody_reads_is_cut(own: ServerThread) -> None:
    own.server._write_seconds = 0.2
    own.run.snapshot = make_snapshot(error="x" * 12_000_000)
    with own.open(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n"):
        wait_until(lambda: len(own.server._streams) == 1, "the stream")
        wait_until(lambda: len(own.server._streams) == 0, "its end")
        wait_until(lambda: own.server.connections == 0, "its connection to be cut")
