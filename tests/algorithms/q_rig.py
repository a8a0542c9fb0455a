"""Batches and learners for the tests of the DQN family."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from asyncrl.algorithms import ALGORITHMS
from asyncrl.interfaces import Batch, DiscreteAction, EnvSpec

SPEC = EnvSpec("test", (4,), "float32", DiscreteAction(3))
SMALL: dict[str, dict[str, Any]] = {
    "dqn": {},
    "c51": {"num_atoms": 7, "v_min": -4.0, "v_max": 5.0},
    "qrdqn": {"num_quantiles": 6},
}


def filled_batch(size: int = 20, seed: int = 0) -> Batch:
    rng = np.random.default_rng(seed)
    batch = Batch.allocate(size, SPEC)
    batch.obs[:], batch.next_obs[:] = rng.normal(size=(2, *batch.obs.shape))
    batch.action[:] = rng.integers(0, 3, size)
    batch.reward[:] = rng.normal(0, 2, size)
    batch.discount[:] = np.where(rng.random(size) < 0.3, 0.0, 0.9)
    batch.weight[:] = rng.random(size)
    return batch


def make(name: str, **options: Any) -> Any:
    return ALGORITHMS[name](**{"hidden_sizes": (9, 8), **SMALL[name], **options})


def written(core: Any) -> np.ndarray:
    out = np.empty(core.weight_count, np.float32)
    core.write_weights(out)
    return out


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64).unsqueeze(1)


def staged(action: Any, reward: Any, discount: Any, weight: Any, low: float = -1e9, high: float = 1e9) -> Any:
    """Columns of a batch that a loss reads, in float64."""
    fields = {"reward": column(*reward), "discount": column(*discount), "weight": column(*weight)}
    limits = torch.tensor([low, high], dtype=torch.float64)
    return SimpleNamespace(
        action=torch.as_tensor(action).unsqueeze(1), limits=limits, low=limits[0], high=limits[1], **fields
    )
