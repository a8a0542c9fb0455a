"""Atari games `ALE/*-v5` in the standard protocol; imported where one is built.

    Mnih et al. 2015        skip of 4 frames, maximum of the last 2, 84 x 84 grey, up to 30 no-ops, clipped rewards
    Machado et al. 2018     sticky actions: with probability 0.25 the last action is repeated; full episodes evaluated

Frames are single; `frame_stack=4` of the algorithm makes the stacks. In training rewards are cut to their sign and a
lost life ends the episode; evaluations play whole games for their score. Keyword arguments of the protocol:

    frameskip, noop_max, screen_size    4, 30 and 84 where not given
    terminal_on_life_loss               not given: a lost life ends an episode of training, and the game goes on;
                                        True: it ends the game too, as by gymnasium's `AtariPreprocessing` and ale-py's
                                        `AtariVectorEnv(episodic_life=True)`; False: only games end

All others go to the game: `repeat_action_probability` 0 switches sticky actions off, `obs_type="ram"` leaves the
protocol out. Equality with gymnasium's wrappers, row by row: `benchmarks/atari_boundaries.py`.
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
        kwargs: of the protocol and of the game; see the module.

    Raises:
        TypeError: `terminal_on_life_loss` is no bool.
    """
    if kwargs.get("obs_type", "rgb") != "rgb":
        return gymnasium.make(spec, disable_env_checker=True, **kwargs)
    restarts = kwargs.pop("terminal_on_life_loss", None)
    if restarts not in (None, False, True):
        raise TypeError(f"terminal_on_life_loss must be True or False, got {restarts!r}")
    protocol: dict[str, Any] = {
        "frame_skip": int(kwargs.pop("frameskip", SKIP)),
        "noop_max": int(kwargs.pop("noop_max", NO_OPS)),
        "screen_size": int(kwargs.pop("screen_size", SIDE)),
    }
    env = gymnasium.make(spec, disable_env_checker=True, frameskip=1, **kwargs)
    preprocessing = DirectPreprocessing if DirectPreprocessing.takes(env) else AtariPreprocessing
    env = preprocessing(env, terminal_on_life_loss=training and bool(restarts), **protocol)
    if not training:
        return env
    return TransformReward(EpisodicLife(env) if restarts is None else env, sign)


def sign(reward: Any) -> float:
    """-1, 0 or 1 (Mnih et al. 2015)."""
    return float(np.sign(reward))


class DirectPreprocessing(AtariPreprocessing):
    """`AtariPreprocessing` that plays the frames of a step on the emulator itself; the same rows.

    gymnasium's steps the game for each of them, which copies 100 KB of colours that nobody reads and makes an info: a
    quarter of a step's time (`benchmarks/atari_rate.py`).
    """

    @staticmethod
    def takes(env: Any) -> bool:
        """Whether `env` is a game with nothing around it, such as a time limit, and with choices for actions."""
        game = env.unwrapped
        private = all(hasattr(game, name) for name in ("ale", "_action_set", "_get_info"))
        return env is game and private and not game.continuous

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """See `AtariPreprocessing.step`."""
        game: Any = self.env
        ale, choice, last = game.ale, game._action_set[action], self.frame_skip - 1
        reward, terminated, truncated = 0.0, False, False
        for frame in range(self.frame_skip):
            reward += ale.act(choice, 1.0)
            if ale.game_over():
                terminated, truncated = ale.game_over(with_truncation=False), ale.game_truncated()
            if self.terminal_on_life_loss:
                lives = ale.lives()
                terminated, self.lives = terminated or lives < self.lives, lives
            self.game_over = terminated
            if terminated or truncated:
                break
            if frame >= last - 1:
                ale.getScreenGrayscale(self.obs_buffer[last - frame])
        obs = self._get_obs()  # type: ignore[no-untyped-call]
        return obs, reward, terminated, truncated, game._get_info()


class EpisodicLife(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Ends an episode where a life is lost; only a lost game is begun again, so that every life is played.

    As Stable-Baselines3's `EpisodicLifeEnv`, row by row.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self._lives, self._over = 0, True

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """See `gymnasium.Env.step`; `terminated` at a lost life too."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._over = terminated or truncated
        lives = info.get("lives", 0)
        # In some games (Qbert) 0 lives stand for a few frames before the game is over, which then ends the episode.
        lost, self._lives = 0 < lives < self._lives, lives
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
