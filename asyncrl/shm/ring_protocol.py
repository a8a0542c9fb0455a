"""Kernels that read and write the words of a ring's header, in the order that both ends rely on.

Every function here is one step of the protocol that `ring.py` explains, and so short that it keeps the GIL. The
caller owns the words that it stores to.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from asyncrl.shm.atomics import compare_exchange, fence, load_acquire, store_release
from asyncrl.shm.doorbell import take_bell
from asyncrl.shm.kernel import kernel
from asyncrl.shm.ring_layout import EPISODE_LOG, EPISODES, GRANTED, PUBLISHED, STEPS, WAITING, WAKE_AT


@kernel("int64(int64[::1], int64)", nogil=False)
def load_word(header: NDArray[np.int64], word: int) -> int:
    """The word (acquire)."""
    return load_acquire(header, word)  # type: ignore[no-any-return]


@kernel("int64(int64[::1], int64)", nogil=False)
def load_word_last(header: NDArray[np.int64], word: int) -> int:
    """The word as it is after everything that the caller read before."""
    fence()
    return load_acquire(header, word)  # type: ignore[no-any-return]


@kernel("void(int64[::1], int64, int64)", nogil=False)
def store_word(header: NDArray[np.int64], word: int, value: int) -> None:
    """Set the word (release)."""
    store_release(header, word, value)


@kernel("int64(int64[::1], int64[::1], int64, int64)", nogil=False)
def publish_rows(header: NDArray[np.int64], armed: NDArray[np.int64], rows: int, steps: int) -> int:
    """Publish `rows` rows: 0 done, 1 done and the caller must ring, 2 refused. For kernels that write rows.

    The caller owns the ring's actor side and has written every byte of the rows.
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
    """Actor: write the next entry of the episode log, then count it."""
    episodes = header[EPISODES]
    returns[episodes & (EPISODE_LOG - 1)] = episode_return
    lengths[episodes & (EPISODE_LOG - 1)] = length
    store_release(header, EPISODES, episodes + 1)


@kernel("boolean(int64[::1], int64)", nogil=False)
def must_sleep(header: NDArray[np.int64], position: int) -> bool:
    """Actor: say that it sleeps, then look once more. The other half is `take_waiting`."""
    store_release(header, WAITING, 1)
    fence()
    if load_acquire(header, GRANTED) < position:
        return True
    store_release(header, WAITING, 0)
    return False


@kernel("boolean(int64[::1])", nogil=False)
def take_waiting(header: NDArray[np.int64]) -> bool:
    """Learner side, after a grant: whether the actor said that it sleeps; True once. See `must_sleep`."""
    fence()
    waiting: bool = load_acquire(header, WAITING) == 1 and compare_exchange(header, WAITING, 1, 0)
    return waiting


@kernel("int64(int64[::1], int64)", nogil=False)
def published_or_corrupt(header: NDArray[np.int64], num_slots: int) -> int:
    """`published`, or -1 where it lies outside of what was granted.

    `granted` is read before and after, so that a look while another thread grants raises no false alarm.
    """
    before = load_acquire(header, GRANTED)
    published = load_acquire(header, PUBLISHED)
    after = load_acquire(header, GRANTED)
    if published < max(0, before - num_slots) or published > after:
        return -1
    return published  # type: ignore[no-any-return]
