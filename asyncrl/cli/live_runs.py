"""Running runs of this user: their processes, directories and pages.

A run is found by its fork server, a child of the run's process, so that runs in notebooks and scripts are found too.
Its directory is found by the lock file that the process holds open.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shlex
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from asyncrl.show.kept_run import LOCK, KeptRun, is_run

FORK_SERVER = "asyncrl.actors.forkserver"
ASK_SECONDS = 1.0
MOST_ASKED = 32
"""Number of pages that are asked at a time."""
TOKEN_HEADER = "X-AsyncRL-Token"
_NO_PROXY = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class LiveRun:
    """A run in progress.

    Attributes:
        pid: id of the run's process.
        run_dir: the run directory, None if the run has none.
        url: address of the run's page, None without a page.
        token: the page's token, "" if unknown.
        stats: the page's answer to `/stats`; empty without an answer.
        command: command line of the process if the run has no directory, else "".
    """

    pid: int
    run_dir: Path | None
    url: str | None
    token: str
    stats: dict[str, Any]
    command: str = ""

    def page(self) -> str | None:
        """Address of the run's page, with its token in the fragment if known; None without a page."""
        return f"{self.url}/#token={self.token}" if self.url and self.token else self.url

    def ask_to_stop(self) -> bool:
        """Send `POST /stop` to the run's page; returns whether the page accepted it."""
        if self.url is None or not self.token:
            return False
        request = urllib.request.Request(
            f"{self.url}/stop", data=b"", method="POST", headers={TOKEN_HEADER: self.token}
        )
        try:
            with _NO_PROXY.open(request, timeout=5 * ASK_SECONDS) as answer:
                return bool(answer.status == 202)
        except (OSError, http.client.HTTPException):
            return False


def live_runs() -> list[LiveRun]:
    """All running runs of this user, sorted by process id. Their pages are asked side by side, one second each."""
    runs: list[tuple[int, Path | None, list[tuple[str, str]], str]] = []
    for process in _run_processes():
        pid, directories = process.pid, list(_directories(process))
        runs += [(pid, path, [page] if (page := KeptRun(path).page) else [], "") for path in directories]
        if not directories:
            runs.append((pid, None, _ports_of(process), _command_of(process)))
    pages = [page for _, _, those, _ in runs for page in those]
    with ThreadPoolExecutor(MOST_ASKED) as pool:
        answers = dict(zip(pages, pool.map(lambda page: _stats(*page), pages), strict=True))
    found = []
    for pid, path, those, command in runs:
        # A run directory's page is known without an answer; a port may belong to anything.
        page = next((page for page in those if path is not None or answers[page]), None)
        url, token = page or (None, "")
        found.append(LiveRun(pid, path, url, token, answers[page] if page else {}, command))
    return sorted(found, key=lambda run: (run.pid, str(run.run_dir)))


def _run_processes() -> Iterator[psutil.Process]:
    """Parents of fork servers. A fork server's children have its command line too and are not returned."""
    servers = set()
    for process in psutil.process_iter(["uids", "cmdline"]):
        uids, line = process.info["uids"], process.info["cmdline"] or ()
        if uids is not None and uids.real == os.getuid() and FORK_SERVER in line:
            servers.add(process)
    pids = {server.pid for server in servers}
    seen: set[int] = set()
    for server in servers:
        with contextlib.suppress(psutil.Error):
            parent = server.parent()
            if parent is not None and parent.pid not in pids | seen | {1}:
                seen.add(parent.pid)
                yield parent


def _directories(process: psutil.Process) -> Iterator[Path]:
    """Run directories whose lock file the process holds open."""
    with contextlib.suppress(psutil.Error, OSError):
        for file in process.open_files():
            path = Path(file.path)
            if path.name == LOCK and is_run(path.parent):
                yield path.parent


def _command_of(process: psutil.Process) -> str:
    """Command line of a process, "" if it has ended."""
    with contextlib.suppress(psutil.Error):
        return shlex.join(process.cmdline())
    return ""


def _ports_of(process: psutil.Process) -> list[tuple[str, str]]:
    """Addresses on which the process listens; one of them may be the page of a run without a directory."""
    found = []
    with contextlib.suppress(psutil.Error, OSError):
        for connection in process.net_connections(kind="tcp"):
            if connection.status == psutil.CONN_LISTEN:
                host = f"[{connection.laddr.ip}]" if ":" in connection.laddr.ip else connection.laddr.ip
                found.append((f"http://{host}:{connection.laddr.port}", ""))
    return found


def _stats(url: str, token: str) -> dict[str, Any]:
    request = urllib.request.Request(f"{url}/stats", headers={TOKEN_HEADER: token} if token else {})
    try:
        with _NO_PROXY.open(request, timeout=ASK_SECONDS) as answer:
            if answer.headers.get("Server") != "asyncrl":
                return {}
            stats = json.load(answer)
    except (OSError, ValueError, http.client.HTTPException):  # the port may be of another protocol
        return {}
    return stats if isinstance(stats, dict) else {}
