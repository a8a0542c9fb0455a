"""Stand-in of the Hugging Face Hub on loopback: the part of its API that a push and a download use."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

TOKEN = "hf_of_the_test"


class HubStandIn:
    """Repositories in memory.

    Attributes:
        url: address, for HF_ENDPOINT.
        repos: files of every repository by their names; a commit replaces what it names.
        visibility: what was asked for each repository, None for the default.
        commits: messages, in order.
        lfs: whether binary files are uploaded as LFS objects, as the hub asks for, or within the commit.
        requests: method and path of every request.
        unknown: status, body and headers of the answer to a request for a repository that there is not.
    """

    def __init__(self, url: str, lfs: bool) -> None:
        self.url, self.lfs = url, lfs
        self.repos: dict[str, dict[str, bytes]] = {}
        self.visibility: dict[str, Any] = {}
        self.commits: list[str] = []
        self.objects: dict[str, bytes] = {}
        self.requests: list[tuple[str, str]] = []
        self.unknown: tuple[int, bytes, dict[str, str]] = (404, b"{}", {"X_Error_Code": "RepoNotFound"})

    def create(self, asked: dict[str, Any]) -> tuple[int, Any]:
        repo = f"{asked['organization']}/{asked['name']}"
        if repo in self.repos:
            return 409, {"error": "You already created this model repo", "url": f"{self.url}/{repo}"}
        self.repos[repo], self.visibility[repo] = {}, asked.get("visibility", asked.get("private"))
        return 200, {"url": f"{self.url}/{repo}"}

    def upload_modes(self, asked: dict[str, Any]) -> tuple[int, Any]:
        files = [
            {
                "path": file["path"],
                "uploadMode": "lfs" if self.lfs and not file["path"].endswith(".md") else "regular",
                "shouldIgnore": False,
            }
            for file in asked["files"]
        ]
        return 200, {"files": files}

    def batch(self, asked: dict[str, Any]) -> tuple[int, Any]:
        objects = [
            {**named, "actions": {"upload": {"href": f"{self.url}/objects/{named['oid']}"}}}
            for named in asked["objects"]
        ]
        return 200, {"transfer": "basic", "objects": objects}

    def commit(self, repo: str, lines: list[dict[str, Any]]) -> tuple[int, Any]:
        for line in lines:
            value = line["value"]
            if line["key"] == "header":
                self.commits.append(value["summary"])
            elif line["key"] == "file":
                self.repos[repo][value["path"]] = base64.b64decode(value["content"])
            else:
                assert line["key"] == "lfsFile", line
                self.repos[repo][value["path"]] = self.objects[value["oid"]]
        oid = hashlib.sha1(str(self.commits).encode()).hexdigest()
        return 200, {"commitUrl": f"{self.url}/{repo}/commit/{oid}", "commitOid": oid}


def _handler(hub: HubStandIn) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length", 0)))
            whole = b""
            while size := int(self.rfile.readline(), 16):
                whole += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return whole

        def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def do_POST(self) -> None:
            hub.requests.append((self.command, self.path))
            body = self._body()
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                self._answer(401, b'{"error": "Invalid username or password."}')
                return
            parts = self.path.partition("?")[0].strip("/").split("/")
            if parts[:2] == ["api", "validate-yaml"]:
                found: tuple[int, Any] = 200, {"errors": [], "warnings": []}
            elif parts[:3] == ["api", "repos", "create"]:
                found = hub.create(json.loads(body))
            elif parts[4:5] == ["preupload"]:
                found = hub.upload_modes(json.loads(body))
            elif parts[-3:] == ["lfs", "objects", "batch"]:
                found = hub.batch(json.loads(body))
            else:
                assert parts[4:5] == ["commit"], self.path
                lines = [json.loads(line) for line in body.splitlines()]
                found = hub.commit("/".join(parts[2:4]), lines)
            self._answer(found[0], json.dumps(found[1]).encode(), Content_Type="application/json")

        def do_PUT(self) -> None:
            hub.requests.append((self.command, self.path))
            content = self._body()
            oid = self.path.rpartition("/")[2]
            assert hashlib.sha256(content).hexdigest() == oid
            hub.objects[oid] = content
            self._answer(200)

        def do_GET(self) -> None:
            hub.requests.append((self.command, self.path))
            parts = self.path.partition("?")[0].strip("/").split("/")
            files = hub.repos.get("/".join(parts[:2]))
            if files is None or parts[2:3] != ["resolve"]:
                status, body, headers = hub.unknown
                self._answer(status, body, **headers)
            elif parts[3] != "main":
                self._answer(404, b"{}", X_Error_Code="RevisionNotFound")
            elif parts[4] not in files:
                self._answer(404, b"{}", X_Error_Code="EntryNotFound")
            else:
                content = files[parts[4]]
                etag = f'"{hashlib.sha256(content).hexdigest()}"'
                commit = hashlib.sha1(
                    b"".join(files.values())
                ).hexdigest()  # the client keeps a commit's files
                self._answer(200, content, ETag=etag, X_Repo_Commit=commit)

        do_HEAD = do_GET

    return Handler


@contextmanager
def hub_stand_in(lfs: bool = False) -> Iterator[HubStandIn]:
    """Serve a hub without repositories until the block ends."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    hub = HubStandIn(f"http://127.0.0.1:{server.server_port}", lfs)
    server.RequestHandlerClass = _handler(hub)
    thread = threading.Thread(target=server.serve_forever, name="hub", daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def use_hub(served: HubStandIn, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the client of this process and of its children talk to `served`, with the token and an empty cache.

    The caller ends with `huggingface_hub.close_session()`.
    """
    import huggingface_hub.constants as constants  # not installed everywhere

    values = {
        "HF_ENDPOINT": served.url,
        "HF_TOKEN": TOKEN,
        "HF_HOME": str(folder / "hf"),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(constants, "ENDPOINT", served.url)
    template = served.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder / "hf" / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_PROGRESS_BARS", True)
