"""Distributional algorithms at their presets: C51, QR-DQN and Rainbow to a greedy target, each run a new process.

cartpole        475 over 100 greedy episodes of CartPole-v1, by C51 and QR-DQN
rainbow         the same by Rainbow
lunarlander     200 over 100 greedy episodes of LunarLander-v3, by C51 and QR-DQN; needs the box2d extra

Reported are the number of seeds that reached the target, seconds and steps. A run that did not counts with its limit;
`..._reached_env_steps` are the steps of those that did. The clock is stopped during evaluations for which training
waits.

    python -m benchmarks.learning.distributional
    python -m benchmarks.learning.distributional --only rainbow --seeds 3
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

from benchmarks.harness import runs
from benchmarks.harness.report import Report, Side

ITEMS = ("cartpole", "rainbow", "lunarlander")
CARTPOLE, LUNARLANDER = ("CartPole-v1", 475.0), ("LunarLander-v3", 200.0)
TASKS = {
    "cartpole": (*CARTPOLE, ("c51", "qrdqn")),
    "rainbow": (*CARTPOLE, ("rainbow",)),
    "lunarlander": (*LUNARLANDER, ("c51", "qrdqn")),
}


def main() -> None:
    """Run everything and write results/distributional.json."""
    parser = runs.flags(__doc__, ITEMS)
    parser.add_argument("--max-seconds", type=float, default=60.0, help="limit of a run on CartPole")
    parser.add_argument("--lander-seconds", type=float, default=240.0, help="limit of a run on LunarLander")
    parsed, options = runs.parse(parser, "distributional", ITEMS)
    report = Report(parsed.name, ["box2d", "uvloop"])
    if importlib.util.find_spec("Box2D") is None and "lunarlander" in parsed.items:
        report.note(LUNARLANDER[0], "left out: box2d is not installed (pip install 'asyncrl[box2d]')")
        parsed.items.remove("lunarlander")
    for item in parsed.items:
        limit = parsed.lander_seconds if item == "lunarlander" else parsed.max_seconds
        measure(report, item, parsed.seeds, limit, options)
    report.write()


def measure(report: Report, item: str, seeds: int, limit: float, options: Sequence[str]) -> None:
    """Run all algorithms of an item, seed by seed."""
    env, target, algos = TASKS[item]
    runs.announce(seeds * len(algos), limit)
    found: dict[str, list[runs.Summary]] = {algo: [] for algo in algos}
    for seed in range(seeds):
        for algo, summaries in found.items():
            summaries.append(runs.command(env, algo, seed, "greedy", target, limit, options))
            print(f"{env} {algo} seed {seed}: {runs.line(summaries[-1])}", flush=True)
    for algo, summaries in found.items():
        key = f"{env.split('-')[0].lower()}_{algo}"
        runs.add_clock(report, key, summaries, "greedy", limit)
        sides = {"asyncrl": Side.of(summaries)}
        report.add(f"{key}_greedy_updates", [s["updates"] for s in summaries], "updates", sides=sides)
        steps = [s["env_steps"] for s in summaries if runs.reached(s, "greedy")]
        if steps:
            report.add(f"{key}_reached_env_steps", steps, "steps", sides=sides)


if __name__ == "__main__":
    main()
