"""Options common to the algorithms that learn from replay, with their ranges."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal, Self

import numpy as np

from asyncrl.acting.schedules import falling, value_at
from asyncrl.algorithms.action_spaces import check_action_space
from asyncrl.algorithms.hyperparameters import Hyperparameters
from asyncrl.config import TrainerConfig
from asyncrl.envs.goals import GoalReward, goals_of, require_goals
from asyncrl.interfaces import LONGEST_N_STEP, EnvSpec, FieldSpec, SequenceShape
from asyncrl.options import Coefficient, Count, Fraction, NotNegative, Positive, Range, Widths
from asyncrl.protocols import UpdateLoopName

SAMPLED_GOALS = 4
"""Relabelled transitions per one with its own goal, as in the experiments of Andrychowicz et al. and in
Stable-Baselines3."""
LEAST_CAPACITY, MOST_CAPACITY = 100_000, 1_000_000
"""Bounds of `replay_capacity` where it is none."""
CAPACITY_BYTES = 2**29
"""Observations, in bytes, up to which `replay_capacity` exceeds `LEAST_CAPACITY` where it is none."""
_SAMPLES = {"sequences": "sequences", "joint": "joint transitions"}
"""What is sampled where it is not single transitions, by update loop."""


@dataclass(frozen=True, kw_only=True)
class OffPolicy(Hyperparameters):
    """Options common to all algorithms that learn from replay; their records extend this one."""

    update_loop: ClassVar[UpdateLoopName] = "replay"
    action_kinds: ClassVar[tuple[type, ...]]
    needs_bounds: ClassVar[bool]

    learning_rate_schedule: Literal["constant", "cooldown", "linear"] = "constant"
    """Schedule of the learning rate: constant, linear to `learning_rate_final`, or cooldown (linear over the last
    fifth)."""

    learning_rate_final: Coefficient = 0.0
    """Final learning rate of the schedules linear and cooldown."""

    learning_rate_updates: Count | None = None
    """Updates from the initial to the final learning rate; none takes as long as the run's steps."""

    batch_size: Count = 64
    """Transitions per update."""

    gamma: Fraction | None = None
    """Discount per environment step. None: 0.99, or 1 - 2 / T where a time limit of T < 200 steps ends the episodes."""

    reward_scale: Positive | None = None
    """Factor on rewards; action values, supports and entropies are in scaled units. None: 1, or where the first rewards
    have a mean size below 0.01 or at least 10, the power of ten that brings it near 1 (1 in a group of learners)."""

    n_step: Annotated[int, Range(at_least=1, at_most=LONGEST_N_STEP)] = 1
    """Steps of the n-step return."""

    prioritized: bool = False
    """Prioritized replay (Schaul et al. 2016); otherwise transitions are sampled uniformly."""

    alpha: Fraction = 0.6
    """Exponent of the priorities; 0 samples uniformly."""

    beta_start: Fraction = 0.4
    """Initial exponent of the importance weights."""

    beta_end: Fraction = 1.0
    """Final exponent of the importance weights; linear over `total_steps`, without which `beta_start` stays."""

    n_sampled_goal: NotNegative | Literal["auto"] = "auto"
    """Transitions with a goal achieved later (HER) per one with its own; auto: 4 if there are goals, else 0."""

    goal_selection_strategy: Literal["future", "final"] = "future"
    """Goal of a relabelled transition: future, one achieved later in its episode, or final, the last of them."""

    goal_reward: GoalReward | None = field(default=None, metadata={"option": False})
    """Function `(achieved, desired, info)` from batches of goals to rewards; none: the environment's compute_reward."""

    replay_capacity: Count | None = None
    """Environment steps of all actors in the replay; none: `total_steps`, but at least 100,000, and at most a million
    or what 512 MiB of observations hold."""

    learning_starts: Count = 1_000
    """Environment steps over all actors before the first update."""

    samples_per_insert: Annotated[float | None, Range(above=0, finite=True)] = 16.0
    """Mean number of times that a step is trained on: `batch_size` makes one update per step; none lets actors and
    learner run freely."""

    samples_per_insert_error: Annotated[float | None, Range(above=0, finite=True)] = None
    """Tolerance of `samples_per_insert` in relaxed runs, in samples; none chooses it automatically."""

    discipline: Literal["relaxed", "lockstep"] = "relaxed"
    """relaxed: actors and learner run freely within the balance; lockstep: reproducible, on the CPU to the bit."""

    lockstep_lag: Count = 4
    """Policy lag of lockstep, in updates."""

    publish_interval: Count | Literal["auto"] = "auto"
    """Updates between publications of weights when relaxed; auto: their cost stays under 5 % of the updates'."""

    max_staleness: NotNegative | None = None
    """Maximum staleness of a sample, in updates; none sets no bound."""

    staleness_correction: Literal["none", "power", "exponential"] = "none"
    """Factor on a sample's loss for its staleness s: 1, (1 + s)^-rate or exp(-rate s)."""

    staleness_rate: Coefficient = 0.5
    """Rate of the staleness correction."""

    tau: Annotated[float, Range(above=0, at_most=1)] = 0.02
    """Polyak coefficient of the target network."""

    hidden_sizes: Widths = (64, 64)
    """Widths of a perceptron's hidden layers; a convolutional network has its own."""

    normalize_observations: bool | None = None
    """Normalise observations by running mean and deviation, clipped to +-10; none: where goals are relabelled, and for
    bytes from 0 to 255 that are no image or grid."""

    adam_eps: Positive = 1e-8
    """Epsilon of Adam."""

    max_grad_norm: Positive | None = None
    """Maximum gradient norm; none disables clipping."""

    matmul_precision: Literal["highest", "medium", "bfloat16"] = "highest"
    """Matrix products: highest (float32), medium (TF32 on a GPU, bfloat16 with AMX), or bfloat16 (autocast)."""

    cuda_graph: bool | None = None
    """On a GPU, run an update as one CUDA graph, which saves kernel launches; none: yes, unless `network` is given."""

    replay_device: Literal["cpu", "auto", "cuda"] = "cpu"
    """Device that gathers batches of images; cuda keeps a copy of the replay there, auto does so if it fits."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.discipline == "lockstep" and self.samples_per_insert is None:
            raise ValueError("samples_per_insert must be a number with discipline='lockstep', got None")
        self._require_device_options()
        if self.update_loop != "replay":
            self._require_one_goal(_SAMPLES[self.update_loop])
        if self.goal_reward is not None and self.n_sampled_goal == 0:
            raise ValueError(
                "n_sampled_goal must be above 0 where goal_reward is given, got 0; goal_reward=None leaves that out"
            )
        for name in ("learning_starts", "batch_size"):
            if self.replay_capacity is not None and (value := getattr(self, name)) > self.replay_capacity:
                raise ValueError(
                    f"{name} must be at most replay_capacity ({self.replay_capacity}), got {value}"
                )

    def _require_one_goal(self, samples: str) -> None:
        """Raise ValueError for options that relabel the goals of `samples`."""
        for name, none, off in (("n_sampled_goal", "0", ("auto", 0)), ("goal_reward", "none", (None,))):
            if (value := getattr(self, name)) not in off:
                raise ValueError(f"{name} must be {none} for {samples}, which have one goal, got {value}")

    def _require_device_options(self) -> None:
        """Raise ValueError if the options of devices and precision contradict others."""
        if self.replay_device == "cuda" and (self.normalize_observations or self.update_loop != "replay"):
            what = _SAMPLES.get(self.update_loop, "normalised observations")
            raise ValueError(f"replay_device must be cpu or auto for {what}, got cuda")
        if self.cuda_graph is not False and self.update_loop != "replay":
            what = _SAMPLES[self.update_loop]
            raise ValueError(
                f"cuda_graph must be off for {self.name}, which samples {what}, got {self.cuda_graph}"
            )
        served = self.inference == "server" and self.discipline == "lockstep"
        if served and self.matmul_precision != "highest":  # which the threads of a process share
            raise ValueError(
                "matmul_precision must be highest where an inference server acts in lockstep, whose products would "
                f"have either precision by chance, got {self.matmul_precision}"
            )

    @property
    def given_reward_scale(self) -> float | None:
        """Factor on rewards, None where the first rewards decide it."""
        return self.reward_scale

    @property
    def sequence_shape(self) -> SequenceShape | None:
        """Shape of the sequences that are sampled; None if single rows are."""
        return None

    @property
    def sample_rows(self) -> int:
        """Rows that must be published after a sample's first row before the sample can be drawn."""
        return self.n_step

    def check(self, spec: EnvSpec) -> None:
        """Refuse spaces that the algorithm does not support. Raises `SpacesDoNotFit` (ASYNC005)."""
        check_action_space(self, spec)

    def for_run(self, config: TrainerConfig, spec: EnvSpec) -> Self:
        """This record with a value for every option that is left to the run, so that its files show what was chosen.

        Where observations hold goals, transitions are relabelled: the rewards of such environments are sparse, and
        without it nothing is learned from them. Real-valued observations are then normalised, as by Plappert et al.
        (2018): a goal is a difference of a few hundredths between places that are all near one point. SAC in FetchReach
        has a success rate of 1.0 after 3,000 steps with it and after 16,000 and more without (docs/defaults-study.md).

        The replay holds all steps of the run up to a million, as many as fit into `CAPACITY_BYTES` of observations, and
        at least `LEAST_CAPACITY`. `gamma` follows from the time limit.

        Raises:
            SpacesDoNotFit: goals are to be relabelled, or `goal_reward` is given, and there are no goals, or no rewards
                for them (ASYNC005). A policy that is loaded needs neither.
        """
        if self.n_sampled_goal not in ("auto", 0) or self.goal_reward is not None:
            require_goals(spec, self.goal_reward)
        goals, count = goals_of(spec), self.n_sampled_goal
        if count == "auto":
            rewarded = self.goal_reward is not None or spec.has_goal_reward
            count = SAMPLED_GOALS if rewarded and goals is not None and self.update_loop == "replay" else 0
        normalized = self.normalize_observations
        if normalized is None:
            real = goals is not None and goals.leaf.kind == "values" and not goals.as_bytes
            scaled = (bool(count) and real) or spec.observation_kind == "bytes"
            normalized = scaled and self.replay_device != "cuda"
        capacity = self.replay_capacity
        if capacity is None:
            step = (
                math.prod(spec.observation_shape)
                * np.dtype(spec.observation_dtype).itemsize
                * spec.num_agents
            )
            wanted = min(config.total_steps or LEAST_CAPACITY, MOST_CAPACITY, CAPACITY_BYTES // max(1, step))
            capacity = max(LEAST_CAPACITY, self.learning_starts, self.batch_size, wanted)
        return replace(
            self,
            gamma=self.gamma_for(spec),
            n_sampled_goal=count,
            normalize_observations=normalized,
            replay_capacity=capacity,
        )

    def extra_fields(self, spec: EnvSpec) -> tuple[FieldSpec, ...]:
        """No fields: a row needs only observation, action, reward and flags."""
        return ()

    def learning_rate_at(self, updates: int, progress: float) -> float:
        """Learning rate of the update after `updates` others, at this progress of the run."""
        if callable(self.learning_rate):
            return value_at(self.learning_rate, progress)
        done = progress if self.learning_rate_updates is None else updates / self.learning_rate_updates
        return falling(self.learning_rate_schedule, self.learning_rate, self.learning_rate_final, done)
