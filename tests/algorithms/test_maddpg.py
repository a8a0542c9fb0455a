"""MADDPG: loss and draws against hand-worked numbers, both gradients against float64 autograd, and small games."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from q_rig import column
from several_agents import Together
from torch import nn

from asyncrl import MADDPG, Trainer
from asyncrl.algorithms.maddpg import critic_loss
from asyncrl.algorithms.maddpg_update import gumbel_softmax
from asyncrl.interfaces import Agent, BoxAction, DiscreteAction, EnvSpec, JointBatch

AGENTS = tuple(map(Agent, "abc"))
SPECS = {
    "discrete": EnvSpec("choices", (4,), "float32", DiscreteAction(3), agents=AGENTS),
    "box": EnvSpec("box", (4,), "float32", BoxAction((-1.0, 0.0), (1.0, 4.0), (2,)), agents=AGENTS),
}


def random_batch(spec: EnvSpec, size: int, seed: int) -> JointBatch:
    rng = np.random.default_rng(seed)
    batch = JointBatch.allocate(size, spec)
    batch.obs[:], batch.next_obs[:] = rng.normal(size=(2, *batch.obs.shape))
    discrete = isinstance(spec.action, DiscreteAction)
    batch.action[:] = (
        rng.integers(0, 3, batch.action.shape) if discrete else rng.uniform(0, 1, batch.action.shape)
    )
    batch.trained[:] = rng.random(batch.trained.shape) < 0.7
    batch.trained[:, 1] = True
    batch.reward[:] = rng.normal(0, 2, batch.reward.shape) * batch.trained
    batch.discount[:] = np.where(rng.random(batch.discount.shape) < 0.3, 0.0, 0.9) * batch.trained
    batch.weight[:] = rng.random(size)
    return batch


def test_loss_by_hand() -> None:
    batch: Any = SimpleNamespace(
        reward=torch.tensor([[1.0, 0.0], [2.0, 9.0]]).double(),
        discount=torch.tensor([[0.5, 0.0], [0.25, 0.0]]).double(),
        acts=torch.tensor([[1.0, 1.0], [1.0, 0.0]]).double(),
        weight=column(1.0, 0.5),
        low=torch.tensor(-1.0).double(),
        high=torch.tensor(4.0).double(),
    )
    q, next_q = (
        torch.tensor([[1.0, 3.0], [0.0, 7.0]]).double(),
        torch.tensor([[8.0, 1.0], [4.0, 1.0]]).double(),
    )
    # 1 - (1 + 0.5 * 8) = -4, 3 - 0 = 3; 0 - (2 + 0.25 * 4) = -3, and the last agent waits
    found = critic_loss(q, next_q, batch, bound_targets=False)
    assert found.td.tolist() == [[-4.0, 3.0], [-3.0, 0.0]]
    assert found.loss.item() == 0.5 * (16 + 9 + 0.5 * 9) / 2
    assert critic_loss(q, next_q, batch, bound_targets=True).td.tolist() == [[-2.0, 3.0], [-3.0, 0.0]]


def test_draws_are_those_of_the_softmax_and_pass_its_derivative() -> None:
    logits = torch.tensor([1.0, 0.0, -1.0]).double().expand(40_000, 3)
    generator = torch.Generator().manual_seed(0)
    noise = -torch.log(-torch.log(torch.rand(logits.shape, generator=generator, dtype=torch.float64)))
    leaf = logits.clone().requires_grad_()
    drawn = gumbel_softmax(leaf, noise, 0.7)
    assert (
        torch.allclose(drawn.sum(dim=1), torch.ones(()).double())
        and (drawn.detach().amax(dim=1) > 0.999).all()
    )
    torch.testing.assert_close(drawn.detach().mean(dim=0), logits[0].softmax(dim=0), atol=0.01, rtol=0.0)
    weight = torch.randn(3, generator=generator, dtype=torch.float64)
    (found,) = torch.autograd.grad((drawn * weight).sum(), leaf)
    soft = ((logits + noise) / 0.7).softmax(dim=1)
    wanted = soft * (weight - (soft * weight).sum(dim=1, keepdim=True)) / 0.7
    torch.testing.assert_close(found, wanted)


class Network:
    """A perceptron from the learner's state, float64."""

    def __init__(self, state: Any) -> None:
        self.parameters = {name: nn.Parameter(value.double()) for name, value in state.items()}

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        p = self.parameters
        return p["1.weight"] @ torch.relu(p["0.weight"] @ x + p["0.bias"]) + p["1.bias"]


