"""IMPALA, the actor-critic that corrects by V-trace for policies older than the one that learns: hyper-parameters.

    Espeholt et al. 2018    IMPALA: scalable distributed deep-RL with importance weighted actor-learner architectures

Where PPO takes many cautious steps on a batch and keeps near the policy that drew it, IMPALA takes few bold ones and
expects the batch to be old: every gradient step computes the value targets anew, under the policy as it stands. So a
segment may come late, be passed over several times, or be kept and mixed in again (`past_segments`).

The loss and the iteration are in `impala_core.py`, which imports torch; this module does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from asyncrl.algorithms.on_policy import OnPolicy
from asyncrl.interfaces import EnvSpec
from asyncrl.options import require_at_least, require_fraction, require_positive

if TYPE_CHECKING:
    from asyncrl.algorithms.impala_core import IMPALACore


@dataclass(frozen=True, kw_only=True)
class IMPALA(OnPolicy):
    """Hyper-parameters of IMPALA. Implements `asyncrl.interfaces.SegmentAlgorithm`.

    Raises:
        ValueError: a value of the wrong type or outside its range; the text begins with the option's name.
    """

    name: ClassVar[str] = "impala"

    entropy_coefficient: float = 0.01
    segment_length: int = 20

    trace_lambda: float = 1.0
    """Lambda of the value targets and advantages, from 0 (one step) to 1 (the rest of the segment)."""

    correction: Literal["vtrace", "none"] = "vtrace"
    """What is done about actions that an older policy chose: V-trace, or to take them for the newest policy's."""

    rho_bar: float = 1.0
    """Truncation of V-trace that decides which policy's values are learned, above 0."""

    c_bar: float = 1.0
    """Truncation of V-trace that decides how far back an error is carried, above 0."""

    pg_rho_bar: float = 1.0
    """Truncation of the policy gradient's importance weight, above 0."""

    minibatches: int = 1
    """Parts that a pass is cut into, whole streams each, one gradient step per part; at least 1."""

    normalize_advantages: bool = False
    """Shift and scale the advantages of a gradient step to mean 0 and deviation 1."""

    past_segments: int = 0
    """Segments kept after their first use, at least 0, of which `past_per_batch` are mixed into a batch."""

    past_per_batch: int = 0
    """Kept segments that are drawn, all alike, for every batch, at least 0 and at most `past_segments`."""

    staleness_correction: Literal["none", "power", "exponential"] = "none"
    """Factor on a row's loss for its staleness s, beside V-trace: 1, (1 + s)^-rate or exp(-rate s)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least("minibatches", self.minibatches, 1)
        for name in ("rho_bar", "c_bar", "pg_rho_bar"):
            require_positive(name, getattr(self, name))
        for name in ("past_segments", "past_per_batch"):
            require_at_least(name, getattr(self, name), 0)
        require_fraction("trace_lambda", self.trace_lambda)
        if self.past_per_batch > self.past_segments:
            rule = f"at most past_segments ({self.past_segments})"
            raise ValueError(f"past_per_batch must be {rule}, got {self.past_per_batch}")

    @property
    def row_correction(self) -> Literal["none", "power", "exponential"]:
        """The factor that the learner puts on a row."""
        return self.staleness_correction

    def make_core(self, spec: EnvSpec, device: str, seed: int) -> IMPALACore:
        """The learner's half on `device`, initialised from `seed`; imports torch. Raises `SpacesDoNotFit`."""
        from asyncrl.algorithms.impala_core import IMPALACore

        return IMPALACore(self, spec, device, seed)
