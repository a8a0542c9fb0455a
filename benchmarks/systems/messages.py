"""Messages/s and MB/s between two processes: our ring beside queues, pipes, faster-fifo and Ray's object store.

The counterpart of TianJi's figure of data transmission (arXiv 2502.20190), from 64 bytes to 4 MiB. Peers are installed,
in the versions pinned here, into an environment of their own. Every transport is a process of that environment's
(`benchmarks/peers/messages.py` says what each does and what a message is), and they take turns.

    nice -n -5 python -m benchmarks.systems.messages --venv /tmp/peers

Two copies of a message, one at each end, on two cores: `memcpy` is one of them on one core. A ring whose ends have a
core each can therefore reach it. Other work on the machine delays every hand-over between two processes, and those
most that have the most of them (Ray's four), which a higher priority reduces.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness import runs, venvs
from benchmarks.harness.report import Report, Side, script_parser
from benchmarks.peers.messages import SIZES, TRANSPORTS

PACKAGES = {"faster_fifo": "faster-fifo==1.5.2", "ray": "ray==2.60.0"}
"""What a transport needs that we do not."""
LIMIT_SECONDS = 300.0


def main() -> None:
    """Measure and write results/messages.json."""
    parser = script_parser(__doc__)
    parser.add_argument("--venv", type=Path, required=True, help="environment of the peers; made if missing")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="of each size in each repeat")
    parsed = parser.parse_args()
    python = venvs.python_of(parsed.venv)
    absent = {name: venvs.install(python, [package]) for name, package in PACKAGES.items()}
    results: dict[str, list[runs.Summary]] = {name: [] for name in TRANSPORTS if not absent.get(name)}
    report = Report("messages", ["faster-fifo", "ray"])
    report.note("settings", f"{parsed.seconds} s for each of {len(SIZES)} sizes, {parsed.repeats} times")
    for repeat in range(parsed.repeats):
        for name in list(results):
            try:
                flags = [name, "--seconds", str(parsed.seconds)]
                results[name].append(runs.peer("messages", flags, python, LIMIT_SECONDS))
            except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
                absent[name] = f"repeat {repeat}: {error}"
                del results[name]
    for name, reason in absent.items():
        if reason:
            report.note(f"{name}_absent", reason)
    add_figures(report, results)
    report.write()


def add_figures(report: Report, results: Mapping[str, Sequence[runs.Summary]]) -> None:
    """Add MB/s and messages/s of every transport and size, and each transport's share of the ring."""
    rows: list[list[Any]] = []
    for size, size_bytes in SIZES.items():
        row: list[Any] = [size]
        for name, theirs in results.items():
            rates, side = [r["rates"][size] for r in theirs], {name: Side.of(theirs)}
            report.add(f"{size}/{name}_messages_per_second", rates, "messages/s", sides=side)
            report.add(f"{size}/{name}", [rate * size_bytes / 1e6 for rate in rates], "MB/s", sides=side)
            if name not in ("ring", "in_place", "memcpy"):
                ours = [r["rates"][size] for r in results["ring"]]
                report.add_ratio(f"{size}/ring_to_{name}", ours, rates)
            rate = median(rates)
            row.append(f"{rate:,.0f} ({rate * size_bytes / 1e6:,.0f})")
        rows.append(row)
    report.add_table(["messages/s (MB/s)", *results], rows)


if __name__ == "__main__":
    main()
