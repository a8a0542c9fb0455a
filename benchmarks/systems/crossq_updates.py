"""Updates/s of CrossQ beside SBX's, on one thread: an actor of 256, 256, batches of 256, the shapes of HalfCheetah-v5.

bare      the core's `update` in a loop on prepared batches
run       a whole run with one actor, an environment step per update; the actor shares the core
autograd  as `bare`, by the modules and autograd, as on a GPU
peers     SBX's whole loop, an environment step per update; its `train` alone is compiled anew for other offsets of the
          policy delay, so it is not measured

Every figure is measured in a separate process on one core; ways alternate, and ratios are formed repeat by repeat.

    python -m benchmarks.systems.crossq_updates --peer-python /path/to/python/with/sbx-rl
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import json
import sys
import time
from typing import Any

from benchmarks.harness import runs
from benchmarks.harness.report import Report
from benchmarks.systems.bare_sac import ENV, HIDDEN, SPEC, WARM_UPDATES, repeat

ITEMS = ("bare", "run", "autograd", "peers")
CRITICS = (256, 512)
"""Widths of the critics' two layers."""


def record(critics: int) -> Any:
    """CrossQ of the sizes of this comparison."""
    from asyncrl import CrossQ

    width = (critics, critics)
    return CrossQ(hidden_sizes=HIDDEN, critic_hidden_sizes=width, batch_size=256, samples_per_insert=256)


def run(critics: int, seconds: float) -> float:
    """Updates/s of a run on HalfCheetah, from two snapshots of its counters."""
    from asyncrl import Trainer

    with Trainer(
        ENV,
        record(critics),
        num_actors=1,
        envs_per_actor=1,
        seed=0,
        http="off",
        eval_interval_steps=None,
        report_interval_seconds=0.25,
    ) as trainer:
        trainer.start()
        first = last = runs.when_updated(trainer, WARM_UPDATES)
        while last.wall_seconds - first.wall_seconds < seconds:
            time.sleep(0.25)
            last = trainer.snapshot() or last
    return float((last.updates - first.updates) / (last.wall_seconds - first.wall_seconds))


def bare(critics: int, by_hand: bool, seconds: float) -> float:
    """Updates/s in a loop."""
    import torch

    from asyncrl.algorithms import crossq_update

    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    if not by_hand:
        crossq_update.passes_by_hand = lambda network, x: False
    update = record(critics).make_updater(SPEC, "cpu", 0).update
    repeat(update, WARM_UPDATES)
    count = max(1, round(seconds / (repeat(update, WARM_UPDATES) / WARM_UPDATES)))
    return count / repeat(update, count)


def main() -> None:
    """Measure and write results/crossq_updates.json."""
    parser = runs.measuring_flags(__doc__, ITEMS, 5.0)
    parser.add_argument("--peer-python", default=sys.executable, help="interpreter that has sbx-rl")
    parsed, _ = runs.parse(parser, "crossq_updates", ITEMS)
    if parsed.measure:
        critics, way = parsed.measure.split()
        rate = run(int(critics), parsed.seconds) if way == "run" else None
        print(json.dumps(rate or bare(int(critics), way == "bare", parsed.seconds)))
        return
    report = Report(parsed.name, ["mujoco"])
    rates: dict[str, list[float]] = {}
    for _ in range(1 if parsed.quick else parsed.repeats):
        for critics in CRITICS:
            for way, value in measured(report, parsed, critics).items():
                rates.setdefault(f"{way}_{critics}", []).append(value)
                print(f"{way}_{critics}: {value:.1f} updates/s", flush=True)
    for key, values in rates.items():
        report.add(f"{key}_updates_per_second", values, "updates/s")
    for critics in CRITICS:
        for way, other in (("bare", "autograd"), ("run", "sbx_loop")):
            pairs = zip(*(rates.get(f"{name}_{critics}", []) for name in (way, other)), strict=False)
            if ratios := [own / theirs for own, theirs in pairs]:
                report.add(f"{way}_over_{other}_{critics}", ratios, "")
    report.write()


def measured(report: Report, parsed: Any, critics: int) -> dict[str, float]:
    """Updates/s of every chosen way with critics of this width, once."""
    found = {}
    for way in ("bare", "run", "autograd"):
        if way in parsed.items:
            found[way] = runs.measured("systems.crossq_updates", f"{critics} {way}", parsed.seconds)
    if "peers" in parsed.items:
        options = [
            ENV,
            "--mode",
            "updates",
            "--seconds",
            str(parsed.seconds),
            "--crossq-critics",
            str(critics),
        ]
        result = runs.peer("sbx_sac", options, parsed.peer_python)
        report.note("sbx_means", {what: result[what] for what in ("versions", "cores", "environments")})
        found["sbx_loop"] = result["loop_updates_per_second"]
    return found


if __name__ == "__main__":
    main()
