"""One gradient step of IMPALA over whole streams: forward pass, V-trace on the host, the way back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.algorithms.actor_critic import ActorCritic
from asyncrl.algorithms.rollout import Rollout
from asyncrl.interfaces import RESET
from asyncrl.losses.policy_gradient import (
    approximate_kl,
    policy_gradient_loss,
    policy_gradient_loss_gradient,
    value_loss,
    value_loss_gradient,
)
from asyncrl.losses.vtrace import vtrace
from asyncrl.networks.distributions import distribution

if TYPE_CHECKING:
    from asyncrl.algorithms.impala import IMPALA


class StreamStep:
    """Buffers of a gradient step over G whole streams of T rows.

    Row g T + t of the pass is row t of stream g; the last G rows are what the segments' ends are bootstrapped of.
    They are evaluated like the others, with actions and weights of zero.

    Attributes:
        count: rows of the last `gather` that are trained on.
    """

    def __init__(self, nets: ActorCritic, rollout: Rollout, streams: int) -> None:
        self.shape, self.count = (streams, rollout.shape[1]), 0
        rows = streams * rollout.shape[1]
        self._rows, self._nets = rows, nets
        self._pass = nets.passes(rows + streams, gradient=True)
        self._distribution = distribution(nets.layout)
        self._action = rollout.action.new_zeros((rows + streams, *rollout.action.shape[1:]))
        self._host = torch.zeros(3, rows + streams, pin_memory=nets.device.type == "cuda")
        self._numbers = self._host.to(nets.device)
        self._seen: tuple[Tensor, Tensor, Tensor, NDArray[np.float32]] | None = None

    def gather(self, rollout: Rollout, reward: NDArray[np.float32], chosen: NDArray[np.int64]) -> None:
        """Copy in the streams `chosen` `[G]`."""
        rows, (streams, length) = self._rows, rollout.shape
        index, x = torch.from_numpy(chosen).to(self._nets.device), self._pass.x
        for source, out in ((rollout.x, x), (rollout.action, self._action)):
            by_stream = source[: streams * length].view(streams, length, *source.shape[1:])
            torch.index_select(by_stream, 0, index, out=out[:rows].view(*self.shape, *source.shape[1:]))
        torch.index_select(rollout.x[streams * length :], 0, index, out=x[rows:])
        self._reward, self._flags = reward[chosen], rollout.flags[chosen]
        self._behaviour = rollout.behaviour[chosen]
        self._counts = (self._flags & RESET) == 0
        self.count = int(np.count_nonzero(self._counts))
        self._weight = rollout.weight[chosen].reshape(-1) / np.float32(max(self.count, 1))

    @np.errstate(over="ignore", invalid="ignore")
    def gradient(self, config: IMPALA) -> None:
        """Fill the gradient of the loss at the weights as they stand; what is not finite shows in the weights."""
        out, value = self._pass.forward()
        log_prob, entropy = self._distribution.evaluate(out, self._action, self._nets.log_std)
        log_ratio = self._trace(config, log_prob, value)
        advantage, target, weight = self._numbers  # of each row; zeros in the last G
        self._seen = log_prob, entropy, value, log_ratio
        by_log_prob = policy_gradient_loss_gradient(advantage, weight)
        by_entropy = weight * -config.entropy_coefficient
        by_value = value_loss_gradient(value, target, weight).mul_(config.value_coefficient)
        grad_out, grad_log_std = self._distribution.gradient(by_log_prob, by_entropy)
        self._pass.backward(grad_out, by_value, grad_log_std)

    def _trace(self, config: IMPALA, log_prob: Tensor, value: Tensor) -> NDArray[np.float32]:
        """Fill `_numbers`; returns the logarithms of the importance ratios `[G, T]`."""
        own, host = self._rows, self._host.numpy()
        values = value.cpu().numpy()
        log_ratio: NDArray[np.float32] = log_prob[:own].cpu().numpy().reshape(self.shape) - self._behaviour
        target, advantage = vtrace(
            log_ratio if config.correction == "vtrace" else np.zeros_like(log_ratio),
            self._reward,
            values[:own].reshape(self.shape),
            values[own:],
            self._flags,
            config.gamma,
            config.trace_lambda,
            config.rho_bar,
            config.c_bar,
            config.pg_rho_bar,
        )
        if config.normalize_advantages and self.count:
            trained = advantage[self._counts]
            advantage = (advantage - trained.mean()) / (trained.std() + np.float32(1e-8))
        # The device has been waited for, so it has read what stood here before.
        host[0, :own], host[1, :own], host[2, :own] = advantage.reshape(-1), target.reshape(-1), self._weight
        if self._numbers is not self._host:
            self._numbers.copy_(self._host, non_blocking=True)
        return log_ratio

    def metrics(self, config: IMPALA) -> dict[str, float]:
        """Of the last `gradient`; empty before."""
        if self._seen is None or not self.count:
            return {}
        log_prob, entropy, value, log_ratio = self._seen
        advantage, target, weight = self._numbers
        policy = policy_gradient_loss(log_prob, advantage, weight)
        error = value_loss(value, target, weight)
        loss = (
            policy + config.value_coefficient * error - config.entropy_coefficient * (entropy * weight).sum()
        )
        trained = torch.from_numpy(log_ratio[self._counts])
        behaviour = torch.zeros_like(trained)
        return {
            "train/loss": float(loss),
            "train/policy_loss": float(policy),
            "train/value_loss": float(error),
            "train/entropy": float(entropy[: self._rows].mean()),
            "train/approx_kl": float(approximate_kl(trained, behaviour)),
            "train/rho_truncated": float((trained > float(np.log(config.rho_bar))).float().mean()),
            "train/explained_variance": self._explained_variance(),
        }

    def _explained_variance(self) -> float:
        """Share of the targets' variance that the values explain; 0 where there is none."""
        assert self._seen is not None
        value, counts = self._seen[2][: self._rows].cpu().numpy(), self._counts.reshape(-1)
        target = self._host.numpy()[1, : self._rows][counts]
        variance = float(target.var())
        return 1.0 - float((target - value[counts]).var()) / variance if variance > 0 else 0.0
