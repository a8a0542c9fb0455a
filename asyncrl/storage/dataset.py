"""Datasets of episodes in Minari's format: written, and read into a ring.

    DIR/data/metadata.json    spaces, environment, counts, origin
    DIR/data/main_data.hdf5   a group per episode: observations [T + 1, ...], actions, rewards, ends [T]

This is the place where Minari itself finds a dataset: with `MINARI_DATASETS_PATH` at the folder around DIR,
`minari.load_dataset` takes DIR's name. Images are kept as they are; Minari's default is JPEG, which changes them.

A dataset that is read becomes an experience ring of one stream, with a RESET row after each episode, as an actor would
have written it. So the replay samples from it in place like from any other ring: n-step returns, frame stacks,
relabelled goals and priorities need no second implementation. Nothing writes to it, and it is read once, at the start.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from asyncrl.acting.policies import float32_bounds
from asyncrl.envs.dataset_spaces import (
    observations_of_rows,
    real_numbers,
    require_same_spaces,
    rows_of_observations,
    spaces_of,
    stored_actions,
)
from asyncrl.errors import (
    ActionsBeyondBounds,
    ConfigurationError,
    ResourceError,
    SpacesDoNotFit,
    describe_error,
    warn,
)
from asyncrl.interfaces import RESET, TERMINATED, TRUNCATED, BoxAction, EnvSpec
from asyncrl.shm.ring import RingLayout, RingReader
from asyncrl.shm.ring_rows import RingPosition, begin_at
from asyncrl.shm.segment import Segment
from asyncrl.shm.unnamed_file import file_size_limit
from asyncrl.version import __version__

DATA = "data"
"""Folder of a dataset in which Minari keeps its files."""
FLUSH_STEPS = 20_000
"""Steps of complete episodes that are written together."""
COLUMN_BYTES, SPARE_BYTES = 4_096, 65_536
"""Bounds of what HDF5 needs beside the arrays, for each column of an episode (3 kB were seen) and for the file."""

ROUNDING = 1e-5
"""Part of a bound by which an action may exceed it: bounds and actions were rounded, or scaled by a wrapper."""


@dataclass(frozen=True)
class Episode:
    """One episode of T steps, of one environment.

    Attributes:
        obs: `[T + 1, *obs_shape]`, as rows of a ring; the last one is the final observation.
        action: `[T, ...]`, in the environment's form.
        reward: `[T]`.
        terminated: whether the last step reached a terminal state; else the episode was cut off there.
    """

    obs: NDArray[Any]
    action: NDArray[Any]
    reward: NDArray[Any]
    terminated: bool


def require_minari() -> Any:
    """Import Minari with its HDF5 storage. Raises `ConfigurationError` (ASYNC017) if it is not installed."""
    try:
        import h5py  # noqa: F401
        import minari
        from minari.dataset.minari_storage import MinariStorage  # noqa: F401
    except ImportError as error:
        raise ConfigurationError(
            f"datasets need Minari and h5py: {error}", fix='pip install "asyncrl[data]"'
        ) from error
    return minari


class DatasetWriter:
    """Writer of one new dataset; a context, at whose end everything is written.

    Args:
        folder: DIR; made if it does not exist.
        env: one environment, or a vector, as `EnvSource.build` makes it; gives the spaces.
        spec: its specification.
        algorithm, description: entries of the dataset's metadata.

    Attributes:
        folder: DIR.
        steps, episodes: added so far.

    Raises:
        ConfigurationError: there is a dataset in DIR, DIR cannot be made, or Minari is not installed (ASYNC017).
        SpacesDoNotFit: an observation has a key that HDF5 does not hold (ASYNC005).
    """

    def __init__(self, folder: Path, env: Any, spec: EnvSpec, *, algorithm: str, description: str) -> None:
        library = require_minari()
        self.folder, self.steps, self.episodes = folder, 0, 0
        self._space, action_space = spaces_of(env)
        self._spec, self._waiting = spec, list[Episode]()
        refuse_existing(folder)
        _refuse_keys(spec)
        from minari.dataset.minari_storage import MinariStorage

        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._storage = MinariStorage.new(
                folder.resolve() / DATA,  # Minari joins a relative path with itself
                observation_space=self._space,
                action_space=action_space,
                env_spec=_registered(env),
                data_format="hdf5",
                jpeg_encoding=False,
            )
        except OSError as error:
            raise ConfigurationError(
                f"the dataset {folder} cannot be written: {error.strerror}", fix="name another folder"
            ) from error
        self._storage.update_metadata(
            {
                "dataset_id": dataset_id(folder),
                "minari_version": library.__version__,
                "algorithm_name": algorithm,
                "description": f"{description}; written by asyncrl {__version__}",
            }
        )

    def add(self, episode: Episode) -> None:
        """Add an episode of at least one step; it is written with others."""
        self._waiting.append(episode)
        self.steps, self.episodes = self.steps + len(episode.reward), self.episodes + 1
        if sum(len(waiting.reward) for waiting in self._waiting) >= FLUSH_STEPS:
            self._flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._flush()

    def _flush(self) -> None:
        """Write the episodes that wait; the dataset is complete up to them. Raises `ResourceError` on a full disk."""
        episodes, self._waiting = self._waiting, []
        if not episodes:
            return
        if (code := self._lack_of_space(episodes)) is not None:
            self.steps -= sum(len(episode.reward) for episode in episodes)
            self.episodes -= len(episodes)
            raise ResourceError(
                f"the dataset cannot be written: {os.strerror(code)}",
                facts={"folder": self.folder, "written": f"{self.steps:,} steps, {self.episodes:,} episodes"},
                fix="make space, and name another folder or remove that one",
            )
        self._storage.update_episodes([self._buffer(episode) for episode in episodes])

    def _lack_of_space(self, episodes: Sequence[Episode]) -> int | None:
        """Error code of a disk without room for these episodes, else None: HDF5 crashes the process if it meets one."""
        columns = len(self._spec.leaves or (1,)) + 4
        arrays = sum(
            own.obs.nbytes + np.asarray(own.action).nbytes + 10 * len(own.reward) for own in episodes
        )
        needed = arrays + len(episodes) * columns * COLUMN_BYTES + SPARE_BYTES
        if shutil.disk_usage(self.folder).free < needed:
            return errno.ENOSPC
        limit, file = file_size_limit(), self.folder / DATA / "main_data.hdf5"
        size = file.stat().st_size if file.exists() else 0
        return errno.EFBIG if limit is not None and size + needed > limit else None

    def _buffer(self, episode: Episode) -> Any:
        from minari.data_collector.episode_buffer import EpisodeBuffer

        terminations, truncations = np.zeros((2, len(episode.reward)), np.bool_)
        (terminations if episode.terminated else truncations)[-1] = True
        columns: dict[str, Any] = {
            "observations": observations_of_rows(episode.obs, self._space),
            "actions": episode.action,
            "rewards": episode.reward,
            "terminations": terminations,
            "truncations": truncations,
        }
        return EpisodeBuffer(**columns, infos={})


def refuse_agents(spec: EnvSpec) -> None:
    """Raise `SpacesDoNotFit` (ASYNC005) for an environment of several agents."""
    if spec.agents:
        raise SpacesDoNotFit(
            f"{spec.name} has {len(spec.agents)} agents, and an episode of a Minari dataset has one.",
            facts={"agents": ", ".join(agent.name for agent in spec.agents)},
            fix="take an environment with one agent",
        )


def _refuse_keys(spec: EnvSpec) -> None:
    """Raise `SpacesDoNotFit` (ASYNC005) if HDF5 takes a key of an observation for a path, or for none."""
    keys = (key for leaf in spec.leaves for key in leaf.path)
    for key in keys:
        if "/" in key or key in ("", "."):
            raise SpacesDoNotFit(
                f"An observation of {spec.name} has the key {key!r}, which HDF5, the format of Minari, cannot hold.",
                fix="rename it by a gymnasium.ObservationWrapper: a key has no /, is not empty and not '.'",
            )


def refuse_existing(folder: Path) -> None:
    """Raise `ConfigurationError` (ASYNC017) if there is a dataset in `folder`."""
    if (folder / DATA / "metadata.json").exists():
        raise ConfigurationError(
            f"there is a dataset in {folder} already", fix="name another folder, or remove that one"
        )


def dataset_id(folder: Path) -> str:
    """Minari's name of the dataset in `folder`: the folder's, with `-v0` unless it ends with a version."""
    name = re.sub(r"[^-\w]", "-", folder.resolve().name) or "dataset"
    return name if re.search(r"-v\d+$", name) else f"{name}-v0"


def _registered(env: Any) -> Any:
    """Gymnasium's spec of the environment, by which Minari can make it again; None if it has none."""
    inner = env.env if hasattr(env, "packed_leaves") else env
    spec: Any = getattr(inner, "spec", None)
    try:
        spec.to_json()
    except Exception:  # none, or one of an environment that is not made from an id alone
        return None
    return spec