@pytest.mark.parametrize("kind", SPECS)
def test_both_gradients_are_the_papers(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lowe et al. 2017, eq. 5 and 6, one item and one agent after the other; without noise in the draws."""
    spec = SPECS[kind]
    config = MADDPG(hidden_sizes=(8,), max_grad_norm=None, bound_targets=False, tau=0.5, logit_penalty=0.125)
    core: Any = config.make_updater(spec, "cpu", 1)
    monkeypatch.setattr(core, "draw", lambda noise: noise.zero_())
    for seed in range(3):  # networks and targets differ
        core.update(random_batch(spec, 16, seed))
    batch, state = random_batch(spec, 16, 9), core.state_dict()
    policy, critic, target_policy, target_critic = (
        Network(state[name]) for name in ("policy", "critic", "target_policy", "target_critic")
    )
    discrete = kind == "discrete"

    def act(network: Network, obs: torch.Tensor) -> torch.Tensor:
        out = network(obs)
        return gumbel_softmax(out[None], torch.zeros(1, 3).double(), 1.0)[0] if discrete else out.tanh()

    def taken(i: int, a: int) -> torch.Tensor:
        if discrete:
            return torch.eye(3).double()[batch.action[i, a]]
        return torch.tensor((batch.action[i, a] - np.array([0.0, 2.0])) / np.array([1.0, 2.0])).double()

    nothing = torch.zeros(3 if discrete else 2).double()
    critic_total, actor_total = torch.zeros(()).double(), torch.zeros(()).double()
    acting, squares = int(batch.trained.sum()), torch.zeros(()).double()
    for i in range(16):
        x, next_x = torch.tensor(batch.obs[i]).double(), torch.tensor(batch.next_obs[i]).double()
        actions = [taken(i, a) if batch.trained[i, a] else nothing for a in range(3)]
        following = [act(target_policy, next_x[a]) if batch.discount[i, a] > 0 else nothing for a in range(3)]
        q = critic(torch.cat([x.flatten(), *actions]))
        next_q = target_critic(torch.cat([next_x.flatten(), *following]))
        for a in range(3):
            squares = squares + policy(x[a]).square().sum()
            if not batch.trained[i, a]:
                continue
            y = batch.reward[i, a] + batch.discount[i, a] * next_q[a].detach()
            critic_total = critic_total + batch.weight[i].item() * (q[a] - y) ** 2 / 2 / 3 / 16
            own = [act(policy, x[a]) if b == a else actions[b] for b in range(3)]
            actor_total = actor_total - critic(torch.cat([x.flatten(), *own]))[a] / acting
    if discrete:
        actor_total = actor_total + 0.125 * squares / (16 * 3 * 3)
    core.update(batch)
    assert core.metrics()["train/loss"] == pytest.approx(critic_total.item(), rel=1e-4)
    assert core.metrics()["train/actor_loss"] == pytest.approx(actor_total.item(), rel=1e-4, abs=1e-6)
    for network, gradient, own, loss in (
        (critic, core.critic_gradient, core.critic, critic_total),
        (policy, core.policy_gradient, core.policy, actor_total),
    ):
        wanted = torch.autograd.grad(loss, list(network.parameters.values()), retain_graph=True)
        found = own.on(gradient).state_dict()
        for name, value in zip(network.parameters, wanted, strict=True):
            np.testing.assert_allclose(found[name], value, rtol=2e-3, atol=1e-6, err_msg=name)


def test_the_critic_sees_no_action_value_whose_range_is_empty() -> None:
    """The batch's ones are staged as 0, and so must be the policy's: their weights are never trained."""
    fixed = BoxAction((-1.0, 3.0), (1.0, 3.0), (2,))
    spec = EnvSpec("fixed", (4,), "float32", fixed, agents=AGENTS)
    core: Any = MADDPG(hidden_sizes=(8,)).make_updater(spec, "cpu", 1)
    batch = random_batch(spec, 16, 0)
    batch.action[..., 1] = 3.0
    core.update(batch)
    buffers = core._buffers
    for seen in (buffers.taken, buffers.following, buffers.own):
        actions = seen[:, -3 * 2 :].unflatten(1, (3, 2))
        assert actions[..., 0].any() and not actions[..., 1].any()
    head = core.policy.on(core.policy_gradient).state_dict()["1.weight"]
    assert head[0].any() and not head[1].any()


def test_large_errors_of_the_critic_do_not_shorten_the_policys_gradient() -> None:
    """Each has its own bound on the norm, as in the authors' code: the bound is far below that of the critic alone."""
    config, moments = MADDPG(hidden_sizes=(8,), bound_targets=False, reward_scale=1.0), []
    for factor in (1, 1_000):
        core: Any = config.make_updater(SPECS["box"], "cpu", 1)
        batch = random_batch(SPECS["box"], 16, 0)
        batch.reward *= factor
        core.update(batch)
        parts = {name: adam.moments[0].norm().item() for name, adam in core._optimizers.items()}
        moments.append(parts["policy"])
    norm = core.policy_gradient.norm().item()
    assert 0 < norm < 10 and parts["critic"] == pytest.approx(0.1 * 10), "that of the critic is at the bound"
    assert moments == pytest.approx([0.1 * norm] * 2), "a moment begins with a tenth of the gradient"


def test_a_state_with_one_optimiser_of_both_parts_is_taken() -> None:
    """As checkpoints from before have it."""
    config = MADDPG(hidden_sizes=(8,), prioritized=False)
    core, other = (config.make_updater(SPECS["discrete"], "cpu", seed) for seed in (1, 2))
    core.update(random_batch(SPECS["discrete"], 16, 0))
    old = core.state_dict()
    parts = old.pop("optimizers")
    old["optimizer"] = {
        "step": parts["policy"]["step"],
        **{name: torch.cat([own[name] for own in parts.values()]) for name in ("exp_avg", "exp_avg_sq")},
    }
    other.load_state_dict(old)
    for updater in (core, other):
        updater.update(random_batch(SPECS["discrete"], 16, 1))
    torch.testing.assert_close(core.vector.parameters, other.vector.parameters, rtol=0.0, atol=0.0)


def test_agents_with_goals_of_their_own_learn_discrete_actions() -> None:
    """All agents see the same and their own index; each is paid for another action (15 is the most)."""
    algorithm = MADDPG(hidden_sizes=(32,), learning_starts=200, learning_rate=3e-3, gamma=0.5, batch_size=64)
    trainer = Trainer(
        Together,
        algorithm,
        agent_id=True,
        seed=3,
        num_actors=1,
        envs_per_actor=8,
        http="off",
        eval_interval_steps=500,
        target_return=15.0,
        target_eval_episodes=2,
    )
    assert trainer.learn(total_steps=20_000).stop_reason == "target_return"
