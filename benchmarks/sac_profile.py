"""Where the time of one update of SAC goes, by the profilers of torch and of Python.

update              all of it, without a profiler
profiled            all of it, with torch's
operations          what that gives to tensor operations, its own cost for each of them included
products            matrix products among them
products_alone      the same products in a loop
tiny                an update of networks and batches so small that only its overhead is left: Python, calls of
                    operations, autograd's bookkeeping
kernels             what numba compiled, by the profiler of Python
"""

from __future__ import annotations

import cProfile
import os
import pstats
import time
from typing import Any

import torch
from bare_sac import WARM_UPDATES, Update, bare, repeat, updater

from asyncrl.networks.matmul_precision import MatmulPrecision

PROFILED, ROUNDS = 20, 7
PRODUCTS = {
    "aten::mm": 2,
    "aten::bmm": 2,
    "aten::mv": 2,
    "aten::addmm": 3,
    "aten::baddbmm": 3,
    "aten::addmv": 3,
}
"""Products, and how many operands each has."""


def profile(way: str, seconds: float) -> dict[str, Any]:
    """Microseconds of one update by part, and the tables of the costliest operations and functions."""
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
    """What is neither a tensor operation nor a compiled kernel, of the profiled time; and what overhead takes."""
    computing = result["operations_microseconds"] + result["kernels_microseconds"]
    return {
        "rest_share": 1.0 - computing / result["profiled_microseconds"],
        "overhead_share": result["tiny_microseconds"] / result["update_microseconds"],
    }


def operations(watched: Any, way: Any) -> dict[str, Any]:
    """What the profiler of torch saw of `PROFILED` updates: tensor operations, and matrix products among them."""
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
    """Microseconds of an update of networks of 8x8 with batches of 2."""
    update = updater(way, (8, 8), 2)
    repeat(update, WARM_UPDATES, 2)
    return 1e6 * min(repeat(update, PROFILED, 2) for _ in range(10 * ROUNDS)) / PROFILED


def quietest(update: Update) -> tuple[Any, float]:
    """Profile and seconds of the quickest round. In early ones memory is fetched page by page, which is slow."""
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
    """Microseconds of one product with these shapes, contiguous and written to one place."""
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
    """The costliest by name: calls, microseconds of their own and with what they call, for one update.

    The profiler of Python costs about a microsecond a call, so that small functions look larger than they are.
    """
    watched = cProfile.Profile()
    watched.runcall(repeat, update, PROFILED)
    rows = []
    for (path, _, name), (_, calls, own, total, _) in pstats.Stats(watched).stats.items():  # type: ignore[attr-defined]
        where = os.path.basename(path) + " " if path != "~" else ""
        times = (round(1e6 * seconds / PROFILED, 1) for seconds in (own, total))
        rows.append((where + name, calls / PROFILED, *times))
    return sorted(rows, key=lambda row: -row[3])
