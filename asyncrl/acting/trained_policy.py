"""A policy with fixed weights and `predict`. NumPy and numba; torch only for networks of the user's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.acting.agent_policies import AgentPolicies
from asyncrl.acting.frames import next_stacks
from asyncrl.acting.policies import float32_bounds
from asyncrl.acting.recurrent import memory_of, next_states
from asyncrl.envs.observations import AgentView, agent_views, rows_of
from asyncrl.interfaces import AgentPolicy, BoxAction, DiscreteAction, EnvSpec
from asyncrl.protocols import Policy

_STREAMS = 2**53
"""Streams of which the rows of a call of `predict` are the first: on a ladder of exploration rates all have its first
rate, whatever their number, for a rate that depended on a row's place in a batch would surprise its caller."""


@dataclass
class TrainedPolicy:
    """A policy with fixed weights and a `predict` method like that of Stable-Baselines3's models.

    Attributes:
        spec: the environment it was trained for.
        policy: the policy that acts; `weights` are loaded into it.
        weights: flat float32 `[policy.weight_count]`; not copied, not to be written afterwards.
        rng: random generator for `deterministic=False`; set it for draws of a seed.
        keeps_exploring: whether `deterministic=False` goes on from call to call, like the streams of an actor: with
            correlated noise, and random actions that are repeated. False begins anew at every call, whose
            observations may be of any episodes.
    """

    spec: EnvSpec
    policy: Policy
    weights: NDArray[np.float32]
    rng: np.random.Generator = field(default_factory=np.random.default_rng)
    keeps_exploring: bool = False

    def __post_init__(self) -> None:
        self._streams = 0
        self.policy.load_weights(self.weights)

    @property
    def recurrent(self) -> bool:
        """Whether the policy has a recurrent state, which `predict` takes and returns."""
        return memory_of(self.policy) is not None

    @cached_property
    def _views(self) -> dict[str, AgentView]:
        return agent_views(self.spec.agents, self.spec.leaves)

    def predict(
        self,
        obs: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = True,
    ) -> tuple[Any, Any]:
        """Return actions in the environment's form (`start` added, boxes clipped), and the state for the next call.

        The caller passes the state of a recurrent policy, as in sb3-contrib:

            action, state = policy.predict(obs, state=state, episode_start=done)     # state None and done True at first

        A policy with `frame_stack` k that is not recurrent takes stacks of observations, as returned by `make_env()`
        and gymnasium's `FrameStackObservation`; or, called as above, single ones, with the stacks as its state.

        For several agents all arguments and results may be dicts by agent, of those that act:

            actions, _ = policy.predict(observations)       # as the environment of `make_env()` gives and takes them

        Of several policies each acts for its own agents. Masks of `info["action_mask"]` are given as
        `{agent: {"observation": ..., "action_mask": ...}}`.

        Args:
            obs: one observation `[*obs_shape]` or a batch `[B, *obs_shape]`; of a Dict or Tuple space as the
                environment returns it; a batch is one of arrays `[B, ...]`, or a list of such. With a frame stack
                `[k, *obs_shape]` or `[B, k, *obs_shape]`; if the policy is not recurrent and `state` or
                `episode_start` is given, without the axis of k.
            state: state from the last call, None where all episodes begin. Without a frame stack a policy that is not
                recurrent ignores it.
            episode_start: `[B]` or one bool, whether `obs` is the first of an episode; ignored likewise.
            deterministic: the greedy action; if False, a draw with the generator `rng`, independent of those of other
                calls and rows. Of a stochastic policy (A2C, PPO, IMPALA, SAC and its kin) it is one of its
                distribution; of the DQN family a random action with probability `exploration_final`, else the greedy
                one, with new weight noise if `noisy`; of DDPG and TD3 the action with noise of scale
                `exploration_scale`, where Stable-Baselines3 adds none. `random_steps` are over, the first stream's
                rate counts, and correlations and repetitions over steps, which need an order of calls, are left out.

        Returns:
            Actions of the environment's shape, with an axis B in front for a batch, and the state: `[state_size]` or
            `[B, state_size]` of a recurrent policy, the stacks if single observations were given to a frame stack,
            else None.

        Raises:
            ValueError: if `obs`, `state` or `episode_start` has another shape, or a value of `obs` or `state` is no
                number, NaN or infinite.
        """
        if isinstance(obs, tuple) and len(obs) == 2 and isinstance(obs[1], Mapping) and not self._has_pairs:
            raise ValueError(
                "obs must be an observation, got a pair as env.reset() returns it: obs, info = env.reset()"
            )
        if self.spec.policies:
            return self._predict_by_policy(obs, state, episode_start, deterministic)
        if self._by_agent(obs):
            return self._predict_agents(obs, state, episode_start, deterministic)
        batch, single = self._batch(obs, state, episode_start)
        memory = memory_of(self.policy)
        if memory is None and not deterministic:
            self._assign_streams(batch.shape[0])
        if not len(batch):
            action = np.empty((0, *self.spec.action.shape), self.spec.action.dtype)
        elif deterministic:
            action = self.policy.greedy(batch)
        else:
            action, _ = self.policy.act(batch, self.rng, np.iinfo(np.int64).max)
        after = memory.state if memory is not None else None
        if self._keeps_stacks(state, episode_start):
            after = batch
        action = self._environment_form(action)
        return (action[0], None if after is None else after[0]) if single else (action, after)

    @cached_property
    def _has_pairs(self) -> bool:
        """Whether an observation may be a pair whose second part is a Dict, as `env.reset()` returns one."""
        return any(leaf.path[:1] == ("1",) and len(leaf.path) > 1 for leaf in self.spec.leaves)

    @cached_property
    def by_policy(self) -> dict[str, TrainedPolicy]:
        """Each of several policies by its name, with its part of the weights; empty if there is one."""
        if not isinstance(self.policy, AgentPolicies):
            return {}
        parts = zip(self.spec.policies, self.policy.weights_of(self.weights), self.policy.parts, strict=True)
        return {own.name: self._part(own, part, weights) for own, weights, part in parts}

    def _part(self, own: AgentPolicy, policy: Policy, weights: NDArray[np.float32]) -> TrainedPolicy:
        """One of several policies."""
        return TrainedPolicy(own.spec, policy, weights, self.rng)

    def _predict_by_policy(
        self, obs: Any, state: Any, episode_start: Any, deterministic: bool
    ) -> tuple[Any, Any]:
        """`predict` of several policies: of observations by agent, or of rows of all agents in order."""
        if not self._by_agent(obs):
            self._refuse_other_keys(obs)
            return self._predict_rows(obs, state, episode_start, deterministic)
        actions: dict[Any, Any] = {}
        after: dict[Any, Any] = {}
        for part, own in self.of_agents(obs):
            acted, states = part.predict(own, state, episode_start, deterministic)
            actions |= acted
            after |= states or {}
        return {key: actions[key] for key in obs}, {key: after[key] for key in obs} if after else None

    def _own_part(self, name: str) -> TrainedPolicy:
        """One of several policies, which draws as this one does."""
        part = self.by_policy[name]
        part.rng, part.keeps_exploring = self.rng, self.keeps_exploring
        return part

    def of_agents(self, obs: Mapping[Any, Any]) -> Iterator[tuple[TrainedPolicy, dict[Any, Any]]]:
        """Yield each of several policies, and the observations of its agents, if there are any."""
        for policy in self.spec.policies:
            names = {agent.name for agent in policy.spec.agents}
            if own := {key: seen for key, seen in obs.items() if str(key) in names}:
                yield self._own_part(policy.name), own

    def _predict_rows(
        self, obs: Any, state: Any, episode_start: Any, deterministic: bool
    ) -> tuple[list[Any], NDArray[Any] | None]:
        """`predict` for rows `[N, ...]` of all agents, as `AgentsEnv` returns them; actions are a list."""
        by_agent = "obs must be given by agent where agents have several policies: predict({agent: obs}), got"
        try:
            rows = np.asarray(obs)
        except ValueError:  # NumPy's words do not say whose rows
            raise ValueError(f"{by_agent} rows of different shapes") from None
        if rows.shape[:1] != (self.spec.num_agents,) or rows.ndim == 1:
            raise ValueError(f"{by_agent} an array of shape {rows.shape}")
        actions: list[Any] = [None] * len(rows)
        after: list[Any] = [None] * len(rows)
        begins = _begins(episode_start, len(rows)) if episode_start is not None else None
        for policy in self.spec.policies:
            own = list(policy.members)
            before = None if state is None else np.asarray(state)[own]
            starts = None if begins is None else begins[own]
            seen = policy.own_observations(rows)[own]
            acted, states = self._own_part(policy.name).predict(seen, before, starts, deterministic)
            for place, n in enumerate(own):
                actions[n], after[n] = acted[place], None if states is None else states[place]
        return actions, None if after[0] is None else np.stack(after)

    def _by_agent(self, obs: Any) -> bool:
        """Whether these are observations by agent."""
        return isinstance(obs, Mapping) and bool(obs) and {str(key) for key in obs} <= self._names

    @cached_property
    def _names(self) -> set[str]:
        """Names of the agents."""
        return {agent.name for agent in self.spec.agents}

    def _assign_streams(self, rows: int) -> None:
        """Begin exploration in `rows` streams, unless it goes on in as many or there are none."""
        if rows and (not self.keeps_exploring or rows != self._streams):
            self.policy.assign_streams(0, rows, _STREAMS)
            self._streams = rows

    def _keeps_stacks(self, state: Any, episode_start: Any) -> bool:
        """Whether the caller gives single observations, and their stacks as the state."""
        stacked = self.policy.frame_stack > 1 and memory_of(self.policy) is None
        return stacked and (state is not None or episode_start is not None)

    def _batch(self, obs: Any, state: Any, episode_start: Any) -> tuple[NDArray[Any], bool]:
        """Observations `[B, *obs_shape]` as the policy sees them, its recurrent state set, and whether one was given.

        The arguments and the error are those of `predict`; not by agent.
        """
        self._refuse_other_keys(obs)
        obs = rows_of(obs, self.spec) if self.spec.leaves else _numbers(obs)
        frames, shape, memory = self.policy.frame_stack, self.spec.observation_shape, memory_of(self.policy)
        stacks = self._keeps_stacks(state, episode_start)
        if frames > 1 and not stacks:
            if obs.shape == shape:
                raise self._no_stack("obs")
            shape = (frames, *shape)
        single = obs.shape == shape
        if not single and obs.shape[1:] != shape:
            wanted = ", ".join(map(str, ("B", *shape)))
            raise ValueError(f"obs must have shape {shape} or ({wanted}), got {obs.shape}")
        batch = obs[None] if single else obs
        _require_finite("obs", batch)
        if state is not None and (memory is not None or stacks):
            state = _numbers(state, "state")
            _require_finite("state", state)
        if memory is not None:
            self._assign_streams(batch.shape[0])
            memory.forget(batch.shape[0])
            memory.state = next_states(memory.state, state, _begins(episode_start, batch.shape[0]))
        if stacks:
            batch = next_stacks(state, batch, _begins(episode_start, batch.shape[0]), frames)
        return batch, single

    def _refuse_other_keys(self, obs: Any) -> None:
        """Raise ValueError for a dict that is neither by agent nor an observation."""
        if not isinstance(obs, Mapping):  # nearly always, once for every action
            return
        parts = {leaf.path[0] for leaf in self.spec.leaves if leaf.path}
        if parts & {str(key) for key in obs}:
            return
        got = f"a dict of {', '.join(map(str, obs))}" if obs else "an empty dict"
        if self.spec.agents:
            raise ValueError(f"obs must be given by agent, of {', '.join(sorted(self._names))}, got {got}")
        if not parts:
            raise ValueError(f"obs must be an array of shape {self.spec.observation_shape}, got {got}")

    def _predict_agents(
        self, obs: Mapping[Any, Any], state: Any, episode_start: Any, deterministic: bool
    ) -> tuple[dict[Any, Any], dict[Any, Any] | None]:
        """`predict` for observations by agent. An agent without a state begins an episode."""
        actions, after = self.predict(*self._agents(obs, state, episode_start), deterministic)
        by_agent = dict(zip(obs, actions, strict=True))
        return by_agent, None if after is None else dict(zip(obs, after, strict=True))

    def _agents(
        self, obs: Mapping[Any, Any], state: Any, episode_start: Any
    ) -> tuple[NDArray[Any], NDArray[Any] | None, Any]:
        """Observations, states and episode starts by agent as arrays with an axis of the agents in front."""
        seen = [self._views[str(key)](own) for key, own in obs.items()]
        each = [rows_of(one, self.spec) if self.spec.leaves else np.asarray(one) for one in seen]
        if len({one.shape for one in each}) > 1:
            shapes = ", ".join(f"{key} {one.shape}" for key, one in zip(obs, each, strict=True))
            raise ValueError(f"obs of all agents must have one shape, got {shapes}")
        batch = np.stack(each)
        stacked = self.policy.frame_stack > 1 and not self._keeps_stacks(state, episode_start)
        if stacked and batch.shape[1:] == self.spec.observation_shape:
            raise self._no_stack("obs of each agent")
        if isinstance(episode_start, Mapping):
            episode_start = [bool(begins) for begins in of_each("episode_start", episode_start, obs)]
        rows = None
        if state is not None:
            if not isinstance(state, Mapping):
                raise ValueError(f"state must be given by agent, as obs is, got {type(state).__name__}")
            known = [state[key] for key in obs if key in state]
            episode_start = _begins(episode_start, len(obs)) | [key not in state for key in obs]
            rows = np.stack([state.get(key, known[0]) for key in obs]) if known else None
        return batch, rows, episode_start

    def _no_stack(self, what: str) -> ValueError:
        """Error for a single observation where the policy sees a stack."""
        shape, frames = self.spec.observation_shape, self.policy.frame_stack
        other = ", or state and episode_start: predict(obs, state=state, episode_start=done)"
        return ValueError(
            f"{what} must have shape {(frames, *shape)}, for the policy sees {frames} frames, got {shape}; "
            f"give stacks{other if memory_of(self.policy) is None else ''}"
        )

    def _environment_form(self, action: NDArray[Any]) -> NDArray[Any]:
        kind = self.spec.action
        if isinstance(kind, BoxAction):
            low, high = float32_bounds(kind)
            moved: NDArray[Any] = np.clip(action, low, high)
            if np.dtype(kind.space_dtype).kind in "iu":
                np.rint(moved, out=moved)
        elif isinstance(kind, DiscreteAction):
            moved = action + kind.start
        else:
            moved = action + np.array(kind.start, np.int64) if kind.start else action
            moved = moved.reshape(-1, *kind.space_shape) if kind.space_shape else moved
        return moved.astype(kind.space_dtype, copy=False)


