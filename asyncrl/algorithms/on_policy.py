"""Base record of all actor-critics that learn from segments: options, their ranges, and the policy.

An algorithm's record extends it and defines, in four methods, the parts of `on_policy_update.py` specific to the
algorithm. This module does not import torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from asyncrl.algorithms.action_spaces import check_action_space
from asyncrl.algorithms.segment_learning import SegmentLearning
from asyncrl.interfaces import BoxAction, DiscreteAction, EnvSpec, FieldSpec, MultiDiscreteAction
from asyncrl.options import Coefficient, Count, Finite, Widths

if TYPE_CHECKING:
    from torch import Tensor

    from asyncrl.acting.critics import CriticLayout
    from asyncrl.acting.recurrent import Cell
    from asyncrl.acting.stochastic import ActorLayout, StochasticPolicy


class ActorCriticLoss(NamedTuple):
    """Result of a loss of policy and value network.

    Attributes:
        loss: scalar to minimise.
        policy_loss, value_loss: scalars, terms of the loss before multiplication by `vf_coef`.
        entropy: `[B]`.
        log_ratio: `[B]`, log pi - log pi_old; None without an old policy.
    """

    loss: Tensor
    policy_loss: Tensor
    value_loss: Tensor
    entropy: Tensor
    log_ratio: Any = None


@dataclass(frozen=True, kw_only=True)
class OnPolicy(SegmentLearning):
    """Options common to all actor-critics that learn from segments; their records extend this one."""

    action_kinds: ClassVar[tuple[type, ...]] = (DiscreteAction, MultiDiscreteAction, BoxAction)

    recurrent: Literal["none", "gru", "lstm"] = "none"
    """Recurrent cell between hidden layers and outputs: none, gru or lstm; its state is reset at episode starts."""

    recurrent_size: Count = 64
    """Outputs of the recurrent cell."""

    ent_coef: Coefficient | None = 0.0
    """Entropy coefficient of the loss."""

    vf_coef: Coefficient = 0.5
    """Coefficient of the value loss, the mean squared error."""

    bounds_coef: Coefficient = 0.0
    """Coefficient of the penalty for mean actions beyond the bounds, squared, in units of half the action range."""

    value_hidden_sizes: Widths | None = None
    """Widths of the value network's hidden layers, if it is a perceptron; none takes the policy's."""

    shared_trunk: bool = True
    """For images, share all layers of the convolutional network between policy and value but the last."""

    activation: Literal["tanh", "relu"] = "tanh"
    """Activation after every hidden layer of a perceptron; convolutional networks have ReLU."""

    squashed: bool = False
    """Squash real-valued actions into their bounds by tanh, instead of clipping them there."""

    initial_log_std: Finite = 0.0
    """Logarithm of the standard deviation of real-valued actions at the start."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cell is not None and self.value_hidden_sizes is not None:
            raise ValueError(
                "value_hidden_sizes must be none where the policy is recurrent, for policy and value share encoder and "
                f"cell, got {self.value_hidden_sizes}"
            )

    @property
    def cell(self) -> Cell | None:
        """Kind and size of the recurrent cell; None without one."""
        from asyncrl.acting.recurrent import Cell

        return None if self.recurrent == "none" else Cell(self.recurrent, self.recurrent_size)

    def check(self, spec: EnvSpec) -> None:
        """Refuse unsupported action spaces. Raises `SpacesDoNotFit` (ASYNC005)."""
        check_action_space(self, spec, option="squashed" if self.squashed else None)

    def extra_fields(self, spec: EnvSpec) -> tuple[FieldSpec, ...]:
        """Log-probability of the action and, for squashed actions, the latent before tanh."""
        from asyncrl.acting.stochastic import extra_fields_of

        return extra_fields_of(self.layout(spec))

    def make_policy(self, spec: EnvSpec) -> StochasticPolicy:
        """Make a stochastic policy with zero weights, without importing torch. Raises `SpacesDoNotFit`."""
        from asyncrl.acting.stochastic import StochasticPolicy

        return StochasticPolicy(self.stacked_spec(spec), self.layout(spec))

    def layout(self, spec: EnvSpec) -> ActorLayout:
        """Shape and weight order of the policy, shared by actors and updater. Raises `SpacesDoNotFit`."""
        self.check(spec)
        from asyncrl.acting.stochastic import ActorLayout

        return ActorLayout(
            inputs=self.stacked_spec(spec).observation_values,
            hidden=self.hidden_sizes,
            action=spec.action,
            activation=self.activation,
            squashed=self.squashed and isinstance(spec.action, BoxAction),
            normalized=bool(self.normalize_observations),
            network=self.network_for(spec),
            cell=self.cell,
        )

    def critic_layout(self, spec: EnvSpec) -> CriticLayout | None:
        """Shape of the value network, a shared trunk included. Raises `SpacesDoNotFit`."""
        policy = self.layout(spec)
        from asyncrl.acting.critics import CriticLayout

        return CriticLayout(
            inputs=policy.inputs,
            hidden=policy.hidden if self.value_hidden_sizes is None else self.value_hidden_sizes,
            activation=policy.activation,
            network=policy.network,
            cell=policy.cell,
        )
