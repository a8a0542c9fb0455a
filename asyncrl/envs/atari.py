"""Atari games `ALE/*-v5` in the standard protocol; imported lazily by the process that builds one.

    Mnih et al. 2015        skip of 4 frames, maximum of the last 2, 84 x 84 grey, up to 30 no-ops, clipped rewards
    Machado et al. 2018     sticky actions: with probability 0.25 the last action is repeated; full episodes evaluated

Observations are single frames; the algorithm's `frame_stack=4` makes the stacks. In training rewards are clipped to
their sign and a lost life ends the episode; evaluations play whole games for their score. Keyword arguments of the
protocol:

    frameskip, noop_max, screen_size    default 4, 30 and 84
    terminal_on_life_loss               default: a lost life ends a training episode, and the game continues;
                                        True: it also resets the game, as in gymnasium's `AtariPreprocessing` and
                                        ale-py's `AtariVectorEnv(episodic_life=True)`; False: only the game's end does

All others are passed to the game: `repeat_action_probability=0` disables sticky actions, `obs_type="ram"` disables the
protocol and ignores `screen_size`, which a preset may set. `benchmarks/systems/atari_boundaries.py` compares the rows
with those of gymnasium's wrappers.
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
    """Whether the protocol applies to this environment."""
    return spec.id.startswith("ALE/") and spec.kwargs.get("obs_type", "rgb") == "rgb"


def make_atari(spec: GymnasiumSpec, training: bool, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """Make a game.

    Args:
        spec: gymnasium's spec of an id `ALE/*-v5`.
        training: whether a lost life ends an episode and rewards are clipped.
        kwargs: arguments of the protocol and of the game; see the module.

    Raises:
        TypeError: `terminal_on_life_loss` is not a bool.
    """
    if kwargs.get("obs_type", "rgb") != "rgb":
        kwargs.pop("screen_size", None)
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
    """Sign of the reward: -1, 0 or 1 (Mnih et al. 2015)."""
    return float(np.sign(reward))


class DirectPreprocessing(AtariPreprocessing):
    """`AtariPreprocessing` that advances the emulator directly, with equal results.

    gymnasium's calls the game's `step` for each frame, which copies 100 KB of unused colour data and builds an info:
    a quarter of a step's time (`benchmarks/systems/atari_rate.py`).
    """

    @staticmethod
    def takes(env: Any) -> bool:
        """Whether `env` is a game without wrappers (such as a time limit) and with discrete actions."""
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
    """Wrapper that ends an episode when a life is lost, but resets the game only when it is over.

    It gives the same rows as Stable-Baselines3's `EpisodicLifeEnv`.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self._lives, self._over = 0, True

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """See `gymnasium.Env.step`; `terminated` is also True when a life is lost."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._over = terminated or truncated
        lives = info.get("lives", 0)
        # In some games (Qbert) lives are 0 for a few frames before the game is over; the latter ends the episode.
        lost, self._lives = 0 < lives < self._lives, lives
        return obs, reward, terminated or lost, truncated, info

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin the next life with one no-op, or reset the game if it is over or a seed is given."""
        if self._over or seed is not None:
            obs, info = self.env.reset(seed=seed, options=options)
        else:
            obs, _, terminated, truncated, info = self.env.step(0)
            if terminated or truncated:
                obs, info = self.env.reset(options=options)
        self._over, self._lives = False, info.get("lives", 0)
        return obs, info
