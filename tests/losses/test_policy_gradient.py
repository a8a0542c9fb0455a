import math

import pytest
import torch
from torch import Tensor

from asyncrl.losses.policy_gradient import (
    approximate_kl,
    clip_fraction,
    clipped_surrogate,
    clipped_surrogate_gradient,
    policy_gradient_loss,
    policy_gradient_loss_gradient,
    truncated_importance,
    value_loss,
    value_loss_gradient,
)

CLIP = 0.2


def draw(size: int, scale: float, seed: int) -> Tensor:
    return torch.randn(size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * scale


def items(size: int = 400) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Log-probability, old one, advantage and weight; ratios below, within and above the clip."""
    old = -draw(size, 1.0, 1).abs()
    weight = torch.rand(size, dtype=torch.float64, generator=torch.Generator().manual_seed(4)) / size
    return old + draw(size, 0.3, 2), old, draw(size, 1.0, 3), weight


def test_items_cross_the_clip_both_ways_under_both_signs() -> None:
    log_prob, old, advantage, _ = items()
    ratio = (log_prob - old).exp()
    for sign in (advantage > 0, advantage < 0):
        for where in (ratio < 1 - CLIP, (ratio - 1).abs() < CLIP, ratio > 1 + CLIP):
            assert (sign & where).sum() > 20


def test_clipped_surrogate_is_the_papers_formula() -> None:
    """Schulman et al. 2017, eq. 7: E[min(r A, clip(r, 1 - eps, 1 + eps) A)], to be maximised."""
    log_prob, old, advantage, weight = items()
    total = 0.0
    for new, before, a, w in zip(*(x.tolist() for x in (log_prob, old, advantage, weight)), strict=True):
        r = math.exp(new) / math.exp(before)
        clip = 1 - CLIP if r < 1 - CLIP else 1 + CLIP if r > 1 + CLIP else r
        total += w * min(r * a, clip * a)
    loss = clipped_surrogate(log_prob, old, advantage, weight, CLIP)
    assert math.isclose(loss.item(), -total, rel_tol=1e-12)


def test_clipped_surrogate_by_hand() -> None:
    # r = 2 with A = 1: the clip holds it at 1.2. r = 2 with A = -1: the clip would flatter, so -2. r = 1/2, A = 1:
    # 1/2. r = 1/2, A = -1: held at 0.8. r = 1: as it is.
    log_prob = torch.tensor([2.0, 2.0, 0.5, 0.5, 1.0]).log()
    advantage, weight = torch.tensor([1.0, -1.0, 1.0, -1.0, 3.0]), torch.tensor([1.0, 1.0, 1.0, 1.0, 0.5])
    loss = clipped_surrogate(log_prob, torch.zeros(5), advantage, weight, 0.2)
    assert loss.item() == pytest.approx(-(1.2 - 2.0 + 0.5 - 0.8 + 1.5))
    grad = clipped_surrogate_gradient(log_prob, torch.zeros(5), advantage, weight, 0.2)
    assert grad.tolist() == pytest.approx([0.0, 2.0, -0.5, 0.0, -1.5])


def autograd(loss_of, at: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
    leaf = at.clone().requires_grad_()
    loss_of(leaf).backward()
    assert leaf.grad is not None
    return leaf.grad


@pytest.mark.parametrize("clip", [0.0, 0.05, CLIP, 10.0])
def test_clipped_surrogate_gradient_is_that_of_autograd(clip: float) -> None:
    log_prob, old, advantage, weight = items()
    expected = autograd(lambda x: clipped_surrogate(x, old, advantage, weight, clip), log_prob)
    torch.testing.assert_close(clipped_surrogate_gradient(log_prob, old, advantage, weight, clip), expected)


def test_at_the_old_policy_the_gradient_is_the_policy_gradient() -> None:
    _, old, advantage, weight = items()
    got = clipped_surrogate_gradient(old, old, advantage, weight, CLIP)
    torch.testing.assert_close(got, policy_gradient_loss_gradient(advantage, weight))


def test_policy_gradient_by_hand_and_against_autograd() -> None:
    log_prob, _, advantage, weight = items()
    expected = autograd(lambda x: policy_gradient_loss(x, advantage, weight), log_prob)
    torch.testing.assert_close(policy_gradient_loss_gradient(advantage, weight), expected)
    two = torch.tensor([-1.0, -2.0]), torch.tensor([3.0, -1.0]), torch.tensor([0.5, 0.25])
    assert policy_gradient_loss(*two).item() == -(0.5 * 3 * -1 + 0.25 * -1 * -2)


def test_value_loss_by_hand() -> None:
    # Errors 1 and -3 without a clip: (1 + 9 / 2) / 2. With clip 1 around 0, V = 3 is held at 1: error -5 is larger
    # than -3 and constant; V = 0.5 is held nowhere.
    value, target, weight = torch.tensor([0.5, 3.0]), torch.tensor([-0.5, 6.0]), torch.tensor([1.0, 0.5])
    assert value_loss(value, target, weight).item() == 2.75
    assert value_loss_gradient(value, target, weight).tolist() == [1.0, -1.5]
    old = torch.zeros(2)
    assert value_loss(value, target, weight, old, 1.0).item() == (1 + 25 / 2) / 2
    assert value_loss_gradient(value, target, weight, old, 1.0).tolist() == [1.0, 0.0]
    # Held at 1 on the way to a target below: the unclipped error is the larger one, so the gradient stays.
    assert value_loss_gradient(value, torch.tensor([-0.5, -6.0]), weight, old, 1.0).tolist() == [1.0, 4.5]


@pytest.mark.parametrize("clip", [None, 0.3])
def test_value_loss_and_gradient_are_the_slow_ones(clip: float | None) -> None:
    value, old, target, weight = (draw(300, 1.0, seed) for seed in range(4))
    weight = weight.abs()
    total = 0.0
    for v, o, y, w in zip(*(x.tolist() for x in (value, old, target, weight)), strict=True):
        error = (v - y) ** 2
        if clip is not None:
            error = max(error, (o + min(max(v - o, -clip), clip) - y) ** 2)
        total += w * error / 2
    assert math.isclose(value_loss(value, target, weight, old, clip).item(), total, rel_tol=1e-12)
    expected = autograd(lambda x: value_loss(x, target, weight, old, clip), value)
    torch.testing.assert_close(value_loss_gradient(value, target, weight, old, clip), expected)
    if clip is not None:
        assert 0.05 < (expected == 0).double().mean() < 0.6


def test_inside_the_value_clip_no_gradient_is_lost_to_rounding() -> None:
    value, old = torch.rand(10_000) + 0.01, torch.rand(10_000) * 9
    target, weight = torch.zeros(10_000), torch.ones(10_000)
    assert torch.equal(value_loss_gradient(value, target, weight, old, 10.0), value)


def test_truncated_importance_by_hand() -> None:
    log_prob, behaviour = torch.tensor([4.0, 1.0, 1.0]).log(), torch.tensor([1.0, 1.0, 2.0]).log()
    assert truncated_importance(log_prob, behaviour, 2.0).tolist() == pytest.approx([2.0, 1.0, 0.5])


def test_diagnostics_by_hand() -> None:
    ratio = torch.tensor([1.0, 1.1, 0.7, 2.0], dtype=torch.float64)
    zero = torch.zeros(4, dtype=torch.float64)
    assert clip_fraction(ratio.log(), zero, 0.2).item() == 0.5
    expected = sum(r - 1 - math.log(r) for r in ratio.tolist()) / 4
    assert approximate_kl(ratio.log(), zero).item() == pytest.approx(expected, rel=1e-12)
    assert approximate_kl(torch.full((4,), 1e-4), torch.zeros(4)).item() == pytest.approx(5e-9, rel=1e-3)


def test_approximate_kl_is_unbiased() -> None:
    """Over all actions with their probability under the old policy, it is the KL divergence itself."""
    old = torch.log_softmax(torch.tensor([0.3, -1.0, 0.8], dtype=torch.float64), 0)
    new = torch.log_softmax(torch.tensor([-0.5, 0.1, 1.0], dtype=torch.float64), 0)
    each = torch.stack([approximate_kl(new[i : i + 1], old[i : i + 1]) for i in range(3)])
    exact = (old.exp() * (old - new)).sum()
    torch.testing.assert_close((old.exp() * each).sum(), exact)


def test_arguments_are_not_written() -> None:
    given = items(50)
    before = [x.clone() for x in given]
    log_prob, old, advantage, weight = given
    clipped_surrogate_gradient(log_prob, old, advantage, weight, CLIP)
    policy_gradient_loss_gradient(advantage, weight)
    truncated_importance(log_prob, old, 1.0)
    value_loss_gradient(log_prob, old, weight, advantage, 0.1)
    value_loss_gradient(log_prob, old, weight)
    assert all(torch.equal(x, y) for x, y in zip(given, before, strict=True))


def test_axes_are_checked() -> None:
    good, column, longer = torch.zeros(3), torch.zeros(3, 1), torch.zeros(4)
    for call in (
        lambda: clipped_surrogate(column, column, column, column, CLIP),
        lambda: clipped_surrogate_gradient(good, good, longer, good, CLIP),
        lambda: policy_gradient_loss(good, column, good),
        lambda: policy_gradient_loss_gradient(good, longer),
        lambda: value_loss(good, good, column),
        lambda: value_loss_gradient(good, good, good, None, 0.1),
        lambda: truncated_importance(good, column, 1.0),
        lambda: approximate_kl(good, longer),
        lambda: clip_fraction(good, longer, CLIP),
    ):
        with pytest.raises(AssertionError):
            call()
