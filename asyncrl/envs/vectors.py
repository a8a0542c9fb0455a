"""Wrappers of vector environments: what their metadata do not say of resets (SuperSuit's), and stacks of frames.

Usage: `Trainer(make, ..., wrappers=["asyncrl.envs.vectors:SameStep"])`, `--wrapper asyncrl.envs.vectors:SameStep`.

    NextStep   an environment that has ended is reset by the next step, whose action it ignores
    SameStep   it is reset by the step that ends it; all environments of the vector must end together
    Disabled   it is reset only by `reset(options={"reset_mask": mask})`

They also give a vector what Gymnasium's API asks for and these vectors lack: batched spaces and an info that is a dict;
a list of infos, one of each environment, is its `infos`.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from asyncrl.errors import AutoresetUnknown

_FINAL = ("final_obs", "final_observation", "terminal_observation")
"""Keys of the last observation of an episode in the info of gymnasium 1, gymnasium 0 and SuperSuit."""


class _Declared(VectorEnv[Any, Any, Any]):
    """A vector environment whose autoreset mode is declared.

    Args:
        env: an object with `num_envs`, `reset` and `step` of a vector environment; its spaces may be those of one.
    """

    mode: ClassVar[AutoresetMode]

    def __init__(self, env: Any) -> None:
        self.env, self.num_envs = env, int(env.num_envs)
        self.single_observation_space = getattr(env, "single_observation_space", env.observation_space)
        self.single_action_space = getattr(env, "single_action_space", env.action_space)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.metadata = {**(env.metadata or {}), "autoreset_mode": self.mode}
        self.render_mode, self.spec = getattr(env, "render_mode", None), getattr(env, "spec", None)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        """See `gymnasium.vector.VectorEnv.reset`."""
        obs, info = self.env.reset(seed=seed, options=options)
        return obs, _as_dict(info)

    def step(self, actions: Any) -> Any:
        """See `gymnasium.vector.VectorEnv.step`."""
        obs, rewards, terminated, truncated, info = self.env.step(actions)
        return obs, rewards, np.asarray(terminated, bool), np.asarray(truncated, bool), _as_dict(info)

    def render(self) -> Any:
        """See `gymnasium.vector.VectorEnv.render`."""
        return self.env.render()

    def close(self, **kwargs: Any) -> None:
        """Close the environment."""
        self.env.close()


class NextStep(_Declared):
    """Say that an environment which has ended is reset by the next step."""

    mode = AutoresetMode.NEXT_STEP


class Disabled(_Declared):
    """Say that an environment is reset only by `reset(options={"reset_mask": mask})`."""

    mode = AutoresetMode.DISABLED


class SameStep(_Declared):
    """Make NEXT_STEP of a vector that resets in the step that ends its episodes, where these end together.

    The last observations and infos are read from the info, the first observations of the new episodes are returned by
    the next `step`, which steps nothing. If only some environments had ended, the others would have to step in that
    row: refused.

    Raises:
        AutoresetUnknown: only some episodes ended, or the info lacks their last observations (ASYNC018).
    """

    mode = AutoresetMode.NEXT_STEP

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._first: Any = None

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        """See `gymnasium.vector.VectorEnv.reset`."""
        self._first = None
        return super().reset(seed=seed, options=options)

    def step(self, actions: Any) -> Any:
        """See `gymnasium.vector.VectorEnv.step`."""
        if self._first is not None:
            first, self._first = self._first, None
            none = np.zeros(self.num_envs, bool)
            return first, np.zeros(self.num_envs, np.float32), none, none, {}
        obs, rewards, terminated, truncated, info = super().step(actions)
        ended = terminated | truncated
        if ended.any():
            self._require_all(ended)
            self._first = np.array(obs)
            obs = self._last(info)
            info = info | _as_dict(info.get("final_info", {}))
        return obs, rewards, terminated, truncated, info

    def _require_all(self, ended: NDArray[np.bool_]) -> None:
        if not ended.all():
            raise AutoresetUnknown(
                f"{ended.sum()} of the {self.num_envs} environments of a vector that resets in the same step have "
                "ended; SameStep is exact only where all end together.",
                facts={"class": type(self.env).__qualname__},
                fix="end all episodes together, or make a vector of another autoreset mode",
            )

    def _last(self, info: dict[str, Any]) -> NDArray[Any]:
        """Return the last observations of the episodes, `[n, *shape]`."""
        each = info.get("infos")
        for key in _FINAL:
            if each is not None and all(key in one for one in each):
                return np.stack([np.asarray(one[key]) for one in each])
            if key in info:
                return np.stack([np.asarray(obs) for obs in info[key]])
        raise AutoresetUnknown(
            "A vector that resets in the same step must give the last observations of the episodes in its info.",
            facts={
                "class": type(self.env).__qualname__,
                "keys of the info": sorted(each[0] if each else info),
            },
            fix=f"add {_FINAL[0]!r} to the info, an array with the observation of each environment",
        )


class StackedFrames(VectorWrapper):
    """Stacks `[n, k, *shape]` of the last k observations of every environment, as `FrameStackObservation` makes of one.

    At the start of an episode its first observation is repeated.

    Args:
        env: a vector of mode NEXT_STEP or DISABLED.
        frames: k, at least 2.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any], frames: int) -> None:
        super().__init__(env)
        single: Any = env.single_observation_space
        self.single_observation_space = batch_space(single, frames)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        mode = (env.metadata or {}).get("autoreset_mode")
        self._resets_itself = getattr(mode, "value", mode) != AutoresetMode.DISABLED.value
        self._ended = np.zeros(self.num_envs, np.bool_)
        self._stacks: NDArray[Any] = np.zeros((self.num_envs, frames, *single.shape), single.dtype)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        """See `gymnasium.vector.VectorEnv.reset`."""
        mask = (options or {}).get("reset_mask")
        begun = np.ones(self.num_envs, np.bool_) if mask is None else np.array(mask, np.bool_)
        obs, info = self.env.reset(seed=seed, options=options)
        self._stacks[begun] = np.asarray(obs)[begun, None]
        self._ended[begun] = False
        return self._stacks.copy(), info

    def step(self, actions: Any) -> Any:
        """See `gymnasium.vector.VectorEnv.step`."""
        obs, rewards, terminated, truncated, info = self.env.step(actions)
        self._stacks = np.concatenate((self._stacks[:, 1:], np.asarray(obs)[:, None]), axis=1)
        if self._resets_itself:
            self._stacks[self._ended] = np.asarray(obs)[self._ended, None]
            self._ended = np.logical_or(terminated, truncated) & ~self._ended
        return self._stacks.copy(), rewards, terminated, truncated, info


def _as_dict(info: Any) -> dict[str, Any]:
    return info if isinstance(info, dict) else {"infos": list(info)}
