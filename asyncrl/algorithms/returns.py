"""Value targets and advantages of segments: V-trace and generalized advantage estimation.

    Schulman et al. 2016    High-dimensional continuous control using generalized advantage estimation
    Espeholt et al. 2018    IMPALA: scalable distributed deep-RL with importance weighted actor-learner architectures

Arrays hold E streams of T rows each, stream-major. `vtrace_kernel` is the only place that interprets a row's flags for
bootstrapping. NumPy and numba are used because tensor operations are slow at recursions over time, and rewards and
flags are on the host anyway.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from asyncrl.interfaces import RESET, TERMINATED, TRUNCATED
from asyncrl.networks.flat_vector import Moments
from asyncrl.shm.kernel import kernel

_ENDED = TERMINATED | TRUNCATED


@kernel(
    "void(float32[:, ::1], float32[:, ::1], float32[:, ::1], float32[::1], uint8[:, ::1], float64, float64,"
    "float64, float64, float64, float32[:, ::1], float32[:, ::1])"
)
def vtrace_kernel(  # type: ignore[no-untyped-def]
    log_ratio, reward, value, last_value, flags, gamma, lam, rho_bar, c_bar, pg_rho_bar, vs, advantage
):
    """Fill `vs` and `advantage`; the recursion runs in float64.

    Row t continues in row t + 1 unless the episode ends in row t, row t + 1 is a RESET row (an actor died: the row's
    observation is the true next one, but no action followed it), or the segment ends.
    """
    length = reward.shape[1]
    for e in range(reward.shape[0]):
        correction = 0.0  # v_{t+1} - V(o_{t+1})
        next_value = np.float64(last_value[e])
        goes_on = False
        for t in range(length - 1, -1, -1):
            own = np.float64(value[e, t])
            if flags[e, t] & RESET != 0:
                vs[e, t] = 0.0
                advantage[e, t] = 0.0
                goes_on = False
            else:
                ratio = np.exp(np.float64(log_ratio[e, t]))
                ahead = 0.0 if flags[e, t] & TERMINATED != 0 else next_value
                delta = reward[e, t] + gamma * ahead - own
                carried = gamma * lam * correction if goes_on and flags[e, t] & _ENDED == 0 else 0.0
                advantage[e, t] = min(pg_rho_bar, ratio) * (delta + carried)
                correction = min(rho_bar, ratio) * delta + min(c_bar, ratio) * carried
                vs[e, t] = own + correction
                goes_on = True
            next_value = own


def vtrace(
    log_ratio: NDArray[np.float32],
    reward: NDArray[np.float32],
    value: NDArray[np.float32],
    last_value: NDArray[np.float32],
    flags: NDArray[np.uint8],
    gamma: float,
    lam: float = 1.0,
    bars: tuple[float, float, float] = (1.0, 1.0, 1.0),
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Value targets v_t and policy-gradient advantages, new float32 arrays `[E, T]` (Espeholt et al. 2018).

        rho_t = min(rho_bar, pi/mu)    c_t = lambda min(c_bar, pi/mu)                       (section 4.1, remark 2)
        v_t   = V(o_t) + rho_t delta_t + gamma c_t (v_{t+1} - V(o_{t+1}))                   (eq. 1, remark 1)
        A_t   = min(pg_rho_bar, pi/mu) (r_t + gamma [V(o_{t+1}) + lambda (v_{t+1} - V(o_{t+1}))] - V(o_t))

    with delta_t = r_t + gamma V(o_{t+1}) - V(o_t). For lambda = 1 the bracket equals v_{t+1}, as in section 4.2 of the
    paper, which does not define it for smaller lambda. With this bracket, A_t on policy equals generalized advantage
    estimation for every lambda (DeepMind's rlax does the same).

    V(o_{t+1}) is 0 where row t is TERMINATED. v_{t+1} - V(o_{t+1}) is 0 where row t does not continue in the next: at
    the end of an episode, the death of an actor and the segment's last row. A truncated row, a row before a RESET row
    and the segment's last row bootstrap from the value of the next observation. RESET rows are zero in both arrays.

    Args:
        log_ratio: `[E, T]` float32, log pi - log mu of the action taken; pi is the learned policy, mu the behaviour
            policy.
        reward: `[E, T]` float32.
        value: `[E, T]` float32, V(o_t), including RESET rows, from which the row before bootstraps.
        last_value: `[E]` float32, V(o_T).
        flags: `[E, T]` uint8.
        gamma: discount per step.
        lam: lambda; 0 gives the one-step error, 1 uses the rest of the segment.
        bars: truncations (rho_bar, c_bar, pg_rho_bar): the first determines the policy whose value is learned (mu for
            0, pi for infinity), the second the speed of convergence, the third bounds the policy gradient's weight.
    """
    shape = reward.shape
    assert reward.ndim == 2 and log_ratio.shape == value.shape == shape == flags.shape
    assert last_value.shape == shape[:1]
    vs, advantage = np.empty(shape, np.float32), np.empty(shape, np.float32)
    arrays = (np.ascontiguousarray(array) for array in (log_ratio, reward, value, last_value, flags))
    arguments = *arrays, gamma, lam, *bars, vs, advantage
    vtrace_kernel(*arguments)
    return vs, advantage


