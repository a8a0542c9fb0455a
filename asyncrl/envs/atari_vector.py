"""Atari games in ale-py's `AtariVectorEnv`: one call steps all games of an actor. It is used as a factory.

    Trainer(partial(AtariVector, "pong", 8), DQN(frame_stack=4), envs_per_actor=8)

Observations are single frames, as in `ALE/*-v5`, so a policy trained in one can play the other. Games have the names of
their ROMs: `pong`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from ale_py import AtariVectorEnv
from gymnasium.spaces import Box
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from asyncrl.envs.atari import NO_OPS, SIDE, SKIP


class AtariVector(AtariVectorEnv):
    """Vector of games in the standard protocol of `atari.py`.

    In training a lost life resets the game: ale-py's `episodic_life` is gymnasium's `terminal_on_life_loss`.

    Args:
        game: name of the ROM.
        num_envs: E, the `envs_per_actor` of a run.
        training: whether a lost life ends an episode and rewards are clipped; actors pass True.
        kwargs: arguments of `AtariVectorEnv` in place of the protocol's; the default of `num_threads` is 1, because an
            actor has one core. `stack_num` is always 1 and frames are always grey.
    """

    def __init__(self, game: str, num_envs: int, *, training: bool = False, **kwargs: Any) -> None:
        protocol = {
            "frameskip": SKIP,
            "noop_max": NO_OPS,
            "repeat_action_probability": 0.25,
            "episodic_life": training,
            "reward_clipping": training,
            "use_fire_reset": False,
            "num_threads": 1,
        }
        self.metadata = dict(self.metadata)  # ale-py writes its autoreset mode into the dict of VectorEnv
        super().__init__(game, num_envs, **(protocol | kwargs | {"stack_num": 1, "grayscale": True}))
        frame = kwargs.get("img_height", SIDE), kwargs.get("img_width", SIDE)
        self.single_observation_space = Box(0, 255, frame, np.uint8)
        self.observation_space = batch_space(self.single_observation_space, num_envs)

    def reset(  # type: ignore[override]
        self, *, seed: int | NDArray[Any] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """See `AtariVectorEnv.reset`; returns frames `[E, height, width]`. Seeds are taken modulo 2^31 - E."""
        # ale-py refuses seeds above a signed 32-bit integer, and counts upwards from a single seed.
        small = None if seed is None else seed % (2**31 - self.num_envs)
        obs, info = super().reset(seed=small, options=options)
        return obs[:, 0], info

    def step(self, actions: NDArray[Any]) -> tuple[NDArray[np.uint8], Any, Any, Any, dict[str, Any]]:
        """See `AtariVectorEnv.step`; returns frames `[E, height, width]`."""
        obs, reward, terminated, truncated, info = super().step(actions)
        return obs[:, 0], reward, terminated, truncated, info
