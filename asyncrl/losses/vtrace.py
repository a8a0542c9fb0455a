"""V-trace: value targets and advantages under the newest policy from what older policies did.

    Espeholt et al. 2018    IMPALA: scalable distributed deep-RL with importance weighted actor-learner architectures

E streams of T rows each, stream-major; how flags cut a trajectory is decided in `advantages.py`.
"""

from __future__ import annotations

import numpy as np
from numba import njit, types
from numpy.typing import NDArray

from asyncrl.interfaces import RESET, TERMINATED
from asyncrl.losses.advantages import chain_of, last_float32, rows_float32, rows_uint8


@njit(
    types.void(
        *(rows_float32, rows_float32, rows_float32, last_float32, rows_uint8),
        *(types.float64, types.float64, types.float64, types.float64, types.float64),
        *(types.float32[:, ::1], types.float32[:, ::1]),
    ),
    cache=True,
    nogil=True,
    error_model="numpy",
)
def vtrace_kernel(  # type: ignore[no-untyped-def]
    log_ratio, reward, value, last_value, flags, gamma, lam, rho_bar, c_bar, pg_rho_bar, vs, advantage
):
    """Fill `vs` and `advantage`; the recursion is carried in float64."""
    length = reward.shape[1]
    for e in range(reward.shape[0]):
        correction = 0.0  # v_{t+1} - V(o_{t+1})
        next_value = np.float64(last_value[e])
        for t in range(length - 1, -1, -1):
            own = np.float64(value[e, t])
            if flags[e, t] & RESET != 0:
                vs[e, t] = 0.0
                advantage[e, t] = 0.0
            else:
                ratio = np.exp(np.float64(log_ratio[e, t]))
                ahead = 0.0 if flags[e, t] & TERMINATED != 0 else next_value
                delta = reward[e, t] + gamma * ahead - own
                behind = gamma * lam * correction if chain_of(flags, e, t) else 0.0
                advantage[e, t] = min(pg_rho_bar, ratio) * (delta + behind)
                correction = min(rho_bar, ratio) * delta + min(c_bar, ratio) * behind
                vs[e, t] = own + correction
            next_value = own


def vtrace(
    log_ratio: NDArray[np.float32],
    reward: NDArray[np.float32],
    value: NDArray[np.float32],
    last_value: NDArray[np.float32],
    flags: NDArray[np.uint8],
    gamma: float,
    lam: float = 1.0,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
    pg_rho_bar: float = 1.0,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Value targets v_t and policy-gradient advantages, `[E, T]` float32, fresh arrays (Espeholt et al. 2018).

        rho_t = min(rho_bar, pi/mu)    c_t = lambda min(c_bar, pi/mu)                       (section 4.1, remark 2)
        v_t   = V(o_t) + rho_t delta_t + gamma c_t (v_{t+1} - V(o_{t+1}))                   (eq. 1, remark 1)
        A_t   = min(pg_rho_bar, pi/mu) (r_t + gamma [V(o_{t+1}) + lambda (v_{t+1} - V(o_{t+1}))] - V(o_t))

    with delta_t = r_t + gamma V(o_{t+1}) - V(o_t). For lambda = 1 the bracket is v_{t+1}, section 4.2 of the paper,
    which does not say what it is for less; as it stands, A_t on policy is generalized advantage estimation for every
    lambda (DeepMind's rlax does the same). V(o_{t+1}) is 0 where row t is TERMINATED, and v_{t+1} - V(o_{t+1}) is 0
    where nothing chains row t to the next: an episode's end, an actor's death, the segment's last row. RESET rows are
    zero in both arrays.

    Args:
        log_ratio: `[E, T]` float32, log pi - log mu of the action taken: the policy that learns over that which acted.
        reward: `[E, T]` float32, any layout; may be a view into a ring.
        value: `[E, T]` float32, V(o_t), of RESET rows too.
        last_value: `[E]` float32, V(o_T).
        flags: `[E, T]` uint8.
        gamma: discount per step.
        lam: lambda.
        rho_bar: truncation that decides which policy's value is learned: mu's for 0, pi's for infinity.
        c_bar: truncation that decides how fast.
        pg_rho_bar: truncation of the policy gradient's weight.
    """
    shape = reward.shape
    assert reward.ndim == 2 and log_ratio.shape == value.shape == shape == flags.shape
    assert last_value.shape == shape[:1]
    vs, advantage = np.empty(shape, np.float32), np.empty(shape, np.float32)
    truncations = (rho_bar, c_bar, pg_rho_bar)
    vtrace_kernel(log_ratio, reward, value, last_value, flags, gamma, lam, *truncations, vs, advantage)
    return vs, advantage