def gae(
    reward: NDArray[np.float32],
    value: NDArray[np.float32],
    last_value: NDArray[np.float32],
    flags: NDArray[np.uint8],
    gamma: float,
    lam: float,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Advantages and value targets, new float32 arrays `[E, T]` (Schulman et al. 2016, eq. 11, 12 and 16).

        delta_t = r_t + gamma V(o_{t+1}) - V(o_t)
        A_t     = delta_t + gamma lambda A_{t+1}
        target  = A_t + V(o_t)                              (the lambda-return)

    This is V-trace with pi/mu = 1. Arguments and the treatment of flags are those of `vtrace`.
    """
    on_policy = np.zeros(reward.shape, np.float32)
    target, advantage = vtrace(on_policy, reward, value, last_value, flags, gamma, lam)
    return advantage, target


def team_rewards(reward: NDArray[np.float32], num_agents: int) -> NDArray[np.float32]:
    """Sum of the agents' rewards, for every agent: `[E N, T]` of `[E N, T]`, agents of an environment consecutive."""
    each = reward.reshape(-1, num_agents, reward.shape[1])
    total: NDArray[np.float32] = np.repeat(each.sum(axis=1), num_agents, axis=0)
    return total


def team_flags(flags: NDArray[np.uint8], num_agents: int) -> NDArray[np.uint8]:
    """Flags of the environments, `[E, T]`, from those of the agents, `[E N, T]`.

    An episode ends in the row in which its last agent ends. It is truncated if an agent is truncated there, and not
    terminated at once: the value of the next state is then bootstrapped. A row is a RESET row if no agent acts.
    """
    each = flags.reshape(-1, num_agents, flags.shape[1])
    waits = (each & RESET) != 0
    over = (waits | ((each & _ENDED) != 0)).all(axis=1)
    truncated = (~waits & ((each & _ENDED) == TRUNCATED)).any(axis=1)
    found = np.where(over, np.where(truncated, TRUNCATED, TERMINATED), 0)
    found[waits.all(axis=1)] = RESET
    return found.astype(np.uint8)


def standardised(
    advantage: NDArray[np.float32],
    trained: NDArray[np.bool_],
    of_all: Callable[[Moments], Moments] | None = None,
) -> NDArray[np.float32]:
    """`advantage` with mean 0 and standard deviation 1 over the rows `trained`; zero elsewhere.

    Args:
        advantage: float32.
        trained: bool, of the same shape.
        of_all: function from the moments of the rows `trained` to those of all groups', by which they are standardised;
            None without groups.
    """
    result, own = np.zeros_like(advantage), advantage[trained]
    if of_all is not None:
        mean = float(own.mean(dtype=np.float64)) if own.size else 0.0
        found = of_all(Moments(own.size, mean, float(np.square(own - mean, dtype=np.float64).sum())))
        deviation = (found.square / max(1.0, found.number)) ** 0.5
        result[trained] = (own - np.float32(found.mean)) / np.float32(deviation + 1e-8)
    elif own.size:
        result[trained] = (own - own.mean()) / (own.std() + np.float32(1e-8))
    return result


def explained_variance(value: NDArray[np.float32], target: NDArray[np.float32]) -> float:
    """Share of the targets' variance explained by the values; 0 if the targets have no variance."""
    with np.errstate(over="ignore", invalid="ignore"):  # divergence of a run is reported elsewhere
        variance = float(target.var()) if target.size else 0.0
        return 1.0 - float((target - value).var()) / variance if variance > 0 else 0.0
