"""BC, TD3+BC and IQL against their papers' formulas, written slowly in float64, and whole updates against autograd."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from continuous_rig import LOPSIDED, SIZE, SPEC, TD3Twin, critics_of, filled_batch, module_of, written
from torch import Tensor, nn

from asyncrl.algorithms import bc, iql, td3bc
from asyncrl.algorithms.bc import BC
from asyncrl.algorithms.iql import IQL
from asyncrl.algorithms.iql_update import reward_scale
from asyncrl.algorithms.td3bc import TD3BC
from asyncrl.errors import SpacesDoNotFit
from asyncrl.interfaces import (
    RESET,
    Batch,
    BoxAction,
    DiscreteAction,
    EnvSpec,
    Leaf,
    MultiDiscreteAction,
)

SMALL: dict[str, Any] = {"hidden_sizes": (9, 8), "batch_size": SIZE, "learning_rate": 3e-3, "adam_eps": 1e-4}


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(0, scale, shape).astype(np.float32))


# ---- losses --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("expectile", [0.5, 0.7, 0.9])
def test_value_loss_is_expectile_regression(expectile: float) -> None:
    v, q = normal(7, 1), normal(7, 1, seed=1)
    slow = 0.0
    for value, target in zip(v.double().flatten().tolist(), q.double().flatten().tolist(), strict=True):
        u = target - value
        slow += abs(expectile - (1.0 if u < 0 else 0.0)) * u * u / 7
    assert float(iql.value_loss(v, q, expectile).loss) == pytest.approx(slow, rel=1e-5)


@pytest.mark.parametrize(("expectile", "expected"), [(0.5, 3.0), (0.9, 9.0)])
def test_the_minimum_of_the_value_loss_is_the_expectile(expectile: float, expected: float) -> None:
    """Of 0, 0, 0 and 12 the mean is 3; the expectile m of 0.9 solves 0.9 (12 - m) = 0.1 * 3 m."""
    q, grid = torch.tensor([[0.0], [0.0], [0.0], [12.0]]), torch.arange(0, 12.001, 0.01)
    losses = [float(iql.value_loss(torch.full((4, 1), float(m)), q, expectile).loss) for m in grid]
    assert float(grid[int(np.argmin(losses))]) == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize("beta", [0.0, 3.0])
def test_policy_loss_is_the_weighted_likelihood(beta: float) -> None:
    out, log_std, taken = normal(6, 2), torch.tensor([-0.5, -9.0]), normal(6, 2, seed=1).tanh()
    advantage, most = normal(6, 1, seed=2, scale=2.0), 5.0
    slow = 0.0
    for b in range(6):
        weight, log_prob = min(math.exp(beta * float(advantage[b, 0])), most), 0.0
        for j in range(2):
            std = math.exp(max(-5.0, float(log_std[j])))
            mean, action = math.tanh(float(out[b, j])), float(taken[b, j])
            log_prob -= 0.5 * ((action - mean) / std) ** 2 + math.log(std) + 0.5 * math.log(2 * math.pi)
        slow -= weight * log_prob / 6
    found = iql.policy_loss(out, log_std, taken, advantage, beta, most).loss
    assert float(found) == pytest.approx(slow, rel=1e-4)


def test_critics_are_bootstrapped_from_the_value() -> None:
    class Columns:
        reward, discount, weight = normal(5, 1), torch.tensor([[0.9]] * 4 + [[0.0]]), torch.full((5, 1), 0.2)

    q, next_v, batch = normal(2, 5, 1, seed=1), normal(5, 1, seed=2), Columns()
    slow = 0.0
    for c in range(2):
        for b in range(5):
            y = float(batch.reward[b]) + float(batch.discount[b]) * float(next_v[b])
            slow += 0.5 * (float(q[c, b]) - y) ** 2 / 5
    assert float(iql.critic_loss(q, next_v, batch).loss) == pytest.approx(slow, rel=1e-5)  # type: ignore[arg-type]


def test_actor_loss_weighs_value_and_imitation() -> None:
    q, action, taken = normal(1, 6, 1, scale=40.0), normal(6, 3).tanh(), normal(6, 3, seed=1).tanh()
    values = q.double().flatten().tolist()
    scale = 2.5 / (sum(map(abs, values)) / 6)
    error = (
        sum((float(a) - float(b)) ** 2 for a, b in zip(action.flatten(), taken.flatten(), strict=True)) / 18
    )
    found = td3bc.actor_loss(q.requires_grad_(), action, taken, 2.5)
    assert float(found.loss.detach()) == pytest.approx(-scale * sum(values) / 6 + error, rel=1e-5)
    (grad,) = torch.autograd.grad(found.loss, q)
    np.testing.assert_allclose(grad.numpy(), -scale / 6, rtol=1e-5)  # lambda is a constant for the gradient


def test_likelihood_is_summed_over_the_parts_of_an_action() -> None:
    logits, taken = normal(4, 5), torch.tensor([[0, 2], [1, 0], [0, 1], [1, 1]])
    slow = 0.0
    for b in range(4):
        for part, k in ((logits[b, :2], taken[b, 0]), (logits[b, 2:], taken[b, 1])):
            exps = [math.exp(float(x)) for x in part]
            slow -= math.log(exps[int(k)] / sum(exps)) / 4
    assert float(bc.likelihood_loss(logits, taken, choices=(2, 3)).loss) == pytest.approx(slow, rel=1e-5)


def test_the_likelihood_is_that_of_the_allowed_choices() -> None:
    """With equal logits: 1 of 2 allowed; 1 of 1; all of 3; and a choice that is forbidden, which counts for nothing."""
    logits = torch.zeros(4, 3, requires_grad=True)
    mask = torch.tensor([[1, 1, 0], [0, 0, 1], [1, 1, 1], [0, 1, 1]], dtype=torch.bool)
    taken = torch.tensor([[0], [2], [1], [0]])
    loss = bc.likelihood_loss(logits, taken, mask, choices=(3,)).loss
    assert float(loss.detach()) == pytest.approx((math.log(2) + 0 + math.log(3)) / 4)
    (grad,) = torch.autograd.grad(loss, logits)
    wanted = [[-1 / 2, 1 / 2, 0], [0, 0, 0], [1 / 3, -2 / 3, 1 / 3], [0, 0, 0]]
    np.testing.assert_allclose(grad.numpy(), np.array(wanted) / 4, atol=1e-7)


def test_the_likelihood_of_several_parts_reads_the_mask_of_each() -> None:
    logits, taken = torch.zeros(2, 5), torch.tensor([[1, 2], [1, 0]])
    mask = torch.tensor([[1, 1, 1, 0, 1], [0, 1, 0, 1, 1]], dtype=torch.bool)
    loss = float(bc.likelihood_loss(logits, taken, mask, choices=(2, 3)).loss)
    assert loss == pytest.approx((math.log(2) + math.log(2)) / 2), "the second row's second part is forbidden"


# ---- updates -------------------------------------------------------------------------------------------------------


class TD3BCTwin(TD3Twin):
    """TD3 with the actor's loss of TD3+BC."""

    def step(self, losses: dict[str, Tensor]) -> None:
        if "policy" in losses:
            action = self.policy(self.seen["obs"]).tanh()
            q = self.judge(self.critics[:1], self.seen["obs"], action)  # type: ignore[index]
            scale = self.config.alpha / q.detach().abs().mean()
            losses["policy"] = -scale * q.mean() + nn.functional.mse_loss(action, self.seen["action"])
            self.losses["policy"] = float(losses["policy"].detach())
        super().step(losses)

    def update(self, filled: Batch, noise: Tensor, acting: bool) -> Tensor:
        self.seen = self.tensors(filled)
        return super().update(filled, noise, acting)


