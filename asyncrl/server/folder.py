"""Page over all runs of a folder, live and finished: list, overlaid curves, differing options.

| path | what | token |
|---|---|---|
| `GET /` | the page | when bound beyond loopback |
| `GET /runs` | JSON: every run of the folder, the newest first, and the options in which they differ | same |
| `GET /curves?run=ID&run=ID` | columns of these runs' metrics, at most 400 moments each | same |
| `GET /options?run=ID` | the run's options | same |
| `GET /healthz` | 200 | same |
| `POST /open?run=ID` | the address of a live run's own page, with that run's token | always |

A worker thread reads the files; it reads a run again only if one of its files has changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from bisect import bisect_left
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from asyncrl.server.http_server import HttpServer
from asyncrl.server.pages import FOLDER_PAGE, page_response
from asyncrl.show.kept_run import (
    EVALUATION,
    STEPS,
    KeptRun,
    differing_options,
    find_runs,
    integer,
    number,
    read_text,
)

MOST_CURVES = 24
MOST_POINTS = 400
COLUMNS = {
    "return": "rollout/ep_rew_mean",
    "loss": "train/loss",
    "fps": "time/fps",
    "lag": "async/policy_lag_mean",
    "staleness": "async/staleness_mean",
}
"""Metric of each column, by the column's name on the page."""
OF_AN_INTERVAL = ("fps", "lag", "staleness")
"""Columns over the time since the last report; meaningless if no step was taken in it."""

Signature = tuple[Any, ...]


class FolderServer(HttpServer):
    """Read-only server of the runs of `folder` on the event loop that calls `start`.

    Args:
        folder: searched for runs at every request for the list.
        host, port, token: see `HttpServer`.
    """

    def __init__(self, folder: Path, *, host: str = "127.0.0.1", port: int = 0, token: str) -> None:
        super().__init__(host=host, port=port, token=token)
        self._folder = folder
        self._known: dict[str, tuple[Signature, KeptRun]] = {}
        self._facts: dict[str, tuple[KeptRun, dict[str, Any]]] = {}
        self._curves: dict[str, tuple[KeptRun, dict[str, Any]]] = {}
        self._turn = asyncio.Lock()

    def routes(self) -> list[web.RouteDef]:
        """See `HttpServer.routes`."""
        return [
            web.get("/", self._page),
            web.get("/runs", self._runs),
            web.get("/curves", self._chosen_curves),
            web.get("/options", self._options),
            web.get("/healthz", self._healthz),
            web.post("/open", self._open),
        ]

    async def _page(self, request: web.Request) -> web.Response:
        return page_response(FOLDER_PAGE)

    async def _healthz(self, request: web.Request) -> web.Response:
        return _json({"ok": True, "service": "asyncrl ui", "pid": os.getpid()})

    async def _runs(self, request: web.Request) -> web.Response:
        return _json(await self._off_loop(self._list))

    async def _chosen_curves(self, request: web.Request) -> web.Response:
        names = request.query.getall("run", [])[:MOST_CURVES]
        return _json(await self._off_loop(lambda: {name: self._curves_of(name) for name in names}))

    async def _options(self, request: web.Request) -> web.Response:
        name = request.query.get("run", "")
        return _json(await self._off_loop(lambda: self._run(name).options))

    async def _open(self, request: web.Request) -> web.Response:
        name = request.query.get("run", "")
        return _json(await self._off_loop(lambda: {"url": _live_page(self._run(name))}))

    # --- on a worker thread, one request at a time ---------------------------------------------------------------

    async def _off_loop(self, work: Callable[[], Any]) -> Any:
        async with self._turn:
            return await _on_daemon(work)

    def _list(self) -> dict[str, Any]:
        """Every run with its facts, and the options in which they differ."""
        found = {self._name(run): run for run in reversed(find_runs(self._folder))}
        self._known = {name: self._unchanged(name, run) for name, run in found.items()}
        runs = [run for _, run in self._known.values()]
        facts = [self._facts_of(name, run) for name, (_, run) in self._known.items()]
        for kept in (self._facts, self._curves):
            for name in kept.keys() - self._known.keys():  # of a run that was deleted
                del kept[name]
        return {"folder": str(self._folder), "runs": facts, "differing": differing_options(runs)}

    def _name(self, run: KeptRun) -> str:
        path = run.path.relative_to(self._folder).as_posix() if run.path != self._folder else run.path.name
        return str(_clean(path))

    def _unchanged(self, name: str, run: KeptRun) -> tuple[Signature, KeptRun]:
        """The known signature and run if none of the run's files has changed, else the new ones."""
        signature = (
            *(_stamp(run.path / file) for file in ("metrics.jsonl", "summary.json", "config.toml")),
            run.pid,
        )
        known = self._known.get(name)
        return known if known is not None and known[0] == signature else (signature, run)

    def _run(self, name: str) -> KeptRun:
        """Look up a run of the list by its name. No path is built from a client's input."""
        if name not in self._known:
            self._list()
        if name not in self._known:
            raise web.HTTPNotFound(text=f"there is no run {name!r} in {self._folder}")
        return self._known[name][1]

    def _facts_of(self, name: str, run: KeptRun) -> dict[str, Any]:
        kept = self._facts.get(name)
        if kept is None or kept[0] is not run:
            kept = self._facts[name] = (run, _facts(name, run))
        return kept[1]

    def _curves_of(self, name: str) -> dict[str, Any]:
        run = self._run(name)
        kept = self._curves.get(name)
        if kept is None or kept[0] is not run:
            kept = self._curves[name] = (run, curves(run))
        return kept[1]


