"""Updates/s of whole runs by how their threads wait for the interpreter's lock, on one core and on two.

package   the switch interval is 10 us; waits of the run's thread may end a millisecond late, the learner's end on time
on_time   the same interval, and waits of both threads end on time: what the package had for two days
usual     Python's interval of 5 ms and the kernel's slack of 50 us

The program sleeps; `busy_caller` measures what a program that computes loses. Every run is a new process, and ways
alternate.

    python -m benchmarks.systems.switching [--repeats 5]
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import json
import sys
import time

from benchmarks.harness import runs
from benchmarks.harness.report import Report, usable_cores

ITEMS = ("package", "on_time", "usual")
RUNS = {"dqn": "CartPole-v1", "crossq": "Pendulum-v1"}


def rate(way: str, algo: str, seconds: float) -> float:
    """Updates/s of a run."""
    from asyncrl import DQN, CrossQ, Trainer, timer_slack
    from asyncrl.run import switching

    if way == "on_time":
        switching.LOOP_SLACK_NANOSECONDS = 1
    elif way == "usual":
        switching.SWITCH_SECONDS = sys.getswitchinterval()
        timer_slack._libc = None  # no slack is set
    with Trainer(
        RUNS[algo],
        DQN() if algo == "dqn" else CrossQ(),
        num_actors=1,
        envs_per_actor=8,
        seed=0,
        http="off",
        eval_interval_steps=None,
        report_interval_seconds=0.25,
    ) as trainer:
        trainer.start()
        first = runs.when_updated(trainer, 300)
        time.sleep(seconds)
        last = trainer.snapshot()
        assert last is not None
    return float((last.updates - first.updates) / (last.wall_seconds - first.wall_seconds))


def main() -> None:
    """Measure and write results/switching.json."""
    parser = runs.measuring_flags(__doc__, ITEMS, 5.0)
    parsed, _ = runs.parse(parser, "switching", ITEMS)
    if parsed.measure:
        way, algo = parsed.measure.split()
        print(json.dumps(rate(way, algo, parsed.seconds)))
        return
    report, rates = Report(parsed.name, []), dict[tuple[str, str, int], list[float]]()
    first = min(os.sched_getaffinity(0))
    for _ in range(1 if parsed.quick else parsed.repeats):
        for cores, pin in ((1, ["taskset", "-c", str(first)]), (usable_cores(), [])):
            for algo in RUNS:
                for way in parsed.items:
                    value = runs.measured("systems.switching", f"{way} {algo}", parsed.seconds, pin)
                    rates.setdefault((algo, way, cores), []).append(value)
                    print(f"{algo}, {way}, {cores} cores: {value:.0f} updates/s", flush=True)
    for (algo, way, cores), values in rates.items():
        report.add(f"{algo}_{way}_cores_{cores}_updates_per_second", values, "updates/s")
        own = rates.get((algo, "package", cores))
        if way != "package" and own is not None:
            report.add_ratio(f"package_over_{algo}_{way}_cores_{cores}", own, values)
    report.write()


if __name__ == "__main__":
    main()
