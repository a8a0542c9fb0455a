"""The browser of the tests of the pages: how it starts, and that nothing of it is left."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from headless_browser import Chromium, new_tab
from waiting import PATIENCE_SECONDS, is_running, wait_until

Program = Callable[[str], Chromium]
LISTEN = 'for last; do case $last in --user-data-dir=*) cd "${last#*=}";; esac; done'
"""Go to the profile."""


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Program]:
    """Starts a shell script in the place of Chromium, and ends it after the test."""
    with ExitStack() as ended:

        def start(script: str) -> Chromium:
            program = tmp_path / "chromium"
            program.write_text(f"#!/bin/sh\n{LISTEN}\n{script}\n")
            program.chmod(0o755)
            browser = Chromium(str(program))
            ended.callback(browser.close)
            return browser

        yield start


def test_a_browser_is_waited_for_as_long_as_it_lives(started: Program, tmp_path: Path) -> None:
    go = tmp_path / "go"
    os.mkfifo(go)
    browser = started(
        f"read line < {go}; printf '4711\\n/devtools/browser/x' > DevToolsActivePort; exec sleep 1000"
    )
    with ThreadPoolExecutor(1) as pool:
        address = pool.submit(browser.address)
        go.write_text("now\n")
        assert address.result(PATIENCE_SECONDS) == "ws://127.0.0.1:4711/devtools/browser/x"


def test_where_no_browser_starts_a_test_is_skipped_and_says_why(
    started: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Chromium, "kept", started("echo 'no display' >&2; echo >&2; exit 3"))
    with pytest.raises(pytest.skip.Exception, match=r"exit code 3 as it started: no display$"):
        new_tab()


def test_a_machine_without_a_browser_skips_and_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Chromium, "kept", None)
    with pytest.raises(pytest.skip.Exception, match="apt-get install chromium"):
        new_tab()


def test_a_browser_that_crashed_is_started_again(started: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    browser = started("printf '4711\\n/devtools/browser/x' > DevToolsActivePort; exec sleep 1000")
    monkeypatch.setattr(Chromium, "kept", browser)
    browser.address()
    Path(browser.program).write_text("#!/bin/sh\necho 'started again' >&2; exit 4\n")
    os.kill(browser.pid, signal.SIGKILL)
    wait_until(lambda: not browser.running, "the crash")
    with pytest.raises(pytest.skip.Exception, match=r"exit code 4 as it started: started again$"):
        new_tab()
    assert Chromium.kept is not None and Chromium.kept is not browser
    Chromium.kept.close()


def test_the_end_waits_for_helpers_that_lost_their_parent(started: Program, tmp_path: Path) -> None:
    told = tmp_path / "helper"
    browser = started(f"(sleep 1000 & echo $! > {told}) & exec sleep 1000")
    wait_until(lambda: told.exists() and told.read_text(), "the helper")
    helper = int(told.read_text())
    assert {browser.pid, helper} <= set(browser.processes())
    browser.close()
    assert not is_running(helper) and browser.processes() == []
