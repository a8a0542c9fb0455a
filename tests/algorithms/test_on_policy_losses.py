"""The losses of PPO and IMPALA by hand and by the papers' formulas."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from asyncrl.algorithms.impala import impala_loss
from asyncrl.algorithms.ppo import PPO, _k3, ppo_loss


def columns(**named: Any) -> Tensor:
    size = max(np.size(value) for value in named.values())
    full = {
        "old_log_prob": 0.0,
        "importance": 1.0,
        "advantage": 0.0,
        "target": 0.0,
        "old_value": 0.0,
        "weight": 1.0,
    }
    rows = [np.broadcast_to((full | named)[name], (size,)) for name in PPO.rollout_columns]
    return torch.from_numpy(np.stack(rows)).double()


def test_clipped_surrogate_by_hand() -> None:
    # r = 2 with A = 1: the clip holds it at 1.2. r = 2 with A = -1: the clip would flatter, so -2. r = 1/2, A = 1:
    # 1/2. r = 1/2, A = -1: held at 0.8. r = 1: as it is. The importance weight multiplies the whole.
    log_prob = torch.tensor([2.0, 2.0, 0.5, 0.5, 1.0]).log().double().requires_grad_()
    table = columns(advantage=[1, -1, 1, -1, 3], weight=[1, 1, 1, 1, 0.5], importance=[1, 3, 1, 1, 1])
    zero = torch.zeros(5).double()
    found = ppo_loss((log_prob, zero), zero, table, clip_range=0.2)
    assert found.loss.item() == pytest.approx(-(1.2 - 3 * 2.0 + 0.5 - 0.8 + 1.5))
    (gradient,) = torch.autograd.grad(found.loss, log_prob)
    assert gradient.tolist() == pytest.approx([0.0, 6.0, -0.5, 0.0, -1.5])


def test_value_loss_by_hand() -> None:
    # Errors 1 and -3 without a clip: 1 + 9 / 2. With clip 1 around 0, V = 3 is held at 1: error -5 is larger
    # than -3 and constant; V = 0.5 is held nowhere.
    table = columns(target=[-0.5, 6.0], weight=[1.0, 0.5])
    value, zero = torch.tensor([0.5, 3.0]).double().requires_grad_(), torch.zeros(2).double()
    for clip, loss, slopes in ((None, 5.5, [2.0, -3.0]), (1.0, 1 + 25 / 2, [2.0, 0.0])):
        found = ppo_loss((zero, zero), value, table, clip_range=0.2, value_clip_range=clip, vf_coef=2.0)
        assert found.value_loss.item() == loss and found.loss.item() == 2 * loss
        (gradient,) = torch.autograd.grad(found.value_loss, value)
        assert gradient.tolist() == slopes


def test_ppo_loss_is_the_papers_formula() -> None:
    """Schulman et al. 2017, eq. 7 and 9, item by item, with ratios and values on both sides of the clips."""
    rng = np.random.default_rng(0)
    size, epsilon = 300, 0.2
    log_prob, entropy, value, old, a, y, old_v, w, rho = rng.normal(0, 0.3, (9, size))
    w, rho = abs(w), abs(rho)
    total = 0.0
    for i in range(size):
        r = math.exp(log_prob[i] - old[i])
        clip = min(max(r, 1 - epsilon), 1 + epsilon)
        held = old_v[i] + min(max(value[i] - old_v[i], -0.1), 0.1)
        error = max((value[i] - y[i]) ** 2, (held - y[i]) ** 2)
        total += w[i] * (-rho[i] * min(r * a[i], clip * a[i]) + 0.7 * error - 0.1 * entropy[i])
    table = columns(old_log_prob=old, importance=rho, advantage=a, target=y, old_value=old_v, weight=w)
    policy = torch.from_numpy(log_prob), torch.from_numpy(entropy)
    options = {"clip_range": epsilon, "value_clip_range": 0.1, "vf_coef": 0.7, "ent_coef": 0.1}
    found = ppo_loss(policy, torch.from_numpy(value), table, **options)  # type: ignore[arg-type]
    assert found.loss.item() == pytest.approx(total, rel=1e-12)
    torch.testing.assert_close(found.log_ratio, torch.from_numpy(log_prob - old))


def stable_baselines_loss(
    log_prob: Tensor, entropy: Tensor, value: Tensor, batch: dict[str, Tensor], options: dict[str, float]
) -> Tensor:
    """Loss of a minibatch as Stable-Baselines3's `PPO.train` writes it, with standardised advantages."""
    ratio = torch.exp(log_prob - batch["old_log_prob"])
    clipped = torch.clamp(ratio, 1 - options["clip_range"], 1 + options["clip_range"])
    policy_loss = -torch.min(batch["advantage"] * ratio, batch["advantage"] * clipped).mean()
    value_loss = torch.nn.functional.mse_loss(batch["target"], value)
    return policy_loss + options["ent_coef"] * -torch.mean(entropy) + options["vf_coef"] * value_loss


