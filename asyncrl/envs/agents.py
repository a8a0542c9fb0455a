"""Environments of several agents as arrays with one row per agent; the only module that uses PettingZoo.

    PettingZoo's parallel API        taken as it is
    PettingZoo's AEC API             converted by PettingZoo, where the agents take turns in a fixed order and nothing
                                     changes before the last one has acted
    gymnasium with Tuple spaces      one part for each agent and a reward for each (LBF, RWARE): `TupleAgents`

Agents that share a policy have one form of observation and one action space (`SharedForm`): all agents, or those of
each of several policies (`AgentsByPolicy`). `pad_spaces` makes them equal, `agent_id` tells the policy which of its
agents it acts for. Both change an agent's own observation in `AgentView`, which a saved policy uses as well.

An agent may end before the others, or take no part in an episode at all: it *waits* until the environment is reset.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from gymnasium import Env, spaces
from numpy.typing import NDArray

from asyncrl.envs import checks as env_checks
from asyncrl.envs.observations import AGENT_KEY, MASK_KEY, OWN_KEY, agent_views, kind_of, stored_as
from asyncrl.envs.packing import STRUCTURED, Packing, leaves_of, mask_size
from asyncrl.errors import (
    ConfigurationError,
    EnvironmentNotBuilt,
    NonFiniteStep,
    ObservationOffSpace,
    ParallelAPIBroken,
    SpacesDoNotFit,
    error_text,
)
from asyncrl.interfaces import RESET, TERMINATED, TRUNCATED, Agent, Leaf


class _Choice:
    """Wrapper that has no effect but that `agents_of` finds it, with its arguments."""

    def __init__(self, env: Any, **arguments: Any) -> None:
        self.env, self.arguments = env, arguments


class AgentId(_Choice):
    """The option `agent_id`: the policy also sees which agent it acts for."""


class PadSpaces(_Choice):
    """The option `pad_spaces`: shorter observations and smaller numbers of actions are padded to the largest."""


class ByPolicy(_Choice):
    """The option `policies`: argument `patterns`, the pattern of each policy's agents by its name."""


_MOST_EPISODES = 8
"""Most episodes that are begun to find out which agents have masks in their infos."""
_OPTIONS: dict[type[_Choice], str] = {AgentId: "agent_id", PadSpaces: "pad_spaces", ByPolicy: "policies"}


def agents_of(name: str, env: Any) -> AgentsEnv | None:
    """Return the environment of several agents that `env` is; None if it has one agent.

    Raises:
        ConfigurationError: `agent_id`, `pad_spaces` or `policies` is set for an environment of one agent, or the
            patterns of `policies` do not divide the agents (ASYNC017).
        EnvironmentNotBuilt: its agents take turns and cannot act at once (ASYNC004).
        SpacesDoNotFit: its agents have different spaces (ASYNC005).
    """
    chosen: dict[type[_Choice], dict[str, Any]] = {}
    while isinstance(env, _Choice):
        chosen[type(env)] = env.arguments
        env = env.env
    parallel = _parallel(name, env)
    if parallel is None:
        if chosen:
            options = " and ".join(sorted(_OPTIONS[choice] for choice in chosen))
            rule = "none" if ByPolicy in chosen else "false"
            raise ConfigurationError(
                f"{options} must be {rule} for {name}, which has one agent", fix=f"leave {options} out"
            )
        return None
    arguments: dict[str, bool] = {"agent_id": AgentId in chosen, "pad_spaces": PadSpaces in chosen}
    if ByPolicy in chosen:
        return AgentsByPolicy(name, parallel, chosen[ByPolicy]["patterns"], **arguments)
    return AgentsEnv(name, parallel, **arguments)


def _parallel(name: str, env: Any) -> Any:
    """Return an environment with PettingZoo's parallel API; None for one of one agent."""
    if isinstance(env, Env):
        parts = [
            getattr(env, f"{what}_space").spaces for what in ("observation", "action") if _is_tuple(env, what)
        ]
        return TupleAgents(env) if len(parts) == 2 and len(parts[0]) == len(parts[1]) > 1 else None
    if not hasattr(env, "possible_agents"):
        return None
    if not hasattr(env, "agent_iter"):
        return env
    if not env.metadata.get("is_parallelizable", False):
        raise EnvironmentNotBuilt(
            f"The agents of {name} take turns, and a run needs environments whose agents act at once.",
            facts={"metadata['is_parallelizable']": env.metadata.get("is_parallelizable")},
            fix="give an environment with PettingZoo's parallel API; where nothing changes before the last agent of a "
            "round has acted, set metadata['is_parallelizable'] = True in its class",
        )
    from pettingzoo.utils.conversions import aec_to_parallel

    return aec_to_parallel(env)


