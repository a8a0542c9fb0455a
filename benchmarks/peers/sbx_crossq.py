"""Returns of SBX's CrossQ on the way, with layers and batches as given; runs in an environment that has sbx-rl.

One environment, an update per step, one thread; everything else is SBX's default. Evaluations of ten greedy episodes.
Prints a line per evaluation and appends a line per run to results/sbx_crossq.jsonl.

    /path/to/python/with/sbx-rl benchmarks/peers/sbx_crossq.py HalfCheetah-v5 --seed 2 --steps 100000
"""

from __future__ import annotations

import argparse
import json
import os
import time
from importlib.metadata import version
from pathlib import Path

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import gymnasium
from sbx import CrossQ
from stable_baselines3.common.evaluation import evaluate_policy

RESULTS = Path(__file__).parents[1] / "results" / "sbx_crossq.jsonl"


def main() -> None:
    """Train one seed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("env")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--interval", type=int, default=20_000, help="steps between evaluations")
    parser.add_argument("--actor", type=int, default=128, help="width of its two layers")
    parser.add_argument("--critics", type=int, default=128, help="width of their two layers")
    parser.add_argument("--batch-size", type=int, default=128)
    given = parser.parse_args()
    layers = {"pi": [given.actor] * 2, "qf": [given.critics] * 2}
    model = CrossQ(
        "MlpPolicy",
        given.env,
        seed=given.seed,
        batch_size=given.batch_size,
        policy_kwargs={"net_arch": layers},
    )
    started, curve = time.process_time(), []
    for steps in range(given.interval, given.steps + 1, given.interval):
        model.learn(given.interval, reset_num_timesteps=False)
        mean, _ = evaluate_policy(model, gymnasium.make(given.env), 10)
        curve.append([steps, round(float(mean), 1)])
        print(given.env, given.seed, *curve[-1], f"{time.process_time() - started:.0f} CPU s", flush=True)
    cpu_seconds = round(time.process_time() - started)
    found = {**vars(given), "curve": curve, "cpu_seconds": cpu_seconds, "sbx-rl": version("sbx-rl")}
    with RESULTS.open("a") as file:
        file.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
