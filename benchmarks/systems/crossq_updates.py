"""Updates/s of CrossQ beside SBX's, on one thread: an actor of 256, 256, batches of 256, the shapes of HalfCheetah-v5.

bare      the core's `update` in a loop on prepared batches
autograd  the same by the modules and autograd, as on a GPU
peers     SBX: its whole loop (an environment step per update) and its `train` alone

Every figure is measured in a separate process; ways alternate, and ratios are formed repeat by repeat.

    python -m benchmarks.systems.crossq_updates --peer-python /path/to/python/with/sbx-rl
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import json
import subprocess
import sys
from typing import Any

from benchmarks.harness import runs
from benchmarks.harness.report import Report
from benchmarks.systems.bare_sac import ENV, HIDDEN, SPEC, WARM_UPDATES, repeat

CRITICS = (256, 512)
"""Widths of the critics' two layers."""


def bare(critics: int, by_hand: bool, seconds: float) -> float:
    """Updates/s in a loop."""
    import torch

    from asyncrl import CrossQ
    from asyncrl.algorithms import crossq_update

    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    if not by_hand:
        crossq_update.passes_by_hand = lambda network, x: False  # type: ignore[assignment]
    algorithm = CrossQ(hidden_sizes=HIDDEN, critic_hidden_sizes=(critics, critics), batch_size=256)
    update = algorithm.make_updater(SPEC, "cpu", 0).update
    repeat(update, WARM_UPDATES)
    count = max(1, round(seconds / (repeat(update, WARM_UPDATES) / WARM_UPDATES)))
    return count / repeat(update, count)


def fresh(critics: int, by_hand: bool, seconds: float) -> float:
    """`bare` in a new process."""
    line = [sys.executable, "-m", "benchmarks.systems.crossq_updates", "--measure", f"{critics} {by_hand:d}"]
    done = subprocess.run(
        [*line, "--seconds", str(seconds)], check=True, stdout=subprocess.PIPE, text=True, timeout=600
    )
    return float(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Measure and write results/crossq_updates.json."""
    parser = runs.flags(__doc__, ("bare", "autograd", "peers"))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--peer-python", default=sys.executable, help="interpreter that has sbx-rl")
    parser.add_argument("--measure", help="used by the script itself: one measurement, printed as JSON")
    parsed, _ = runs.parse(parser, "crossq_updates", ("bare", "autograd", "peers"))
    if parsed.measure:
        critics, by_hand = map(int, parsed.measure.split())
        print(json.dumps(bare(critics, bool(by_hand), parsed.seconds)))
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
        ours = rates.get(f"bare_{critics}", [])
        for other in ("autograd", "sbx_train", "sbx_loop"):
            pairs = zip(ours, rates.get(f"{other}_{critics}", []), strict=False)
            if ratios := [own / theirs for own, theirs in pairs]:
                report.add(f"bare_over_{other}_{critics}", ratios, "")
    report.write()


def measured(report: Report, parsed: Any, critics: int) -> dict[str, float]:
    """Updates/s of every chosen way with critics of this width, once."""
    found = {}
    for way in ("bare", "autograd"):
        if way in parsed.items:
            found[way] = fresh(critics, way == "bare", parsed.seconds)
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
        found |= {f"sbx_{kind}": result[f"{kind}_updates_per_second"] for kind in ("train", "loop")}
    return found


if __name__ == "__main__":
    main()
