"""Steps/s of relaxed, lockstep and synchronous PPO over the variance of the time that a step takes.

The delay model of HTS-RL (Liu et al. 2020, arXiv 2012.09849): the time of every step is gamma-distributed with one
mean, and its variance is what changes. `ACTORS` actors of one environment each sleep that time, so that cores do not
matter. A barrier waits for the slowest of N actors to make its T steps: it leaves the fraction

    E[sum of T step times] / E[the largest of N such sums]

of the steps/s, which is drawn beside the measurements (`barrier`); the updates of `synchronous` come on top. `relaxed`
has no barrier. Disciplines take turns. Writes a table and a plot, both over variance / mean^2.

    nice -n -5 python -m benchmarks.systems.step_times
"""

from __future__ import annotations

import warnings
from statistics import median
from typing import Any

import numpy as np

from asyncrl import PPO
from asyncrl.learning.segment_balance import DISCIPLINES
from benchmarks.harness import runs
from benchmarks.harness.plot import panels
from benchmarks.harness.report import FOLDER, Report
from benchmarks.harness.slow_envs import DelayedFactory

VARIANCES = {"0": 0.0, "0.25": 0.25, "1": 1.0, "4": 4.0, "16": 16.0}
"""Variances in squares of the mean; 1 is the exponential distribution."""
ACTORS, LENGTH, STEP_SECONDS = 8, 8, 4e-3
DRAWS = 20_000
PLOTTED_AS_ZERO = 1 / 16


def barrier(variance: float) -> float:
    """Fraction of the steps/s that a barrier after `LENGTH` steps of all actors leaves, by simulation."""
    if variance == 0:
        return 1.0
    shape, rng = LENGTH / variance, np.random.default_rng(0)
    return shape / float(rng.gamma(shape, size=(DRAWS, ACTORS)).max(axis=1).mean())


def main() -> None:
    """Measure and write results/step_times.json and .svg."""
    parser = runs.flags(__doc__, [*VARIANCES], seeds=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="measured of each run")
    parsed, _ = runs.parse(parser, "step_times", [*VARIANCES])
    # More actors than cores are intended here, as they sleep.
    warnings.filterwarnings("ignore", message=r"\[ASYNC021\]")
    report = Report(parsed.name)
    report.note(
        "settings",
        f"{ACTORS} actors of one CartPole that sleeps {STEP_SECONDS} s a step on average, segments of {LENGTH} rows, "
        "one pass of one minibatch",
    )
    rows: list[list[Any]] = []
    lines: dict[str, list[tuple[float, float]]] = {name: [] for name in (*DISCIPLINES, "barrier")}
    for item in parsed.items:
        variance, rates = VARIANCES[item], _rates(VARIANCES[item], parsed.seeds, parsed.seconds)
        medians = {name: median(values) for name, values in rates.items()}
        medians["barrier"] = barrier(variance) * ACTORS / STEP_SECONDS
        for name, values in rates.items():
            report.add(f"variance_{item}/{name}_steps_per_second", values, "steps/s")
        for other in ("lockstep", "synchronous"):
            report.add_ratio(f"variance_{item}/relaxed_to_{other}", rates["relaxed"], rates[other])
        rows.append([item, *(f"{medians[name]:,.0f}" for name in lines)])
        for name, line in lines.items():
            line.append((variance or PLOTTED_AS_ZERO, medians[name]))
    report.add_table(["variance / mean^2", *lines], rows)
    axis = f"variance of a step's time / mean^2 ({PLOTTED_AS_ZERO:g}: none)"
    panels(FOLDER / "results" / f"{parsed.name}.svg", [("steps/s", axis, list(lines.items()))])
    report.write()


def _rates(variance: float, seeds: int, seconds: float) -> dict[str, list[float]]:
    """Steps/s of every discipline, by turns."""
    factory = DelayedFactory("CartPole-v1", STEP_SECONDS, variance=variance)
    rates: dict[str, list[float]] = {name: [] for name in DISCIPLINES}
    for seed in range(seeds):
        for name in DISCIPLINES:
            algorithm = PPO(discipline=name, segment_length=LENGTH, epochs=1)
            rate = runs.throughput(factory, algorithm, seed, seconds, num_actors=ACTORS, envs_per_actor=1)
            rates[name].append(rate)
            print(f"variance {variance:g}, {name}, seed {seed}: {rate:,.0f} steps/s", flush=True)
    return rates


if __name__ == "__main__":
    main()
