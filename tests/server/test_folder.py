"""Server of a folder: list, reading of files, refusals."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from headless_browser import Browser
from serving import PATIENCE_SECONDS, TOKEN, ServerThread

import asyncrl
from asyncrl.cli.main import COMMANDS
from asyncrl.server.discovery import port_in_use
from asyncrl.server.folder import MOST_POINTS, FolderServer, curves
from asyncrl.server.pages import FOLDER_PAGE, load_page
from asyncrl.show.kept_run import KeptRun

PACKAGE = str(Path(asyncrl.__file__).parents[1])


def make_run(
    folder: Path, name: str, *, state: str | None = "finished", learning_rate: float = 1e-3, reports: int = 5
) -> Path:
    """Run directory as after a run; without a state there is no summary."""
    run = folder / name
    (run / "checkpoints").mkdir(parents=True)
    (run / ".lock").write_text("pid 1 on here")
    (run / "config.toml").write_text(
        f'[trainer]\nenv = "CartPole-v1"\nalgo = "dqn"\nseed = 1\nrun_dir = "{run}"\n'
        f"[dqn]\nlearning_rate = {learning_rate}\ngamma = 0.99\n"
    )
    with (run / "metrics.jsonl").open("w") as file:
        for i in range(1, reports + 1):
            entry = {
                "time/total_timesteps": 100 * i,
                "time/time_elapsed": 1.0 * i,
                "rollout/ep_rew_mean": 10.0 * i,
            }
            file.write(json.dumps({**entry, "train/loss": 1 / i, "time/fps": 100.0}) + "\n")
            file.write(
                json.dumps({"eval/mean_reward": 20.0 * i, "eval/total_timesteps": 100 * i - 50}) + "\n"
            )
    if state is not None:
        summary = {"state": state, "env_steps": 100 * reports, "eval": {"return_mean": 7.0}}
        (run / "summary.json").write_text(json.dumps({**summary, "train_seconds": 3.0, "error": None}))
    return run


@contextmanager
def live(run: Path) -> Iterator[None]:
    """Hold the lock of a run, as a trainer does, and serve a page."""
    token = {"url": "http://127.0.0.1:4242", "pid": os.getpid(), "token": "its-token"}
    (run / "http.json").write_text(json.dumps(token))
    descriptor = os.open(run / ".lock", os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(descriptor)


class FolderThread(ServerThread):
    """A `FolderServer` on a thread of its own, asked by `ask`."""

    def __init__(self, folder: Path) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="test-folder", daemon=True)
        self._thread.start()
        self.server: Any = FolderServer(folder, token=TOKEN)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_run(tmp_path, "a", learning_rate=1e-3)
    make_run(tmp_path, "deep/b", learning_rate=3e-4)
    make_run(tmp_path, "c", state=None)
    return tmp_path


@pytest.fixture
def served(folder: Path) -> Iterator[FolderThread]:
    thread: Any = FolderThread(folder).start()
    yield thread
    thread.close()


def test_a_port_that_this_page_holds_is_said(served: FolderThread) -> None:
    error = served.call(port_in_use("127.0.0.1", served.port))
    assert error.facts["held by"] == f"asyncrl ui, pid {os.getpid()}"


def test_the_list_has_live_finished_and_killed_runs(served: FolderThread, folder: Path) -> None:
    with live(folder / "a"):
        listed = served.ask("/runs").json()
    runs = {run["run"]: run for run in listed["runs"]}
    assert {name: run["state"] for name, run in runs.items()} == {
        "a": "running",
        "deep/b": "finished",
        "c": "killed",
    }
    assert (runs["a"]["live"], runs["c"]["live"]) == (True, False)
    assert (runs["c"]["env_steps"], runs["c"]["best"], runs["deep/b"]["final"]) == (500, 100.0, 7.0)
    assert listed["differing"].keys() == {"dqn.learning_rate"}
    order = [run["run"] for run in listed["runs"]]
    assert dict(zip(order, listed["differing"]["dqn.learning_rate"], strict=True))["deep/b"] == 3e-4
    assert "its-token" not in json.dumps(listed), "a token is only told to whoever has this server's"


def test_the_list_follows_the_files(served: FolderThread, folder: Path) -> None:
    served.ask("/runs")
    make_run(folder, "new")
    with (folder / "c" / "metrics.jsonl").open("a") as file:
        file.write('{"time/total_timesteps": 900, "time/time_elapsed": 9.0}\n{"time/total_ti')
    runs = {run["run"]: run for run in served.ask("/runs").json()["runs"]}
    assert "new" in runs and runs["c"]["env_steps"] == 900
    read = served.server._known["a"][1]
    served.ask("/runs")
    assert served.server._known["a"][1] is read, "a run that has not changed is not read again"


def test_curves_of_chosen_runs(served: FolderThread) -> None:
    told = served.ask("/curves?run=a&run=deep%2Fb").json()
    assert told.keys() == {"a", "deep/b"}
    assert told["a"]["steps"] == [100, 200, 300, 400, 500] and told["a"]["seconds"][-1] == 5.0
    assert told["a"]["return"] == [10.0, 20.0, 30.0, 40.0, 50.0]
    assert told["a"]["evaluations"][1] == [150, 1.5, 40.0], "between two reports"
    assert served.ask("/options?run=a").json()["dqn"]["gamma"] == 0.99


def test_a_run_that_was_deleted_is_forgotten(served: FolderThread, folder: Path) -> None:
    names = [run["run"] for run in served.ask("/runs").json()["runs"]]
    served.ask(f"/curves?run={names[0]}")
    shutil.rmtree(folder / names[0])
    assert [run["run"] for run in served.ask("/runs").json()["runs"]] == names[1:]
    assert set(served.server._facts) == set(names[1:]) and not served.server._curves


def test_long_curves_are_thinned_to_the_end(tmp_path: Path) -> None:
    run = KeptRun(make_run(tmp_path, "long", reports=3 * MOST_POINTS + 7))
    told = curves(run)
    assert MOST_POINTS / 2 < len(told["steps"]) <= MOST_POINTS + 1
    assert told["steps"][-1] == 100 * (3 * MOST_POINTS + 7)
    assert len({len(told[name]) for name in ("steps", "seconds", "return", "loss", "fps", "lag")}) == 1
    assert len(told["evaluations"]) == 3 * MOST_POINTS + 7, "every evaluation stays"


def test_rates_of_an_interval_without_steps_are_not_drawn(tmp_path: Path) -> None:
    run = make_run(tmp_path, "ended", reports=2)
    with (run / "metrics.jsonl").open("a") as file:
        file.write(
            '{"time/total_timesteps": 200, "time/time_elapsed": 2.1, "time/fps": 0.0, "train/loss": 0.5}\n'
        )
    told = curves(KeptRun(run))
    assert told["fps"] == [100.0, 100.0, None] and told["loss"][-1] == 0.5


def test_a_live_page_is_opened_with_its_token_by_whoever_has_ours(served: FolderThread, folder: Path) -> None:
    with live(folder / "a"):
        assert served.ask("/open?run=a", method="POST").status == 401
        answer = served.ask("/open?run=a", method="POST", token=TOKEN)
    assert answer.json() == {"url": "http://127.0.0.1:4242/#token=its-token"}
    assert served.ask("/open?run=deep/b", method="POST", token=TOKEN).status == 404
    (folder / "a" / "http.json").write_text('{"url": "http://evil.example", "token": "x"}')
    assert served.ask("/open?run=a", method="POST", token=TOKEN).status == 404


@pytest.mark.parametrize("name", ["../secret", "/etc", "", "a/../../secret", "nothing"])
def test_only_runs_of_the_list_are_read(served: FolderThread, folder: Path, name: str) -> None:
    make_run(folder.parent, f"{folder.name}-secret")
    for path in ("/options?run=", "/curves?run="):
        answer = served.ask(path + name)
        assert answer.status == 404 and "there is no run" in answer.json()["error"]["message"]


def test_it_has_the_security_of_a_runs_page(served: FolderThread) -> None:
    assert served.ask("/runs", host="evil.example").status == 421
    assert served.ask("/runs", headers={"Origin": "http://evil.example"}).status == 403
    assert served.ask("/runs", method="DELETE").status == 405
    assert served.ask("/etc/passwd").status == 404
    answer = served.ask("/")
    assert answer.headers["X-Content-Type-Options"] == "nosniff" and answer.headers["Server"] == "asyncrl"
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]


def test_its_page_is_one_offline_file() -> None:
    body, policy = load_page(FOLDER_PAGE)
    page = body.decode()
    assert len(body) < 100_000 and "unsafe" not in policy
    assert "class LineChart" in page and "/* what a run's page shares */" not in page
    for forbidden in ("innerHTML", "src=", "http://", "@import", 'fetch("/', 'getJson("/'):
        assert forbidden not in page.replace("http://www.w3.org", ""), forbidden


# --- the command ----------------------------------------------------------------------------------------


def start_ui(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "asyncrl", "ui", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": PACKAGE},
    )


def test_the_command_serves_until_ctrl_c(folder: Path) -> None:
    process = start_ui(str(folder))
    try:
        assert process.stdout is not None
        first = process.stdout.readline()
        assert first.startswith("page http://127.0.0.1:") and "/#token=" in first
        assert str(folder) in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE_SECONDS)
        assert (process.returncode, err) == (0, "")
    finally:
        process.kill()
        process.communicate()


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(asyncrl.errors.ConfigurationError, match=r"there is no folder .*nowhere"):
        COMMANDS["ui"].load().run(COMMANDS["ui"].parse([str(tmp_path / "nowhere")]))


@pytest.mark.parametrize("port", ["many", "-1", "70000"])
def test_a_wrong_port_is_wrong_usage(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        COMMANDS["ui"].parse([f"--port={port}"])
    assert ended.value.code == 2
    assert "from 0 to 65535" in " ".join(capsys.readouterr().err.split())


# --- in a browser ---------------------------------------------------------------------------------------


def test_runs_are_overlaid_compared_and_filtered(
    browser: Browser, served: FolderThread, folder: Path
) -> None:
    with live(folder / "a"):
        browser.open(f"http://127.0.0.1:{served.port}/#token={TOKEN}")
        browser.wait("document.querySelectorAll('#runs tr').length === 3")
        browser.wait("document.querySelector('#state').textContent === '1 is running'")
        lines = "document.querySelector('.chart').querySelectorAll('path.stroke').length"
        browser.wait(f"{lines} === 3")
        assert "dqn.learning_rate" in browser.text("#differing")
        assert (
            browser.evaluate(
                "[...document.querySelectorAll('#runs button')].filter((b) => b.checkVisibility()).length"
            )
            == 1
        )
    browser.evaluate("document.querySelector('#runs input').click()")
    browser.wait(f"{lines} === 2")
    browser.evaluate(
        "{ const f = document.querySelector('#filter'); f.value = 'deep'; f.dispatchEvent(new Event('input')); }"
    )
    browser.wait("document.querySelectorAll('#runs tr').length === 1")
    assert browser.text("#count") == "1 of 3 runs"
    browser.resize(390, 800)
    assert browser.evaluate("document.documentElement.scrollWidth") <= 390
    nodes = browser.accessible()
    assert ("table", "Runs") in nodes and any(role == "checkbox" and name == "deep/b" for role, name in nodes)
    assert browser.console == []
    served.call(served.server.close())
    browser.wait("document.querySelector('#state').textContent.startsWith('not answering since')")