def open_dataset(path: str) -> Any:
    """Return Minari's storage of the dataset `path`: its folder, or the name of one on this machine.

    Raises:
        ConfigurationError: there is none, it cannot be read, or it has no episodes (ASYNC017).
    """
    require_minari()
    from minari.dataset.minari_storage import MinariStorage

    folder = Path(path).expanduser().resolve()
    root = Path(os.environ.get("MINARI_DATASETS_PATH") or "~/.minari/datasets").expanduser()
    places = [folder / DATA, folder, root.resolve() / path / DATA]
    found = next((place for place in places if (place / "metadata.json").exists()), None)
    if found is None:
        raise ConfigurationError(
            f"there is no dataset in {path}: it has no {DATA}/metadata.json",
            facts={"also looked in": places[2]},
            fix="give the folder of a Minari dataset, such as one that `asyncrl record RUN --out DIR` writes",
        )
    try:
        storage = MinariStorage.read(found)
        episodes, _ = int(storage.total_episodes), int(storage.total_steps)
    except Exception as error:
        raise _unreadable(path, error) from error
    if episodes == 0:
        raise _empty(path, "has no episodes")
    return storage


def read_dataset(path: str, spec: EnvSpec, ahead: int, frame_stack: int = 1) -> tuple[Segment, RingReader]:
    """Read a dataset into a new ring of one stream; its memory is the segment, which the caller closes.

    Args:
        path: folder of the dataset, or its name on this machine.
        spec: the environment.
        ahead: rows that a sample needs after its first; as many RESET rows follow the last episode.
        frame_stack: observations in a stack; a ring has as many slots as one needs, however few steps there are.

    Raises:
        ConfigurationError: see `open_dataset`, or a value is not finite.
        SpacesDoNotFit: its spaces are not the environment's, or that has several agents (ASYNC005).
        SharedMemoryTooSmall: it does not fit in memory (ASYNC008).
    """
    refuse_agents(spec)
    storage = open_dataset(path)
    require_same_spaces(path, storage.observation_space, storage.action_space, spec)
    rows = int(storage.total_steps) + int(storage.total_episodes) + ahead + 1
    slots = max(rows, ahead + frame_stack)
    layout = RingLayout(num_envs=1, num_slots=1 << (slots - 1).bit_length(), spec=spec)
    segment = Segment.create("dataset", layout.arrays())
    try:
        # An error's traceback would keep the generator, and with it the file, open.
        with contextlib.closing(_episodes(storage, path)) as episodes:
            ring, space = RingReader(segment, layout), storage.observation_space
            return segment, _filled(ring, episodes, space, ahead, path)
    except BaseException:
        segment.close()
        raise


