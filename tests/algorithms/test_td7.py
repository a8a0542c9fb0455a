"""TD7: losses against numbers worked out by hand, and updates against the paper's, written with plain modules."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from continuous_rig import LOPSIDED, SIZE, SPEC, SPECS, filled_batch, permuted, written
from torch import Tensor, nn

from asyncrl import TD7
from asyncrl.acting.sale import SaleNetwork, avg_l1_norm
from asyncrl.acting.sale_module import SaleActor
from asyncrl.algorithms import td7_update
from asyncrl.algorithms.staging import StagedBatch
from asyncrl.algorithms.td7 import actor_loss, critic_loss, encoder_loss, targets
from asyncrl.algorithms.td7_update import TD7Update
from asyncrl.errors import SpacesDoNotFit
from asyncrl.interfaces import BoxAction, EnvSpec

SMALL: dict[str, Any] = {"hidden_sizes": (9, 8), "batch_size": SIZE, "learning_rate": 3e-3, "adam_eps": 1e-4}
FIXED = EnvSpec("fixed", (4,), "float32", BoxAction((-1.0, 2.0), (1.0, 2.0), (2,)))
"""The range of its second action value is empty."""
PIXELS = EnvSpec("pixels", (21, 21), "uint8", BoxAction((-1.0,), (1.0,), (1,)), observation_kind="image")


def record_of(**options: Any) -> TD7:
    return TD7(**{**SMALL, **options})


def core_of(spec: EnvSpec = SPEC, **options: Any) -> TD7Update:
    return record_of(**options).make_updater(spec, "cpu", 3)


class Twin:
    """The paper's update with modules and torch's Adam, all gradients with the weights before it."""

    def __init__(self, record: TD7, core: TD7Update) -> None:
        config, net = record, copy.deepcopy(core.networks).requires_grad_(True)
        self.config, self.scaling, self.updates = config, core._scaling, 0
        self.movable = torch.from_numpy((core._scaling[1] > 0).astype(np.float32))
        self.f, self.g, self.head, self.critics = (
            net.encoders.states,
            net.encoders.pairs,
            net.head,
            net.critics,
        )
        self.still = copy.deepcopy(net.encoders)
        self.target = copy.deepcopy(net)
        self.range, self.seen = (0.0, 0.0), (math.inf, -math.inf)
        rates = config.learning_rate, config.actor_learning_rate or config.learning_rate
        parts: list[tuple[list[nn.Module], float]] = [
            ([self.f, self.g], rates[0]),
            ([self.critics], rates[0]),
            ([self.head], rates[1]),
        ]
        self.parts = [[p for module in modules for p in module.parameters()] for modules, _ in parts]
        self.adams = [
            torch.optim.Adam(own, lr=rate, eps=config.adam_eps)
            for own, (_, rate) in zip(self.parts, parts, strict=True)
        ]

    def staged(self, batch: Any) -> list[Tensor]:
        centre, half = self.scaling
        action = (batch.action.reshape(len(batch.action), -1) - centre) / np.where(half > 0, half, np.inf)
        columns = (batch.reward[:, None], batch.discount[:, None], batch.weight[:, None] / len(action))
        rows = (
            array.reshape(len(action), -1).astype(np.float32) / (255 if array.dtype == np.uint8 else 1)
            for array in (batch.obs, batch.next_obs)
        )
        return [torch.from_numpy(np.asarray(x, np.float32)) for x in (*rows, action, *columns)]

    def update(self, batch: Any, noise: Tensor) -> Tensor:
        obs, next_obs, action, reward, discount, weight = self.staged(batch)
        config = self.config
        self.updates += 1
        losses = [((self.g(self.f(obs), action) - self.f(next_obs).detach()) ** 2).mean()]
        with torch.no_grad():
            encoders = self.target.encoders
            z = encoders.states(next_obs)
            smooth = (config.target_noise * noise).clamp(-config.target_noise_clip, config.target_noise_clip)
            next_action = (torch.tanh(self.target.head(next_obs, z)) + smooth).clamp(-1, 1) * self.movable
            x, pair = torch.cat((next_obs, next_action), 1), encoders.pairs(z, next_action)
            next_q = torch.cat([critic(x, pair, z) for critic in self.target.critics], 1).amin(
                1, keepdim=True
            )
            y = reward + discount * (next_q.clamp(*self.range) if config.bound_targets else next_q)
            self.seen = min(self.seen[0], float(y.min())), max(self.seen[1], float(y.max()))
            z = self.still.states(obs)
            pair = self.still.pairs(z, action)
        x = torch.cat((obs, action), 1)
        error = (torch.cat([critic(x, pair, z) for critic in self.critics], 1) - y).abs()
        losses.append((weight * torch.where(error < 1, 0.5 * error**2, error)).sum())
        if self.updates % config.policy_delay == 0:
            own = torch.tanh(self.head(obs, z)) * self.movable
            x, pair = torch.cat((obs, own), 1), self.still.pairs(z, own)
            losses.append(-torch.cat([critic(x, pair, z) for critic in self.critics], 1).mean())
        grads = [torch.autograd.grad(loss, own) for loss, own in zip(losses, self.parts, strict=False)]
        for own, grad, adam in zip(self.parts, grads, self.adams, strict=False):
            for p, g in zip(own, grad, strict=True):
                p.grad = g
            adam.step()
        if self.updates % config.target_update_interval == 0:
            self.target.head.load_state_dict(self.head.state_dict())
            self.target.critics.load_state_dict(self.critics.state_dict())
            self.target.encoders.load_state_dict(self.still.state_dict())
            self.still.states.load_state_dict(self.f.state_dict())
            self.still.pairs.load_state_dict(self.g.state_dict())
            self.range = self.seen
        return error.detach().amax(1).clamp(min=1.0)

    def flat(self) -> Tensor:
        modules = (self.head, self.f, self.g, self.critics)
        return torch.cat([p.detach().reshape(-1) for module in modules for p in module.parameters()])

    def published(self) -> Tensor:
        modules = (self.still.states, self.head)
        return torch.cat([p.detach().reshape(-1) for module in modules for p in module.parameters()])


@pytest.mark.parametrize("spec", [*SPECS.values(), FIXED], ids=lambda spec: str(spec.name))
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"policy_delay": 1, "num_critics": 3, "bound_targets": False},
        {"actor_learning_rate": 1e-3, "critic_hidden_sizes": (7, 6, 5), "embedding_size": 5},
    ],
    ids=str,
)
@pytest.mark.parametrize("by_hand", [True, False], ids=["by hand", "by autograd"])
def test_updates_are_those_of_the_paper(
    spec: EnvSpec, options: dict[str, Any], by_hand: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(td7_update, "passes_by_hand", lambda rows: by_hand)
    options = {"target_update_interval": 3, **options}
    core = core_of(spec, **options)
    twin = Twin(record_of(**options), core)
    for update in range(1, 12):
        batch = filled_batch(seed=update, spec=spec)
        priorities = core.update(batch).priorities
        expected = twin.update(batch, core._buffers.noise.clone())
        assert priorities is not None
        torch.testing.assert_close(torch.from_numpy(priorities), expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(core._flat, twin.flat(), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(torch.from_numpy(written(core)), twin.published(), rtol=1e-4, atol=1e-5)
    assert twin.range[0] < 0 < twin.range[1]
    torch.testing.assert_close(core._range[:2], torch.tensor(twin.range), rtol=1e-4, atol=1e-5)


def staged(reward: list[float], discount: list[float]) -> StagedBatch:
    batch = StagedBatch(len(reward), SPEC, torch.device("cpu"))
    batch.reward[:, 0], batch.discount[:, 0] = torch.tensor(reward), torch.tensor(discount)
    return batch


def test_losses_by_hand() -> None:
    pair, next_z = torch.tensor([[1.0, 2.0], [0.0, 4.0]]), torch.tensor([[0.0, 2.0], [0.0, 1.0]])
    assert encoder_loss(pair, next_z) == (1 + 9) / 4
    batch = staged([1.0, 2.0, 3.0], [0.5, 0.5, 0.0])
    next_q = torch.tensor([[[4.0], [-9.0], [7.0]], [[8.0], [6.0], [5.0]]])
    y = targets(next_q, batch, torch.tensor(-6.0), torch.tensor(3.0))
    assert y.squeeze(1).tolist() == [1 + 0.5 * 3, 2 - 0.5 * 6, 3]
    q = torch.tensor([[[0.5], [4.0]], [[-1.0], [1.0]]])
    loss = critic_loss(q, torch.tensor([[0.0], [1.0]]), torch.tensor([[0.5], [0.25]]))
    assert loss.loss == 0.5 * (0.125 + 1.0) + 0.25 * 3.0, "linear from an error of 1 on, squares below"
    assert loss.td.flatten().tolist() == [0.5, 3.0, -1.0, 0.0]
    assert actor_loss(q).loss == -(0.5 + 4 - 1 + 1) / 4


def test_the_gradient_at_an_error_of_one_or_more_is_its_sign() -> None:
    q = torch.tensor([[[1.5], [-3.0], [0.5]]], requires_grad=True)
    critic_loss(q, torch.zeros(3, 1), torch.ones(3, 1)).loss.backward()
    assert q.grad is not None and q.grad.flatten().tolist() == [1.0, -1.0, 0.5]


def test_bootstrapped_values_are_0_until_targets_were_seen_for_an_interval() -> None:
    core = core_of(target_update_interval=2)
    batch = filled_batch(seed=1)
    batch.reward[:] = 5.0
    core._target.fill_(1.0)  # large values, which 0 does not let through
    core.update(batch)
    assert core._range[2:].tolist() == [5.0, 5.0]
    core.update(batch)
    assert core._range[:2].tolist() == [5.0, 5.0]
    core.update(batch)
    assert core._range[3] > 5.0


def test_the_policy_acts_by_the_encoder_that_stands_still() -> None:
    core = core_of(target_update_interval=4)
    first = written(core)[: core._states]
    for update in range(3):
        core.update(filled_batch(seed=update))
    assert np.array_equal(written(core)[: core._states], first)
    trained = core._flat[core._slices["encoders"]][: core._states]
    assert not torch.equal(trained, torch.from_numpy(first))
    core.update(filled_batch(seed=3))
    assert np.array_equal(written(core)[: core._states], trained.numpy())


@pytest.mark.parametrize("hidden", [(9,), (9, 8), (7, 6, 5)])
def test_the_actor_in_numpy_is_the_module(hidden: tuple[int, ...]) -> None:
    network = SaleNetwork(hidden, 6)
    module = SaleActor(4, 3, hidden, 6)
    flat = torch.cat([p.detach().reshape(-1) for p in module.parameters()])
    assert len(flat) == network.parameter_count(4, 3)
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    found = network.forward(x.numpy(), np.append(flat.numpy(), 7.0).astype(np.float32), 3)
    np.testing.assert_allclose(found, module(x).detach().numpy(), rtol=1e-5, atol=1e-6)
    rows = np.array([[1.0, -3.0], [0.0, 0.0]], np.float32)
    assert avg_l1_norm(rows).tolist() == [[0.5, -1.5], [0.0, 0.0]]


def test_an_actor_acts_without_torch() -> None:
    policy = TD7(**SMALL).make_policy(LOPSIDED)
    assert policy._network._numpy is not None


def test_a_permuted_batch_has_permuted_priorities() -> None:
    order = np.random.default_rng(0).permutation(SIZE)
    batch = filled_batch()
    batch.weight[:] = 1.0
    first, second = core_of(), core_of()
    found = first.update(batch).priorities
    again = second.update(permuted(batch, order)).priorities
    assert found is not None and again is not None
    np.testing.assert_allclose(found[order], again, rtol=1e-5)
    assert (found >= 1.0).all() and found.max() > 1.0


def test_what_it_does_not_support_is_refused() -> None:
    with pytest.raises(
        SpacesDoNotFit, match="td7 has encoders of plain values, and the observations of pixels"
    ):
        TD7().make_policy(PIXELS)
    TD7(network="mlp").make_policy(PIXELS)
    with pytest.raises(ValueError, match="network must be a name for td7"):
        TD7(network=lambda inputs, outputs: nn.Linear(inputs, outputs))
