"""Training under a flood of requests to its page: updates per second with and without hostile clients, in turn.

    requests    a few clients that request /stats as fast as they get answers
    half_open   500 connections that send half a request
    readers     200 readers of /events that never read
    oversize    headers of 1 MB and bodies of 100 MB, announced and sent until the server closes

The clients are another process, so that only their connections and their CPU time affect the run. `busy` shows the
effect of the CPU time alone.

    python benchmarks/endpoint_load.py --seconds 5 --repeats 3
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import resource
import subprocess
import sys
import time
from urllib.parse import urlsplit

import psutil
from harness import Report

KINDS = ("requests", "half_open", "readers", "oversize", "busy")


async def request_for_ever(host: str, port: int) -> None:
    """Request /stats endlessly, on one connection after the other."""
    while True:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            reader, writer = await asyncio.open_connection(host, port, limit=1 << 20)
            for _ in range(1000):
                writer.write(f"GET /stats HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
                await reader.readexactly(length)
            writer.close()


async def hold_for_ever(host: str, port: int, sent: bytes) -> None:
    """Open a connection, send `sent`, read nothing; reconnect if it is closed."""
    while True:
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection(host, port, limit=1)
            writer.write(sent)
            while not writer.transport.is_closing():
                await asyncio.sleep(0.1)
        await asyncio.sleep(0.1)


async def send_too_much(host: str, port: int) -> None:
    """Send long headers and long bodies endlessly."""
    head = f"POST /stop HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: 100000000\r\n\r\n".encode()
    while True:
        for begin in (b"GET / HTTP/1.1\r\nX: ", head):
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection(host, port)
                writer.write(begin)
                for _ in range(100):
                    writer.write(b"x" * 1_000_000)
                    await writer.drain()
                writer.close()
        await asyncio.sleep(0)


async def attack(kind: str, host: str, port: int) -> None:
    """Attack until this process is killed."""
    if kind == "requests":
        await asyncio.gather(*(request_for_ever(host, port) for _ in range(4)))
    if kind == "half_open":
        await asyncio.gather(*(hold_for_ever(host, port, b"GET /stats HT") for _ in range(500)))
    if kind == "readers":
        ask = f"GET /events HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode()
        await asyncio.gather(*(hold_for_ever(host, port, ask) for _ in range(200)))
    if kind == "oversize":
        await asyncio.gather(*(send_too_much(host, port) for _ in range(4)))
    while True:
        pass


def measure(seconds: float, repeats: int) -> None:
    """Measure every kind in turn with no clients."""
    from asyncrl import DQN, Trainer

    report = Report("endpoint_load")
    report.note("seconds of one window", seconds)
    trainer = Trainer(
        "CartPole-v1",
        DQN(replay_capacity=10_000),
        num_actors=1,
        http="auto",
        device="cpu",
        eval_interval_seconds=1e6,
    )
    alone: dict[str, list[float]] = {kind: [] for kind in KINDS}
    flooded: dict[str, list[float]] = {kind: [] for kind in KINDS}
    resident: list[float] = []
    with trainer:
        trainer.start()
        while (seen := trainer.snapshot()) is None or seen.updates == 0:
            time.sleep(0.05)
        address = urlsplit(str(trainer.url))
        for kind in KINDS * repeats:
            alone[kind].append(updates_per_second(trainer, seconds))
            client = subprocess.Popen(
                [sys.executable, __file__, kind, str(address.hostname), str(address.port)]
            )
            try:
                time.sleep(1.0)
                flooded[kind].append(updates_per_second(trainer, seconds))
            finally:
                client.kill()
                client.wait()
            resident.append(psutil.Process().memory_info().rss / 1e6)
        trainer.stop()
    for kind in KINDS:
        report.add(f"{kind}_updates_alone", alone[kind], "updates/s")
        report.add(f"{kind}_updates_flooded", flooded[kind], "updates/s")
        report.add_ratio(f"{kind}_flooded_to_alone", flooded[kind], alone[kind], "over 0.9")
    report.add("resident_growth", [resident[-1] - resident[0]], "MB", "0")
    report.write()


def updates_per_second(trainer: object, seconds: float) -> float:
    """Updates per second during `seconds`."""
    before, began = trainer.snapshot(), time.monotonic()  # type: ignore[attr-defined]
    time.sleep(seconds)
    after = trainer.snapshot()  # type: ignore[attr-defined]
    return float(after.updates - before.updates) / (time.monotonic() - began)


def main() -> None:
    """Measure, or run as the clients."""
    if sys.argv[1:2] and sys.argv[1] in KINDS:
        resource.setrlimit(resource.RLIMIT_NOFILE, (4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        asyncio.run(attack(sys.argv[1], sys.argv[2], int(sys.argv[3])))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="of one window")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    measure(arguments.seconds, arguments.repeats)


if __name__ == "__main__":
    main()
