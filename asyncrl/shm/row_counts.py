"""Flags and counters of a row, for all streams of an actor in one kernel.

A vector of a thousand short-lived environments ends dozens of episodes in every row; counted one by one in Python
they took longer than the step that ended them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from asyncrl.interfaces import RESET, TERMINATED, TRUNCATED
from asyncrl.shm.kernel import kernel
from asyncrl.shm.ring_protocol import record_episode


@kernel(
    "int64(int64[:,::1], float64[::1], float64[::1], int64[::1], int64, uint8[:,:], float32[:,:], int64, "
    "int64[::1], float64[::1], int64[::1])"
)
def count_row(
    events: NDArray[np.int64],
    rewards: NDArray[np.float64],
    returns: NDArray[np.float64],
    began_at: NDArray[np.int64],
    row: int,
    ring_flags: NDArray[np.uint8],
    ring_rewards: NDArray[np.float32],
    slot: int,
    header: NDArray[np.int64],
    episode_return: NDArray[np.float64],
    episode_length: NDArray[np.int64],
) -> int:
    """Write rewards and flags of a row into its slot, log the episodes that ended; how many steps were taken.

    Args:
        events: `[n, 2]`, (stream, flags) of the streams whose flags are not 0, ascending.
        rewards: `[E]` of this row, 0 where it was a reset.
        returns: `[E]`, sums over the episodes that go on; updated.
        began_at: `[E]`, the row before each episode's first; updated.
        row: number of this row in the actor's life, from 1.
        ring_flags: `[E, S]`.
        ring_rewards: `[E, S]`.
        slot: of this row.
        header: the ring's; its count of episodes moves by one at a time, which readers of the log rely on.
        episode_return: the ring's log.
        episode_length: likewise.

    Returns:
        E less the rows that were resets.
    """
    num_envs = rewards.shape[0]
    for i in range(num_envs):
        returns[i] += rewards[i]
        ring_rewards[i, slot] = rewards[i]
        ring_flags[i, slot] = 0
    taken = num_envs
    for k in range(events.shape[0]):
        i, flags = events[k, 0], events[k, 1]
        ring_flags[i, slot] = flags
        if flags & RESET:
            taken -= 1
        else:
            record_episode(header, episode_return, episode_length, returns[i], row - began_at[i])
        # After an ended step: for the reset row to come. After a reset row: for the episode to come.
        returns[i] = 0.0
        began_at[i] = row
    return taken  # type: ignore[no-any-return]


@kernel("int64(boolean[::1], boolean[::1], boolean[::1], float64[::1], int64[:,::1])")
def find_events(
    terminated: NDArray[np.bool_],
    truncated: NDArray[np.bool_],
    resets: NDArray[np.bool_],
    rewards: NDArray[np.float64],
    events: NDArray[np.int64],
) -> int:
    """Which streams of a vector ended in a row or were reset by it.

    Args:
        terminated: `[E]`, what the step said.
        truncated: likewise.
        resets: `[E]`, streams whose episode had ended before this row; becomes those that end in it.
        rewards: `[E]`; those of resets become 0.
        events: `[E, 2]`, filled from the front with (stream, flags) of streams whose flags are not 0, ascending.

    Returns:
        How many events.
    """
    found = 0
    for i in range(rewards.shape[0]):
        flags = 0
        if resets[i]:
            flags, rewards[i] = RESET, 0.0
        else:
            flags = (TERMINATED if terminated[i] else 0) | (TRUNCATED if truncated[i] else 0)
        resets[i] = flags & (TERMINATED | TRUNCATED) != 0
        if flags:
            events[found, 0], events[found, 1] = i, flags
            found += 1
    return found
