"""Cost of a gradient step of PPO, with the loss by formula and autograd and by the CPU kernel.

A 64x64 policy and value network, minibatches of 64 and 256, discrete actions of CartPole's shape. Both ways take turns
on one core; each round has a new core with the same weights and segments.

    python benchmarks/ppo_step.py
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import time
from statistics import median

import numpy as np
import torch
from harness import Report

from asyncrl import PPO
from asyncrl.interfaces import DiscreteAction, EnvSpec, Segment

SPEC = EnvSpec("CartPole's shape", (4,), "float32", DiscreteAction(2))
ENVS, ROWS = 16, 32
WAYS = {"formula": PPO._by_formula, "kernel": PPO._by_kernel}


def segment(algorithm: PPO, weights: np.ndarray) -> Segment:
    """Segment of random observations and rewards, with actions of these weights."""
    rng = np.random.default_rng(0)
    policy = algorithm.make_policy(SPEC)
    policy.load_weights(weights)
    obs = rng.normal(size=(ENVS, ROWS, 4)).astype(np.float32)
    action, extras = policy.act(obs.reshape(-1, 4), rng, 0)
    return Segment(
        ring=0, first=0, obs=obs, last_obs=obs[:, 0], action=action.reshape(ENVS, ROWS),
        reward=rng.normal(size=(ENVS, ROWS)).astype(np.float32), flags=np.zeros((ENVS, ROWS), np.uint8),
        version=np.zeros(ROWS, np.int64), policy_updates=np.zeros(ROWS, np.int64),
        extras={n: v.reshape(ENVS, ROWS) for n, v in extras.items()},
        weight=np.ones(ROWS, np.float32), staleness=np.zeros(ROWS, np.int64),
    )  # fmt: skip


def step_microseconds(way: str, minibatch_size: int, steps: int) -> float:
    """Median duration over `steps` gradient steps."""
    PPO._by_kernel = WAYS[way]  # type: ignore[method-assign]
    algorithm = PPO(minibatch_size=minibatch_size, epochs=1)
    core = algorithm.make_updater(SPEC, "cpu", 0)
    weights = np.zeros(core.weight_count, np.float32)
    core.write_weights(weights)
    own, more = segment(algorithm, weights), False
    times: list[float] = []
    while len(times) < steps:
        if not more:
            core.begin([own], 0.0)
        started = time.perf_counter()
        more = core.step()
        times.append(time.perf_counter() - started)
    return 1e6 * median(times)


def main() -> None:
    """Measure and write results/ppo_step.json."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--steps", type=int, default=1000)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    report = Report("ppo_step")
    for size in (64, 256):
        times: dict[str, list[float]] = {way: [] for way in WAYS}
        for _ in range(arguments.repeats):
            for way, values in times.items():
                values.append(step_microseconds(way, size, arguments.steps))
        for way, values in times.items():
            report.add(f"minibatch_{size}_{way}_microseconds", values, "us")
        report.add_ratio(f"minibatch_{size}_formula_to_kernel", times["formula"], times["kernel"])
    report.write()


if __name__ == "__main__":
    main()
