"""R2D2: recurrent deep Q-learning from prioritized replay of sequences.

Kapturowski et al. 2019  Recurrent experience replay in distributed reinforcement learning
Pohlen et al. 2018       Observe and look further: achieving consistent performance on Atari (value rescaling)

A sequence starts with the recurrent state that the actor stored. Its first `burn_in` rows are run without gradient to
recompute the state with the present weights; the rows after them are trained on. Online and target network each burn in
with their own weights. Sequences continue across the ends of episodes, with the state reset (`SequenceShape`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal

from asyncrl.acting.rescaling import EPSILON
from asyncrl.algorithms.q_learning import QLoss, huber
from asyncrl.algorithms.recurrent_q_learning import RecurrentQLearning, sequence_priorities
from asyncrl.interfaces import EnvSpec
from asyncrl.options import Positive
from asyncrl.protocols import UpdateLoopName

if TYPE_CHECKING:
    from torch import Tensor

    from asyncrl.algorithms.r2d2_update import R2D2Update, StagedSequences


def rescale(x: Tensor) -> Tensor:
    """h(x) = sign(x) (sqrt(|x| + 1) - 1) + epsilon x (Pohlen et al. 2018, proposition A.2)."""
    return x.sign() * ((x.abs() + 1.0).sqrt() - 1.0) + EPSILON * x


def rescale_inverse(x: Tensor) -> Tensor:
    """h^-1(x) = sign(x) (((sqrt(1 + 4 epsilon (|x| + 1 + epsilon)) - 1) / (2 epsilon))^2 - 1).

    Computed with z = 4 epsilon (|x| + 1 + epsilon) and sqrt(1 + z) - 1 = z / (sqrt(1 + z) + 1): the difference of two
    numbers near 1 would leave three digits of a float32.
    """
    inner = x.abs() + (1.0 + EPSILON)
    root = 2.0 * inner / ((1.0 + 4.0 * EPSILON * inner).sqrt() + 1.0)
    return x.sign() * (root.square() - 1.0)


def r2d2_loss(
    q: Tensor,
    next_q: Tensor,
    next_action: Tensor,
    batch: StagedSequences,
    huber_delta: float | None,
    bound_targets: bool,
    value_rescaling: bool,
    eta: float,
) -> QLoss:
    """Weighted Huber loss of the temporal-difference errors in B sequences of T trained rows, and their priorities.

    Kapturowski et al. 2019, section 2.3, with h the identity where `value_rescaling` is off:

        y_t = h(sum_{k<n} gamma^k r_{t+k} + gamma^n h^-1(Q(s_{t+n}, a*; theta-)))
        delta_t = y_t - Q(s_t, a_t; theta)
        p = eta max_t |delta_t| + (1 - eta) mean_t |delta_t|

    where a* = argmax_a Q(s_{t+n}, a; theta) for double Q-learning. Maximum and mean are taken over the trained rows.

    Args:
        q: Q(s_t, .; theta) `[B T, A]`.
        next_q: Q(s_{t+n}, .; theta-) `[B T, A]`.
        next_action: a* `[B T, 1]` int64.
        batch: `discount` is gamma^n, or 0 after a termination; `weight` is 0 in rows that are not trained on, and
            divided by B T elsewhere.
        huber_delta: error above which the loss is linear; None is the squared loss.
        bound_targets: clip h^-1(Q(s_{t+n}, a*)) to `batch.low` and `batch.high`.
        value_rescaling: whether the network's outputs are rescaled returns h(R).
        eta: weight of the largest error in the priority.
    """
    assert q.dim() == 2 and next_q.shape == q.shape and next_action.shape == batch.action.shape
    next_value = next_q.gather(1, next_action)
    if value_rescaling:
        next_value = rescale_inverse(next_value)
    if bound_targets:
        next_value = next_value.clamp(batch.low, batch.high)
    target = batch.reward + batch.discount * next_value
    error = (rescale(target) if value_rescaling else target) - q.gather(1, batch.action)
    priorities = sequence_priorities(error, batch.trained, batch.size, eta)
    return QLoss((batch.weight * huber(error, huber_delta)).sum(), priorities)


@dataclass(frozen=True, kw_only=True)
class R2D2(RecurrentQLearning):
    """Hyper-parameters of R2D2: those of DQN and of sequences."""

    name: ClassVar[str] = "r2d2"
    update_loop: ClassVar[UpdateLoopName] = "sequences"

    recurrent: Literal["gru", "lstm"] = "lstm"
    """Recurrent cell between hidden layers and outputs: gru or lstm; its state is reset at episode starts."""

    batch_size: int = 32
    """Sequences per update."""

    value_rescaling: bool = True
    """Learn returns on the scale h(x) = sign(x) (sqrt(|x| + 1) - 1) + 0.001 x (Pohlen et al. 2018)."""

    huber_delta: Positive | None = 1.0
    """Threshold of the Huber loss; none is the squared loss."""

    bound_targets: bool = True
    """Clip bootstrapped values to the range that the observed rewards and gamma imply."""

    n_step: int = 5
    gamma: float = 0.997
    alpha: float = 0.9
    beta_start: float = 0.6
    beta_end: float = 0.6
    samples_per_insert: float | None = 8.0
    cuda_graph: bool | None = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.noisy:
            raise ValueError("noisy must be off for r2d2, whose layers have no noise, got True")

    def make_updater(self, spec: EnvSpec, device: str, seed: int) -> R2D2Update:
        """Make the updater on `device`, initialised from `seed`; imports torch. Raises `SpacesDoNotFit`."""
        from asyncrl.algorithms.r2d2_update import R2D2Update

        loss = partial(
            r2d2_loss,
            huber_delta=self.huber_delta,
            bound_targets=self.bound_targets,
            value_rescaling=self.value_rescaling,
            eta=self.eta,
        )
        shape = self.sequence_shape
        assert shape is not None, "there is a cell"
        values = rescale_inverse if self.value_rescaling else lambda q: q
        return R2D2Update(self, spec, device, seed, shape=shape, loss=loss, values=values)
