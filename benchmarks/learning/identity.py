"""Identity environments, and random images: steps in which every algorithm solves each kind of environment.

After Stable-Baselines3's test environments (`stable_baselines3.common.envs`): in `IdentityEnv` the observation is the
rewarded action, and an episode has 20 steps. Here it is shown as Discrete, MultiDiscrete, MultiBinary, Box, Dict,
Tuple, an image, or with an action mask whose forbidden action must never be taken. Solved is a greedy return of 18 over
5 episodes, for a Box a mean distance of 0.05. `FakeImageEnv` shows random 40 x 40 colour images and cannot be learned.
All runs are in lockstep, with one actor of 16 environments and seed 0.

If Stable-Baselines3 is installed, its own classes are run too, with the bar of its tests: a return of 90 of 100, and
half a unit of error for a Box. They draw from unseeded spaces, so that their steps differ from run to run.

    python -m benchmarks.learning.identity
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from asyncrl import Trainer
from asyncrl.algorithms import ALGORITHMS
from asyncrl.interfaces import BoxAction, DiscreteAction, MultiDiscreteAction
from benchmarks.harness.report import Report, markdown

LENGTH = 20


class Identity(gymnasium.Env[Any, Any]):
    """Environment with reward 1 if the action equals the state; episodes of 20 steps.

    Args:
        kind: key of the observation and action spaces.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        number, bits = spaces.Discrete(3), spaces.MultiBinary(2)
        self.observation_space, self.action_space = {
            "discrete": (number, number),
            "multi_discrete": (spaces.MultiDiscrete([3, 2]), spaces.MultiDiscrete([3, 2])),
            "multi_binary": (bits, bits),
            "box": (spaces.Box(-1, 1, (1,), np.float32), spaces.Box(-1, 1, (1,), np.float32)),
            "dict": (spaces.Dict({"state": number, "noise": spaces.Box(0, 1, (2,), np.float32)}), number),
            "tuple": (spaces.Tuple((bits, number)), number),
            "image": (spaces.Box(0, 255, (8, 8), np.uint8), number),
            "masked": (spaces.Dict({"state": number, "action_mask": spaces.MultiBinary(3)}), number),
        }[kind]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return self._next(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._kind == "box":
            reward = 1.0 - 2.0 * float(abs(action - self._state).sum())
        else:
            reward = float(np.array_equal(action, self._state))
        if self._kind == "masked":
            assert action != (self._state + 1) % 3, "a forbidden action was taken"
        self._steps += 1
        return self._next(), reward, False, self._steps == LENGTH, {}

    def _next(self) -> Any:
        rng = self.np_random
        if self._kind == "box":
            self._state: Any = rng.uniform(-1, 1, 1).astype(np.float32)
        elif self._kind == "multi_discrete":
            self._state = rng.integers(0, [3, 2])
        elif self._kind == "multi_binary":
            self._state = rng.integers(0, 2, 2, dtype=np.int8)
        else:
            self._state = int(rng.integers(3))
        return self._shown()

    def _shown(self) -> Any:
        state = self._state
        if self._kind == "dict":
            return {"state": state, "noise": self.np_random.random(2, np.float32)}
        if self._kind == "tuple":
            return self.np_random.integers(0, 2, 2, dtype=np.int8), state
        if self._kind == "image":
            image = np.zeros((8, 8), np.uint8)
            image[:, 3 * state : 3 * state + 2] = 255
            return image
        if self._kind == "masked":
            return {"state": state, "action_mask": (np.arange(3) != (state + 1) % 3).astype(np.int8)}
        return np.copy(state) if isinstance(state, np.ndarray) else state


ACTIONS = {
    **dict.fromkeys(("discrete", "dict", "tuple", "image", "masked"), DiscreteAction),
    **dict.fromkeys(("multi_discrete", "multi_binary"), MultiDiscreteAction),
    "box": BoxAction,
}
ON_REPLAY: dict[str, Any] = {
    "learning_rate": 2e-3, "batch_size": 64, "gamma": 0.0, "n_step": 1, "samples_per_insert": 32.0,
    "learning_starts": 200, "replay_capacity": 4096, "hidden_sizes": (32, 32), "discipline": "lockstep",
}  # fmt: skip
ON_SEGMENTS: dict[str, Any] = {
    "learning_rate": 3e-3, "gamma": 0.0, "segment_length": 16, "hidden_sizes": (32, 32), "discipline": "lockstep",
}  # fmt: skip
OWN: dict[str, dict[str, Any]] = {
    "ppo": {"minibatch_size": 64, "epochs": 6},
    "rainbow": {"v_min": -1.0, "v_max": 2.0, "noisy_sigma": 0.1},
    "c51": {"v_min": -1.0, "v_max": 2.0, "exploration_steps": 1000},
    "dqn": {"exploration_steps": 1000},
    "qrdqn": {"exploration_steps": 1000, "num_quantiles": 16},
}
MOST_STEPS = {"a2c": 60_000, "impala": 60_000, "ppo": 30_000}


def record(name: str, **options: Any) -> Any:
    """The algorithm with options that suit twenty independent guesses."""
    usual = ON_SEGMENTS if ALGORITHMS[name].update_loop == "segments" else ON_REPLAY
    return ALGORITHMS[name](**(usual | OWN.get(name, {}) | options))


class FakeImages(gymnasium.Env[Any, Any]):
    """Random images; episodes of 10 steps."""

    def __init__(self, discrete: bool) -> None:
        self.observation_space = spaces.Box(0, 255, (40, 40, 3), np.uint8)
        self.action_space = spaces.Discrete(6) if discrete else spaces.Box(-1, 1, (5,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return self._image(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        return self._image(), 0.5, False, self._steps == 10, {}

    def _image(self) -> Any:
        return self.np_random.integers(0, 256, (40, 40, 3), dtype=np.uint8)


CASES = [
    (name, kind)
    for name in sorted(ALGORITHMS)
    for kind, action in ACTIONS.items()
    if action in ALGORITHMS[name].action_kinds
]


def solve(name: str, env: Callable[[], gymnasium.Env[Any, Any]], target: float) -> Any:
    """Result of a run that ends when the mean greedy return is at least `target`."""
    with Trainer(
        env, record(name), num_actors=1, envs_per_actor=16, seed=0, http="off",
        eval_interval_steps=1000, eval_episodes=5, target_eval_episodes=5,
    ) as trainer:  # fmt: skip
        steps = MOST_STEPS.get(name, 8_000)
        return trainer.learn(total_steps=steps, target_return=target, max_seconds=600)


def look(name: str, images: Callable[[bool], gymnasium.Env[Any, Any]]) -> Any:
    """Result of a short run on random images."""
    discrete = DiscreteAction in ALGORITHMS[name].action_kinds
    small = {} if ALGORITHMS[name].update_loop == "segments" else {"batch_size": 8, "samples_per_insert": 1.0}
    with Trainer(
        partial(images, discrete), record(name, frame_stack=2, **small), num_actors=1, envs_per_actor=4,
        seed=0, http="off", eval_episodes=1, target_eval_episodes=1,
    ) as trainer:  # fmt: skip
        return trainer.learn(total_steps=400, max_seconds=600)


def peer_cases() -> dict[str, tuple[type, Callable[[], gymnasium.Env[Any, Any]]]]:
    """Stable-Baselines3's classes by name, with the kind of action; empty if it is not installed."""
    try:
        from stable_baselines3.common import envs
    except ImportError:
        return {}
    return {
        "IdentityEnv": (DiscreteAction, partial(envs.IdentityEnv, 2)),
        "IdentityEnvMultiDiscrete": (MultiDiscreteAction, partial(envs.IdentityEnvMultiDiscrete, 2)),
        "IdentityEnvMultiBinary": (MultiDiscreteAction, partial(envs.IdentityEnvMultiBinary, 2)),
        "IdentityEnvBox": (BoxAction, partial(envs.IdentityEnvBox, eps=0.5)),
    }


def peer_images(discrete: bool) -> gymnasium.Env[Any, Any]:
    """Stable-Baselines3's `FakeImageEnv`, 84 x 84 grey."""
    from stable_baselines3.common.envs import FakeImageEnv

    made: gymnasium.Env[Any, Any] = FakeImageEnv(discrete=discrete)
    return made


def run_peers(report: Report) -> None:
    """Add the table and the figure of Stable-Baselines3's classes to the report."""
    cases, rows = peer_cases(), []
    for name in sorted(ALGORITHMS) if cases else ():
        row: list[Any] = [name]
        for kind, (action, env) in cases.items():
            if action not in ALGORITHMS[name].action_kinds:
                row.append(None)
                continue
            row.append(solve(name, env, 90.0).summary["steps_to_target"] or "not solved")
            print(name, kind, row[-1], flush=True)
        row.append(look(name, peer_images).summary["updates"])
        rows.append(row)
        head = ["algorithm", *cases, "FakeImageEnv: updates"]
        report.note("Stable-Baselines3's classes, steps to 90 of 100", markdown(head, rows).splitlines())
        report.write()
    solved = [isinstance(cell, int) for row in rows for cell in row[1:-1] if cell is not None]
    if solved:
        report.add("solved_of_stable_baselines3", [float(sum(solved))], f"of {len(solved)}")


def main() -> None:
    """Run all and write results/identity.json."""
    report = Report("identity")
    rows: list[list[Any]] = []
    for name in sorted(ALGORITHMS):
        row: list[Any] = [name]
        for kind in ACTIONS:
            if (name, kind) not in CASES:
                row.append(None)
                continue
            summary = solve(name, partial(Identity, kind), 0.9 * LENGTH).summary
            row.append(summary["steps_to_target"] or "not solved")
            print(name, kind, summary["steps_to_target"], summary["train_seconds"], flush=True)
        row.append(look(name, FakeImages).summary["updates"])
        rows.append(row)
        report.note(
            "steps to 18 of 20", markdown(["algorithm", *ACTIONS, "images: updates"], rows).splitlines()
        )
        report.write()
    solved = [isinstance(cell, int) for row in rows for cell in row[1:-1] if cell is not None]
    report.add("solved", [float(sum(solved))], f"of {len(solved)}")
    run_peers(report)
    report.write()


if __name__ == "__main__":
    main()
