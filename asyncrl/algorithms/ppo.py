"""Proximal policy optimisation over segments of asynchronous actors: the hyper-parameters.

    Schulman et al. 2017    Proximal policy optimization algorithms
    Schulman et al. 2016    High-dimensional continuous control using generalized advantage estimation
    Hilton et al. 2021      Batch size-invariance for policy optimization (the decoupled objective)

The networks, the loss and the optimiser are in `ppo_core.py`, which imports torch; this module does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from asyncrl.algorithms.on_policy import OnPolicy
from asyncrl.interfaces import EnvSpec
from asyncrl.options import require_at_least, require_fraction, require_positive

if TYPE_CHECKING:
    from asyncrl.algorithms.ppo_core import PPOCore


@dataclass(frozen=True, kw_only=True)
class PPO(OnPolicy):
    """Hyper-parameters of proximal policy optimisation. Implements `asyncrl.interfaces.SegmentAlgorithm`.

    Raises:
        ValueError: a value of the wrong type or outside its range; the text begins with the option's name.
    """

    name: ClassVar[str] = "ppo"
    past_segments: ClassVar[int] = 0
    past_per_batch: ClassVar[int] = 0

    learning_rate: float = 3e-4
    epochs: int = 4
    max_staleness: int | None = 4

    gae_lambda: float = 0.95
    """Lambda of the advantage estimator, from 0 (one step) to 1 (the rest of the segment)."""

    clip_range: float = 0.2
    """How far the ratio of new to old probability may leave 1 before its gradient stops, above 0."""

    value_clip_range: float | None = None
    """How far a value may leave the old one before its gradient stops, above 0; none does not clip."""

    minibatch_size: int = 256
    """Steps per gradient step at most, at least 1; a pass is divided evenly."""

    target_kl: float | None = None
    """Divergence from the old policy at 1.5 times which the passes over a batch end, above 0; none goes on."""

    normalize_advantages: bool = True
    """Shift and scale the advantages of a batch to mean 0 and deviation 1."""

    staleness_correction: Literal["none", "power", "exponential", "importance"] = "importance"
    """What is done about staleness s: nothing, a factor (1 + s)^-rate or exp(-rate s), or the decoupled loss."""

    rho_bar: float = 2.0
    """Largest importance weight of the decoupled loss, at least 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least("minibatch_size", self.minibatch_size, 1)
        for name in ("clip_range", "value_clip_range", "target_kl"):
            require_positive(name, getattr(self, name))
        require_at_least("rho_bar", self.rho_bar, 1)
        require_fraction("gae_lambda", self.gae_lambda)

    @property
    def row_correction(self) -> Literal["none", "power", "exponential"]:
        """The correction that is a factor on a row, which the learner applies; the decoupled loss is none."""
        return "none" if self.staleness_correction == "importance" else self.staleness_correction

    def make_core(self, spec: EnvSpec, device: str, seed: int) -> PPOCore:
        """The learner's half on `device`, initialised from `seed`; imports torch. Raises `SpacesDoNotFit`."""
        from asyncrl.algorithms.ppo_core import PPOCore

        return PPOCore(self, spec, device, seed)
