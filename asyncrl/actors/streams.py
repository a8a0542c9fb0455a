"""Environments as streams of steps, with exact NEXT_STEP semantics, written into the caller's arrays.

An environment of one agent is one stream. Of N agents that act at once it is N neighbouring streams, one per agent.

Row t of a stream, with action a_t chosen for observation o_t:

    step in an episode      reward, flags TERMINATED / TRUNCATED and o_{t+1} from `env.step(a_t)`;
                            after a terminated or truncated step o_{t+1} is the true final observation
    row after such a step   flag RESET: a_t is not taken, the reward is 0, and o_{t+1} is the first
                            observation of the new episode

    row of an agent that    flag RESET: it has ended before the other agents of its environment, or takes no part in
    waits                   the episode; o_{t+1} is its last observation. After the last agent's end all are reset.

For one agent this equals `gymnasium.vector.SyncVectorEnv` with `AutoresetMode.NEXT_STEP`, without its copies. The first
reset is seeded; later ones continue with the environment's own generator.

gymnasium is not imported: the environments are built by `EnvSource`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from asyncrl.envs import checks as env_checks
from asyncrl.envs.renewal import Renewal
from asyncrl.envs.source import EnvSource
from asyncrl.interfaces import RESET, TERMINATED, TRUNCATED, EnvSpec
from asyncrl.shm.row_counts import count_agents_row, count_row, find_events

Events = NDArray[np.int64]
"""`[n, 2]`: (stream, flags) of the streams of a row with non-zero flags, ascending; empty for most rows."""
_NO_EVENTS: Events = np.empty((0, 2), np.int64)
_MOST_KEPT = 4096
"""Most actions of a Discrete space that are kept as NumPy integers."""


class Streams:
    """Base class of E streams that step together.

    Args:
        num_envs: E, the number of streams.
        spec: spec of one environment.
        source: builds environments for new keyword arguments; None if they never change.
        shape: shape of what the environments return: one observation, or those of a vector.
        obs_space, action_space: spaces of one environment.

    Attributes:
        num_envs: E.
        num_agents: N, neighbouring streams of one environment.
        newest: `[E, *obs_shape]` in storage dtype, observations of the last `reset` or `step`: read-only, valid until
            the next call. It is the caller's array, or the environment's own, which is denser.
        successes: `[E]`, whether each stream's last episode succeeded (`checks.SUCCEEDED`), of several agents that of
            the environment in its first stream; None until one says so.
        cut: streams whose first episode `stagger` has truncated in this row; the caller clears it.
    """

    STATE: tuple[str, ...] = ()
    """Attributes that are the environments' state; none in streams that cannot be saved."""
    envs: list[Any]
    """The environments, where they are single ones."""
    _made_for: Any
    """Number of the change of keyword arguments that each environment has, or that the vector has."""

    def __init__(
        self,
        num_envs: int,
        spec: EnvSpec,
        source: EnvSource | None,
        shape: tuple[int, ...],
        obs_space: Any,
        action_space: Any,
    ) -> None:
        self.num_envs, self.num_agents = num_envs, spec.num_agents
        self._source, self._spec = source, spec
        self._renewal: Renewal | None = None
        self._name, self._shape = spec.name, shape
        self._dtype: np.dtype[Any] = np.dtype(obs_space.dtype)
        self._action_form = ActionForm(action_space)
        self.newest: NDArray[Any] = np.empty((0, *spec.observation_shape))
        self.successes: NDArray[np.int8] | None = None
        self.cut: list[int] = []
        self._steps_to_cut: dict[int, int] = {}
        self.show_current_in(np.empty(1, np.int64))

    @property
    def current(self) -> int:
        """Index of the stream being reset or stepped; -1 between rows, and for a vector environment."""
        return int(self._current[0])

    def show_current_in(self, word: NDArray[np.int64]) -> None:
        """Store `current` in `word` `[1]` from now on, which is shared memory that the supervisor reads."""
        # A memoryview: storing an integer takes 30 ns, in an array 80.
        self._current = memoryview(cast("Any", word))
        self._current[0] = -1

    def success(self, stream: int) -> int:
        """Success of a stream's last episode."""
        return env_checks.UNKNOWN if self.successes is None else int(self.successes[stream])

    def successes_of(self, events: Events) -> NDArray[np.int8]:
        """Successes of the episodes that end with the events of a row, in their order; `successes` must be known."""
        assert self.successes is not None
        ended: NDArray[np.int8] = self.successes[events[events[:, 1] != RESET, 0]]
        return ended

    def _note_success(self, stream: int, success: int) -> None:
        """Store the success of an episode that ends."""
        if self.successes is None and success != env_checks.UNKNOWN:
            self.successes = np.zeros(self.num_envs, np.int8)
        if self.successes is not None:
            self.successes[stream] = success

    def stagger(self, steps: Sequence[int]) -> None:
        """Truncate the first episode of each environment after so many steps; called before `reset`.

        Args:
            steps: one number per environment, at least 1.

        A vector environment resets single environments on request only in DISABLED mode; in NEXT_STEP mode this does
        nothing.
        """
        self._steps_to_cut = dict(enumerate(steps))

    @property
    def resetting(self) -> bool:
        """Whether a single environment is being reset in a `step`, because its episode has ended."""
        return False

    count_row = staticmethod(count_row)
    """Kernel that writes a row's flags and rewards, and counts its steps and episodes."""

    def place_of(self, stream: int) -> str:
        """Name of a stream in a message; -1 stands for all streams of a vector environment."""
        return f"Environment {stream}" if stream >= 0 else "The vector environment"

    def reset(self, seeds: Sequence[int], obs: NDArray[Any]) -> None:
        """Begin an episode in every stream; write the first observations to `obs` `[E, *obs_shape]`."""
        raise NotImplementedError

    def step(
        self, actions: NDArray[Any], next_obs: NDArray[Any], rewards: NDArray[np.float64], first: int = 0
    ) -> Events:
        """Step one row, or, with single environments, a part of it.

        Args:
            actions: `[n, *act_shape]` in storage form, for streams `first` to `first + n - 1`; n is E for a row.
            next_obs: `[E, *obs_shape]`, filled for these; may be a strided view of a ring.
            rewards: float64 `[E]`, filled for these.
            first: index of the first stream to step.

        Returns the streams with flags; read-only, valid until the next step. Raises `ObservationOffSpace`, `OldGymAPI`
        (ASYNC012, ASYNC013), and whatever an environment raises.
        """
        raise NotImplementedError

    def write_states(self, out: NDArray[np.float32]) -> None:
        """Write the present state of every environment into `out` `[environments, state_values]`.

        Only environments of several agents have one (`EnvSpec.state_values`). Raises whatever an environment raises.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Close the environments."""
        raise NotImplementedError

    def renew(self, number: int, kwargs: Mapping[str, Any], seeds: tuple[int, ...]) -> None:
        """Give the episodes that begin from now on environments with these keyword arguments.

        Args:
            number: index of the change in the run, from 1.
            kwargs: keyword arguments over those of the source.
            seeds: seed for each stream's first reset of an environment that is built again.
        """
        assert self._source is not None, "a run's streams have a source"
        self._renewal = Renewal(self._source, self._spec, kwargs, number, seeds)

    def _renewed(self, index: int, stream: int) -> dict[str, int]:
        """Give an environment the newest keyword arguments if it has others; return its next reset's arguments."""
        renewal = self._renewal
        if renewal is None or self._made_for[index] == renewal.number:
            return {}
        self.envs[index], new = renewal.renewed(self.envs[index])
        self._made_for[index] = renewal.number
        return {"seed": renewal.seeds[stream]} if new else {}

    def _checked(self, obs: Any, call: str) -> NDArray[Any]:
        return env_checks.check_observation(self._name, call, obs, self._shape, self._dtype)


