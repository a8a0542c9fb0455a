"""Learning of two checkouts of asyncrl in comparison: steps and seconds of PPO and IMPALA to a greedy 475 on CartPole.

Both trees run `asyncrl train` with their own preset, seed by seed in turn. `OLD` is another checkout whose kernels an
earlier run has compiled.

    git worktree add ../old COMMIT
    python benchmarks/before_after_learning.py ../old
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.harness.report import FOLDER, Report, commit

FIRST_SEED = 1_000
LIMIT_SECONDS = 120.0


def train(tree: Path, algo: str, seed: int) -> tuple[float, float]:
    """Steps and training seconds to the target; infinite if it was not reached."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        line = [sys.executable, "-m", "asyncrl", "train", "CartPole-v1", "--algo", algo, "--seed", str(seed)]
        line += ["--target-return", "475", "--max-seconds", str(LIMIT_SECONDS), "--http", "off"]
        subprocess.run(
            [*line, "--run-dir", str(run)],
            check=True,
            cwd=tree,
            env={**os.environ, "PYTHONPATH": str(tree)},
            stdout=subprocess.DEVNULL,
        )
        summary = json.loads((run / "summary.json").read_text())
    if summary["time_to_target_seconds"] is None:
        return float("inf"), float("inf")
    return float(summary["steps_to_target"]), float(summary["time_to_target_seconds"])


def main() -> None:
    """Run both trees in turn and write results/before_after_learning.json."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=Path)
    parser.add_argument("--seeds", type=int, default=10)
    parsed = parser.parse_args()
    trees = {"old": parsed.old.resolve(), "new": FOLDER.parent}
    report = Report("before_after_learning")
    report.note("old commit", commit(trees["old"]))
    for algo in ("ppo", "impala"):
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in trees}
        for seed in range(FIRST_SEED, FIRST_SEED + parsed.seeds):
            for name, tree in trees.items():
                found[name].append(train(tree, algo, seed))
        for name, runs in found.items():
            report.add(f"{algo}_{name}_steps", [steps for steps, _ in runs], "steps")
            report.add(f"{algo}_{name}_seconds", [seconds for _, seconds in runs], "s")
    report.write()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
