"""Speed of two checkouts of asyncrl in comparison: updates of every algorithm, and acting.

In each round both trees have a new process on the same core, and these take short turns, so that a busy neighbour slows
both. Figures are medians of thread CPU time; ratios are formed within a turn. The trees may differ in layout. `OLD` is
another checkout whose kernels an earlier run has compiled.

    git worktree add ../old COMMIT
    python benchmarks/before_after.py ../old
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROWS: dict[str, tuple[str, dict[str, Any], str, int]] = {
    "dqn_64": ("DQN", {"hidden_sizes": (64, 64)}, "cart", 64),
    "dqn_256": ("DQN", {"hidden_sizes": (256, 256)}, "lander", 128),
    "c51_64": ("C51", {"hidden_sizes": (64, 64)}, "cart", 64),
    "c51_128": ("C51", {"hidden_sizes": (128, 128)}, "lander", 128),
    "qrdqn_64": ("QRDQN", {"hidden_sizes": (64, 64)}, "cart", 64),
    "qrdqn_128": ("QRDQN", {"hidden_sizes": (128, 128)}, "lander", 128),
    "rainbow_128": ("Rainbow", {"hidden_sizes": (128, 128)}, "cart", 64),
    "ddpg_64": ("DDPG", {"hidden_sizes": (64, 64)}, "cheetah", 128),
    "td3_64": ("TD3", {"hidden_sizes": (64, 64)}, "cheetah", 128),
    "td3_256": ("TD3", {"hidden_sizes": (256, 256)}, "cheetah", 256),
    "sac_64": ("SAC", {"hidden_sizes": (64, 64)}, "cheetah", 128),
    "sac_256": ("SAC", {"hidden_sizes": (256, 256)}, "cheetah", 256),
    "ppo_discrete": ("PPO", {"minibatch_size": 64, "epochs": 4}, "cart", 16),
    "ppo_continuous": ("PPO", {"minibatch_size": 256, "epochs": 4}, "cheetah", 16),
    "impala": ("IMPALA", {}, "cart", 16),
}
"""Class, options, shape of the environment, and batch size (for segments the number of environments)."""
SEGMENT_ROWS = 64
TURNS = 5
"""Turns of a pair of processes. Where a process puts its arrays moves acting by a fifth, so there are several pairs."""


def specs(nouns: Any) -> dict[str, Any]:
    """Shapes of CartPole, LunarLander and HalfCheetah."""
    box = nouns.BoxAction((-1.0,) * 6, (1.0,) * 6, (6,))
    return {
        "cart": nouns.EnvSpec("cart", (4,), "float32", nouns.DiscreteAction(2)),
        "lander": nouns.EnvSpec("lander", (8,), "float32", nouns.DiscreteAction(4)),
        "cheetah": nouns.EnvSpec("cheetah", (17,), "float32", box),
    }


def timed(function: Callable[[], int], seconds: float = 0.05) -> float:
    """Thread CPU time in microseconds per unit returned by `function`."""
    units, start = 0, time.thread_time()
    while time.thread_time() - start < seconds:
        units += function()
    return (time.thread_time() - start) / units * 1e6


def replay_update(core: Any, nouns: Any, spec: Any, size: int, rng: np.random.Generator) -> Callable[[], int]:
    batch = nouns.Batch.allocate(size, spec)
    for name in ("obs", "next_obs"):
        getattr(batch, name)[:] = rng.normal(size=batch.obs.shape)
    batch.reward[:], batch.discount[:], batch.weight[:] = rng.normal(size=size), 0.97, 1.0
    discrete = isinstance(spec.action, nouns.DiscreteAction)
    shape = batch.action.shape
    batch.action[:] = rng.integers(0, spec.action.n, shape) if discrete else rng.uniform(-1, 1, shape)

    def once() -> int:
        for _ in range(20):
            core.update(batch)
        return 20

    return once


def iteration(
    core: Any, policy: Any, nouns: Any, spec: Any, envs: int, rng: np.random.Generator
) -> Callable[[], int]:
    rows = SEGMENT_ROWS
    obs = rng.normal(size=(envs, rows, *spec.observation_shape)).astype(np.float32)
    out = np.zeros(core.weight_count, np.float32)
    core.write_weights(out)
    policy.load_weights(out)
    acted = [policy.act(obs[:, t], rng, 0) for t in range(rows)]
    segment = nouns.Segment(
        ring=0,
        first=0,
        obs=obs,
        last_obs=obs[:, 0],
        action=np.stack([a for a, _ in acted], axis=1),
        reward=rng.normal(size=(envs, rows)).astype(np.float32),
        flags=np.zeros((envs, rows), np.uint8),
        version=np.zeros(rows, np.int64),
        policy_updates=np.zeros(rows, np.int64),
        extras={name: np.stack([e[name] for _, e in acted], axis=1) for name in acted[0][1]},
        weight=np.ones(rows, np.float32),
        staleness=np.zeros(rows, np.int64),
    )

    def once() -> int:
        core.begin([segment], 0.0)
        steps = 1
        while core.step():
            steps += 1
        return steps

    return once


def acting(policy: Any, obs: np.ndarray, rng: np.random.Generator) -> Callable[[], int]:
    def once() -> int:
        for _ in range(20):
            policy.act(obs, rng, 10**6)
        return 20

    return once


def child(rows: Sequence[str]) -> None:
    """Print microseconds of these rows as JSON for each line read, for the asyncrl that is imported here."""
    import torch

    import asyncrl

    torch.set_flush_denormal(True)  # as the learner's thread does

    try:
        from asyncrl import interfaces as nouns
    except ImportError:  # an older checkout, before the module was renamed
        import asyncrl.core as nouns  # type: ignore[no-redef,import-not-found]
    functions: dict[str, Callable[[], int]] = {}
    for name in rows:
        algorithm, options, shape, size = ROWS[name]
        spec, rng = specs(nouns)[shape], np.random.default_rng(0)
        record = getattr(asyncrl, algorithm)(**options)
        core, policy = (
            (record.make_updater if hasattr(record, "make_updater") else record.make_core)(spec, "cpu", 0),
            record.make_policy(spec),
        )
        if hasattr(core, "update"):
            once = replay_update(core, nouns, spec, size, rng)
        else:
            once = iteration(core, policy, nouns, spec, size, rng)
        functions[f"{name}_update"] = once
        obs = rng.normal(size=(16, *spec.observation_shape)).astype(np.float32)
        policy.assign_streams(0, 16, 16)
        functions[f"{name}_act"] = acting(policy, obs, rng)
    for function in functions.values():
        timed(function)
    for _ in sys.stdin:
        print(json.dumps({name: timed(function) for name, function in functions.items()}), flush=True)


def start(folder: Path, rows: Sequence[str]) -> subprocess.Popen[str]:
    """Start the process of one tree on the last core."""
    core = max(os.sched_getaffinity(0))
    return subprocess.Popen(
        [sys.executable, __file__, "--child", *rows],
        env={**os.environ, "PYTHONPATH": str(folder)},
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )


def turn(process: subprocess.Popen[str]) -> dict[str, float]:
    """One turn of a tree: microseconds by row."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    found: dict[str, float] = json.loads(process.stdout.readline())
    return found


