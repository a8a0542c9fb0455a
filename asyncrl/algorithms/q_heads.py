"""What DQN, C51 and QR-DQN make of the same network's outputs: action values, a target, a loss and its gradient.

Everything else of an update is `DQNCore`'s. A head remembers the tensors of the last update, for its priorities and
its loss, and reads no value back to the host but in what `metrics` asks of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from asyncrl.algorithms.staging import StagedBatch
from asyncrl.losses import distributional as dist
from asyncrl.losses.td import bootstrap, dqn_loss, dqn_loss_gradient, dueling, dueling_gradient, td_error

if TYPE_CHECKING:
    from asyncrl.acting.policies import QLayout
    from asyncrl.algorithms.c51 import C51
    from asyncrl.algorithms.dqn import DQN
    from asyncrl.algorithms.qrdqn import QRDQN


class QHead(Protocol):
    """The part of a learner that differs between the algorithms of the DQN family."""

    def values(self, out: Tensor) -> Tensor:
        """Action values `[R, A]` of the network's outputs `[R, sizes[-1]]`."""
        ...

    def gradient(self, out: Tensor, next_out: Tensor, batch: StagedBatch) -> Tensor:
        """Gradient `[B, sizes[-1]]` of the loss for the first B rows of `out`.

        Args:
            out: the online network's outputs for obs, `[B, sizes[-1]]`, or for obs and next_obs, `[2 B, sizes[-1]]`;
                it then chooses the next action (double Q-learning).
            next_out: the target network's for next_obs.
            batch: on the device.
        """
        ...

    def priorities(self) -> Tensor:
        """Column `[B, 1]` of the last update, whose absolute values are the priorities."""
        ...

    def loss(self, weight: Tensor) -> Tensor:
        """Scalar: loss of the last update; `weight` is the batch's."""
        ...

    def q_mean(self) -> Tensor:
        """Scalar: mean of the action values of obs in the last update."""
        ...

    def q_max(self) -> Tensor:
        """Scalar: largest absolute action value of obs in the last update."""
        ...


class ValueHead:
    """DQN: an output is an action value (or, dueling, the state's value and the advantages); Huber's loss."""

    def __init__(self, config: DQN) -> None:
        self._dueling, self._delta = config.dueling, config.huber_delta
        self._bound = config.bound_targets
        self._q = self._td = torch.empty(0, 0)

    def values(self, out: Tensor) -> Tensor:
        """See `QHead`."""
        return dueling(out[:, :1], out[:, 1:]) if self._dueling else out

    def gradient(self, out: Tensor, next_out: Tensor, batch: StagedBatch) -> Tensor:
        """See `QHead`."""
        both, next_q, size = self.values(out), self.values(next_out), batch.size
        self._q = q = both[:size]
        next_value = bootstrap(next_q, both[size:] if both.shape[0] > size else None)
        if self._bound:
            next_value.clamp_(batch.low, batch.high)
        self._td = td_error(q, batch.action, batch.reward, batch.discount, next_value)
        grad = dqn_loss_gradient(self._td, batch.action, batch.weight, q.shape[1], self._delta)
        return dueling_gradient(grad) if self._dueling else grad

    def priorities(self) -> Tensor:
        """The TD errors."""
        return self._td

    def loss(self, weight: Tensor) -> Tensor:
        """See `QHead`."""
        return dqn_loss(self._td, weight, self._delta)

    def q_mean(self) -> Tensor:
        """See `QHead`."""
        return self._q.mean()

    def q_max(self) -> Tensor:
        """See `QHead`."""
        return self._q.abs().max()