def test_ppo_loss_is_that_of_stable_baselines() -> None:
    """The same coefficients mean the same loss, and the same gradient, as in Stable-Baselines3."""
    rng = np.random.default_rng(1)
    size, options = 64, {"clip_range": 0.2, "vf_coef": 0.5, "ent_coef": 0.01}
    drawn = {
        name: torch.from_numpy(rng.normal(0, 0.5, size)) for name in ("old_log_prob", "advantage", "target")
    }
    own = [torch.from_numpy(rng.normal(0, 0.5, size)).requires_grad_() for _ in range(3)]
    log_prob, entropy, value = own
    table = columns(**{name: t.numpy() for name, t in drawn.items()}, weight=np.full(size, 1 / size))
    found = ppo_loss((log_prob, entropy), value, table, **options)  # type: ignore[arg-type]
    expected = stable_baselines_loss(log_prob, entropy, value, drawn, options)
    assert found.loss.item() == pytest.approx(expected.item(), rel=1e-12)
    for ours, theirs in zip(
        torch.autograd.grad(found.loss, own), torch.autograd.grad(expected, own), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_impala_loss_by_hand() -> None:
    # -(0.5 3 (-1) + 0.25 (-1) (-2)) = 1, 0.5 4 + 0.25 16 = 6, 0.5 2 + 0.25 4 = 2
    policy = torch.tensor([-1.0, -2.0]), torch.tensor([2.0, 4.0])
    rest = (torch.tensor(x) for x in ([1.0, 2.0], [3.0, -1.0], [3.0, 6.0], [0.5, 0.25]))
    found = impala_loss(policy, *rest, vf_coef=0.5, ent_coef=0.1)
    assert found.policy_loss.item() == 1.0 and found.value_loss.item() == 6.0
    assert found.loss.item() == pytest.approx(1.0 + 3.0 - 0.2)


def test_divergence_by_hand_and_unbiased() -> None:
    """Over all actions with their probability under the old policy, k3 is the KL divergence itself."""
    ratio = torch.tensor([1.0, 1.1, 0.7, 2.0], dtype=torch.float64)
    assert _k3(ratio.log()).item() == pytest.approx(sum(r - 1 - math.log(r) for r in ratio.tolist()) / 4)
    assert _k3(torch.full((4,), 1e-4)).item() == pytest.approx(5e-9, rel=1e-3)
    old = torch.log_softmax(torch.tensor([0.3, -1.0, 0.8], dtype=torch.float64), 0)
    new = torch.log_softmax(torch.tensor([-0.5, 0.1, 1.0], dtype=torch.float64), 0)
    each = torch.stack([_k3((new - old)[i : i + 1]) for i in range(3)])
    torch.testing.assert_close((old.exp() * each).sum(), (old.exp() * (old - new)).sum())


def test_axes_are_checked() -> None:
    good, column = torch.zeros(3), torch.zeros(3, 1)
    with pytest.raises(AssertionError):
        ppo_loss((good, good), column, torch.zeros(6, 3), clip_range=0.2)
    with pytest.raises(AssertionError):
        impala_loss((good, good), good, good, column, good, vf_coef=0.5, ent_coef=0.0)
