"""Deep Q-learning with its usual extensions, each of which can be switched off: the hyper-parameters.

    Mnih et al. 2015 (DQN), van Hasselt et al. 2016 (double), Wang et al. 2016 (dueling), Schaul et al. 2016
    (prioritized replay), Horgan et al. 2018 (Ape-X: n-step, a ladder of exploration rates over the streams)

The network, the loss and the optimiser are in `dqn_core.py`, which imports torch; this module does not, so
that a command line shows its help, and an actor unpickles its policy, at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from asyncrl.algorithms.dqn_presets import PRESETS
from asyncrl.algorithms.registry import fitting
from asyncrl.core import DiscreteAction, EnvSpec, FieldSpec
from asyncrl.errors import SpacesDoNotFit
from asyncrl.options import coerce, option_help, require_at_least, require_positive
from asyncrl.policies import QLayout, QPolicy
from asyncrl.schedules import EpsilonSchedule

if TYPE_CHECKING:
    from asyncrl.algorithms.dqn_core import DQNCore


@dataclass(frozen=True, kw_only=True)
class DQN:
    """Hyper-parameters of deep Q-learning. Implements `asyncrl.core.Algorithm`.

    Raises:
        ValueError: a value of the wrong type or outside its range; the text begins with the option's name.
    """

    name: ClassVar[str] = "dqn"
    consumption: ClassVar[Literal["replay", "segments"]] = "replay"
    action_kinds: ClassVar[tuple[type, ...]] = (DiscreteAction,)

    learning_rate: float = 1e-3
    """Step size of Adam at the start, above 0."""

    learning_rate_schedule: Literal["constant", "linear"] = "constant"
    """What the learning rate does: stay, or fall in a straight line to `learning_rate_final`."""

    learning_rate_final: float = 0.0
    """Where the linear schedule ends, at least 0."""

    learning_rate_updates: int = 100_000
    """Updates over which the linear schedule falls, whatever the run's steps are; at least 1."""

    batch_size: int = 64
    """Transitions per update, at least 1."""

    gamma: float = 0.99
    """Discount per environment step, from 0 to 1."""

    n_step: int = 3
    """Rewards that are summed before the value of the next state is bootstrapped, in steps, at least 1."""

    double: bool = True
    """Let the online network choose the action whose target value is bootstrapped (van Hasselt 2016)."""

    dueling: bool = False
    """Have a value and an advantage stream, each `hidden_sizes[-1]` wide, as last layer (Wang 2016)."""

    prioritized: bool = True
    """Draw transitions in proportion to their priority (Schaul et al. 2016); otherwise all alike."""

    alpha: float = 0.6
    """Exponent of the priorities, at least 0; 0 draws all alike."""

    beta_start: float = 0.4
    """Exponent of the importance weights at the start, from 0 to 1."""

    beta_end: float = 1.0
    """Exponent of the importance weights at the end of the run's steps, from 0 to 1."""

    replay_capacity: int = 100_000
    """Environment steps that the replay holds over all actors, at least 1."""

    learning_starts: int = 1_000
    """Environment steps over all actors before the first update, at least 1."""

    samples_per_insert: float | None = 16.0
    """How often a step is trained on, on average, held from both sides; none lets both sides run freely."""

    samples_per_insert_error: float | None = None
    """Samples by which either side may run ahead of `samples_per_insert`; none chooses it."""

    max_staleness: int | None = None
    """Oldest policy that is learned from, in publications of weights; none sets no bound."""

    staleness_correction: Literal["none", "power", "exponential"] = "none"
    """Factor on a sample's loss for its staleness s: 1, (1 + s)^-rate or exp(-rate s)."""

    staleness_rate: float = 0.5
    """Rate of the staleness correction, at least 0."""

    target_update: Literal["soft", "hard"] = "soft"
    """How the target follows: by `tau` at every update, or by a copy every `target_update_interval`."""

    tau: float = 0.02
    """Fraction of the way that a soft target goes at every update, above 0 and at most 1."""

    target_update_interval: int = 500
    """Updates between two copies of a hard target, at least 1."""

    hidden_sizes: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers, at least one layer."""

    adam_eps: float = 1e-8
    """Term that Adam adds to its denominator, above 0."""

    max_grad_norm: float | None = 10.0
    """Length to which a longer gradient is shortened, above 0; none leaves gradients alone."""

    huber_delta: float | None = 1.0
    """Size of the error from which the loss grows linearly, above 0; none is the squared loss."""

    exploration_initial: float = 1.0
    """Share of random actions at the start, from 0 to 1."""

    exploration_final: float = 0.05
    """Share of random actions after `exploration_steps`, from 0 to 1."""

    exploration_steps: int = 10_000
    """Environment steps over all actors in which exploration falls to its final share, at least 0."""

    exploration_ladder: float = 0.0
    """Ape-X exponent: stream i of M explores with share^(1 + ladder i / (M - 1)); 0 treats streams alike."""

    exploration_repeat: int = 1
    """Most steps for which a random action is kept, at least 1; how many is drawn each time (Dabney 2021)."""

    def __post_init__(self) -> None:
        for name, option in option_help(DQN).items():
            object.__setattr__(self, name, coerce(name, option.type, getattr(self, name)))
        for name in ("batch_size", "n_step", "replay_capacity", "learning_starts", "learning_rate_updates"):
            require_at_least(name, getattr(self, name), 1)
        for name in (
            "learning_rate",
            "adam_eps",
            "tau",
            "max_grad_norm",
            "huber_delta",
            "samples_per_insert",
        ):
            require_positive(name, getattr(self, name))
        require_positive("samples_per_insert_error", self.samples_per_insert_error)
        for name in ("learning_rate_final", "alpha", "staleness_rate", "exploration_ladder"):
            require_at_least(name, getattr(self, name), 0)
        require_at_least("exploration_steps", self.exploration_steps, 0)
        require_at_least("exploration_repeat", self.exploration_repeat, 1)
        require_at_least("max_staleness", self.max_staleness, 0)
        require_at_least("target_update_interval", self.target_update_interval, 1)
        for name in ("gamma", "tau", "beta_start", "beta_end", "exploration_initial", "exploration_final"):
            _require_fraction(name, getattr(self, name))
        if not self.hidden_sizes or min(self.hidden_sizes) < 1:
            raise ValueError(
                f"hidden_sizes must name at least one width of at least 1, got {self.hidden_sizes}"
            )
        if self.learning_starts > self.replay_capacity:
            rule = f"at most replay_capacity ({self.replay_capacity})"
            raise ValueError(f"learning_starts must be {rule}, got {self.learning_starts}")

    @classmethod
    def preset(cls, env_name: str, **overrides: Any) -> DQN:
        """The record tuned for an environment's id, or the defaults, with `overrides` on top."""
        preset = PRESETS.get(env_name)
        return cls(**{**(preset.algorithm if preset else {}), **overrides})

    @classmethod
    def preset_options(cls, env_name: str) -> dict[str, Any]:
        """Options of the run that go with the preset, a fresh dict."""
        preset = PRESETS.get(env_name)
        return dict(preset.trainer) if preset else {}

    def check(self, spec: EnvSpec) -> None:
        """Refuse anything but a discrete action space. Raises `SpacesDoNotFit` (ASYNC005)."""
        if isinstance(spec.action, DiscreteAction):
            return
        raise SpacesDoNotFit(
            f"dqn needs a discrete action space, and {spec.name} has {spec.action}",
            facts={"action space": spec.action, "algorithms that fit": fitting(spec)},
            fix="choose one of these, an environment with a Discrete action space, or a wrapper that gives it one",
        )

    def extra_fields(self, spec: EnvSpec) -> tuple[FieldSpec, ...]:
        """None: a row needs nothing beside observation, action, reward and flags."""
        return ()

    def make_policy(self, spec: EnvSpec) -> QPolicy:
        """An epsilon-greedy policy with zero weights; imports no torch. Raises `SpacesDoNotFit`."""
        epsilon = EpsilonSchedule(
            self.exploration_initial,
            self.exploration_final,
            self.exploration_steps,
            self.exploration_ladder,
            self.exploration_repeat,
        )
        return QPolicy(spec, self.layout(spec), epsilon)

    def make_core(self, spec: EnvSpec, device: str, seed: int) -> DQNCore:
        """The learner's half on `device`, initialised from `seed`; imports torch. Raises `SpacesDoNotFit`."""
        from asyncrl.algorithms.dqn_core import DQNCore

        return DQNCore(self, spec, device, seed)

    def layout(self, spec: EnvSpec) -> QLayout:
        """The network's shape and weight order, shared by policy and core. Raises `SpacesDoNotFit`."""
        self.check(spec)
        assert isinstance(spec.action, DiscreteAction)
        return QLayout(math.prod(spec.observation_shape), self.hidden_sizes, spec.action.n, self.dueling)


def _require_fraction(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{name} must be from 0 to 1, got {value}")