class _AtomHead:
    """What C51 and QR-DQN share: N outputs for each action, and the next action chosen by their mean return."""

    def __init__(self, layout: QLayout) -> None:
        self._dueling, self._num_atoms = layout.dueling, layout.atoms
        self._atoms = torch.empty(0, 0, 0)

    def values(self, out: Tensor) -> Tensor:
        """See `QHead`."""
        return self._means(self._combined(out))

    def _combined(self, out: Tensor) -> Tensor:
        """Outputs `[R, A, N]` by action."""
        atoms = out.unflatten(1, (-1, self._num_atoms))
        return dist.dueling_atoms(atoms[:, 0], atoms[:, 1:]) if self._dueling else atoms

    def gradient(self, out: Tensor, next_out: Tensor, batch: StagedBatch) -> Tensor:
        """See `QHead`."""
        both, next_atoms, size = self._combined(out), self._combined(next_out), batch.size
        self._atoms = atoms = both[:size]
        chooser = both[size:] if both.shape[0] > size else next_atoms
        best = self._means(chooser).argmax(dim=1, keepdim=True)
        chosen = dist.of_action(atoms, batch.action)
        grad = self._gradient_of(chosen, dist.of_action(next_atoms, best), batch)
        spread = dist.dueling_at_action if self._dueling else dist.at_action
        return spread(grad, batch.action, atoms.shape[1]).flatten(1)

    def q_mean(self) -> Tensor:
        """See `QHead`."""
        return self._means(self._atoms).mean()

    def q_max(self) -> Tensor:
        """See `QHead`."""
        return self._means(self._atoms).abs().max()

    def _means(self, atoms: Tensor) -> Tensor:
        """Mean returns `[R, A]` of `[R, A, N]`."""
        raise NotImplementedError

    def _gradient_of(self, chosen: Tensor, following: Tensor, batch: StagedBatch) -> Tensor:
        """Gradient `[B, N]` for the outputs of the action that was taken, given those of the next action."""
        raise NotImplementedError


class CategoricalHead(_AtomHead):
    """C51: outputs are logits of the return's probabilities on fixed atoms; cross entropy with the projection.

    The priority is the Kullback-Leibler divergence (Hessel et al. 2018), and so is the loss that is reported: the
    cross entropy differs by what training cannot change, the entropy of the target.
    """

    def __init__(self, config: C51, layout: QLayout, device: torch.device) -> None:
        super().__init__(layout)
        self._support = torch.from_numpy(config.support()).to(device)
        self._log_prob = self._target = torch.empty(0, 0)

    def _means(self, atoms: Tensor) -> Tensor:
        return dist.expected_value(atoms, self._support)

    def _gradient_of(self, chosen: Tensor, following: Tensor, batch: StagedBatch) -> Tensor:
        self._log_prob = chosen.log_softmax(dim=1)
        self._target = dist.project(following.softmax(dim=1), batch.reward, batch.discount, self._support)
        return dist.cross_entropy_gradient(self._log_prob, self._target, batch.weight)

    def priorities(self) -> Tensor:
        """The divergences."""
        return dist.divergence(self._log_prob, self._target)

    def loss(self, weight: Tensor) -> Tensor:
        """Weighted sum of the divergences."""
        return (weight * self.priorities()).sum()


class QuantileHead(_AtomHead):
    """QR-DQN: outputs are the return's quantiles at the midpoints; quantile Huber loss.

    The priority is the error of the mean, as in DQN: it has DQN's unit, costs a fiftieth of the pairwise loss, and
    unlike the loss it does not stay high where the return is random and the quantiles are right.
    """

    def __init__(self, config: QRDQN, layout: QLayout) -> None:
        super().__init__(layout)
        self._kappa, self._bound = config.huber_delta, config.bound_targets
        self._theta = self._target = torch.empty(0, 0)

    def _means(self, atoms: Tensor) -> Tensor:
        return atoms.mean(dim=2)

    def _gradient_of(self, chosen: Tensor, following: Tensor, batch: StagedBatch) -> Tensor:
        self._theta = chosen
        if self._bound:
            following = following.clamp(batch.low, batch.high)
        self._target = torch.addcmul(batch.reward, batch.discount, following)
        return dist.quantile_gradient(chosen, self._target, batch.weight, self._kappa)

    def priorities(self) -> Tensor:
        """Predicted less target mean."""
        return (self._theta - self._target).mean(dim=1, keepdim=True)

    def loss(self, weight: Tensor) -> Tensor:
        """See `QHead`."""
        return (weight * dist.quantile_loss(self._theta, self._target, self._kappa)).sum()