def _filled(
    ring: RingReader, episodes: Iterator[dict[str, Any]], space: Any, ahead: int, path: str
) -> RingReader:
    """Write all episodes, with observations of `space`, and `ahead` RESET rows, into a new ring, and publish them."""
    end = 0
    for episode in episodes:
        end = _put(ring, end, episode, space, path)
    if end == 0:
        raise _empty(path, "has no steps")
    ring.flags[0, end : end + ahead] = RESET
    steps = int(np.count_nonzero(ring.flags[0, :end] & RESET == 0))
    _warn_of_actions_beyond_bounds(ring.action[0, :end][ring.flags[0, :end] & RESET == 0], ring, path)
    begin_at(ring, RingPosition(end + ahead, end + ahead, steps, 0, 0))
    return ring


def _warn_of_actions_beyond_bounds(actions: NDArray[Any], ring: RingReader, path: str) -> None:
    """Warn (ASYNC050) of actions `[T, *act_shape]` that the environment does not take, but for what is rounding.

    They are learned from as they are, as other libraries do: only their author knows whether the environment clipped
    them, or had other bounds.
    """
    spec = ring.layout.spec
    if not isinstance(spec.action, BoxAction):
        return
    low, high = float32_bounds(spec.action)
    excess = np.maximum(low - ROUNDING * np.abs(low) - actions, actions - high - ROUNDING * np.abs(high))
    each = excess.reshape(len(actions), -1).max(axis=1)
    if count := int(np.count_nonzero(each > 0)):
        warn(
            ActionsBeyondBounds(
                f"[ASYNC050] {count:,} of {len(each):,} actions of the dataset {path} are outside of the bounds of "
                f"{spec.name} ({spec.action}), by up to {each.max():.3g}; they are learned from as they are, and the "
                "policy's own actions are inside: if the environment clipped them, clip the dataset's `actions` too"
            )
        )


