"""Warm start: initialisation of an updater with the weights of a trained policy.

The weights are copied into the acting network and its target network. Critics, optimiser and counters are left at their
initial values. Observation statistics are part of the weights, and count as many steps as the policy was trained for.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.algorithms.continuous_update import ContinuousUpdate
from asyncrl.algorithms.crossq_update import CrossQUpdate
from asyncrl.algorithms.normalization import ObservationStatistics
from asyncrl.algorithms.on_policy_update import OnPolicyUpdate
from asyncrl.algorithms.q_learning_update import QLearningUpdate
from asyncrl.networks.mlp import FlatMLP
from asyncrl.protocols import Updater


@torch.no_grad()
def begin_with(core: Updater, weights: NDArray[np.float32], env_steps: int) -> None:
    """Copy a policy's weights into a fresh updater.

    Args:
        core: updater of the algorithm that the run trains.
        weights: flat `[core.weight_count]`, in the order that its policy reads.
        env_steps: environment steps that the policy was trained for.

    Raises:
        ValueError: this updater cannot start from a policy's weights; the text gives the reason.
    """
    flat = torch.from_numpy(np.array(weights, np.float32))
    statistics = getattr(core, "_statistics", None) or getattr(core, "statistics", None)
    if isinstance(statistics, ObservationStatistics):
        statistics.begin_with(flat.numpy(), env_steps)
    if isinstance(core, CrossQUpdate) and core.layout.network is None:
        raise ValueError("crossq folds its batch normalisation into the weights that act, for good")
    if isinstance(core, QLearningUpdate):
        flat = _of_all_atoms(core, flat[: core._acting.network_count])
        core._online.flat.copy_(flat)
        core._target.flat.copy_(flat)
    elif isinstance(core, ContinuousUpdate):
        flat = flat[: core.layout.network_count]
        core.policy.flat.copy_(flat)
        if core.target_policy is not None:
            core.target_policy.flat.copy_(flat)
    elif isinstance(core, OnPolicyUpdate):
        core.nets.begin_with(flat, env_steps)
    else:
        raise ValueError(f"{type(core).__name__} does not say how it takes a policy's weights")


def _of_all_atoms(core: QLearningUpdate, acting: Tensor) -> Tensor:
    """Weights of the full network; if the policy holds only an action's mean output, every atom is set to it."""
    if core._acting == core.layout:
        return acting
    own, small = FlatMLP(core.layout.sizes, core._online.flat.clone()), FlatMLP(core._acting.sizes, acting)
    count = small.flat.numel() - small.head.numel() - small.head_bias.numel()
    own.flat[:count].copy_(small.flat[:count])
    atoms = core.layout.atoms
    own.head.unflatten(1, (-1, atoms)).copy_(small.head.unsqueeze(2))
    own.head_bias.unflatten(2, (-1, atoms)).copy_(small.head_bias.unsqueeze(3))
    return own.flat