def make_streams(source: EnvSource, spec: EnvSpec, num_envs: int) -> Streams:
    """Build the environments of one actor, which make `num_envs` streams.

    Raises:
        SpacesDoNotFit: one has other spaces than `spec` (ASYNC005).
        ValueError, AsyncRLError: see `EnvSource.build_streams`.
    """
    built = source.build_streams(num_envs // spec.num_agents)
    for env in built if isinstance(built, list) else [built]:
        env_checks.require_spaces(spec, env)
    if not isinstance(built, list):
        return VectorStreams(built, spec, source)
    return AgentStreams(built, spec, source) if spec.agents else PlainStreams(built, spec, source)


class ActionForm:
    """Conversion of actions from storage form (from zero, in the dtypes of `interfaces`) to the environment's form.

    A real-valued action is clipped to the finite bounds of its Box, as in Stable-Baselines3; the ring contains the
    draw, because the log probability is that of the draw. For a Box of integers it is rounded to the nearest: cutting
    its fraction off would leave the highest value to draws of exactly that value, and give 0 twice its share.

    Args:
        space: the (single) action space of the environment.
    """

    def __init__(self, space: Any) -> None:
        start = np.asarray(getattr(space, "start", 0))
        self._start: NDArray[Any] | int = start.reshape(-1) if start.ndim else int(start)
        self._shape = tuple(space.shape)
        self._dtype = np.dtype(space.dtype)
        bounds = [np.asarray(getattr(space, side, np.nan)) for side in ("low", "high")]
        self._bounds = bounds if any(np.isfinite(b).any() for b in bounds) else None
        self._choices: dict[int, Any] = {}
        if self._shape == () and hasattr(space, "n"):
            self._choices = dict(enumerate(self.batch(np.arange(min(space.n, _MOST_KEPT)))))

    def batch(self, actions: NDArray[Any]) -> NDArray[Any]:
        """Return an array `[E, *space_shape]` of the space's dtype, which environments may keep."""
        if self._bounds is None:
            return (actions + self._start).astype(self._dtype, copy=False).reshape(-1, *self._shape)
        low, high = self._bounds
        # In the wider of both dtypes, so that the bounds are exact and no integer wraps around before clipping.
        wide = np.promote_types(actions.dtype, self._dtype)
        cut: NDArray[Any] = np.clip(actions.reshape(-1, *self._shape).astype(wide, copy=False), low, high)
        if self._dtype.kind in "iu":
            np.rint(cut, out=cut)
        return cut.astype(self._dtype, copy=False)

    def rows(self, actions: NDArray[Any]) -> list[Any]:
        """Return one action per environment: NumPy integers for Discrete spaces, array rows otherwise.

        They are not Python integers because `Discrete.contains`, which many environments call in every step, takes half
        the time for NumPy's (2.6 against 4.8 microseconds in gymnasium 1.4). They are made once, not in every row.
        """
        if self._choices:
            try:
                return [self._choices[action] for action in actions.tolist()]
            except KeyError:  # a choice that is not kept
                pass
        return list(self.batch(actions))


class ActionFormByAgent:
    """`ActionForm` of the agents of environments, whose actions are of different spaces.

    Args:
        spaces: the action space of each agent. An action of fewer values than others is the first of a row.
    """

    def __init__(self, spaces: Sequence[Any]) -> None:
        self._forms = [ActionForm(space) for space in spaces]
        self._values = [math.prod(space.shape) for space in spaces]

    def rows(self, actions: NDArray[Any]) -> list[Any]:
        """Return one action per agent of as many environments; see `ActionForm.rows`."""
        agents, rows = len(self._forms), [None] * len(actions)
        for n, (form, values) in enumerate(zip(self._forms, self._values, strict=True)):
            own = actions[n::agents]
            rows[n::agents] = form.rows(own if own.ndim == 1 else own[:, :values])
        return rows


def action_form(env: Any) -> ActionForm | ActionFormByAgent:
    """Conversion of the actions in an environment, or of its agents."""
    each = getattr(env, "action_spaces", None) if hasattr(env, "policies") else None
    return ActionForm(env.action_space) if each is None else ActionFormByAgent(each)


class PlainStreams(Streams):
    """Streams of single environments, stepped one after the other.

    Args:
        envs: E built environments with equal spaces.
        spec: their spec.
        source: see `Streams`.
    """

    STATE = ("envs", "_ended", "_made_for", "_steps_to_cut")

    def __init__(self, envs: Sequence[Any], spec: EnvSpec, source: EnvSource | None = None) -> None:
        first, shape = envs[0], spec.observation_shape
        super().__init__(len(envs), spec, source, shape, first.observation_space, first.action_space)
        self.envs = list(envs)
        self._made_for = [0] * self.num_envs
        self._ended = [False] * self.num_envs
        self.find_steps()

    def find_steps(self) -> None:
        """Look up the method `step` of every environment, which is called in every row; call it if one is replaced."""
        self._steps = [self._step_of(i) for i in range(self.num_envs)]

    @property
    def resetting(self) -> bool:
        """See `Streams.resetting`."""
        return self.current >= 0 and self._ended[self.current]

    def reset(self, seeds: Sequence[int], obs: NDArray[Any]) -> None:
        """See `Streams.reset`."""
        for i, seed in enumerate(seeds):
            self._current[0] = i
            self._renewed(i, i)
            returned = self.envs[i].reset(seed=int(seed))
            self._steps[i] = self._step_of(i)
            obs[i] = self._checked(env_checks.check_reset(self._name, returned), "reset")
            self._ended[i] = False
        self._current[0] = -1
        self.newest = obs

    def step(
        self, actions: NDArray[Any], next_obs: NDArray[Any], rewards: NDArray[np.float64], first: int = 0
    ) -> Events:
        """See `Streams.step`."""
        events: list[tuple[int, int]] = []
        ended, steps, current = self._ended, self._steps, self._current
        array, shape, dtype = np.ndarray, self._shape, self._dtype
        row_rewards = []
        for i, action in enumerate(self._action_form.rows(actions), first):
            current[0] = i
            if ended[i]:
                arguments = self._renewed(i, i)
                obs = env_checks.check_reset(self._name, self.envs[i].reset(**arguments))
                self._steps_to_cut.pop(i, None)
                steps[i] = self.envs[i].step
                reward: Any = 0.0
                ended[i] = False
                events.append((i, RESET))
            else:
                step = steps[i](action)
                try:
                    obs, reward, terminated, truncated, _ = step
                except (TypeError, ValueError):
                    env_checks.check_step(self._name, step)
                    raise
                if (terminated is not False or truncated is not False) and (flags := self._end(i, step)):
                    events.append((i, flags))
            if not (type(obs) is array and obs.dtype is dtype and obs.shape == shape):
                obs = self._checked(obs, "step")
            next_obs[i] = obs
            row_rewards.append(reward)
        current[0] = -1
        self._store_rewards(row_rewards, rewards, first)
        self.newest = next_obs
        return np.array(events, np.int64) if events else _NO_EVENTS

    def close(self) -> None:
        """See `Streams.close`."""
        for env in self.envs:
            env_checks.close_env(env)

    def _step_of(self, i: int) -> Callable[[Any], Any]:
        """Method `step` of an environment, which truncates the first episode where `stagger` says so."""
        step: Callable[[Any], Any] = self.envs[i].step
        if i not in self._steps_to_cut:
            return step

        def step_of_first_episode(action: Any) -> Any:
            returned = step(action)
            self._steps_to_cut[i] -= 1
            if self._steps_to_cut[i] or not _goes_on(returned):
                return returned
            self.cut.append(i)
            return *returned[:3], True, returned[4]

        return step_of_first_episode

    def _end(self, i: int, step: tuple[Any, ...]) -> int:
        """Flags of a step of stream i; if there are any, its episode has ended. Raises `OldGymAPI`."""
        _, _, terminated, truncated, info = step
        if not (terminated or truncated):
            if terminated is None or truncated is None:
                env_checks.check_step(self._name, step)
            return 0
        if not (type(terminated) is type(truncated) is bool):
            env_checks.check_step(self._name, step)
        self._ended[i] = True
        self._note_success(i, env_checks.success_of(info))
        return (TERMINATED if terminated else 0) | (TRUNCATED if truncated else 0)

    def _store_rewards(self, values: list[Any], out: NDArray[np.float64], first: int) -> None:
        try:
            array = np.asarray(values)
            if array.dtype.kind not in "fiub" and not env_checks.is_real(array):
                raise TypeError("no number as a reward")
            out[first : first + len(values)] = array
        except (TypeError, ValueError):
            for i, reward in enumerate(values, first):
                self._current[0] = i
                env_checks.check_step(self._name, (None, reward, False, False, {}))
            raise


def _goes_on(returned: Any) -> bool:
    """Whether a step was one of gymnasium's, after which the episode goes on."""
    return type(returned) is tuple and len(returned) == 5 and not returned[2] and not returned[3]


class VectorStreams(Streams):
    """Streams of one native vector environment.

    A vector in DISABLED mode resets only on request and always steps all its environments. For a row in which some
    environments reset while others step, the ended ones are reset before the row's step, make a step whose results are
    ignored, and are reset again after it. This costs a second reset per episode, and every stream is exact.

    Args:
        env: a built `gymnasium.vector.VectorEnv` in NEXT_STEP or DISABLED mode.
        spec: spec of one of its environments.
        source: see `Streams`.
    """

    STATE = ("env", "_ended", "_made_for", "_steps_to_cut")

    def __init__(self, env: Any, spec: EnvSpec, source: EnvSource | None = None) -> None:
        count = int(env.num_envs)
        shape = (count, *spec.observation_shape)
        super().__init__(count, spec, source, shape, env.single_observation_space, env.single_action_space)
        self.env = env
        self._made_for = 0  # number of the change that it has
        self._disabled = env_checks.autoreset_mode(spec.name, env) == env_checks.DISABLED
        self._ended: NDArray[np.bool_] = np.zeros(count, np.bool_)
        self._events: Events = np.empty((count, 2), np.int64)

    def reset(self, seeds: Sequence[int], obs: NDArray[Any]) -> None:
        """See `Streams.reset`; a vector is seeded with the first of `seeds`."""
        returned = env_checks.check_reset(self._name, self.env.reset(seed=int(seeds[0])))
        self._store(self._checked(returned, "reset"), obs)
        self._ended[:] = False

    def step(
        self, actions: NDArray[Any], next_obs: NDArray[Any], rewards: NDArray[np.float64], first: int = 0
    ) -> Events:
        """See `Streams.step`; it steps all streams at once, so `first` must be 0."""
        resets = self._ended
        resetting = self._disabled and bool(resets.any())
        if resetting:
            self._reset_some(resets)
        step = env_checks.check_step(
            self._name, self.env.step(self._action_form.batch(actions)), (self.num_envs,)
        )
        self._store(self._checked(step[0], "step"), next_obs)
        rewards[:] = step[1]
        if resetting:
            next_obs[resets] = self._checked(self._reset_some(resets), "reset")[resets]
            self.newest = next_obs
        terminated, truncated = (np.ascontiguousarray(ended, np.bool_) for ended in step[2:4])
        if self._steps_to_cut:
            truncated = self._cut_first_episodes(terminated, truncated)
        events = self._events[: find_events(terminated, truncated, resets, rewards, self._events)]
        for stream in events[events[:, 1] != RESET, 0].tolist():
            self._note_success(stream, env_checks.success_of(step[4], stream))
        return events

    def stagger(self, steps: Sequence[int]) -> None:
        """See `Streams.stagger`."""
        if self._disabled:
            super().stagger(steps)

    def _cut_first_episodes(
        self, terminated: NDArray[np.bool_], truncated: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """Return `truncated` with the streams whose first episode is cut in this row; count the steps of the others."""
        ended = terminated | truncated
        for i, left in list(self._steps_to_cut.items()):
            self._steps_to_cut[i] = left - 1
            if ended[i] or left == 1:
                del self._steps_to_cut[i]
                if not ended[i]:
                    self.cut.append(i)
        if self.cut:
            truncated = truncated.copy()
            truncated[self.cut] = True
        return truncated

    def close(self) -> None:
        """See `Streams.close`."""
        env_checks.close_env(self.env)

    def renew(self, number: int, kwargs: Mapping[str, Any], seeds: tuple[int, ...]) -> None:
        """See `Streams.renew`; a vector takes the keyword arguments at once, and needs a method for it."""
        super().renew(number, kwargs, seeds)
        if self._renewal is not None and self._made_for != number:
            self.env, _ = self._renewal.renewed(self.env)
            self._made_for = number

    def _store(self, obs: NDArray[Any], out: NDArray[Any]) -> None:
        """Copy the observations `obs` to `out`; use the environment's array as `newest` if its dtype is the same."""
        out[:] = obs
        self.newest = obs if obs.dtype == out.dtype else out

    def _reset_some(self, mask: NDArray[np.bool_]) -> Any:
        return env_checks.check_reset(self._name, self.env.reset(options={"reset_mask": mask.copy()}))


class AgentStreams(Streams):
    """Streams of the agents of environments that are stepped one after the other.

    Args:
        envs: built environments of N agents each (`asyncrl.envs.agents.AgentsEnv`) with equal spaces.
        spec: their spec.
        source: see `Streams`.

    Attributes:
        envs: as given.
        live: `[environments, N]`, agents that act in the next row. An environment without any is reset by it.
    """

    STATE = ("envs", "_made_for", "_steps_to_cut")

    def __init__(self, envs: Sequence[Any], spec: EnvSpec, source: EnvSource | None = None) -> None:
        first, count = envs[0], spec.num_agents
        super().__init__(
            len(envs) * count,
            spec,
            source,
            spec.observation_shape,
            first.observation_space,
            first.action_space,
        )
        self._made_for = [0] * len(envs)
        self.envs, self._agents = list(envs), spec.agents
        self._form = action_form(first)
        self.live: NDArray[np.bool_] = np.array([env.live for env in envs])

    @property
    def resetting(self) -> bool:
        """See `Streams.resetting`."""
        return self.current >= 0 and not self.live[self.current // len(self._agents)].any()

    def place_of(self, stream: int) -> str:
        """See `Streams.place_of`."""
        env, agent = divmod(stream, len(self._agents))
        return f"Agent {self._agents[agent].name} of environment {env}"

    def count_row(self, *row: Any) -> int:
        """See `Streams.count_row`; a step is one of an environment, and an episode ends with its last agent."""
        return count_agents_row(self.live, *row)

    def reset(self, seeds: Sequence[int], obs: NDArray[Any]) -> None:
        """See `Streams.reset`; an environment is seeded with the seed of its first stream."""
        count = len(self._agents)
        for e in range(len(self.envs)):
            first = e * count
            self._current[0] = first
            self._renewed(e, first)
            obs[first : first + count] = self.envs[e].reset(seed=int(seeds[first]))[0]
            self.live[e] = self.envs[e].live
        self._current[0] = -1
        self.newest = obs

    def step(
        self, actions: NDArray[Any], next_obs: NDArray[Any], rewards: NDArray[np.float64], first: int = 0
    ) -> Events:
        """See `Streams.step`; `first` is the first stream of an environment."""
        count = len(self._agents)
        flags = np.zeros(len(actions), np.int64)
        taken, ended = self._form.rows(actions), False
        for start in range(0, len(actions), count):
            at = first + start
            e, streams = at // count, slice(at, at + count)
            env = self.envs[e]
            self._current[0] = at
            if not env.over:
                next_obs[streams], rewards[streams] = env.step(taken[start : start + count])[:2]
                if self._steps_to_cut:
                    self._cut_first_episode(e)
                if not env.flagged:
                    continue
                flags[start : start + count] = env.flags
                if env.over:
                    self._note_success(at, env_checks.share_of_agents(env.successes))
            else:
                arguments = self._renewed(e, at)
                self._steps_to_cut.pop(e, None)
                next_obs[streams], rewards[streams] = self.envs[e].reset(**arguments)[0], 0.0
                flags[start : start + count] = RESET
            self.live[e], ended = self.envs[e].live, True
        self._current[0] = -1
        self.newest = next_obs
        if not ended:
            return _NO_EVENTS
        flagged = np.flatnonzero(flags)
        return np.stack((flagged + first, flags[flagged]), axis=1) if flagged.size else _NO_EVENTS

    def _cut_first_episode(self, e: int) -> None:
        """Count a step of environment e, and truncate its first episode where `stagger` says so."""
        left = self._steps_to_cut.get(e, 0)
        if left > 1:
            self._steps_to_cut[e] = left - 1
        elif left == 1:
            del self._steps_to_cut[e]
            if not self.envs[e].over:
                self.envs[e].truncate()
                self.cut.extend(range(e * self.num_agents, (e + 1) * self.num_agents))

    def successes_of(self, events: Events) -> NDArray[np.int8]:
        """See `Streams.successes_of`; an episode ends with its last agent."""
        assert self.successes is not None
        count = len(self._agents)
        envs = np.unique(events[events[:, 1] != RESET, 0] // count)
        ended: NDArray[np.int8] = self.successes[envs[~self.live[envs].any(axis=1)] * count]
        return ended

    def write_states(self, out: NDArray[np.float32]) -> None:
        """See `Streams.write_states`."""
        for e, env in enumerate(self.envs):
            self._current[0] = e * len(self._agents)
            out[e] = env.state()
        self._current[0] = -1

    def close(self) -> None:
        """See `Streams.close`."""
        for env in self.envs:
            env_checks.close_env(env)
