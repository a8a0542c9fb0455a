"""Data types shared between the subpackages of asyncrl.

Specification of an environment (`EnvSpec`), fields and flags of a row (`FieldSpec`), input and output of a learner's
update (`Batch`, `Segment`, `UpdateResult`); an algorithm's protocols are in `protocols.py`. Imports NumPy, never torch.

Axes, used in every docstring of the package:

    E   streams of one actor: its environments, or  S   slots (rows) of a ring
        the agents of its environments              T   rows of a segment
    B   items of a training batch                   N   agents of an environment, 1 unless it has several
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

TERMINATED = 1
"""Flag of a row whose step reached a terminal state: the value of the next state is zero."""
TRUNCATED = 2
"""Flag of a row whose step was cut off from outside (time limit): the value of the next state is bootstrapped."""
RESET = 4
"""Flag of a row whose action was not taken: the step only reset the environment (Gymnasium's NEXT_STEP autoreset), or
the agent waited for the other agents of its environment, having ended before them."""
FROZEN = 8
"""Flag of a row whose agent acted with a past version of the policy (self-play)."""
UNTRAINED = RESET | FROZEN
"""Flags of rows that are never trained on."""


LONGEST_N_STEP = 255
"""Maximum n of an n-step transition; the replay stores the n of each row in one byte."""

Metrics = dict[str, float | None]
"""Numbers by public name, such as `async/policy_lag_mean`; None is unknown. `show/metrics.py` has their table."""


@dataclass(frozen=True)
class Distribution:
    """Distribution of the values since the start of a run; that of no values by default.

    Attributes:
        mean, max: exact.
        p95: lower edge of the bucket that contains the 95th percentile.
        samples, sum: number of values, and their sum.
        edges, counts: `counts[i]` values with `edges[i] <= value < edges[i + 1]`; the last bucket is open. Trailing
            empty buckets are left out.
    """

    mean: float = 0.0
    p95: float = 0.0
    max: int = 0
    samples: int = 0
    sum: int = 0
    edges: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()


@dataclass(frozen=True)
class Bins:
    """Histogram of a moment: `counts[i]` values from `edges[i]` to `edges[i + 1]`, the last edge included.

    Attributes:
        edges: one more than counts; of a discrete number they lie half way between its values.
        counts: number of values.
    """

    edges: tuple[float, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True)
class ValuePairs:
    """Predicted values of some steps and the discounted returns that followed them, in the unit of the rewards."""

    predicted: tuple[float, ...]
    realised: tuple[float, ...]


def environment_steps(flags: NDArray[np.uint8], num_agents: int) -> int:
    """Number of environment steps in the rows of `flags` `[E, T]`.

    A row is a step of an environment unless it is a RESET row of all its agents: then the environment was reset. An
    agent that has ended before the others has RESET rows until then.
    """
    acted = (flags & RESET) == 0
    if num_agents > 1:
        acted = acted.reshape(-1, num_agents, flags.shape[1]).any(axis=1)
    return int(np.count_nonzero(acted))


@dataclass(frozen=True)
class DiscreteAction:
    """Actions `start, start + 1, ..., start + n - 1`; rings and batches hold `action - start` as int64."""

    n: int
    start: int = 0
    space_dtype: str = "int64"
    dtype: ClassVar[str] = "int64"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one action: a scalar."""
        return ()

    def __str__(self) -> str:
        return f"Discrete({self.n}" + (f", start={self.start})" if self.start else ")")


@dataclass(frozen=True)
class MultiDiscreteAction:
    """Vector of discrete actions; rings and batches hold each one from 0, as int64 of shape `[len(nvec)]`.

    Attributes:
        nvec: number of choices of each.
        start: the environment's lowest value of each; empty if all are 0.
        space_shape: shape of the environment's actions; empty if it is `[len(nvec)]`.
        space_dtype: dtype of the environment's actions.
        binary: whether the environment's space is a MultiBinary, which is for texts alone.
    """

    nvec: tuple[int, ...]
    start: tuple[int, ...] = ()
    space_shape: tuple[int, ...] = ()
    space_dtype: str = "int64"
    binary: bool = field(default=False, compare=False)
    dtype: ClassVar[str] = "int64"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one action."""
        return (len(self.nvec),)

    def __str__(self) -> str:
        if self.binary:
            return f"MultiBinary({self.space_shape or len(self.nvec)})"
        start = f", start={list(self.start)}" if self.start else ""
        shape = f" of shape {self.space_shape}" if self.space_shape else ""
        return f"MultiDiscrete({list(self.nvec)}{start}){shape}"


@dataclass(frozen=True)
class BoxAction:
    """Real-valued actions between `low` and `high` (flat tuples in C order, infinite where unbounded); float32.

    The environment is given them in the dtype `space_dtype`, of whole numbers the nearest one.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]
    shape: tuple[int, ...]
    space_dtype: str = "float32"
    dtype: ClassVar[str] = "float32"

    def __str__(self) -> str:
        return f"Box from {min(self.low):g} to {max(self.high):g} of shape {self.shape}"


