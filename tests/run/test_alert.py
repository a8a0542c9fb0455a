"""The alert at the end of a run, sent to servers on loopback."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from small_records import small
from waiting import wait_until

from asyncrl import Trainer
from asyncrl.config import TrainerConfig
from asyncrl.errors import AsyncRLError
from asyncrl.run import summary as summary_module
from asyncrl.run.summary import describe, send_summary, without_secrets

SUMMARY: dict[str, Any] = {
    "algo": "dqn",
    "env": "CartPole-v1",
    "seed": 3,
    "state": "finished",
    "stop_reason": "target_return",
    "error": None,
    "env_steps": 31_000,
    "wall_seconds": 12.4,
    "eval": {"return_mean": 487.25},
}


class Hook(ThreadingHTTPServer):
    """Server that keeps the bodies that it gets and answers with `status`."""

    daemon_threads = True

    def __init__(self, status: int = 200) -> None:
        self.status, self.bodies = status, list[Any]()
        super().__init__(("127.0.0.1", 0), Take)
        self.thread = threading.Thread(target=self.serve_forever, args=(0.02,))
        self.thread.start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/hook/secret"

    def end(self) -> None:
        self.shutdown()
        self.thread.join()
        self.server_close()


class Take(BaseHTTPRequestHandler):
    server: Hook

    def do_POST(self) -> None:
        assert self.path == "/hook/secret" and self.headers["Content-Type"] == "application/json"
        self.server.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(self.server.status)
        if 300 <= self.server.status < 400:
            self.send_header("Location", self.server.address)
        self.end_headers()

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def hook() -> Iterator[Hook]:
    server = Hook()
    yield server
    server.end()


def run(address: str, env: Any = "CartPole-v1", **options: Any) -> Trainer:
    record = small("dqn", learning_starts=100, replay_capacity=2_000)
    given = {"num_actors": 1, "envs_per_actor": 2, "target_eval_episodes": 1, "http": "off"}
    return Trainer(env, record, on_end=address, **{**given, **options})


def test_the_summary_is_sent_once_at_the_end(hook: Hook, tmp_path: Path) -> None:
    with run(hook.address, run_dir=tmp_path / "run") as trainer:
        result = trainer.learn(total_steps=400, progress=False)
    wait_until(lambda: hook.bodies, "the alert")
    (body,) = hook.bodies
    assert body["summary"] == json.loads((tmp_path / "run" / "summary.json").read_text()) == result.summary
    assert body["run_dir"] == str(tmp_path / "run")
    assert body["text"] == body["content"]
    assert body["text"].startswith("dqn CartPole-v1 seed 0 finished (total_steps): return ")


def test_a_run_that_fails_before_it_trains_sends_its_error(hook: Hook) -> None:
    def broken() -> Any:
        raise OSError("no such robot")

    with run(hook.address, broken) as trainer, pytest.raises(AsyncRLError, match="no such robot"):
        trainer.learn(total_steps=400, progress=False)
    wait_until(lambda: hook.bodies, "the alert")
    (body,) = hook.bodies
    assert body["summary"]["state"] == "failed" and "no such robot" in body["text"]


@pytest.mark.parametrize("status", [404, 500])
def test_a_refusal_is_logged_without_the_secret(
    hook: Hook, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    hook.status = status
    send_summary(hook.address, SUMMARY, None).join()
    (record,) = caplog.records
    assert f"HTTP Error {status}" in record.getMessage() and record.levelno == logging.WARNING
    assert "secret" not in record.getMessage() and "127.0.0.1" in record.getMessage()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_an_answer_from_elsewhere_is_no_summary_taken(
    hook: Hook, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A client that follows it asks by GET, without the summary, and would be content with the answer."""
    hook.status = status
    send_summary(hook.address, SUMMARY, None).join()
    (record,) = caplog.records
    assert f"HTTP Error {status}: " in record.getMessage() and "give the address" in record.getMessage()
    assert "secret" not in record.getMessage() and len(hook.bodies) == 1


def test_nobody_there_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    send_summary(f"http://127.0.0.1:{port}/", SUMMARY, None).join()
    assert "was not taken" in caplog.text


def test_a_server_that_does_not_answer_holds_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(summary_module, "ALERT_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        before = time.monotonic()
        waiting = send_summary(f"http://127.0.0.1:{listener.getsockname()[1]}/", SUMMARY, None)
        assert not waiting.daemon, "the program waits for the limit"
        waiting.join()
        wait_until(lambda: "was not" in caplog.text, "the warning")
    assert time.monotonic() - before >= 0.2
    wait_until(
        lambda: all(thread.name != "asyncrl-alert" for thread in threading.enumerate()), "the thread's end"
    )


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "finished (target_return): return 487.2, 31,000 steps, 12 s"),
        ({"state": "stopped", "stop_reason": "stopped"}, "stopped: return 487.2, 31,000 steps, 12 s"),
        (
            {"state": "failed", "stop_reason": "failed", "error": "[ASYNC011] nan\n actor: 1"},
            "failed: [ASYNC011] nan: return 487.2, 31,000 steps, 12 s",
        ),
        ({"eval": {"return_mean": None}}, "finished (target_return): 31,000 steps, 12 s"),
    ],
)
def test_the_sentence(fields: dict[str, Any], text: str) -> None:
    assert describe(SUMMARY | fields) == f"dqn CartPole-v1 seed 3 {text}"


def test_the_page_does_not_show_the_secret() -> None:
    options = {"run": {"on_end": "https://me:pw@hooks.example.com:8443/services/T0/B0/xyz", "seed": 1}}
    assert without_secrets(options) == {"run": {"on_end": "https://hooks.example.com:8443/...", "seed": 1}}
    assert without_secrets({"run": {"on_end": None}}) == {"run": {"on_end": None}}


@pytest.mark.parametrize(
    "address",
    [
        *("hooks.example.com", "ftp://a/b", "http://", "", "http://:80/x"),
        *("http://[::1", "http://a:99999/", "http://a:0/", "http://a:b/", "http://a b/c"),
    ],
)
def test_an_address_is_one_of_http(address: str) -> None:
    with pytest.raises(ValueError, match="on_end must be an address that begins with http:// or https://"):
        TrainerConfig(env="CartPole-v1", algo="dqn", on_end=address)