def _facts(name: str, run: KeptRun) -> dict[str, Any]:
    return {
        "run": name,
        "env": run.env,
        "algo": run.algo,
        "seed": run.seed,
        "state": run.state,
        "env_steps": run.env_steps,
        "best": run.best,
        "final": run.final,
        "train_seconds": run.summary.get("train_seconds"),
        "stop_reason": run.summary.get("stop_reason"),
        "error": run.summary.get("error"),
        "changed": run.changed,
        "live": run.state == "running" and (run.path / "http.json").exists(),
    }


def curves(run: KeptRun) -> dict[str, Any]:
    """Columns `steps`, `seconds` and `COLUMNS` of equal lengths; `evaluations` as `[steps, seconds, return]`.

    Reads the run's file and blocks meanwhile.
    """
    steps: list[int] = []
    seconds: list[float] = []
    columns: dict[str, list[float | None]] = {name: [] for name in COLUMNS}
    evaluations: list[tuple[int, float]] = []
    for entry in run.lines():
        if (mean := number(entry.get(EVALUATION))) is not None:
            evaluations.append((integer(entry.get("eval/total_timesteps")) or 0, mean))
        at, elapsed = integer(entry.get(STEPS)), number(entry.get("time/time_elapsed"))
        if at is None or elapsed is None:
            continue
        no_steps = bool(steps) and at == steps[-1]
        steps.append(at)
        seconds.append(float(elapsed))
        for name, metric in COLUMNS.items():
            columns[name].append(None if no_steps and name in OF_AN_INTERVAL else number(entry.get(metric)))
    kept = _kept(len(steps))
    return {
        "steps": [steps[i] for i in kept],
        "seconds": [seconds[i] for i in kept],
        **{name: [column[i] for i in kept] for name, column in columns.items()},
        "evaluations": [[at, _seconds_at(at, steps, seconds), mean] for at, mean in evaluations],
    }


def _kept(count: int) -> list[int]:
    """Indices of at most `MOST_POINTS` moments, the last one included."""
    stride = -(-count // MOST_POINTS) or 1
    return sorted({*range(0, count, stride), *([count - 1] if count else [])})


def _seconds_at(at: int, steps: list[int], seconds: list[float]) -> float:
    """Time at which training had taken `at` steps, interpolated between two reports."""
    i = bisect_left(steps, at)
    if not steps or i == len(steps):
        return seconds[-1] if seconds else 0.0
    if i == 0 or steps[i] == steps[i - 1]:
        return seconds[i]
    share = (at - steps[i - 1]) / (steps[i] - steps[i - 1])
    return seconds[i - 1] + share * (seconds[i] - seconds[i - 1])


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def _live_page(run: KeptRun) -> str:
    """Address of a live run's page with its token. Raises `HTTPNotFound` if the run serves none."""
    try:
        held = msgspec.json.decode(read_text(run.path / "http.json"), type=dict[str, Any])
        url, token = str(held["url"]), str(held["token"])
    except (OSError, UnicodeDecodeError, msgspec.DecodeError, KeyError, RecursionError):
        raise web.HTTPNotFound(text="this run serves no page") from None
    if not url.startswith(("http://127.0.0.1:", "http://[::1]:", "http://localhost:")):
        raise web.HTTPNotFound(text="this run's page is not on this machine")
    return f"{url}/#token={token}"


async def _on_daemon(work: Callable[[], Any]) -> Any:
    """Result of `work` on a daemon thread; a thread of a pool that a disk holds would keep the server from ending."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Any] = loop.create_future()

    def set_answer(result: Any, error: BaseException | None) -> None:
        if not answer.done():
            answer.set_result(result) if error is None else answer.set_exception(error)

    def call() -> None:
        result, error = None, None
        try:
            result = work()
        except Exception as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop has been closed
            loop.call_soon_threadsafe(set_answer, result, error)

    threading.Thread(target=call, name="read-runs", daemon=True).start()
    return await answer


def _clean(value: Any) -> Any:
    """`value` of a run's files as JSON that every reader takes: no lone surrogates, no integers beyond 64 bits."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return {_clean(key): _clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(item) for item in value]
    return str(value) if isinstance(value, int) and abs(value) >= 1 << 63 else value


def _json(value: Any) -> web.Response:
    body = msgspec.json.encode(_clean(value))
    return web.Response(body=body, content_type="application/json", charset="utf-8")
