"""QMIX: the joint action value is a monotone function of the agents' values, whose form depends on the state.

    Rashid et al. 2018      QMIX: monotonic value function factorisation for deep multi-agent reinforcement learning

    dQ_tot / dQ_a >= 0 for every agent a                                                   (eq. 5)

The mixer is a network of one hidden layer over the agents' values with weights that are not negative. Hypernetworks
compute its weights and biases from the state, on which the mixture may depend in any way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

from asyncrl.algorithms.central_state import CentralState, resolved
from asyncrl.algorithms.value_decomposition import ValueDecomposition
from asyncrl.config import TrainerConfig
from asyncrl.interfaces import EnvSpec
from asyncrl.options import Count

if TYPE_CHECKING:
    from torch import nn

    from asyncrl.algorithms.value_decomposition_update import ValueDecompositionUpdate


@dataclass(frozen=True, kw_only=True)
class QMIX(ValueDecomposition):
    """Hyper-parameters of QMIX."""

    name: ClassVar[str] = "qmix"

    mixing_size: Count = 32
    """Width of the mixer's hidden layer."""

    hypernet_size: Count | None = 64
    """Width of the hidden layer of the hypernetworks that compute weights; none: they are linear, as in the paper."""

    central_state: CentralState = "auto"
    """What the mixer sees: the environment's state or all agents' observations; auto: its state if it has one."""

    def for_run(self, config: TrainerConfig, spec: EnvSpec) -> Self:
        """See `OffPolicy.for_run`; `central_state` follows from the environment."""
        return replace(super().for_run(config, spec), central_state=resolved(self, spec))

    def make_mixer(self, agents: int, state_size: int) -> nn.Module:
        """See `ValueDecomposition.make_mixer`."""
        from asyncrl.algorithms.mixers import MonotoneMixer

        return MonotoneMixer(agents, state_size, self.mixing_size, self.hypernet_size)

    def make_updater(self, spec: EnvSpec, device: str, seed: int) -> ValueDecompositionUpdate:
        """Make the updater on `device`, initialised from `seed`; imports torch. Raises `SpacesDoNotFit`."""
        from asyncrl.algorithms.value_decomposition_update import ValueDecompositionUpdate

        return ValueDecompositionUpdate(self, spec, device, seed, loss=self.loss)
