"""Base record and loss of VDN and QMIX: the agents of an environment learn one value of their joint action.

    Sunehag et al. 2018     Value-decomposition networks for cooperative multi-agent learning based on team reward
    Rashid et al. 2018      QMIX: monotonic value function factorisation for deep multi-agent reinforcement learning

    Q_tot(s, u) = f(Q_1(o_1, u_1), ..., Q_N(o_N, u_N); s)

f is a *mixer* that does not decrease in any Q_a, so that the best joint action is the best action of each agent (Rashid
et al. 2018, eq. 4), and each acts by its own observation alone, like an agent of DQN. The team is paid the sum of the
agents' rewards. Its episode goes on as long as one of them acts: an agent that ended before, terminated or truncated,
has the value 0 in Q_tot. Where the last agents end, the values of those that are truncated there are bootstrapped. The
state s is the environment's, or the observations of all agents (`central_state`).

With `recurrent` the agents have a memory, in the paper a GRU, and learn from joint sequences: the rows of all agents
over the same steps. The loss is then the mean over the rows of a sequence after its burn-in; those in which no agent
acts have weight 0.

Mixers, networks and the update are in `value_decomposition_update.py`, which imports torch; this module does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from asyncrl.algorithms.action_spaces import check_agents
from asyncrl.algorithms.q_learning import QLoss, huber
from asyncrl.algorithms.recurrent_q_learning import RecurrentQLearning, sequence_priorities
from asyncrl.interfaces import EnvSpec
from asyncrl.options import Positive
from asyncrl.protocols import UpdateLoopName

if TYPE_CHECKING:
    from torch import Tensor, nn

    from asyncrl.algorithms.joint_staging import JointSequenceStage, JointStage


def team_loss(
    q_tot: Tensor,
    next_q_tot: Tensor,
    batch: JointStage | JointSequenceStage,
    huber_delta: float | None,
    bound_targets: bool,
) -> QLoss:
    """Weighted Huber loss of the joint temporal-difference errors, which are also the priorities.

        L = sum_b w_b huber(y_b - Q_tot(s_b, u_b; theta))     y = r + gamma^n Q_tot(s', u'; theta-)

    Rashid et al. 2018, eq. 6, with a Huber loss in place of their squared error, and n-step returns. u' is the best
    joint action: every agent's own best one. A sum over the batch, because `batch.weight` is divided by B.

    Args:
        q_tot: Q_tot(s, u; theta) `[B, 1]`, of joint sequences `[B T, 1]` like all columns.
        next_q_tot: Q_tot(s', u'; theta-) `[B, 1]`.
        batch: `reward` is the team's; `discount` is gamma^n, or 0 if no agent goes on.
        huber_delta: error above which the loss is linear; None is the squared loss.
        bound_targets: clip Q_tot(s', u') to `batch.low` and `batch.high`.
    """
    assert q_tot.shape == next_q_tot.shape == batch.reward.shape and q_tot.shape[1] == 1
    if bound_targets:
        next_q_tot = next_q_tot.clamp(batch.low, batch.high)
    error = q_tot - (batch.reward + batch.discount * next_q_tot)
    return QLoss((batch.weight * huber(error, huber_delta)).sum(), error.detach())


@dataclass(frozen=True, kw_only=True)
class ValueDecomposition(RecurrentQLearning):
    """Options common to VDN and QMIX: those of DQN without its heads, on joint transitions or joint sequences."""

    update_loop: ClassVar[UpdateLoopName] = "joint"
    needs_agents: ClassVar[bool] = True
    team_reward: ClassVar[bool] = True
    """Whether the agents learn the return of their team, of joint rows."""

    n_step: int = 1
    prioritized: bool = False
    exploration_steps: int = 50_000

    batch_size: int = 64
    """Joint transitions per update, each of all agents; with `recurrent` joint sequences."""

    huber_delta: Positive | None = 1.0
    """Threshold of the Huber loss; none is the squared loss."""

    bound_targets: bool = True
    """Clip bootstrapped values to the range that the team's observed rewards and gamma imply."""

    cuda_graph: bool | None = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("dueling", "noisy"):
            if getattr(self, name) is not False:
                raise ValueError(f"{name} must be off for {self.name}, got {getattr(self, name)}")

    def check(self, spec: EnvSpec) -> None:
        """Refuse unsupported action spaces, and environments of one agent. Raises `SpacesDoNotFit` (ASYNC005)."""
        super().check(spec)
        check_agents(self, spec)

    def make_mixer(self, agents: int, state_size: int) -> nn.Module:
        """Make the mixer: a module from action values `[B, agents]` and states `[B, state_size]` to `[B, 1]`."""
        raise NotImplementedError

    def loss(self, q_tot: Tensor, next_q_tot: Tensor, batch: Any) -> QLoss:
        """`team_loss` with the options of this record, and the priorities of joint sequences."""
        found = team_loss(q_tot, next_q_tot, batch, self.huber_delta, self.bound_targets)
        if self.recurrent == "none":
            return found
        return QLoss(found.loss, sequence_priorities(found.priorities, batch.trained, batch.size, self.eta))
