"""Page over all runs of a folder, live and finished: list, curves of groups, results, tags and notes.

| path | what | token |
|---|---|---|
| `GET /` | the page | when bound beyond loopback |
| `GET /runs` | JSON: every run, the newest first, groups, and the options in which runs differ | same |
| `GET /comparison?group=ID&axis=steps&line=mean&each=1` | curves of these groups' metrics, and settings | same |
| `GET /export?group=ID` | the page with these groups' data as one file | same |
| `GET /options?run=ID` | the run's options | same |
| `GET /healthz` | 200 | same |
| `POST /open?run=ID` | the address of a live run's own page, with that run's token | always |
| `POST /labels?run=ID` | write the run's tags and note: `{"tags": [...], "note": "..."}` | always |
| `POST /delete?run=ID` | delete the run's directory | always |

A worker thread reads the files; it reads a run again only if one of its files has changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast, get_args

import msgspec
from aiohttp import web

from asyncrl.server.answers import comparison_answer, drawn_series, runs_answer, static_page, to_json
from asyncrl.server.http_server import HttpServer
from asyncrl.server.pages import FOLDER_PAGE, page_response
from asyncrl.show.curves import LINES, Axis, Series
from asyncrl.show.kept_run import LABELS, LOCK, KeptRun, find_runs, is_run, runs_within
from asyncrl.show.run_groups import RunGroup, group_runs
from asyncrl.storage.atomic_file import write_atomically

MOST_GROUPS = 24
MOST_TAGS, MOST_TAG, MOST_NOTE = 20, 40, 4000
"""Most tags of a run, characters of a tag and of a note."""

Signature = tuple[Any, ...]


class Labels(msgspec.Struct, forbid_unknown_fields=True):
    """What somebody says of a run."""

    tags: list[str] = []
    note: str = ""


class FolderServer(HttpServer):
    """Server of the runs of `folder` on the event loop that calls `start`.

    Args:
        folder: searched for runs at every request for the list.
        port, token: see `HttpServer`.
    """

    def __init__(self, folder: Path, *, port: int = 0, token: str) -> None:
        super().__init__(host="127.0.0.1", port=port, token=token)
        self._folder = folder
        self._known: dict[str, tuple[Signature, KeptRun]] = {}
        self._groups: dict[str, RunGroup] = {}
        self._series: dict[Path, tuple[KeptRun, dict[str, Series]]] = {}
        self._listed: tuple[list[KeptRun], dict[str, Any]] | None = None
        self._turn = asyncio.Lock()

    def routes(self) -> list[web.RouteDef]:
        """See `HttpServer.routes`."""
        return [
            web.get("/", self._page),
            web.get("/runs", self._runs),
            web.get("/comparison", self._comparison),
            web.get("/export", self._export),
            web.get("/options", self._options),
            web.get("/healthz", self._healthz),
            web.post("/open", self._open),
            web.post("/labels", self._labels),
            web.post("/delete", self._delete),
        ]

    async def _page(self, request: web.Request) -> web.Response:
        return page_response(FOLDER_PAGE)

    async def _healthz(self, request: web.Request) -> web.Response:
        return _json({"ok": True, "service": "asyncrl ui", "pid": os.getpid()})

    async def _runs(self, request: web.Request) -> web.Response:
        return _json(await self._off_loop(self._list))

    async def _comparison(self, request: web.Request) -> web.Response:
        ids = request.query.getall("group", [])[:MOST_GROUPS]
        axis, line = request.query.get("axis", "steps"), request.query.get("line", "mean")
        if axis not in get_args(Axis):
            raise web.HTTPBadRequest(text=f"axis must be one of {', '.join(get_args(Axis))}, got {axis!r}")
        if line not in LINES:
            raise web.HTTPBadRequest(text=f"line must be one of {', '.join(LINES)}, got {line!r}")
        each = request.query.get("each") == "1"

        def answer() -> dict[str, Any]:
            return comparison_answer(
                self._chosen(ids), cast(Axis, axis), line, each=each, series=self._all_series
            )

        return _json(await self._off_loop(answer))

    async def _export(self, request: web.Request) -> web.Response:
        ids = request.query.getall("group", [])[:MOST_GROUPS]

        def page() -> bytes:
            groups = self._chosen(ids)
            names = {run: self._name(run) for group in groups for run in group.runs}
            return static_page(str(self._folder), group_runs(list(names)), names, self._all_series)

        headers = {"Content-Disposition": 'attachment; filename="comparison.html"'}
        return web.Response(body=await self._off_loop(page), content_type="text/html", headers=headers)

    async def _options(self, request: web.Request) -> web.Response:
        name = request.query.get("run", "")
        return _json(await self._off_loop(lambda: self._run(name).options))

    async def _open(self, request: web.Request) -> web.Response:
        name = request.query.get("run", "")
        return _json(await self._off_loop(lambda: {"url": _live_page(self._run(name))}))

    async def _labels(self, request: web.Request) -> web.Response:
        name = request.query.get("run", "")
        labels = _checked(await request.read())

        def write() -> dict[str, Any]:
            path = self._own_directory(name)
            with _refused(f"the labels of {name}"):
                write_atomically(path / LABELS, [msgspec.json.encode(labels)], durable=False)
            return {"run": name}

        return _json(await self._off_loop(write))

    async def _delete(self, request: web.Request) -> web.Response:
        name = request.query.get("run", "")

        def delete() -> dict[str, Any]:
            path = self._own_directory(name)
            if path == self._folder:
                raise web.HTTPConflict(
                    text=f"{name} is the folder that this page shows, so it is not deleted"
                )
            if within := runs_within(path):
                raise web.HTTPConflict(
                    text=f"{name} holds further runs, which would go with it: {self._name(within[0])}"
                    f"{f' and {len(within) - 1} more' if len(within) > 1 else ''}; delete or move them first"
                )
            with _refused(name):
                _delete_run(path, name)
            return {"deleted": name}

        return _json(await self._off_loop(delete))

    # --- on a worker thread, one request at a time ---------------------------------------------------------------

    async def _off_loop(self, work: Callable[[], Any]) -> Any:
        async with self._turn:
            return await _on_daemon(work)

    def _list(self) -> dict[str, Any]:
        """Answer of `/runs`; the last one if nothing has changed."""
        found = {self._name(run): run for run in reversed(find_runs(self._folder))}
        self._known = {name: self._unchanged(name, run) for name, run in found.items()}
        runs = [run for _, run in self._known.values()]
        if self._listed is None or [id(run) for run in self._listed[0]] != [id(run) for run in runs]:
            there = {run.path for run in runs}
            self._series = {path: own for path, own in self._series.items() if path in there}
            groups = group_runs(runs)
            self._groups = {group.id: group for group in groups}
            names = {run: name for name, (_, run) in self._known.items()}
            self._listed = runs, runs_answer(str(self._folder), groups, names, self._all_series)
        return self._listed[1]

    def _name(self, run: KeptRun) -> str:
        path = run.path.relative_to(self._folder).as_posix() if run.path != self._folder else run.path.name
        return path.encode("utf-8", "backslashreplace").decode()

    def _unchanged(self, name: str, run: KeptRun) -> tuple[Signature, KeptRun]:
        """The known signature and run if none of the run's files has changed, else the new ones."""
        files = ("metrics.jsonl", "summary.json", "config.toml", LABELS)
        signature = (*(_stamp(run.path / file) for file in files), run.pid)
        known = self._known.get(name)
        return known if known is not None and known[0] == signature else (signature, run)

    def _run(self, name: str) -> KeptRun:
        """Look up a run of the list by its name. No path is built from a client's input."""
        if name not in self._known:
            self._list()
        if name not in self._known:
            raise web.HTTPNotFound(text=f"there is no run {name!r} in {self._folder}")
        return self._known[name][1]

    def _chosen(self, ids: list[str]) -> list[RunGroup]:
        """Groups of the list by their ids."""
        if any(found not in self._groups for found in ids):
            self._list()
        for found in ids:
            if found not in self._groups:
                raise web.HTTPNotFound(text=f"there is no group {found!r} of runs in {self._folder}")
        return [self._groups[found] for found in ids]

    def _all_series(self, run: KeptRun) -> dict[str, Series]:
        kept = self._series.get(run.path)
        if kept is None or kept[0] is not run:
            kept = self._series[run.path] = (run, drawn_series(run))
        return kept[1]

    def _own_directory(self, name: str) -> Path:
        """Directory of a run that a command may write to, looked at again: below the folder, without a link."""
        path = self._run(name).path
        if path.is_symlink() or path.resolve() != self._folder.resolve() / path.relative_to(self._folder):
            raise web.HTTPConflict(text=f"{name} is a link or lies behind one, so it is left alone")
        if not is_run(path):
            raise web.HTTPNotFound(text=f"there is no run {name!r} in {self._folder}")
        return path


