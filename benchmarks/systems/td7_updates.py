"""Updates/s of TD7 by its default options on one thread, beside TD3's and CrossQ's: the shapes of HalfCheetah-v5.

by_hand   TD7's update in a loop on prepared batches
autograd  the same by the modules and autograd, as on a GPU
td3       TD3's update by its default options
crossq    CrossQ's

Every figure is measured in a separate process; ways alternate, and ratios are formed repeat by repeat.

    taskset -c 0 python -m benchmarks.systems.td7_updates
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import json

from benchmarks.harness import runs
from benchmarks.harness.report import Report
from benchmarks.systems.bare_sac import SPEC, WARM_UPDATES, repeat

ITEMS = ("by_hand", "autograd", "td3", "crossq")


def rate(way: str, seconds: float) -> float:
    """Updates/s in a loop."""
    import torch

    import asyncrl
    from asyncrl.algorithms import td7_update

    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    if way == "autograd":
        td7_update.passes_by_hand = lambda rows: False
    record = {"td3": asyncrl.TD3, "crossq": asyncrl.CrossQ}.get(way, asyncrl.TD7)()
    update, size = record.make_updater(SPEC, "cpu", 0).update, record.batch_size
    repeat(update, WARM_UPDATES, size)
    count = max(1, round(seconds / (repeat(update, WARM_UPDATES, size) / WARM_UPDATES)))
    return count / repeat(update, count, size)


def main() -> None:
    """Measure and write results/td7_updates.json."""
    parser = runs.measuring_flags(__doc__, ITEMS, 4.0)
    parsed, _ = runs.parse(parser, "td7_updates", ITEMS)
    if parsed.measure:
        print(json.dumps(rate(parsed.measure, parsed.seconds)))
        return
    report = Report(parsed.name, [])
    rates: dict[str, list[float]] = {}
    for _ in range(1 if parsed.quick else parsed.repeats):
        for way in parsed.items:
            rates.setdefault(way, []).append(runs.measured("systems.td7_updates", way, parsed.seconds))
            print(f"{way}: {rates[way][-1]:.1f} updates/s", flush=True)
    for way, values in rates.items():
        report.add(f"{way}_updates_per_second", values, "updates/s")
        if way != "by_hand" and "by_hand" in rates:
            report.add_ratio(f"by_hand_over_{way}", rates["by_hand"], values)
    report.write()


if __name__ == "__main__":
    main()
