"""Short runs that are stopped and resumed, and the numbers that must not depend on it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from gymnasium.envs.classic_control import CartPoleEnv

from asyncrl import DQN, IMPALA, PPO, R2D2, SAC, Trainer
from asyncrl.run.result import TrainResult


class NoisyCartPole(CartPoleEnv):
    """CartPole with noise from NumPy's global generator."""

    def step(self, action: Any) -> Any:
        obs, *rest = super().step(action)
        return (obs + np.random.normal(scale=0.01, size=4).astype(np.float32), *rest)


CONSTANT = partial(PPO, learning_rate_schedule="constant")

RUNS: dict[str, tuple[Any, Any]] = {
    "dqn": (
        "CartPole-v1",
        DQN(
            discipline="lockstep",
            prioritized=True,
            n_step=3,
            learning_starts=100,
            batch_size=32,
            hidden_sizes=(16, 16),
            replay_capacity=512,
            beta_end=0.4,
            exploration_repeat=4,
        ),
    ),
    "ppo": (
        "CartPole-v1",
        CONSTANT(
            discipline="lockstep",
            segment_length=32,
            epochs=2,
            hidden_sizes=(16, 16),
            normalize_observations=True,
            normalize_rewards=True,
        ),
    ),
    "r2d2": (
        "CartPole-v1",
        R2D2(
            discipline="lockstep",
            learning_starts=100,
            batch_size=8,
            sequence_length=6,
            burn_in=3,
            hidden_sizes=(16,),
            recurrent_size=8,
            replay_capacity=512,
            samples_per_insert=4,
        ),
    ),
    "global-noise": (
        NoisyCartPole,
        CONSTANT(discipline="lockstep", segment_length=32, epochs=2, hidden_sizes=(16, 16)),
    ),
    "synchronous": (
        "CartPole-v1",
        CONSTANT(discipline="synchronous", segment_length=32, epochs=2, hidden_sizes=(16, 16)),
    ),
    "ppo-gru": (
        "CartPole-v1",
        CONSTANT(
            discipline="lockstep",
            segment_length=32,
            epochs=2,
            hidden_sizes=(16,),
            recurrent="gru",
            recurrent_size=8,
            normalize_observations=True,
        ),
    ),
    "impala-lstm": (
        "CartPole-v1",
        IMPALA(
            discipline="lockstep",
            hidden_sizes=(16,),
            recurrent="lstm",
            recurrent_size=8,
            past_segments=8,
            past_per_batch=1,
            past_newest=0.5,
        ),
    ),
    "goals": (
        "asyncrl/BitFlip-v0",
        DQN(
            discipline="lockstep",
            prioritized=True,
            n_step=3,
            learning_starts=100,
            batch_size=32,
            hidden_sizes=(16, 16),
            replay_capacity=512,
            beta_end=0.4,
        ),
    ),
    "sac": (
        "Pendulum-v1",
        SAC(
            discipline="lockstep",
            learning_starts=100,
            batch_size=32,
            samples_per_insert=8.0,
            hidden_sizes=(16, 16),
        ),
    ),
}
"""Environment and algorithm by name. No schedule of these depends on `total_steps`; the replay wraps around."""

SCHEDULED: dict[str, tuple[Any, Any]] = {
    "ppo-cooldown": (
        "CartPole-v1",
        PPO(discipline="lockstep", segment_length=32, epochs=2, hidden_sizes=(16, 16)),
    ),
}
"""As `RUNS`, with a learning rate that depends on `total_steps`."""


def trainer_of(
    name: str, run_dir: Path | None, changed: Mapping[str, Any] = MappingProxyType({}), **options: Any
) -> Trainer:
    """A small run of one of `RUNS` or `SCHEDULED`, with changed options of its algorithm."""
    env, algorithm = {**RUNS, **SCHEDULED}[name]
    algorithm = replace(algorithm, **changed)
    common: dict[str, Any] = {
        "seed": 3,
        "num_actors": 2,
        "envs_per_actor": 2,
        "http": "off",
        "eval_interval_steps": 500,
        "eval_episodes": 1,
        "target_eval_episodes": 1,
        "save_replay_buffer": True,
    }
    return Trainer(env, algorithm, run_dir=run_dir, **{**common, **options})


def numbers(trainer: Trainer, result: TrainResult) -> dict[str, Any]:
    """All numbers of a run in lockstep that must not depend on timing or on where it was stopped and resumed."""
    last = trainer.snapshot()
    assert last is not None
    return {
        "weights": result.policy.weights.tobytes(),
        "updates": last.updates,
        "policy_version": last.policy_version,
        "env_steps": last.env_steps,
        "episodes": last.episodes,
        "return_mean": last.return_mean,
        "loss": last.loss,
        "metrics": last.train_metrics,
        "staleness": last.staleness_counts,
        "policy_lag": last.policy_lag_counts,
        "samples_per_insert": last.samples_per_insert_achieved,
    }


def stop_after(trainer: Trainer, env_steps: int, limit_seconds: float = 60.0) -> None:
    """Stop a started run after a number of steps."""
    end = time.monotonic() + limit_seconds
    while (snapshot := trainer.snapshot()) is None or snapshot.env_steps < env_steps:
        assert time.monotonic() < end and not trainer.done, "the run made no progress"
        time.sleep(0.005)
    trainer.stop()
