"""The papers' staleness sweep on CartPole-v1: replay capacity (DQN) and queue depth (PPO), with and without correction.

    dqn     capacity in rows of the ring (a row is a step of all environments of an actor), 32 to 2048
    ppo     batches that actors may work ahead, 1 to 64; the learner sleeps in every gradient step, as a queue fills
            only if the actors are faster

For each: time to the target, staleness p95 and final returns, as results/staleness_sweep.md and .svg. Runs are in this
process, in turn seed by seed.

    python -m benchmarks.learning.staleness_sweep
    python -m benchmarks.learning.staleness_sweep --only ppo --sizes 1,2,4,8,16,32,64
"""

from __future__ import annotations

from statistics import median
from typing import Any

from asyncrl import DQN, PPO
from benchmarks.harness import runs
from benchmarks.harness.plot import panels
from benchmarks.harness.report import FOLDER, Report, markdown
from benchmarks.harness.slow_learner import SlowPPO

ITEMS = ("dqn", "ppo")
SIZES = {"dqn": (32, 128, 512, 2048), "ppo": (1, 4, 16, 64)}
AXES = {"dqn": "replay capacity, rows", "ppo": "queue depth, batches"}
CORRECTIONS = {"dqn": ("none", "power"), "ppo": ("none", "importance")}
CLOCKS = {"dqn": "greedy", "ppo": "training"}
"""Clock of each algorithm. DQN explores to the end, so that its training returns say little about the greedy policy."""
FIGURES = ("seconds to target", "staleness p95", "final greedy return")


def main() -> None:
    """Measure and write results/staleness_sweep.{json,md,svg}."""
    parser = runs.flags(__doc__, ITEMS)
    parser.add_argument(
        "--clock", choices=runs.CLOCKS, help="for both; otherwise greedy for dqn, training for ppo"
    )
    parser.add_argument("--target", type=float, default=300.0)
    parser.add_argument("--max-seconds", type=float, default=6.0, help="limit of a run")
    parser.add_argument(
        "--step-seconds", type=float, default=0.0005, help="how long gradient steps of ppo sleep"
    )
    parser.add_argument("--sizes", help="comma-separated, in place of the default ones; with --only")
    parsed, _ = runs.parse(parser, "staleness_sweep", ITEMS)
    sizes = {
        item: tuple(map(int, parsed.sizes.split(","))) if parsed.sizes else SIZES[item] for item in ITEMS
    }
    SlowPPO.step_seconds = parsed.step_seconds
    clocks = {item: parsed.clock or CLOCKS[item] for item in parsed.items}
    report = Report(parsed.name)
    report.note(
        "settings",
        f"target {parsed.target:g} on the clock {clocks}, limit {parsed.max_seconds:g} s; gradient steps of ppo "
        f"sleep {parsed.step_seconds:g} s",
    )
    tables, plots = [], []
    for item in parsed.items:
        results = sweep(item, sizes[item], parsed.seeds, clocks[item], parsed.target, parsed.max_seconds)
        table, lines = figures(report, item, results, clocks[item], parsed.max_seconds)
        print(table, flush=True)
        tables.append(f"{item}, {AXES[item]}\n\n{table}\n")
        plots += [(f"{item}: {name}", AXES[item], lines[name]) for name in FIGURES]
    path = report.write()
    path.with_suffix(".md").write_text(f"{report.notes['settings']}\n\n" + "\n".join(tables))
    panels(path.with_suffix(".svg"), plots)
    print(f"table and plot: {path.with_suffix('.md').relative_to(FOLDER)}, {path.with_suffix('.svg').name}")


def algorithm_of(item: str, size: int, correction: str) -> Any:
    """The preset with this capacity or depth."""
    if item == "ppo":
        options: dict[str, Any] = {"queue_batches": size, "staleness_correction": correction}
        return SlowPPO.preset("CartPole-v1", discipline="relaxed", max_staleness=None, **options)
    trainer = DQN.preset_options("CartPole-v1")
    capacity = size * trainer["num_actors"] * trainer["envs_per_actor"]
    starts = min(DQN.preset("CartPole-v1").learning_starts, capacity // 2)
    return DQN.preset(
        "CartPole-v1", replay_capacity=capacity, learning_starts=starts, staleness_correction=correction
    )


Results = dict[tuple[str, int], list[runs.Summary]]


def sweep(item: str, sizes: tuple[int, ...], seeds: int, clock: str, target: float, limit: float) -> Results:
    """Run every size with every correction."""
    cells = [(correction, size) for correction in CORRECTIONS[item] for size in sizes]
    runs.announce(seeds * len(cells), limit)
    results: Results = {cell: [] for cell in cells}
    options = (DQN if item == "dqn" else PPO).preset_options("CartPole-v1")
    for seed in range(seeds):
        for correction, size in cells:
            algorithm = algorithm_of(item, size, correction)
            summary = runs.learn("CartPole-v1", algorithm, seed, clock, target, limit, **options)
            results[correction, size].append(summary)
            print(f"{item} {correction} {size} seed {seed}: {runs.line(summary)}", flush=True)
    return results


def figures(
    report: Report, item: str, results: Results, clock: str, limit: float
) -> tuple[str, dict[str, list[tuple[str, list[tuple[float, float]]]]]]:
    """Table, and the lines of each figure; all figures are also added to the report."""
    rows = []
    points: dict[str, dict[str, list[tuple[float, float]]]] = {name: {} for name in FIGURES}
    for (correction, size), summaries in results.items():
        key = f"{item}_{correction}_{size}"
        seconds = runs.add_clock(report, key, summaries, clock, limit)
        p95 = report.add(f"{key}_staleness_p95", [s["staleness"]["p95"] for s in summaries], "updates")
        discarded = report.add(
            f"{key}_discarded", [s["staleness"]["discarded_fraction"] for s in summaries], ""
        )
        returns = [s["eval"]["return_mean"] for s in summaries if s["eval"]["return_mean"] is not None]
        final = median(returns) if returns else float("nan")
        training = median(s["episodes_return_mean"] or float("nan") for s in summaries)
        count = f"{sum(runs.reached(s, clock) for s in summaries)}/{len(summaries)}"
        rows.append([correction, size, seconds, count, p95, discarded, final, training])
        for name, value in zip(FIGURES, (seconds, p95, final), strict=True):
            points[name].setdefault(correction, []).append((float(size), value))
    headings = ["correction", AXES[item], f"{clock} s", "reached", "staleness p95", "discarded"]
    table = markdown([*headings, "final greedy", "final training"], rows)
    return table, {name: list(lines.items()) for name, lines in points.items()}


if __name__ == "__main__":
    main()