def of_each(name: str, values: Any, obs: Mapping[Any, Any]) -> list[Any]:
    """Value of an argument for each agent of `obs`, in their order.

    Raises:
        ValueError: the argument is not given by agent, or an agent of `obs` has none.
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"{name} must be given by agent, as obs is, got {type(values).__name__}")
    if missing := [str(key) for key in obs if key not in values]:
        raise ValueError(f"{name} must have all agents of obs, got none for {', '.join(missing)}")
    return [values[key] for key in obs]


def _begins(episode_start: Any, rows: int) -> NDArray[np.bool_]:
    """`[rows]`, whether an episode begins, from the argument of `predict`. Raises ValueError for another shape."""
    begins = np.asarray(False if episode_start is None else episode_start, np.bool_)
    if begins.shape not in ((), (1,), (rows,)):
        raise ValueError(f"episode_start must have shape ({rows},) or be one bool, got shape {begins.shape}")
    return np.broadcast_to(begins, rows)


def _numbers(values: Any, name: str = "obs") -> NDArray[Any]:
    """`values` as an array. Raises ValueError for rows of different shapes and for what is no real number."""
    try:
        array = np.asarray(values)
    except ValueError:  # NumPy's words do not say whose rows
        raise ValueError(f"the rows of {name} must have one shape, got rows of different shapes") from None
    if array.dtype.kind in "US":
        raise ValueError(f"{name} must hold numbers, got text: {str(values)[:40]!r}")
    if array.dtype.kind not in "fiub":
        raise ValueError(f"{name} must hold real numbers, got {array.dtype}: {str(values)[:40]!r}")
    return array


def _require_finite(name: str, array: NDArray[Any]) -> None:
    """Raise ValueError if a value is NaN or infinite."""
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite, got {array[~np.isfinite(array)][0]} among its values")