def _checked(body: bytes) -> Labels:
    """Labels of a request. Raises `HTTPBadRequest` with the rule that they break."""
    try:
        labels = msgspec.json.decode(body, type=Labels)
    except msgspec.DecodeError as error:
        raise web.HTTPBadRequest(text=f'labels must be {{"tags": [...], "note": "..."}}: {error}') from None
    labels.tags = list(dict.fromkeys(tag for text in labels.tags if (tag := text.strip())))
    if len(labels.tags) > MOST_TAGS or any(len(tag) > MOST_TAG for tag in labels.tags):
        raise web.HTTPBadRequest(text=f"a run has at most {MOST_TAGS} tags of {MOST_TAG} characters")
    if len(labels.note) > MOST_NOTE:
        raise web.HTTPBadRequest(text=f"a note has at most {MOST_NOTE} characters, got {len(labels.note)}")
    return labels


def _delete_run(path: Path, name: str) -> None:
    """Delete a run's directory while holding its lock, so that no run begins in it. Raises OSError, `HTTPConflict`."""
    lock = None
    with contextlib.suppress(FileNotFoundError):
        lock = os.open(path / LOCK, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if lock is not None:
            if not stat.S_ISREG(os.fstat(lock).st_mode):
                raise OSError(errno.EINVAL, "its lock is no regular file", str(path / LOCK))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise web.HTTPConflict(text=f"{name} is running: stop it before you delete it") from None
        # First out of the list at once, under a hidden name; rmtree follows no link in it.
        hidden = path.with_name(f".deleted-{path.name}-{os.getpid()}")
        path.rename(hidden)
        try:
            shutil.rmtree(hidden)
        except OSError as error:
            raise web.HTTPConflict(
                text=f"{name} is off the list, but not all of its files could be deleted: {error.strerror}: "
                f"{error.filename}; delete {hidden} yourself"
            ) from error
    finally:
        if lock is not None:
            os.close(lock)


@contextlib.contextmanager
def _refused(what: str) -> Iterator[None]:
    """Answer 409 with the system's words where a file cannot be written or deleted."""
    try:
        yield
    except OSError as error:
        raise web.HTTPConflict(
            text=f"{what} cannot be changed: {error.strerror}: {error.filename}"
        ) from error


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def _live_page(run: KeptRun) -> str:
    """Address of a live run's page with its token. Raises `HTTPNotFound` if the run serves none."""
    if run.page is None:
        raise web.HTTPNotFound(text="this run serves no page")
    url, token = run.page
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


def _json(value: Any) -> web.Response:
    return web.Response(body=to_json(value), content_type="application/json", charset="utf-8")
