"""PPO under staleness: a learner that is slowed, then actors of which one is ten times slower than the rest.

    learner     every gradient step sleeps, so actors work ahead by `queue_batches` and segments are stale when they
                are trained on. Each correction, without and with a bound: staleness p95, discarded fraction, time to
                the target, final returns.
    actors      eight actors whose environments sleep, all alike or one ten times slower: the throughput that each
                discipline loses. An eighth of 90 % is the slow actor's own loss, which no discipline can avoid.

Runs are in this process, in turn seed by seed.

    python -m benchmarks.learning.staleness_segments
    python -m benchmarks.learning.staleness_segments --only learner --clock greedy --target 475
"""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path
from statistics import median
from typing import Any

from asyncrl import PPO
from benchmarks.harness import runs
from benchmarks.harness.report import Report
from benchmarks.harness.slow_envs import DelayedFactory
from benchmarks.harness.slow_learner import SlowPPO

ITEMS = ("learner", "actors")
QUEUE_BATCHES = 16
BOUND = 4
CORRECTIONS = ("none", "power", "exponential", "importance")

ACTORS, ENVS, LENGTH = 8, 4, 16
DELAY_SECONDS = 1e-3
SLOW_FACTOR = 10.0
DISCIPLINES = ("relaxed", "lockstep", "synchronous")


def main() -> None:
    """Measure and write results/staleness_segments.json."""
    parser = runs.flags(__doc__, ITEMS)
    parser.add_argument("--clock", choices=runs.CLOCKS, default="training", help="clock of the slow learner")
    parser.add_argument("--target", type=float, default=300.0, help="its target")
    parser.add_argument("--max-seconds", type=float, default=6.0, help="its limit")
    parser.add_argument(
        "--step-seconds", type=float, default=0.0005, help="how long its gradient steps sleep"
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="measured of a run of slow actors")
    parsed, _ = runs.parse(parser, "staleness_segments", ITEMS)
    report = Report(parsed.name)
    SlowPPO.step_seconds = parsed.step_seconds
    if "learner" in parsed.items:
        slow_learner(report, parsed.seeds, parsed.clock, parsed.target, parsed.max_seconds)
    if "actors" in parsed.items:
        slow_actors(report, parsed.seeds, parsed.seconds)
    report.write()


def slow_learner(report: Report, seeds: int, clock: str, target: float, limit: float) -> None:
    """Run a slow learner with every correction and report the table."""
    cells = [(correction, bound) for correction in CORRECTIONS for bound in (None, BOUND)]
    runs.announce(seeds * len(cells), limit)
    report.note(
        "learner_settings",
        f"every gradient step sleeps {SlowPPO.step_seconds} s, queue_batches {QUEUE_BATCHES}, target {target:g} on the "
        f"{clock} clock, limit {limit:g} s",
    )
    results: dict[tuple[str, int | None], list[runs.Summary]] = {cell: [] for cell in cells}
    for seed in range(seeds):
        for cell in cells:
            correction, bound = cell
            algorithm = SlowPPO.preset(
                "CartPole-v1",
                staleness_correction=correction,
                max_staleness=bound,
                queue_batches=QUEUE_BATCHES,
                discipline="relaxed",
            )
            options = SlowPPO.preset_options("CartPole-v1")
            summary = runs.learn("CartPole-v1", algorithm, seed, clock, target, limit, **options)
            results[cell].append(summary)
            print(f"{correction} bound {bound} seed {seed}: {runs.line(summary)}", flush=True)
    rows = []
    for (correction, bound), summaries in results.items():
        key = f"learner_{correction}" + ("" if bound is None else f"_bound_{bound}")
        seconds = runs.add_clock(report, key, summaries, clock, limit)
        p95, discarded = (
            report.add(f"{key}_{name}", [s["staleness"][name] for s in summaries], unit)
            for name, unit in (("p95", "updates"), ("discarded_fraction", ""))
        )
        count = sum(runs.reached(s, clock) for s in summaries)
        returns = [median(_known(s["eval"]["return_mean"] for s in summaries))]
        returns += [median(_known(s["episodes_return_mean"] for s in summaries))]
        rows.append([correction, bound, p95, discarded, seconds, f"{count}/{len(summaries)}", *returns])
    headings = ["correction", "bound", "staleness p95", "discarded", f"{clock} s", "reached"]
    report.add_table([*headings, "final greedy", "final training"], rows, key="learner_table")


def slow_actors(report: Report, seeds: int, seconds: float) -> None:
    """Measure the throughput of each discipline, with all actors alike and with one slow."""
    runs.announce(2 * seeds * len(DISCIPLINES), seconds)
    # More actors than cores are intended here, as they sleep.
    warnings.filterwarnings("ignore", message=r"\[ASYNC021\]")
    report.note(
        "actors_settings",
        f"{ACTORS} actors of {ENVS} environments that sleep {DELAY_SECONDS} s a step, one {SLOW_FACTOR:g} times as "
        f"long; the slow one itself costs {(1 - 1 / SLOW_FACTOR) / ACTORS:.1%}",
    )
    rates: dict[tuple[str, bool], list[float]] = {}
    for seed in range(seeds):
        for discipline in DISCIPLINES:
            for one_slow in (False, True):
                rate = _rate(discipline, one_slow, seed, seconds)
                rates.setdefault((discipline, one_slow), []).append(rate)
                print(f"{discipline}, one slow {one_slow}, seed {seed}: {rate:,.0f} steps/s", flush=True)
    rows = []
    for discipline in DISCIPLINES:
        even, slow = rates[discipline, False], rates[discipline, True]
        first = report.add(f"actors_{discipline}_even_steps_per_second", even, "steps/s")
        second = report.add(f"actors_{discipline}_one_slow_steps_per_second", slow, "steps/s")
        lost = [1 - s / e for s, e in zip(slow, even, strict=True)]
        goal = "under 0.15" if discipline == "relaxed" else None
        rows.append([discipline, first, second, report.add(f"actors_{discipline}_lost", lost, "", goal)])
    report.add_table(["discipline", "even steps/s", "one slow steps/s", "lost"], rows, key="actors_table")


def _rate(discipline: Any, one_slow: bool, seed: int, seconds: float) -> float:
    algorithm = PPO(discipline=discipline, segment_length=LENGTH, queue_batches=4)
    with tempfile.TemporaryDirectory() as folder:
        claim = str(Path(folder, "slow")) if one_slow else None
        factory = DelayedFactory("CartPole-v1", DELAY_SECONDS, slow_factor=SLOW_FACTOR, claim=claim)
        rate = runs.throughput(factory, algorithm, seed, seconds, num_actors=ACTORS, envs_per_actor=ENVS)
        if one_slow and not Path(folder, "slow").exists():
            raise RuntimeError("no actor claimed to be the slow one")
        return rate


def _known(values: Any) -> list[float]:
    return [value for value in values if value is not None] or [float("nan")]


if __name__ == "__main__":
    main()
