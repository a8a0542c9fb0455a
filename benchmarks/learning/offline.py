"""Learning from datasets that our own policies record, as D4RL's medium, replay and expert: BC, TD3+BC and IQL.

SAC's preset trains on ENV. Its best policy (expert), and the one of the checkpoint whose evaluation is nearest to half
of that (medium), play `--rows` steps, drawing their actions; the replay is that of the whole run. On each dataset every
algorithm makes `--updates` updates, with networks of 128, 128 in batches of 128, and is evaluated greedily at the end.

A score is D4RL's, 0 for the return of random actions and 100 for that of its expert. The datasets are not D4RL's: what
can be compared with a paper is how far a policy gets beyond the mean of its data.

The source and the datasets stay in `--folder`. `--add` makes only what the result file lacks.

    python -m benchmarks.learning.offline HalfCheetah-v5 --source-steps 150000 --folder /tmp/offline
    python -m benchmarks.learning.offline Hopper-v5 --source-steps 300000 --folder /tmp/offline --add
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from benchmarks.harness.report import FOLDER, Report, commit, script_parser
from benchmarks.harness.runs import evaluations, finished_run

QUALITIES = ("medium", "replay", "expert")
ALGORITHMS = ("bc", "td3bc", "iql")
SCALES = {
    "HalfCheetah-v5": (-280.178953, 12135.0),
    "Hopper-v5": (-20.272305, 3234.3),
    "Walker2d-v5": (1.629008, 4592.3),
}
"""Returns of random actions and of D4RL's expert, by environment."""
NETWORK = {"hidden-sizes": "128,128", "batch-size": "128", "learning-rate": "1e-3"}
SEED = 0
"""Seed of the source."""


def score(env: str, mean: float) -> float:
    """D4RL's score of a mean return."""
    low, high = SCALES[env]
    return 100 * (mean - low) / (high - low)


def train_source(env: str, steps: int, folder: Path) -> Path:
    """Train SAC's preset, keeping all checkpoints and the replay; returns the run. One that is there stays."""
    run = folder / "source"
    if not run.exists():
        line = [
            sys.executable,
            "-m",
            "asyncrl",
            "train",
            env,
            "--algo",
            "sac",
            "--seed",
            str(SEED),
            "--http",
            "off",
        ]
        line += ["--steps", str(steps), "--run-dir", str(run), "--save-replay-buffer"]
        line += ["--checkpoint-interval-seconds", "5", "--checkpoints-kept", "1000"]
        subprocess.run(line, check=True, stdout=subprocess.DEVNULL)
    return run


def medium_checkpoint(run: Path) -> str:
    """Checkpoint of the run that is nearest to the evaluation whose return is nearest to half of the best."""
    points = evaluations([json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()])
    best = max(mean for _, mean in points)
    step = min(points, key=lambda point: abs(point[1] - best / 2))[0]
    kept = [int(path.name) for path in (run / "checkpoints").iterdir() if path.name.isdigit()]
    return str(min(kept, key=lambda at: abs(at - step)))


def record(run: Path, quality: str, rows: int, out: Path) -> None:
    """Write the dataset of a quality, unless it is there."""
    import asyncrl
    from asyncrl.policies.record import record_replay

    if out.exists():
        return
    if quality == "replay":
        record_replay(run, out)
        return
    which = "best" if quality == "expert" else medium_checkpoint(run)
    policy = asyncrl.load(run, checkpoint=which)
    asyncrl.record(policy, out, steps=rows, deterministic=False, seed=SEED)


def mean_of_data(folder: Path) -> tuple[float, int]:
    """Mean return of a dataset's whole episodes, and their number."""
    import minari

    episodes = minari.MinariDataset(str(folder / "data")).iterate_episodes()
    whole = [
        float(episode.rewards.sum())
        for episode in episodes
        if len(episode) == 1000 or episode.terminations[-1]
    ]
    return float(np.mean(whole)), len(whole)


def learn(env: str, algo: str, dataset: Path, updates: int, seed: int, episodes: int) -> dict[str, Any]:
    """Train on the dataset, and evaluate the policy at the end."""
    options = ["--dataset", str(dataset), "--steps", str(updates), "--target-eval-episodes", str(episodes)]
    options += ["--eval-interval-steps", "none"]
    for name, value in NETWORK.items():
        options += [f"--{algo}.{name}", value]
    summary, _ = finished_run(env, algo, seed, options)
    cpu = round(summary["cpu_seconds"], 1)
    return {"return": summary["eval"]["return_mean"], "cpu_seconds": cpu, "commit": commit()}


def main() -> None:
    """Train and record what is missing, train on it, and write results/offline_<env>.json."""
    parser = script_parser(__doc__)
    parser.add_argument("env", choices=SCALES)
    parser.add_argument("--source-steps", type=int, default=150_000)
    parser.add_argument("--rows", type=int, default=100_000, help="steps of medium and expert")
    parser.add_argument("--updates", type=int, default=10_000)
    parser.add_argument("--seeds", type=int, default=1, help="seeds 0 .. N-1 of each algorithm")
    parser.add_argument("--episodes", type=int, default=20, help="of the evaluation at the end")
    parser.add_argument("--folder", type=Path, required=True, help="of source and datasets")
    parser.add_argument("--add", action="store_true", help="make only the runs that the result file lacks")
    parsed = parser.parse_args()
    env, folder = parsed.env, parsed.folder / parsed.env
    name = f"offline_{env}".lower().replace("-", "_")
    report, path = Report(name, ["minari", "mujoco"]), FOLDER / "results" / f"{name}.json"
    runs: dict[str, Any] = (
        json.loads(path.read_text())["notes"]["runs"] if parsed.add and path.exists() else {}
    )
    source = train_source(env, parsed.source_steps, folder)
    report.note("settings", {key: str(value) for key, value in vars(parsed).items()})
    table: list[list[Any]] = []
    for quality in QUALITIES:
        dataset = folder / quality
        record(source, quality, parsed.rows, dataset)
        data, count = mean_of_data(dataset)
        row: list[Any] = [quality, f"{data:,.0f} ({score(env, data):.1f})"]
        report.note(f"{quality}_data", {"return": data, "whole_episodes": count})
        for algo in ALGORITHMS:
            keys = [f"{quality}/{algo}/{seed}" for seed in range(parsed.seeds)]
            for seed, key in enumerate(keys):
                if key not in runs:
                    runs[key] = learn(env, algo, dataset, parsed.updates, seed, parsed.episodes)
            scores = [score(env, runs[key]["return"]) for key in keys]
            report.add(f"{quality}/{algo}_score", scores, "")
            report.add(f"{quality}/{algo}_times_data", [one / score(env, data) for one in scores], "")
            report.add(f"{quality}/{algo}_cpu_seconds", [runs[key]["cpu_seconds"] for key in keys], "s")
            report.note("runs", runs)
            report.write()
            row.append(f"{np.mean([runs[key]['return'] for key in keys]):,.0f} ({np.mean(scores):.1f})")
        table.append(row)
    report.add_table(["dataset", "data", *ALGORITHMS], table)
    report.write()


if __name__ == "__main__":
    main()
