"""Atari games by ale-py's `AtariVectorEnv`: one call steps all games of an actor. A factory imports it.

    Trainer(partial(AtariVector, "pong", 8), DQN(frame_stack=4), envs_per_actor=8)

Frames are single, as those of `ALE/*-v5`, so that a policy of one plays the other. Games are named as ROMs are: `pong`.
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
    """Games in the standard protocol of `atari.py`.

    A lost life ends the game in training: ale-py's `episodic_life` is gymnasium's `terminal_on_life_loss`.

    Args:
        game: name of the ROM.
        num_envs: E, the `envs_per_actor` of a run.
        training: whether a lost life ends an episode and rewards are clipped; actors say so.
        kwargs: of `AtariVectorEnv`, in place of the protocol's; `num_threads` is 1 where not given, for an actor has
            one core. `stack_num` is 1, and frames are grey.
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
        self.metadata = dict(self.metadata)  # ale-py writes its autoreset mode into that of every VectorEnv
        super().__init__(game, num_envs, **(protocol | kwargs | {"stack_num": 1, "grayscale": True}))
        frame = kwargs.get("img_height", SIDE), kwargs.get("img_width", SIDE)
        self.single_observation_space = Box(0, 255, frame, np.uint8)
        self.observation_space = batch_space(self.single_observation_space, num_envs)

    def reset(  # type: ignore[override]
        self, *, seed: int | NDArray[Any] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """See `AtariVectorEnv.reset`; frames `[E, height, width]`. Seeds are those of ale-py modulo 2^31 - E."""
        # ale-py refuses seeds that no 32-bit integer with a sign holds; it counts upwards from a single one.
        small = None if seed is None else seed % (2**31 - self.num_envs)
        obs, info = super().reset(seed=small, options=options)
        return obs[:, 0], info

    def step(self, actions: NDArray[Any]) -> tuple[NDArray[np.uint8], Any, Any, Any, dict[str, Any]]:
        """See `AtariVectorEnv.step`; frames `[E, height, width]`."""
        obs, reward, terminated, truncated, info = super().step(actions)
        return obs[:, 0], reward, terminated, truncated, info
