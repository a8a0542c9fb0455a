"""Spaces of a dataset: compared with an environment's, and its values converted to rows and back.

A dataset holds values of the environment's spaces. Rings hold rows: structured observations packed (`packing.py`),
actions in storage form (`interfaces.py`). Packing loses nothing but text and what float32 does not hold: the precision
of float64, and of whole numbers above 2^24.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from asyncrl.envs.checks import spec_of
from asyncrl.envs.observations import rows_of, stored_as, text_of_leaves
from asyncrl.envs.packing import STRUCTURED, Packing, is_text, leaves_of
from asyncrl.errors import SpacesDoNotFit
from asyncrl.interfaces import BoxAction, DiscreteAction, EnvSpec, Leaf


def spaces_of(env: Any) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
    """Observation space, without its text, and action space of one environment that `EnvSource.build` has made.

    Of a vector they are those of one of its environments.
    """
    if getattr(env, "num_envs", None) is not None:
        return env.single_observation_space, env.single_action_space
    inner = env.env if hasattr(env, "packed_leaves") else env
    return _without_text(inner.observation_space), env.action_space


def _without_text(space: spaces.Space[Any]) -> spaces.Space[Any]:
    if isinstance(space, spaces.Dict):
        return spaces.Dict({k: _without_text(own) for k, own in space.spaces.items() if not is_text(own)})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([_without_text(own) for own in space.spaces if not is_text(own)])
    return space


def require_same_spaces(
    name: str, observation: spaces.Space[Any], action: spaces.Space[Any], spec: EnvSpec
) -> None:
    """Raise `SpacesDoNotFit` (ASYNC005) unless the spaces of the dataset `name` are those of the environment."""
    leaves = leaves_of(observation) if isinstance(observation, STRUCTURED) else None
    as_rows = {} if leaves is None else {"packed_leaves": leaves}
    row_space = observation if leaves is None else Packing(observation, leaves).space
    own = spec_of(name, SimpleNamespace(observation_space=row_space, action_space=action, **as_rows))
    for what, here, there in (
        ("observation", _stored(own), _stored(spec)),
        ("action", _bare(own), _bare(spec)),
    ):
        if here != there:
            raise SpacesDoNotFit(
                f"The dataset {name} has another {what} space than {spec.name}.",
                facts={"of the dataset": _named(own, what), "of the environment": _named(spec, what)},
                fix="give a dataset of this environment, or the environment that it was recorded in",
            )


def _named(spec: EnvSpec, what: str) -> str:
    """Text of a space that distinguishes what `_stored` and `_bare` do."""
    if what == "action":
        return str(spec.action)
    return text_of_leaves(spec.leaves) or f"{spec.observation_dtype} of shape {spec.observation_shape}"


def _stored(spec: EnvSpec) -> tuple[object, ...]:
    """The stored observation, without indices of Tuples: a dataset has no text, and the parts behind it move up."""
    paths = [tuple("" if key.isdigit() else key for key in leaf.path) for leaf in spec.leaves]
    leaves = [replace(stored_as(leaf), path=path) for leaf, path in zip(spec.leaves, paths, strict=True)]
    return spec.observation_dtype, spec.observation_shape, tuple(leaves)


def _bare(spec: EnvSpec) -> object:
    """The action space without its dtype, which Minari does not keep of a Discrete."""
    if isinstance(spec.action, DiscreteAction):
        return spec.action.n, spec.action.start
    return spec.action


def rows_of_observations(values: Any, spec: EnvSpec, space: spaces.Space[Any]) -> NDArray[Any]:
    """Convert observations of a dataset, a batch of T of `space`, to rows `[T, *obs_shape]` in storage dtype.

    Raises:
        ValueError: they do not fit the spec.
    """
    if spec.leaves:
        return rows_of(values, replace(spec, leaves=leaves_of(space) or ()))
    rows = _as_stored("observations", real_numbers("observations", values), np.dtype(spec.observation_dtype))
    if rows.shape[1:] != spec.observation_shape:
        raise ValueError(f"observations must have shape [T, *{spec.observation_shape}], got {rows.shape}")
    return rows


def real_numbers(name: str, values: Any) -> NDArray[Any]:
    """A column of a dataset as an array `[T, ...]`. Raises ValueError for what is no such array of real numbers."""
    array = np.asarray(values)
    if array.dtype.kind not in "biuf" or array.ndim == 0:
        raise ValueError(f"{name} must be an array of real numbers, got {array.dtype} of shape {array.shape}")
    return array


def _as_stored(name: str, values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Values in a storage dtype. Raises ValueError for a value that a dtype of whole numbers does not hold."""
    with np.errstate(invalid="ignore"):
        stored: NDArray[Any] = values.astype(dtype, copy=False)
    if dtype.kind != "f" and (changed := stored != values).any():
        raise ValueError(f"{name} must be {dtype}, got {values[changed][0]} among {values.dtype}")
    return stored


def observations_of_rows(rows: NDArray[Any], space: spaces.Space[Any]) -> Any:
    """Convert rows `[T, *obs_shape]` to a batch of T values of `space`, the inverse of `rows_of_observations`.

    Args:
        rows: as they lie in a ring.
        space: of one observation, without text.
    """
    if not isinstance(space, STRUCTURED):
        return rows.astype(space.dtype, copy=False)
    parts, at = {}, 0
    for leaf in leaves_of(space) or ():
        size = leaf.row_bytes if rows.dtype == np.uint8 else leaf.values
        parts[leaf.path] = _leaf_of_rows(rows[:, at : at + size], leaf)
        at += size
    return _nested(parts, space, ())


def _leaf_of_rows(part: NDArray[Any], leaf: Leaf) -> NDArray[Any]:
    if leaf.kind != "image" and part.dtype == np.uint8:
        part = np.ascontiguousarray(part).view(np.float32)
    if leaf.kind != "choices":
        return part.reshape(-1, *leaf.shape)
    ends = np.cumsum(leaf.choices)
    chosen = [part[:, end - n : end].argmax(axis=1) for n, end in zip(leaf.choices, ends, strict=True)]
    values: NDArray[Any] = np.stack(chosen, axis=1) + np.array(leaf.first)
    return values.reshape(-1, *leaf.shape)


def _nested(
    parts: dict[tuple[str, ...], NDArray[Any]], space: spaces.Space[Any], path: tuple[str, ...]
) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _nested(parts, own, (*path, key)) for key, own in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_nested(parts, own, (*path, str(i))) for i, own in enumerate(space.spaces))
    values: NDArray[Any] = parts[path].astype(space.dtype, copy=False)
    return values


def stored_actions(actions: Any, spec: EnvSpec) -> NDArray[Any]:
    """Convert actions of a dataset, `[T, ...]` in the environment's form, to storage form `[T, *act_shape]`.

    Raises:
        ValueError: they have another shape, or a choice is out of range.
    """
    kind, values = spec.action, real_numbers("actions", actions)
    rows: NDArray[Any] = values.reshape(len(values), *kind.shape)
    if isinstance(kind, BoxAction):
        return rows.astype(np.float32, copy=False)
    start = kind.start if isinstance(kind, DiscreteAction) else np.array(kind.start or 0, np.int64)
    rows = _as_stored("actions", rows, np.dtype(np.int64)) - start
    if ((rows < 0) | (rows >= (kind.n if isinstance(kind, DiscreteAction) else kind.nvec))).any():
        raise ValueError(f"an action is not one of {kind}")
    return rows
