"""Server of a folder: list, reading of files, refusals."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from headless_browser import Browser
from serving import PATIENCE_SECONDS, TOKEN, ServerThread
from waiting import wait_until

import asyncrl
from asyncrl.cli.main import COMMANDS
from asyncrl.server.answers import MOST_LOGGED
from asyncrl.server.folder import MOST_NOTE, FolderServer
from asyncrl.server.http_server import port_in_use
from asyncrl.server.pages import FOLDER_PAGE, load_page

PACKAGE = str(Path(asyncrl.__file__).parents[1])


def make_run(
    folder: Path,
    name: str,
    *,
    state: str | None = "finished",
    learning_rate: float = 1e-3,
    reports: int = 5,
    env: str = "CartPole-v1",
    seed: int = 1,
) -> Path:
    """Run directory as after a run; without a state there is no summary."""
    run = folder / name
    (run / "checkpoints").mkdir(parents=True)
    (run / ".lock").write_text("pid 1 on here")
    (run / "config.toml").write_text(
        f'[trainer]\nenv = "{env}"\nalgo = "dqn"\nseed = {seed}\nrun_dir = "{run}"\n'
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


def groups_of(served: FolderThread) -> dict[str, dict[str, Any]]:
    """Groups by name."""
    return {group["name"]: group for group in served.ask("/runs").json()["groups"]}


def test_runs_are_grouped_by_all_options_but_the_seed(served: FolderThread, folder: Path) -> None:
    make_run(folder, "a2", seed=2, reports=3)
    groups = groups_of(served)
    assert {name: group["size"] for name, group in groups.items()} == {
        "dqn learning_rate=0.001": "3 runs of 2 seeds",
        "dqn learning_rate=0.0003": "1 seed",
    }
    mine = groups["dqn learning_rate=0.001"]
    assert mine["mean"][0] == pytest.approx((100 + 100 + 60) / 3) and mine["iqm"] == mine["mean"]
    assert 60 <= mine["mean"][1] <= mine["mean"][0] <= mine["mean"][2] <= 100


def test_curves_of_chosen_groups(served: FolderThread, folder: Path) -> None:
    make_run(folder, "a2", seed=2, reports=3)
    mine_name = "dqn learning_rate=0.001"
    mine = groups_of(served)[mine_name]["id"]
    told = served.ask(f"/comparison?group={mine}").json()
    (line,) = told["curves"]["rollout/ep_rew_mean"]
    assert (line["env"], line["name"], line["x"]) == ("CartPole-v1", mine_name, [100, 200, 300, 400, 500])
    assert line["count"] == [3, 3, 3, 2, 2] and line["line"] == [10, 20, 30, 40, 50]
    times = served.ask(f"/comparison?group={mine}&axis=seconds&line=iqm").json()["curves"]
    assert times["rollout/ep_rew_mean"][0]["x"] == [1, 2, 3, 4, 5]
    each = served.ask(f"/comparison?group={mine}&each=1").json()["curves"]["eval/mean_reward"]
    assert {own["name"] for own in each} == {"a", "a2", "c"}
    assert served.ask("/comparison?group=" + mine + "&line=most").status == 400
    assert served.ask("/comparison?group=" + mine + "&axis=days").status == 400
    assert served.ask("/comparison?group=none").status == 404
    assert served.ask("/options?run=a").json()["dqn"]["gamma"] == 0.99


def log(run: Path, values: dict[str, float]) -> None:
    """Rows of a run that has logged these numbers, at 100 and 300 steps."""
    with (run / "metrics.jsonl").open("a") as file:
        for steps in (100, 300):
            entry = {"time/total_timesteps": steps, "time/time_elapsed": steps / 100, **values}
            file.write(json.dumps(entry) + "\n")


def test_numbers_that_the_user_logged_have_curves(served: FolderThread, folder: Path) -> None:
    log(folder / "a", {"probe/score": 2.0})
    log(folder / "c", {"probe/score": 4.0, "my/x": 1.0})
    mine = groups_of(served)["dqn learning_rate=0.001"]["id"]
    other = groups_of(served)["dqn learning_rate=0.0003"]["id"]
    told = served.ask(f"/comparison?group={mine}&group={other}").json()
    assert {"probe/score": "probe/score", "my/x": "my/x"}.items() <= told["metrics"].items()
    assert list(told["metrics"])[:1] == ["eval/mean_reward"], "after the run's own"
    (line,) = told["curves"]["probe/score"]
    assert (line["x"], line["line"], line["count"]) == ([100, 300], [3, 3], [2, 2])
    (line,) = told["curves"]["my/x"]
    assert (line["line"], line["count"]) == ([1, 1], [1, 1])
    assert "my/x" not in served.ask(f"/comparison?group={other}").json()["metrics"]
    saved = served.ask(f"/export?group={mine}").body.decode()
    assert '"probe/score":"probe/score"' in saved


def test_at_most_so_many_logged_numbers_are_drawn(served: FolderThread, folder: Path) -> None:
    log(folder / "a", {f"probe/{i}": 1.0 for i in range(MOST_LOGGED + 5)})
    mine = groups_of(served)["dqn learning_rate=0.001"]["id"]
    told = served.ask(f"/comparison?group={mine}").json()
    drawn = [name for name in told["metrics"] if name.startswith("probe/")]
    assert drawn == [f"probe/{i}" for i in range(MOST_LOGGED)]


def test_scores_over_environments(served: FolderThread, folder: Path) -> None:
    make_run(folder, "d", env="Acrobot-v1")
    ids = [group["id"] for group in served.ask("/runs").json()["groups"]]
    told = served.ask("/comparison?" + "&".join(f"group={own}" for own in ids)).json()
    assert told["scales"].keys() == {"CartPole-v1", "Acrobot-v1"}
    (setting,) = told["settings"]
    assert (setting["name"], setting["runs"]) == ("dqn learning_rate=0.001", 3)
    assert setting["profile"][0] == 1.0 and setting["estimates"].keys() == {
        *("IQM", "mean", "median", "optimality gap")
    }


def test_a_run_that_was_deleted_is_forgotten(served: FolderThread, folder: Path) -> None:
    ids = [group["id"] for group in served.ask("/runs").json()["groups"]]
    served.ask("/comparison?" + "&".join(f"group={own}" for own in ids))
    shutil.rmtree(folder / "a")
    assert {run["run"] for run in served.ask("/runs").json()["runs"]} == {"c", "deep/b"}
    assert {path.name for path in served.server._series} == {"b", "c"}


# --- commands -------------------------------------------------------------------------------------------


def command(served: FolderThread, path: str, body: Any = None) -> tuple[int, str]:
    """Status and words of a refusal."""
    answer = served.ask(path, method="POST", token=TOKEN, body=body)
    return answer.status, answer.json().get("error", {}).get("message", "")


def test_tags_and_a_note_are_kept_with_the_run(served: FolderThread, folder: Path) -> None:
    body = json.dumps({"tags": ["good", " paper ", "good", ""], "note": "lr of <b>two</b>"})
    with live(folder / "a"):
        assert command(served, "/labels?run=a", body)[0] == 200
        run = next(run for run in served.ask("/runs").json()["runs"] if run["run"] == "a")
    assert (run["tags"], run["note"]) == (["good", "paper"], "lr of <b>two</b>")
    assert json.loads((folder / "a" / "labels.json").read_text())["tags"] == ["good", "paper"]


@pytest.mark.parametrize(
    "body",
    [
        "",
        "[]",
        '{"tags": "x"}',
        '{"nota": "x"}',
        json.dumps({"note": "x" * (MOST_NOTE + 1)}),
        '{"tags": ["%s"]}' % ("x" * 41),
    ],
)
def test_labels_of_another_form_are_refused_with_the_rule(
    served: FolderThread, folder: Path, body: str
) -> None:
    status, words = command(served, "/labels?run=a", body)
    assert status == 400 and any(word in words for word in ("labels must be", "at most"))
    assert not (folder / "a" / "labels.json").exists()


def test_a_run_is_deleted_and_what_its_links_lead_to_stays(served: FolderThread, folder: Path) -> None:
    outside = folder.parent / f"{folder.name}-data"
    outside.mkdir()
    (outside / "kept").write_text("x")
    (folder / "a" / "data").symlink_to(outside)
    assert command(served, "/delete?run=a") == (200, "")
    assert sorted(path.name for path in folder.iterdir()) == ["c", "deep"]
    assert (outside / "kept").exists()
    assert command(served, "/delete?run=a") == (404, f"there is no run 'a' in {folder}")


def test_a_run_in_progress_is_not_deleted(served: FolderThread, folder: Path) -> None:
    with live(folder / "a"):
        status, words = command(served, "/delete?run=a")
    assert status == 409 and "a is running" in words and (folder / "a" / "config.toml").exists()


def test_a_run_with_further_runs_in_its_directory_is_not_deleted(served: FolderThread, folder: Path) -> None:
    make_run(folder, "c/groups/1")  # of a run with several groups
    assert command(served, "/delete?run=c") == (200, "")
    make_run(folder, "a/again/inner")
    status, words = command(served, "/delete?run=a")
    assert status == 409 and "a holds further runs, which would go with it: a/again/inner;" in words
    assert (folder / "a" / "again" / "inner" / "config.toml").exists()


def test_what_is_left_of_a_deleted_run_is_named(
    served: FolderThread, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path / "checkpoints"))

    monkeypatch.setattr(shutil, "rmtree", refuse)
    status, words = command(served, "/delete?run=a")
    (left,) = folder.glob(".deleted-a-*")
    assert status == 409 and words.endswith(f"delete {left} yourself") and "Permission denied" in words
    assert "not all of its files could be deleted" in words


@pytest.mark.parametrize("part", ["a", "deep"])
def test_a_run_that_has_become_a_link_is_left_alone(served: FolderThread, folder: Path, part: str) -> None:
    served.ask("/runs")
    outside = folder.parent / f"{folder.name}-elsewhere"
    (folder / part).rename(outside)
    (folder / part).symlink_to(outside)
    name = "a" if part == "a" else "deep%2Fb"
    for path, body in (("/delete?run=", None), ("/labels?run=", "{}")):
        status, words = command(served, path + name, body)
        assert status == 409 and "is a link or lies behind one" in words
    assert any(outside.rglob("config.toml")) and not any(outside.rglob("labels.json"))


def test_the_folder_itself_is_not_deleted(tmp_path: Path) -> None:
    run = make_run(tmp_path, "alone")
    thread: Any = FolderThread(run).start()
    try:
        status, words = command(thread, "/delete?run=alone")
        assert status == 409 and "is the folder that this page shows" in words and run.exists()
    finally:
        thread.close()


@pytest.mark.parametrize("path", ["/delete?run=a", "/labels?run=a"])
def test_commands_need_the_token_and_this_page(served: FolderThread, path: str) -> None:
    assert served.ask(path, method="POST", body="{}").status == 401
    assert served.ask(path, method="POST", body="{}", token="wrong").status == 401
    foreign = {"Origin": "http://evil.example"}
    assert served.ask(path, method="POST", body="{}", token=TOKEN, headers=foreign).status == 403
    assert served.ask(path.replace("?", "?x=1&"), token=TOKEN).status == 405
    for name in ("..", "../x", "%2Fetc", ""):
        assert command(served, path.replace("run=a", f"run={name}"), "{}")[0] == 404


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
    answer = served.ask("/options?run=" + name)
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
    assert len(body) < 60_000 and "unsafe" not in policy
    assert "class LineChart" in page and "/* what a run's page shares */" not in page
    for forbidden in ("innerHTML", "src=", "http://", "@import", 'fetch("/', 'getJson("/'):
        assert forbidden not in page.replace("http://www.w3.org", ""), forbidden


# --- the command ----------------------------------------------------------------------------------------


def start_ui(*arguments: str, before: str = "pass") -> subprocess.Popen[str]:
    """Start `asyncrl ui`, in a process that runs the statements `before` first."""
    script = f"import runpy; {before}; runpy.run_module('asyncrl', run_name='__main__', alter_sys=True)"
    return subprocess.Popen(
        [sys.executable, "-c", script, "ui", *arguments],
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


def test_the_traceback_of_a_failed_handler_is_printed(folder: Path) -> None:
    process = start_ui(str(folder), before="import asyncrl.server.folder as f; f.runs_answer = None")
    try:
        assert process.stdout is not None
        address = process.stdout.readline().split()[1].partition("/#")[0]
        with pytest.raises(urllib.error.HTTPError) as failed:
            urllib.request.urlopen(f"{address}/runs", timeout=PATIENCE_SECONDS)
        with failed.value:
            assert failed.value.code == 500
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE_SECONDS)
        assert "Traceback" in err and "'NoneType' object is not callable" in err
    finally:
        process.kill()
        process.communicate()


def test_what_a_token_in_a_readable_file_allows_is_told_as_it_is(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.touch(0o644)
    with out.open("w") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "asyncrl", "ui", str(folder)],
            stdout=stream,
            env={**os.environ, "PYTHONPATH": PACKAGE},
        )
    try:
        wait_until(lambda: "note" in out.read_text(), "the note")
        assert "its page's token lets them label and delete runs" in out.read_text()
    finally:
        process.kill()
        process.wait()


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


def set_value(browser: Browser, selector: str, value: str) -> None:
    """Type into a field."""
    field = f"document.querySelector('{selector}')"
    browser.evaluate(f"{{ {field}.value = '{value}'; {field}.dispatchEvent(new Event('input')); }}")


def button(browser: Browser, label: str) -> str:
    """JavaScript expression for the visible button with this name or text."""
    return f"""[...document.querySelectorAll('button')].find(
        (b) => b.checkVisibility() && (b.getAttribute('aria-label') || b.textContent) === '{label}')"""


def test_long_names_leave_room_for_the_curves(browser: Browser, served: FolderThread, folder: Path) -> None:
    for number in range(9):
        make_run(folder, f"long{number}", learning_rate=1e-3 / (3 + number))
    browser.open(f"http://127.0.0.1:{served.port}/#token={TOKEN}")
    browser.wait("document.querySelectorAll('#environments .legend b').length >= 6")
    tallest = "Math.max(...[...document.querySelectorAll('.legend')].map((legend) => legend.clientHeight))"
    assert 0 < browser.evaluate(tallest) <= 96


def test_a_single_point_is_drawn(browser: Browser, served: FolderThread, folder: Path) -> None:
    run = make_run(folder, "once", env="Once-v0", reports=0)
    (run / "metrics.jsonl").write_text('{"eval/mean_reward": 20.0, "eval/total_timesteps": 100}\n')
    browser.open(f"http://127.0.0.1:{served.port}/#token={TOKEN}")
    chart = "document.querySelector('[aria-label=\"Charts of Once-v0\"] .chart')"
    browser.wait(f"{chart} && {chart}.querySelectorAll('circle').length === 1")
    assert not browser.evaluate(f"{chart}.querySelector('p').checkVisibility()"), "nothing yet"


def test_groups_are_drawn_compared_and_filtered(browser: Browser, served: FolderThread, folder: Path) -> None:
    make_run(folder, "d", env="Acrobot-v1", seed=3)
    make_run(folder, "a2", seed=2, reports=3)
    with live(folder / "a"):
        browser.open(f"http://127.0.0.1:{served.port}/#token={TOKEN}")
        browser.wait("document.querySelectorAll('#runs tr').length === 5")
        browser.wait("document.querySelector('#state').textContent === '1 is running'")
        browser.wait("document.querySelectorAll('#environments > section').length === 2")
        assert browser.evaluate(button(browser, "Open the live page of a") + " !== undefined")
    count = "s.querySelector('.chart').querySelectorAll('path.stroke').length"
    drawn = f"[...document.querySelectorAll('#environments > section')].map((s) => {count}).join()"
    browser.wait(f"{drawn} === '1,2'")
    assert browser.text("#environments h2") == "Acrobot-v1"
    legend = browser.evaluate(
        "document.querySelectorAll('#environments > section')[1].querySelector('.legend').textContent"
    )
    assert "dqn learning_rate=0.001, 3 runs of 2 seeds" in legend and "(2 of 3 runs)" in legend
    browser.evaluate("document.querySelector('#groups input').click()")
    browser.wait(f"{drawn} !== '1,2'")
    set_value(browser, "#filter", "deep")
    browser.wait("document.querySelectorAll('#runs tr').length === 1")
    assert browser.text("#count").startswith("1 of 5 runs")
    browser.resize(390, 800)
    assert browser.evaluate("document.documentElement.scrollWidth") <= 390
    nodes = browser.accessible()
    assert ("table", "Runs") in nodes and ("table", "Groups") in nodes
    assert any(role == "checkbox" and name.startswith("dqn learning_rate=") for role, name in nodes)
    assert browser.console == []
    served.call(served.server.close())
    browser.wait("document.querySelector('#state').textContent.startsWith('not answering since')")


def test_runs_are_sorted_tagged_and_deleted_after_a_question(
    browser: Browser, served: FolderThread, folder: Path
) -> None:
    make_run(folder, "d", seed=7, reports=9)
    browser.open(f"http://127.0.0.1:{served.port}/#token={TOKEN}")
    browser.wait("document.querySelectorAll('#runs tr').length === 4")
    first = "document.querySelector('#runs tr td span').textContent"
    browser.evaluate(button(browser, "steps") + ".click()")
    browser.evaluate(
        "[...document.querySelectorAll('#runs-head button')].find((b) => b.textContent === 'steps').click()"
    )
    browser.wait(f"{first} === 'd'")
    assert browser.evaluate("document.querySelector('[aria-sort=descending]').textContent") == "steps"
    browser.evaluate(button(browser, "Tags and note of d") + ".click()")
    set_value(browser, "#tags", "paper, <i>")
    browser.evaluate(button(browser, "Save") + ".click()")
    browser.wait("document.querySelectorAll('.tag').length === 2")
    assert browser.text(".tag") == "paper" and (folder / "d" / "labels.json").exists()
    set_value(browser, "#filter", "paper")
    browser.wait("document.querySelectorAll('#runs tr').length === 1")
    browser.evaluate(button(browser, "Delete d") + ".click()")
    browser.wait("document.querySelector('#deleting').open")
    assert "Delete d?" in browser.text("#deleting")
    browser.press("Escape")
    browser.wait("!document.querySelector('#deleting').open")
    assert (folder / "d").exists()
    browser.evaluate(button(browser, "Delete d") + ".click()")
    browser.evaluate(button(browser, "Delete") + ".click()")
    browser.wait("document.querySelector('#runs tr') === null")
    assert not (folder / "d").exists() and browser.console == []


def test_without_the_token_nothing_can_be_changed(browser: Browser, served: FolderThread) -> None:
    browser.open(f"http://127.0.0.1:{served.port}/")
    browser.wait("document.querySelectorAll('#runs tr').length === 3")
    assert browser.evaluate("document.querySelectorAll('#runs button').length") == 0


def test_smoothing_log_axis_and_scores_redraw_the_curves(
    browser: Browser, served: FolderThread, folder: Path
) -> None:
    make_run(folder, "d", env="Acrobot-v1")
    browser.open(f"http://127.0.0.1:{served.port}/#token={TOKEN}")
    browser.wait("document.querySelectorAll('#environments > section').length === 2")
    titled = "(c) => c.querySelector('h2').textContent === 'Loss'"
    path = f"[...document.querySelectorAll('.chart')].find({titled}).querySelector('path.stroke')"
    loss = f"{path}.getAttribute('d')"
    browser.wait(f"{path} !== null")
    shapes = [browser.evaluate(loss)]
    for change in (
        "document.querySelector('#log').click()",
        "{ const s = document.querySelector('#smooth'); s.value = 0.9; s.dispatchEvent(new Event('input')); }",
    ):
        browser.evaluate(change)
        browser.wait(f"{loss} !== {json.dumps(shapes[-1])}")
        shapes.append(browser.evaluate(loss))
    browser.evaluate("document.querySelector('#normal').click()")
    browser.wait("document.querySelector('#settings-part').checkVisibility()")
    browser.wait("document.querySelector('.chart h2').textContent === 'Return, evaluations, normalised'")
    assert "optimality gap" in browser.text("#settings-head") and browser.console == []


def test_a_saved_page_needs_no_server(
    browser: Browser, served: FolderThread, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (folder / "a" / "labels.json").write_text(json.dumps({"note": "</script><script>alert(1)</script>"}))
    ids = [group["id"] for group in served.ask("/runs").json()["groups"]]
    answer = served.ask("/export?" + "&".join(f"group={own}" for own in ids))
    assert answer.headers["Content-Disposition"] == 'attachment; filename="comparison.html"'
    file = tmp_path_factory.mktemp("saved") / "comparison.html"
    file.write_bytes(answer.body)
    served.call(served.server.close())
    browser.open(file.as_uri())
    browser.wait("document.querySelectorAll('#environments path.stroke').length >= 2")
    assert browser.text("#state") == "saved" and "alert(1)" in browser.text("#runs")
    browser.evaluate("document.querySelector('#axis-time').click()")
    browser.wait("document.querySelector('#axis-time').getAttribute('aria-pressed') === 'true'")
    assert browser.evaluate("document.querySelectorAll('#runs button').length") == 0
    assert browser.console == []
