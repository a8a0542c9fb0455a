"""Training under a flood of requests to its page: updates per second with and without hostile clients, in turn.

    requests    a few clients that request /stats as fast as they get answers
    pipelined   the same clients send 10,000 requests a second without waiting for an answer
    half_open   500 connections that send half a request
    readers     200 readers of /events that never read
    oversize    headers of 1 MB and bodies of 100 MB, announced and sent until the server closes

The clients are another process, so that only their connections and their CPU time affect the run. `busy` shows the
effect of the CPU time alone. The requests that were sent and answered are counted by the clients.

    python -m benchmarks.systems.endpoint_load --seconds 5 --repeats 3
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import subprocess
import sys
import time
from urllib.parse import urlsplit

import psutil

from benchmarks.harness.report import Report, script_parser

KINDS = ("requests", "pipelined", "half_open", "readers", "oversize", "busy")
CLIENTS, PIPELINED, PAUSE_SECONDS = 4, 250, 0.1


class Counts:
    """Requests of all clients.

    Attributes:
        sent: requests that the server's socket took.
        answered: responses with status 200.
    """

    sent = 0
    answered = 0

    async def print(self) -> None:
        """Print both every tenth of a second, for the measuring process."""
        while True:
            print(self.sent, self.answered, flush=True)
            await asyncio.sleep(PAUSE_SECONDS)


async def request_for_ever(host: str, port: int, counts: Counts) -> None:
    """Request /stats endlessly, on one connection after the other."""
    while True:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            reader, writer = await asyncio.open_connection(host, port, limit=1 << 20)
            for _ in range(1000):
                writer.write(f"GET /stats HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
                counts.sent += 1
                head = await reader.readuntil(b"\r\n\r\n")
                counts.answered += head.startswith(b"HTTP/1.1 200")
                length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
                await reader.readexactly(length)
            writer.close()


async def pipeline_for_ever(host: str, port: int, counts: Counts) -> None:
    """Send `PIPELINED` requests every `PAUSE_SECONDS`, whatever is answered; reconnect if the server closes."""
    block = f"GET /stats HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode() * PIPELINED
    while True:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(host, port)
            writer.transport.set_write_buffer_limits(high=0)
            reading = asyncio.create_task(count_answers(reader, counts))
            while not reading.done():
                writer.write(block)
                await writer.drain()
                counts.sent += PIPELINED
                await asyncio.sleep(PAUSE_SECONDS)
            writer.close()


async def count_answers(reader: asyncio.StreamReader, counts: Counts) -> None:
    """Count the answers until the server closes; one split over two reads is not counted."""
    with contextlib.suppress(OSError):
        while answers := await reader.read(1 << 20):
            counts.answered += answers.count(b"HTTP/1.1 200")


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
    counts = Counts()
    if kind in ("requests", "pipelined"):
        client = request_for_ever if kind == "requests" else pipeline_for_ever
        await asyncio.gather(counts.print(), *(client(host, port, counts) for _ in range(CLIENTS)))
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
        eval_interval_steps=None,
    )
    alone: dict[str, list[float]] = {kind: [] for kind in KINDS}
    flooded: dict[str, list[float]] = {kind: [] for kind in KINDS}
    rates: dict[str, list[float]] = {}
    resident: list[float] = []
    with trainer:
        trainer.start()
        while (seen := trainer.snapshot()) is None or seen.updates == 0:
            time.sleep(0.05)
        address = urlsplit(str(trainer.url))
        for kind in KINDS * repeats:
            alone[kind].append(updates_per_second(trainer, seconds))
            command = [sys.executable, "-m", "benchmarks.systems.endpoint_load", kind]
            command += [str(address.hostname), str(address.port)]
            client = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            try:
                time.sleep(1.0)
                flooded[kind].append(updates_per_second(trainer, seconds))
            finally:
                client.kill()
                lines = client.communicate()[0].splitlines()[:-1]
            if lines:
                for name, count in zip(("sent", "answered"), lines[-1].split(), strict=True):
                    rates.setdefault(f"{kind}_{name}", []).append(int(count) / (PAUSE_SECONDS * len(lines)))
            resident.append(psutil.Process().memory_info().rss / 1e6)
        trainer.stop()
    for kind in KINDS:
        report.add(f"{kind}_updates_alone", alone[kind], "updates/s")
        report.add(f"{kind}_updates_flooded", flooded[kind], "updates/s")
        report.add_ratio(f"{kind}_flooded_to_alone", flooded[kind], alone[kind], "over 0.9")
    for name, values in rates.items():
        report.add(name, values, "requests/s")
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
    parser = script_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="of one window")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    measure(arguments.seconds, arguments.repeats)


if __name__ == "__main__":
    main()
