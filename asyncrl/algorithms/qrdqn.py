"""Distributional Q-learning by quantile regression: the hyper-parameters.

Dabney et al. 2018   Distributional reinforcement learning with quantile regression
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from asyncrl.acting.policies import QLayout
from asyncrl.algorithms.q_learning import QLearning
from asyncrl.interfaces import EnvSpec
from asyncrl.options import require_at_least, require_positive

if TYPE_CHECKING:
    from asyncrl.algorithms.dqn_core import DQNCore


@dataclass(frozen=True, kw_only=True)
class QRDQN(QLearning):
    """Hyper-parameters of QR-DQN. Implements `asyncrl.interfaces.ReplayAlgorithm`.

    Raises:
        ValueError: a value of the wrong type or outside its range; the text begins with the option's name.
    """

    name: ClassVar[str] = "qrdqn"

    num_quantiles: int = 32
    """Quantiles of the return that are learned for each action; at least 1. The loss's time is its square."""

    huber_delta: float | None = 1.0
    """The paper's kappa: error from which the loss is linear, above 0; none is plain quantile regression."""

    bound_targets: bool = True
    """Clip bootstrapped values to what the transitions seen so far allow, so that no estimate runs off."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least("num_quantiles", self.num_quantiles, 1)
        require_positive("huber_delta", self.huber_delta)

    def atoms(self) -> int:
        """`num_quantiles`."""
        return self.num_quantiles

    def acting_layout(self, spec: EnvSpec) -> QLayout:
        """A plain network of action values: the mean of quantiles is linear in the head's weights.

        Not so with noise in them, which every quantile has of its own; then all quantiles go to the actors.
        """
        layout = self.layout(spec)
        return layout if self.noisy else dataclasses.replace(layout, atoms=1)

    def make_core(self, spec: EnvSpec, device: str, seed: int) -> DQNCore:
        """The learner's half on `device`, initialised from `seed`; imports torch. Raises `SpacesDoNotFit`."""
        from asyncrl.algorithms.dqn_core import DQNCore
        from asyncrl.algorithms.q_heads import QuantileHead

        return DQNCore(self, QuantileHead(self, self.layout(spec)), spec, device, seed)
