"""Checkpoints of a learner, and their folder in a run's directory.

Each is one file that is refused unless complete and valid (`tensor_file.py`):

header     "meta"   `CheckpointMeta`
           "state"  the state's tree (`state_tree.py`)
0, 1, ...           the arrays and tensors of the state, in the order of the tree
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.errors import AsyncRLError, CheckpointError, error_text
from asyncrl.storage.atomic_file import replaced_atomically, sync_directory
from asyncrl.storage.checkpoint_meta import CheckpointMeta, meta_from_json, meta_to_json
from asyncrl.storage.replay_file import SUFFIX
from asyncrl.storage.state_tree import from_tree, tree_of
from asyncrl.storage.tensor_file import (
    FileKind,
    Shapes,
    is_whole,
    read_tensors,
    refused,
    short,
    stored,
    write_tensors,
)

__all__ = ["CHECKPOINT", "CheckpointFolder", "CheckpointMeta", "SavedPolicy", "load", "read_policy", "save"]

LATEST = "latest"


@dataclass(frozen=True)
class SavedPolicy:
    """Part of a checkpoint from which a policy is made.

    Attributes:
        meta: the checkpoint's header; `meta.options` rebuilds the algorithm, `meta.spec` its policy.
        weights: flat `[weight_count]` float32, in the policy's order.
        critics: `[C, P]` float32, weights of the learner's critics when the checkpoint was written; None without.
    """

    meta: CheckpointMeta
    weights: NDArray[np.float32]
    critics: NDArray[np.float32] | None = None


def save(path: Path, state: Mapping[str, Any], meta: CheckpointMeta) -> None:
    """Write a checkpoint atomically: at any time `path` is the complete old file or the complete new one.

    Args:
        path: the file; its directory must exist.
        state: nested dicts, lists and tuples of tensors, NumPy arrays, numbers, strings, bytes and None. `read_policy`
            returns the entries `"weights"` (flat float32) and `"critics"`, or those of `"current"`.
        meta: the header.

    Raises:
        OSError: the file cannot be written.
        TypeError: the state holds a value of another type.
    """
    tree, arrays = tree_of(state)
    write_tensors(path, CHECKPOINT, {"meta": meta_to_json(meta), "state": tree}, stored(arrays))


def load(
    path: Path, *, expect_env: str | None = None, expect_algo: str | None = None
) -> tuple[dict[str, Any], CheckpointMeta]:
    """Read a checkpoint; tensors are on the CPU, and tensors and arrays are the caller's own.

    Raises:
        CheckpointError: the file is missing, damaged, of another format version, environment or algorithm
            (ASYNC019; the text names the file and the check that failed).
    """
    tree, meta, arrays = _read(path)
    for what, expected, got in (("environment", expect_env, meta.env), ("algorithm", expect_algo, meta.algo)):
        if expected is not None and got != expected:
            raise refused(
                path,
                f"the checkpoint is of another {what}: {got}, not {expected}",
                what,
                f"choose a checkpoint of {expected}",
            )
    return _state(path, tree, arrays), meta


def read_policy(path: Path) -> SavedPolicy:
    """Read the weights of a checkpoint, and the header from which their policy is built; without torch.

    A file that was written for the best evaluation has the weights that were evaluated and those of its own steps. The
    latter are read by its number of steps and as `latest`, the former by any other name, as `best`.

    Raises:
        CheckpointError: see `load`; or the checkpoint has no weights, or they are NaN or infinite.
    """
    tree, meta, arrays = _read(path)
    state = _state(path, tree, arrays, only=("weights", "critics", "current"))
    if isinstance(current := state.get("current"), dict) and (path.name.isdecimal() or path.name == LATEST):
        state, scale = current, current.get("reward_scale")
        scale = float(scale) if isinstance(scale, int | float) else None
        meta = replace(meta, weights_env_steps=None, return_mean=None, policy_returns={}, reward_scale=scale)
    weights: Any = state.get("weights")
    critics: Any = state.get("critics")
    if not _is_float32(weights, 1) or not (critics is None or _is_float32(critics, 2)):
        raise refused(path, "the checkpoint holds no policy weights", "weights", "choose another checkpoint")
    if not np.isfinite(weights).all():
        raise refused(path, "the checkpoint's weights are NaN or infinite", "weights", _before(path))
    return SavedPolicy(meta, weights, critics)


def _is_float32(array: Any, axes: int) -> bool:
    return isinstance(array, np.ndarray) and array.dtype == np.float32 and array.ndim == axes


def does_not_fit(path: Path, what: str) -> CheckpointError:
    """Make the error ASYNC019 for a checkpoint that does not fit the options, the environment or this version."""
    return refused(path, f"the checkpoint does not fit: {what}", "options", _before(path))


@contextlib.contextmanager
def refused_if_damaged(path: Path) -> Iterator[None]:
    """Turn an error about a missing or wrong part of the checkpoint into `CheckpointError` (ASYNC019)."""
    try:
        yield
    except AsyncRLError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        lacks = f"it lacks {error}" if isinstance(error, KeyError) else error_text(error)
        raise does_not_fit(path, lacks or type(error).__name__) from error


def _read(path: Path) -> tuple[list[Any], CheckpointMeta, dict[str, NDArray[Any]]]:
    def parse(header: Any, shapes: Shapes) -> tuple[list[Any], CheckpointMeta]:
        return list(header["state"]), meta_from_json(header["meta"])

    (tree, meta), arrays = read_tensors(path, CHECKPOINT, parse)
    return tree, meta, arrays


def _state(
    path: Path, tree: list[Any], arrays: dict[str, NDArray[Any]], only: tuple[str, ...] | None = None
) -> dict[str, Any]:
    """Make the state, or its entries `only`; no code of the file is executed, and no array is larger than the file."""
    try:
        if only is not None:
            tree = [*tree[:1], *(entry for entry in tree[1:] if entry[0] in only)]
        state = from_tree(tree, arrays)
        if not isinstance(state, dict):
            raise TypeError(f"it holds a {type(state).__name__}, not a dict")
        return state
    except (AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise refused(
            path,
            f"the checkpoint's state is not one that asyncrl writes: {short(error)}",
            "state",
            "do not use a file that somebody else may have made; " + _before(path),
        ) from None


def _before(path: Path) -> str:
    """Advice instead of loading `path`: the newest other numbered checkpoint beside it that is complete."""
    try:
        others = [p for p in path.parent.iterdir() if p.name.isdecimal() and not p.samefile(path)]
    except OSError:
        others = []
    for other in sorted(others, key=lambda p: int(p.name), reverse=True):
        if is_whole(other, CHECKPOINT):
            return f"use the one before it, {other}"
    return "choose another checkpoint of the run"


CHECKPOINT = FileKind("checkpoint", "the checkpoint", _before)


class CheckpointFolder:
    """Folder `checkpoints/` of a run: `latest`, `best`, and the newest few files named by their environment steps.

    `latest` and `best` are hard links to a numbered file: they need no space, and remain when that file is removed. On
    a file system without hard links they are copies. Called from one thread at a time.
    """

    def __init__(self, directory: Path, keep: int = 3) -> None:
        """Use `directory`, created at the first save; `keep` is the number of numbered files to keep."""
        if keep < 1:
            raise ValueError(f"keep must be at least 1, got {keep}")
        self.directory = directory
        self.keep = keep

    def save(
        self, state: Mapping[str, Any], meta: CheckpointMeta, *, best: bool = False, latest: bool = True
    ) -> Path:
        """Write `<env_steps>`, link it as `latest` and `best` if so set, remove the oldest; returns the path.

        A checkpoint with rows (`replay_file.py`), and one that is the latest, removes the rows of those before it: only
        one rows file is kept, and none where the run keeps no rows any more.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        for left_by_a_kill in self.directory.glob(".*.tmp"):
            left_by_a_kill.unlink(missing_ok=True)
        path = self.directory / str(meta.env_steps)
        save(path, state, meta)
        for name in ("latest",) * latest + ("best",) * best:
            self._name(path, name)
        rows = state["run"].get("rows") if "run" in state else None
        for before in self.directory.glob(f"*{SUFFIX}") if rows is not None or latest else ():
            if before.name != rows:
                before.unlink(missing_ok=True)
        # Higher numbers are of the part that a run resumed from an earlier checkpoint has left behind.
        oldest_first = sorted(self.steps(), key=lambda steps: (steps <= meta.env_steps, steps))
        for old in oldest_first[: -self.keep]:
            (self.directory / str(old)).unlink(missing_ok=True)
        return path

    def steps(self) -> list[int]:
        """Environment steps of the existing numbered files, ascending."""
        if not self.directory.is_dir():
            return []
        return sorted(int(path.name) for path in self.directory.iterdir() if path.name.isdecimal())

    def file(self, name: str) -> Path:
        """Path of the checkpoint `name`. Raises `CheckpointError`, which names those that exist, if there is none."""
        file = self.directory / name
        if file.is_file():
            return file
        there = sorted(found.name for found in self.directory.glob("[!.]*") if found.suffix != SUFFIX)
        run = self.directory.parent
        if not there and (run / "config.toml").exists():
            what = f"the run in {run} has no checkpoint: it ended before it saved one"
            raise refused(file, what, "open", "train again, in another directory")
        if not there:
            what = f"{run} is no run's directory, or its run has saved nothing: there are no checkpoints"
            raise refused(file, what, "open", "name the directory of a run, or a policy file")
        what = f"the run has no checkpoint {name!r}; it has {', '.join(there)}"
        raise refused(file, what, "open", "choose one of these")

    def _name(self, path: Path, name: str) -> None:
        temporary = self.directory / f".{name}.{os.getpid()}.tmp"
        temporary.unlink(missing_ok=True)
        try:
            os.link(path, temporary)
        except OSError:  # a file system without hard links
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            with replaced_atomically(self.directory / name) as copy, path.open("rb") as file:
                shutil.copyfileobj(file, copy)
            return
        temporary.replace(self.directory / name)
        sync_directory(self.directory)
