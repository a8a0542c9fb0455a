"""The kernel and the tensor operations say the same of every loss, with items on both sides of every clip."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from asyncrl import PPO
from asyncrl.algorithms.actor_critic import ActorCritic
from asyncrl.algorithms.ppo_heads import KernelHead, TensorHead, head
from asyncrl.interfaces import BoxAction, DiscreteAction, EnvSpec, MultiDiscreteAction

B, COUNT = 64, 59
SPECS = {
    "discrete": (EnvSpec("e", (3,), "float32", DiscreteAction(4)), {}),
    "two": (EnvSpec("e", (3,), "float32", DiscreteAction(2)), {}),
    "multi": (EnvSpec("e", (3,), "float32", MultiDiscreteAction((3, 2, 5))), {}),
    "box": (EnvSpec("e", (3,), "float32", BoxAction((-1.0,) * 3, (1.0,) * 3, (3,))), {}),
    "squashed": (EnvSpec("e", (3,), "float32", BoxAction((-1.0,) * 3, (1.0,) * 3, (3,))), {"squashed": True}),
}
RANGES = [{}, {"value_clip_range": 0.1}, {"clip_range": 0.1, "value_clip_range": 1.0}]


def both(
    kind: str, ranges: dict[str, float], seed: int
) -> tuple[list[KernelHead | TensorHead], torch.Tensor, ...]:
    spec, options = SPECS[kind]
    config = PPO(hidden_sizes=(8,), **options, **ranges)
    nets = ActorCritic(config.layout(spec), seed=seed, initial_log_std=-0.3)
    rng = np.random.default_rng(seed)
    outputs = nets.layout.outputs
    if nets.layout.gaussian:
        action = torch.from_numpy(rng.normal(0, 1.5, (B, outputs)).astype(np.float32))
    else:
        nvec = spec.action.nvec if isinstance(spec.action, MultiDiscreteAction) else (spec.action.n,)
        action = torch.from_numpy(np.stack([rng.integers(0, n, B) for n in nvec], axis=1))
        action = action if len(nvec) > 1 else action[:, 0].contiguous()
    out = torch.from_numpy(rng.normal(0, 1.5, (B, outputs)).astype(np.float32))
    value = torch.from_numpy(rng.normal(size=B).astype(np.float32))
    numbers = torch.from_numpy(rng.normal(size=(7, B)).astype(np.float32))
    heads: list[KernelHead | TensorHead] = [
        cls(config, nets, action, numbers) for cls in (KernelHead, TensorHead)
    ]
    heads[1].gradient(out, value, COUNT)
    numbers[0] = (
        heads[1].log_prob + 0.3 * numbers[0]
    )  # old log-probabilities near the new ones, both sides of the clip
    numbers[3] = value + 0.3 * numbers[3]
    numbers[4:] = numbers[4:].abs() * torch.tensor([[1.0], [0.5], [-0.02]])
    numbers[4:, COUNT:] = 0.0
    return heads, out, value


@pytest.mark.parametrize("ranges", RANGES, ids=str)
@pytest.mark.parametrize("kind", sorted(SPECS))
def test_kernel_says_what_tensor_operations_say(kind: str, ranges: dict[str, float]) -> None:
    for seed in range(5):
        (kernel, tensors), out, value = both(kind, ranges, seed)
        ours, theirs = kernel.gradient(out, value, COUNT), tensors.gradient(out, value, COUNT)
        clip = ranges.get("clip_range", 0.2)
        ratio = (tensors.log_prob - tensors._rows[0]).exp()
        assert (ratio > 1 + clip).any() and (ratio < 1 - clip).any() and ((ratio - 1).abs() < clip).any()
        for mine, other, name in zip(ours, theirs, ("out", "value", "log_std"), strict=True):
            assert (mine is None) == (other is None)
            if mine is not None:
                torch.testing.assert_close(
                    mine, other, rtol=2e-4, atol=2e-5, msg=lambda m, n=name: f"{n}: {m}"
                )
                assert (mine != 0).any()
        torch.testing.assert_close(kernel.log_prob, tensors.log_prob, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(kernel.entropy, tensors.entropy.contiguous(), rtol=1e-5, atol=1e-5)
        assert kernel.divergence() == pytest.approx(tensors.divergence(), rel=1e-4)


def test_padding_adds_nothing() -> None:
    (kernel, _), out, value = both("discrete", {}, 0)
    by_out, by_value, _ = kernel.gradient(out, value, COUNT)
    assert (by_out[COUNT:] == 0).all() and (by_value[COUNT:] == 0).all()
    divergence = kernel.divergence()
    kernel._numbers[0, COUNT:] += 100.0
    kernel.gradient(out, value, COUNT)
    assert kernel.divergence() == divergence


def test_logits_far_apart_stay_finite() -> None:
    (kernel, _), out, value = both("multi", {}, 0)
    out *= 1e4
    by_out, _, _ = kernel.gradient(out, value, COUNT)
    assert torch.isfinite(by_out).all() and torch.isfinite(kernel.entropy).all()
    assert (kernel.entropy >= 0).all()


def test_the_device_decides_which_one_is_used() -> None:
    spec, _ = SPECS["discrete"]
    config = PPO(hidden_sizes=(8,))
    action, numbers = torch.zeros(4, dtype=torch.int64), torch.zeros(7, 4)
    nets = ActorCritic(config.layout(spec), seed=0)
    assert isinstance(head(config, nets, action, numbers), KernelHead)
    elsewhere = ActorCritic(config.layout(spec), seed=0, device="meta")
    assert isinstance(head(config, elsewhere, action, numbers), TensorHead)
