"""Ways to run a module in an actor: eager, traced, frozen and compiled; one thread, microseconds of a call.

The networks are those of Atari (`nature`, 84 x 84 x 4) and Catch (`small`, 21 x 21), and a module of a user's own, two
hidden layers of 64. The modes take turns; ratios are to eager calls in the same turn. `torch.compile` needs a C++
compiler: without one it is left out, with the reason in the notes. Making is the time until the first result, which
every actor would spend.

    python -m benchmarks.systems.acting_modes [--turns 15]
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from asyncrl.acting.images import ConvolutionalNetwork
from asyncrl.envs.observations import Image
from benchmarks.harness.report import Report, by_turns, script_parser

ROWS = (1, 8, 32)
CALLS = {"nature": 10, "small": 50, "own": 500}


def networks() -> dict[str, tuple[nn.Module, int]]:
    """Modules in evaluation mode and the values of their rows, by name."""
    made: dict[str, tuple[nn.Module, int]] = {}
    for name, side, frames in (("nature", 84, 4), ("small", 21, 1)):
        image = Image(frames, side, side, 1, channels_first=True)
        made[name] = (ConvolutionalNetwork(name, image)(image.values, 6), image.values)  # type: ignore[arg-type]
    own = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4))
    made["own"] = (own, 8)
    return {name: (module.eval().requires_grad_(False), values) for name, (module, values) in made.items()}


def eager(module: nn.Module, rows: Tensor) -> Callable[[Tensor], Any]:
    """The module itself."""
    return module


def traced(module: nn.Module, rows: Tensor) -> Callable[[Tensor], Any]:
    """`torch.jit.trace`, whose weights may still change."""
    call: Callable[[Tensor], Any] = torch.jit.trace(module, (rows,))  # type: ignore[no-untyped-call]
    return call


def frozen(module: nn.Module, rows: Tensor) -> Callable[[Tensor], Any]:
    """`torch.jit.freeze` of the trace: a bound, since frozen weights cannot be refreshed."""
    call: Callable[[Tensor], Any] = torch.jit.freeze(traced(module, rows))
    return call


def compiled(module: nn.Module, rows: Tensor) -> Callable[[Tensor], Any]:
    """`torch.compile`."""
    torch._dynamo.reset()
    return torch.compile(module)


MODES = (eager, traced, frozen, compiled)


def microseconds(call: Callable[[Tensor], Any], rows: Tensor, count: int) -> float:
    """Mean duration of a call."""
    began = time.perf_counter()
    for _ in range(count):
        call(rows)
    return (time.perf_counter() - began) / count * 1e6


def main() -> None:
    """Measure every network with every number of rows, and write results/acting_modes.json."""
    parser = script_parser(__doc__)
    parser.add_argument("--turns", type=int, default=15)
    turns = parser.parse_args().turns
    torch.set_num_threads(1)
    report = Report("acting_modes")
    for name, (module, values) in networks().items():
        for count in ROWS:
            rows = torch.rand(count, values)
            calls: dict[str, Callable[[Tensor], Any]] = {}
            for mode in MODES:
                began = time.perf_counter()
                try:
                    with torch.no_grad():
                        calls[mode.__name__] = mode(module, rows)
                        for _ in range(3):
                            calls[mode.__name__](rows)
                except Exception as error:
                    calls.pop(mode.__name__, None)
                    report.note(
                        f"{mode.__name__} is absent", f"{type(error).__name__}: {str(error).splitlines()[0]}"
                    )
                    continue
                report.note(
                    f"seconds to make {name}, {count} rows, {mode.__name__}", time.perf_counter() - began
                )
            with torch.no_grad():
                times = by_turns(
                    turns,
                    {kind: partial(microseconds, call, rows, CALLS[name]) for kind, call in calls.items()},
                )
            for kind, taken in times.items():
                report.add(f"{name}_{count}_rows_{kind}", taken, "us")
                if kind != "eager":
                    report.add_ratio(f"{name}_{count}_rows_eager_to_{kind}", times["eager"], taken)
            print(f"{name} {count}: {median(times['eager']):.0f} us eager", flush=True)
    report.write()


if __name__ == "__main__":
    main()
