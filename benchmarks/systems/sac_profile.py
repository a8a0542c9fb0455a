"""Breakdown of the time of one SAC update, by the profilers of torch and of Python.

update              total, without a profiler
profiled            total, with torch's profiler
operations          tensor operations in that profile, its overhead for each of them included
products            matrix products among them
products_alone      the same products in a loop
tiny                an update of networks and batches so small that only overhead is left: Python, calls of
                    operations, autograd's bookkeeping
kernels             numba kernels, by the profiler of Python
"""

from __future__ import annotations

import cProfile
import os
import pstats
import time
from typing import Any

import torch

from asyncrl.networks.matmul_precision import MatmulPrecision
from benchmarks.systems.bare_sac import WARM_UPDATES, Update, bare, repeat, updater

PROFILED, ROUNDS = 20, 7
PRODUCTS = {
    "aten::mm": 2,
    "aten::bmm": 2,
    "aten::mv": 2,
    "aten::addmm": 3,
    "aten::baddbmm": 3,
    "aten::addmv": 3,
}
"""Products, with the number of operands of each."""


def profile(way: str, seconds: float) -> dict[str, Any]:
    """Microseconds of one update by part, and tables of the most expensive operations and functions."""
    rate = bare(way, seconds)["updates_per_second"]
    update = updater(way)
    repeat(update, WARM_UPDATES)
    watched, profiled = quietest(update)
    found = functions(update)
    return {
        "update_microseconds": 1e6 / rate,
        "tiny_microseconds": tiny(way),
        "profiled_microseconds": 1e6 * profiled / PROFILED,
        **operations(watched, way),
        "kernels_microseconds": sum(own for name, _, own, _ in found if "_kernels.py " in name),
        "functions": found[:40],
    }


def shares(result: dict[str, Any]) -> dict[str, float]:
    """Fraction of the profiled time outside of tensor operations and kernels, and the fraction of overhead."""
    computing = result["operations_microseconds"] + result["kernels_microseconds"]
    return {
        "rest_share": 1.0 - computing / result["profiled_microseconds"],
        "overhead_share": result["tiny_microseconds"] / result["update_microseconds"],
    }


def operations(watched: Any, way: Any) -> dict[str, Any]:
    """Tensor operations and matrix products in torch's profile of `PROFILED` updates, per update."""
    ops = [e for e in watched.key_averages() if e.key.startswith("aten::")]
    ops.sort(key=lambda event: -event.self_cpu_time_total)
    shaped = [e for e in watched.key_averages(group_by_input_shape=True) if e.key in PRODUCTS]
    with MatmulPrecision("highest" if way == "plain" else way):
        products_alone = sum(event.count * alone(event) for event in shaped)
    return {
        "operations_microseconds": sum(e.self_cpu_time_total for e in ops) / PROFILED,
        "products_microseconds": sum(e.self_cpu_time_total for e in ops if e.key in PRODUCTS) / PROFILED,
        "products_alone_microseconds": products_alone / PROFILED,
        "operations": [
            (e.key, e.count / PROFILED, round(e.self_cpu_time_total / PROFILED, 1)) for e in ops[:20]
        ],
    }


def tiny(way: str) -> float:
    """Microseconds of an update of 8x8 networks with batches of 2."""
    update = updater(way, (8, 8), 2)
    repeat(update, WARM_UPDATES, 2)
    return 1e6 * min(repeat(update, PROFILED, 2) for _ in range(10 * ROUNDS)) / PROFILED


def quietest(update: Update) -> tuple[Any, float]:
    """Profile and seconds of the fastest round. Early rounds are slowed by page faults."""
    best, shortest = None, float("inf")
    for _ in range(ROUNDS):
        with torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True
        ) as watched:
            seconds = repeat(update, PROFILED)
        if seconds < shortest:
            best, shortest = watched, seconds
    return best, shortest


def alone(event: Any) -> float:
    """Microseconds of one product of these shapes, with contiguous operands and a fixed output."""
    operands = [torch.randn(shape) for shape in event.input_shapes[: PRODUCTS[event.key]]]
    operation = getattr(torch, event.key.removeprefix("aten::"))
    out = torch.empty(0)
    times = []
    for _ in range(10):
        started = time.perf_counter()
        for _ in range(10):
            operation(*operands, out=out)
        times.append(1e5 * (time.perf_counter() - started))
    return min(times)


def functions(update: Update) -> list[tuple[str, float, float, float]]:
    """Functions by name, the most expensive first: calls, own and cumulative microseconds, per update.

    Python's profiler costs about a microsecond per call, so that small functions appear more expensive than they are.
    """
    watched = cProfile.Profile()
    watched.runcall(repeat, update, PROFILED)
    rows = []
    for (path, _, name), (_, calls, own, total, _) in pstats.Stats(watched).stats.items():  # type: ignore[attr-defined]
        where = os.path.basename(path) + " " if path != "~" else ""
        times = (round(1e6 * seconds / PROFILED, 1) for seconds in (own, total))
        rows.append((where + name, calls / PROFILED, *times))
    return sorted(rows, key=lambda row: -row[3])
