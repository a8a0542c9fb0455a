"""Kernels that read and write the words of a ring's header in the order that both ends need.

Each is one step of the protocol of `ring.py`, and keeps the GIL because it is short. The caller owns the words that it
stores to.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from asyncrl.shm.atomics import compare_exchange, fence, load_acquire, store_release
from asyncrl.shm.doorbell import take_bell
from asyncrl.shm.kernel import kernel
from asyncrl.shm.ring_layout import EPISODE_LOG, EPISODES, GRANTED, PUBLISHED, STEPS, WAITING, WAKE_AT


@kernel("int64(int64[::1], int64[::1], int64, int64)", nogil=False)
def publish_rows(header: NDArray[np.int64], armed: NDArray[np.int64], rows: int, steps: int) -> int:
    """Publish `rows` rows. Returns 0 if done, 1 if done and the caller must ring, 2 if refused.

    Refuses `rows` below 1 or beyond the grant. For kernels that write rows; the caller is the ring's only writer and
    has written the rows completely.
    """
    position = header[PUBLISHED] + rows
    if rows < 1 or position > load_acquire(header, GRANTED):
        return 2
    header[STEPS] += steps
    store_release(header, PUBLISHED, position)
    fence()
    if load_acquire(armed, 0) == 0 or position < load_acquire(header, WAKE_AT):
        return 0
    return 1 if take_bell(armed) else 0


@kernel("void(int64[::1], float64[::1], int64[::1], float64, int64)", nogil=False)
def record_episode(
    header: NDArray[np.int64],
    returns: NDArray[np.float64],
    lengths: NDArray[np.int64],
    episode_return: float,
    length: int,
) -> None:
    """Actor: write the next entry of the episode log, then increment EPISODES (release).

    The fence orders the last increment before this entry: a reader of the entry that is overwritten must see it.
    """
    fence()
    episodes = header[EPISODES]
    returns[episodes & (EPISODE_LOG - 1)] = episode_return
    lengths[episodes & (EPISODE_LOG - 1)] = length
    store_release(header, EPISODES, episodes + 1)


@kernel("void(int64[::1], float64[:,::1], int64[::1], float64[::1], int64, int64)", nogil=False, cold=True)
def record_agents_episode(
    header: NDArray[np.int64],
    returns: NDArray[np.float64],
    lengths: NDArray[np.int64],
    of_streams: NDArray[np.float64],
    first: int,
    length: int,
) -> None:
    """Actor: `record_episode` for the agents of one environment, whose returns are those of streams from `first` on."""
    fence()
    episodes = header[EPISODES]
    entry = episodes & (EPISODE_LOG - 1)
    for n in range(returns.shape[1]):
        returns[entry, n] = of_streams[first + n]
    lengths[entry] = length
    store_release(header, EPISODES, episodes + 1)


@kernel("boolean(int64[::1], int64)", nogil=False)
def must_sleep(header: NDArray[np.int64], position: int) -> bool:
    """Actor: set WAITING, then check GRANTED again; returns whether to sleep. Counterpart: `take_waiting`."""
    store_release(header, WAITING, 1)
    fence()
    if load_acquire(header, GRANTED) < position:
        return True
    store_release(header, WAITING, 0)
    return False


@kernel("boolean(int64[::1])", nogil=False)
def take_waiting(header: NDArray[np.int64]) -> bool:
    """Learner side, after a grant: clear WAITING; returns whether it was set. Counterpart: `must_sleep`."""
    fence()
    waiting: bool = load_acquire(header, WAITING) == 1 and compare_exchange(header, WAITING, 1, 0)
    return waiting


@kernel("int64(int64[::1], int64)", nogil=False)
def published_or_corrupt(header: NDArray[np.int64], num_slots: int) -> int:
    """Load `published`; -1 if it is outside of [retired, granted].

    `granted` is read before and after, so that a grant by another thread in between causes no false alarm.
    """
    before = load_acquire(header, GRANTED)
    published = load_acquire(header, PUBLISHED)
    after = load_acquire(header, GRANTED)
    if published < max(0, before - num_slots) or published > after:
        return -1
    return published  # type: ignore[no-any-return]
