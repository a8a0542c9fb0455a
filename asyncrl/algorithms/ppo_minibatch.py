"""One gradient step of PPO: the clipped surrogate, the value loss and the entropy of a minibatch, and their gradient.

Minimised, so with the opposite sign of equation 9 of Schulman et al. 2017 (Proximal policy optimization algorithms).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from asyncrl.algorithms.actor_critic import ActorCritic
from asyncrl.algorithms.rollout import Rollout
from asyncrl.distributions import distribution
from asyncrl.losses.policy_gradient import (
    approximate_kl,
    clip_fraction,
    clipped_surrogate,
    clipped_surrogate_gradient,
    value_loss,
    value_loss_gradient,
)

if TYPE_CHECKING:
    from asyncrl.algorithms.ppo import PPO

_KL_MARGIN = 1.5


class Minibatch:
    """Buffers of a gradient step over `size` rows, of which the first `count` count.

    Attributes:
        size: M.
        count: rows of the last `gather` that are not padding.
    """

    def __init__(self, nets: ActorCritic, rollout: Rollout, size: int) -> None:
        self.size, self.count = size, 0
        self._nets = nets
        self._pass = nets.passes(size, gradient=True)
        self._distribution = distribution(nets.layout)
        self._action = rollout.action.new_zeros((size, *rollout.action.shape[1:]))
        self._numbers = rollout.numbers.new_zeros((rollout.numbers.shape[0], size))
        self._rows = self._numbers.unbind()
        self._seen: tuple[Tensor, Tensor, Tensor] | None = None

    def gather(self, rollout: Rollout, rows: Tensor, count: int) -> None:
        """Copy in the rows `[M]` int64, of which the first `count` count."""
        self.count = count
        torch.index_select(rollout.x, 0, rows, out=self._pass.x)
        torch.index_select(rollout.action, 0, rows, out=self._action)
        torch.index_select(rollout.numbers, 1, rows, out=self._numbers)

    def gradient(self, config: PPO) -> bool:
        """Fill the gradient, unless the policy has left the old one farther than `target_kl` allows."""
        old, advantage, target, old_value, policy_weight, value_weight, entropy_weight = self._rows
        out, value = self._pass.forward()
        log_prob, entropy = self._distribution.evaluate(out, self._action, self._nets.log_std)
        self._seen = log_prob, entropy, value
        if config.target_kl is not None and self._divergence() > _KL_MARGIN * config.target_kl:
            return False
        by_log_prob = clipped_surrogate_gradient(log_prob, old, advantage, policy_weight, config.clip_range)
        by_value = value_loss_gradient(value, target, value_weight, old_value, config.value_clip_range)
        grad_out, grad_log_std = self._distribution.gradient(by_log_prob, entropy_weight)
        self._pass.backward(grad_out, by_value, grad_log_std)
        return True

    def _divergence(self) -> float:
        assert self._seen is not None
        return float(approximate_kl(self._seen[0][: self.count], self._numbers[0, : self.count]))

    def metrics(self, config: PPO) -> dict[str, float]:
        """Of the last `gradient`; empty before."""
        if self._seen is None or not self.count:
            return {}
        log_prob, entropy, value = (t[: self.count] for t in self._seen)
        numbers = self._numbers[:, : self.count]
        old, advantage, target, old_value, policy_weight, value_weight, entropy_weight = numbers
        policy = clipped_surrogate(log_prob, old, advantage, policy_weight, config.clip_range)
        error = value_loss(value, target, value_weight, old_value, config.value_clip_range)
        return {
            "train/loss": float(policy + error + (entropy * entropy_weight).sum()),
            "train/policy_loss": float(policy),
            "train/value_loss": float(error) / (config.value_coefficient or 1.0),
            "train/entropy": float(entropy.mean()),
            "train/approx_kl": self._divergence(),
            "train/clip_fraction": float(clip_fraction(log_prob, old, config.clip_range)),
        }
