"""Atari games `ALE/*-v5` in the standard protocol; imported where one is built.

    Mnih et al. 2015        skip of 4 frames, maximum of the last 2, 84 x 84 grey, up to 30 no-ops, clipped rewards
    Machado et al. 2018     sticky actions: with probability 0.25 the last action is repeated; full episodes evaluated

Frames are single; `frame_stack=4` of the algorithm makes the stacks. In training a lost life ends the episode, and
rewards are cut to their sign; evaluations play whole games for their score. Keyword arguments go to the game:
`frameskip` is the skip, `repeat_action_probability` 0 switches sticky actions off, `obs_type="ram"` leaves the protocol
out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium.wrappers import AtariPreprocessing, TransformReward

if TYPE_CHECKING:
    from gymnasium.envs.registration import EnvSpec as GymnasiumSpec

NO_OPS, SKIP, SIDE = 30, 4, 84


def is_atari(spec: GymnasiumSpec) -> bool:
    """Whether the protocol is for this environment."""
    return spec.id.startswith("ALE/") and spec.kwargs.get("obs_type", "rgb") == "rgb"


def make_atari(spec: GymnasiumSpec, training: bool, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """Make a game.

    Args:
        spec: gymnasium's, of an id `ALE/*-v5`.
        training: whether lives are episodes and rewards are clipped.
        kwargs: of the game.
    """
    if kwargs.get("obs_type", "rgb") != "rgb":
        return gymnasium.make(spec, disable_env_checker=True, **kwargs)
    skip = int(kwargs.pop("frameskip", SKIP))
    env = gymnasium.make(spec, disable_env_checker=True, frameskip=1, **kwargs)
    env = AtariPreprocessing(env, noop_max=NO_OPS, frame_skip=skip, screen_size=SIDE)
    return TransformReward(EpisodicLife(env), sign) if training else env


def sign(reward: Any) -> float:
    """-1, 0 or 1 (Mnih et al. 2015)."""
    return float(np.sign(reward))


class EpisodicLife(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Ends an episode where a life is lost; only a lost game is begun again, so that every life is played.

    (`AtariPreprocessing(terminal_on_life_loss=True)` begins the game again at every life.)
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self._lives, self._over = 0, True

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """See `gymnasium.Env.step`; `terminated` at a lost life too."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._over = terminated or truncated
        lives = info.get("lives", 0)
        lost, self._lives = lives < self._lives, lives
        return obs, reward, terminated or lost, truncated, info

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin the next life by one no-op, or the game where it is over or seeded."""
        if self._over or seed is not None:
            obs, info = self.env.reset(seed=seed, options=options)
        else:
            obs, _, terminated, truncated, info = self.env.step(0)
            if terminated or truncated:
                obs, info = self.env.reset(options=options)
        self._over, self._lives = False, info.get("lives", 0)
        return obs, info
