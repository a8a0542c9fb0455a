"""Cost of groups: a fusion against its bare message, the learner's time, a slow group, and slow messages.

Two processes communicate over gloo on loopback. Bare messages and fusions alternate call by call; each repeat is the
median of its calls. The learner makes updates of DQN's CartPole preset with a fixed batch. Its lost time is the time in
the fusion's hooks, by the clock and by its thread's CPU time: if other work shares the cores, a hook that wakes gloo's
thread may be preempted. The slowed group sleeps nine times as long as its own update takes. A delayed message completes
at the earliest the given number of milliseconds after its start.

    python -m benchmarks.groups.cost --repeats 3
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from asyncrl import DQN
from asyncrl.config import TrainerConfig
from asyncrl.groups.connecting import (
    Connection,
    Fusion,
    Reception,
    client_fusion,
    collective_fusion,
    serving_fusion,
)
from asyncrl.groups.launch import free_port
from asyncrl.groups.messages import ENCODINGS
from asyncrl.groups.peers import Peers, Pending
from asyncrl.groups.place import Place
from asyncrl.groups.rounds import Rounds
from asyncrl.groups.state import packed
from asyncrl.interfaces import Batch, DiscreteAction, EnvSpec
from benchmarks.harness.report import Report, script_parser

SIZES = (17_410, 150_000, 1_000_000)
"""Lengths of a vector; about the presets of DQN on CartPole and of SAC on HalfCheetah, and a small convolution."""
MODES = ("none", "gradients", "average", "async")


DELAYS = (1, 10, 100)
"""Delays of messages in milliseconds."""


class DelayedWork:
    """A message that completes at the earliest some seconds after its start."""

    def __init__(self, work: Any, seconds: float) -> None:
        self._work, self._over = work, time.monotonic() + seconds

    def is_completed(self) -> bool:
        return self._work.is_completed() and time.monotonic() >= self._over

    def wait(self, limit: Any) -> None:
        self._work.wait(limit)
        time.sleep(max(0.0, self._over - time.monotonic()))


def delay_messages(seconds: float) -> None:
    """Patch this process so that every later message takes at least `seconds`."""
    begin = Pending.begin

    def begin_slowly(self: Pending, operation: Any, *arguments: Any) -> Any:
        return DelayedWork(begin(self, operation, *arguments), seconds)

    Pending.begin = begin_slowly  # type: ignore[method-assign]


def connection(rank: int, port: int, name: str) -> Connection:
    store = dist.TCPStore(  # type: ignore[attr-defined]
        "127.0.0.1", port, is_master=rank == 0, wait_for_workers=False
    )
    return Connection(
        dist.PrefixStore(name, store),  # type: ignore[attr-defined]
        Place(rank, 2, "127.0.0.1", port),
        "127.0.0.1",
    )


def messages(made: Connection, size: int, calls: int) -> dict[str, float]:
    """Median microseconds of a bare all-reduce and of a round with the same vector, alternating."""
    peers = Peers(made.store, "peers", made.place.rank, 2)
    rounds = Rounds(peers, ENCODINGS["float32"](size))
    vector, bare = torch.randn(size), torch.randn(size)
    kinds: tuple[Callable[[], Any], ...] = (lambda: peers.sum(bare), lambda: rounds.exchange(vector))
    times: tuple[list[float], list[float]] = ([], [])
    for call in range(calls + 10):
        for kind, found in zip(kinds, times, strict=True):
            started = time.perf_counter()
            kind()
            if call >= 10:
                found.append(1e6 * (time.perf_counter() - started))
        bare.mul_(0.5)
    return {"bare": median(times[0]), "round": median(times[1])}


def fixed_batch(spec: EnvSpec, size: int) -> Batch:
    rng, batch = np.random.default_rng(0), Batch.allocate(size, spec)
    batch.obs[:], batch.next_obs[:] = rng.normal(size=(2, *batch.obs.shape))
    batch.action[:], batch.reward[:] = rng.integers(0, 2, size), rng.normal(size=size)
    batch.discount[:], batch.weight[:] = 0.99, 1.0
    return batch


def fusion_of(mode: Any, made: Connection, core: Any) -> Fusion:
    options = TrainerConfig(env="any", algo="any", fusion=mode, fusion_interval=32)
    if mode != "async":
        return collective_fusion(made, options, core)
    if made.place.rank:
        return client_fusion(made, options, core, lambda: None)
    data = packed(core.state_dict())
    reception = Reception(made, lambda: data, lambda rank, life: None)
    fusion = serving_fusion(reception, options, core)
    while not reception.lives:
        time.sleep(0.01)
    return fusion


def learning(made: Connection, mode: str, seconds: float, slowed: bool) -> dict[str, float]:
    """Updates per second of this rank, and the fraction of its time spent in the hooks."""
    spec, algorithm = EnvSpec("any", (4,), "float32", DiscreteAction(2)), DQN.preset("CartPole-v1")
    core, batch = algorithm.make_updater(spec, "cpu", 0), fixed_batch(spec, algorithm.batch_size)
    for _ in range(50):
        core.update(batch)
    fusion = fusion_of(mode, made, core) if mode != "none" else None
    lost, busy = [0.0], [0.0]
    for name in ("on_update", "on_step"):
        if (hook := getattr(core.vector, name)) is not None:
            setattr(core.vector, name, timed(hook, lost, busy))
    updates, started, computed = 0, time.perf_counter(), time.thread_time()
    while time.perf_counter() - started < seconds:
        before, waited = time.perf_counter(), lost[0]
        core.update(batch)
        updates += 1
        if slowed and made.place.rank:
            time.sleep(9 * (time.perf_counter() - before - (lost[0] - waited)))
    took, share = time.perf_counter() - started, lost[0]
    computing = busy[0] / (time.thread_time() - computed)
    fusions = fusion.statistics()["fusions"] / took if fusion is not None else 0.0
    if fusion is not None:
        fusion.finish()
        fusion.close()
    return {
        "updates_per_second": updates / took,
        "hook_fraction": share / took,
        "hook_cpu_fraction": computing,
        "fusions_per_second": fusions,
    }


def timed(hook: Callable[..., Any], lost: list[float], busy: list[float]) -> Callable[..., Any]:
    """Wrap `hook` to add its seconds to `lost` and its thread's CPU seconds to `busy`."""

    def call(*arguments: Any) -> Any:
        started, computed = time.perf_counter(), time.thread_time()
        try:
            return hook(*arguments)
        finally:
            busy[0] += time.thread_time() - computed
            lost[0] += time.perf_counter() - started

    return call


