"""TQC's losses against slow sums as in the paper."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from asyncrl.algorithms.tqc import TQC, actor_loss, critic_loss


def slow_loss(theta: Tensor, targets: list[list[float]], weight: Tensor) -> Tensor:
    """Sum over critics and batch of `weight` times the mean over pairs of the quantile Huber loss."""
    critics, size, atoms = theta.shape
    total = torch.zeros(())
    for c in range(critics):
        for b in range(size):
            for m in range(atoms):
                tau = (2 * m + 1) / (2 * atoms)
                for y in targets[b]:
                    u = y - theta[c, b, m]
                    huber = 0.5 * u**2 if abs(u) <= 1 else abs(u) - 0.5
                    total = total + weight[b, 0] * abs(tau - float(u < 0)) * huber / atoms / len(targets[b])
    return total


@pytest.mark.parametrize("dropped", [0, 2, 5])
def test_critic_loss_is_the_papers(dropped: int) -> None:
    generator = torch.Generator().manual_seed(0)
    theta, next_theta = torch.randn(2, 2, 4, 3, generator=generator).mul(2)
    theta.requires_grad_()
    log_prob, reward, weight = torch.randn(3, 4, 1, generator=generator)
    discount, alpha = torch.tensor([[0.9], [0.9], [0.0], [0.5]]), torch.tensor(0.3)
    batch: Any = SimpleNamespace(reward=reward, discount=discount, weight=weight.abs())
    targets = []
    for b in range(4):
        kept = sorted(next_theta[:, b].flatten().tolist())[: 6 - dropped]
        targets.append([float(reward[b] + discount[b] * (z - alpha * log_prob[b])) for z in kept])
    result = critic_loss(theta, next_theta, log_prob, alpha, batch, dropped=dropped)
    expected = slow_loss(theta, targets, weight.abs())
    torch.testing.assert_close(result.loss, expected)
    (ours,), (theirs,) = torch.autograd.grad(result.loss, (theta,)), torch.autograd.grad(expected, (theta,))
    torch.testing.assert_close(ours, theirs)
    mean = torch.tensor([sum(y) / len(y) for y in targets])
    torch.testing.assert_close(result.td[:, :, 0], theta.detach().mean(dim=2) - mean)


def test_actor_loss_by_hand() -> None:
    theta = torch.tensor([[[1.0, 3.0], [0.0, 2.0]], [[5.0, 7.0], [2.0, 4.0]]])
    # 0.5 * (2 - 1) / 2 - 24 / 8
    loss = actor_loss(theta, torch.tensor([[2.0], [-1.0]]), torch.tensor(0.5)).loss
    assert float(loss) == pytest.approx(0.25 - 3.0)


def test_options_out_of_range_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"top_quantiles_to_drop_per_critic must be below num_quantiles \(5\)"
    ):
        TQC(num_quantiles=5, top_quantiles_to_drop_per_critic=5)
    with pytest.raises(ValueError, match="num_quantiles must be at least 1, got 0"):
        TQC(num_quantiles=0)
