"""The papers' metric on CartPole-v1: seconds until the last 100 training episodes of all actors have a mean of 300.

PPO and IMPALA at their presets, DQN with `DQN_OPTIONS` (its preset minimizes steps, and this metric needs a hundred
finished episodes). Algorithms take turns seed by seed, each run a new process with one torch thread. The greedy clock
(300 over 100 greedy episodes) is measured in addition. The reference figures were measured on a machine of this size
with the papers' released code, not by this script.

    python -m benchmarks.peers.papers_metric
    python -m benchmarks.peers.papers_metric --only ppo --seeds 10
"""

from __future__ import annotations

from benchmarks.harness import runs
from benchmarks.harness.report import Report

ITEMS = ("ppo", "impala", "dqn")
TARGET = 300.0
REFERENCE = {
    "TianJi PPO": "37 to 96 s",
    "TianJi DQN, 4 actors": "106 to 159 s",
    "XingTian PPO": "12 to 17 s",
}
BEST_SECONDS = 12.0
DQN_OPTIONS = [
    *("--envs-per-actor", "64", "--dqn.batch-size", "256", "--dqn.samples-per-insert", "12"),
    *("--dqn.hidden-sizes", "64,64", "--dqn.n-step", "5"),
]


def main() -> None:
    """Run everything and write results/papers_metric.json."""
    parser = runs.flags(__doc__, ITEMS)
    parser.add_argument("--max-seconds", type=float, default=12.0, help="limit of a run")
    parsed, _ = runs.parse(parser, "papers_metric", ITEMS)
    limit = parsed.max_seconds
    report = Report(parsed.name)
    runs.announce(len(parsed.items) * parsed.seeds * len(runs.CLOCKS), limit)
    summaries: dict[tuple[str, str], list[runs.Summary]] = {}
    for seed in range(parsed.seeds):
        for algo in parsed.items:
            for clock in runs.CLOCKS:
                options = DQN_OPTIONS if algo == "dqn" else []
                summary = runs.command("CartPole-v1", algo, seed, clock, TARGET, limit, options)
                summaries.setdefault((algo, clock), []).append(summary)
                print(f"{algo} seed {seed} {clock}: {runs.line(summary)}", flush=True)
    report.note("reference", REFERENCE)
    report.note("dqn_options", DQN_OPTIONS)
    for algo in parsed.items:
        goal = f"under {BEST_SECONDS / 10:g}"
        seconds = runs.add_clock(report, algo, summaries[algo, "training"], "training", limit, goal)
        report.add(f"{algo}_best_reference_to_training", [BEST_SECONDS / seconds], "x", "at least 10")
        with_start = [s["startup_seconds"] + s["train_seconds"] for s in summaries[algo, "training"]]
        report.add(f"{algo}_training_with_startup_seconds", with_start, "s")
        runs.add_clock(report, algo, summaries[algo, "greedy"], "greedy", limit)
    report.write()


if __name__ == "__main__":
    main()
