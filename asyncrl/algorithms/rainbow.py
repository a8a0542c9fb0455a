"""Rainbow: C51 with all extensions of the DQN family.

Hessel et al. 2018   Rainbow: combining improvements in deep reinforcement learning
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from asyncrl.algorithms.c51 import C51
from asyncrl.config import TrainerConfig
from asyncrl.interfaces import EnvSpec


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

    def for_run(self, config: TrainerConfig, spec: EnvSpec) -> Self:
        """See `QLearning.for_run`.

        Raises:
            ValueError: nothing explores, as noise is off and epsilon 0. It is not an error of the record: a policy that
                is loaded need not explore, and its file has no function `exploration`.
        """
        epsilons = self.exploration_initial, self.exploration_final
        if not self.noisy and self.exploration is None and not any(epsilons):
            raise ValueError(
                "exploration_initial must be above 0 where noisy is off, got 0.0, or nothing explores; write "
                "exploration_initial=1.0, exploration_final=0.05, or leave noisy on"
            )
        return super().for_run(config, spec)