def main() -> None:
    """Run both trees in turn and write results/before_after.json."""
    from benchmarks.harness.report import FOLDER, Report, commit

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=Path)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--only", nargs="+", choices=ROWS, default=list(ROWS), metavar="ROW")
    parser.add_argument("--trial", action="store_true", help="write no result file")
    parsed = parser.parse_args()
    trees = {"old": parsed.old.resolve(), "new": FOLDER.parent}
    report = Report("before_after")
    report.note("old commit", commit(trees["old"]))
    taken: dict[str, dict[str, list[float]]] = {tree: {} for tree in trees}
    for _ in range(parsed.rounds):
        processes = {tree: start(folder, parsed.only) for tree, folder in trees.items()}
        for number in range(TURNS):
            for tree in sorted(trees, reverse=number % 2 == 1):
                for name, value in turn(processes[tree]).items():
                    taken[tree].setdefault(name, []).append(value)
        for process in processes.values():
            process.communicate()
    for name, values in taken["new"].items():
        report.add(f"{name}_microseconds", values, "us")
        report.add_ratio(f"{name}_new_to_old", values, taken["old"][name], "<= 1.05")
    if not parsed.trial:
        report.write()


if __name__ == "__main__":
    child(sys.argv[2:]) if "--child" in sys.argv else main()
