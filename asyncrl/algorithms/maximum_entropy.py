"""Base record of SAC and its descendants: a squashed Gaussian actor whose entropy is part of the objective.

With `n_step` above 1 the return omits the entropy of the intermediate steps; the bootstrapped value includes that of
the last one.

Draws of actions may be correlated over the steps of a stream (Eberhard et al. 2023, "Pink noise is all you need",
section 3; here by a first-order autoregressive process). This helps where independent draws average out, as in
LunarLanderContinuous.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from asyncrl.algorithms.continuous import ContinuousControl
from asyncrl.interfaces import EnvSpec
from asyncrl.options import require_at_least, require_fraction, require_positive

if TYPE_CHECKING:
    from torch import Tensor

    from asyncrl.acting.box import SquashedGaussianPolicy


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
class MaximumEntropy(ContinuousControl):
    """Options of maximum-entropy algorithms, with automatic tuning of the temperature."""

    entropy_in_values: ClassVar[bool] = True
    _gaussian: ClassVar[bool] = True

    num_critics: int = 2
    """Number of critics, at least 1."""

    ent_coef: float | None = None
    """Entropy coefficient (alpha), above 0; none tunes it automatically towards `target_entropy`."""

    ent_coef_initial: float = 1.0
    """Initial entropy coefficient if it is tuned automatically, above 0."""

    target_entropy: float | None = None
    """Target entropy of actions in -1..1; none takes minus the number of action dimensions."""

    action_correlation: float = 0.0
    """Correlation of a stream's successive draws of actions in training, at least 0 and below 1; the distribution of
    each draw stays the policy's. Near 0.9 it explores environments in which independent draws average out."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least("num_critics", self.num_critics, 1)
        for name in ("ent_coef", "ent_coef_initial"):
            require_positive(name, getattr(self, name))
        if self.target_entropy is not None and not math.isfinite(self.target_entropy):
            raise ValueError(f"target_entropy must be finite or none, got {self.target_entropy}")
        require_fraction("action_correlation", self.action_correlation)
        if self.action_correlation == 1.0:
            raise ValueError("action_correlation must be below 1, got 1.0")

    def make_policy(self, spec: EnvSpec) -> SquashedGaussianPolicy:
        """Make a stochastic policy with zero weights, without importing torch. Raises `SpacesDoNotFit`."""
        from asyncrl.acting.box import SquashedGaussianPolicy

        layout = self.layout(spec)
        return SquashedGaussianPolicy(self.seen(spec), layout, self.uniform_steps, self.action_correlation)
