"""Common options of the algorithms that learn from replay, with their ranges."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from asyncrl.acting.modules import NetworkFactory
from asyncrl.acting.schedules import ramp
from asyncrl.algorithms.preset_files import WithPresets
from asyncrl.interfaces import LONGEST_N_STEP, EnvSpec, FieldSpec
from asyncrl.options import (
    coerce,
    option_help,
    require_at_least,
    require_at_most,
    require_fraction,
    require_positive,
    require_widths,
)


@dataclass(frozen=True, kw_only=True)
class OffPolicy(WithPresets):
    """Options that mean the same to every algorithm on replay; a record of one extends this one.

    Raises:
        ValueError: a value of the wrong type or outside its range; the text begins with the option's name.
    """

    name: ClassVar[str]
    update_loop: ClassVar[Literal["replay", "segments"]] = "replay"
    action_kinds: ClassVar[tuple[type, ...]]
    needs_bounds: ClassVar[bool]
    entropy_in_values: ClassVar[bool] = False  # whether action values hold an entropy bonus beside rewards

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

    reward_scale: float = 1.0
    """Factor on the rewards that are learned from, above 0; values, supports and entropies are in its units."""

    n_step: int = 1
    """Rewards that are summed before the value of the next state is bootstrapped, in steps, from 1 to 255."""

    prioritized: bool = False
    """Draw transitions in proportion to their priority (Schaul et al. 2016); otherwise all alike."""

    alpha: float = 0.6
    """Exponent of the priorities, from 0 to 1; 0 draws all alike."""

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
    """Samples by which either side may run ahead of `samples_per_insert` when relaxed; none chooses it."""

    discipline: Literal["relaxed", "lockstep"] = "relaxed"
    """relaxed lets actors and learner run freely within the balance; lockstep is exact: same seed, same numbers."""

    lockstep_lag: int = 4
    """Policy lag that lockstep holds, in updates, at least 1: from publishing weights to receiving their steps."""

    publish_interval: int | Literal["auto"] = "auto"
    """Updates between two publications of weights when relaxed; auto keeps their cost under 5 % of the updates'."""

    max_staleness: int | None = None
    """Oldest policy that is learned from, in updates; none sets no bound."""

    staleness_correction: Literal["none", "power", "exponential"] = "none"
    """Factor on a sample's loss for its staleness s: 1, (1 + s)^-rate or exp(-rate s)."""

    staleness_rate: float = 0.5
    """Rate of the staleness correction, at least 0."""

    tau: float = 0.02
    """Fraction of the way that a soft target goes at every update, above 0 and at most 1."""

    hidden_sizes: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers, at least one layer."""

    adam_eps: float = 1e-8
    """Term that Adam adds to its denominator, above 0."""

    max_grad_norm: float | None = None
    """Length to which a longer gradient is shortened, above 0; none leaves gradients alone."""

    matmul_precision: Literal["highest", "medium"] = "highest"
    """Float32 products, or ones of rounded factors (bfloat16 on a CPU with AMX, TF32 on a GPU) summed in float32."""

    network: NetworkFactory | None = field(default=None, metadata={"option": False})
    """Makes each network in place of a perceptron: `network(inputs, outputs)` returns a `torch.nn.Module`."""

    def __post_init__(self) -> None:
        for name, option in option_help(type(self)).items():
            object.__setattr__(self, name, coerce(name, option.type, getattr(self, name)))
        for name in ("batch_size", "n_step", "replay_capacity", "learning_starts", "learning_rate_updates"):
            require_at_least(name, getattr(self, name), 1)
        require_at_least("lockstep_lag", self.lockstep_lag, 1)
        if self.publish_interval != "auto":
            require_at_least("publish_interval", self.publish_interval, 1)
        if self.discipline == "lockstep" and self.samples_per_insert is None:
            raise ValueError("samples_per_insert must be a number with discipline='lockstep', got None")
        for name in ("learning_rate", "adam_eps", "tau", "max_grad_norm", "reward_scale"):
            require_positive(name, getattr(self, name))
        for name in ("samples_per_insert", "samples_per_insert_error"):
            require_positive(name, getattr(self, name))
        for name in ("learning_rate_final", "staleness_rate", "max_staleness"):
            require_at_least(name, getattr(self, name), 0)
        require_at_most("n_step", self.n_step, LONGEST_N_STEP)
        for name in ("gamma", "tau", "alpha", "beta_start", "beta_end"):
            require_fraction(name, getattr(self, name))
        require_widths("hidden_sizes", self.hidden_sizes)
        if self.learning_starts > self.replay_capacity:
            rule = f"at most replay_capacity ({self.replay_capacity})"
            raise ValueError(f"learning_starts must be {rule}, got {self.learning_starts}")

    def extra_fields(self, spec: EnvSpec) -> tuple[FieldSpec, ...]:
        """None: a row needs nothing beside observation, action, reward and flags."""
        return ()

    def learning_rate_at(self, updates: int) -> float:
        """Learning rate of the update that `updates` others came before."""
        if self.learning_rate_schedule == "constant":
            return self.learning_rate
        return ramp(self.learning_rate, self.learning_rate_final, self.learning_rate_updates, updates)