ActionSpec = DiscreteAction | MultiDiscreteAction | BoxAction

ObservationKind = Literal["image", "grid", "bytes", "values"]
"""What an array of observations is; `envs.observations.kind_of` has the rule. Only bytes of images are scaled by 1/255;
an algorithm normalises other bytes from 0 to 255 (`bytes`) by their statistics, unless an option says otherwise."""


@dataclass(frozen=True)
class Leaf:
    """One array of a structured observation (Dict, Tuple, Discrete, MultiDiscrete), as it is stored in a row.

    Attributes:
        path: keys of a Dict and indices of a Tuple that lead to it; empty if the observation itself is the leaf.
        kind: `"image"` (bytes, scaled to 0..1), `"choices"` (one-hot), `"grid"` or `"values"` (float32).
        shape: shape of the array, before choices become one-hot.
        choices: number of values of each choice; `"choices"` only.
        first: smallest value of each choice; `"choices"` only.
    """

    path: tuple[str, ...]
    kind: Literal["image", "choices", "grid", "values"]
    shape: tuple[int, ...]
    choices: tuple[int, ...] = ()
    first: tuple[int, ...] = ()

    @property
    def values(self) -> int:
        """Number of network inputs."""
        return sum(self.choices) if self.kind == "choices" else math.prod(self.shape)

    @property
    def row_bytes(self) -> int:
        """Number of bytes in an observation that is stored as bytes."""
        return self.values * (1 if self.kind == "image" else 4)


@dataclass(frozen=True)
class Agent:
    """One of the agents of an environment that share a policy.

    Attributes:
        name: its name in the environment.
        values: length of its own observation if `pad_spaces` lengthens it to that of another agent, else None.
        choices: number of its own actions if `pad_spaces` adds actions, which a mask forbids, else None.
        masked: whether the environment gives it action masks.
        index: its one-hot index among the agents of its policy if `agent_id` appends it to the observation, else None.
    """

    name: str
    values: int | None = None
    choices: int | None = None
    masked: bool = False
    index: int | None = None

    def __str__(self) -> str:
        sizes = ((self.values, "values"), (self.choices, "actions"))
        own = " and ".join(f"{size} {what}" for size, what in sizes if size is not None)
        facts = [f"padded from {own}" if own else "not padded", *(["masked"] if self.masked else [])]
        facts += [] if self.index is None else [f"index {self.index}"]
        return f"{self.name} ({', '.join(facts)})"


