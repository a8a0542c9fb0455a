"""Base record of SAC and its descendants: a squashed Gaussian actor whose entropy is part of the objective.

With `n_step` above 1 the return omits the entropy of the intermediate steps; the bootstrapped value includes that of
the last one.

Draws of actions may be correlated over the steps of a stream (Eberhard et al. 2023, "Pink noise is all you need",
section 3; here by a first-order autoregressive process). This helps where independent draws average out, as in
LunarLanderContinuous.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from asyncrl.algorithms.continuous import ContinuousActor, actor_layout, critics_of_actions
from asyncrl.interfaces import EnvSpec
from asyncrl.options import Count, Finite, Positive, Range

if TYPE_CHECKING:
    from torch import Tensor

    from asyncrl.acting.box import BoxLayout, SquashedGaussianPolicy
    from asyncrl.acting.critics import CriticLayout


def temperature_gradient(log_prob: Tensor, target_entropy: float) -> Tensor:
    """Gradient of J = -log(alpha) mean(log pi(a|s) + target entropy) with respect to log(alpha).

    This is eq. 18 of Haarnoja et al. 2018b with log(alpha) in place of alpha, as in the authors' code: both gradients
    vanish at the same entropy, and alpha stays positive.

    Args:
        log_prob: log pi(a|s) `[B, 1]` of the actor's actions.
        target_entropy: entropy to which alpha is adapted.
    """
    assert log_prob.dim() == 2 and log_prob.shape[1] == 1
    return -(log_prob.mean() + target_entropy)


@dataclass(frozen=True, kw_only=True)
class MaximumEntropy(ContinuousActor):
    """Options of maximum-entropy algorithms, with automatic tuning of the temperature."""

    num_critics: Count = 2
    """Number of critics."""

    ent_coef: Positive | None = None
    """Entropy coefficient (alpha); none tunes it automatically towards `target_entropy`."""

    ent_coef_initial: Positive = 1.0
    """Initial entropy coefficient if it is tuned automatically."""

    target_entropy: Finite | None = None
    """Target entropy of actions in -1..1; none takes minus the number of action dimensions."""

    action_correlation: Annotated[float, Range(at_least=0, below=1)] = 0.0
    """Correlation of a stream's successive draws of actions in training; the distribution of
    each draw stays the policy's. Near 0.9 it explores environments in which independent draws average out."""

    @property
    def given_reward_scale(self) -> float | None:
        """See `OffPolicy`; 1 beside an entropy coefficient that is given, whose unit the rewards are."""
        return 1.0 if self.reward_scale is None and self.ent_coef is not None else self.reward_scale

    def layout(self, spec: EnvSpec) -> BoxLayout:
        """Shape and weight order of the actor, shared by policy and updater. Raises `SpacesDoNotFit`."""
        return actor_layout(self, spec, gaussian=True)

    def critic_layout(self, spec: EnvSpec) -> CriticLayout:
        """Shape of the critics. Raises `SpacesDoNotFit`."""
        hidden = self.critic_hidden_sizes or self.hidden_sizes
        return critics_of_actions(self.layout(spec), hidden, self.num_critics)

    def make_policy(self, spec: EnvSpec) -> SquashedGaussianPolicy:
        """Make a stochastic policy with zero weights, without importing torch. Raises `SpacesDoNotFit`."""
        from asyncrl.acting.box import SquashedGaussianPolicy

        return SquashedGaussianPolicy(
            self.stacked_spec(spec), self.layout(spec), self.first_random_steps, self.action_correlation
        )
