"""Milliseconds of a forward pass of the convolutional networks: torch with one thread against NumPy.

A loaded policy acts with NumPy, actors and the inference server with torch. Both ways compute the same rows one after
the other, and ratios are formed repeat by repeat: above 1 means that NumPy takes longer.

    python -m benchmarks.systems.convolutions
"""

from __future__ import annotations

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch

from asyncrl.acting.images import ConvolutionalNetwork
from asyncrl.envs.observations import Image
from benchmarks.harness.report import Report, by_turns, script_parser

ROWS = (1, 8, 32)
NETWORKS: dict[str, ConvolutionalNetwork] = {
    "nature_84x84x4": ConvolutionalNetwork("nature", Image(4, 84, 84, 1, False)),
    "impala_84x84x4": ConvolutionalNetwork("impala", Image(4, 84, 84, 1, False)),
    "small_21x21x2": ConvolutionalNetwork("small", Image(2, 21, 21, 1, False)),
    "impala_21x21x2": ConvolutionalNetwork("impala", Image(2, 21, 21, 1, False)),
}
OUTPUTS = 6


def pair(network: ConvolutionalNetwork, rows: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Forward passes in torch and in NumPy over the same random rows."""
    inputs = network.image.values
    module = network(inputs, OUTPUTS).eval().requires_grad_(False)
    flat = np.concatenate([tensor.numpy().ravel() for tensor in module.parameters()])
    x = np.random.default_rng(0).random((rows, inputs), np.float32)

    def by_torch() -> Any:
        with torch.no_grad():
            return module(torch.from_numpy(x)).numpy()

    def by_numpy() -> Any:
        return network.numpy.forward(x, flat, OUTPUTS)

    np.testing.assert_allclose(by_numpy(), by_torch(), atol=1e-5)
    return by_torch, by_numpy


def milliseconds(call: Callable[[], Any], calls: int) -> float:
    """Median time of a call."""
    times = []
    for _ in range(calls):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return 1000 * median(times)


def measure(repeats: int) -> None:
    """Measure all figures and write results/convolutions.json."""
    torch.set_num_threads(1)
    report = Report("convolutions")
    for name, network in NETWORKS.items():
        for rows in ROWS:
            by_torch, by_numpy = pair(network, rows)
            calls = 5 if name == "impala_84x84x4" else 30
            ways = {"torch": by_torch, "numpy": by_numpy}
            times = by_turns(repeats, {way: partial(milliseconds, call, calls) for way, call in ways.items()})
            for way, values in times.items():
                report.add(f"{name}_{rows}_rows_{way}", values, "ms")
            report.add_ratio(f"{name}_{rows}_rows_numpy_to_torch", times["numpy"], times["torch"])
    report.write()


if __name__ == "__main__":
    parser = script_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    measure(parser.parse_args().repeats)
