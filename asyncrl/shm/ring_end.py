"""Base class of both ends of an experience ring: its arrays, as views of one segment."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.shm.atomics import load_word
from asyncrl.shm.ring_layout import GRANTED, RingLayout
from asyncrl.shm.segment import Segment, drop_views


class RingEnd:
    """Arrays of a ring, as views of its segment.

    Attributes:
        segment: shared memory of the ring.
        layout: layout of the ring.
        obs: `[E, S, *obs_shape]` in the environment's dtype.
        action: `[E, S, *act_shape]`.
        reward: `[E, S]` float32.
        flags: `[E, S]` uint8, `TERMINATED | TRUNCATED | RESET | FROZEN`.
        version: `[S]` int64, policy version that acted.
        policy_updates: `[S]` int64, updates that the learner had made when it published that version.
        incarnation: `[S]` int32, life of the actor that wrote the row.
        extras: name to `[E, S, ...]`, one per extra field.
        episode_opponent: `[entries, 2]`, updates of the opponents' version in each logged episode, or -1 without, and
            index of the learning agent; None without frozen streams.
        num_envs: E, number of streams.
        environments: number of environments; their agents are neighbouring streams.
    """

    def __init__(self, segment: Segment, layout: RingLayout) -> None:
        if segment.arrays != layout.arrays():
            raise ValueError("segment must be laid out by layout.arrays(), got another layout")
        self.segment = segment
        self.layout = layout
        self.num_envs, self.environments = layout.num_envs, layout.environments
        self.num_slots = layout.num_slots
        self.header: NDArray[np.int64] = segment["header"]
        used = (slice(None), slice(layout.num_slots))  # not the padding
        self.obs: NDArray[Any] = segment["obs"][used]
        self.action: NDArray[Any] = segment["action"][used]
        self.reward: NDArray[np.float32] = segment["reward"][used]
        self.flags: NDArray[np.uint8] = segment["flags"][used]
        self.version: NDArray[np.int64] = segment["version"]
        self.policy_updates: NDArray[np.int64] = segment["policy_updates"]
        self.incarnation: NDArray[np.int32] = segment["incarnation"]
        self.extras: dict[str, NDArray[Any]] = {f.name: segment[f.name][used] for f in layout.extra_fields}
        self.episode_return: NDArray[np.float64] = segment["episode_return"]
        self.episode_length: NDArray[np.int64] = segment["episode_length"]
        self.episode_success: NDArray[np.int8] = segment["episode_success"]
        self.episode_opponent: NDArray[np.int64] | None = None
        if layout.frozen_streams:
            self.episode_opponent = segment["episode_opponent"]

    @property
    def granted(self) -> int:
        """Position up to which the actor may write (acquire)."""
        return load_word(self.header, GRANTED)

    def close(self) -> None:
        """Drop all views and close the segment; idempotent. The object must not be used afterwards."""
        drop_views(self)
        self.extras.clear()
        self.segment.close()
