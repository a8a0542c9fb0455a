"""Time to a greedy 475 over 100 episodes on CartPole-v1: asyncrl's DQN against Stable-Baselines3's at its zoo settings.

Every run is a fresh process with one torch thread; the peer's runs stand between ours. Both clocks stand still during
evaluations that training waits for; `start-up` is from the start of the process to the first environment step.

    pip install "asyncrl[bench]"
    python benchmarks/cartpole.py --seeds 10 --peer-seeds 5
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from harness import FOLDER, Report

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}


def ours(seed: int, options: list[str]) -> dict[str, Any]:
    """The `summary.json` of one run of the command line."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "asyncrl", "train", "CartPole-v1", "--algo", "dqn"]
        command += ["--target-return", "475", "--max-seconds", "120", "--seed", str(seed)]
        command += ["--run-dir", f"{folder}/run", *options]
        subprocess.run(command, check=True, env=ENVIRONMENT, stdout=subprocess.DEVNULL)
        summary: dict[str, Any] = json.loads(Path(folder, "run", "summary.json").read_text())
        return summary


def theirs(seed: int) -> dict[str, Any]:
    """What the peer's script prints."""
    command = [sys.executable, str(FOLDER / "peers" / "sb3_dqn_cartpole.py"), "--seed", str(seed)]
    done = subprocess.run(command, check=True, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    """Run both and write results/cartpole.json."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=10, help="our seeds 0 .. N-1")
    parser.add_argument(
        "--peer-seeds", type=int, default=5, help="the peer's seeds 0 .. N-1; 0 leaves it out"
    )
    arguments, options = parser.parse_known_args()
    runs: list[dict[str, Any]] = []
    peers: list[dict[str, Any]] = []
    for seed in range(max(arguments.seeds, arguments.peer_seeds)):
        if seed < arguments.seeds:
            runs.append(ours(seed, options))
            print(f"asyncrl seed {seed}: {_line(runs[-1])}", flush=True)
        if seed < arguments.peer_seeds:
            peers.append(theirs(seed))
            print(f"stable-baselines3 seed {seed}: {json.dumps(peers[-1])}", flush=True)
    report = Report("cartpole", packages=["stable-baselines3", "uvloop"])
    reached = [run["stop_reason"] == "target_return" for run in runs]
    report.note("asyncrl_reached", f"{sum(reached)} of {len(reached)} seeds")
    median = report.add("asyncrl_train_seconds", [r["train_seconds"] for r in runs], "s", "under 3")
    report.add("asyncrl_startup_seconds", [r["startup_seconds"] for r in runs], "s", "under 3")
    report.add("asyncrl_wall_seconds", [r["wall_seconds"] for r in runs], "s")
    report.add("asyncrl_env_steps", [r["env_steps"] for r in runs], "steps")
    report.add("asyncrl_updates", [r["updates"] for r in runs], "updates")
    report.add("asyncrl_updates_per_second", [r["updates_per_second"] for r in runs], "/s")
    if peers:
        report.note("peer_reached", f"{sum(p['reached'] for p in peers)} of {len(peers)} seeds")
        theirs_median = report.add("sb3_train_seconds", [p["train_seconds"] for p in peers], "s")
        report.add("sb3_env_steps", [p["env_steps"] for p in peers], "steps")
        report.add("sb3_to_asyncrl_train_seconds", [theirs_median / median], "x", "at least 8")
    report.write()


def _line(run: dict[str, Any]) -> str:
    evaluation = run["eval"]["return_mean"]
    return (
        f"{run['stop_reason']}, train {run['train_seconds']:.2f} s, start-up {run['startup_seconds']:.2f} s, "
        f"{run['env_steps']:,} steps, {run['updates']:,} updates, return {evaluation}"
    )


if __name__ == "__main__":
    main()
