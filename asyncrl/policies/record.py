"""Recording of a trained policy's episodes, and of the replay that a run has kept, as datasets in Minari's format."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.acting.frames import FrameStacks
from asyncrl.acting.recurrent import memory_of
from asyncrl.actors.streams import ActionForm, PlainStreams, Streams, VectorStreams
from asyncrl.algorithms import ALGORITHMS
from asyncrl.envs.checks import close_env, refuse_non_finite, require_same_spaces, spec_of
from asyncrl.envs.dataset_spaces import spaces_of
from asyncrl.envs.factory_pickle import pack_policy
from asyncrl.errors import ConfigurationError, environment_calls
from asyncrl.interfaces import RESET, TERMINATED, TRUNCATED
from asyncrl.policies.load import checkpoint_file
from asyncrl.policies.portable_policy import PortablePolicy
from asyncrl.protocols import Policy
from asyncrl.storage.checkpoint import load as load_checkpoint
from asyncrl.storage.checkpoint_meta import CheckpointMeta
from asyncrl.storage.dataset import DatasetWriter, Episode, refuse_agents, refuse_existing, require_minari
from asyncrl.storage.replay_file import read_rows, split_rings
from asyncrl.storage.run_files import environment_of_run

FINAL_STEPS = np.iinfo(np.int64).max
"""Steps of training after which exploration has its final rate."""


@dataclass(frozen=True)
class Recorded:
    """A recorded dataset.

    Attributes:
        folder: where it is.
        steps, episodes: how many it holds.
        returns: undiscounted returns of the whole episodes, in order: those that the environment ended, and whose
            beginning is in the dataset.
    """

    folder: Path
    steps: int
    episodes: int
    returns: tuple[float, ...]


def record(
    policy: PortablePolicy,
    out: str | os.PathLike[str],
    *,
    steps: int,
    deterministic: bool = True,
    seed: int = 0,
    num_envs: int = 8,
) -> Recorded:
    """Play a policy in its environment and write every step to a dataset, which Minari loads.

    The environments are built in this process, as for an evaluation. Episodes are written in the order in which they
    end. After `steps` the episodes in progress are cut off: their last step is truncated.

    Args:
        policy: the policy of a run or of `asyncrl.load`, which is not changed.
        out: folder of the dataset.
        steps: steps over all environments, rounded up to one of each.
        deterministic: greedy actions; else explore at the schedule's final rate, or draw from the policy.
        seed: of environments and draws.
        num_envs: environments side by side; a vector environment has its own number.

    Raises:
        ConfigurationError: there is a dataset in `out`, or Minari is not installed (ASYNC017).
        SpacesDoNotFit: the environment has several agents, or other spaces than the policy by now (ASYNC005).
        EnvironmentRaised: the environment raised an exception (ASYNC002).
        NonFiniteStep: an observation or a reward is NaN or infinite (ASYNC011).
        ResourceError: the disk is full; the episodes that were written before are kept.
    """
    require_minari()
    folder, spec = Path(out).expanduser(), policy.spec
    refuse_existing(folder)
    refuse_agents(spec)
    env, returns = policy.source.build(), []
    more = [] if spec.vector_envs else [policy.source.build() for _ in range(num_envs - 1)]
    streams = VectorStreams(env, spec) if spec.vector_envs else PlainStreams([env, *more], spec)
    how = "greedy actions" if deterministic else "exploring actions"
    try:
        require_same_spaces(spec, spec_of(policy.source.name, env))
        about = f"{policy.describe()}, {how}, seed {seed}"
        writer = DatasetWriter(folder, env, spec, algorithm=policy.meta.algo, description=about)
        player = _Player(policy, streams, spaces_of(env), deterministic, seed)
        with writer:
            for episode, ended in player.episodes(steps):
                writer.add(episode)
                returns += [float(episode.reward.sum())] * ended
    finally:
        streams.close()
    return Recorded(folder, writer.steps, writer.episodes, tuple(returns))


def record_replay(
    run: str | os.PathLike[str], out: str | os.PathLike[str], *, checkpoint: str | int | None = None
) -> Recorded:
    """Write the replay that a run has kept with a checkpoint as a dataset, which Minari loads.

    The episodes of each environment follow one another. The first one of an environment may have lost its beginning,
    whose rows the replay holds no more, and the last one is cut off: its last step is truncated.

    Args:
        run: directory of the run. A pickle of its environment is unpickled, which can run any code of its author.
        out: folder of the dataset.
        checkpoint: name of the checkpoint, `latest` by default. Rows are kept of the last one only.

    Raises:
        ConfigurationError: the run has no replay or has not kept it, there is a dataset in `out`, or Minari is not
            installed (ASYNC017).
        CheckpointError: the checkpoint or its rows are missing or damaged (ASYNC019).
        SpacesDoNotFit: the environment has several agents (ASYNC005).
    """
    require_minari()
    folder, chosen = Path(out).expanduser(), "latest" if checkpoint is None else checkpoint
    path = checkpoint_file(Path(run).expanduser(), chosen)
    refuse_existing(folder)
    state, meta = load_checkpoint(path)
    refuse_agents(meta.spec)
    rows, firsts = _kept_rows(path, state, meta), state["run"]["rings"]["first"].tolist()
    env, returns = environment_of_run(path.parent.parent, meta.env).build(), []
    try:
        form, about = (
            ActionForm(spaces_of(env)[1]),
            f"replay of {meta.algo} on {meta.env} after {meta.env_steps:,} steps",
        )
        with DatasetWriter(folder, env, meta.spec, algorithm=meta.algo, description=about) as writer:
            for ring, first in zip(split_rings(rows), firsts, strict=True):
                for episode, whole in episodes_of_ring(written_rows(ring), form, begins=first == 0):
                    writer.add(episode)
                    returns += [float(episode.reward.sum())] * whole
    finally:
        close_env(env)
    return Recorded(folder, writer.steps, writer.episodes, tuple(returns))


def _kept_rows(path: Path, state: Mapping[str, Any], meta: CheckpointMeta) -> dict[str, NDArray[Any]]:
    loop = getattr(ALGORITHMS.get(meta.algo), "update_loop", "replay")
    name = state.get("run", {}).get("rows") if isinstance(state.get("run"), dict) else None
    if loop in ("segments", "dataset"):
        raise ConfigurationError(
            f"a run of {meta.algo} has no replay", fix="record its policy: asyncrl record RUN --out DIR"
        )
    if name is None or not (path.parent / str(name)).exists():
        why = "was not told to keep it" if name is None else "keeps it with its last checkpoint only"
        raise ConfigurationError(
            f"there is no replay beside the checkpoint {path}: the run {why}",
            fix="train with save_replay_buffer=True (--save-replay-buffer), or record the policy instead",
        )
    return read_rows(path.parent / str(name))


def written_rows(ring: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The saved rows of a ring without the first ones if no actor has written these.

    A run that was resumed without rows goes on behind those of before, whose slots are empty. An actor writes the
    version of its weights, from 1 on, to every row.
    """
    end = len(ring["version"]) - 1
    first = end - int(np.count_nonzero(ring["version"][:end]))
    streams = ("obs", "action", "reward", "flags")
    return {name: ring[name][:, first:] for name in streams} | {"incarnation": ring["incarnation"][first:]}


