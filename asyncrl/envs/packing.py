"""Structured observations as rows: Dict, Tuple, Discrete and MultiDiscrete spaces become one array per step.

Choices become one-hot and the row is float32, as in `gymnasium.spaces.flatten`. If a leaf is an image the row is of
bytes, because float32 would make a replay of images four times as large. Text is left out: no policy reads it.

`flatten` itself is not used. It gives the same values for a valid observation without images (as float64, where a leaf
is a choice), as fast, but takes one that is off its space: a choice below `start` becomes the last one, an array of
another shape shifts the rest of the row.

An environment with a method `action_masks()` gets its masks into the observation.
"""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv

from asyncrl.envs.observations import MASK_KEY, NotFinite, kind_of, pack
from asyncrl.errors import NonFiniteStep, ObservationOffSpace, SpacesDoNotFit
from asyncrl.interfaces import DiscreteAction, EnvSpec, Leaf

STRUCTURED = (spaces.Dict, spaces.Tuple, spaces.Discrete, spaces.MultiDiscrete)


def leaves_of(space: spaces.Space[Any], path: tuple[str, ...] = ()) -> tuple[Leaf, ...] | None:
    """Return the leaves of a space in the order of its keys, without text; None if one is no array (a graph)."""
    if is_text(space):
        return ()
    if isinstance(space, spaces.Dict | spaces.Tuple):
        inner = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        found: list[Leaf] = []
        for key, part in inner:
            if isinstance(space, spaces.Dict) and not isinstance(key, str):
                raise SpacesDoNotFit(
                    f"The keys of a Dict observation must be text, got {key!r}.",
                    facts={"observation space": space},
                    fix="name its parts by text, such as {'position': Box(...)}, in space and observations",
                )
            leaves = leaves_of(part, (*path, str(key)))
            if leaves is None:
                return None
            found += leaves
        return tuple(found)
    if isinstance(space, spaces.Discrete):
        return (Leaf(path, "choices", (), (int(space.n),), (int(space.start),)),)
    if isinstance(space, spaces.MultiDiscrete):
        counts, first = (tuple(int(n) for n in np.ravel(a)) for a in (space.nvec, space.start))
        return (Leaf(path, "choices", tuple(space.shape), counts, first),)
    if not isinstance(space, spaces.Box | spaces.MultiBinary):
        return None
    kind = kind_of(space) if len(space.shape) < 4 and path[-1:] != (MASK_KEY,) else "values"
    return (Leaf(path, kind, tuple(int(n) for n in space.shape)),)


def is_text(space: Any) -> bool:
    """Whether the values of a space are text: gymnasium's `Text`, and spaces of other libraries, such as MiniGrid's."""
    return space.dtype is not None and space.dtype.kind == "U"


