"""Categorical distributional Q-learning (C51): return distributions on fixed atoms.

Bellemare et al. 2017   A distributional perspective on reinforcement learning
Hessel et al. 2018      Rainbow (the divergence as priority)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from asyncrl.algorithms.q_learning import QLearning, QLoss, of_action
from asyncrl.interfaces import EnvSpec
from asyncrl.options import Finite, Positive, Range

if TYPE_CHECKING:
    from torch import Tensor

    from asyncrl.algorithms.q_learning_update import QLearningUpdate
    from asyncrl.algorithms.staging import StagedBatch

_TINY = float(np.finfo(np.float32).tiny)


def c51_loss(
    logits: Tensor, next_logits: Tensor, next_action: Tensor, batch: StagedBatch, support: Tensor
) -> QLoss:
    """Weighted KL divergence of the predicted distribution p from the target m (Bellemare et al. 2017, alg. 1).

    This is the paper's cross entropy -sum_i m_i log p_i minus the entropy of m. The gradient is the same, and it is 0
    for a correct prediction, so it also serves as the priority (Hessel et al. 2018) and as a reported loss.

    Args:
        logits: logits of the return's probabilities in S, `[B, A, N]`.
        next_logits: logits of the target network in S', `[B, A, N]`.
        next_action: action `[B, 1]` int64 with the largest mean in S'.
        batch: `discount` is gamma^n, or 0 after a termination; `weight` is divided by B.
        support: atoms z `[N]`.
    """
    assert logits.dim() == 3 and next_logits.shape == logits.shape
    log_p = of_action(logits, batch.action).log_softmax(dim=1)
    m = project(of_action(next_logits, next_action).softmax(dim=1), batch.reward, batch.discount, support)
    divergence = (m * (m.clamp(min=_TINY).log() - log_p)).sum(dim=1, keepdim=True)  # 0 log 0 is 0
    return QLoss((batch.weight * divergence).sum(), divergence.detach())


def project(next_p: Tensor, reward: Tensor, discount: Tensor, support: Tensor) -> Tensor:
    """Projection of the distribution of `reward + discount * Z'` onto the atoms (Bellemare et al. 2017, eq. 7).

    The mass of a shifted atom is divided between its two neighbours by linear interpolation; beyond an end of the
    support it goes to that end. The lower neighbour has at most index N - 2 and the upper one is the next, so a shifted
    atom that coincides with an atom keeps all of its mass. With floor and ceiling, as in algorithm 1, both shares would
    be 0.

    Args:
        next_p: probabilities `[B, N]` of the next state's atoms.
        reward: `[B, 1]`, the discounted sum of n rewards.
        discount: `[B, 1]`, gamma^n, or 0 after a termination.
        support: z `[N]`, N at least 2, evenly spaced and ascending.

    Returns:
        m `[B, N]`; NaN where reward or discount is NaN. On a GPU the order of the sums, and so their rounding, varies.
    """
    assert next_p.dim() == 2 and support.shape == (next_p.shape[1],)
    assert reward.shape == discount.shape == (next_p.shape[0], 1)
    last = support.shape[0] - 1
    b = (reward + discount * support - support[0]) * (last / (support[-1] - support[0]))
    b = b.clamp(0, last)
    lower = b.long().clamp(0, last - 1)  # clamped after the conversion, so that a NaN gives a valid index
    upper_share = (b - lower) * next_p
    m = next_p.new_zeros(next_p.shape).scatter_add(1, lower, next_p - upper_share)
    return m.scatter_add(1, lower + 1, upper_share)


def expected_value(logits: Tensor, support: Tensor) -> Tensor:
    """Mean return `[...]` of the distribution with `logits` `[..., N]` on the atoms `support` `[N]`."""
    assert support.shape == logits.shape[-1:]
    return logits.softmax(dim=-1) @ support


@dataclass(frozen=True, kw_only=True)
class C51(QLearning):
    """Hyper-parameters of C51."""

    name: ClassVar[str] = "c51"

    reward_scale: Positive | None = 1.0
    """Factor on rewards; `v_min` and `v_max` are in scaled units. None: as the other algorithms choose it."""

    num_atoms: Annotated[int, Range(at_least=2)] = 51
    """Atoms of the return distribution, evenly spaced from `v_min` to `v_max`."""

    v_min: Finite = -10.0
    """Smallest atom of the return distribution, below `v_max`."""

    v_max: Finite = 10.0
    """Largest atom of the return distribution."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.v_min < self.v_max:
            raise ValueError(f"v_min must be less than v_max ({self.v_max}), got {self.v_min}")
        with np.errstate(over="ignore", invalid="ignore"):
            apart = np.diff(self.support())
        if not (np.isfinite(apart) & (apart > 0)).all():
            raise ValueError(
                f"v_min and v_max must leave {self.num_atoms} atoms that float32 tells apart, got {self.v_min} and "
                f"{self.v_max}"
            )

    def atoms(self) -> int:
        """`num_atoms`."""
        return self.num_atoms

    def support(self) -> NDArray[np.float32]:
        """The atoms `[num_atoms]`, z_i = v_min + i (v_max - v_min) / (num_atoms - 1); a new array."""
        return np.linspace(self.v_min, self.v_max, self.num_atoms, dtype=np.float32)

    def make_updater(self, spec: EnvSpec, device: str, seed: int) -> QLearningUpdate:
        """Make the updater on `device`, initialised from `seed`; imports torch. Raises `SpacesDoNotFit`."""
        import torch

        from asyncrl.algorithms.c51_kernel import c51_kernel
        from asyncrl.algorithms.q_learning_update import QLearningUpdate

        support = torch.from_numpy(self.support()).to(device)
        loss, values = partial(c51_loss, support=support), partial(expected_value, support=support)
        kernel = partial(c51_kernel, self.support(), np.empty((3, self.num_atoms), np.float32), self.dueling)
        return QLearningUpdate(self, spec, device, seed, loss=loss, values=values, kernel=kernel)