def _episodes(storage: Any, path: str) -> Generator[dict[str, Any], None, None]:
    try:
        yield from storage.get_episodes(range(int(storage.total_episodes)))
    except Exception as error:  # h5py raises all kinds of a damaged file
        raise _unreadable(path, error) from error


def _put(ring: RingReader, first: int, episode: dict[str, Any], space: Any, path: str) -> int:
    """Write an episode of T steps to the T + 1 rows from `first` on; returns the position after them."""
    try:
        obs, action, reward = _columns(episode, ring.layout.spec, space)
    except (TypeError, ValueError) as error:
        raise _unreadable(path, error, episode["id"]) from error
    for name, values in (("an observation", obs), ("an action", action), ("a reward", reward)):
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise ConfigurationError(
                f"{name} of the dataset {path} is NaN or infinite",
                facts={"episode": episode["id"]},
                fix="leave that episode out: minari.load_dataset(...).filter_episodes(...)",
            )
    steps = len(reward)
    if steps == 0:
        return first
    for name in ("terminations", "truncations"):
        _require_one_episode(np.asarray(episode[name]), steps, episode["id"], path)
    if first + steps + 1 > ring.layout.num_slots:
        wrong = ValueError("its episodes have more steps than its metadata.json says")
        raise _unreadable(path, wrong, episode["id"])
    at = slice(first, first + steps)
    ring.obs[0, first : first + steps + 1] = obs
    ring.action[0, at], ring.reward[0, at] = action, reward
    terminated = bool(np.asarray(episode["terminations"])[-1])
    ring.flags[0, first + steps - 1] = TERMINATED if terminated else TRUNCATED
    ring.flags[0, first + steps] = RESET
    return first + steps + 1


def _columns(
    episode: dict[str, Any], spec: EnvSpec, space: Any
) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.float32]]:
    """Observations `[T + 1, ...]`, actions `[T, ...]` and rewards `[T]` in storage form; a float may be infinite.

    Raises:
        ValueError, TypeError: they have another type, shape or length, or do not fit the spec.
    """
    with np.errstate(over="ignore"):  # a float that float32 does not hold becomes infinite
        reward = real_numbers("rewards", episode["rewards"]).astype(np.float32)
        obs = rows_of_observations(episode["observations"], spec, space)
        action = stored_actions(episode["actions"], spec)
    steps = len(reward)
    if reward.ndim > 1:
        raise ValueError(f"rewards must have shape [T], got {reward.shape}")
    if steps and (len(obs), len(action)) != (steps + 1, steps):
        raise ValueError(
            f"an episode of {steps} rewards must have as many actions and one observation more, got "
            f"{len(action)} and {len(obs)}"
        )
    return obs, action, reward


def _require_one_episode(ends: NDArray[Any], steps: int, episode: object, path: str) -> None:
    """Raise `ConfigurationError` (ASYNC017) unless an episode of `steps` steps ends at most in its last one."""
    if len(ends) != steps:
        wrong = ValueError(f"an episode of {steps} rewards must have as many ends, got {len(ends)}")
        raise _unreadable(path, wrong, episode)
    within = np.flatnonzero(ends[:-1])
    if within.size:
        raise ConfigurationError(
            f"an episode of the dataset {path} ends before its last step, and what follows is of another episode",
            facts={
                "episode": episode,
                "ends within": f"{within.size}, the first at step {within[0]} of {steps}",
            },
            fix="divide it where terminations or truncations are true: an episode of Minari's format is one of the "
            "environment",
        )


def _unreadable(path: str, error: Exception, episode: object = None) -> ConfigurationError:
    return ConfigurationError(
        f"the dataset {path} cannot be read: {describe_error(error)}",
        facts={} if episode is None else {"episode": episode},
        fix="check it with Minari itself: minari.MinariDataset(DIR + '/data')",
    )


def _empty(path: str, what: str) -> ConfigurationError:
    return ConfigurationError(
        f"the dataset {path} is empty: it {what}", fix="record some: asyncrl record RUN --out DIR"
    )