@pytest.mark.parametrize(
    "options", [{}, {"policy_delay": 1, "num_critics": 3, "alpha": 1.0, "max_grad_norm": 0.1}]
)
@pytest.mark.parametrize("spec", [SPEC, LOPSIDED], ids=lambda spec: spec.name)
def test_updates_of_td3bc_are_those_of_autograd(spec: EnvSpec, options: dict[str, Any]) -> None:
    core = TD3BC(**SMALL, normalize_observations=False, **options).make_updater(spec, "cpu", 3)
    twin = TD3BCTwin(core)
    for update in range(1, 9):
        batch = filled_batch(seed=update, spec=spec)
        core.update(batch)
        acting = update % core.config.policy_delay == 0
        twin.update(batch, core._buffers.noise.clone(), acting)
        assert core.metrics()["train/loss"] == pytest.approx(twin.losses["critics"], rel=1e-4)
        if acting:
            assert core.metrics()["train/actor_loss"] == pytest.approx(
                twin.losses["policy"], rel=1e-4, abs=1e-5
            )
    twin.assert_same(core, rtol=1e-4, atol=1e-5)


class IQLTwin:
    """IQL with modules, autograd and torch's Adam."""

    def __init__(self, core: Any) -> None:
        state, self.config, self.tensors = core.state_dict(), core.config, TD3BCTwin.tensors
        self.spec = core.spec
        self.policy, self.value = module_of(state["policy"]), module_of(state["value"])
        self.critics, self.targets = critics_of(state["critics"]), critics_of(state["target_critics"])
        self.log_std = nn.Parameter(state["log_std"])
        actor = [*self.policy.parameters(), self.log_std]
        rest = [*self.value.parameters(), *self.critics.parameters()]
        self.groups = actor, rest
        self.adam = [
            torch.optim.Adam(group, lr=core.config.learning_rate, eps=core.config.adam_eps)
            for group in self.groups
        ]

    def update(self, filled: Batch) -> None:
        config, batch = self.config, self.tensors(self, filled)  # type: ignore[arg-type]
        pair = torch.cat((batch["obs"], batch["action"]), dim=1)
        q_target = torch.stack([critic(pair) for critic in self.targets]).min(dim=0).values.detach()
        v = self.value(batch["obs"])
        u = q_target - v
        value = (torch.abs(config.expectile - (u < 0).float()) * u**2).mean()
        y = batch["reward"] + batch["discount"] * self.value(batch["next_obs"]).detach()
        critic = sum(0.5 * (batch["weight"] * (net(pair) - y) ** 2).mean() for net in self.critics)
        weight = torch.exp(config.inverse_temperature * (q_target - v.detach())).clamp(
            max=config.max_advantage_weight
        )
        normal = torch.distributions.Normal(self.policy(batch["obs"]).tanh(), self.log_std.clamp(-5, 2).exp())
        actor = -(weight[:, 0] * normal.log_prob(batch["action"]).sum(dim=1)).mean()
        self.loss = float((value + critic).detach())
        for group, loss in zip(self.groups, (actor, value + critic), strict=True):
            for parameter, grad in zip(group, torch.autograd.grad(loss, group), strict=True):
                parameter.grad = grad
        rates = config.actor_learning_rate_at(filled.progress), config.learning_rate
        for adam, rate in zip(self.adam, rates, strict=True):
            adam.param_groups[0]["lr"] = rate
            adam.step()
        with torch.no_grad():
            for slow, fast in zip(self.targets.parameters(), self.critics.parameters(), strict=True):
                slow.lerp_(fast, config.tau)


