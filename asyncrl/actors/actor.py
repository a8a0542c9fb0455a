"""An actor: E streams, a policy and a ring. It is independent of processes, so a test can step it row by row."""

from __future__ import annotations

import math
import os
import traceback
from time import perf_counter_ns
from typing import Any, NotRequired, TypedDict

import numpy as np
from numpy.typing import NDArray

from asyncrl.acting.frames import FrameStacks
from asyncrl.acting.recurrent import memory_of
from asyncrl.actors.streams import Events, Streams
from asyncrl.errors import EnvironmentFailed, EnvironmentRaised, NonFiniteStep, error_text
from asyncrl.interfaces import RESET
from asyncrl.protocols import Policy
from asyncrl.shm.env_kwargs import EnvKwargsReader
from asyncrl.shm.ring import CURRENT_ENV, STEPS, RingWriter
from asyncrl.shm.ring_layout import NOT_COUNTED
from asyncrl.shm.weights import WeightMailbox


def actor_seeds(
    seed: int, index: int, incarnation: int, num_envs: int
) -> tuple[list[int], np.random.Generator]:
    """Return the seeds of an actor's environments and its policy's generator, independent for each actor and life."""
    ours = np.random.SeedSequence(seed, spawn_key=(index, incarnation))
    for_envs, for_policy = ours.spawn(2)
    return [int(s) for s in for_envs.generate_state(num_envs)], np.random.default_rng(for_policy)


def renewal_seeds(seed: int, index: int, incarnation: int, number: int, num_envs: int) -> tuple[int, ...]:
    """Return the seeds of an actor's environments that are built again for change `number` of their arguments."""
    ours = np.random.SeedSequence(seed, spawn_key=(index, incarnation, 2, number))
    return tuple(int(s) for s in ours.generate_state(num_envs))


TIMED_MASK = 63
"""Every 64th row is timed, by its position: clocks are read in no other."""
_SQUARE_FITS_FLOAT32 = 1e76
"""Bound for the sum of squared float64 rewards; below it each reward is finite, in float32 too."""


def _all_finite(values: NDArray[Any]) -> bool:
    """Whether all values are finite. A finite sum proves it in half the time; a sum that overflows proves nothing."""
    return math.isfinite(np.add.reduce(values, axis=None)) or bool(np.isfinite(values).all())


