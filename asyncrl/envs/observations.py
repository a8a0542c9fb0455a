"""Observations of a policy: images, rows of structured observations, action masks, agents. NumPy only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from asyncrl.errors import SpacesDoNotFit
from asyncrl.interfaces import (
    Agent,
    BoxAction,
    DiscreteAction,
    EnvSpec,
    Leaf,
    MultiDiscreteAction,
    ObservationKind,
)

SPACES = ("Box", "Discrete", "MultiBinary", "MultiDiscrete", "Dict", "Tuple", "OneOf")
"""Classes of gymnasium's spaces that are told apart here, by name, as gymnasium is not imported."""
SMALLEST_IMAGE = 8
"""Smallest side of an image; arrays of bytes with a shorter side are not images."""
SMALLEST_GRID = 5
"""Smallest side of a grid."""
SMALLEST_PICTURE = 28
"""Smallest longer side of bytes 0 to 255 with three axes that are an image and not a grid.

Nothing but the size tells them apart, as MiniGrid declares 0 to 255 for its cells of 0 to 10. Its largest grids have 25
cells a side; the smallest images in use, those of MNIST, 28 pixels.
"""

LARGE_VALUE, SMALL_OBSERVATION = 100.0, 0.01
"""Root mean square of one value of observations, and of their length, beyond which little is learned."""


def space_class(space: Any) -> str:
    """Name of the class of `SPACES` that a space is of or derives from, or of its own class."""
    return next((c.__name__ for c in type(space).__mro__ if c.__name__ in SPACES), type(space).__name__)


def kind_of(space: Any) -> Literal["image", "grid", "values"]:
    """What the arrays of a Box or MultiBinary space are.

        image    uint8 from 0 to 255: `[H, W]` from 8 x 8 on, three axes with a side of 28 or more, or a stack of these
        grid     other bools and whole numbers with a range of at most 255: `[H, W, C]` or `[C, H, W]` from 5 x 5 cells
                 on, and bytes `[H, W]` from 8 x 8 on
        values   everything else; `kind_of_observations` calls bytes from 0 to 255 among them `bytes`

    Only bytes of images are divided by 255. Stable-Baselines3 does so for all uint8 arrays of three axes from 0 to 255,
    and the cells of MiniGrid, 0 to 10, become 0 to 0.04, from which nothing is learned. Division of other bytes by
    their upper bound was rejected: bounds are often declared carelessly. Their scale is learned instead
    (`normalize_observations`); whole numbers of other dtypes are inputs as they are.
    """
    shape, dtype = tuple(space.shape), np.dtype(space.dtype)
    if dtype.kind not in "biu" or len(shape) < 2:
        return "values"
    if _holds_images(space, shape):
        return "image"
    cells = grid_sides(shape)
    smallest = SMALLEST_GRID
    if len(shape) == 2 and dtype == np.uint8:
        cells, smallest = shape, SMALLEST_IMAGE
    small_range = dtype.itemsize == 1 or float(np.max(space.high)) - float(np.min(space.low)) <= 255
    return "grid" if cells and min(cells) >= smallest and small_range else "values"


def _holds_images(space: Any, shape: tuple[int, ...]) -> bool:
    if len(shape) == 4:
        return _holds_images(space, shape[1:])
    if not _all_bytes(space) or len(shape) not in (2, 3):
        return False
    sides = shape if len(shape) == 2 else grid_sides(shape)
    return min(sides) >= SMALLEST_IMAGE and (len(shape) == 2 or max(sides) >= SMALLEST_PICTURE)


def _all_bytes(space: Any) -> bool:
    """Whether a space is a Box of bytes from 0 to 255."""
    if space_class(space) != "Box" or np.dtype(space.dtype) != np.uint8:
        return False
    return bool((space.low == 0).all() and (space.high == 255).all())


