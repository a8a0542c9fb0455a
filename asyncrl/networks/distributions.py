"""Action distributions of the learner: log-probability, entropy, and their gradients written out.

The other half is `acting/stochastic.py`, which draws actions without torch. B is the batch; `out` is what the policy
network gives, `[B, outputs]`. A distribution keeps what `gradient` needs of its last `evaluate`; the tensors it was
given must not change in between. Nothing waits for the device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from asyncrl.interfaces import BoxAction, MultiDiscreteAction

if TYPE_CHECKING:
    from asyncrl.acting.stochastic import ActorLayout

_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


class Categorical:
    """One choice, or several independent ones, each of the softmax of its own logits.

    Args:
        choices: how many logits each choice has; `out` holds them one choice after another.
    """

    def __init__(self, choices: Sequence[int]) -> None:
        self.choices = tuple(choices)
        self._kept: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []

    def evaluate(self, out: Tensor, action: Tensor, log_std: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy, `[B]` each, of the sum over the choices.

        Args:
            out: logits `[B, sum(choices)]`.
            action: int64 `[B]`, or `[B, k]` for k choices.
            log_std: None; there for the signature that all distributions share.
        """
        assert out.dim() == 2 and out.shape[1] == sum(self.choices)
        columns = action.reshape(out.shape[0], len(self.choices))
        self._kept = []
        log_prob = entropy = None
        for i, logits in enumerate(out.split_with_sizes(self.choices, dim=1)):
            log_p = torch.log_softmax(logits, dim=1)
            p = log_p.exp()
            index = columns[:, i : i + 1]
            own_log_prob = log_p.gather(1, index)
            own_entropy = (p * log_p).sum(dim=1, keepdim=True).neg_()
            self._kept.append((log_p, p, index, own_entropy))
            log_prob = own_log_prob if log_prob is None else log_prob + own_log_prob
            entropy = own_entropy if entropy is None else entropy + own_entropy
        assert log_prob is not None and entropy is not None
        return log_prob.squeeze(1), entropy.squeeze(1)

    def gradient(self, grad_log_prob: Tensor, grad_entropy: Tensor) -> tuple[Tensor, None]:
        """Gradient `[B, sum(choices)]` at the logits, given the loss's for log-probability and entropy, `[B]` each.

        d log p_a / d z = onehot(a) - p        d H / d z = -p (log p + H)
        """
        by_log_prob, by_entropy = grad_log_prob.unsqueeze(1), grad_entropy.unsqueeze(1)
        parts = []
        for log_p, p, index, entropy in self._kept:
            slope = (log_p + entropy).mul_(by_entropy).add_(by_log_prob).mul_(p).neg_()
            parts.append(slope.scatter_add_(1, index, by_log_prob))
        return (parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)), None


class DiagonalGaussian:
    """Independent normal values whose means are `out` and whose standard deviations do not depend on it.

    Args:
        size: d, values of one action.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._kept: tuple[Tensor, Tensor] | None = None

    def evaluate(self, out: Tensor, action: Tensor, log_std: Tensor | None) -> tuple[Tensor, Tensor]:
        """Log-density and entropy, `[B]` each, of the whole action.

        Args:
            out: means `[B, d]`.
            action: `[B, d]` float32, as it was drawn, not as the environment's bounds cut it.
            log_std: `[d]`.
        """
        assert out.dim() == 2 and out.shape[1] == self.size and action.shape == out.shape
        assert log_std is not None and log_std.shape == (self.size,)
        inverse = (-log_std).exp()
        z = (action - out).mul_(inverse)
        self._kept = (z, inverse)
        volume = log_std.sum() + self.size * _HALF_LOG_TWO_PI
        log_prob = z.square().sum(dim=1).mul_(-0.5).sub_(volume)
        return log_prob, (volume + 0.5 * self.size).expand(out.shape[0])

    def gradient(self, grad_log_prob: Tensor, grad_entropy: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients `[B, d]` at the means and `[d]` at log_std, given the loss's for log-density and entropy.

        d log N / d mean = z / std        d log N / d log_std = z^2 - 1        d H / d log_std = 1
        """
        assert self._kept is not None, "evaluate comes first"
        z, inverse = self._kept
        by_log_prob = grad_log_prob.unsqueeze(1)
        grad_log_std = z.square().sub_(1.0).mul_(by_log_prob).sum(dim=0).add_(grad_entropy.sum())
        return (z * by_log_prob).mul_(inverse), grad_log_std


class SquashedGaussian(DiagonalGaussian):
    """The hyperbolic tangent of a diagonal Gaussian's value, the latent u (Haarnoja et al. 2018, appendix C).

    The log-density is that of tanh(u), so it leaves out the constant scale of the action's bounds. The entropy is
    the Gaussian's: that of the squashed value has no closed form. Gradients are the Gaussian's, because the change
    of variables depends on u alone.
    """

    def evaluate(self, out: Tensor, action: Tensor, log_std: Tensor | None) -> tuple[Tensor, Tensor]:
        """As `DiagonalGaussian.evaluate`, where `action` is the latent u `[B, d]`.

        log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2 u)), which holds its digits where tanh(u) is 1.
        """
        log_prob, entropy = super().evaluate(out, action, log_std)
        change = 2.0 * (math.log(2.0) - action - torch.nn.functional.softplus(-2.0 * action))
        return log_prob.sub_(change.sum(dim=1)), entropy


Distribution = Categorical | DiagonalGaussian | SquashedGaussian


def distribution(layout: ActorLayout) -> Distribution:
    """The distribution of a policy with this layout; one object per pass, because it keeps the last `evaluate`."""
    if layout.squashed:
        return SquashedGaussian(layout.outputs)
    if layout.gaussian:
        return DiagonalGaussian(layout.outputs)
    action = layout.action
    assert not isinstance(action, BoxAction)
    return Categorical(action.nvec if isinstance(action, MultiDiscreteAction) else (action.n,))


def log_tanh_slope(u: Tensor) -> Tensor:
    """Return log(1 - tanh(u)^2), the logarithm of tanh's derivative, exact where tanh(u) rounds to 1."""
    return 2.0 * (math.log(2.0) - u - torch.nn.functional.softplus(-2.0 * u))