@pytest.mark.parametrize("spec", [SPEC, LOPSIDED], ids=lambda spec: spec.name)
@pytest.mark.parametrize(
    "options", [{}, {"expectile": 0.9, "inverse_temperature": 0.5, "num_critics": 3, "tau": 0.2}]
)
def test_updates_of_iql_are_those_of_autograd(spec: EnvSpec, options: dict[str, Any]) -> None:
    core = IQL(**SMALL, **options).make_updater(spec, "cpu", 3)
    twin = IQLTwin(core)
    for update in range(1, 9):
        batch = filled_batch(seed=update, spec=spec)
        batch.progress = update / 10
        core.update(batch)
        twin.update(batch)
        assert core.metrics()["train/loss"] == pytest.approx(twin.loss, rel=1e-4)
    other = IQLTwin(core)
    for name in ("policy", "value", "critics", "targets"):
        for a, b in zip(getattr(twin, name).parameters(), getattr(other, name).parameters(), strict=True):
            torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(other.log_std, twin.log_std, rtol=1e-4, atol=1e-6)
    assert float(twin.log_std.detach().abs().min()) > 1e-3, "standard deviations are learned"


@pytest.mark.parametrize(
    "action", [DiscreteAction(3, start=2), MultiDiscreteAction((2, 4))], ids=["one", "several"]
)
def test_bc_learns_choices(action: Any) -> None:
    spec = EnvSpec("choices", (4,), "float32", action)
    core = BC(hidden_sizes=(32,), batch_size=64, learning_rate=1e-2).make_updater(spec, "cpu", 0)
    rng, batch = np.random.default_rng(0), Batch.allocate(64, spec)
    for _ in range(150):
        batch.obs[:] = rng.normal(size=batch.obs.shape)
        fill_choices(batch)
        core.update(batch)
    policy = BC(hidden_sizes=(32,)).make_policy(spec)
    policy.load_weights(written(core))
    batch.obs[:] = rng.normal(size=batch.obs.shape)
    fill_choices(batch)
    assert (policy.greedy(batch.obs) == batch.action).mean() > 0.9
    assert core.metrics().keys() == {"train/learning_rate", "train/loss", "train/grad_norm"}


