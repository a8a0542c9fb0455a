"""Record shared by SAC and its descendants: a squashed Gaussian actor whose entropy is part of the objective.

With an `n_step` above 1 the entropy of the steps in between is left out of the return; that of the last one is in its
value.
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
    """Gradient at log(alpha) of J = -log(alpha) mean(log pi(a|s) + target entropy), which is linear in it.

    Haarnoja et al. 2018b, eq. 18, with log(alpha) in alpha's place, as in its authors' code: both gradients vanish at
    the same entropy, and alpha stays positive.

    Args:
        log_prob: log pi(a|s) `[B, 1]` of the actor's actions.
        target_entropy: the entropy that alpha is adapted to.
    """
    assert log_prob.dim() == 2 and log_prob.shape[1] == 1
    return -(log_prob.mean() + target_entropy)


@dataclass(frozen=True, kw_only=True)
class MaximumEntropy(ContinuousControl):
    """Options of an actor that is rewarded for its entropy, with an automatic temperature.

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
    """Initial entropy coefficient where it is tuned automatically, above 0."""

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
        """A policy that draws its actions, with zero weights; imports no torch. Raises `SpacesDoNotFit`."""
        from asyncrl.acting.box import SquashedGaussianPolicy

        return SquashedGaussianPolicy(self.seen(spec), self.layout(spec), self.uniform_steps)
