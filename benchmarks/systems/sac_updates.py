"""Cost of a SAC update: 256x256 networks, batches of 256, the shapes of HalfCheetah-v5.

Every figure is measured in a separate process with one thread.

bare        the core's `update` in a loop, in float32 and at "medium" precision, and the same update in a plain
            implementation (`plain_sac.py`)
run         whole runs with one actor, at both precisions, after the first updates; the learner's wait fraction is in
            the notes
peers       Stable-Baselines3 and SBX: their whole loop (an environment step per update) and their `train` alone
profile     breakdown of one bare update: tensor operations against the rest, matrix products alone, and the most
            expensive operations and functions (tables in the notes); see `sac_profile.py`

Measurements alternate; ratios are formed repeat by repeat. Bare updates use prepared batches; runs and peers also draw
theirs. In a profile, `rest_share` is the fraction of the profiled time outside of tensor operations and kernels, and
`overhead_share` the time of an update of tiny networks over that of a full one: two estimates of Python's share.

    python -m benchmarks.systems.sac_updates --peer-python /path/to/python/with/stable-baselines3 --sbx
    python -m benchmarks.systems.sac_updates --only profile
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
from benchmarks.systems.bare_sac import ENV, WARM_UPDATES, WAYS, bare, record
from benchmarks.systems.sac_profile import profile, shares

ITEMS = ("bare", "run", "peers", "profile")


def whole_run(precision: str, seconds: float) -> dict[str, Any]:
    """Updates/s of a run with one actor, from two snapshots of its counters."""
    from asyncrl import Trainer

    algorithm = record(precision, learning_starts=1_000)
    options = {**type(algorithm).preset_options(ENV), "num_actors": 1, "seed": 0, "http": "off"}
    options |= {"report_interval_seconds": 0.25, "eval_interval_steps": None}
    with Trainer(ENV, algorithm, **options) as trainer:
        trainer.start()
        first = runs.when_updated(trainer, WARM_UPDATES)
        waits, until = [], time.perf_counter() + seconds
        while time.perf_counter() < until:
            time.sleep(0.25)
            last = trainer.snapshot() or first
            waits.append(last.learner_wait_fraction)
    elapsed = last.wall_seconds - first.wall_seconds
    return {
        "updates_per_second": (last.updates - first.updates) / elapsed,
        "env_steps_per_second": (last.env_steps - first.env_steps) / elapsed,
        "learner_wait_fraction": sum(waits) / len(waits),
        "samples_per_insert": algorithm.samples_per_insert,
    }


MEASURES = {"bare": bare, "run": whole_run, "profile": profile}


def fresh(kind: str, way: str, seconds: float) -> dict[str, Any]:
    """Call `MEASURES[kind](way, seconds)` in a new process."""
    result: dict[str, Any] = runs.measured("systems.sac_updates", f"{kind} {way}", seconds)
    return result


def main() -> None:
    """Measure and write results/sac_updates.json."""
    parser = runs.measuring_flags(__doc__, ITEMS, 5.0)
    parser.add_argument(
        "--peer-python", default=sys.executable, help="interpreter that has stable-baselines3"
    )
    parser.add_argument("--sbx", action="store_true", help="SBX too (sbx-rl with the peer's interpreter)")
    parsed, _ = runs.parse(parser, "sac_updates", ITEMS)
    if parsed.measure:
        kind, way = parsed.measure.split()
        print(json.dumps(MEASURES[kind](way, parsed.seconds)))
        return
    report = Report(parsed.name, ["mujoco"])
    rates = alternate(report, parsed)
    for key in rates:
        report.add(f"{key}_updates_per_second", rates[key], "updates/s")
    add_ratios(report, rates)
    if "profile" in parsed.items:
        add_profiles(report, parsed.seconds)
    report.write()


def alternate(report: Report, parsed: Any) -> dict[str, list[float]]:
    """Updates/s of all chosen measurements, one value per repeat."""
    rates: dict[str, list[float]] = {}
    waits: dict[str, list[float]] = {}
    peers = {"sb3": "sb3_sac"} | ({"sbx": "sbx_sac"} if parsed.sbx else {})
    for _ in range(1 if parsed.quick else parsed.repeats):
        if "bare" in parsed.items:
            for way in WAYS:
                rate = fresh("bare", way, parsed.seconds)["updates_per_second"]
                rates.setdefault(f"bare_{way}", []).append(rate)
        if "run" in parsed.items:
            for way in WAYS[1:]:
                result = fresh("run", way, parsed.seconds)
                rates.setdefault(f"run_{way}", []).append(result["updates_per_second"])
                waits.setdefault(way, []).append(result["learner_wait_fraction"])
                print(f"run {way}: {json.dumps(result)}", flush=True)
        if "peers" in parsed.items:
            for name, script in peers.items():
                options = [ENV, "--mode", "updates", "--seconds", str(parsed.seconds)]
                result = runs.peer(script, options, parsed.peer_python)
                print(f"{name}: {json.dumps(result)}", flush=True)
                means = ("versions", "cores", "environments")
                report.note(f"{name}_means", {what: result[what] for what in means})
                for kind in ("loop", "train"):
                    rates.setdefault(f"{name}_{kind}", []).append(result[f"{kind}_updates_per_second"])
    for way, fractions in waits.items():
        report.note(f"run_{way}_learner_wait_fraction", fractions)
    return rates


def add_ratios(report: Report, rates: dict[str, list[float]]) -> None:
    """Add the ratios of measured pairs."""
    pairs = {
        ("bare_highest", "bare_plain"): "",
        ("bare_medium", "bare_plain"): "",
        ("run_highest", "bare_highest"): "",
        ("run_medium", "bare_medium"): "",
        ("run_highest", "sb3_loop"): "at least 1.5",
        ("run_highest", "sb3_train"): "",
        ("run_medium", "sb3_loop"): "at least 1.5",
        ("bare_highest", "sb3_train"): "",
        ("bare_plain", "sb3_train"): "",
        ("run_highest", "sbx_loop"): "",
        ("run_medium", "sbx_loop"): "",
        ("bare_highest", "sbx_train"): "",
        ("bare_medium", "sbx_train"): "",
    }
    for (ours, theirs), goal in pairs.items():
        if ours in rates and theirs in rates:
            report.add_ratio(f"{ours}_to_{theirs}", rates[ours], rates[theirs], goal or None)


def add_profiles(report: Report, seconds: float) -> None:
    """Profile one update of each way."""
    for way in WAYS:
        result = fresh("profile", way, seconds)
        for table in ("operations", "functions"):
            report.note(f"profile_{way}_{table}", result.pop(table))
        for key, value in result.items():
            report.add(f"profile_{way}_{key}", [value], "us")
        for key, share in shares(result).items():
            report.add(f"profile_{way}_{key}", [share], "")


if __name__ == "__main__":
    main()
