"""Replay, transport and acting of two checkouts of asyncrl in comparison, each measured by its own scripts.

The two trees take turns with `replay.py`, `transport.py` and `actors.py` of systems/. Ratios are formed within a round,
and are the time of the new tree over that of the old one: rates count by their inverse. `OLD` is another checkout whose
kernels an earlier run has compiled; its result files are overwritten.

    git worktree add ../old COMMIT
    python benchmarks/before_after_systems.py ../old
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.harness.report import FOLDER, Report, commit

SCRIPTS = {
    "replay": (
        ["--repeats", "3"],
        ("ours_insert", "ours_sample", "ours_update", "ours_mixed", "learner_side_batch_64_of_65536"),
    ),
    "transport": (
        ["--repeats", "3"],
        (
            "rows_of_4_KiB_in_memory/polled",
            "rows_of_28_KiB_in_cache/polled",
            "small_rows/compiled",
            "weights_of_100_KB/publish_and_refresh",
            "weights_of_5_MB/publish_and_refresh",
        ),
    ),
    "actors": (
        ["--repeats", "3", "--seconds", "1.5"],
        ("CartPole-v1_actor_steps_per_second", "LunarLander-v3_actor_steps_per_second"),
    ),
}
"""Options of each script, and its figures that are compared."""


def measure(tree: Path, script: str, options: list[str]) -> dict[str, dict[str, object]]:
    """Figures of one script in one tree."""
    flat = (tree / "benchmarks" / f"{script}.py").exists()  # an older checkout, before there were folders
    name = [f"benchmarks/{script}.py"] if flat else ["-m", f"benchmarks.systems.{script}"]
    command = [sys.executable, *name, *options]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    subprocess.run(command, cwd=tree, env=environment, check=True, stdout=subprocess.DEVNULL)
    figures: dict[str, dict[str, object]] = json.loads(
        (tree / "benchmarks" / "results" / f"{script}.json").read_text()
    )["figures"]
    return figures


def main() -> None:
    """Run the scripts of both trees in turn and write results/before_after_systems.json."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parsed = parser.parse_args()
    trees = {"old": parsed.old.resolve(), "new": FOLDER.parent}
    report = Report("before_after_systems")
    report.note("old commit", commit(trees["old"]))
    for script, (options, names) in SCRIPTS.items():
        kept = FOLDER / "results" / f"{script}.json"
        saved = kept.read_text()  # the result that is published has more repeats, and peers
        taken: dict[str, dict[str, list[float]]] = {tree: {name: [] for name in names} for tree in trees}
        try:
            for number in range(parsed.rounds):
                for tree in sorted(trees, reverse=number % 2 == 1):
                    figures = measure(trees[tree], script, options)
                    for name in names:
                        taken[tree][name].append(float(str(figures[name]["median"])))
        finally:
            kept.write_text(saved)
        for name in names:
            is_rate = "/s" in str(figures[name]["unit"])
            sides = [taken["old"][name], taken["new"][name]]
            upper, lower = sides if is_rate else reversed(sides)
            report.add_ratio(f"{script}/{name}_new_to_old", upper, lower, "<= 1.05")
    report.write()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
