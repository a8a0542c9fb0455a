"""One gradient step of PPO: the clipped surrogate, the value loss and the entropy of a minibatch, and their gradient.

Minimised, so with the opposite sign of equation 9 of Schulman et al. 2017 (Proximal policy optimization algorithms).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from asyncrl.algorithms.actor_critic import ActorCritic
from asyncrl.algorithms.ppo_heads import head
from asyncrl.algorithms.rollout import Rollout
from asyncrl.losses.policy_gradient import clip_fraction, clipped_surrogate, value_loss

if TYPE_CHECKING:
    from asyncrl.algorithms.ppo import PPO

_KL_MARGIN = 1.5


class Minibatch:
    """Buffers of a gradient step over `size` rows, of which the first `count` count.

    Attributes:
        size: M.
        count: rows of the last `gather` that are not padding.
    """

    def __init__(self, config: PPO, nets: ActorCritic, rollout: Rollout, size: int) -> None:
        self.size, self.count = size, 0
        self._config = config
        self._pass = nets.passes(size, gradient=True)
        self._action = rollout.action.new_zeros((size, *rollout.action.shape[1:]))
        self._numbers = rollout.numbers.new_zeros((rollout.numbers.shape[0], size))
        self._head = head(config, nets, self._action, self._numbers)
        self._value: Tensor | None = None

    def gather(self, rollout: Rollout, rows: Tensor, count: int) -> None:
        """Copy in the rows `[M]` int64, of which the first `count` count."""
        self.count = count
        torch.index_select(rollout.x, 0, rows, out=self._pass.x)
        torch.index_select(rollout.action, 0, rows, out=self._action)
        torch.index_select(rollout.numbers, 1, rows, out=self._numbers)

    def gradient(self) -> bool:
        """Fill the gradient, unless the policy has left the old one farther than `target_kl` allows."""
        out, value = self._pass.forward()
        self._value = value
        gradients = self._head.gradient(out, value, self.count)
        limit = self._config.target_kl
        if limit is not None and self._head.divergence() > _KL_MARGIN * limit:
            return False
        self._pass.backward(*gradients)
        return True

    def metrics(self) -> dict[str, float]:
        """Of the last `gradient`; empty before."""
        if self._value is None or not self.count:
            return {}
        config, own = self._config, slice(self.count)
        log_prob, entropy, value = self._head.log_prob[own], self._head.entropy[own], self._value[own]
        numbers = self._numbers[:, : self.count]
        old, advantage, target, old_value, policy_weight, value_weight, entropy_weight = numbers
        policy = clipped_surrogate(log_prob, old, advantage, policy_weight, config.clip_range)
        error = value_loss(value, target, value_weight, old_value, config.value_clip_range)
        return {
            "train/loss": float(policy + error + (entropy * entropy_weight).sum()),
            "train/policy_loss": float(policy),
            "train/value_loss": float(error) / (config.value_coefficient or 1.0),
            "train/entropy": float(entropy.mean()),
            "train/approx_kl": self._head.divergence(),
            "train/clip_fraction": float(clip_fraction(log_prob, old, config.clip_range)),
        }
