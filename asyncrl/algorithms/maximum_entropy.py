"""Base record of SAC and its descendants: a squashed Gaussian actor whose entropy is part of the objective.

With `n_step` above 1 the return omits the entropy of the intermediate steps; the bootstrapped value includes that of
the last one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from asyncrl.algorithms.continuous import ContinuousControl
from asyncrl.interfaces import EnvSpec
from asyncrl.options import require_at_least, require_positive

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
    """Options of maximum-entropy algorithms, with automatic tuning of the temperature.

    Raises:
        ValueError: a value of the wrong type or outside its range; the text begins with the option's name.
    """

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

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least("num_critics", self.num_critics, 1)
        for name in ("ent_coef", "ent_coef_initial"):
            require_positive(name, getattr(self, name))
        if self.target_entropy is not None and not math.isfinite(self.target_entropy):
            raise ValueError(f"target_entropy must be finite or none, got {self.target_entropy}")

    def make_policy(self, spec: EnvSpec) -> SquashedGaussianPolicy:
        """Make a stochastic policy with zero weights, without importing torch. Raises `SpacesDoNotFit`."""
        from asyncrl.acting.box import SquashedGaussianPolicy

        return SquashedGaussianPolicy(self.seen(spec), self.layout(spec), self.uniform_steps)
