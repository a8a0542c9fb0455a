"""Float32 products of the learner by torch and by NumPy, on one thread: GFLOP/s of the shapes of an update.

The shapes are those of SAC with networks of 256x256 on HalfCheetah-v5 (a batch of 256, 17 observations, 6 actions), of
DQN with 64x64, and of a wide network. Ratios above 1 mean that NumPy is faster. Times are CPU seconds of the thread, so
that other work on the machine matters less; each figure is the fastest of `--rounds` rounds, and rounds of both
libraries alternate. `library` is the one that runs use on this processor (`asyncrl.networks.products`).

On machines that set OPENBLAS_CORETYPE for old builds of OpenBLAS, unset it for this command alone.

    python -m benchmarks.systems.products
"""

from __future__ import annotations

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import time

import torch

from asyncrl.networks.products import product_library, products
from benchmarks.harness.report import Report, script_parser

SHAPES = {
    "hidden_256x256x256": (256, 256, 256),
    "first_256x23x256": (256, 23, 256),
    "head_256x256x12": (256, 256, 12),
    "input_gradient_256x256x6": (256, 256, 6),
    "value_256x256x1": (256, 256, 1),
    "dqn_hidden_64x64x64": (64, 64, 64),
    "dqn_first_64x4x64": (64, 4, 64),
    "wide_256x512x512": (256, 512, 512),
}
"""Rows, inner width and columns."""
FORMS = ("forward", "weights", "inputs")
"""x w; the gradient of the weights, x^T y; the gradient at the input, y w^T."""


def seconds(shape: tuple[int, int, int], form: str, numpy: bool, calls: int) -> float:
    """CPU seconds of a call."""
    rows, inner, columns = shape
    x, w, y = torch.randn(rows, inner), torch.randn(inner, columns), torch.randn(rows, columns)
    out = torch.empty(rows, columns)
    operands = {"forward": (x, w, out), "weights": (x.t(), y, w.clone()), "inputs": (y, w.t(), x.clone())}[
        form
    ]
    (product,) = products(*operands, numpy=numpy)
    product()
    started = time.thread_time()
    for _ in range(calls):
        product()
    return (time.thread_time() - started) / calls


def main() -> None:
    """Measure and write results/products.json."""
    parser = script_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    report = Report("products")
    report.note("library", product_library())
    for name, shape in SHAPES.items():
        operations = 2 * shape[0] * shape[1] * shape[2]
        calls = max(5, int(4e8 / operations) if operations > 1e6 else 400)
        for form in FORMS:
            fastest = {True: float("inf"), False: float("inf")}
            for _ in range(rounds):
                for numpy in fastest:
                    fastest[numpy] = min(fastest[numpy], seconds(shape, form, numpy, calls))
            for numpy, library in ((False, "torch"), (True, "numpy")):
                report.add(f"{name}_{form}_{library}", [operations / fastest[numpy] / 1e9], "GFLOP/s")
            report.add_ratio(f"{name}_{form}_numpy_to_torch", [fastest[False]], [fastest[True]])
    report.write()


if __name__ == "__main__":
    main()