def staggered_steps(limit: int, index: int, num_actors: int, num_envs: int) -> list[int]:
    """Steps after which the first episodes of an actor's E environments are truncated.

    With a time limit T and G environments of all actors, environment g gets T (g + 1) / G steps, at least 1, so that
    the G episodes that follow are spread evenly over a whole episode (Bharthulwar et al. 2025, Staggered environment
    resets improve massively parallel on-policy reinforcement learning, arXiv 2511.21011). Those of an actor are spread
    too: its environment e is g = e `num_actors` + `index`.
    """
    places = (e * num_actors + index for e in range(num_envs))
    return [max(1, limit * (g + 1) // (num_envs * num_actors)) for g in places]


class ActorIdentity(TypedDict):
    """Arguments of every actor that say which one it is, and how it hears of new keyword arguments."""

    index: int
    """Index of the actor, from 0."""
    num_actors: int
    """Number of actors."""
    seed: int
    """Seed of the run."""
    incarnation: NotRequired[int]
    """Index of the life of this actor, from 0; written to every row."""
    env_kwargs: NotRequired[EnvKwargsReader | None]
    """Keyword arguments that the environments get while the run goes on; None if they keep theirs."""


class Actor:
    """Actor that steps its environments, one row at a time, within the rows granted by the learner side.

    Args:
        streams: the environments; `begin` resets them.
        policy: the policy; used by this actor only.
        writer: writing end of the actor's ring; a new life of an actor continues at the position of the last one. The
            next slot contains the last life's true next observation, which the new life keeps in a RESET row.
        mailbox: source of the weights.
        index, num_actors, seed, incarnation, env_kwargs: see `ActorIdentity`.

    Attributes:
        weights_version: version of the policy's weights, 0 before the first.
        state_was_read: whether a pickle of its state was loaded once as a test (`actor_state.py`).
    """

    STATE: tuple[str, ...] = (
        "_rng",
        "_row",
        "_steps",
        "_first_row",
        "_first_obs",
        "_returns",
        "_began_at",
        "_stacks",
    )

    def __init__(
        self,
        streams: Streams,
        policy: Policy,
        writer: RingWriter,
        mailbox: WeightMailbox,
        *,
        index: int,
        num_actors: int,
        seed: int,
        incarnation: int = 0,
        env_kwargs: EnvKwargsReader | None = None,
    ) -> None:
        self.streams = streams
        self.policy = policy
        self.writer = writer
        self.index = index
        self.incarnation = incarnation
        self.weights_version = 0
        self.state_was_read = False
        self._weights_updates = 0
        self._mailbox = mailbox
        self._num_actors = num_actors
        self._env_seeds, self._rng = actor_seeds(seed, index, incarnation, streams.num_envs)
        self._env_kwargs, self._seed = env_kwargs, seed
        layout, num_envs = writer.layout, streams.num_envs
        policy.assign_streams(index * num_envs, num_envs, num_actors * num_envs)
        self._first_obs = np.empty((num_envs, *layout.spec.observation_shape), layout.spec.observation_dtype)
        frames, dtype = policy.frame_stack, layout.spec.observation_dtype
        self._stacks = FrameStacks(num_envs, frames, self._first_obs.shape[1:], dtype) if frames > 1 else None
        self._global_state, self._row = writer.global_state, 0
        self.take_memory()
        self._obs_may_be_non_finite = self._first_obs.dtype.kind == "f"
        self._rewards, self._returns = np.zeros(num_envs, np.float64), np.zeros(num_envs, np.float64)
        self._began_at = np.zeros(num_envs, np.int64)  # row of this life before each stream's episode
        self._steps = int(writer.header[STEPS])
        self._mask = layout.num_slots - 1
        self._first_row, self._shows_old_rate = True, True
        writer.set_incarnation(incarnation)
        streams.show_current_in(writer.header[CURRENT_ENV : CURRENT_ENV + 1])

    def place_among(self, first_index: int, all_actors: int) -> None:
        """Count this actor among those of all groups, of which `first_index` belong to earlier groups.

        Its streams then explore with their part of the range of all groups. Called before the first row.
        """
        num_envs = self.streams.num_envs
        self.policy.assign_streams((first_index + self.index) * num_envs, num_envs, all_actors * num_envs)
        self.take_memory()

    def take_memory(self) -> None:
        """Find the recurrent state of the policy, which is another policy's or has moved."""
        self._memory = memory_of(self.policy)
        also: tuple[object, ...] = self._stacks, self._memory, self._global_state
        self._keeps_more = any(part is not None for part in also)

    @property
    def between_rows(self) -> bool:
        """Whether the actor's state may be sent now."""
        return True

    def begin(self) -> None:
        """Reset every environment with its seed. Raises `EnvironmentFailed`."""
        try:
            self._renew_environments(self.writer.published)
            self.streams.reset(self._env_seeds, self._first_obs)
        except BaseException as error:
            raise self._explain(error, None) from error
        self._refuse_non_finite(self._first_obs, None)
        if self._stacks is not None:
            self._stacks.begin(slice(None), self._first_obs)

    def step(self) -> bool:
        """Write and publish one row; return False if it must wait for a grant or for the first weights.

        A row needs the slot of the next row too, for its next observation. A row that fails is not published.

        Raises:
            EnvironmentRaised, NonFiniteStep, ObservationOffSpace, OldGymAPI: the step failed; the error's facts are
                actor, environment, step and action.
        """
        writer = self.writer
        position = writer.published
        if writer.granted < position + 2 or not self._take_newest_weights():
            return False
        slot, next_slot = position & self._mask, (position + 1) & self._mask
        if self._first_row:
            self._first_row = False
            if position > 0:
                self._write_reset_row(slot, next_slot)
                return True
            self._write_first_obs(slot)
        self._renew_environments(position)
        next_obs = writer.obs[:, next_slot]
        obs = self.streams.newest if self._stacks is None else self._stacks.array
        timed = not position & TIMED_MASK
        began = perf_counter_ns() if timed else 0
        actions, extras = self.policy.act(obs, self._rng, self._steps * self._num_actors)
        acted = perf_counter_ns() if timed else 0
        if self._shows_old_rate:
            self._shows_old_rate = False
            writer.set_exploration(self.policy.exploration_rate)
        try:
            events = self.streams.step(actions, next_obs, self._rewards)
        except BaseException as error:
            raise self._explain(error, actions) from error
        stepped = perf_counter_ns() if timed else 0
        self._refuse_non_finite(self.streams.newest, actions)
        writer.action[:, slot] = actions
        for name, values in extras.items():
            writer.extras[name][:, slot] = values
        if self._keeps_more:
            self._begin_episodes(events)
            self._write_states(next_slot, actions)
        self._publish(slot, events)
        if timed:
            writer.add_times(acted - began, stepped - acted, perf_counter_ns() - stepped)
        return True

    def _renew_environments(self, row: int) -> None:
        """Have the episodes that begin in `row` or later get the newest keyword arguments that count there."""
        if self._env_kwargs is not None and (change := self._env_kwargs.at(row)) is not None:
            seeds = renewal_seeds(
                self._seed, self.index, self.incarnation, change.number, self.streams.num_envs
            )
            self.streams.renew(change.number, change.values, seeds)

    def _publish(self, slot: int, events: Events) -> None:
        """Write version, rewards and flags of the row, count it and its episodes, and publish it."""
        writer = self.writer
        self._stamp(slot)
        self._row += 1
        if self.streams.cut:
            self._returns[self.streams.cut] = NOT_COUNTED
            self.streams.cut.clear()
        if self.streams.successes is not None and len(events):
            writer.log_successes(self.streams.successes_of(events))
        taken = self.streams.count_row(
            *(events, self._rewards, self._returns, self._began_at, self._row),
            *(writer.flags, writer.reward, slot),
            *(writer.header, writer.episode_return, writer.episode_length),
        )
        self._steps += taken
        writer.publish(1, taken)

    def _write_reset_row(self, slot: int, next_slot: int) -> None:
        """Begin a later life with a RESET row, from the last life's next observation to the first one of this life.

        Its observation is used to bootstrap the value of the last life's trajectory in segments.
        """
        writer = self.writer
        self._write_first_obs(next_slot)
        for values in (writer.action, writer.reward, *writer.extras.values()):
            values[:, slot] = 0
        writer.flags[:, slot] = RESET
        self._stamp(slot)
        writer.publish(1, 0)

    def _write_first_obs(self, slot: int) -> None:
        """Write what `begin` found, observations and states, into a slot."""
        self.writer.obs[:, slot] = self._first_obs
        self._write_states(slot, None)

    def _write_states(self, slot: int, actions: NDArray[Any] | None) -> None:
        """Write the environments' states of now into a slot, if the ring keeps them. Raises `EnvironmentFailed`."""
        if self._global_state is not None:
            try:
                self.streams.write_states(self._global_state[:, slot])
            except BaseException as error:
                raise self._explain(error, actions, "state") from error

    def _begin_episodes(self, events: Events, streams: slice = slice(None)) -> None:
        """Push observations of `streams` on their stacks; begin new stacks and recurrent states at RESET rows."""
        newest = self.streams.newest
        began = events[(events[:, 1] & RESET) != 0, 0]
        if self._stacks is not None:
            self._stacks.push(streams, newest[streams])
            if began.size:
                self._stacks.begin(began, newest[began])
        if self._memory is not None and began.size:
            self._memory.begin(began)

    def _stamp(self, slot: int) -> None:
        self.writer.version[slot] = self.weights_version
        self.writer.policy_updates[slot] = self._weights_updates
        self.writer.incarnation[slot] = self.incarnation

    def close(self) -> None:
        """Close the environments."""
        self.streams.close()

    def _take_newest_weights(self) -> bool:
        """Load the mailbox's weights if there is a new version; return False if none was ever published."""
        mailbox, held = self._mailbox, self.weights_version
        if mailbox.version != held and (version := mailbox.refresh(self.policy.weights, held)) != held:
            self.policy.weights_changed()
            self.weights_version, self._weights_updates = version, mailbox.updates
            self._shows_old_rate = True
        return self.weights_version > 0

    def _refuse_non_finite(self, obs: NDArray[Any], actions: NDArray[Any] | None) -> None:
        finite_obs = not self._obs_may_be_non_finite or _all_finite(obs)
        if finite_obs and self._rewards.dot(self._rewards) < _SQUARE_FITS_FLOAT32:
            return
        with np.errstate(over="ignore"):  # it is told below; an environment may have NumPy raise
            rewards = self._rewards.astype(np.float32)
        if finite_obs and np.isfinite(rewards).all():
            return
        what, values = ("observation", obs) if not finite_obs else ("reward", rewards)
        one = "an observation" if not finite_obs else "a reward"
        bad = ~np.isfinite(values).reshape(values.shape[0], -1).all(axis=1)
        env = int(np.flatnonzero(bad)[0])
        raise NonFiniteStep(
            f"{self.streams.place_of(env)} of actor {self.index} returned {one} that is NaN or infinite in float32.",
            facts={**self._where(env, actions), what: np.array2string(values[env], threshold=20)},
            fix="mend the environment (a diverged simulation?); nothing of this step was stored",
        )

    def _explain(
        self, error: BaseException, actions: NDArray[Any] | None, call: str = ""
    ) -> EnvironmentFailed:
        env = self.streams.current
        facts = self._where(env, actions)
        if isinstance(error, EnvironmentFailed):
            error.facts.update(facts)
            return error
        place = self.streams.place_of(env) if env < 0 else f"Environment {env // self.streams.num_agents}"
        who = f"{place} of actor {self.index}"
        fix = "mend the environment; seed, action and episode step above say how to get there"
        if call == "state":
            fix += "; central_state='observations' learns without it"
        call = call or ("reset" if actions is None or self.streams.resetting else "step")
        return EnvironmentRaised(
            f"{who} raised {type(error).__name__} in {call}: {error_text(error)}",
            facts=facts,
            fix=fix,
            remote_traceback="".join(traceback.format_exception(error)),
        )

    def _where(self, stream: int, actions: NDArray[Any] | None) -> dict[str, object]:
        """Facts common to all reports of a failed step: of the environment of a stream, with all its actions.

        `stream` is -1 for all streams of a vector environment. An environment is seeded by its first stream.
        """
        facts: dict[str, object] = {"actor": self.index, "pid": os.getpid()}
        agents = self.streams.num_agents
        env = stream // agents
        if stream >= 0:
            facts["env index"] = env
            facts["episode step"] = self._row - int(self._began_at[stream])
        if actions is not None:
            of_env = actions if stream < 0 else actions[env * agents : (env + 1) * agents]
            own = of_env[0] if stream >= 0 and agents == 1 else of_env
            facts["action"] = np.array2string(np.asarray(own), threshold=20)
        facts["seed"] = self._env_seeds[max(env, 0) * agents]
        return facts
