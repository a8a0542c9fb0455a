"""Private memory of a long run's main process, with the page open: growth in MB an hour, and where it grows.

The run is DQN on a slowed CartPole-v1, in its own process, with run directory, checkpoints and evaluations. Another
process does what the page does in a browser, and reloads the page every few minutes. Every half minute the memory is
read from `/proc/PID/smaps`, and the run tells its allocators' figures. Samples are appended to a file of JSON lines,
which `--read` evaluates while or after they are taken.

    python -m benchmarks.systems.soak --minutes 120 --samples soak.jsonl
    python -m benchmarks.systems.soak --read soak.jsonl

Growth is the least-squares slope after the first sixth of the samples, in which replay, caches, windows and the page's
600 moments fill. `kept` is what the run holds on purpose for its whole life: one record for each evaluation.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.faults.slopes import heap
from benchmarks.harness.report import FOLDER, Report, script_parser

RELOAD_SECONDS = 300.0
WARM_SHARE = 1 / 6
"""Fraction of the samples left out of slopes."""
MAPPING = re.compile(r"[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \d+ *(.*)")


def private_kilobytes(pid: int) -> dict[str, float]:
    """Private memory of a process in kB: all of it, and by the kind of its mapping.

    Returns:
        `private` is the sum of the others; `heap` is glibc's main arena; `anonymous` are other arenas, large blocks and
        stacks; `shared_memory` are pages of rings and weights that no other process has touched; `files` are the
        written pages of libraries.
    """
    found = dict.fromkeys(("private", "heap", "anonymous", "shared_memory", "files"), 0.0)
    kind = ""
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if (mapping := MAPPING.fullmatch(line)) is not None:
            kind = _kind(mapping.group(1))
        elif line.startswith("Private_"):
            kilobytes = float(line.split()[1])
            found[kind] += kilobytes
            found["private"] += kilobytes
    return found


def _kind(name: str) -> str:
    if name == "[heap]":
        return "heap"
    if not name or name.startswith("["):
        return "anonymous"
    return "shared_memory" if name.startswith(("/memfd:", "/dev/shm/")) else "files"


# --- the run, and its page's client ----------------------------------------------------------------------------------


def run(directory: str, env: str, algo: str, step_seconds: float, trim: bool, census: bool) -> None:
    """Train until standard input ends; print the address, then the figures of the heap for every line that is read."""
    from asyncrl import Trainer
    from asyncrl.algorithms import ALGORITHMS
    from benchmarks.harness.slow_envs import Delayed

    def environment() -> Any:
        import gymnasium

        return Delayed(gymnasium.make(env), step_seconds, busy=False, uneven=False)

    trainer = Trainer(
        environment, ALGORITHMS[algo](), num_actors=1, seed=0, device="cpu", run_dir=directory, http="auto"
    )
    with trainer:
        trainer.start()
        print(json.dumps({"url": trainer.url, "pid": os.getpid()}), flush=True)
        for _ in sys.stdin:
            print(json.dumps(told(trainer, trim, census)), flush=True)
        trainer.stop()


def told(trainer: Any, trim: bool, census: bool) -> dict[str, Any]:
    """Counters of the run and figures of its allocators."""
    if trim:
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
    found: dict[str, Any] = heap()
    if (seen := trainer.snapshot()) is not None:
        found |= {"updates": seen.updates, "env_steps": seen.env_steps, "evaluations": len(seen.evaluations)}
        found["kept"] = sum(map(_record_bytes, seen.evaluations)) / 1e3
    if census:
        kinds = Counter(type(thing).__qualname__ for thing in gc.get_objects())
        found["objects"] = dict(kinds.most_common(40))
    return found


def _record_bytes(record: Any) -> int:
    fields = vars(record)
    return sys.getsizeof(record) + sys.getsizeof(fields) + sum(sys.getsizeof(v) for v in fields.values()) + 8


async def client(url: str) -> None:
    """Load the page with its past and its options, follow its events, and reload it every few minutes, for ever."""
    import aiohttp

    while True:
        async with aiohttp.ClientSession() as session:
            for path in ("", "history", "config"):
                async with session.get(f"{url}/{path}") as answer:
                    await answer.read()
            try:
                async with (
                    asyncio.timeout(RELOAD_SECONDS),
                    session.get(f"{url}/events", timeout=None) as answer,
                ):
                    async for _ in answer.content.iter_any():
                        pass
                return  # the run has ended
            except TimeoutError:
                pass


# --- the measurement -------------------------------------------------------------------------------------------------


def watch(minutes: float, every_seconds: float, samples: Path, options: list[str]) -> None:
    """Append a sample to the file every `every_seconds`."""
    environment = {**os.environ, "PYTHONPATH": str(FOLDER.parent)}
    with tempfile.TemporaryDirectory(prefix="asyncrl-soak-") as folder, samples.open("a") as file:
        trained = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.systems.soak", "--run", f"{folder}/run", *options],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        assert trained.stdin is not None and trained.stdout is not None
        begun = json.loads(trained.stdout.readline())
        page = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.systems.soak", "--client", begun["url"]], env=environment
        )
        try:
            started = time.monotonic()
            while (now := time.monotonic() - started) < 60 * minutes:
                private = private_kilobytes(begun["pid"])
                print(file=trained.stdin, flush=True)
                sample = {"seconds": round(now, 1), **private, **json.loads(trained.stdout.readline())}
                print(json.dumps(sample), file=file, flush=True)
                if page.poll() is not None:
                    raise SystemExit(f"the page's client ended with exit code {page.returncode}")
                time.sleep(every_seconds)
        finally:
            page.kill()
            page.wait()
            trained.stdin.close()
            trained.wait(120)


def read(samples: Path) -> None:
    """Print the growth over the samples and write results/soak.json."""
    lines = [json.loads(line) for line in samples.read_text().splitlines()]
    warm = lines[int(len(lines) * WARM_SHARE) :]
    report = Report("soak")
    report.add("hours", [(warm[-1]["seconds"] - warm[0]["seconds"]) / 3600], "h")
    for what in (
        "private",
        "heap",
        "anonymous",
        "shared_memory",
        "files",
        "malloc_used",
        "malloc_free",
        "kept",
    ):
        if all(what in line for line in warm):
            report.add(
                f"growth_of_{what}",
                [slope(warm, what) / 1e3],
                "MB/h",
                "under 1 beyond kept" if what == "private" else None,
            )
    report.add("growth_of_python_blocks", [slope(warm, "python_blocks")], "/h")
    for what in ("updates", "env_steps", "evaluations"):
        report.add(what, [warm[-1][what]], "")
    stride = max(1, len(lines) // 60)
    report.note("seconds and kB of private memory", [[s["seconds"], s["private"]] for s in lines[::stride]])
    report.write()


def slope(samples: Sequence[dict[str, Any]], what: str) -> float:
    """Least-squares slope per hour."""
    hours = np.array([sample["seconds"] for sample in samples]) / 3600
    return float(np.polyfit(hours - hours[0], [sample[what] for sample in samples], 1)[0])


def main() -> None:
    """Measure, evaluate a file of samples, or be the run or the client of a measurement."""
    parser = script_parser(__doc__)
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--every", type=float, default=30.0, metavar="SECONDS", help="between two samples")
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--algo", default="dqn", help="an algorithm, with the options of its record")
    parser.add_argument("--step-seconds", type=float, default=0.001, help="by which a step is slowed")
    parser.add_argument(
        "--samples", type=Path, default=Path("soak.jsonl"), help="file to which samples are appended"
    )
    parser.add_argument("--read", type=Path, help="evaluate this file of samples instead of measuring")
    parser.add_argument("--trim", action="store_true", help="give free memory back before every sample")
    parser.add_argument(
        "--census", action="store_true", help="count Python's objects by type in every sample"
    )
    parser.add_argument("--run", help=argparse.SUPPRESS)
    parser.add_argument("--client", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        run(
            arguments.run,
            arguments.env,
            arguments.algo,
            arguments.step_seconds,
            arguments.trim,
            arguments.census,
        )
    elif arguments.client:
        asyncio.run(client(arguments.client))
    else:
        if not arguments.read:
            options = [f"--env={arguments.env}", f"--algo={arguments.algo}"]
            options += [f"--step-seconds={arguments.step_seconds}"]
            options += [f"--{name}" for name in ("trim", "census") if getattr(arguments, name)]
            watch(arguments.minutes, arguments.every, arguments.samples, options)
        read(arguments.read or arguments.samples)


if __name__ == "__main__":
    main()
