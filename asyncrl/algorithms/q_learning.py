"""Base record of the DQN family: options, policy, and functions shared by the losses.

    van Hasselt et al. 2016 Deep reinforcement learning with double Q-learning
    Wang et al. 2016        Dueling network architectures
    Schaul et al. 2016      Prioritized experience replay
    Horgan et al. 2018      Distributed prioritized experience replay (Ape-X: n-step returns, one epsilon per stream)
    Fortunato et al. 2018   Noisy networks for exploration
    Hessel et al. 2018      Rainbow (dueling for each atom)

Networks, target and optimiser are in `q_learning_update.py`, which imports torch. This module does not, so that the
command line shows its help and an actor unpickles its policy without delay.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from asyncrl.acting.schedules import EpsilonSchedule, RateRange
from asyncrl.algorithms.off_policy import OffPolicy
from asyncrl.config import TrainerConfig
from asyncrl.interfaces import DiscreteAction, EnvSpec
from asyncrl.options import Coefficient, Count, Fraction, FunctionOfProgress, NotNegative, Positive

if TYPE_CHECKING:
    from torch import Tensor

    from asyncrl.acting.policies import QLayout, QPolicy

LEAST_EXPLORATION = 10_000
"""Least `exploration_steps` where they are none, and those of a run without a number of steps."""


class QLoss(NamedTuple):
    """Result of a loss of the DQN family."""

    loss: Tensor
    """Scalar to minimise."""

    priorities: Tensor
    """`[B, 1]`; the absolute values are the new priorities."""


def by_action(outputs: Tensor, atoms: int | None, dueling: bool) -> Tensor:
    """Split the outputs of the head by action.

    Args:
        outputs: `[R, A N]`, or `[R, (1 + A) N]` for a dueling head: value V, then advantages A.
        atoms: N; None if each output is an action value.
        dueling: combine Q = V + A - mean(A) (Wang et al. 2016, eq. 9), separately for each atom (Hessel et al. 2018).

    Returns:
        `[R, A, N]`, or `[R, A]` if `atoms` is None.
    """
    values = outputs if atoms is None else outputs.unflatten(1, (-1, atoms))
    if not dueling:
        return values
    value, advantage = values[:, :1], values[:, 1:]
    return value + advantage - advantage.mean(dim=1, keepdim=True)


def of_action(atoms: Tensor, action: Tensor) -> Tensor:
    """Select the atoms `[B, N]` of one `action` `[B, 1]` per row from `atoms` `[B, A, N]`."""
    assert atoms.dim() == 3 and action.shape == (atoms.shape[0], 1)
    return atoms.gather(1, action.unsqueeze(2).expand(-1, -1, atoms.shape[2])).squeeze(1)


def huber(error: Tensor, delta: float | None) -> Tensor:
    """Huber loss: e^2 / 2 up to `delta` and delta (|e| - delta / 2) beyond; e^2 / 2 if `delta` is None."""
    if delta is None:
        return 0.5 * error.square()
    size = error.abs()
    inside = size.clamp(max=delta)
    return inside * (size - 0.5 * inside)


@dataclass(frozen=True, kw_only=True)
class QLearning(OffPolicy):
    """Options of every algorithm of the DQN family."""

    action_kinds: ClassVar[tuple[type, ...]] = (DiscreteAction,)
    needs_bounds: ClassVar[bool] = False

    n_step: int = 3
    prioritized: bool = True
    max_grad_norm: float | None = 10.0

    double: bool = True
    """Double Q-learning: the online network selects the bootstrapped action (van Hasselt et al. 2016)."""

    dueling: bool = False
    """Dueling network: value and advantage streams, each `hidden_sizes[-1]` wide (Wang et al. 2016)."""

    noisy: bool = False
    """Noisy layers (Fortunato et al. 2018) after the first layer or the convolutions, besides epsilon-greedy."""

    noisy_sigma: Positive = 0.5
    """Initial noise scale sigma_0 of noisy layers: their weights begin with sigma_0 / sqrt(inputs)."""

    target_update: Literal["soft", "hard"] = "soft"
    """Target network: soft (by `tau` at every update) or hard (a copy every `target_update_interval`)."""

    target_update_interval: Count = 500
    """Updates between copies to a hard target network."""

    exploration_initial: Fraction = 1.0
    """Initial epsilon: fraction of random actions."""

    exploration_final: Fraction = 0.05
    """Final epsilon, after `exploration_steps`."""

    exploration_steps: NotNegative | None = None
    """Environment steps, over all actors, in which epsilon falls; none: a tenth of the run's, at least 10,000."""

    exploration_ladder: Coefficient = 0.0
    """Ape-X exponent: stream i of M explores with epsilon^(1 + ladder i / (M - 1)); 0: all streams alike."""

    exploration_repeat: Count = 1
    """Maximum steps that a random action is repeated; the number is drawn (Dabney et al. 2021)."""

    exploration: Annotated[FunctionOfProgress | None, RateRange(most=1.0)] = field(
        default=None, metadata={"option": False}
    )
    """Epsilon as a function of the completed fraction of `exploration_steps`, in place of the linear schedule."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("dueling", "noisy"):
            if self.own_network is not None and getattr(self, name):
                raise ValueError(f"{name} must be off where network is given, got {getattr(self, name)}")

    def for_run(self, config: TrainerConfig, spec: EnvSpec) -> Self:
        """See `OffPolicy.for_run`; epsilon falls in a tenth of the run's steps, or in `LEAST_EXPLORATION` if more."""
        record = super().for_run(config, spec)
        if record.exploration_steps is not None:
            return record
        return replace(record, exploration_steps=max(LEAST_EXPLORATION, (config.total_steps or 0) // 10))

    def make_policy(self, spec: EnvSpec) -> QPolicy:
        """Make an epsilon-greedy policy with zero weights, without importing torch. Raises `SpacesDoNotFit`."""
        epsilon = EpsilonSchedule(
            initial=self.exploration_initial,
            final=self.exploration_final,
            steps=LEAST_EXPLORATION if self.exploration_steps is None else self.exploration_steps,
            ladder=self.exploration_ladder,
            repeat=self.exploration_repeat,
            function=self.exploration,
        )
        from asyncrl.acting.policies import QPolicy

        rescaled = getattr(self, "value_rescaling", False)
        return QPolicy(self.stacked_spec(spec), self.acting_layout(spec), epsilon, self.support(), rescaled)

    def num_actions(self, spec: EnvSpec) -> int:
        """Number of actions. Raises `SpacesDoNotFit`."""
        self.check(spec)
        assert isinstance(spec.action, DiscreteAction)
        return spec.action.n

    def layout(self, spec: EnvSpec) -> QLayout:
        """Shape and weight order of the learner's network. Raises `SpacesDoNotFit`."""
        actions, atoms = self.num_actions(spec), self.atoms() or 1
        from asyncrl.acting.policies import QLayout

        return QLayout(
            inputs=self.stacked_spec(spec).observation_values,
            hidden=self.hidden_sizes,
            num_actions=actions,
            dueling=self.dueling,
            atoms=atoms,
            noisy=self.noisy,
            network=self.network_for(
                spec,
                value_outputs=atoms if self.dueling else 0,
                noisy_sigma=self.noisy_sigma if self.noisy else 0.0,
            ),
            normalized=bool(self.normalize_observations),
        )

    def acting_layout(self, spec: EnvSpec) -> QLayout:
        """Shape of the published network: the learner's, or a smaller one with equal action values."""
        return self.layout(spec)

    def atoms(self) -> int | None:
        """Number of outputs of the network per action; None if the only output is the action value."""
        return None

    def support(self) -> NDArray[np.float32] | None:
        """Returns `[atoms]` whose logits the network outputs; None if the outputs are returns."""
        return None
