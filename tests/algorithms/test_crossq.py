"""CrossQ's batch normalisation, its folding into the weights, and the joint forward pass."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from continuous_rig import LOPSIDED, SIZE, SPEC, filled_batch, written
from torch import nn

from asyncrl.algorithms.action_spaces import supported_algorithms
from asyncrl.algorithms.crossq import CrossQ
from asyncrl.algorithms.crossq_update import CrossQUpdate
from asyncrl.errors import SpacesDoNotFit
from asyncrl.interfaces import BoxAction, EnvSpec
from asyncrl.networks.batch_norm import BatchRenorm
from asyncrl.networks.gradients import output_gradients

SMALL: dict[str, Any] = {"hidden_sizes": (9, 8), "critic_hidden_sizes": (7,), "batch_size": SIZE}


def core_of(spec: Any = SPEC, **options: Any) -> CrossQUpdate:
    return CrossQ(**{**SMALL, "prioritized": True, **options}).make_updater(spec, "cpu", 3)


def test_published_weights_are_the_actor_in_evaluation() -> None:
    core = core_of(LOPSIDED, policy_delay=1)
    for seed in range(20):
        core.update(filled_batch(seed=seed, spec=LOPSIDED))
    policy = core.config.make_policy(LOPSIDED)
    policy.load_weights(written(core))
    obs = filled_batch(50, seed=1, spec=LOPSIDED).obs
    (network,) = core.policy.modules
    mean = network.eval()(torch.from_numpy(obs))[:, :3].tanh().detach().numpy()
    low, high = np.array(LOPSIDED.action.low), np.array(LOPSIDED.action.high)  # type: ignore[union-attr]
    np.testing.assert_allclose(policy.greedy(obs), low + (mean + 1) / 2 * (high - low), rtol=1e-4, atol=1e-4)


def test_critics_see_both_pairs_at_once_and_learn_from_the_first() -> None:
    core, other = core_of(), core_of()
    batch = filled_batch()
    core.update(batch)
    buffers: Any = core._buffers
    q = torch.stack([module.train()(buffers.pairs) for module in other.critics.modules])
    assert torch.equal(buffers.pairs[:SIZE], buffers.x[:SIZE])
    assert torch.equal(buffers.pairs[SIZE:], buffers.x[2 * SIZE :])
    torch.testing.assert_close(core._learned.q, q[:, :SIZE].detach())  # type: ignore[union-attr]
    log_prob = buffers.draw_next._result[1]
    args = q[:, SIZE:].detach(), log_prob, core.alpha, buffers.batch
    _, (grad,) = output_gradients(core.critic_loss, (q[:, :SIZE],), *args)
    parameters = [p for module in other.critics.modules for p in module.parameters()]
    expected = torch.autograd.grad(q[:, :SIZE], parameters, grad)
    ours = core.critics_gradient[: sum(p.numel() for p in parameters)]
    torch.testing.assert_close(ours, torch.cat([g.flatten() for g in expected]), rtol=1e-4, atol=1e-6)


def test_there_are_no_targets() -> None:
    assert set(core_of().state_dict()) == {
        *(
            "policy",
            "critics",
            "log_alpha",
            "optimizers",
            "generator",
            "updates",
            "last_actor_loss",
            "bounds",
        ),
        "chosen_reward_scale",
    }


def test_network_of_the_user_is_published_as_it_is() -> None:
    core = core_of(network=make_network)
    core.update(filled_batch())
    policy = core.config.make_policy(SPEC)
    policy.load_weights(written(core))
    assert policy.greedy(filled_batch(7).obs).shape == (7, 2)


def make_network(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, outputs))


PIXELS = EnvSpec("Pixels", (84, 84, 3), "uint8", BoxAction((-1.0,), (1.0,), (1,)))


@pytest.mark.parametrize("network", ["auto", "nature", "impala"])
def test_images_are_refused(network: Any) -> None:
    with pytest.raises(
        SpacesDoNotFit, match=r"batch normalisation in all layers.*Pixels has none"
    ) as refused:
        CrossQ(network=network).make_policy(PIXELS)
    assert refused.value.code == "ASYNC005" and "use sac, tqc, td3 or ppo" in str(refused.value)


def test_it_is_not_named_for_images() -> None:
    assert "crossq" in supported_algorithms(SPEC) and "crossq" not in supported_algorithms(PIXELS)


@pytest.mark.parametrize("network", ["mlp", make_network])
def test_images_are_taken_by_networks_with_batch_normalisation(network: Any) -> None:
    small = dataclasses.replace(PIXELS, observation_shape=(6, 6, 1))
    core = core_of(small, network=network)
    norms = [m for module in core.critics.modules for m in module.modules() if isinstance(m, nn.BatchNorm1d)]
    assert norms


def test_options_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="norm_momentum must be from 0 to 1"):
        CrossQ(norm_momentum=-1.0)
    with pytest.raises(ValueError, match="batch_size must be at least 2, got 1"):
        CrossQ(batch_size=1)


def test_renormalisation_begins_after_its_warm_up_and_outlasts_a_checkpoint() -> None:
    core = core_of(renorm_warmup=3, policy_delay=1)
    plain = core_of(renorm_warmup=None, policy_delay=1)
    for seed in range(3):
        for one in (core, plain):
            one.update(filled_batch(seed=seed))
    assert torch.equal(core.vector.parameters, plain.vector.parameters)
    restored = core_of(renorm_warmup=3, policy_delay=1)
    restored.load_state_dict(core.state_dict())
    for one in (core, plain, restored):
        one.update(filled_batch(seed=3))
    assert not torch.equal(core.vector.parameters, plain.vector.parameters)
    assert torch.equal(core.vector.parameters, restored.vector.parameters)
    assert all(not m.renormalises for m in plain.critics.modules[0].modules() if isinstance(m, BatchRenorm))
    assert all(not m.training for m in core.evaluated_critics.modules[0].modules())


@pytest.mark.parametrize("policy_delay", [1, 2])
def test_adam_forgets_its_first_moment_at_the_rate_of_beta1(policy_delay: int) -> None:
    core = core_of(adam_beta1=0.5, policy_delay=policy_delay)
    gradients = []
    for seed in range(2):
        core.update(filled_batch(seed=seed))
        gradients.append(core.critics_gradient.clone())
    (first, _), *_ = [
        pair
        for name, pair in zip(core._optimizers, core.vector.moments, strict=True)
        if name in ("all", "critics")
    ]
    expected = 0.25 * gradients[0] + 0.5 * gradients[1]
    torch.testing.assert_close(first[-expected.numel() :], expected)
    assert CrossQ().adam_beta1 == 0.5
    with pytest.raises(ValueError, match="adam_beta1 must be at least 0 and below 1"):
        CrossQ(adam_beta1=1.0)
