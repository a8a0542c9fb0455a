"""Limits on the number of sockets, and on their time without a request."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from serving import PATIENCE_SECONDS, ServerThread
from snapshots import make_snapshot
from waiting import wait_until

from asyncrl.server import listener
from asyncrl.server.connections import MAX_CONNECTIONS, ConnectionGuard
from asyncrl.server.routes import MAX_STREAMS

HALF = b"GET /stats HTTP/1.1\r\nHost: localhost\r\nX-Slow: "


@pytest.fixture(params=["asyncio", "uvloop"])
def own(request: pytest.FixtureRequest) -> Iterator[ServerThread]:
    """A server of the test's own, as these tests count connections."""
    thread = ServerThread(loops=request.param).start()
    yield thread
    thread.close()


def read_all(connection: socket.socket) -> bytes:
    """All data until the other side closes the connection in any way."""
    parts = []
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts)


def head_timers(guard: ConnectionGuard) -> list[int]:
    """Peer's port of every time limit that `guard` sets to a head from now on."""
    limits, start = [], guard.start_timer

    def record(transport: asyncio.Transport) -> asyncio.TimerHandle:
        limits.append(transport.get_extra_info("peername")[1])
        return start(transport)

    guard.start_timer = record  # type: ignore[method-assign]
    return limits


@pytest.mark.parametrize("own", ["uvloop"], indirect=True)
def test_a_head_has_two_seconds_however_it_trickles(own: ServerThread) -> None:
    assert own.server._guard is not None
    began, timers = time.monotonic(), head_timers(own.server._guard)
    with own.open(HALF) as trickling, own.open() as silent, own.open() as second:
        # Others may connect too: `asyncrl ls` in another worker's test asks the ports of this process.
        ports = [connection.getsockname()[1] for connection in (trickling, silent, second)]
        # A whole request first: the time of the next one's head begins with its first byte.
        second.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert second.recv(4096).startswith(b"HTTP/1.1 200")
        second.sendall(HALF)
        trickling.settimeout(0.2)
        answer = b""
        while time.monotonic() - began < PATIENCE_SECONDS:
            with contextlib.suppress(ConnectionError, TimeoutError):
                trickling.sendall(b"x")
                answer += trickling.recv(4096)
                if not answer:
                    break
            if answer:
                break
        assert time.monotonic() - began > 1.8
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 408 ") and json.loads(body)["error"]["status"] == 408
        assert read_all(silent) == b""
        assert read_all(second).startswith(b"HTTP/1.1 408 ")
    counts = [timers.count(port) for port in ports]
    assert counts == [1, 1, 2], "one for each head, which no byte of it starts again"
    assert own.server._guard._head_seconds == 2.0 and own.server.statistics().timed_out >= 3


def test_an_idle_connection_is_kept_between_requests(own: ServerThread) -> None:
    assert own.server._guard is not None
    own.server._guard._head_seconds = 0.1
    with own.open() as connection:
        for _ in range(3):
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert connection.recv(4096).startswith(b"HTTP/1.1 200")
            # Longer than a head may take: being idle is not being slow.
            own.call(asyncio.sleep(0.2))


def send_all_that_is_taken(connection: socket.socket, sent: bytes) -> int:
    """Send until the other side takes no more for half a second, or closes; returns the number of bytes taken."""
    connection.settimeout(0.5)
    taken = 0
    with contextlib.suppress(OSError):
        while taken < 100_000_000:
            taken += connection.send(sent)
    return taken


LONG_HEAD = b"GET / HTTP/1.1\r\nX: "
LONG_LINE = LONG_HEAD + b"x" * 60_000  # longer than aiohttp takes by itself
LONG_BODY = b"POST /stop HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000000\r\n\r\n"


@pytest.mark.parametrize(
    ("begin", "statuses"), [(LONG_HEAD, {413}), (LONG_LINE, {413}), (LONG_BODY, {401, 413})]
)
def test_what_is_too_long_is_answered_and_read_no_further(
    own: ServerThread, begin: bytes, statuses: set[int]
) -> None:
    with own.open(begin) as connection:
        taken = send_all_that_is_taken(connection, b"x" * 100_000)
        assert taken < 20_000_000, "the kernel's buffers, not a reader, took it"
        cut = own.server.statistics().cut
        assert cut == 1 or (cut == 0 and begin == LONG_BODY), "aiohttp may have closed it after its answer"
        assert own.ask("/healthz").status == 200
        connection.settimeout(PATIENCE_SECONDS)
        answer = read_all(connection)
    if answer:  # a reset may overtake it
        head, _, body = answer.partition(b"\r\n\r\n")
        assert b"HTTP/1" not in body, "one answer"
        told = json.loads(body)["error"]["status"]
        assert head.startswith(b"HTTP/1.1 %d " % told) and told in statuses
    wait_until(lambda: own.server.statistics().open == 0, "it to be closed")


