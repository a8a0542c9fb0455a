"""Frame stacks while acting: the last k observations of every stream, equal to those of the replay and segments."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


class FrameStacks:
    """The last k observations of R streams.

    At the start of an episode its first observation is repeated, as in gymnasium's `FrameStackObservation` with the
    default padding. No stack holds observations of two episodes.

    Args:
        streams: R.
        frames: k; with k = 1 a stack is the newest observation, without an axis of frames.
        shape: shape of one observation.
        dtype: dtype of the observations.

    Attributes:
        array: `[R, k, *shape]` (`[R, *shape]` where k is 1), oldest observation first; not to be written.
    """

    def __init__(self, streams: int, frames: int, shape: tuple[int, ...], dtype: str) -> None:
        self._frames = frames
        stack = () if frames == 1 else (frames,)
        self.array: NDArray[Any] = np.zeros((streams, *stack, *shape), dtype)

    def begin(self, streams: Any, obs: Any) -> None:
        """Begin episodes in `streams` (an index, a list or a slice) with their first observations `obs`."""
        if self._frames > 1:
            obs = np.expand_dims(obs, 0 if isinstance(streams, int) else 1)
        self.array[streams] = obs

    def push(self, streams: Any, obs: Any) -> None:
        """Append the next observations `obs` of `streams` (as in `begin`) and drop the oldest."""
        if self._frames == 1:
            self.array[streams] = obs
        else:
            self.array[streams, :-1] = self.array[streams, 1:]
            self.array[streams, -1] = obs


def next_stacks(
    state: NDArray[Any] | None, obs: NDArray[Any], begins: NDArray[np.bool_], frames: int
) -> NDArray[Any]:
    """Return stacks `[B, frames, *shape]` that end with `obs` `[B, *shape]`; a fresh array.

    Args:
        state: the previous stacks, or None where all episodes begin.
        obs: newest observations.
        begins: `[B]`, whether an episode begins.
        frames: k.

    Raises:
        ValueError: `state` has another shape.
    """
    shape = obs.shape[0], frames, *obs.shape[1:]
    if state is None:
        return np.repeat(obs[:, None], frames, axis=1)
    if np.size(state) != np.prod(shape):
        raise ValueError(
            f"state must be what the last predict returned, {shape}, got shape {np.shape(state)}"
        )
    before = np.asarray(state).reshape(shape)
    stacks: NDArray[Any] = np.concatenate((before[:, 1:], obs[:, None]), axis=1)
    stacks[begins] = obs[begins][:, None]
    return stacks