def both(port: int, name: str, *arguments: str) -> list[dict[str, float]]:
    """Results of two processes, one per rank."""
    command = [sys.executable, "-m", "benchmarks.groups.cost", "--port", str(port), "--name", name]
    command += ["--measure", *arguments]
    ranks = [
        subprocess.Popen([*command, "--rank", str(r)], stdout=subprocess.PIPE, text=True) for r in (0, 1)
    ]
    outputs = [rank.communicate(timeout=300)[0] for rank in ranks]
    return [json.loads(output.splitlines()[-1]) for output in outputs]


def measure(options: argparse.Namespace) -> None:
    """Make one process's part of a measurement and print its result."""
    torch.set_num_threads(1)
    made, (kind, *rest) = connection(options.rank, options.port, options.name), options.measure
    if kind == "messages":
        found = messages(made, int(rest[0]), int(rest[1]))
    else:
        if kind.startswith("delayed"):
            delay_messages(1e-3 * float(kind.removeprefix("delayed")))
        found = learning(made, rest[0], float(rest[1]), slowed=kind == "slowed")
    made.store.add("done", 1)
    while options.rank == 0 and made.store.add("done", 0) < 2:
        time.sleep(0.01)
    print(json.dumps(found))


def compare_modes(report: Report, kind: str, repeats: int, seconds: float) -> None:
    """Measure rank 0's learning in every mode; the modes of one repeat follow one another."""
    found: dict[str, list[dict[str, float]]] = {mode: [] for mode in MODES}
    for _ in range(repeats):
        for mode in MODES:
            found[mode].append(both(free_port(), "l", kind, mode, str(seconds))[0])
    rates = {mode: [f["updates_per_second"] for f in those] for mode, those in found.items()}
    for mode, those in found.items():
        report.add(f"{kind}_{mode}_updates_per_second", rates[mode], "updates/s")
        if mode == "none":
            continue
        report.add_ratio(f"{kind}_{mode}_to_none", rates[mode], rates["none"])
        for name, unit in (("hook_fraction", ""), ("hook_cpu_fraction", ""), ("fusions_per_second", "1/s")):
            report.add(f"{kind}_{mode}_{name}", [f[name] for f in those], unit)


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--note", default="", help="what else the machine did, for the result file")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--name", help=argparse.SUPPRESS)
    parser.add_argument("--measure", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(options)
        return
    report = Report("groups")
    for size in SIZES:
        found = [
            both(free_port(), "m", "messages", str(size), str(options.calls))[0]
            for _ in range(options.repeats)
        ]
        bare, rounds = ([f[key] for f in found] for key in ("bare", "round"))
        report.add(f"all_reduce_microseconds_{size}", bare, "us")
        report.add(f"round_microseconds_{size}", rounds, "us")
        report.add_ratio(f"round_to_all_reduce_{size}", rounds, bare)
    for kind in ("even", "slowed", *(f"delayed{milliseconds}" for milliseconds in DELAYS)):
        compare_modes(report, kind, options.repeats, options.seconds)
    report.note("machine_was", options.note)
    report.write()


if __name__ == "__main__":
    main()