@pytest.mark.parametrize("start", [0, 2])
def test_bc_learns_by_the_masks_of_the_data(start: int) -> None:
    """Two actors share an observation and differ in their masks: the policy's probabilities are those of each.

    The first loss is that of about equal probabilities of the two allowed choices, not of all three.
    """
    leaves = (Leaf(("action_mask",), "values", (3,)), Leaf(("observation",), "values", (2,)))
    spec = EnvSpec("masked", (5,), "float32", DiscreteAction(3, start), leaves=leaves)
    core = BC(hidden_sizes=(16,), batch_size=64, learning_rate=1e-2).make_updater(spec, "cpu", 0)
    rng, batch = np.random.default_rng(0), Batch.allocate(64, spec)
    # 0 in one row of four, 1 in three, of rows in which 2 is forbidden; 2 wherever 1 is forbidden
    batch.obs[:32], batch.obs[32:] = [1, 1, 0, 1, -1], [1, 0, 1, 1, -1]
    batch.next_obs[:] = 0
    batch.action[:32], batch.action[32:] = np.arange(32) % 4 > 0, 2
    losses: list[float] = []
    for _ in range(300):
        order = rng.permutation(64)
        batch.obs[:], batch.action[:] = batch.obs[order], batch.action[order]
        core.update(batch)
        losses.append(core.metrics()["train/loss"])
    assert losses[0] == pytest.approx(math.log(2), abs=0.2) and math.log(3) > math.log(2) + 0.4
    policy = BC(hidden_sizes=(16,)).make_policy(spec)
    policy.load_weights(written(core))
    (found,) = policy.probabilities(np.array([[1, 1, 0, 1, -1], [1, 0, 1, 1, -1]], np.float32))
    np.testing.assert_allclose(found, [[0.25, 0.75, 0], [0, 0, 1]], atol=0.02)
    assert losses[-1] == pytest.approx(0.5 * (0.25 * math.log(4) + 0.75 * math.log(4 / 3)), abs=0.01)


def test_bc_learns_by_the_masks_of_each_part_of_an_action() -> None:
    """The first loss is that of about equal probabilities of allowed choices: 1 of 2, of the other part 1 of 1."""
    leaves = (Leaf(("action_mask",), "values", (5,)), Leaf(("observation",), "values", (2,)))
    spec = EnvSpec("masked", (7,), "float32", MultiDiscreteAction((2, 3)), leaves=leaves)
    core = BC(hidden_sizes=(16,), batch_size=64, learning_rate=1e-12).make_updater(spec, "cpu", 0)
    batch = Batch.allocate(64, spec)
    batch.obs[:], batch.next_obs[:] = [1, 1, 0, 0, 1, 1, -1], 0
    batch.action[:] = np.stack((np.arange(64) % 2, np.full(64, 2)), axis=1)
    core.update(batch)
    assert core.metrics()["train/loss"] == pytest.approx(math.log(2), abs=0.2)
    policy = BC(hidden_sizes=(16,)).make_policy(spec)
    policy.load_weights(written(core))
    assert core.metrics()["train/loss"] == pytest.approx(
        -policy.log_prob(batch.obs, batch.action).mean(), rel=1e-5
    )


