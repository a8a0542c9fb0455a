"""Rainbow: C51 with all extensions of the DQN family.

Hessel et al. 2018   Rainbow: combining improvements in deep reinforcement learning
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from asyncrl.algorithms.c51 import C51


@dataclass(frozen=True, kw_only=True)
class Rainbow(C51):
    """Hyper-parameters of Rainbow: those of C51 with other defaults, such as no random actions."""

    name: ClassVar[str] = "rainbow"

    n_step: int = 3
    alpha: float = 0.5
    double: bool = True
    dueling: bool = True
    prioritized: bool = True
    noisy: bool = True
    exploration_initial: float = 0.0
    exploration_final: float = 0.0
