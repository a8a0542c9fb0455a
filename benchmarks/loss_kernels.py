"""Gain of every fused loss kernel: a whole update by the kernel against the same update by the formula and autograd.

A kernel stays where it gains at least 10 % of an update. Both ways take turns on one core, on the same weights and
batch; figures are medians of thread CPU time. SAC's draw and its losses have kernels of their own and are measured
apart.

    python benchmarks/loss_kernels.py
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
from before_after import ROWS, iteration, replay_update, specs, timed
from harness import Report, markdown

import asyncrl
from asyncrl import interfaces
from asyncrl.algorithms import maximum_entropy_update as entropy
from asyncrl.algorithms.rollout import Minibatch
from asyncrl.networks.gradients import vector_jacobian_product

CASES = tuple(ROWS)
GOAL = ">= 1.1"


@contextmanager
def _minibatches_without_kernel() -> Iterator[None]:
    """Minibatches made meanwhile use the formula."""
    make = Minibatch.__init__

    def without(self: Any, *arguments: Any) -> None:
        make(self, *arguments)
        self._kernel = None

    with mock.patch.object(Minibatch, "__init__", without):
        yield


def ways(name: str) -> dict[str, Callable[[], int]]:
    """The update of one row of `ROWS` by each way to compute its losses."""
    algorithm, options, shape, size = ROWS[name]
    spec = specs(interfaces)[shape]
    record = getattr(asyncrl, algorithm)(**options)

    def once(core: Any) -> Callable[[], int]:
        rng = np.random.default_rng(0)
        if hasattr(core, "update"):
            return replay_update(core, interfaces, spec, size, rng)
        return iteration(core, record.make_policy(spec), interfaces, spec, size, rng)

    def measured_later(core: Any, context: Callable[[], Any]) -> Callable[[], int]:
        """Its buffers are made at the first call, within the context."""
        call = once(core)
        with context():
            call()
        return call

    make = partial(record.make_updater, spec, "cpu", 0)
    found = {"kernel": once(make())}
    plain = make()
    if hasattr(plain, "update"):
        plain.kernels = False
        found["formula"] = once(plain)
    else:
        found["formula"] = measured_later(plain, _minibatches_without_kernel)
    if algorithm == "SAC":
        draw = partial(vector_jacobian_product, entropy.squashed_draw)
        losses_only = make()
        losses_only._gradient_mode = plain._gradient_mode
        context = partial(mock.patch.object, entropy, "DrawKernel", lambda *_: draw)
        found["formula of the draw"] = measured_later(losses_only, context)
    return found


def main() -> None:
    """Measure every case and write results/loss_kernels.json."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=CASES, default=CASES, metavar="CASE")
    arguments = parser.parse_args()
    report, rows = Report("loss_kernels"), []
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    for name in arguments.only:
        found = ways(name)
        taken: dict[str, list[float]] = {way: [] for way in found}
        for _ in range(arguments.rounds):
            for way, call in found.items():
                taken[way].append(timed(call, 0.2))
        for way, values in taken.items():
            report.add(f"{name} {way}", values, "us")
        for way in found:
            if way != "kernel":
                ratio = report.add_ratio(f"{name} {way} to kernel", taken[way], taken["kernel"], GOAL)
                rows.append([name, way, f"{np.median(taken['kernel']):,.0f}", f"{ratio:.2f}"])
    table = markdown(["update", "instead of the kernel", "us by kernels", "times as long"], rows)
    print(table)
    report.note("table", table.splitlines())
    report.write()


if __name__ == "__main__":
    main()
