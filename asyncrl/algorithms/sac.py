"""Soft actor-critic with an automatic temperature: the hyper-parameters.

    Haarnoja et al. 2018a   Soft actor-critic: off-policy maximum entropy deep reinforcement learning
    Haarnoja et al. 2018b   Soft actor-critic algorithms and applications (twin critics, temperature)

The networks, the loss and the optimiser are in `sac_core.py`, which imports torch; this module does not. With an
`n_step` above 1 the entropy of the steps in between is left out of the return; that of the last one is in its value.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from asyncrl.acting.box import SquashedGaussianPolicy
from asyncrl.algorithms.continuous import ContinuousControl
from asyncrl.interfaces import EnvSpec
from asyncrl.options import require_at_least, require_positive

if TYPE_CHECKING:
    from asyncrl.algorithms.sac_core import SACCore


@dataclass(frozen=True, kw_only=True)
class SAC(ContinuousControl):
    """Hyper-parameters of soft actor-critic.

    Raises:
        ValueError: a value of the wrong type or outside its range; the text begins with the option's name.
    """

    name: ClassVar[str] = "sac"
    entropy_in_values: ClassVar[bool] = True
    _gaussian: ClassVar[bool] = True

    num_critics: int = 2
    """Critics whose smallest target value is bootstrapped, at least 1."""

    ent_coef: float | None = None
    """Weight of the entropy, above 0; none adapts it until the entropy is `target_entropy`."""

    ent_coef_initial: float = 1.0
    """Where an adapted weight of the entropy begins, above 0."""

    target_entropy: float | None = None
    """Entropy, of actions in -1..1, that the weight is adapted to; none takes minus the number of their values."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least("num_critics", self.num_critics, 1)
        for name in ("ent_coef", "ent_coef_initial"):
            require_positive(name, getattr(self, name))
        if self.target_entropy is not None and not math.isfinite(self.target_entropy):
            raise ValueError(f"target_entropy must be finite or none, got {self.target_entropy}")

    def make_policy(self, spec: EnvSpec) -> SquashedGaussianPolicy:
        """A policy that draws its actions, with zero weights; imports no torch. Raises `SpacesDoNotFit`."""
        return SquashedGaussianPolicy(spec, self.layout(spec), self.uniform_steps)

    def make_core(self, spec: EnvSpec, device: str, seed: int) -> SACCore:
        """The learner's half on `device`, initialised from `seed`; imports torch. Raises `SpacesDoNotFit`."""
        from asyncrl.algorithms.sac_core import SACCore

        return SACCore(self, spec, device, seed)