def _is_tuple(env: Any, what: str) -> bool:
    return isinstance(getattr(env, f"{what}_space"), spaces.Tuple)


def _is_small_int(value: Any) -> bool:
    """Whether it is an int, not a bool, that a float64 holds exactly."""
    return type(value) is int and abs(value) <= 1 << 53


class TupleAgents:
    """PettingZoo's parallel API for a gymnasium environment whose spaces are Tuples with a part for each agent.

    All agents end together: when each of them is terminated or truncated, by the environment's flag or by its own.

    Args:
        env: the environment; its rewards are a sequence with one number per agent.
    """

    def __init__(self, env: Env[Any, Any]) -> None:
        self.env, self.metadata, self.render_mode, self.spec = env, env.metadata, env.render_mode, env.spec
        observed, acted = env.observation_space, env.action_space
        assert isinstance(observed, spaces.Tuple) and isinstance(acted, spaces.Tuple)
        self.possible_agents = [f"agent_{n}" for n in range(len(acted.spaces))]
        self._observed = dict(zip(self.possible_agents, observed.spaces, strict=True))
        self._acted = dict(zip(self.possible_agents, acted.spaces, strict=True))
        self.agents: list[str] = []
        # Parts of a step's result that nobody changes.
        self._no_ends = dict.fromkeys(self.possible_agents, False)
        self._no_infos: dict[str, dict[str, Any]] = {agent: {} for agent in self.possible_agents}

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        """Observation space of an agent."""
        return self._observed[agent]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        """Action space of an agent."""
        return self._acted[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Begin an episode; returns observations and infos by agent."""
        observations, _ = self.env.reset(seed=seed, options=options)
        self.agents = list(self.possible_agents)
        return self._by_agent("observation", observations), {agent: {} for agent in self.agents}

    def step(self, actions: Mapping[str, Any]) -> Any:
        """Let all agents act; returns observations, rewards, terminations, truncations and infos by agent."""
        observations, rewards, terminated, truncated, info = self.env.step(
            tuple([actions[agent] for agent in self.possible_agents])
        )
        terminations, truncations, infos = self._no_ends, self._no_ends, self._no_infos
        if not (terminated is False and truncated is False):  # nearly always they are
            ends = self._flags("termination", terminated), self._flags("truncation", truncated)
            if all(any(flags[agent] for flags in ends) for agent in self.possible_agents):
                self.agents, (terminations, truncations) = [], ends
                infos = dict.fromkeys(self.possible_agents, info)  # of all of them
        return (
            self._by_agent("observation", observations),
            self._by_agent("reward", rewards),
            terminations,
            truncations,
            infos,
        )

    def render(self) -> Any:
        """See `gymnasium.Env.render`."""
        return self.env.render()

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _flags(self, what: str, flags: Any) -> dict[str, bool]:
        """An environment's flag, or that of each agent, by agent."""
        if np.ndim(flags) == 0:
            return dict.fromkeys(self.possible_agents, bool(flags))
        return {agent: bool(flag) for agent, flag in self._by_agent(what, flags).items()}

    def _by_agent(self, what: str, values: Any) -> dict[str, Any]:
        several = type(values) in (tuple, list) or np.ndim(values) > 0
        if not several or len(values) != len(self.possible_agents):
            raise ParallelAPIBroken(
                f"An environment of {len(self.possible_agents)} agents returned {what} {values!r}.",
                facts={"environment": type(self.env.unwrapped).__qualname__},
                fix=f"return a tuple with one {what} per agent, as its Tuple spaces say",
            )
        return dict(zip(self.possible_agents, values, strict=True))


class AgentsEnv:
    """Environment of N agents with one policy. The arrays that `reset` and `step` return have axis 0 = N.

    Args:
        name: name in messages.
        parallel: environment with PettingZoo's parallel API.
        agent_id, pad_spaces: see `TrainerConfig`.

    Attributes:
        parallel: as given.
        agents_spec: the agents, in the order of the rows; for `checks.spec_of`.
        state_values: values of the environment's state; 0 if it has none that is an array of numbers.
        observation_space, action_space: of one agent, as the policy sees them.
        packed_leaves, unread: of the rows of structured observations; not set if observations are arrays.
        obs: `[N, *obs_shape]`, newest observation of every agent, of a waiting agent its last one (0 if it has taken no
            part in the episode).
        flags: `[N]` uint8, flags of the last step: RESET for agents that waited.
        live: `[N]` bool, agents that act in the next step; none of them once the episode is over.
        over: whether no agent is live.
        successes: `[N]` int8, whether each agent ended the episode in success, by the `info` of its last step.
        flagged: whether a flag is set.

    Raises:
        SpacesDoNotFit: the agents have different spaces (ASYNC005).
    """

    def __init__(self, name: str, parallel: Any, *, agent_id: bool = False, pad_spaces: bool = False) -> None:
        self._name, self.parallel = name, parallel
        self._keys = list(parallel.possible_agents)
        self._index = {key: n for n, key in enumerate(self._keys)}
        self.metadata = getattr(parallel, "metadata", None) or {}
        self.render_mode = getattr(parallel, "render_mode", None)
        limit = getattr(getattr(parallel, "unwrapped", None), "max_cycles", None)
        limits = SimpleNamespace(max_episode_steps=limit, reward_threshold=None)
        self.spec = getattr(parallel, "spec", None) or limits
        if not self._keys or len(set(map(str, self._keys))) < len(self._keys):
            raise self._broken(
                "the constructor", f"possible_agents is {self._keys!r}, and must name every agent once"
            )
        for what in ("observation_space", "action_space"):
            if not callable(found := getattr(parallel, what, None)):
                kind = "missing" if found is None else f"a {type(found).__name__}"
                raise self._broken(
                    "the constructor", f"{what} is {kind}, and must be a method of the agent's name"
                )
        self._take_forms(agent_id, pad_spaces)
        self.state_values = _state_values(parallel)
        self._shape = tuple(self.observation_space.shape or ())
        self._dtype = np.dtype(self.observation_space.dtype)
        count = len(self._keys)
        self.obs: NDArray[Any] = np.zeros((count, *self._shape), self._dtype)
        self.flags: NDArray[np.uint8] = np.zeros(count, np.uint8)
        self.live: NDArray[np.bool_] = np.zeros(count, np.bool_)
        self.successes: NDArray[np.int8] = np.zeros(count, np.int8)
        self.over, self.flagged = True, False
        self._whole = False  # whether all agents are live
        self._no_ends: NDArray[np.bool_] = np.zeros(count, np.bool_)

    def _take_forms(self, agent_id: bool, pad_spaces: bool) -> None:
        """Set the attributes that say what the agents see and do; called by the constructor."""
        form = SharedForm(self._name, self.parallel, self._keys, agent_id, pad_spaces)
        self.agents_spec, self._form, self._packed = form.agents_spec, form, form.packing is not None
        self.observation_space, self.action_space = form.observation_space, form.action_space
        if form.packing is not None:
            self.packed_leaves, self.unread = form.packed_leaves, form.packing.unread

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        """Begin an episode; returns `obs`, which the next call overwrites, and the infos by agent.

        Raises:
            ParallelAPIBroken, ObservationOffSpace, NonFiniteStep: see `step`.
        """
        returned = self.parallel.reset(seed=seed, options=options)
        observations, infos = _dicts(self._name, "reset", returned, ("observations", "infos"))
        self.live[:] = False
        self.successes[:] = env_checks.UNKNOWN
        self.obs[:] = 0
        for key in self.parallel.agents:
            n = self._index.get(key)
            if n is None or key not in observations:
                what = (
                    "is not one of possible_agents" if n is None else "is in agents, and has no observation"
                )
                raise self._broken("reset", f"agent {key} {what}")
            self.live[n] = True
            self._store(n, "reset", observations[key], infos.get(key))
        self._whole, self.over = bool(self.live.all()), not self.live.any()
        if self.over:
            raise self._broken("reset", "no agent takes part in the episode")
        return self.obs, infos

    def step(self, actions: Sequence[Any]) -> tuple[Any, ...]:
        """Let the live agents act.

        Args:
            actions: one per agent, in the environment's form; those of waiting agents are ignored.

        Returns:
            `obs` and `[N]` rewards, terminations, truncations, 0 and False for agents that waited, and the infos by
            agent. `obs` is overwritten by the next call.

        Raises:
            ParallelAPIBroken: the result is not that of the parallel API, or an agent acts again after it has ended
                (ASYNC034).
            ObservationOffSpace: an observation does not have the shape and dtype of its space (ASYNC012).
            NonFiniteStep: an observation that is stored as bytes is not finite (ASYNC011).
        """
        if self._whole:
            taken = dict(zip(self._keys, actions, strict=True))
        else:
            acts = zip(self._keys, actions, self.live.tolist(), strict=True)
            taken = {key: action for key, action, live in acts if live}
        returned = self.parallel.step(taken)
        observations, rewards, terminated, truncated, infos = _dicts(self._name, "step", returned, _STEP)
        if self._whole and self._all_go_on(observations, rewards, terminated, truncated):
            for n, key in enumerate(self._keys):
                self._store(n, "step", observations[key], infos.get(key))
            if self.flagged:
                self.flagged, self.flags[:] = False, 0
            row = [rewards[key] for key in self._keys]
            return self.obs, self._rewards(row), self._no_ends, self._no_ends, infos
        row = self._end_some(observations, rewards, terminated, truncated, infos)
        ended = (self.flags & flag != 0 for flag in (TERMINATED, TRUNCATED))
        return self.obs, self._rewards(row), *ended, infos

    def truncate(self) -> None:
        """Truncate the episode of all live agents after the last step, as a time limit would."""
        self.flags[self.live] |= TRUNCATED
        self.live[:] = False
        self._whole, self.over, self.flagged = False, True, True

    def _all_go_on(self, *results: Mapping[Any, Any]) -> bool:
        """Whether no agent has ended, after a step of all, and observations, rewards and flags are those of all."""
        if self.parallel.agents != self._keys:
            return False
        observations, rewards, terminated, truncated = results
        for key in self._keys:
            if key not in observations or key not in rewards:
                return False
            for ended in (terminated.get(key, True), truncated.get(key, True)):
                if ended is not False and ended is not np.False_:  # also what is no flag
                    return False
        return True

    def _end_some(
        self, observations: Any, rewards: Any, terminated: Any, truncated: Any, infos: Any
    ) -> list[Any]:
        """Take the results of a step of which not all is usual; returns the rewards."""
        acting = self.live.tolist()
        stays = [False] * len(acting)
        for key in self.parallel.agents:
            n = self._index.get(key)
            if n is None or not acting[n]:
                begins = "begins within an episode, or is still in agents after its end"
                what = "is not one of possible_agents" if n is None else begins
                raise self._broken("step", f"agent {key} {what}")
            stays[n] = True
        row: list[Any] = [0.0] * len(acting)
        for n, key in enumerate(self._keys):
            if not acting[n]:
                self.flags[n] = RESET
                continue
            try:
                row[n], ends = rewards[key], (terminated[key], truncated[key])
            except KeyError as error:
                raise self._broken(
                    "step", f"agent {key} acted, and {_missing(key, rewards, terminated)}"
                ) from error
            self._require_flags(key, *ends)
            # An agent that has left without a flag was cut off from outside.
            flags = (TERMINATED if ends[0] else 0) | (TRUNCATED if ends[1] else 0) or (
                0 if stays[n] else TRUNCATED
            )
            self.flags[n], self.live[n] = flags, flags == 0
            if flags:
                self.successes[n] = env_checks.success_of(infos.get(key))
            if key in observations:  # of an agent that has ended it may be missing: the last one stays
                self._store(n, "step", observations[key], infos.get(key))
            elif not flags:
                raise self._broken("step", f"agent {key} goes on, and has no observation")
        self._whole, self.over = bool(self.live.all()), not self.live.any()
        self.flagged = bool(self.flags.any())
        return row

    def _require_flags(self, key: Any, terminated: Any, truncated: Any) -> None:
        """Raise `ParallelAPIBroken` unless both flags of an agent are bools: in Python "False" is true, and NaN is."""
        for what, value in (("termination", terminated), ("truncation", truncated)):
            is_flag = type(value) is bool or (
                np.size(value) == 1 and env_checks.is_real(value) and value == value
            )
            if not is_flag:
                raise self._broken("step", f"the {what} of agent {key} is {value!r}, and must be a bool")

    def state(self) -> NDArray[np.float32]:
        """Present state of the environment, `[state_values]`, a new array; after a step that ended it the final one.

        Raises:
            ParallelAPIBroken: the environment has a `state_space`, and no `state()` (ASYNC034).
            ObservationOffSpace: the state has not as many numbers as `state_space` (ASYNC012).
            NonFiniteStep: a value is not finite (ASYNC011).
        """
        try:
            values = np.asarray(self.parallel.state())
        except NotImplementedError as error:
            raise self._broken("state", "it is not implemented, and there is a state_space") from error
        if values.size != self.state_values or values.dtype.kind not in "fiub":
            raise ObservationOffSpace(
                f"A state of {self._name} is off its space.",
                facts={
                    "expected": f"{self.state_values} numbers",
                    "got": f"{values.dtype} {list(values.shape)}",
                },
                fix=f"return what state_space says; {_WITHOUT_STATE}",
            )
        state: NDArray[np.float32] = values.reshape(-1).astype(np.float32)
        if not np.isfinite(state).all():
            raise NonFiniteStep(
                f"The state of {self._name} is NaN or infinite in float32.",
                facts={"state": np.array2string(values, threshold=20)},
                fix=f"mend the environment (a diverged simulation?); {_WITHOUT_STATE}",
            )
        return state

    def render(self) -> Any:
        """Render the environment."""
        return self.parallel.render()

    def close(self) -> None:
        """Close the environment."""
        self.parallel.close()

    def _store(self, n: int, call: str, obs: Any, info: Any) -> None:
        """Write the newest observation of agent n, which `reset` or `step` returned."""
        if self._packed or not (
            type(obs) is np.ndarray and obs.shape == self._shape and obs.dtype == self._dtype
        ):
            obs = self._form.row(n, call, obs, info)
        self.obs[n] = obs

    def _rewards(self, values: list[Any]) -> NDArray[np.float64]:
        if all(isinstance(value, float) or _is_small_int(value) for value in values):  # nearly always
            return np.array(values, np.float64)
        array = np.asarray(values) if all(np.ndim(value) == 0 for value in values) else np.empty(0, object)
        if array.size and array.dtype.kind not in "fiub" and not env_checks.is_real(array):
            array = np.empty(0, object)
        if not array.size:
            raise self._broken("step", f"the rewards are {values!r}, and must be a number for each agent")
        return array.astype(np.float64)

    def _broken(self, call: str, what: str) -> ParallelAPIBroken:
        return _broken(self._name, call, what)


class SharedForm:
    """What agents that share a policy see and do.

    Args:
        name: name of the environment in messages.
        parallel: environment with PettingZoo's parallel API.
        keys: its agents that share the policy.
        agent_id, pad_spaces: see `TrainerConfig`.

    Attributes:
        agents_spec: the agents, in the order of `keys`.
        observation_space, action_space: of each of them, as the policy sees them.
        packing: packs structured observations into rows; None if observations are arrays.
        packed_leaves: leaves of these rows; not set if observations are arrays.
        unread: parts of structured observations that are text; likewise.
        spec: None, as it has no limits; for `checks.spec_of`.

    Raises:
        SpacesDoNotFit: they have different spaces (ASYNC005).
    """

    packed_leaves: tuple[Leaf, ...]
    unread: tuple[str, ...]
    spec = None

    def __init__(
        self, name: str, parallel: Any, keys: Sequence[Any], agent_id: bool, pad_spaces: bool
    ) -> None:
        self._name, self._parallel, self._keys = name, parallel, list(keys)
        self.agents_spec, seen, self.action_space = self._shared_spaces(agent_id, pad_spaces)
        self.observation_space, self.packing = seen, None
        if isinstance(seen, STRUCTURED) and (leaves := leaves_of(seen)):
            self.packing = Packing(seen, leaves)
            self.observation_space = self.packing.space
            self.packed_leaves, self.unread = leaves, self.packing.unread
        self._shape = tuple(self.observation_space.shape or ())
        self._dtype = np.dtype(self.observation_space.dtype)
        views = agent_views(self.agents_spec, getattr(self, "packed_leaves", ()))
        self._views = [views[agent.name] for agent in self.agents_spec]

    def row(self, place: int, call: str, obs: Any, info: Any) -> NDArray[Any]:
        """Convert an observation that `call` returned for the agent at `place` to the array that the policy sees.

        Raises:
            ObservationOffSpace, NonFiniteStep: see `AgentsEnv.step`.
        """
        agent = self.agents_spec[place].name
        if self.packing is None:
            name = f"{self._name}, agent {agent}"
            return env_checks.check_observation(name, call, obs, self._shape, self._dtype)
        mask = info.get(MASK_KEY) if info else None
        if mask is None and self._mask_in_info[place]:
            raise ObservationOffSpace(
                f"The info of agent {agent} of {self._name} must have {MASK_KEY}, as in its first reset.",
                facts={"call": call, "info": info},
                fix=f"return {{{MASK_KEY!r}: ...}} in the info of each agent that has an observation, also in its last "
                "step, or put the mask into its observation",
            )
        try:
            obs = self._views[place](obs, mask)
        except (KeyError, ValueError) as error:
            raise ObservationOffSpace(
                f"An observation of {self._name} is off its space: {error_text(error)}",
                facts={"agent": agent, "call": call},
                fix="return what the agent's observation_space says",
            ) from error
        try:
            row: NDArray[Any] = self.packing(obs)
        except (ObservationOffSpace, NonFiniteStep) as error:
            error.facts = {"environment": self._name, "agent": agent, "call": call, **error.facts}
            raise
        return row

    def _shared_spaces(
        self, agent_id: bool, pad_spaces: bool
    ) -> tuple[tuple[Agent, ...], spaces.Space[Any], spaces.Space[Any]]:
        """Return the agents, and the observation as the policy sees it and the action space of each of them."""
        keys, parallel = self._keys, self._parallel
        observed = [parallel.observation_space(key) for key in keys]
        acted = [parallel.action_space(key) for key in keys]
        values = _lengths(observed) if pad_spaces else []
        choices = _choices(acted) if pad_spaces else []
        longest, most = max(values, default=0), max(choices, default=0)
        masked = self._masked(observed, acted)
        in_observation = [isinstance(space, spaces.Dict) and MASK_KEY in space.spaces for space in observed]
        if choices:
            acted = [spaces.Discrete(most, start=int(acted[0].start))] * len(keys)
        self._mask_in_info = [mask and not own for mask, own in zip(masked, in_observation, strict=True)]
        if values or choices or agent_id or any(masked):
            size = mask_size(acted[0]) if choices or any(masked) else None
            observed = [self._seen(space, longest, size, agent_id) for space in observed]
        self._require_one_form(observed, acted)
        agents = tuple(
            Agent(
                str(key),
                values[n] if values and values[n] < longest else None,
                choices[n] if choices and choices[n] < most else None,
                masked[n],
                n if agent_id else None,
            )
            for n, key in enumerate(keys)
        )
        return agents, observed[0], acted[0]

    def _masked(self, observed: list[Any], acted: list[Any]) -> list[bool]:
        """Whether each agent has action masks: in its observation, or in the infos of episodes begun for this.

        More than one is begun where an agent takes no part in the first. One that is never there is taken to have masks
        if another has them. The first is seeded: what an episode leaves in the environment would be another in each
        process, and so would the agents that take part.
        """
        masked = [isinstance(space, spaces.Dict) and MASK_KEY in space.spaces for space in observed]
        if any(masked) or any(mask_size(space) is None for space in acted):
            return masked
        found: dict[Any, bool] = {}
        for episode in range(_MOST_EPISODES):
            begun = self._parallel.reset() if episode else env_checks.first_reset(self._name, self._parallel)
            infos = _dicts(self._name, "reset", begun, ("observations", "infos"))[1]
            found = {key: MASK_KEY in (infos.get(key) or {}) for key in self._parallel.agents} | found
            if all(key in found for key in self._keys):
                break
        others = any(found.get(key, False) for key in self._keys)
        return [found.get(key, others) for key in self._keys]

    def _seen(self, own: Any, longest: int, choices: int | None, agent_id: bool) -> spaces.Space[Any]:
        """Return the space of what `AgentView` makes of an observation of the space `own`."""
        parts = dict(own.spaces) if isinstance(own, spaces.Dict) else {OWN_KEY: own}
        if longest:
            parts[OWN_KEY] = spaces.Box(-np.inf, np.inf, (longest,), np.float32)
        if choices is not None:
            parts[MASK_KEY] = spaces.MultiBinary(choices)
        if agent_id and AGENT_KEY in parts:
            raise ConfigurationError(
                f"agent_id must be false for {self._name}: its observations have a part {AGENT_KEY!r} already",
                fix="leave agent_id out",
            )
        if agent_id:
            parts[AGENT_KEY] = spaces.Discrete(len(self._keys))
        return spaces.Dict(parts)

    def _who(self) -> str:
        all_agents = len(self._keys) == len(self._parallel.possible_agents)
        return "All agents" if all_agents else f"The agents {', '.join(map(str, self._keys))}"

    def _require_one_form(self, observed: list[Any], acted: list[Any]) -> None:
        """Raise `SpacesDoNotFit` unless all agents have one form of observation and one action space."""
        for what, found, form in (("observation", observed, _form), ("action", acted, repr)):
            for key, space in zip(self._keys, found, strict=True):
                if form(space) != form(found[0]):
                    raise SpacesDoNotFit(
                        f"{self._who()} of {self._name} share one policy, and their {what} spaces differ.",
                        facts={f"agent {self._keys[0]}": found[0], f"agent {key}": space},
                        fix="pad_spaces=True (--pad-spaces) pads vectors and discrete actions; other spaces must be "
                        "made equal by a wrapper, or their agents given several policies: policies={name: pattern}",
                    )


class PolicyForm(NamedTuple):
    """One of several policies: its name, its pattern, the indices of its agents, and what they see and do."""

    name: str
    pattern: str
    members: tuple[int, ...]
    form: SharedForm


class AgentsByPolicy(AgentsEnv):
    """Environment whose agents have several policies, each with a `SharedForm` of its own agents.

    Observations of the agents are one array. If the policies' are vectors of different lengths they are padded with
    zeros to the longest; otherwise their shapes must agree. So it is with actions. See `AgentPolicy`.

    Args:
        patterns: by the policy's name, a regular expression that the whole name of each of its agents matches.
        name, parallel, choices: see `AgentsEnv`.

    Attributes:
        policies: the policies, in the order of `patterns`.
        action_spaces: of every agent, in the order of the agents.

    Raises:
        ConfigurationError: an agent has no policy or several, or a policy has no agent (ASYNC017).
        SpacesDoNotFit: agents of one policy have different spaces, or observations or actions of two policies do not
            fit one row (ASYNC005).
    """

    def __init__(self, name: str, parallel: Any, patterns: Mapping[str, str], **choices: bool) -> None:
        self._patterns = dict(patterns)
        super().__init__(name, parallel, **choices)

    def _take_forms(self, agent_id: bool, pad_spaces: bool) -> None:
        divided = divided_agents(self._name, [str(key) for key in self._keys], self._patterns)
        self.policies: list[PolicyForm] = []
        places: dict[int, tuple[SharedForm, int]] = {}
        for policy, members in divided.items():
            keys = [self._keys[n] for n in members]
            form = SharedForm(self._name, self.parallel, keys, agent_id, pad_spaces)
            self.policies.append(PolicyForm(policy, self._patterns[policy], members, form))
            places |= {n: (form, place) for place, n in enumerate(members)}
        self._places = [places[n] for n in range(len(self._keys))]
        self.agents_spec = tuple(form.agents_spec[place] for form, place in self._places)
        self.action_spaces = [form.action_space for form, _ in self._places]
        self.observation_space = self._widest("observation")
        self.action_space = self._widest("action")

    def _widest(self, what: str) -> spaces.Space[Any]:
        """Space of an observation or an action with room for those of every policy: that of the longest vector."""
        found = {policy.name: getattr(policy.form, f"{what}_space") for policy in self.policies}
        first, longest = next(iter(found)), max(found, key=lambda name: _length(found[name]))
        for name, space in found.items():
            if _cell(space) != _cell(found[first]):
                raise SpacesDoNotFit(
                    f"The policies {first} and {name} of {self._name} have {what} spaces that do not fit one row.",
                    facts={f"policy {first}": found[first], f"policy {name}": space},
                    fix="vectors of one dtype may differ in length; make other spaces equal by a wrapper, or train the "
                    "policies in runs of their own",
                )
        widest: spaces.Space[Any] = found[longest]
        return widest

    def _store(self, n: int, call: str, obs: Any, info: Any) -> None:
        """See `AgentsEnv`."""
        form, place = self._places[n]
        row = form.row(place, call, obs, info)
        if row.shape:
            self.obs[n, : row.shape[0]] = row
        else:
            self.obs[n] = row


def divided_agents(
    name: str, agents: Sequence[str], patterns: Mapping[str, str]
) -> dict[str, tuple[int, ...]]:
    """Indices of each policy's agents by the policy's name.

    Raises:
        ConfigurationError: an agent has no policy or several, a policy has no agent, or has the name of an agent that
            is not its only one (ASYNC017).
    """
    found = {
        policy: tuple(n for n, agent in enumerate(agents) if re.fullmatch(pattern, agent))
        for policy, pattern in patterns.items()
    }
    facts = {"agents": ", ".join(agents), **{f"policy {own}": pattern for own, pattern in patterns.items()}}
    for n, agent in enumerate(agents):
        own = [policy for policy, members in found.items() if n in members]
        if len(own) != 1:
            what = f"the patterns of {' and '.join(own)} match it" if own else "no pattern matches it"
            fix = "narrow one of the patterns" if own else "add a policy for it, or widen a pattern"
            raise ConfigurationError(
                f"policies must give every agent of {name} one policy: of agent {agent} {what}",
                facts=facts,
                fix=f"{fix}; a pattern is a regular expression that matches the whole name",
            )
    for policy, members in found.items():
        if not members:
            raise ConfigurationError(
                f"every pattern of policies must match an agent of {name}: {patterns[policy]!r} of policy {policy} "
                "matches none",
                facts=facts,
                fix="change the pattern, a regular expression that matches the whole name, or leave the policy out",
            )
        if policy in agents and [agents[n] for n in members] != [policy]:
            raise ConfigurationError(
                f"policy {policy} must have another name: an agent of {name} is called so, and is not its only one",
                facts=facts,
                fix="rename the policy",
            )
    return found


def _cell(space: Any) -> tuple[Any, ...]:
    """What spaces must have in common to fit one array: all of the shape, but the length of a vector."""
    kind = "discrete" if isinstance(space, spaces.Discrete | spaces.MultiDiscrete) else "box"
    shape = space.shape if len(space.shape or ()) != 1 else ("vector",)
    return kind, shape, space.dtype


def _length(space: Any) -> int:
    """Number of values of a vector, 0 of anything else."""
    return int(space.shape[0]) if len(space.shape or ()) == 1 else 0


_WITHOUT_STATE = "central_state='observations' learns without it"
"""End of the fix of errors of a state that only a central critic or a mixer reads."""


def _state_values(parallel: Any) -> int:
    """Number of values of an environment's state, by its `state_space`; 0 if it has none, or one of images."""
    space = getattr(parallel, "state_space", None)
    if not isinstance(space, spaces.Box | spaces.MultiBinary) or kind_of(space) == "image":
        return 0
    if not callable(getattr(parallel, "state", None)):
        return 0
    return int(np.prod(space.shape))


_STEP = ("observations", "rewards", "terminations", "truncations", "infos")


def _dicts(name: str, call: str, returned: Any, what: tuple[str, ...]) -> tuple[Any, ...]:
    """Return the result of a call if it is a tuple of dicts by agent. Raises `ParallelAPIBroken`."""
    parts = returned if isinstance(returned, tuple) else ()
    if len(parts) == len(what) and all(type(part) is dict or isinstance(part, Mapping) for part in parts):
        return parts
    kinds = ", ".join(type(part).__name__ for part in parts)
    got = f"a tuple ({kinds})" if kinds else type(returned).__name__
    raise _broken(name, call, f"it returned {got}, and must return dicts by agent: {', '.join(what)}")


def _missing(key: Any, rewards: Mapping[Any, Any], terminated: Mapping[Any, Any]) -> str:
    what = "reward" if key not in rewards else "termination" if key not in terminated else "truncation"
    return f"has no {what}"


def _broken(name: str, call: str, what: str) -> ParallelAPIBroken:
    return ParallelAPIBroken(
        f"The environment {name} does not keep PettingZoo's parallel API: in {call} {what}.",
        fix="change the environment; pettingzoo.test.parallel_api_test finds more of this",
    )


def _form(space: Any) -> object:
    """What a policy needs to know of observations: shapes and dtypes, not bounds."""
    if isinstance(space, STRUCTURED):
        leaves = leaves_of(space)
        return repr(space) if leaves is None else tuple(stored_as(leaf) for leaf in leaves)
    return type(space).__name__, space.shape, space.dtype


def _lengths(observed: list[Any]) -> list[int]:
    """Lengths of the agents' own vectors if these differ, else []; [] too if one is no vector."""
    own = [space.spaces.get(OWN_KEY) if isinstance(space, spaces.Dict) else space for space in observed]
    vectors = [space for space in own if isinstance(space, spaces.Box) and len(space.shape) == 1]
    lengths = [int(space.shape[0]) for space in vectors] if len(vectors) == len(own) else []
    return lengths if len(set(lengths)) > 1 else []


def _choices(acted: list[Any]) -> list[int]:
    """Numbers of the agents' actions if these differ, else []; [] too if one is not Discrete from the same start."""
    if not all(isinstance(space, spaces.Discrete) and space.start == acted[0].start for space in acted):
        return []
    counts = [int(space.n) for space in acted]
    return counts if len(set(counts)) > 1 else []