def unread_parts(space: spaces.Space[Any], path: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the names of the parts of a space that are text, `mission` or `robot.name`."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        inner = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        return tuple(name for key, part in inner for name in unread_parts(part, (*path, str(key))))
    return (".".join(path),) if is_text(space) else ()


def packed(env: Any) -> Any:
    """Wrap `env` in `PackedObservations` if its observations are structured, and add the masks of `action_masks()`.

    Vectors and spaces with other leaves are returned unchanged; `checks.spec_of` refuses what is not one array.
    """
    if isinstance(env, VectorEnv):
        return env
    env = _with_masks(env)
    if not isinstance(env.observation_space, STRUCTURED):
        return env
    leaves = leaves_of(env.observation_space)
    return PackedObservations(env, leaves) if leaves else env


def _with_masks(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """Wrap an environment with a method `action_masks()`, unless its observation has a mask already."""
    space = env.observation_space
    has_mask = isinstance(space, spaces.Dict) and MASK_KEY in space.spaces
    if has_mask or mask_size(env.action_space) is None or not env.has_wrapper_attr("action_masks"):
        return env
    return MaskFromMethod(env) if callable(env.get_wrapper_attr("action_masks")) else env


class Packing:
    """Conversion of the observations of a structured space to rows.

    Attributes:
        space: the space of the rows.
        leaves, unread: `leaves`, and the names of the parts that are text.
    """

    def __init__(self, space: spaces.Space[Any], leaves: tuple[Leaf, ...]) -> None:
        self.leaves, self.unread, self._structured = leaves, unread_parts(space), space
        as_bytes = any(leaf.kind == "image" for leaf in leaves)
        size = sum(leaf.row_bytes if as_bytes else leaf.values for leaf in leaves)
        low, high = (0, 255) if as_bytes else (-math.inf, math.inf)
        self.space = spaces.Box(low, high, (size,), np.uint8 if as_bytes else np.float32)
        dtype = "uint8" if as_bytes else "float32"
        self._row = EnvSpec("", (size,), dtype, DiscreteAction(1), leaves=leaves)

    def __call__(self, observation: Any) -> Any:
        """Return the row `[n]`. Raises `ObservationOffSpace` (ASYNC012) or `NonFiniteStep` (ASYNC011)."""
        try:
            return pack(observation, self._row)
        except NotFinite as error:
            raise NonFiniteStep(
                "An observation is NaN or infinite.",
                fix="mend the environment (a diverged simulation?); nothing of this step was stored",
            ) from error
        except ValueError as error:
            raise ObservationOffSpace(
                f"An observation is off its space: {error}",
                facts={"observation space": self._structured},
                fix="in the environment: return what its observation_space says",
            ) from error


class PackedObservations(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Wrapper that converts structured observations to rows.

    Results of the API before Gymnasium 0.26 are returned as they are; `checks` refuses them.

    Attributes:
        packed_leaves, unread: `leaves`, and the names of the parts that are text, for `checks.spec_of`.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], leaves: tuple[Leaf, ...]) -> None:
        super().__init__(env)
        self._packed = Packing(env.observation_space, leaves)
        self.packed_leaves, self.unread = leaves, self._packed.unread
        self.observation_space = self._packed.space

    def reset(self, **kwargs: Any) -> Any:
        """See `gymnasium.Env.reset`."""
        returned: Any = self.env.reset(**kwargs)
        if not is_reset_result(returned):
            return returned
        return self._packed(returned[0]), returned[1]

    def step(self, action: Any) -> Any:
        """See `gymnasium.Env.step`."""
        returned: Any = self.env.step(action)
        if not is_step_result(returned):
            return returned
        return self._packed(returned[0]), *returned[1:]


class _Masked(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Wrapper that adds an action mask to the observation, which becomes a Dict `observation`, `action_mask`."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        count = mask_size(env.action_space)
        if count is None:
            raise SpacesDoNotFit(
                f"{type(self).__name__} needs Discrete, MultiDiscrete or MultiBinary actions, got {env.action_space}.",
                fix="leave the wrapper out, or put the mask into a Dict observation under the key action_mask",
            )
        self._count = count
        mask = spaces.MultiBinary(count)
        self.observation_space = spaces.Dict({"observation": env.observation_space, MASK_KEY: mask})

    def _mask(self, info: dict[str, Any]) -> Any:
        """Return the mask of the newest observation, one number per choice; `info` belongs to it."""
        raise NotImplementedError

    def _with_mask(self, obs: Any, info: dict[str, Any]) -> dict[str, Any]:
        return {"observation": obs, MASK_KEY: np.asarray(self._mask(info), np.int8).reshape(-1)}

    def reset(self, **kwargs: Any) -> Any:
        """See `gymnasium.Env.reset`."""
        returned: Any = self.env.reset(**kwargs)
        if not is_reset_result(returned):
            return returned
        return self._with_mask(*returned), returned[1]

    def step(self, action: Any) -> Any:
        """See `gymnasium.Env.step`."""
        returned: Any = self.env.step(action)
        if not is_step_result(returned):
            return returned
        return self._with_mask(returned[0], returned[4]), *returned[1:]


class MaskFromInfo(_Masked):
    """Wrapper that adds `info["action_mask"]` to the observation, which becomes a Dict `observation`, `action_mask`.

    Usage: `Trainer(env, ..., wrappers=["asyncrl.envs.packing:MaskFromInfo"])`. Without a mask all actions are allowed.

    Raises:
        SpacesDoNotFit: the actions are not choices (ASYNC005).
    """

    def _mask(self, info: dict[str, Any]) -> Any:
        return info.get("action_mask", np.ones(self._count))


class MaskFromMethod(_Masked):
    """Wrapper that adds `env.action_masks()`, sb3-contrib's form of masks, to the observation, as `MaskFromInfo` does.

    Every environment with that method gets it.
    """

    def _mask(self, info: dict[str, Any]) -> Any:
        return self.env.get_wrapper_attr("action_masks")()


def mask_size(action_space: spaces.Space[Any]) -> int | None:
    """Return the number of values in a mask of a space of choices, one per choice; None for another space."""
    if isinstance(action_space, spaces.Discrete):
        return int(action_space.n)
    if isinstance(action_space, spaces.MultiDiscrete):
        return int(np.sum(action_space.nvec))
    return 2 * math.prod(action_space.shape) if isinstance(action_space, spaces.MultiBinary) else None


def is_reset_result(returned: Any) -> bool:
    """Whether `returned` has the form of Gymnasium's `reset`; `checks` refuses others."""
    return isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], dict)


def is_step_result(returned: Any) -> bool:
    """Whether `returned` has the form of Gymnasium's `step`; `checks` refuses others."""
    return isinstance(returned, tuple) and len(returned) == 5