def test_a_body_within_the_limit_comes_in_pieces(own: ServerThread) -> None:
    body = b"x" * 60_000
    head = b"POST /nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
    with own.open() as connection:
        for _ in range(3):
            connection.sendall(head + body[:30_000])
            connection.sendall(body[30_000:])
            assert connection.recv(65536).startswith(b"HTTP/1.1 404 ")
    assert own.server.statistics().cut == 0


async def cpu_seconds() -> float:
    """Processor time of the loop's thread."""
    return time.thread_time()


def test_600_half_open_connections_starve_nobody(own: ServerThread) -> None:
    assert own.server._guard is not None
    own.server._guard._head_seconds = 10 * PATIENCE_SECONDS  # who waited for one of them would wait for ever
    with contextlib.ExitStack() as stack:
        for _ in range(600):
            stack.enter_context(own.open(HALF))
        began = own.call(cpu_seconds())
        for _ in range(50):
            assert own.ask("/healthz").status == 200
        spent = own.call(cpu_seconds()) - began
        statistics = own.server.statistics()
    assert spent < 50 * 0.1
    assert statistics.open <= MAX_CONNECTIONS
    assert statistics.evicted >= 600 - MAX_CONNECTIONS and statistics.timed_out == 0
    wait_until(lambda: own.server.statistics().open == 0, "all to be gone")


def test_there_are_twenty_streams_and_no_more(own: ServerThread) -> None:
    streams = [own.stream() for _ in range(MAX_STREAMS)]
    try:
        refused = own.ask("/events")
        assert refused.status == 503 and "at most 20 event streams" in refused.json()["error"]["message"]
        assert refused.headers["Retry-After"] == "10"
        assert own.ask("/healthz").status == 200
        streams.pop().close()
        wait_until(lambda: len(own.server._routes.streams) < MAX_STREAMS, "the freed place")
        streams.append(own.stream())
        assert streams[-1].response.status == 200
    finally:
        for stream in streams:
            stream.close()


def test_a_stream_nobody_reads_is_cut(own: ServerThread) -> None:
    own.server._routes._write_seconds = 0.2
    own.run.snapshot = make_snapshot(error="x" * 12_000_000)
    with own.open(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n"):
        wait_until(lambda: len(own.server._routes.streams) == 1, "the stream")
        wait_until(lambda: len(own.server._routes.streams) == 0, "its end")
        wait_until(lambda: own.server.statistics().open == 0, "its connection to be cut")


# --- the guard alone, in order --------------------------------------------------------------------------


class FakeTransport:
    """Transport that records whether it was aborted."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        self.aborted = False
        self._protocol = protocol

    def abort(self) -> None:
        self.aborted = True
        asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)


def connect(guard: ConnectionGuard) -> Any:
    protocol = guard()
    transport = FakeTransport(protocol)
    protocol.connection_made(transport)  # type: ignore[arg-type]
    return transport


def test_who_is_evicted() -> None:
    async def scenario() -> None:
        guard = ConnectionGuard(asyncio.Protocol, max_connections=3)
        idle, half, busy = connect(guard), connect(guard), connect(guard)
        guard.request_began(idle)
        guard.request_ended(idle)
        guard.request_began(busy)
        fourth = connect(guard)
        assert half.aborted and not idle.aborted, "one without a whole request goes before an older idle one"
        guard.request_began(fourth)
        fifth = connect(guard)
        assert idle.aborted, "then the oldest idle one"
        guard.request_began(fifth)
        assert connect(guard).aborted, "while all are busy the new one is turned away"
        assert not any(t.aborted for t in (busy, fourth, fifth))
        statistics = guard.statistics()
        assert (statistics.open, statistics.evicted, statistics.refused) == (3, 2, 1)
        guard.request_ended(fourth)
        connect(guard)
        assert fourth.aborted
        await guard.abort_all()
        assert busy.aborted and fifth.aborted and guard.statistics().open == 0

    asyncio.run(scenario())


def test_requests_beyond_the_burst_wait_for_their_wait_for_turn() -> None:
    async def story() -> float:
        server = listener.HttpServer(lambda app: None, host="127.0.0.1", port=0, token="secret")
        began = asyncio.get_running_loop().time()
        for _ in range(listener.BURST + 20):
            await server._wait_for_turn()
        return asyncio.get_running_loop().time() - began

    assert asyncio.run(story()) >= 19 / listener.REQUESTS_PER_SECOND
