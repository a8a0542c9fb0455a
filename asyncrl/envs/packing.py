"""Structured observations as rows: Dict, Tuple, Discrete and MultiDiscrete spaces become one array per step.

Choices become one-hot and all is float32, as by `gymnasium.spaces.flatten`; where an image is among the leaves the row
is of bytes, so that a replay of images does not grow fourfold.
"""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv

from asyncrl.envs.observations import MASK_KEY, image_of, pack
from asyncrl.errors import ObservationOffSpace
from asyncrl.interfaces import DiscreteAction, EnvSpec, Leaf

STRUCTURED = (spaces.Dict, spaces.Tuple, spaces.Discrete, spaces.MultiDiscrete)


def leaves_of(space: spaces.Space[Any], path: tuple[str, ...] = ()) -> tuple[Leaf, ...] | None:
    """The leaves of a space in the order of its keys; None where one is no array (text, a graph, a sequence)."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        inner = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        found: list[Leaf] = []
        for key, part in inner:
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
    shape = tuple(int(n) for n in space.shape)
    alone = EnvSpec("", shape, np.dtype(space.dtype).name, DiscreteAction(1))  # the action does not matter
    return (Leaf(path, "image" if image_of(alone) is not None else "values", shape),)


def packed(env: Any) -> Any:
    """`env` within `PackedObservations` where its observations are structured, else itself.

    Vectors of environments and spaces with other leaves are left as they are; `checks.spec_of` refuses them.
    """
    if isinstance(env, VectorEnv) or not isinstance(env.observation_space, STRUCTURED):
        return env
    leaves = leaves_of(env.observation_space)
    return PackedObservations(env, leaves) if leaves else env


class PackedObservations(gymnasium.ObservationWrapper[Any, Any, Any]):
    """An environment whose observations are rows.

    Args:
        env: with structured observations.
        leaves: of its observation space.

    Attributes:
        packed_leaves: `leaves`, for `checks.spec_of`.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], leaves: tuple[Leaf, ...]) -> None:
        super().__init__(env)
        self.packed_leaves = leaves
        as_bytes = any(leaf.kind == "image" for leaf in leaves)
        size = sum(leaf.row_bytes if as_bytes else leaf.values for leaf in leaves)
        low, high = (0, 255) if as_bytes else (-math.inf, math.inf)
        self.observation_space = spaces.Box(low, high, (size,), np.uint8 if as_bytes else np.float32)
        dtype = "uint8" if as_bytes else "float32"
        self._row = EnvSpec("", (size,), dtype, DiscreteAction(1), leaves=leaves)

    def observation(self, observation: Any) -> Any:
        """The row `[n]`. Raises `ObservationOffSpace` (ASYNC012)."""
        try:
            return pack(observation, self._row)
        except ValueError as error:
            raise ObservationOffSpace(
                f"An observation is off its space: {error}",
                facts={"observation space": self.env.observation_space},
                fix="in the environment: return what its observation_space says",
            ) from error


class MaskFromInfo(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Puts `info["action_mask"]` into the observation, a Dict of `observation` and `action_mask`.

    `Trainer(env, ..., wrappers=["asyncrl.envs.packing:MaskFromInfo"])`. Without a mask in the info all actions are
    allowed.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        assert isinstance(env.action_space, spaces.Discrete)
        self._count = int(env.action_space.n)
        mask = spaces.MultiBinary(self._count)
        self.observation_space = spaces.Dict({"observation": env.observation_space, MASK_KEY: mask})

    def _with_mask(self, obs: Any, info: dict[str, Any]) -> dict[str, Any]:
        mask = info.get("action_mask", np.ones(self._count))
        return {"observation": obs, MASK_KEY: np.asarray(mask, np.int8)}

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """See `gymnasium.Env.reset`."""
        obs, info = self.env.reset(**kwargs)
        return self._with_mask(obs, info), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """See `gymnasium.Env.step`."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._with_mask(obs, info), reward, terminated, truncated, info
