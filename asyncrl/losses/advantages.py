"""Generalized advantage estimation over the segments that actors write, in one pass from the end.

    Schulman et al. 2016    High-dimensional continuous control using generalized advantage estimation

E streams of T rows each, stream-major. What a row's flags mean for the value of what follows is decided by
`chain_of`, here and in `vtrace.py` alike. NumPy and numba: a recursion over time is the one thing that tensor
operations do badly, and values and flags are on the host anyway.
"""

from __future__ import annotations

import numpy as np
from numba import float32, njit, types, uint8
from numpy.typing import NDArray

from asyncrl.interfaces import RESET, TERMINATED, TRUNCATED

rows_float32 = types.Array(float32, 2, "A", readonly=True)
"""Numba's type of `[E, T]` float32 in any layout, a view into a ring included."""
rows_uint8 = types.Array(uint8, 2, "A", readonly=True)
"""The same of flags."""
last_float32 = types.Array(float32, 1, "A", readonly=True)
"""Numba's type of `[E]` float32."""

_ENDED = TERMINATED | TRUNCATED


@njit(inline="always")
def chain_of(flags, e, t):  # type: ignore[no-untyped-def]
    """Whether row t of stream e goes on in row t + 1, so that what follows there may flow back into it.

    It does not where the episode ended, where the next row only resets (an actor died: the next observation is the
    true one, but its row was not acted on), and at the end of the segment.
    """
    return t + 1 < flags.shape[1] and flags[e, t] & _ENDED == 0 and flags[e, t + 1] & RESET == 0


@njit(
    types.void(
        *(rows_float32, rows_float32, last_float32, rows_uint8, types.float64, types.float64),
        *(types.float32[:, ::1], types.float32[:, ::1]),
    ),
    cache=True,
    nogil=True,
    error_model="numpy",
)
def gae_kernel(reward, value, last_value, flags, gamma, lam, advantage, target):  # type: ignore[no-untyped-def]
    """Fill `advantage` and `target`; the recursion is carried in float64."""
    length = reward.shape[1]
    for e in range(reward.shape[0]):
        carry = 0.0
        next_value = np.float64(last_value[e])
        for t in range(length - 1, -1, -1):
            own = np.float64(value[e, t])
            if flags[e, t] & RESET != 0:
                advantage[e, t] = 0.0
                target[e, t] = 0.0
            else:
                ahead = 0.0 if flags[e, t] & TERMINATED != 0 else next_value
                delta = reward[e, t] + gamma * ahead - own
                carry = delta + gamma * lam * carry if chain_of(flags, e, t) else delta
                advantage[e, t] = carry
                target[e, t] = carry + own
            next_value = own


def gae(
    reward: NDArray[np.float32],
    value: NDArray[np.float32],
    last_value: NDArray[np.float32],
    flags: NDArray[np.uint8],
    gamma: float,
    lam: float,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Advantages and value targets `[E, T]` float32, fresh arrays (Schulman et al. 2016, eq. 11, 12 and 16).

        delta_t = r_t + gamma V(o_{t+1}) - V(o_t)           (V(o_{t+1}) = 0 where row t is TERMINATED)
        A_t     = delta_t + gamma lambda A_{t+1}            (A_t = delta_t where nothing chains row t to the next)
        target  = A_t + V(o_t)                              (the lambda-return)

    A truncated row, one cut by an actor's death and the segment's last row bootstrap from the value of what they
    saw next; RESET rows are zero in both arrays.

    Args:
        reward: `[E, T]` float32, any layout; may be a view into a ring.
        value: `[E, T]` float32, V(o_t), of RESET rows too: theirs is what the row before is bootstrapped of.
        last_value: `[E]` float32, V(o_T).
        flags: `[E, T]` uint8.
        gamma: discount per step.
        lam: lambda; 0 is the one-step error, 1 the whole rest of the segment.
    """
    shape = reward.shape
    assert reward.ndim == 2 and value.shape == shape == flags.shape and last_value.shape == shape[:1]
    advantage, target = np.empty(shape, np.float32), np.empty(shape, np.float32)
    gae_kernel(reward, value, last_value, flags, gamma, lam, advantage, target)
    return advantage, target
