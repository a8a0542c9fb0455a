"""Discovery of runs: `http.json` in a run directory, and the run that occupies a port."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from asyncrl.errors import PortInUse
from asyncrl.storage.atomic_file import write_atomically

ASK_SECONDS = 0.5
MAX_ANSWER_BYTES = 256 * 1024


def write_http_file(path: str | os.PathLike[str], *, url: str, pid: int, token: str) -> None:
    """Write `{"url", "pid", "token"}` to `path` atomically, readable only by its owner.

    The file holds the token, so it has mode 0600 from the beginning.

    Raises:
        OSError: the directory cannot be written.
    """
    data = msgspec.json.encode({"url": url, "pid": pid, "token": token}) + b"\n"
    write_atomically(Path(path), [data], mode=0o600, durable=False)


async def port_in_use(host: str, port: int) -> PortInUse:
    """Make the error for an occupied port; it names the run there if one answers within half a second."""
    return PortInUse(
        f"port {port} on {host} is in use",
        facts={"host": host, "port": port, "held by": await _holder(reachable(host), port)},
        fix="choose another port, or any free one: `--http auto`, of `asyncrl ui` `--port 0`",
    )


def reachable(host: str) -> str:
    """Host part of a URL that reaches, from this machine, a server bound to `host`."""
    address = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{address}]" if ":" in address else address


async def _holder(host: str, port: int) -> str:
    stranger = "another program"
    timeout = aiohttp.ClientTimeout(total=ASK_SECONDS)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session:
            async with session.get(f"http://{host}:{port}/healthz", allow_redirects=False) as answer:
                if answer.headers.get("Server") != "asyncrl":
                    return stranger
                if answer.status != 200:
                    return "a run of asyncrl that tells nothing without its token"
                health = await _answer(answer)
            if health.get("service") != "asyncrl":
                return f"{health.get('service')}, pid {health.get('pid')}"
            async with session.get(f"http://{host}:{port}/stats", allow_redirects=False) as answer:
                run = await _answer(answer)
    except (aiohttp.ClientError, TimeoutError, OSError, msgspec.DecodeError):
        return stranger
    return f"a run of asyncrl: {run.get('algo')} on {run.get('env')}, {run.get('state')}, pid {health.get('pid')}"


async def _answer(answer: aiohttp.ClientResponse) -> dict[str, Any]:
    return msgspec.json.decode(await answer.content.read(MAX_ANSWER_BYTES), type=dict[str, Any])