def grid_sides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Height and width of `[H, W, C]` or `[C, H, W]`; empty for another number of axes.

    The two axes of equal length are the sides; without such a pair C is the shorter of the first and the last axis.
    """
    if len(shape) != 3:
        return ()
    return shape[1:] if channels_come_first(shape) else shape[:2]


def channels_come_first(shape: tuple[int, ...]) -> bool:
    """Whether the channels of three axes are the first; see `grid_sides`."""
    first, second, last = shape
    if (first == second) != (second == last):
        return second == last
    return first < last


def kind_of_observations(env: Any) -> ObservationKind:
    """What the observations of an environment or a vector of them are; see `kind_of`.

    Bytes from 0 to 255 come from an image if one of the wrapped environments returns one: an image that was
    flattened, made smaller or stacked is still one. The bytes of Atari's memory use the whole range as well.
    """
    if hasattr(env, "packed_leaves"):  # its rows are no array of one kind: the leaves have theirs
        return "values"
    kind, inner = kind_of(_single_space(env)), env
    if kind == "image" or not _all_bytes(_single_space(env)):
        return kind
    while (deeper := _wrapped(inner)) is not None:
        inner = deeper
        if _all_bytes(space := _single_space(inner)) and kind_of(space) == "image":
            return "image"
    if getattr(inner, "_obs_type", None) == "ram":
        return "image"
    return "bytes" if kind == "values" else kind


def _single_space(env: Any) -> Any:
    return getattr(env, "single_observation_space", None) or env.observation_space


def _wrapped(env: Any) -> Any:
    """The environment inside of a wrapper, or the first one of a vector; None if there is none."""
    inside = getattr(env, "envs", None)
    if isinstance(inside, list | tuple) and inside:
        return inside[0]
    return None if getattr(env, "unwrapped", env) is env else getattr(env, "env", None)


@dataclass(frozen=True)
class Image:
    """Shape of a stack of images in one row of a network's input.

    Attributes:
        frames: number of images in the stack.
        height, width, channels: shape of one image.
        channels_first: whether an image is `[channels, height, width]`, else `[height, width, channels]`.
        grid: whether it is a grid of cells; see `kind_of`.
    """

    frames: int
    height: int
    width: int
    channels: int
    channels_first: bool
    grid: bool = False

    @property
    def values(self) -> int:
        """Number of values of a stack."""
        return self.frames * self.height * self.width * self.channels


def image_of(spec: EnvSpec, *, bytes_only: bool = True) -> Image | None:
    """Return the image shape of the observations, or None if they are neither images nor a grid.

    An image is an array of bytes of at least 8 x 8, `[H, W]`, `[H, W, C]` or `[C, H, W]`; see `grid_sides`. A grid is
    what `kind_of` says, of any dtype.

    Args:
        spec: the policy's view of the environment, stacked frames included.
        bytes_only: whether the dtype of an image must be uint8.
    """
    shape = spec.observation_shape[1:] if spec.frame_stack > 1 else spec.observation_shape
    grid = spec.observation_kind == "grid"
    if len(shape) not in (2, 3) or not (grid or not bytes_only or spec.observation_dtype == "uint8"):
        return None
    first = len(shape) == 3 and channels_come_first(shape)
    height, width = grid_sides(shape) or shape
    if not grid and min(height, width) < SMALLEST_IMAGE:
        return None
    channels = 1 if len(shape) == 2 else shape[0 if first else 2]
    return Image(spec.frame_stack, height, width, channels, first, grid)


def unread_text(spec: EnvSpec) -> str:
    """Sentence about the parts of the observation that are text; "" if there are none."""
    if not spec.unread:
        return ""
    parts = ", ".join(spec.unread)
    return f"the observation's text is left out ({parts}): a policy reads numbers only; turn what it needs into a Box"


FORBIDDEN = np.float32(-1e8)
"""Logit of an action forbidden by a mask: its probability is exactly 0 in float32, and no sum overflows."""
MASK_KEY = "action_mask"
"""Key of the action mask in a Dict observation."""
OWN_KEY, AGENT_KEY = "observation", "agent_id"
"""Keys of the observation of an agent beside its mask and its index: its own one, and the index."""


def unpacker(spec: EnvSpec) -> Unpacker | None:
    """Return the conversion from rows of bytes to a network's input; None if observations are not rows of bytes."""
    return Unpacker(spec) if spec.leaves and spec.observation_dtype == "uint8" else None