def episodes_of_ring(
    ring: Mapping[str, NDArray[Any]], form: ActionForm, *, begins: bool = True
) -> Iterator[tuple[Episode, bool]]:
    """Cut the saved rows of a ring into episodes, each with whether it is whole: has its beginning, and was ended.

    Args:
        ring: arrays by the names of `shm.ring_rows.arrays_of`; of the last row only the observation counts.
        form: conversion of actions to the environment's form.
        begins: whether an episode begins at the first row, unless that is a RESET row.
    """
    lives = ring["incarnation"]
    end = len(lives) - 1
    dies = np.zeros(end, np.bool_)
    dies[:-1] = lives[: end - 1] != lives[1:end]  # the last row's life is not known before it is published
    for obs, action, reward, flags in zip(
        *(ring[n] for n in ("obs", "action", "reward", "flags")), strict=True
    ):
        # Such a row has a final observation, but its action was not taken or has no successor.
        last = np.flatnonzero(((flags[:end] & RESET) != 0) | dies)
        first = 0
        for stop in [*last.tolist(), end]:
            if stop > first:
                over = int(flags[stop - 1])
                taken = form.batch(np.asarray(action[first:stop]))
                rewards = np.asarray(reward[first:stop], np.float64)
                episode = Episode(np.asarray(obs[first : stop + 1]), taken, rewards, bool(over & TERMINATED))
                yield episode, (begins or first > 0) and bool(over & (TERMINATED | TRUNCATED))
            first = stop + 1


