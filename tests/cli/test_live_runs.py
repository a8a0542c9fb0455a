"""`asyncrl ls` of runs in progress, and `stop`: a run in another process."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from kept_runs import write_run
from waiting import PATIENCE_SECONDS as SECONDS

from asyncrl.cli import live_runs as live_run_module
from asyncrl.cli import stop as stop_module
from asyncrl.cli.live_runs import LiveRun, live_runs
from asyncrl.cli.main import COMMANDS, main
from asyncrl.show.kept_run import LOCK

ROOT = Path(__file__).parents[2]


def started(*options: str) -> subprocess.Popen[str]:
    """An endless run."""
    line = [sys.executable, "-m", "asyncrl", "train", "CartPole-v1", "--algo", "dqn", "--actors", "1"]
    return subprocess.Popen(
        [*line, "--device", "cpu", *options],
        env={**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(process: subprocess.Popen[str]) -> LiveRun:
    """Wait for the run of that process until its page reports steps."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        for run in live_runs():
            if run.pid == process.pid and (run.stats.get("env_steps") or 0) > 0:
                return run
        time.sleep(0.05)
    raise AssertionError("no page answers")


@pytest.fixture
def endless(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    process = started("--run-dir", str(tmp_path / "run"))
    try:
        yield process, tmp_path / "run"
    finally:
        process.kill()
        process.communicate()


def test_a_run_is_listed_and_stopped(
    endless: tuple[subprocess.Popen[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    process, path = endless
    run = wait_for(process)
    assert run.run_dir == path and run.url is not None and run.token
    assert main(["ls", "--json"]) == 0
    (row,) = (row for row in json.loads(capsys.readouterr().out) if row["pid"] == process.pid)
    assert (row["env"], row["algo"], row["run"], row["state"]) == ("CartPole-v1", "dqn", str(path), "running")
    assert row["url"].startswith("http://127.0.0.1:") and row["steps"] > 0
    assert main(["ls"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[-2:] == ["age", "pid"]
    line, page = (line.split() for line in lines if str(process.pid) in line.split())
    assert line[1:3] == ["CartPole-v1", "dqn"]
    assert main(["ls", str(path.parent), "--json"]) == 0
    (own,) = json.loads(capsys.readouterr().out)
    assert (own["run"], own["pid"], own["url"]) == (path.name, process.pid, row["url"])
    assert page == ["page", "of", str(process.pid), f"{run.url}/#token={run.token}"]

    assert main(["stop", str(path)]) == 0
    assert capsys.readouterr().out == f"stopped {path}\n"
    assert process.wait(SECONDS) == 0
    assert json.loads((path / "summary.json").read_text())["stop_reason"] == "stopped"
    assert process.pid not in {run.pid for run in live_runs()}


def test_a_port_that_does_not_speak_http_is_no_page(tmp_path: Path) -> None:
    """A process that trains may listen for another protocol too, as a notebook's kernel does."""
    with socket.create_server(("127.0.0.1", 0)) as stranger:

        def talk() -> None:
            connection, _ = stranger.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"\xff\0\0\0\0\0\0\0\1\x7f")

        thread = threading.Thread(target=talk)
        thread.start()
        url = f"http://127.0.0.1:{stranger.getsockname()[1]}"
        assert live_run_module._stats(url, "") == {}
        thread.join()
        thread = threading.Thread(target=talk)
        thread.start()
        assert not LiveRun(1, None, url, "token", {}).ask_to_stop()
        thread.join()


def test_the_time_to_wait_for_the_end_is_a_number(capsys: pytest.CaptureFixture[str]) -> None:
    for seconds in ("nan", "-1", "x"):
        with pytest.raises(SystemExit) as stop:
            main(["stop", "1", "--wait", seconds])
        assert stop.value.code == 2
        assert "argument --wait: " in capsys.readouterr().err


def test_a_run_that_has_ended_cannot_be_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_run(tmp_path / "x", summary={})
    assert main(["stop", str(path)]) == 1
    assert f"no run is in progress in {path}" in capsys.readouterr().err


def test_a_run_that_ends_before_its_signal_is_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_run(tmp_path / "x", summary={})
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    monkeypatch.setattr(stop_module, "_find", lambda name: LiveRun(process.pid, path, None, "", {}))
    assert main(["stop", str(path)]) == 0
    assert capsys.readouterr().out == f"stopped {path}\n"


def test_the_address_of_a_page_is_whole_and_has_the_token_if_known(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kept = write_run(tmp_path / ("long" * 20), summary={})
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("ASYNCRL_RUNS", str(tmp_path / "empty"))
    url, token = "http://127.0.0.1:34567", "t" * 43
    runs = [
        LiveRun(1, kept, url, token, {"env": "a.module:" + "Env" * 20, "env_steps": 5}),
        LiveRun(2, None, url, "", {}),
        LiveRun(3, None, None, "", {}, "python train.py"),
    ]
    monkeypatch.setattr("asyncrl.cli.live_runs.live_runs", lambda: runs)
    assert main(["ls"]) == 0
    rows, _, below = capsys.readouterr().out.partition("\n\n")
    assert [row.split()[-1] for row in rows.splitlines()] == ["pid", "1", "2", "3"]
    pages = [f"page of 1  {url}/#token={token}", f"page of 2  {url}"]
    assert below.splitlines() == [*pages, "command of 3  python train.py"]
    assert main(["ls", "--json"]) == 0
    told = capsys.readouterr().out
    assert token not in told
    assert [row["command"] for row in json.loads(told)] == [None, None, "python train.py"]


def test_pages_are_asked_side_by_side(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A port that does not answer costs its second once, however many there are."""
    kept, all_asked = write_run(tmp_path / "kept"), threading.Barrier(21, timeout=SECONDS)
    (kept / "http.json").write_text(json.dumps({"url": "http://127.0.0.1:9/#token=t", "token": "t"}))

    class Process:
        def __init__(self, pid: int, ports: list[int], files: list[Path]) -> None:
            self.pid, self.ports, self.files = pid, ports, files

        def open_files(self) -> list[SimpleNamespace]:
            return [SimpleNamespace(path=str(file)) for file in self.files]

        def cmdline(self) -> list[str]:
            return ["python", f"my {self.pid}.py"]

        def net_connections(self, kind: str) -> list[SimpleNamespace]:
            here = [SimpleNamespace(ip="127.0.0.1", port=port) for port in self.ports]
            return [SimpleNamespace(status=psutil.CONN_LISTEN, laddr=addr) for addr in here]

    def answer(url: str, token: str) -> dict[str, Any]:
        all_asked.wait()
        return {"env": url} if url.endswith((":13", ":14", ":9")) else {}

    processes = [
        Process(3, [*range(10, 20)], []),
        Process(2, [*range(20, 30)], []),
        Process(1, [5], [kept / LOCK]),
    ]
    monkeypatch.setattr("asyncrl.cli.live_runs._run_processes", lambda: iter(processes))
    monkeypatch.setattr("asyncrl.cli.live_runs._stats", answer)
    assert live_runs() == [
        LiveRun(1, kept, "http://127.0.0.1:9", "t", {"env": "http://127.0.0.1:9"}),
        LiveRun(2, None, None, "", {}, "python 'my 2.py'"),
        LiveRun(3, None, "http://127.0.0.1:13", "", {"env": "http://127.0.0.1:13"}, "python 'my 3.py'"),
    ]


@pytest.mark.parametrize("name", ["ps", "bench", "clean"])
def test_a_command_that_is_gone_names_what_to_use_instead(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main([name])
    assert stop.value.code == 2
    assert f"there is no command {name} any more" in capsys.readouterr().err
    assert name not in COMMANDS