class Unpacker:
    """Conversion of rows of bytes, which contain images and float32 values, to float32."""

    def __init__(self, spec: EnvSpec) -> None:
        self._leaves, self._row_bytes = spec.leaves, sum(leaf.row_bytes for leaf in spec.leaves)
        self._values = sum(leaf.values for leaf in spec.leaves)

    def __call__(self, rows: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
        """Write `rows` `[R, n]` or `[R, k, n]` to `out` `[R, inputs]`; images are scaled to 0..1."""
        rows = rows.reshape(-1, self._row_bytes)
        out = out.reshape(rows.shape[0], self._values)
        at = to = 0
        for leaf in self._leaves:
            part, into = rows[:, at : at + leaf.row_bytes], out[:, to : to + leaf.values]
            if leaf.kind == "image":
                np.multiply(part, np.float32(1 / 255), out=into)
            else:
                into[...] = np.ascontiguousarray(part).view(np.float32)
            at, to = at + leaf.row_bytes, to + leaf.values


def mask_of(spec: EnvSpec) -> slice | None:
    """Slice of the action mask in a row, in values of a float32 row or bytes of a byte row; None without a mask.

    Where actions are real-valued the key has no special meaning.

    Raises:
        SpacesDoNotFit: the mask has not one number per choice of the action (ASYNC005).
    """
    start = 0
    for leaf in spec.leaves:
        size = leaf.row_bytes if spec.observation_dtype == "uint8" else leaf.values
        if leaf.path == (MASK_KEY,) and not isinstance(spec.action, BoxAction):
            choices = spec.action.n if isinstance(spec.action, DiscreteAction) else sum(spec.action.nvec)
            if leaf.values != choices:
                raise SpacesDoNotFit(
                    f"{MASK_KEY} of {spec.name} must have {choices} numbers, one per action, got {leaf.values}.",
                    fix="make it a MultiBinary space of that size, or give the key another name",
                )
            return slice(start, start + size)
        start += size
    return None


def mask_reader(spec: EnvSpec) -> MaskReader | None:
    """Return a reader of the action masks in observations; None without masks."""
    at = mask_of(spec)
    return None if at is None else MaskReader(spec, at)


class MaskReader:
    """Reader of the action masks in observations."""

    def __init__(self, spec: EnvSpec, at: slice) -> None:
        image = any(leaf.path == (MASK_KEY,) and leaf.kind == "image" for leaf in spec.leaves)
        self._sizes = spec.action.nvec if isinstance(spec.action, MultiDiscreteAction) else ()
        self._starts = np.cumsum((0, *self._sizes[:-1])) if self._sizes else None
        self._at, self._float_bytes = at, spec.observation_dtype == "uint8" and not image

    def __call__(self, obs: NDArray[Any]) -> NDArray[np.bool_]:
        """`[R, A]`, whether each choice is allowed; all of an action's are if none is (a terminal observation)."""
        newest = obs[:, -1] if obs.ndim == 3 else obs
        values = newest[:, self._at]
        if self._float_bytes:
            values = np.ascontiguousarray(values).view(np.float32)
        mask: NDArray[np.bool_] = values > 0.5
        if self._starts is None:
            mask |= ~mask.any(axis=1, keepdims=True)
        else:
            empty = ~np.logical_or.reduceat(mask, self._starts, axis=1)
            mask |= np.repeat(empty, self._sizes, axis=1)
        return mask


class NotFinite(ValueError):
    """An observation that is stored as bytes holds NaN or infinity."""


def pack(obs: Any, spec: EnvSpec) -> NDArray[Any]:
    """Convert one structured observation to a row `[n]` of the spec's dtype; a fresh array.

    Raises:
        ValueError: a leaf is missing or misshapen, or a choice is out of range.
        NotFinite: a value in a row of bytes is not finite. (Of float32 rows the actor checks it.)
    """
    return _row_of([_array_of(obs, leaf) for leaf in spec.leaves], spec)


def rows_of(obs: Any, spec: EnvSpec) -> NDArray[Any]:
    """Convert the observations given to `predict` to a row `[n]` or rows `[B, n]`.

    Args:
        obs: one observation of the space, a batch whose leaves have a first axis B (of stacks of frames `[B, k]`), a
            list of Dict or of Tuple observations, or rows `[..., n]` (no copy).
        spec: the environment.

    Raises:
        ValueError: see `pack`; or `obs` is none of these.
    """
    is_array = isinstance(obs, np.ndarray) and obs.dtype == spec.observation_dtype
    if is_array and obs.shape[-1:] == spec.observation_shape:
        rows: NDArray[Any] = obs
        return rows
    if _is_list(obs, spec):
        return np.stack([rows_of(one, spec) for one in obs])
    parts = _parts_of_tuple(spec)
    if isinstance(obs, tuple | list) and parts and len(obs) > parts:
        raise ValueError(f"obs must have {parts} parts as its Tuple space has, got {len(obs)}")
    arrays = _arrays_of(obs, spec)
    axes = [
        array.shape[: array.ndim - len(leaf.shape)] for array, leaf in zip(arrays, spec.leaves, strict=True)
    ]
    if not axes[0]:
        return _row_of(arrays, spec)
    if len(set(axes)) > 1:
        raise ValueError(f"all leaves of a batch must have the same first axes, got {sorted(set(axes))}")
    for array, leaf in zip(arrays, spec.leaves, strict=True):
        _require_real(array, leaf)  # an item of an array of objects is no array
    flat = [array.reshape(-1, *array.shape[len(axes[0]) :]) for array in arrays]
    rows = np.empty((len(flat[0]), *spec.observation_shape), spec.observation_dtype)
    for i, row in enumerate(rows):
        row[...] = _row_of([array[i] for array in flat], spec)
    return rows.reshape(*axes[0], *spec.observation_shape)


def _is_list(obs: Any, spec: EnvSpec) -> bool:
    """Whether these are several Dict or Tuple observations, and not one of a Tuple space of Dicts or a batch."""
    if not isinstance(obs, list) or not obs:
        return False
    if all(isinstance(one, tuple) for one in obs):
        return bool(_parts_of_tuple(spec))
    dicts = all(isinstance(one, Mapping) for one in obs)
    return dicts and bool(path := spec.leaves[0].path) and path[0] in obs[0]


def _parts_of_tuple(spec: EnvSpec) -> int:
    """Number of parts of a Tuple space, those of text included, or of a Dict with such keys; 0 of another space."""
    tops = {leaf.path[0] for leaf in spec.leaves if leaf.path} | {n.partition(".")[0] for n in spec.unread}
    return len(tops) if tops == {str(i) for i in range(len(tops))} else 0


def _arrays_of(obs: Any, spec: EnvSpec) -> list[NDArray[Any]]:
    """The leaves of an observation, or of a batch. Raises ValueError, of an array or a list in the terms of rows."""
    try:
        return [_array_of(obs, leaf) for leaf in spec.leaves]
    except ValueError:
        if isinstance(obs, np.ndarray):
            got = f"{obs.dtype} of shape {obs.shape}"
        elif isinstance(obs, list):
            kinds = dict.fromkeys(type(one).__name__ for one in obs)
            got = f"a list of {' and '.join(kinds)}" if obs else "an empty list"
        else:
            raise
        size, dtype = spec.observation_shape[0], spec.observation_dtype
        raise ValueError(
            f"obs must be an observation as the environment's space has it, a batch of them, or {dtype} rows of shape "
            f"({size},) or (B, {size}) as make_env() gives them (of a list np.stack(rows)), got {got}"
        ) from None


def _array_of(obs: Any, leaf: Leaf) -> NDArray[Any]:
    try:
        for key in leaf.path:
            obs = obs[int(key)] if isinstance(obs, tuple | list) else obs[key]
    except (IndexError, KeyError, TypeError, ValueError):
        got = type(obs).__name__ + (
            f" of {', '.join(map(str, obs))}" if isinstance(obs, Mapping) and obs else ""
        )
        raise ValueError(f"the observation must hold {_name_of(leaf)}, got {got}") from None
    return np.asarray(obs)


def _row_of(arrays: list[NDArray[Any]], spec: EnvSpec) -> NDArray[Any]:
    parts = [_leaf_values(array, leaf) for array, leaf in zip(arrays, spec.leaves, strict=True)]
    if spec.observation_dtype != "uint8":
        return np.concatenate(parts)
    if not all(np.isfinite(part).all() for part in parts):
        raise NotFinite("an observation holds NaN or infinity")
    return np.concatenate([part.view(np.uint8) for part in parts])


def _require_real(array: NDArray[Any], leaf: Leaf) -> None:
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{_name_of(leaf)} must be of real numbers, got {array.dtype}")


def _leaf_values(array: NDArray[Any], leaf: Leaf) -> NDArray[Any]:
    """Flatten a leaf to the bytes of an image or to float32 values."""
    if array.shape != leaf.shape:
        raise ValueError(f"{_name_of(leaf)} must have shape {leaf.shape}, got {array.shape}")
    _require_real(array, leaf)
    kind = array.dtype.kind
    if leaf.kind == "image":
        if array.dtype.char != "B" and (kind == "f" or array.min() < 0 or array.max() > 255):
            raise ValueError(f"{_name_of(leaf)} must be bytes from 0 to 255, got {array.dtype}")
        return np.ascontiguousarray(array, np.uint8).reshape(-1)
    if leaf.kind in ("values", "grid"):
        return np.ascontiguousarray(array, np.float32).reshape(-1)
    if kind == "f" and not (array == np.rint(array)).all():
        raise ValueError(f"{_name_of(leaf)} must be of whole numbers, got {array}")
    out = np.zeros(leaf.values, np.float32)
    start = 0
    for choice, count, first in zip(array.reshape(-1).tolist(), leaf.choices, leaf.first, strict=True):
        if not 0 <= choice - first < count:
            raise ValueError(f"a choice must be from {first} to {first + count - 1}, got {choice}")
        out[start + int(choice - first)] = 1.0
        start += count
    return out


def stored_as(leaf: Leaf) -> Leaf:
    """The leaf as a row holds it: a grid is stored as values are."""
    return replace(leaf, kind="values") if leaf.kind == "grid" else leaf


def text_of_leaves(leaves: Sequence[Leaf]) -> str:
    """Text that tells rows of one layout from another: `pos values of shape (2,), side choices [3] from [0]`."""
    parts = []
    for leaf in map(stored_as, leaves):
        size = f"{list(leaf.choices)} from {list(leaf.first)}" if leaf.choices else f"of shape {leaf.shape}"
        parts.append(f"{'.'.join(leaf.path)} {leaf.kind} {size}".strip())
    return ", ".join(parts)


def _name_of(leaf: Leaf) -> str:
    return ".".join(leaf.path) or "the observation"


class AgentView:
    """Conversion of an agent's own observation to the one that the shared policy sees.

    With a mask, an index or padding it is a Dict: the agent's own Dict, or `{"observation": own}`, with the keys
    `action_mask` and `agent_id`. Without them it is the agent's own observation.

    Args:
        agent: the agent.
        values: length of the observations of all agents, if they are padded.
        choices: length of the masks of all agents, if they have masks.
    """

    def __init__(self, agent: Agent, values: int | None, choices: int | None) -> None:
        self._agent, self._values, self._choices = agent, values, choices
        self._is_own = agent.index is values is choices is None

    def __call__(self, obs: Any, mask: Any = None) -> Any:
        """Return what the policy sees of `obs`; `mask` is the agent's, unless `obs` has it.

        Raises:
            ValueError: the environment gives the agent masks and there is none, or a part does not have its length.
        """
        if self._is_own:
            return obs
        parts = dict(obs) if isinstance(obs, Mapping) else {OWN_KEY: obs}
        if self._values is not None:
            own = self._agent.values or self._values
            parts[OWN_KEY] = _padded(parts[OWN_KEY], own, self._values, OWN_KEY)
        if self._choices is not None:
            parts[MASK_KEY] = self._mask(parts.get(MASK_KEY, mask), self._choices)
        if self._agent.index is not None:
            parts[AGENT_KEY] = self._agent.index
        return parts

    def _mask(self, mask: Any, choices: int) -> NDArray[Any]:
        own = self._agent.choices or choices
        if mask is None:
            if self._agent.masked:
                raise ValueError(
                    f"{self._agent.name} must have {MASK_KEY}: {{'{OWN_KEY}': ..., '{MASK_KEY}': ...}}"
                )
            mask = np.ones(own, np.int8)
        allowed = np.ravel(mask)
        if (
            own < choices and not (allowed > 0.5).any()
        ):  # none allowed is all of its own, not those of the padding
            allowed = np.ones_like(allowed)
        return _padded(allowed, own, choices, MASK_KEY)


def _padded(values: Any, own: int, length: int, name: str) -> NDArray[Any]:
    """Append zeros to a vector of `own` values up to `length`."""
    array = np.asarray(values)
    if array.shape != (own,):
        raise ValueError(f"{name} must have shape ({own},), got {array.shape}")
    return array if own == length else np.concatenate((array, np.zeros(length - own, array.dtype)))


def agent_views(agents: Sequence[Agent], leaves: Sequence[Leaf]) -> dict[str, AgentView]:
    """Conversion of every agent's observation, by its name.

    Args:
        agents: the agents, in the order of their indices.
        leaves: leaves of what the policy sees; empty if that is an array.
    """
    sizes = {leaf.path: leaf.values for leaf in leaves}
    padded = any(agent.values is not None for agent in agents)
    values = sizes[(OWN_KEY,)] if padded else None
    return {agent.name: AgentView(agent, values, sizes.get((MASK_KEY,))) for agent in agents}


def unusual_size(squares: NDArray[np.float64]) -> str:
    """Words about observations of a size from which little is learned, "" about others.

    Args:
        squares: mean squares `[values]` of the values of an observation.
    """
    largest, whole = int(squares.argmax()), float(np.sqrt(squares.sum()))
    if squares[largest] > LARGE_VALUE**2:
        place = f"value {largest} of {squares.size} has" if squares.size > 1 else "they have"
        return f"large: {place} a root mean square of {np.sqrt(squares[largest]):.2g}"
    if 0.0 < whole < SMALL_OBSERVATION:
        return f"small: the root mean square of their length is {whole:.1g}"
    return ""
