"""The losses of PPO and IMPALA by hand and by the papers' formulas, and the kernel that is held to them."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from asyncrl.algorithms.impala import impala_loss
from asyncrl.algorithms.on_policy_kernel import LossKernel
from asyncrl.algorithms.ppo import PPO, _k3, ppo_loss
from asyncrl.networks.distributions import categorical, diagonal_gaussian
from asyncrl.networks.gradients import output_gradients

B, COUNT = 64, 59
KINDS: dict[str, tuple[int, ...]] = {"two": (2,), "four": (4,), "several": (3, 2, 5), "gaussian": ()}
RANGES: list[dict[str, Any]] = [
    {"clip_range": 0.2},
    {"clip_range": 0.2, "value_clip_range": 0.1, "vf_coef": 0.7},
    {"clip_range": 0.1, "value_clip_range": 0.5, "ent_coef": 0.3},
]


def items(kind: str, seed: int) -> SimpleNamespace:
    """Random outputs, actions and columns, with ratios and values on both sides of every clip."""
    choices, generator = KINDS[kind], torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    out, log_std = draw(B, sum(choices) or 3) * 1.5, draw(0 if choices else 3) * 0.3
    action = draw(B, 3) * 1.5
    if choices:
        action = torch.stack([torch.randint(n, (B,), generator=generator) for n in choices], dim=1)
    value = draw(B)
    made = SimpleNamespace(outputs=(out, value, log_std), action=action, choices=choices)
    log_prob = distribution(made, out, log_std)[0]
    weight = torch.rand(B, generator=generator) / B
    weight[COUNT:] = 0.0
    made.columns = torch.stack(
        (log_prob + 0.3 * draw(B), draw(B).exp(), draw(B), draw(B), value + 0.5 * draw(B), weight)
    )
    return made


def distribution(made: SimpleNamespace, out: Tensor, log_std: Tensor) -> tuple[Tensor, Tensor]:
    if made.choices:
        return categorical(out, made.action, made.choices)
    return diagonal_gaussian(out, made.action, log_std)


def by_kernel(made: SimpleNamespace, *loss: float) -> Any:
    kernel = LossKernel(made.action, made.choices, made.outputs[0].shape[1])
    return kernel(made.outputs, made.columns, COUNT, loss)  # type: ignore[arg-type]


def same(ours: tuple[Tensor, ...], theirs: tuple[Tensor, ...]) -> None:
    for mine, other, name in zip(ours, theirs, ("out", "value", "log_std"), strict=True):
        torch.testing.assert_close(mine, other, rtol=2e-4, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("ranges", RANGES, ids=str)
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_kernel_is_the_gradient_of_ppos_loss(kind: str, ranges: dict[str, Any]) -> None:
    for seed in range(5):
        made = items(kind, seed)
        found, expected = output_gradients(
            lambda out, value, log_std, made=made: ppo_loss(
                distribution(made, out, log_std), value, made.columns, **ranges
            ),
            made.outputs,
        )
        ratio, clip = found.log_ratio.exp(), ranges["clip_range"]
        assert (ratio > 1 + clip).any() and (ratio < 1 - clip).any() and ((ratio - 1).abs() < clip).any()
        held = ranges.get("value_clip_range", math.inf)
        off = (made.outputs[1] - made.columns[4]).abs()
        assert held == math.inf or ((off > held).any() and (off < held).any())
        loss = clip, held, ranges.get("vf_coef", 0.5), ranges.get("ent_coef", 0.0)
        divergence, gradients = by_kernel(made, *loss)
        same(gradients, expected)
        assert divergence == pytest.approx(float(_k3(found.log_ratio[:COUNT].detach())), rel=1e-4)
        assert not gradients[0][COUNT:].any() and not gradients[1][COUNT:].any()


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_kernel_is_the_gradient_of_impalas_loss(kind: str) -> None:
    for seed in range(5):
        made = items(kind, seed)
        out, _, log_std = made.outputs
        _, _, advantage, target, _, weight = made.columns
        _, expected = output_gradients(
            lambda out, value, log_std, made=made, rest=(advantage, target, weight): impala_loss(
                distribution(made, out, log_std), value, *rest, vf_coef=0.7, ent_coef=0.3
            ),
            made.outputs,
        )
        made.columns[0], made.columns[1] = distribution(made, out, log_std)[0], 1.0
        same(by_kernel(made, math.inf, math.inf, 0.7, 0.3)[1], expected)


def test_far_logits_stay_finite_and_nan_propagates() -> None:
    made = items("several", 0)
    made.outputs[0].mul_(1e4)
    assert all(torch.isfinite(gradient).all() for gradient in by_kernel(made, 0.2, math.inf, 0.5, 0.1)[1])
    for kind in ("four", "gaussian"):
        made = items(kind, 0)
        made.columns[2:4, 0] = math.nan
        by_out, by_value, _ = by_kernel(made, 0.2, math.inf, 0.5, 0.1)[1]
        assert by_out[0].isnan().all() and by_value[0].isnan() and torch.isfinite(by_out[1:]).all()


# --- the formulas ---


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
    # Errors 1 and -3 without a clip: (1 + 9 / 2) / 2. With clip 1 around 0, V = 3 is held at 1: error -5 is larger
    # than -3 and constant; V = 0.5 is held nowhere.
    table = columns(target=[-0.5, 6.0], weight=[1.0, 0.5])
    value, zero = torch.tensor([0.5, 3.0]).double().requires_grad_(), torch.zeros(2).double()
    for clip, loss, slopes in ((None, 2.75, [1.0, -1.5]), (1.0, (1 + 25 / 2) / 2, [1.0, 0.0])):
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
        total += w[i] * (-rho[i] * min(r * a[i], clip * a[i]) + 0.7 * error / 2 - 0.1 * entropy[i])
    table = columns(old_log_prob=old, importance=rho, advantage=a, target=y, old_value=old_v, weight=w)
    policy = torch.from_numpy(log_prob), torch.from_numpy(entropy)
    options = {"clip_range": epsilon, "value_clip_range": 0.1, "vf_coef": 0.7, "ent_coef": 0.1}
    found = ppo_loss(policy, torch.from_numpy(value), table, **options)  # type: ignore[arg-type]
    assert found.loss.item() == pytest.approx(total, rel=1e-12)
    torch.testing.assert_close(found.log_ratio, torch.from_numpy(log_prob - old))


def test_impala_loss_by_hand() -> None:
    # -(0.5 3 (-1) + 0.25 (-1) (-2)) = 1, (0.5 4 + 0.25 16) / 2 = 3, 0.5 2 + 0.25 4 = 2
    policy = torch.tensor([-1.0, -2.0]), torch.tensor([2.0, 4.0])
    rest = (torch.tensor(x) for x in ([1.0, 2.0], [3.0, -1.0], [3.0, 6.0], [0.5, 0.25]))
    found = impala_loss(policy, *rest, vf_coef=0.5, ent_coef=0.1)
    assert found.policy_loss.item() == 1.0 and found.value_loss.item() == 3.0
    assert found.loss.item() == pytest.approx(1.0 + 1.5 - 0.2)


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
