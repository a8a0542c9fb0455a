"""Structured observations as rows: Dict, Tuple, Discrete and MultiDiscrete spaces become one array per step.

Choices become one-hot and the row is float32, as in `gymnasium.spaces.flatten`. If a leaf is an image the row is of
bytes, because float32 would make a replay of images four times as large.
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
    """Return the leaves of a space in the order of its keys; None if one is not an array (text, graph, sequence)."""
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
    is_image = kind_of(space) == "image" and len(space.shape) < 4
    return (Leaf(path, "image" if is_image else "values", tuple(int(n) for n in space.shape)),)


def packed(env: Any) -> Any:
    """Wrap `env` in `PackedObservations` if its observations are structured; else return it.

    Vectors and spaces with other leaves are returned unchanged; `checks.spec_of` refuses what is not one array.
    """
    if isinstance(env, VectorEnv) or not isinstance(env.observation_space, STRUCTURED):
        return env
    leaves = leaves_of(env.observation_space)
    return PackedObservations(env, leaves) if leaves else env


class PackedObservations(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Wrapper that converts structured observations to rows.

    Results of the API before Gymnasium 0.26 are returned as they are; `checks` refuses them.

    Args:
        env: an environment with structured observations.
        leaves: leaves of its observation space.

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

    def reset(self, **kwargs: Any) -> Any:
        """See `gymnasium.Env.reset`."""
        returned: Any = self.env.reset(**kwargs)
        if not (isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], dict)):
            return returned
        return self._packed(returned[0]), returned[1]

    def step(self, action: Any) -> Any:
        """See `gymnasium.Env.step`."""
        returned: Any = self.env.step(action)
        if not (isinstance(returned, tuple) and len(returned) == 5):
            return returned
        return self._packed(returned[0]), *returned[1:]

    def _packed(self, observation: Any) -> Any:
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
                facts={"observation space": self.env.observation_space},
                fix="in the environment: return what its observation_space says",
            ) from error


class MaskFromInfo(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Wrapper that adds `info["action_mask"]` to the observation, which becomes a Dict `observation`, `action_mask`.

    Usage: `Trainer(env, ..., wrappers=["asyncrl.envs.packing:MaskFromInfo"])`. Without a mask all actions are allowed.

    Raises:
        SpacesDoNotFit: the actions are not Discrete (ASYNC005).
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        if not isinstance(env.action_space, spaces.Discrete):
            raise SpacesDoNotFit(
                f"MaskFromInfo needs Discrete actions, got {env.action_space}.",
                fix="leave the wrapper out, or put the mask into a Dict observation under the key action_mask",
            )
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
