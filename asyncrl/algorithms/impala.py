"""IMPALA, the actor-critic that corrects by V-trace for policies older than the one that learns: hyper-parameters.

    Espeholt et al. 2018    IMPALA: scalable distributed deep-RL with importance weighted actor-learner architectures

Where PPO takes many cautious steps on a batch and keeps near the policy that drew it, IMPALA takes few bold ones and
expects the batch to be old: every gradient step computes the value targets anew, under the policy as it stands. So a
segment may come late, be passed over several times, or be kept and mixed in again (`past_segments`).

The loss and the iteration are in `impala_core.py`, which imports torch; this module does not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from asyncrl.algorithms.impala_presets import PRESETS
from asyncrl.algorithms.presets import Preset
from asyncrl.algorithms.registry import fitting
from asyncrl.algorithms.segment_options import require_lag_within_bound
from asyncrl.core import BoxAction, DiscreteAction, EnvSpec, FieldSpec, MultiDiscreteAction
from asyncrl.errors import SpacesDoNotFit
from asyncrl.options import coerce, option_help, require_at_least, require_positive
from asyncrl.stochastic import ActorLayout, StochasticPolicy, extra_fields_of

if TYPE_CHECKING:
    from asyncrl.algorithms.impala_core import IMPALACore


@dataclass(frozen=True, kw_only=True)
class IMPALA:
    """Hyper-parameters of IMPALA. Implements `asyncrl.core.SegmentAlgorithm`.

    Raises:
        ValueError: a value of the wrong type or outside its range; the text begins with the option's name.
    """

    name: ClassVar[str] = "impala"
    consumption: ClassVar[Literal["replay", "segments"]] = "segments"
    action_kinds: ClassVar[tuple[type, ...]] = (DiscreteAction, MultiDiscreteAction, BoxAction)

    learning_rate: float = 1e-3
    """Step size of Adam at the start, above 0."""

    learning_rate_schedule: Literal["constant", "linear"] = "constant"
    """What the learning rate does: stay, or fall in a straight line to 0 at the end of the run's steps."""

    gamma: float = 0.99
    """Discount per environment step, from 0 to 1."""

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

    epochs: int = 1
    """Passes over the segments of a batch, at least 1."""

    minibatches: int = 1
    """Parts that a pass is cut into, whole streams each, one gradient step per part; at least 1."""

    entropy_coefficient: float = 0.01
    """Weight of the policy's entropy in the loss, at least 0."""

    value_coefficient: float = 0.5
    """Weight of the value loss (half the squared error), at least 0."""

    max_grad_norm: float | None = 0.5
    """Length to which a longer gradient of both networks is shortened, above 0; none leaves gradients alone."""

    normalize_advantages: bool = False
    """Shift and scale the advantages of a gradient step to mean 0 and deviation 1."""

    normalize_observations: bool = False
    """Shift and scale observations by their running mean and deviation, and cut them to +-10."""

    normalize_rewards: bool = False
    """Divide rewards by the running deviation of the discounted return, and cut them to +-10."""

    hidden_sizes: tuple[int, ...] = (64, 64)
    """Widths of the policy's hidden layers, at least one layer."""

    value_hidden_sizes: tuple[int, ...] | None = None
    """Widths of the value network's hidden layers, at least one layer; none takes the policy's."""

    activation: Literal["tanh", "relu"] = "tanh"
    """What stands behind every hidden layer."""

    squashed: bool = False
    """Squash real-valued actions into their bounds by tanh, instead of cutting them off there."""

    initial_log_std: float = 0.0
    """Logarithm of the standard deviation with which real-valued actions are drawn at the start."""

    adam_eps: float = 1e-5
    """Term that Adam adds to its denominator, above 0."""

    segment_length: int = 20
    """Rows of a segment: steps of each environment between two looks at the learner, at least 1."""

    segments_per_batch: int | None = None
    """Segments that one batch is made of, at least 1; none takes as many as there are actors."""

    discipline: Literal["relaxed", "lockstep", "synchronous"] = "relaxed"
    """Batches of the segments that came first; of one per actor, a version behind; or with actors waiting."""

    queue_batches: int = 1
    """Batches that actors may work ahead where the discipline is relaxed, at least 1."""

    past_segments: int = 0
    """Segments kept after their first use, at least 0, of which `past_per_batch` are mixed into a batch."""

    past_per_batch: int = 0
    """Kept segments that are drawn, all alike, for every batch, at least 0 and at most `past_segments`."""

    max_staleness: int | None = None
    """Oldest policy that is learned from, in publications of weights; none sets no bound."""

    staleness_correction: Literal["none", "power", "exponential"] = "none"
    """Factor on a row's loss for its staleness s, beside V-trace: 1, (1 + s)^-rate or exp(-rate s)."""

    staleness_rate: float = 0.5
    """Rate of the power and exponential corrections, at least 0."""

    reuse_epochs: int = 0
    """Further passes over a batch while no new one has arrived, at least 0."""

    def __post_init__(self) -> None:
        for name, option in option_help(type(self)).items():
            object.__setattr__(self, name, coerce(name, option.type, getattr(self, name)))
        for name in ("epochs", "minibatches", "segment_length", "segments_per_batch", "queue_batches"):
            require_at_least(name, getattr(self, name), 1)
        for name in ("learning_rate", "rho_bar", "c_bar", "pg_rho_bar", "max_grad_norm", "adam_eps"):
            require_positive(name, getattr(self, name))
        for name in ("entropy_coefficient", "value_coefficient", "staleness_rate", "max_staleness"):
            require_at_least(name, getattr(self, name), 0)
        for name in ("past_segments", "past_per_batch", "reuse_epochs"):
            require_at_least(name, getattr(self, name), 0)
        for name in ("gamma", "trace_lambda"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be from 0 to 1, got {getattr(self, name)}")
        if not math.isfinite(self.initial_log_std):
            raise ValueError(f"initial_log_std must be finite, got {self.initial_log_std}")
        if self.past_per_batch > self.past_segments:
            rule = f"at most past_segments ({self.past_segments})"
            raise ValueError(f"past_per_batch must be {rule}, got {self.past_per_batch}")
        require_lag_within_bound(self.discipline, self.max_staleness)
        for name in ("hidden_sizes", "value_hidden_sizes"):
            sizes = getattr(self, name)
            if sizes is not None and (not sizes or min(sizes) < 1):
                raise ValueError(f"{name} must name at least one width of at least 1, got {sizes}")

    @property
    def samples_per_insert(self) -> float | None:
        """How often a step is trained on: once per pass; how often it is drawn again later is not counted."""
        return float(self.epochs)

    @property
    def row_correction(self) -> Literal["none", "power", "exponential"]:
        """The factor that the learner puts on a row."""
        return self.staleness_correction

    @classmethod
    def preset(cls, env_name: str, **overrides: Any) -> Self:
        """The record tuned for an environment's id, or the defaults, with `overrides` on top."""
        preset = cls._presets().get(env_name)
        return cls(**{**(preset.algorithm if preset else {}), **overrides})

    @classmethod
    def preset_options(cls, env_name: str) -> dict[str, Any]:
        """Options of the run that go with the preset, a fresh dict."""
        preset = cls._presets().get(env_name)
        return dict(preset.trainer) if preset else {}

    @classmethod
    def _presets(cls) -> dict[str, Preset]:
        return PRESETS[cls.name]

    def check(self, spec: EnvSpec) -> None:
        """Refuse what `squashed` cannot do: a box without finite bounds. Raises `SpacesDoNotFit` (ASYNC005)."""
        if not (self.squashed and isinstance(spec.action, BoxAction)):
            return
        if all(math.isfinite(bound) for bound in (*spec.action.low, *spec.action.high)):
            return
        raise SpacesDoNotFit(
            f"{self.name}.squashed needs actions with finite bounds, and {spec.name} has {spec.action}",
            facts={"action space": spec.action, "algorithms that fit": fitting(spec)},
            fix="leave squashed at false, or wrap the environment so that its actions have finite bounds",
        )

    def extra_fields(self, spec: EnvSpec) -> tuple[FieldSpec, ...]:
        """The log-probability of the action, and what it was squashed from where it was."""
        return extra_fields_of(self.layout(spec))

    def make_policy(self, spec: EnvSpec) -> StochasticPolicy:
        """A policy that draws its actions, with zero weights; imports no torch. Raises `SpacesDoNotFit`."""
        return StochasticPolicy(spec, self.layout(spec))

    def make_core(self, spec: EnvSpec, device: str, seed: int) -> IMPALACore:
        """The learner's half on `device`, initialised from `seed`; imports torch. Raises `SpacesDoNotFit`."""
        from asyncrl.algorithms.impala_core import IMPALACore

        return IMPALACore(self, spec, device, seed)

    def layout(self, spec: EnvSpec) -> ActorLayout:
        """The policy's shape and weight order, shared by policy and core. Raises `SpacesDoNotFit`."""
        self.check(spec)
        return ActorLayout(
            inputs=math.prod(spec.observation_shape),
            hidden=self.hidden_sizes,
            action=spec.action,
            activation=self.activation,
            squashed=self.squashed and isinstance(spec.action, BoxAction),
            normalized=self.normalize_observations,
        )
