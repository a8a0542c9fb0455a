"""Categorical distributional Q-learning: the return's distribution on fixed atoms; the hyper-parameters.

Bellemare et al. 2017   A distributional perspective on reinforcement learning
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from asyncrl.algorithms.q_learning import QLearning
from asyncrl.interfaces import EnvSpec
from asyncrl.options import require_at_least

if TYPE_CHECKING:
    from asyncrl.algorithms.dqn_core import DQNCore


@dataclass(frozen=True, kw_only=True)
class C51(QLearning):
    """Hyper-parameters of C51. Implements `asyncrl.interfaces.ReplayAlgorithm`.

    Raises:
        ValueError: a value of the wrong type or outside its range; the text begins with the option's name.
    """

    name: ClassVar[str] = "c51"

    num_atoms: int = 51
    """Returns whose probabilities are learned, evenly spaced from `v_min` to `v_max`; at least 2."""

    v_min: float = -10.0
    """Smallest discounted return that can be told apart, below `v_max`."""

    v_max: float = 10.0
    """Largest discounted return that can be told apart."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least("num_atoms", self.num_atoms, 2)
        for name in ("v_min", "v_max"):
            if not np.isfinite(getattr(self, name)):
                raise ValueError(f"{name} must be finite, got {getattr(self, name)}")
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
        """The atoms `[num_atoms]`, z_i = v_min + i (v_max - v_min) / (num_atoms - 1); a fresh array."""
        return np.linspace(self.v_min, self.v_max, self.num_atoms, dtype=np.float32)

    def make_core(self, spec: EnvSpec, device: str, seed: int) -> DQNCore:
        """The learner's half on `device`, initialised from `seed`; imports torch. Raises `SpacesDoNotFit`."""
        import torch

        from asyncrl.algorithms.dqn_core import DQNCore
        from asyncrl.algorithms.q_heads import CategoricalHead

        head = CategoricalHead(self, self.layout(spec), torch.device(device))
        return DQNCore(self, head, spec, device, seed)
