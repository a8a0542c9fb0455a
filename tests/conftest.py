"""Checks around every test: none leaves a process or an open descriptor behind."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from functools import partialmethod
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from headless_browser import Chromium
from shared_fork_server import SharedProcess, own_fork_server, shared_fork_server

from asyncrl import Trainer
from asyncrl.algorithms import ALGORITHMS
from asyncrl.config import usable_cores
from asyncrl.interfaces import Agent, BoxAction, DiscreteAction, EnvSpec
from asyncrl.shm.prepare import prepare_quietly

__all__ = ["own_fork_server", "shared_fork_server"]

GRACE_SECONDS = 30.0
"""How long a test's processes may take to be gone after it ended, on a busy machine."""

# Kinds of descriptor that only our own code opens; a regular file may be a library's cache.
_KINDS = ("memfd:", "/memfd:", "pipe:", "socket:", "anon_inode:")
_KERNEL_LISTS_CHILDREN = os.path.exists("/proc/thread-self/children")


@pytest.fixture(autouse=True, scope="session")
def ctrl_c_is_heard() -> None:
    """Handle SIGINT as in a terminal: shells start background commands with SIGINT ignored, children inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def runs_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keep runs of the command line without `--run-dir` out of the working tree."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASYNCRL_RUNS", str(folder))
        yield folder


@pytest.fixture(autouse=True, scope="session")
def cuda_is_initialised() -> None:
    """Open the descriptors that CUDA keeps for the life of a process before a test counts its own."""
    if torch.cuda.is_available():
        torch.ones(1, device="cuda").sum().item()


@pytest.fixture(autouse=True)
def nothing_is_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a child process, a thread of ours, or a pipe, socket or memfd open."""
    before = _children(), _descriptors(), _threads()
    yield
    left, collected = _left(*before), False
    deadline = time.monotonic() + GRACE_SECONDS
    while any(left) and time.monotonic() < deadline:
        asked = time.monotonic()
        gc.collect()
        collected = True
        left = _left(*before)
        # Not a synchronisation: the wait for a condition that the test promised, which needs the core.
        time.sleep(max(0.01, 4 * (time.monotonic() - asked)) if any(left) else 0)
    processes, descriptors, threads = left
    if collected and not any(left):
        gc.freeze()  # what has survived lives on: the next collection need not look at it
    assert not processes, f"processes left running: {processes}"
    assert not threads, f"threads left running: {threads}"
    assert not descriptors, f"descriptors left open: {descriptors}"


def _left(
    children: set[int], descriptors: dict[int, str], threads: set[int]
) -> tuple[dict[int, str], dict[int, str], list[str]]:
    processes = {pid: _command(pid) for pid in _children() - children}
    opened = {number: name for number, name in _descriptors().items() if descriptors.get(number) != name}
    started = [thread.name for thread in threading.enumerate() if thread.ident not in threads]
    return processes, opened, [name for name in started if name.startswith("asyncrl")]


def _children() -> set[int]:
    """Processes of the tests, without the fork servers and the browser that they share.

    The browser starts and ends helpers as it likes, so that its descendants are not looked at.
    """
    running = _descendants(os.getpid(), besides=Chromium.kept.pid if Chromium.kept is not None else None)
    return running.difference(*(kept.pids for kept in SharedProcess.kept))


def _descendants(pid: int, besides: int | None) -> set[int]:
    """Processes started by `pid` and by its descendants, without the process `besides` and those that it started.

    Takes a tenth of the time of psutil, which reads every process.
    """
    found: set[int] = set()
    try:
        if not _KERNEL_LISTS_CHILDREN:
            found.update(child.pid for child in psutil.Process(pid).children())
        else:
            for thread in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{thread}/children", "rb") as children:
                    found.update(map(int, children.read().split()))
    except (OSError, psutil.Error):
        pass  # it has ended by now
    found.discard(besides)
    return found.union(*(_descendants(child, besides) for child in found))


def _command(pid: int) -> str:
    try:
        return " ".join(psutil.Process(pid).cmdline())[:200]
    except psutil.Error:
        return "ended, not reaped"


def _threads() -> set[int]:
    return {thread.ident for thread in threading.enumerate() if thread.ident is not None}


def _descriptors() -> dict[int, str]:
    """Open descriptors of the relevant kinds, by number; empty if the system does not list them."""
    found = {}
    try:
        numbers = os.listdir("/proc/self/fd")
    except OSError:
        return {}
    for number in numbers:
        try:
            name = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue
        if name.startswith(_KINDS):
            found[int(number)] = name
    for kept in SharedProcess.kept:
        found.pop(kept.descriptor, None)
    return found


@pytest.fixture(scope="session", autouse=True)
def libuv_has_started() -> None:
    """Start libuv, which opens a pipe for the whole process with its first loop; that is not a leak of a test."""
    from asyncrl.trainer.trainer import new_event_loop

    new_event_loop().close()


@pytest.fixture
def labelled_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """GPUs without a GPU; see `labelled_device.py`."""
    from labelled_device import make_labelled_device

    yield from make_labelled_device(monkeypatch)


@pytest.fixture
def short_evaluations(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluate 10 episodes at the end and for a target in place of 100, which are more steps than the test trains.

    Tests of learning, marked as slow, keep all 100.
    """
    if request.node.get_closest_marker("slow") is None:
        monkeypatch.setattr(Trainer, "__init__", partialmethod(Trainer.__init__, target_eval_episodes=10))


def pytest_configure(config: pytest.Config) -> None:
    """On one core every run of two actors warns of it (ASYNC021)."""
    if usable_cores() == 1:
        config.addinivalue_line("filterwarnings", "ignore:.ASYNC021.")


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Let each worker import a share of the modules before the others: the first import rewrites the assertions.

    Others read what it has written. In a fresh clone rewriting takes 15 s of CPU, which each worker spent.
    """
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0"))
    if not workers or session.config.args != session.config.getini("testpaths"):
        return
    files = sorted(Path(__file__).parent.rglob("test_*.py"))
    sys.path[:0] = dict.fromkeys(str(file.parent) for file in files)
    for file in files[int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw")) :: workers]:
        with contextlib.suppress(Exception, pytest.skip.Exception):  # its collection will say why
            import_module(file.stem)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin each worker's share, a contiguous one, with slow tests: one that begins last leaves the others idle."""
    if not (workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0"))):
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    others = [item for item in items if not item.get_closest_marker("slow")]
    ends = [len(others) * share // workers for share in range(workers + 1)]
    items[:] = [
        item
        for share in range(workers)
        for item in (*slow[share::workers], *others[ends[share] : ends[share + 1]])
    ]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Compile missing kernels before the first test, so that no test waits for compilation or prints its message."""
    if session.config.option.collectonly:
        return
    for name in (
        "acting.policies",
        "acting.stochastic",
        "replay.replay",
        "replay.segments",
        "learning.balance",
    ):
        import_module(f"asyncrl.{name}")
    for record in ALGORITHMS.values():
        action = (
            DiscreteAction(2) if DiscreteAction in record.action_kinds else BoxAction((-1.0,), (1.0,), (1,))
        )
        spec = EnvSpec("any", (2,), "float32", action, agents=(Agent("a"), Agent("b")))
        record().make_updater(spec, "cpu", 0)
    prepare_quietly()
    gc.collect()
    gc.freeze()
