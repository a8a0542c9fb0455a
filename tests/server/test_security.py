"""Refused requests, each with its status and a JSON body."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from serving import TOKEN, Answer, ServerThread, read_all
from waiting import wait_until

from asyncrl.server.http_server import LOGGER, Gate, is_loopback
from asyncrl.server.run_server import RunServer


def refused(answer: Answer, status: int) -> str:
    """The message of a refusal with `status`."""
    assert answer.status == status
    error = answer.json()["error"]
    assert error["status"] == status
    assert answer.headers["Content-Type"] == "application/json; charset=utf-8"
    assert "Access-Control-Allow-Origin" not in answer.headers
    return str(error["message"])


@pytest.fixture(scope="module")
def shared() -> Iterator[ServerThread]:
    """One kind of loop, as refusals do not depend on it."""
    thread = ServerThread(loops="uvloop").start()
    yield thread
    thread.close()


FOREIGN_HOSTS = (
    "evil.example",
    "evil.example:8000",
    "127.0.0.1.evil.example",
    "localhost.evil",
    "8.8.8.8",
    "",
    "[::2]:1",
)


@pytest.mark.parametrize("host", FOREIGN_HOSTS)
@pytest.mark.parametrize("path", ["/", "/stats", "/healthz", "/nothing"])
def test_a_foreign_host_is_misdirected(server: ServerThread, host: str, path: str) -> None:
    assert "with the token only" in refused(server.ask(path, host=host), 421)
    refused(server.ask(path, host=host, token="wrong"), 421)
    refused(server.ask(f"{path}?token=wrong", host=host), 421)


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:9", "127.0.0.1", "127.0.0.1:80", "[::1]", "[::1]:9000"]
)
def test_a_loopback_host_is_let_in_on_any_port(server: ServerThread, host: str) -> None:
    assert server.ask("/stats", host=host).status == 200


def test_a_host_and_an_origin_that_are_no_text_are_refused_like_any_other(server: ServerThread) -> None:
    assert "\\udcff" in refused(server.ask("/stats", host="\xff"), 421)
    assert "\\udcff" in refused(server.ask("/stats", headers={"Origin": "http://\xff"}), 403)


def test_a_request_with_two_hosts_is_refused(server: ServerThread) -> None:
    with server.open(b"GET /stats HTTP/1.0\r\nHost: localhost\r\nHost: evil.example\r\n\r\n") as connection:
        assert connection.recv(4096).split(b" ")[1] in (b"400", b"421")


def test_a_reverse_proxy_keeps_its_host_and_gives_the_token(server: ServerThread) -> None:
    """As with jupyter-server-proxy; a page that DNS rebinding brings here does not have the token."""
    for path in ("/", "/stats", "/metrics"):
        assert server.ask(f"{path}?token={TOKEN}", host="hub.example").status == 200
        assert server.ask(path, token=TOKEN, host="hub.example:8443").status == 200
    own = {"Origin": "https://hub.example"}
    assert server.ask("/stats", token=TOKEN, host="hub.example", headers=own).status == 200
    other = {"Origin": "https://evil.example"}
    refused(server.ask("/stats", token=TOKEN, host="hub.example", headers=other), 403)


def test_a_foreign_host_stops_with_the_token_in_a_header_alone(server: ServerThread) -> None:
    stops = server.run.stops
    refused(server.ask("/stop", method="POST", host="hub.example"), 421)
    refused(server.ask(f"/stop?token={TOKEN}", method="POST", host="hub.example"), 401)
    assert server.run.stops == stops
    assert server.ask("/stop", method="POST", token=TOKEN, host="hub.example").status < 300
    assert server.run.stops == stops + 1


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "https://127.0.0.1:1", "http://localhost:1", "file://"]
)
@pytest.mark.parametrize(("method", "path"), [("GET", "/stats"), ("GET", "/events"), ("POST", "/stop")])
def test_a_foreign_origin_is_refused(server: ServerThread, origin: str, method: str, path: str) -> None:
    answer = server.ask(path, method=method, token=TOKEN, headers={"Origin": origin})
    assert origin in refused(answer, 403)
    assert server.run.stops == 0


def test_the_own_origin_is_let_in(server: ServerThread) -> None:
    origin = f"http://127.0.0.1:{server.port}"
    assert server.ask("/stats", headers={"Origin": origin}).status == 200
    assert server.ask("/stop", method="POST", token=TOKEN, headers={"Origin": origin}).status == 202


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_what_another_site_embeds_is_refused(server: ServerThread, site: str) -> None:
    embedded = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors"}
    assert "other sites" in refused(server.ask("/events", headers=embedded), 403)
    followed_link = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate"}
    assert server.ask("/", headers=followed_link).status == 200


@pytest.mark.parametrize("path", ["/stop", "/checkpoint"])
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": TOKEN},
        {"Authorization": "Bearer "},
        {"X-AsyncRL-Token": ""},
        {"X-AsyncRL-Token": "\xff\xfe"},
        {"X-AsyncRL-Token": TOKEN + "x"},
        {"Cookie": f"token={TOKEN}"},
    ],
)
def test_a_command_needs_the_token(server: ServerThread, path: str, headers: dict[str, str]) -> None:
    answer = server.ask(path, method="POST", headers=headers)
    assert "the token of the address that was printed" in refused(answer, 401)
    assert answer.headers["WWW-Authenticate"].startswith("Bearer")
    assert (server.run.stops, server.run.checkpoints) == (0, 0)


def test_a_command_takes_the_token_from_either_header_but_not_from_the_address(server: ServerThread) -> None:
    refused(server.ask(f"/stop?token={TOKEN}", method="POST"), 401)
    assert server.ask("/stop", method="POST", headers={"X-AsyncRL-Token": TOKEN}).status == 202
    assert server.ask("/stop", method="POST", headers={"Authorization": f"bearer {TOKEN}"}).status == 202


@pytest.mark.parametrize("path", ["/nothing", "/stats/", "/../etc/passwd", "/%2e%2e/x", "/page.html"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_wrong_path_is_not_found(server: ServerThread, path: str, method: str) -> None:
    assert "there is no /" in refused(server.ask(path, method=method), 404)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("POST", "/stats", "GET,HEAD"),
        ("DELETE", "/", "GET,HEAD"),
        ("GET", "/stop", "POST"),
        ("GET", "/checkpoint", "POST"),
        ("OPTIONS", "/stop", "POST"),
        ("HEAD", "/events", "GET"),
        ("PUT", "/checkpoint", "POST"),
    ],
)
def test_a_wrong_method_is_not_allowed(server: ServerThread, method: str, path: str, allowed: str) -> None:
    answer = server.ask(path, method=method)
    assert answer.headers["Allow"] == allowed
    if method == "HEAD":
        assert answer.status == 405
    else:
        assert "does not take" in refused(answer, 405)


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_large_body_is_refused_before_it_is_read(server: ServerThread, method: str) -> None:
    path = "/stop" if method == "POST" else "/stats"
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nX-AsyncRL-Token: {TOKEN}\r\n"
    head += "Content-Length: 65537\r\n\r\n"
    with server.open(head.encode()) as connection:
        assert connection.recv(4096).startswith(b"HTTP/1.1 413 ")
    assert server.run.stops == 0


def test_a_large_body_of_unknown_length_is_refused(server: ServerThread) -> None:
    body = iter([b"x" * 65_536, b"x"])
    refused(server.ask("/stop", method="POST", token=TOKEN, body=body, chunked=True), 413)
    assert server.run.stops == 0


def test_a_body_of_64_kilobytes_passes(server: ServerThread) -> None:
    assert server.ask("/stop", method="POST", token=TOKEN, body=b"x" * 65536).status == 202


def test_a_body_that_does_not_come_times_out(server: ServerThread, monkeypatch: pytest.MonkeyPatch) -> None:
    assert server.server._body_seconds == 5.0
    monkeypatch.setattr(server.server, "_body_seconds", 0.05)
    head = f"POST /stop HTTP/1.1\r\nHost: localhost\r\nX-AsyncRL-Token: {TOKEN}\r\nContent-Length: 9\r\n\r\nx"
    with server.open(head.encode()) as connection:
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 408 ") and b"the body did not come within 0.05 s" in answer
    assert server.run.stops == 0


GARBAGE = (
    b"\x16\x03\x01\x02\x00\x01\x00",
    b"GET\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET / HTTP/1.1\r\nbad\r\n\r\n",
)


@pytest.mark.parametrize("data", [*GARBAGE, b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n"])
def test_what_is_not_http_gets_an_error_and_the_door(
    server: ServerThread, data: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    with server.open(data) as connection:
        answer = read_all(connection)
    # The long line has no Host: some versions of aiohttp leave that to our own check, which answers 421.
    assert answer.startswith(b"HTTP/1.") and answer[8:13] in (b" 400 ", b" 421 ")
    assert server.ask("/healthz").status == 200
    assert capfd.readouterr() == ("", "")
    # pytest listens to every logger; without it, only this keeps errors off the screen.
    assert any(isinstance(handler, logging.NullHandler) for handler in LOGGER.handlers)


# --- bound beyond loopback ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def public_thread() -> Iterator[ServerThread]:
    thread = ServerThread(host="0.0.0.0").start()
    yield thread
    thread.close()


@pytest.mark.parametrize(
    "path", ["/", "/stats", "/events", "/metrics", "/config", "/history", "/healthz", "/readyz", "/no"]
)
def test_beyond_loopback_every_read_needs_the_token(public_thread: ServerThread, path: str) -> None:
    refused(public_thread.ask(path), 401)
    refused(public_thread.ask(path, token="wrong"), 401)
    if path != "/events":
        expected = 404 if path == "/no" else 200
        assert public_thread.ask(path, token=TOKEN).status == expected
        assert public_thread.ask(f"{path}?token={TOKEN}").status == expected


def test_beyond_loopback_a_post_does_not_take_the_token_from_the_address(public_thread: ServerThread) -> None:
    refused(public_thread.ask(f"/stop?token={TOKEN}", method="POST"), 401)


def test_beyond_loopback_addresses_and_the_machines_name_are_hosts(public_thread: ServerThread) -> None:
    for host in ("192.0.2.7:8000", "[2001:db8::1]:8000", socket.gethostname(), "localhost"):
        assert public_thread.ask("/stats", host=host, token=TOKEN).status == 200
    for host in ("evil.example", socket.gethostname() + ".evil.example"):
        refused(public_thread.ask("/stats", host=host), 421)


def test_beyond_loopback_the_address_is_one_that_can_be_visited(public_thread: ServerThread) -> None:
    assert public_thread.server.url == f"http://127.0.0.1:{public_thread.port}"


# --- what the constructor refuses -----------------------------------------------------------------------


def make_server(**options: Any) -> RunServer:
    async def checkpoint() -> str:
        return ""

    callables: dict[str, Any] = {name: lambda: None for name in ("snapshot", "config", "stop", "ready")}
    return RunServer(**{"token": "x", "checkpoint": checkpoint, **callables, **options})


def test_a_server_without_a_token_is_refused() -> None:
    with pytest.raises(ValueError, match="token must not be empty, got ''"):
        make_server(token="")


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_out_of_range_is_refused(port: int) -> None:
    with pytest.raises(ValueError, match=f"port must be between 0 and 65535, got {port}"):
        make_server(port=port)


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("localhost", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("", False),
        ("::", False),
        ("192.0.2.1", False),
        ("localhost.evil", False),
        ("example.org", False),
    ],
)
def test_what_counts_as_loopback(host: str, local: bool) -> None:
    assert is_loopback(host) is local
    assert Gate(host, "x")._local is local


def test_the_token_never_leaves(server: ServerThread) -> None:
    wait_until(lambda: bool(server.ask("/history").body), "the history")
    for path in ("/", "/stats", "/history", "/metrics", "/config", "/healthz", "/readyz", "/nothing"):
        answer = server.ask(path)
        assert TOKEN.encode() not in answer.body and TOKEN not in str(answer.headers)
