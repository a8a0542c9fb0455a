"""Stable-Baselines3's SAC at its zoo's hyper-parameters: to a greedy target, or its updates per second.

    until       trains until the target or `--max-seconds` of training; see `until_target.py` for the clock
    updates     updates/s of the whole loop (`learn`: an environment step and an update in turn) and of `train` alone

Prints one JSON line. One thread.

    python -m benchmarks.peers.sb3_sac Pendulum-v1 --seed 0
    python -m benchmarks.peers.sb3_sac HalfCheetah-v5 --mode updates --seconds 5
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import json
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from stable_baselines3 import SAC
from stable_baselines3.common.callbacks import BaseCallback

from benchmarks.peers.until_target import UntilTarget, means

BATCH = 256
ENDLESS = 10**9
UPDATES_LEARNING_STARTS, WARM_UPDATES, CHUNK = 1_000, 50, 20


@dataclass(frozen=True)
class Task:
    """Target and the zoo's settings for an environment; other settings are Stable-Baselines3's defaults."""

    target: float
    evaluate_every: int
    hint_episodes: int
    episodes: int
    settings: dict[str, Any] = field(default_factory=dict)


TASKS = {
    "Pendulum-v1": Task(-200.0, 250, 10, 100, {"learning_rate": 1e-3, "learning_starts": 100}),
    "HalfCheetah-v5": Task(3000.0, 1_000, 3, 10, {"learning_starts": 10_000}),
}


def flags(description: str | None, crossq_critics: bool = False) -> argparse.Namespace:
    """Parse the command line; defaults that depend on the environment are filled in."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("env", choices=TASKS)
    parser.add_argument("--mode", choices=("until", "updates"), default="until")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", type=float, help="mean return that ends a run")
    parser.add_argument("--max-seconds", type=float, default=300.0, help="of training, for `until`")
    parser.add_argument("--evaluate-every", type=int, help="steps")
    parser.add_argument("--hint-episodes", type=int)
    parser.add_argument("--episodes", type=int, help="that decide")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement, for `updates`")
    if crossq_critics:
        parser.add_argument("--crossq-critics", type=int, help="CrossQ, with critics of two layers as wide")
    arguments = parser.parse_args()
    task = TASKS[arguments.env]
    for name in ("target", "evaluate_every", "hint_episodes", "episodes"):
        if getattr(arguments, name) is None:
            setattr(arguments, name, getattr(task, name))
    return arguments


def settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Arguments of the model. In mode `updates`, learning starts after `UPDATES_LEARNING_STARTS` steps."""
    chosen = {**TASKS[arguments.env].settings, "seed": arguments.seed, "device": "cpu"}
    if arguments.mode == "updates":
        chosen["learning_starts"] = UPDATES_LEARNING_STARTS
    return chosen


def until(model: Any, arguments: argparse.Namespace) -> dict[str, Any]:
    """Train until the target or the limit; a run that misses the target has `reached` False and its training time."""
    callback = UntilTarget(
        arguments.env,
        arguments.target,
        arguments.seed,
        arguments.evaluate_every,
        ["greedy"],
        starts=model.learning_starts,
        hint_episodes=arguments.hint_episodes,
        episodes=arguments.episodes,
        max_seconds=arguments.max_seconds,
    )
    model.learn(ENDLESS, callback=callback)
    seconds = callback.seconds["greedy"]
    return {
        "reached": seconds is not None,
        "seconds": callback.seconds,
        "train_seconds": callback.train_seconds if seconds is None else seconds,
        "env_steps": model.num_timesteps,
        "updates": model._n_updates,
        "return_mean": callback.return_mean,
    }


class Rate(BaseCallback):
    """Updates/s of the loop during `seconds`, after the first `WARM_UPDATES` updates."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds
        self._began: tuple[float, int] | None = None
        self.updates_per_second = 0.0

    def _on_rollout_start(self) -> None:
        now, updates = time.perf_counter(), self.model._n_updates
        if updates < WARM_UPDATES:
            return
        if self._began is None:
            self._began = (now, updates)
        elif now - self._began[0] >= self._seconds:
            self.updates_per_second = (updates - self._began[1]) / (now - self._began[0])

    def _on_step(self) -> bool:
        return self.updates_per_second == 0.0


def updates(model: Any, arguments: argparse.Namespace) -> dict[str, Any]:
    """Updates/s of the loop, then of `train` alone, `CHUNK` updates per call on the replay's contents."""
    rate = Rate(arguments.seconds)
    model.learn(ENDLESS, callback=rate)
    started = time.perf_counter()
    model.train(CHUNK, BATCH)
    first_seconds, done = time.perf_counter() - started, 0
    started = time.perf_counter()
    while time.perf_counter() - started < arguments.seconds:
        model.train(CHUNK, BATCH)
        done += CHUNK
    return {
        "loop_updates_per_second": rate.updates_per_second,
        "train_updates_per_second": done / (time.perf_counter() - started),
        "first_train_seconds": first_seconds,
        "env_steps": model.num_timesteps,
    }


def main() -> None:
    """Measure once."""
    arguments = flags(__doc__)
    torch.set_num_threads(1)
    started = time.process_time()
    model = SAC("MlpPolicy", arguments.env, **settings(arguments))
    result = (until if arguments.mode == "until" else updates)(model, arguments)
    result |= {"cpu_seconds": time.process_time() - started, **means(model)}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