class _Player:
    """Plays a policy in E streams, and cuts their rows into episodes.

    Args:
        policy: acts.
        streams: the environments; rows are those of a ring.
        spaces: observation space and action space of one environment.
        deterministic, seed: see `record`.
    """

    def __init__(
        self,
        policy: PortablePolicy,
        streams: Streams,
        spaces: tuple[Any, Any],
        deterministic: bool,
        seed: int,
    ) -> None:
        acting: Policy = pickle.loads(
            pack_policy(policy.policy)
        )  # the caller's goes on in streams of its own
        acting.load_weights(policy.weights)
        spec, self._policy, self._streams = policy.spec, acting, streams
        self._name, self._deterministic = spec.name, deterministic
        draws, self._seeds = np.random.SeedSequence(seed).spawn(2)
        self._rng = np.random.default_rng(draws)
        self._memory, self._form = memory_of(self._policy), ActionForm(spaces[1])
        count, shape = streams.num_envs, spec.observation_shape
        self._stacks = FrameStacks(count, self._policy.frame_stack, shape, spec.observation_dtype)
        # Structured observations come as rows; others keep the precision that the environment gives.
        dtype = spec.observation_dtype if spec.leaves else spaces[0].dtype
        self._obs, self._next = (np.empty((count, *shape), dtype) for _ in range(2))
        self._rows: list[list[tuple[NDArray[Any], Any, float]]] = [[] for _ in range(count)]

    def episodes(self, steps: int) -> Iterator[tuple[Episode, bool]]:
        """Yield episodes, each with whether the environment ended it, until `steps` are made."""
        made, rewards = 0, np.zeros(self._streams.num_envs)
        self._begin()
        refuse_non_finite(self._name, "observation", self._obs, "a recording", steps=made)
        while made < steps:
            actions = self._act()
            flags = self._step(actions, rewards)
            for what, values in (("observation", self._next), ("reward", rewards)):
                refuse_non_finite(self._name, what, values, "a recording", steps=made)
            for i, action in enumerate(self._form.batch(actions)):
                if flags.get(i) == RESET:
                    continue
                made += 1
                self._rows[i].append((self._obs[i].copy(), action, float(rewards[i])))
                if i in flags:
                    yield self._taken(i, self._next[i], bool(flags[i] & TERMINATED)), True
            self._go_on([i for i, flag in flags.items() if flag == RESET])
        for i, rows in enumerate(self._rows):
            if rows:
                yield self._taken(i, self._obs[i], terminated=False), False

    def _begin(self) -> None:
        count = self._streams.num_envs
        seeds = self._seeds.generate_state(count).tolist()
        with _environment_calls(self._name, "reset"):
            self._streams.reset(seeds, self._obs)
        self._policy.assign_streams(0, count, count)
        self._stacks.begin(slice(None), self._obs)
        if self._memory is not None:
            self._memory.forget(count)

    def _act(self) -> NDArray[Any]:
        if self._deterministic:
            return self._policy.greedy(self._stacks.array)
        return self._policy.act(self._stacks.array, self._rng, FINAL_STEPS)[0]

    def _step(self, actions: NDArray[Any], rewards: NDArray[np.float64]) -> dict[int, int]:
        """Step one row into `_next`; returns the flags of the streams that have some."""
        with _environment_calls(self._name, "step"):
            return dict(map(tuple, self._streams.step(actions, self._next, rewards).tolist()))

    def _go_on(self, began: list[int]) -> None:
        """Make the next observations the present ones; episodes have begun in the streams `began`."""
        self._obs, self._next = self._next, self._obs
        self._stacks.push(slice(None), self._obs)
        for i in began:
            self._stacks.begin(i, self._obs[i])
            if self._memory is not None:
                self._memory.begin(i)

    def _taken(self, stream: int, final: NDArray[Any], terminated: bool) -> Episode:
        """The episode of a stream's rows, which are forgotten."""
        obs, action, reward = zip(*self._rows[stream], strict=True)
        self._rows[stream] = []
        return Episode(np.stack([*obs, final]), np.stack(action), np.array(reward), terminated)


def _environment_calls(name: str, call: str) -> AbstractContextManager[None]:
    fix = "mend the environment; what was recorded before is in the dataset"
    return environment_calls(name, f"in {call}", fix, lambda: {"environment": name})
