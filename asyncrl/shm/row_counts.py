"""Kernels for flags, rewards and episode counts of a row, over all streams of an actor.

With a vector of a thousand environments of short episodes, dozens of episodes end in every row. Counting them in Python
took longer than the step itself.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from asyncrl.interfaces import RESET, TERMINATED, TRUNCATED
from asyncrl.shm.kernel import kernel
from asyncrl.shm.ring_protocol import record_agents_episode, record_episode


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
    """Write rewards and flags of a row into its slot, and log the episodes that ended.

    Args:
        events: `[n, 2]`, (stream, flags) of the streams with flags other than 0, ascending.
        rewards: `[E]` of this row, 0 for a reset.
        returns: `[E]`, returns of the running episodes; updated.
        began_at: `[E]`, number of the row before each episode's first; updated.
        row: number of this row in the actor's life, from 1.
        ring_flags: `[E, S]`.
        ring_rewards: `[E, S]`.
        slot: slot of this row.
        header: the ring's header; EPISODES is incremented by one at a time, which readers of the log rely on.
        episode_return: the ring's log of returns.
        episode_length: the ring's log of lengths.

    Returns:
        Environment steps taken: E minus the number of resets.
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
        # Both after the end of an episode, for the reset row, and after a reset row, for the new episode.
        returns[i] = 0.0
        began_at[i] = row
    return taken  # type: ignore[no-any-return]


@kernel(
    "int64(boolean[:,::1], int64[:,::1], float64[::1], float64[::1], int64[::1], int64, uint8[:,:], float32[:,:], "
    "int64, int64[::1], float64[:,::1], int64[::1])",
    cold=True,
)
def count_agents_row(
    live: NDArray[np.bool_],
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
    """`count_row` for environments of N agents: an episode is logged when all its agents have ended.

    `live` is `[environments, N]`, agents that act in the next row, and `episode_return` `[entries, N]`; E is the number
    of environments times N. Returns the environment steps taken: environments of which an agent acted.
    """
    num_envs, num_agents = live.shape
    for i in range(rewards.shape[0]):
        returns[i] += rewards[i]
        ring_rewards[i, slot] = rewards[i]
        ring_flags[i, slot] = 0
    for k in range(events.shape[0]):
        ring_flags[events[k, 0], slot] = events[k, 1]
    taken = 0
    for e in range(num_envs):
        first, acted, over = e * num_agents, False, True
        for n in range(num_agents):
            acted |= ring_flags[first + n, slot] & RESET == 0
            over &= not live[e, n]
        taken += int(acted)
        if acted and over:
            record_agents_episode(
                header, episode_return, episode_length, returns, first, row - began_at[first]
            )
        if over or not acted:
            for n in range(num_agents):
                returns[first + n] = 0.0
                began_at[first + n] = row
    return taken


@kernel("int64(boolean[::1], boolean[::1], boolean[::1], float64[::1], int64[:,::1])")
def find_events(
    terminated: NDArray[np.bool_],
    truncated: NDArray[np.bool_],
    resets: NDArray[np.bool_],
    rewards: NDArray[np.float64],
    events: NDArray[np.int64],
) -> int:
    """Find the streams of a vector environment that ended an episode in a row or were reset by it.

    Args:
        terminated: `[E]`, result of the step.
        truncated: `[E]`, result of the step.
        resets: `[E]`, streams whose episode ended in the previous row; updated to those that end in this row.
        rewards: `[E]`; rewards of resets are set to 0.
        events: `[E, 2]`, filled from the start with (stream, flags) of the streams with flags other than 0, ascending.

    Returns:
        Number of events.
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
