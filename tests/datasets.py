"""Datasets for tests, of scripted policies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from asyncrl.envs.source import EnvSource, describe
from asyncrl.storage.dataset import DatasetWriter, Episode


def balances(obs: Any, rng: np.random.Generator) -> int:
    """Keep CartPole's pole up for 500 steps, mostly."""
    return int(obs[2] + 0.5 * obs[3] + 0.1 * obs[1] + 0.05 * obs[0] > 0)


def write_dataset(
    folder: Path,
    env: Any = "CartPole-v1",
    act: Callable[[Any, np.random.Generator], Any] = balances,
    *,
    steps: int = 2_000,
    seed: int = 0,
    stored: Callable[[Any], Any] = np.asarray,
) -> Path:
    """Write at least `steps` steps of whole episodes; `act` sees the environment's own observations.

    `stored` makes a row of an observation.
    """
    source, rng = EnvSource.from_user(env), np.random.default_rng(seed)
    spec, made = describe(source), source.build()
    played = made.env if hasattr(made, "packed_leaves") else made
    assert isinstance(played, gymnasium.Env)
    with DatasetWriter(folder, made, spec, algorithm="script", description="a test's") as writer:
        while writer.steps < steps:
            obs, _ = played.reset(seed=None if writer.steps else seed)
            seen, actions, rewards, terminated, truncated = [stored(obs)], [], [], False, False
            while not (terminated or truncated):
                actions.append(act(obs, rng))
                obs, reward, terminated, truncated, _ = played.step(actions[-1])
                seen.append(stored(obs))
                rewards.append(float(reward))
            writer.add(Episode(np.stack(seen), np.array(actions), np.array(rewards), terminated))
    made.close()
    return folder