@dataclass(frozen=True)
class AgentPolicy:
    """One of several policies of an environment's agents; `acting/agent_policies.py` has the design.

    A row of the ring has room for the observation and the action of any policy's agents. If these are vectors of
    different lengths, those of a shorter one are its first values, and zeros follow.

    Attributes:
        name: its name.
        pattern: regular expression that the names of its agents match as a whole.
        members: indices of its agents in `EnvSpec.agents`, ascending.
        spec: of one of its agents, without padding; `spec.agents` are the policy's agents.
        options: the algorithm's options that are its own; the others are those of all policies.
    """

    name: str
    pattern: str
    members: tuple[int, ...]
    spec: EnvSpec
    options: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def streams(self, count: int, num_agents: int) -> NDArray[np.int64]:
        """Streams of this policy's agents among the first `count`, ascending."""
        first = np.arange(0, count, num_agents, dtype=np.int64)
        return (first[:, None] + np.array(self.members, np.int64)).reshape(-1)

    def own_observations(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Observations without padding, a view of `rows` `[..., *obs_shape]`."""
        return _first_values(rows, self.spec.observation_shape)

    def own_actions(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Actions without padding, a view of `rows` `[..., *act_shape]`."""
        return _first_values(rows, self.spec.action.shape)


def policy_returns(returns: Sequence[float], policies: Sequence[AgentPolicy]) -> dict[str, float]:
    """Sum of the `returns` `[N]` of each policy's agents; empty if there are no returns, or no several policies."""
    return {p.name: sum(returns[n] for n in p.members) for p in policies} if len(returns) else {}


def _first_values(rows: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """View of `rows` with as many values along the last axis as `shape` has, which is no longer there than they are."""
    return rows[..., : shape[-1]] if shape and rows.shape[-1] != shape[-1] else rows


@dataclass(frozen=True)
class EnvSpec:
    """Description of an environment for the trainer; picklable, holds no environment and no gymnasium object.

    Attributes:
        name: the environment's id, or the factory's qualified name.
        observation_shape: shape of one observation.
        observation_dtype: NumPy dtype name in which observations are stored (float64 spaces are stored as float32).
        action: action space.
        max_episode_steps: time limit in steps by the environment's registration, or None.
        reward_threshold: return from which the environment counts as solved, or None.
        vector_envs: number of environments of the vector environment that the factory returns (an actor then has
            exactly as many), or None if the factory makes a single environment.
        resets_itself: whether that is in NEXT_STEP mode: it begins the next episodes by itself, and none on request.
        frame_stack: observations that are joined along the first axis of `observation_shape`, oldest first; 1: no such
            axis. An environment's own spec has 1, and rings hold single observations; see `stacked`.
        leaves: leaves of a structured observation, which is stored as one array `[n]`: uint8 if a leaf is an image,
            else float32. One ring column per leaf was rejected: every reader of rings would have to handle leaves, for
            the same bytes.
        observation_kind: what the array is; None in files written before it was recorded, whose bytes are all scaled
            like those of images.
        unread: parts of a structured observation that are text and were left out of `leaves`.
        has_goal_reward: whether the environment has a method `compute_reward`; see `asyncrl.envs.goals`.
        own_limit: time limit in steps by an attribute of the environment after a reset, `max_steps` as in MiniGrid or
            another of `envs.checks.OWN_LIMITS`; None without one. It may be another one in other episodes.
        agents: agents that share the policy, in the order of their streams: stream `e * N + n` is agent n of
            environment e. Empty for an environment of one agent. Observation and action are those of one agent.
        policies: several policies of the agents, which have no agent in common; empty if all share one. Observation and
            action are then those of a row, with room for any agent's, and each policy's own spec is in it.
        state_values: values of the state of an environment of several agents (PettingZoo's `state()`), a flat vector;
            0 if it has none. Policies do not see it; see `algorithms/central_state.py`.
    """

    name: str
    observation_shape: tuple[int, ...]
    observation_dtype: str
    action: ActionSpec
    max_episode_steps: int | None = None
    reward_threshold: float | None = None
    vector_envs: int | None = None
    resets_itself: bool = False
    frame_stack: int = 1
    leaves: tuple[Leaf, ...] = ()
    unread: tuple[str, ...] = ()
    observation_kind: ObservationKind | None = None
    has_goal_reward: bool = False
    own_limit: int | None = None
    agents: tuple[Agent, ...] = ()
    policies: tuple[AgentPolicy, ...] = ()
    state_values: int = 0

    @property
    def time_limit(self) -> int | None:
        """Time limit of an episode in steps as far as it is known: by the registration, or by an attribute."""
        return self.max_episode_steps or self.own_limit

    @property
    def num_agents(self) -> int:
        """N, streams of one environment."""
        return max(1, len(self.agents))

    @property
    def axes(self) -> tuple[int, ...]:
        """Axes in front of what `reset` and `step` return: those of a vector, or of several agents."""
        if self.agents:
            return (len(self.agents),)
        return () if self.vector_envs is None else (self.vector_envs,)

    @property
    def byte_factor(self) -> float:
        """Factor from uint8 observations to network inputs: 1/255 for images, 1 for all other bytes."""
        return 1 / 255 if self.observation_kind in (None, "image") else 1.0

    @property
    def observation_values(self) -> int:
        """Number of network inputs of an observation, or of a frame stack."""
        if not self.leaves:
            return math.prod(self.observation_shape)
        return self.frame_stack * sum(leaf.values for leaf in self.leaves)

    def stacked(self, frames: int) -> EnvSpec:
        """Spec of stacks of `frames` observations, `[frames, *observation_shape]`; itself for 1."""
        assert self.frame_stack == 1, "an environment's observations are stacked once"
        if frames == 1:
            return self
        return replace(self, observation_shape=(frames, *self.observation_shape), frame_stack=frames)


@dataclass(frozen=True)
class SelfPlay:
    """Opponents of some environments of every actor: past versions of the policy.

    Attributes:
        sampling: how an opponent is drawn for an episode; see `actors/self_play.py`.
        environments: number of each actor's environments, the first of them, with opponents.
        interval: updates between two versions that are kept.
        kept: maximum number of kept versions.
    """

    sampling: Literal["newest", "uniform", "prioritized"]
    environments: int
    interval: int
    kept: int


@dataclass(frozen=True)
class FieldSpec:
    """Extra field of a row: name, shape per step and dtype."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(kw_only=True)
class ReplayBatch:
    """What every batch of B items from a replay has, gathered from the rings directly into these arrays.

    The creator of the batch owns the arrays. The next gather overwrites them, so a learner that keeps a batch must
    copy it. All arrays are C-contiguous with axis 0 = B.

    Attributes:
        weight: `[B]` float32, importance weight times staleness correction; multiplies the item's loss.
        ids: `[B]` int64, identifies the item for `update_priorities`; never reused during a run.
        version: `[B]` int64, policy version that acted in the item's first row.
        policy_updates: `[B]` int64, updates that the learner had made when it published that version.
        staleness: `[B]` int64, updates made since then, filled by the learner when the batch is used.
        extras: extra fields of the algorithm in the first row, each `[B, ...]`.
        progress: fraction of the run's `total_steps` done, 0 to 1, for schedules; 0 if the run has no limit.
    """

    weight: NDArray[np.float32]
    ids: NDArray[np.int64]
    version: NDArray[np.int64]
    policy_updates: NDArray[np.int64]
    staleness: NDArray[np.int64]
    extras: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    progress: float = 0.0

    @property
    def size(self) -> int:
        """B, the number of items."""
        return int(self.ids.shape[0])


def _item_arrays(batch_size: int) -> dict[str, Any]:
    """New arrays of a `ReplayBatch` but its extras."""
    counts = {name: np.empty(batch_size, np.int64) for name in ("ids", "version", "policy_updates")}
    return {"weight": np.empty(batch_size, np.float32), "staleness": np.zeros(batch_size, np.int64), **counts}


def _extra_arrays(batch_size: int, extra_fields: tuple[FieldSpec, ...]) -> dict[str, NDArray[Any]]:
    return {f.name: np.empty((batch_size, *f.shape), f.dtype) for f in extra_fields}


@dataclass(kw_only=True)
class Batch(ReplayBatch):
    """Batch of B n-step transitions, see `ReplayBatch`; the first row of an item is step t.

    Attributes:
        obs: `[B, *obs_shape]` in the ring's dtype, at step t.
        action: `[B, *act_shape]`.
        reward: `[B]` float32, discounted sum of k <= n rewards from step t on.
        discount: `[B]` float32, factor of the bootstrap value of `next_obs`: `gamma**k`, or 0 if the k-th step
            terminated the episode.
        next_obs: `[B, *obs_shape]` at step t + k.
        source: `ObservationMirror` that gathers obs and next_obs on the learner's device; None if they are filled.
    """

    obs: NDArray[Any]
    action: NDArray[Any]
    reward: NDArray[np.float32]
    discount: NDArray[np.float32]
    next_obs: NDArray[Any]
    source: Any = None

    @classmethod
    def allocate(cls, batch_size: int, spec: EnvSpec, extra_fields: tuple[FieldSpec, ...] = ()) -> Batch:
        """Create an uninitialised batch of `batch_size` items for this environment."""
        obs = (batch_size, *spec.observation_shape)
        return cls(
            obs=np.empty(obs, spec.observation_dtype),
            action=np.empty((batch_size, *spec.action.shape), spec.action.dtype),
            reward=np.empty(batch_size, np.float32),
            discount=np.empty(batch_size, np.float32),
            next_obs=np.empty(obs, spec.observation_dtype),
            extras=_extra_arrays(batch_size, extra_fields),
            **_item_arrays(batch_size),
        )


@dataclass(kw_only=True)
class JointBatch(Batch):
    """Batch of B joint n-step transitions: those of all N agents of an environment at the same step.

    As `Batch`, with an axis N after axis 0 of `obs`, `action`, `reward`, `discount`, `next_obs` and the extras; the
    other arrays have one value per joint transition. Each agent's return is its own: it ends with the agent's part in
    the episode. The observation of an agent that waits is its last one, and 0 if it takes no part in the episode.

    Attributes:
        trained: `[B, N]` bool, agents that act at step t, at least one of each item. The others wait, having ended
            before: their `reward` and `discount` are 0, and their `next_obs` is `obs`.
        state, next_state: `[B, state_values]` float32, the environment's state at step t and at the step to which the
            return of the agent that goes on longest extends; without columns if the rings hold no state.
    """

    trained: NDArray[np.bool_]
    state: NDArray[np.float32]
    next_state: NDArray[np.float32]

    @classmethod
    def allocate(
        cls,
        batch_size: int,
        spec: EnvSpec,
        extra_fields: tuple[FieldSpec, ...] = (),
        state_values: int = 0,
    ) -> JointBatch:
        """Create an uninitialised batch of `batch_size` joint transitions for this environment."""
        each = Batch.allocate(batch_size * spec.num_agents, spec, extra_fields)
        return cls(
            **_of_agents(each, _OF_TRANSITION, spec.num_agents),
            **_item_arrays(batch_size),
            trained=np.empty((batch_size, spec.num_agents), np.bool_),
            state=np.empty((batch_size, state_values), np.float32),
            next_state=np.empty((batch_size, state_values), np.float32),
        )

    def by_agent(self) -> Batch:
        """Batch of the B N single transitions: views, and copies of what all agents of an item share."""
        return Batch(**_of_single_agents(self, _OF_TRANSITION))


_OF_TRANSITION = ("obs", "action", "reward", "discount", "next_obs")
_OF_SEQUENCE = ("obs", "begins", "action", "reward", "discount", "bootstrap", "trained")
"""Arrays of a joint transition and of a joint sequence that are each agent's; its agents share the others."""


def _of_agents(each: ReplayBatch, own: tuple[str, ...], agents: int) -> dict[str, Any]:
    """Views `[B, N, ...]` of the arrays `own` and the extras of B N items."""
    arrays: dict[str, Any] = {name: getattr(each, name) for name in own}
    views = {name: array.reshape(-1, agents, *array.shape[1:]) for name, array in arrays.items()}
    extras = {name: array.reshape(-1, agents, *array.shape[1:]) for name, array in each.extras.items()}
    return {**views, "extras": extras}


def _of_single_agents(joint: JointBatch | JointSequenceBatch, own: tuple[str, ...]) -> dict[str, Any]:
    """Arrays of the B N items of single agents: views of `own` and the extras, and copies of what agents share."""
    arrays: dict[str, Any] = {name: getattr(joint, name) for name in own}
    views = {name: array.reshape(-1, *array.shape[2:]) for name, array in arrays.items()}
    extras = {name: array.reshape(-1, *array.shape[2:]) for name, array in joint.extras.items()}
    shared = ("weight", "ids", "version", "policy_updates", "staleness")
    copies = {name: np.repeat(getattr(joint, name), joint.trained.shape[1]) for name in shared}
    return {**views, **copies, "extras": extras, "progress": joint.progress}


@dataclass
class Segment:
    """Segment of T consecutive rows of the E streams of one actor, the training data of on-policy algorithms.

    The large arrays are views of the actor's ring and must not be written. They are copies if the rows wrap around the
    ring's end, if the segment was kept for a second use, and for the observations of frame stacks. They are valid until
    the caller that took the segment from the queue releases it. `weight` and `staleness` belong to the segment.

    Ends of trajectories: a TERMINATED or TRUNCATED row is followed by a RESET row, whose observation is the true final
    one. After a restart of the actor the first row is a RESET row too, so a row that carries neither flag and is
    followed by a RESET row was truncated by the death of the actor.

    Attributes:
        ring: index of the actor's ring.
        first: position of the first row; the segment is `[first, first + T)`.
        obs: `[E, T, *obs_shape]` in the ring's dtype.
        last_obs: `[E, *obs_shape]`, observation after the last row, used to bootstrap.
        action: `[E, T, *act_shape]` in storage form.
        reward: `[E, T]` float32.
        flags: `[E, T]` uint8, `TERMINATED | TRUNCATED | RESET | FROZEN`; rows with one of `UNTRAINED` are never
            trained on.
        version: `[T]` int64, policy version that acted in each row.
        policy_updates: `[T]` int64, updates that the learner had made when it published that version.
        extras: extra fields of the algorithm, each `[E, T, ...]`.
        weight: `[T]` float32, staleness correction of each row; 1 without a correction.
        staleness: `[T]` int64, publications since `version`, filled when the segment is used.
        fresh: whether the segment is used for the first time; running statistics use fresh segments only.
        num_agents: N; each N neighbouring streams are the agents of one environment.
        state: `[E / N, T, state_values]` float32, the environments' state in each row; None if the ring holds none.
        last_state: `[E / N, state_values]`, the state after the last row.
    """

    ring: int
    first: int
    obs: NDArray[Any]
    last_obs: NDArray[Any]
    action: NDArray[Any]
    reward: NDArray[np.float32]
    flags: NDArray[np.uint8]
    version: NDArray[np.int64]
    policy_updates: NDArray[np.int64]
    extras: Mapping[str, NDArray[Any]]
    weight: NDArray[np.float32]
    staleness: NDArray[np.int64]
    fresh: bool = True
    num_agents: int = 1
    state: NDArray[np.float32] | None = None
    last_state: NDArray[np.float32] | None = None

    @property
    def num_envs(self) -> int:
        """E."""
        return int(self.reward.shape[0])

    @property
    def num_rows(self) -> int:
        """T."""
        return int(self.reward.shape[1])

    @property
    def steps(self) -> int:
        """Number of environment steps; see `environment_steps`."""
        return environment_steps(self.flags, self.num_agents)


@dataclass(frozen=True)
class UpdateResult:
    """Result of one update.

    Attributes:
        priorities: `[B]` float32 host array of new priorities (absolute TD errors, before the exponent alpha), in the
            batch's order, or None if the algorithm has none. The next update may overwrite it.
    """

    priorities: NDArray[np.float32] | None = None


@dataclass(frozen=True)
class SequenceShape:
    """Shape of a sequence, and distance between the starts of sequences.

    Kapturowski et al., "Recurrent Experience Replay in Distributed Reinforcement Learning" (R2D2), ICLR 2019, section
    2.3.

    A sequence is U consecutive rows of one stream:

        row      0 ........ burn_in ......... burn_in + length ..... burn_in + length - 1 + n_step
                 |  burn-in  |  T = length rows, trained  |  used to bootstrap only |

    The network starts from the recurrent state that the actor stored in row 0 and runs over all U rows. A sequence
    continues across the ends of episodes, and the state is reset at each row that begins an episode. So every row is
    used and none is padding. (The paper ends sequences with the episode; with episodes shorter than a sequence most of
    a batch would be padding.)

    Attributes:
        burn_in: rows before the trained ones, over which the recurrent state is recomputed; at least 0.
        length: T, trained rows, at least 1.
        period: rows of a stream from the start of one sequence to that of the next, at least 1. With half the length,
            as in the paper, every row is trained in two sequences. With a period of 1 every row would be in `length`
            sequences, and after an update the priorities of all but one would be out of date.
        n_step: steps of the n-step return, from 1 to 255.
        gamma: discount per step, from 0 to 1.

    Raises:
        ValueError: a number is out of its range.
    """

    burn_in: int
    length: int
    period: int
    n_step: int
    gamma: float

    def __post_init__(self) -> None:
        for name, least in (("burn_in", 0), ("length", 1), ("period", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if not 1 <= self.n_step <= LONGEST_N_STEP:
            raise ValueError(f"n_step must be between 1 and {LONGEST_N_STEP}, got {self.n_step}")
        if not 0.0 <= self.gamma <= 1.0:
            raise ValueError(f"gamma must be between 0 and 1, got {self.gamma}")

    @property
    def rows(self) -> int:
        """U, number of rows of a sequence."""
        return self.burn_in + self.length + self.n_step

    @property
    def ahead(self) -> int:
        """Number of rows that must be published after the first before a sequence can be sampled."""
        return self.rows - 1


@dataclass(kw_only=True)
class SequenceBatch(ReplayBatch):
    """Batch of B sequences, see `ReplayBatch`; U and T are those of `SequenceShape`.

    The extras, of row 0, are the recurrent state.

    Attributes:
        obs: `[B, U, *obs_shape]` in the ring's dtype.
        begins: `[B, U]` bool, whether an episode begins at the row, or the actor was restarted there; the recurrent
            state is reset before such a row. Always False at row 0, which starts from the stored state.
        action: `[B, T, *act_shape]` of the trained rows.
        reward: `[B, T]` float32, n-step return of the trained rows, cut off at the end of an episode or of the actor's
            life.
        discount: `[B, T]` float32, `gamma**k`, or 0 if the k-th step terminated the episode.
        bootstrap: `[B, T]` int64, row in 0 .. U - 1 whose value is multiplied by `discount`.
        trained: `[B, T]` bool, False for RESET rows, whose action was not taken, and for the last row of an actor's
            life, which has no successor. There `reward` and `discount` are 0 and `bootstrap` is the row itself.
    """

    obs: NDArray[Any]
    begins: NDArray[np.bool_]
    action: NDArray[Any]
    reward: NDArray[np.float32]
    discount: NDArray[np.float32]
    bootstrap: NDArray[np.int64]
    trained: NDArray[np.bool_]

    @classmethod
    def allocate(
        cls, batch_size: int, shape: SequenceShape, spec: EnvSpec, extra_fields: tuple[FieldSpec, ...] = ()
    ) -> SequenceBatch:
        """Create an uninitialised batch of `batch_size` sequences for this environment."""
        trained = (batch_size, shape.length)
        return cls(
            obs=np.empty((batch_size, shape.rows, *spec.observation_shape), spec.observation_dtype),
            begins=np.empty((batch_size, shape.rows), np.bool_),
            action=np.empty((*trained, *spec.action.shape), spec.action.dtype),
            reward=np.empty(trained, np.float32),
            discount=np.empty(trained, np.float32),
            bootstrap=np.empty(trained, np.int64),
            trained=np.empty(trained, np.bool_),
            extras=_extra_arrays(batch_size, extra_fields),
            **_item_arrays(batch_size),
        )


@dataclass(kw_only=True)
class JointSequenceBatch(SequenceBatch):
    """Batch of B joint sequences: those of all N agents of an environment over the same rows.

    As `SequenceBatch`, with an axis N after axis 0 of `obs`, `begins`, `action`, `reward`, `discount`, `bootstrap`,
    `trained` and the extras; the other arrays have one value per joint sequence. Returns, and the rows that they
    bootstrap from, are each agent's own: they end with the agent's part in the episode. At least one agent acts in one
    trained row of each item; an agent that waits in a row, having ended before, is not trained there.

    Attributes:
        state: `[B, U, state_values]` float32, the environment's state in each row; without columns if the rings hold
            none.
    """

    state: NDArray[np.float32]

    @classmethod
    def allocate(
        cls,
        batch_size: int,
        shape: SequenceShape,
        spec: EnvSpec,
        extra_fields: tuple[FieldSpec, ...] = (),
        state_values: int = 0,
    ) -> JointSequenceBatch:
        """Create an uninitialised batch of `batch_size` joint sequences for this environment."""
        each = SequenceBatch.allocate(batch_size * spec.num_agents, shape, spec, extra_fields)
        return cls(
            **_of_agents(each, _OF_SEQUENCE, spec.num_agents),
            **_item_arrays(batch_size),
            state=np.empty((batch_size, shape.rows, state_values), np.float32),
        )

    def by_agent(self) -> SequenceBatch:
        """Batch of the B N sequences: views, and copies of what all agents of an item share."""
        return SequenceBatch(**_of_single_agents(self, _OF_SEQUENCE))