def fill_choices(batch: Batch) -> None:
    """Actions that are functions of the observation."""
    first, second = batch.obs[:, 0] > 0, 2 * (batch.obs[:, 1] > 0) + (batch.obs[:, 2] > 0)
    batch.action[:] = np.stack((first, second), axis=1) if batch.action.ndim > 1 else first + 1


# ---- what is taken of the whole dataset ------------------------------------------------------------------------------


def test_observations_are_normalised_by_the_dataset_not_by_batches() -> None:
    core = TD3BC(**SMALL).make_updater(SPEC, "cpu", 0)
    rng = np.random.default_rng(0)
    obs = rng.normal(3.0, 2.0, (50, 4)).astype(np.float32)
    flags = np.zeros(50, np.uint8)
    flags[[20, 49]], obs[[20, 49]] = RESET, 1e6  # a final observation is no step
    core.observe_dataset(obs, np.zeros(50, np.float32), flags)
    for seed in range(3):
        core.update(filled_batch(seed=seed))
    mean, scale = core.statistics.normalisation
    steps = np.delete(obs, [20, 49], axis=0).astype(np.float64)
    np.testing.assert_allclose(mean, steps.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(scale, 1 / (steps.std(axis=0) + 1e-3), rtol=1e-5)
    policy = core.config.make_policy(SPEC)
    policy.load_weights(written(core))
    moved = core.config.make_policy(SPEC)
    plain = written(core)
    plain[-8:-4], plain[-4:] = 0, 1
    moved.load_weights(plain)
    np.testing.assert_allclose(
        policy.greedy(obs[:5]), moved.greedy((obs[:5] - mean) * scale), rtol=1e-4, atol=1e-5
    )


def test_statistics_of_a_policy_that_the_run_began_with_stay() -> None:
    core, other = (TD3BC(**SMALL).make_updater(SPEC, "cpu", seed) for seed in (0, 1))
    rng = np.random.default_rng(0)
    for made, centre in ((core, 3.0), (other, 0.0)):
        if made is other:
            other.begin_with(written(core), 100)
        obs = rng.normal(centre, 2.0, (50, 4)).astype(np.float32)
        made.observe_dataset(obs, np.zeros(50, np.float32), np.zeros(50, np.uint8))
    np.testing.assert_allclose(written(other), written(core), rtol=1e-5)


def test_returns_of_the_dataset_span_a_thousand() -> None:
    reward = np.array([1, 2, 0, 5, 0, 3, 3, 3, 0], np.float32)  # returns 3, 5 and 9
    flags = np.array([0, 1, RESET, 1, RESET, 0, 0, 2, RESET], np.uint8)
    assert reward_scale(reward, flags) == pytest.approx(1000 / 6)
    padded = np.concatenate((flags, [RESET, RESET])), np.concatenate((reward, [0, 0]))
    assert reward_scale(padded[1].astype(np.float32), padded[0].astype(np.uint8)) == pytest.approx(1000 / 6)
    assert reward_scale(reward[:3], flags[:3]) == 1.0
    core = IQL(**SMALL).make_updater(SPEC, "cpu", 0)
    core.observe_dataset(np.zeros((9, 4), np.float32), reward, flags)
    batch = filled_batch()
    core.update(batch)
    np.testing.assert_allclose(core._buffers.batch.reward[:, 0], batch.reward * 1000 / 6, rtol=1e-5)
    off = IQL(**SMALL, normalize_rewards=False).make_updater(SPEC, "cpu", 0)
    off.observe_dataset(np.zeros((9, 4), np.float32), reward, flags)
    assert off.reward_scale.factor == 1.0


class Softened(nn.Module):
    """A network whose outputs are no multiple of those of its last layer."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(inputs, 5), nn.ReLU(), nn.Linear(5, outputs))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = nn.functional.softplus(self.layers(x))
        return out


def linear_at_the_end(inputs: int, outputs: int) -> nn.Module:
    return Softened(inputs, outputs).layers


EPISODES = np.array([0, 0, RESET, 0, RESET], np.uint8)


def observed(core: Any, span: float) -> None:
    """Show a dataset whose returns span `span`."""
    reward = np.array([0.0, 0.0, 0.0, span, 0.0], np.float32)
    core.observe_dataset(np.zeros((5, 4), np.float32), reward, EPISODES)


def begun(options: dict[str, Any], donor: Any) -> Any:
    """A new core with the donor's critics and their factor."""
    core = IQL(**SMALL, **options).make_updater(SPEC, "cpu", 1)
    core.begin_with(written(donor), 100)
    core.begin_with_critics(donor.critic_weights())
    core.begin_with_reward_scale(donor.learned_reward_scale, 100)
    assert core.learned_reward_scale == donor.learned_reward_scale, "before the dataset is seen"
    return core


def values_of_critics(core: Any) -> tuple[Tensor, Tensor]:
    """Values `[C, 20, 1]` of critics and target critics, in the unit of the environment's rewards."""
    x = normal(SIZE, 6)
    return tuple(
        net.make_pass(x).forward().clone() / core.learned_reward_scale
        for net in (core.critics, core.target_critics)
    )  # type: ignore[return-value]


@pytest.mark.parametrize("network", ["mlp", linear_at_the_end, Softened])
@pytest.mark.parametrize(("normalized", "factor"), [(True, 250.0), (False, 1.0)])
def test_critics_that_are_taken_over_get_the_unit_of_the_runs_rewards(
    network: Any, normalized: bool, factor: float
) -> None:
    donor = IQL(**SMALL, network=network).make_updater(SPEC, "cpu", 0)
    observed(donor, 20.0)
    assert donor.learned_reward_scale == 50.0
    options = {"network": network, "normalize_rewards": normalized}
    core = begun(options, donor)
    early = core.state_dict()
    observed(core, 4.0)
    assert core.learned_reward_scale == core.reward_scale.factor == (50.0 if network is Softened else factor)
    for values in values_of_critics(core):
        torch.testing.assert_close(values, values_of_critics(donor)[0], rtol=1e-4, atol=1e-6)
    # Of a run that was stopped before it has seen its dataset, or after.
    for state in (early, core.state_dict()):
        resumed = IQL(**SMALL, **options).make_updater(SPEC, "cpu", 2)
        resumed.load_state_dict(state)
        observed(resumed, 4.0)
        assert torch.equal(resumed.critics.flat, core.critics.flat)
        assert torch.equal(resumed.target_critics.flat, core.target_critics.flat)
        assert resumed.reward_scale.factor == core.reward_scale.factor


def test_new_critics_are_not_multiplied() -> None:
    core, other = (IQL(**SMALL).make_updater(SPEC, "cpu", 0) for _ in range(2))
    observed(core, 4.0)
    assert torch.equal(core.critics.flat, other.critics.flat)


@pytest.mark.parametrize("record", [TD3BC, IQL])
def test_what_they_cannot_act_in_is_refused(record: Any) -> None:
    for action in (DiscreteAction(3), BoxAction((-1.0,), (math.inf,), (1,))):
        with pytest.raises(SpacesDoNotFit):
            record().check(EnvSpec("x", (4,), "float32", action))


def test_a_cosine_schedule_ends_at_zero() -> None:
    record = IQL(learning_rate=2e-3, learning_rate_schedule="cosine", actor_learning_rate=1e-3)
    assert [record.learning_rate_at(0, p) for p in (0.0, 0.5, 1.0)] == pytest.approx([2e-3, 1e-3, 0.0])
    assert [record.actor_learning_rate_at(p) for p in (0.0, 0.5, 1.0)] == pytest.approx([1e-3, 5e-4, 0.0])


def test_a_function_is_not_multiplied_by_the_cosine_of_the_default() -> None:
    def falling(progress: float) -> float:
        return 1e-3 * (2.0 - progress)

    for options in ({"learning_rate": falling}, {"actor_learning_rate": falling}):
        record = IQL(**options)
        assert record.actor_learning_rate_schedule == "cosine"
        assert [record.actor_learning_rate_at(p) for p in (0.0, 0.5, 1.0)] == [2e-3, 1.5e-3, 1e-3]
    number = IQL(learning_rate=falling, actor_learning_rate=1e-3)
    assert number.actor_learning_rate_at(0.5) == pytest.approx(5e-4), "a number has its schedule"
