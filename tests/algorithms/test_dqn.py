"""DQN: its loss against hand-worked numbers, its update against modules and autograd, its options."""

import dataclasses
import itertools
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from q_rig import SMALL, SPEC, column, filled_batch, make, staged, written
from torch import nn
from waiting import PATIENCE_SECONDS

from asyncrl.algorithms import DQN
from asyncrl.algorithms.dqn import dqn_loss
from asyncrl.algorithms.ppo import PPO
from asyncrl.algorithms.preset_files import load_presets
from asyncrl.algorithms.q_learning import by_action, huber
from asyncrl.algorithms.q_learning_update import QLearningUpdate
from asyncrl.config import TrainerConfig
from asyncrl.errors import SpacesDoNotFit
from asyncrl.interfaces import Batch, BoxAction, DiscreteAction, EnvSpec, MultiDiscreteAction

# --- the loss ---


def test_dueling_by_hand() -> None:
    q = by_action(torch.tensor([[10.0, 1.0, 2.0, 6.0], [-1.0, 0.0, 0.0, 3.0]]), None, dueling=True)
    assert q.tolist() == [[8.0, 9.0, 13.0], [-2.0, -2.0, 1.0]]


def test_outputs_by_action() -> None:
    out = torch.arange(12.0).view(2, 6)
    assert by_action(out, None, dueling=False) is out
    assert by_action(out, 2, dueling=False).tolist() == out.view(2, 3, 2).tolist()
    combined = by_action(out, 2, dueling=True)
    for atom in range(2):
        alone = by_action(out.view(2, 3, 2)[:, :, atom], None, dueling=True)
        torch.testing.assert_close(combined[:, :, atom], alone)


def test_huber_by_hand() -> None:
    # |e| = 0.5 -> 0.125; 3 -> 2.5 (linear from 1 on); 2 -> 1.5
    assert huber(column(0.5, -3.0, 2.0), 1.0)[:, 0].tolist() == [0.125, 2.5, 1.5]
    assert huber(column(0.5, -3.0, 2.0), 2.0)[:, 0].tolist() == [0.125, 4.0, 2.0]
    assert huber(column(0.5, -3.0, 2.0), None)[:, 0].tolist() == [0.125, 4.5, 2.0]


def test_loss_by_hand() -> None:
    q, next_q = (
        torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]).double(),
        torch.tensor([[8.0, 0.0]] * 3).double(),
    )
    batch = staged([1, 0, 1], [0.5, 10.0, 1.0], [0.25, 0.0, 1.0], [1.0, 0.5, 0.25], low=-2.0, high=4.0)
    next_action = torch.tensor([[0], [0], [1]])
    # 2 - (0.5 + 0.25 * 8) = -0.5; a termination bootstraps nothing: 3 - 10 = -7; 6 - (1 + 1 * 0) = 5
    result = dqn_loss(q, next_q, next_action, batch, huber_delta=1.0, bound_targets=False)
    assert result.priorities[:, 0].tolist() == [-0.5, -7.0, 5.0]
    assert result.loss.item() == 0.125 + 0.5 * 6.5 + 0.25 * 4.5
    # 8 is clipped to 4
    result = dqn_loss(q, next_q, next_action, batch, huber_delta=None, bound_targets=True)
    assert result.priorities[:, 0].tolist() == [0.5, -7.0, 5.0]
    assert result.loss.item() == 0.125 + 0.5 * 24.5 + 0.25 * 12.5


def slow_loss(q, next_q, next_q_online, action, rewards, gamma, terminated, weight, delta):  # type: ignore[no-untyped-def]
    """The papers' formulas, one item and one reward at a time."""
    total = 0.0
    for i in range(len(action)):
        target = sum(gamma**k * r for k, r in enumerate(rewards[i]))
        if not terminated[i]:
            best = max(range(len(next_q_online[i])), key=lambda a: next_q_online[i][a])
            target += gamma ** len(rewards[i]) * next_q[i][best]
        delta_i = q[i][action[i]] - target
        inside = delta is None or abs(delta_i) <= delta
        total += weight[i] * (delta_i**2 / 2 if inside else delta * (abs(delta_i) - delta / 2))
    return total / len(action)


@pytest.mark.parametrize("delta", [None, 0.5, 1.0])
def test_loss_is_the_papers_formula(delta: float | None) -> None:
    rng = np.random.default_rng(7)
    size, actions, gamma = 40, 3, 0.9
    q, next_q, next_q_online = rng.normal(0, 2, (3, size, actions))
    action, weight = rng.integers(0, actions, size), rng.random(size)
    rewards = [list(rng.normal(size=rng.integers(1, 4))) for _ in range(size)]
    terminated = rng.random(size) < 0.3
    expected = slow_loss(q, next_q, next_q_online, action, rewards, gamma, terminated, weight, delta)
    n_step = [sum(gamma**k * r for k, r in enumerate(row)) for row in rewards]
    discount = [0.0 if end else gamma ** len(row) for row, end in zip(rewards, terminated, strict=True)]
    best = torch.tensor(next_q_online).argmax(1, keepdim=True)
    batch = staged(action, n_step, discount, weight / size)
    ours = dqn_loss(torch.tensor(q), torch.tensor(next_q), best, batch, delta, bound_targets=False)
    assert ours.loss.item() == pytest.approx(expected, rel=1e-12)


# --- the update ---


def linear_core(**options: Any) -> QLearningUpdate:
    """One hidden unit that passes positive inputs through, two actions: Q(x) = [x, 2 x + 1], target [3 x, x]."""
    spec = EnvSpec("hand", (1,), "float32", DiscreteAction(2))
    options = {"bound_targets": False} | options
    core = DQN(hidden_sizes=(1,), batch_size=2, n_step=1, **options).make_updater(spec, "cpu", 0)
    one, zero = torch.ones(1, 1), torch.zeros(1)
    shared = {"0.weight": one, "0.bias": zero}
    online = {**shared, "1.weight": torch.tensor([[1.0], [2.0]]), "1.bias": torch.tensor([0.0, 1.0])}
    target = {**shared, "1.weight": torch.tensor([[3.0], [1.0]]), "1.bias": torch.zeros(2)}
    core.load_state_dict({**core.state_dict(), "online": online, "target": target})
    return core


def hand_batch() -> Batch:
    batch = Batch.allocate(2, EnvSpec("hand", (1,), "float32", DiscreteAction(2)))
    batch.obs[:, 0], batch.next_obs[:, 0] = [1.0, 2.0], [2.0, 4.0]
    batch.action[:], batch.reward[:] = [0, 1], [0.5, -1.0]
    batch.discount[:], batch.weight[:] = [0.5, 0.0], [1.0, 0.25]
    return batch


def test_bootstrapped_values_are_clipped_to_what_transitions_allow() -> None:
    core = linear_core(double=True, max_grad_norm=None, bound_targets=True)
    priorities = core.update(hand_batch()).priorities
    # reward / (1 - discount) is 0.5 / 0.5 = 1 and -1 / 1: so 1 in place of the target's 2, y = 0.5 + 0.5 * 1 = 1
    assert priorities is not None and priorities.tolist() == [0.0, 6.0]
    metrics = core.metrics()
    assert (metrics["train/value_low"], metrics["train/value_high"]) == (-1.0, 1.0)


def test_bounds_are_part_of_the_state() -> None:
    core, other = linear_core(bound_targets=True), linear_core(bound_targets=True)
    core.update(hand_batch())
    other.load_state_dict(core.state_dict())
    batch = hand_batch()
    batch.reward[:] = 0.0
    first, second = core.update(batch).priorities, other.update(batch).priorities
    assert first is not None and second is not None and first.tolist() == second.tolist()
    assert other.metrics()["train/value_high"] == 1.0


def test_double_update_by_hand() -> None:
    core = linear_core(double=True, max_grad_norm=None)
    priorities = core.update(hand_batch()).priorities
    # next_obs 2: online says [2, 5], so action 1, of which the target says 2: y = 0.5 + 0.5 * 2; td = 1 - 1.5
    # terminated: y = -1; td = (2 * 2 + 1) - -1
    assert priorities is not None and priorities.tolist() == [0.5, 6.0]
    # Huber with delta 1: (1 * 0.125 + 0.25 * 5.5) / 2
    assert core.metrics()["train/loss"] == pytest.approx((0.125 + 1.375) / 2)
    assert core.metrics()["train/q_mean"] == pytest.approx((1 + 3 + 2 + 5) / 4)
    assert core.metrics()["train/q_max"] == 5.0


def test_single_update_by_hand() -> None:
    core = linear_core(double=False, huber_delta=None)
    priorities = core.update(hand_batch()).priorities
    # the target's best at next_obs 2 is 6: y = 0.5 + 0.5 * 6; td = 1 - 3.5
    assert priorities is not None and priorities.tolist() == [2.5, 6.0]
    assert core.metrics()["train/loss"] == pytest.approx((2.5**2 / 2 + 0.25 * 6**2 / 2) / 2)


def test_gradient_and_first_adam_step_by_hand() -> None:
    core = linear_core(double=True, max_grad_norm=None, learning_rate=0.01)
    before = core.state_dict()["online"]
    core.update(hand_batch())
    after = core.state_dict()["online"]
    # slopes -0.5 and 1 (clipped), times weight / 2: -0.25 at action 0 (hidden 1), 0.125 at 1 (hidden 2)
    slopes = [(-0.25 * 1, -0.25), (0.125 * 2, 0.125)]
    assert core.metrics()["train/grad_norm"] == pytest.approx(
        # ... and below the head: -0.25 * 1 and 0.125 * 2, times inputs 1 and 2; their sum, the bias, is 0
        np.sqrt(sum(w * w + b * b for w, b in slopes) + (-0.25 * 1 + 0.25 * 2) ** 2 + 0.0)
    )
    # the first step of Adam is the learning rate against the gradient's sign
    moved = after["1.weight"] - before["1.weight"]
    torch.testing.assert_close(moved, torch.tensor([[0.01], [-0.01]]), rtol=1e-4, atol=1e-6)


# --- the manual path against autograd ---


class Reference:
    """Reference implementation with modules, autograd and torch's Adam and clipping."""

    def __init__(self, core: QLearningUpdate) -> None:
        self.config = core.config
        self.online, self.target = (self._modules(core.state_dict()[name]) for name in ("online", "target"))
        self.parameters = list(self.online.parameters())
        self.adam = torch.optim.Adam(self.parameters, lr=self.config.learning_rate, eps=self.config.adam_eps)
        self.updates = 0

    def _modules(self, named: dict[str, torch.Tensor]) -> nn.ModuleList:
        count = len(named) // 2
        layers = []
        for i in range(count):
            outputs, inputs = named[f"{i}.weight"].shape
            layer = nn.Linear(inputs, outputs)
            layer.load_state_dict({"weight": named[f"{i}.weight"], "bias": named[f"{i}.bias"]})
            layers.append(layer)
        if not self.config.dueling:
            return nn.ModuleList(layers)
        half, head = self.config.hidden_sizes[-1], layers.pop()
        streams = []
        for rows, columns in ((slice(0, 1), slice(0, half)), (slice(1, None), slice(half, None))):
            stream = nn.Linear(half, head.weight[rows].shape[0])
            stream.load_state_dict({"weight": head.weight[rows, columns], "bias": head.bias[rows]})
            streams.append(stream)
        return nn.ModuleList([*layers, *streams])

    def q(self, net: nn.ModuleList, x: torch.Tensor) -> torch.Tensor:
        if not self.config.dueling:
            for layer in list(net)[:-1]:
                x = F.relu(layer(x))
            return net[-1](x)
        for layer in list(net)[:-2]:
            x = F.relu(layer(x))
        value, advantage = x.chunk(2, dim=1)
        v, a = net[-2](value), net[-1](advantage)
        return v + a - a.mean(1, keepdim=True)

    def update(self, batch: Batch) -> torch.Tensor:
        config = self.config
        obs, next_obs, action = map(torch.from_numpy, (batch.obs, batch.next_obs, batch.action))
        reward, discount, weight = map(torch.from_numpy, (batch.reward, batch.discount, batch.weight))
        with torch.no_grad():
            next_q = self.q(self.target, next_obs)
            best = (self.q(self.online, next_obs) if config.double else next_q).argmax(1, keepdim=True)
            y = reward + discount * next_q.gather(1, best)[:, 0]
        q = self.q(self.online, obs).gather(1, action[:, None])[:, 0]
        if config.huber_delta is None:
            loss = F.mse_loss(q, y, reduction="none") / 2
        else:
            loss = F.huber_loss(q, y, reduction="none", delta=config.huber_delta)
        self.adam.zero_grad()
        (weight * loss).mean().backward()
        if config.max_grad_norm is not None:
            nn.utils.clip_grad_norm_(self.parameters, config.max_grad_norm)
        self.adam.step()
        self.updates += 1
        self._move_target()
        return (q - y).abs().detach()

    @torch.no_grad()
    def _move_target(self) -> None:
        config = self.config
        if config.target_update == "hard" and self.updates % config.target_update_interval:
            return
        tau = config.tau if config.target_update == "soft" else 1.0
        for slow, fast in zip(self.target.parameters(), self.parameters, strict=True):
            slow.lerp_(fast, tau)


@pytest.mark.parametrize(
    ("double", "is_dueling", "delta", "norm", "target"),
    list(itertools.product((False, True), (False, True), (None, 0.7), (None, 0.05), ("soft", "hard"))),
)
def test_updates_are_those_of_autograd(
    double: bool, is_dueling: bool, delta: float | None, norm: float | None, target: Any
) -> None:
    config = DQN(
        hidden_sizes=(9, 8),
        double=double,
        dueling=is_dueling,
        huber_delta=delta,
        max_grad_norm=norm,
        target_update=target,
        target_update_interval=3,
        tau=0.1,
        learning_rate=1e-3,
        adam_eps=1e-4,  # keeps rounding of vanishing gradients out of the comparison
    )
    core = config.make_updater(SPEC, "cpu", 3)
    reference = Reference(core)
    for seed in range(10):
        batch = filled_batch(seed=seed)
        expected, priorities = reference.update(batch), core.update(batch).priorities
        assert priorities is not None
        torch.testing.assert_close(torch.from_numpy(priorities), expected, rtol=1e-4, atol=1e-5)
        if seed == 5:
            core.kernels = False  # the formula goes on where the kernel was
    again = Reference(core)  # reads online and target of the core
    for ours, theirs in ((again.online, reference.online), (again.target, reference.target)):
        for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)


def test_dueling_streams_never_mix() -> None:
    core = DQN(dueling=True, hidden_sizes=(6, 5)).make_updater(SPEC, "cpu", 0)
    for seed in range(5):
        core.update(filled_batch(seed=seed))
    for name in ("online", "target"):
        head = core.state_dict()[name]["2.weight"]
        assert head.shape == (1 + 3, 5 + 5)
        assert (head[0, 5:] == 0).all() and (head[1:, :5] == 0).all()
        assert (head[0, :5] != 0).all() and (head[1:, 5:] != 0).all()


@pytest.mark.parametrize("is_dueling", [False, True])
def test_policy_and_core_agree_on_every_value(is_dueling: bool) -> None:
    config = DQN(dueling=is_dueling, hidden_sizes=(32, 16))
    core, policy = config.make_updater(SPEC, "cpu", 0), config.make_policy(SPEC)
    for seed in range(20):
        core.update(filled_batch(seed=seed))
    policy.load_weights(written(core))
    obs = np.random.default_rng(1).normal(size=(200, 4)).astype(np.float32)
    reference = Reference(core)
    expected = reference.q(reference.online, torch.from_numpy(obs)).detach().numpy()
    np.testing.assert_allclose(policy.q_values(obs), expected, rtol=1e-4, atol=1e-5)
    assert (policy.greedy(obs) == expected.argmax(axis=1)).all()


# --- options ---


def test_linear_learning_rate() -> None:
    core = DQN(
        learning_rate=0.4, learning_rate_schedule="linear", learning_rate_final=0.2, learning_rate_updates=4
    ).make_updater(SPEC, "cpu", 0)
    seen = [core.metrics()["train/learning_rate"]]
    for _ in range(6):
        core.update(filled_batch())
        seen.append(core.metrics()["train/learning_rate"])
    assert seen == pytest.approx([0.4, 0.4, 0.35, 0.3, 0.25, 0.2, 0.2]), "the rate of the last update"


@pytest.mark.parametrize(
    ("schedule", "rates"), [("linear", [0.4, 0.35, 0.3, 0.22, 0.2]), ("cooldown", [0.4, 0.4, 0.4, 0.3, 0.2])]
)
def test_a_falling_learning_rate_without_a_number_of_updates_falls_over_the_run(
    schedule: Any, rates: list[float]
) -> None:
    record = DQN(learning_rate=0.4, learning_rate_schedule=schedule, learning_rate_final=0.2)
    core = record.make_updater(SPEC, "cpu", 0)
    batch, seen = filled_batch(), []
    for batch.progress in (0.0, 0.25, 0.5, 0.9, 1.0):
        core.update(batch)
        seen.append(core.metrics()["train/learning_rate"])
    assert seen == pytest.approx(rates)


def test_a_cooldown_over_a_number_of_updates_falls_over_the_last_fifth_of_them() -> None:
    record = DQN(learning_rate=0.4, learning_rate_schedule="cooldown", learning_rate_updates=10)
    rates = [record.learning_rate_at(updates, 0.0) for updates in (0, 8, 9, 10, 11)]
    assert rates == pytest.approx([0.4, 0.4, 0.2, 0.0, 0.0])


def test_linear_learning_rate_reaches_zero_and_stops_learning() -> None:
    core = DQN(learning_rate_schedule="linear", learning_rate_updates=2).make_updater(SPEC, "cpu", 0)
    weights = [written(core)]
    for _ in range(4):
        core.update(filled_batch())
        weights.append(written(core))
    moved = [bool((a != b).any()) for a, b in itertools.pairwise(weights)]
    assert moved == [True, True, False, False]


def test_resumed_run_keeps_its_place_in_the_schedules() -> None:
    config = DQN(
        learning_rate_schedule="linear",
        learning_rate_updates=8,
        target_update="hard",
        target_update_interval=3,
    )
    core, other = config.make_updater(SPEC, "cpu", 0), config.make_updater(SPEC, "cpu", 1)
    for seed in range(2):
        core.update(filled_batch(seed=seed))
    other.load_state_dict(core.state_dict())
    for seed in range(2, 6):
        core.update(filled_batch(seed=seed))
        other.update(filled_batch(seed=seed))
        assert core.metrics() == other.metrics()
        assert (written(core) == written(other)).all()
        for name, tensor in core.state_dict()["target"].items():
            assert torch.equal(tensor, other.state_dict()["target"][name])


def test_uniform_replay_has_no_priorities() -> None:
    core = DQN(prioritized=False).make_updater(SPEC, "cpu", 0)
    assert core.update(filled_batch()).priorities is None


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"n_step": 0}, "n_step must be from 1 to 255, got 0"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"batch_size": "many"}, "batch_size must be a whole number, got 'many'"),
        ({"learning_rate": 0.0}, "learning_rate must be greater than 0, got 0.0"),
        (
            {"learning_rate": float("nan")},
            "learning_rate must be a number or a function of progress, got nan",
        ),
        ({"learning_rate_final": -1.0}, "learning_rate_final must be at least 0, got -1.0"),
        ({"learning_rate_updates": 0}, "learning_rate_updates must be at least 1, got 0"),
        ({"gamma": 1.5}, "gamma must be from 0 to 1, got 1.5"),
        ({"tau": 0.0}, "tau must be greater than 0 and at most 1, got 0.0"),
        ({"tau": 1.1}, "tau must be greater than 0 and at most 1, got 1.1"),
        ({"n_step": 300}, "n_step must be from 1 to 255, got 300"),
        ({"alpha": -0.1}, "alpha must be from 0 to 1, got -0.1"),
        ({"alpha": 2}, "alpha must be from 0 to 1, got 2.0"),
        ({"beta_end": 2.0}, "beta_end must be from 0 to 1, got 2.0"),
        ({"target_update": "medium"}, "target_update must be one of soft, hard, got 'medium'"),
        ({"target_update_interval": 0}, "target_update_interval must be at least 1, got 0"),
        ({"hidden_sizes": ()}, "hidden_sizes must name at least one width of at least 1, got ()"),
        ({"hidden_sizes": (64, 0)}, "hidden_sizes must name at least one width of at least 1, got (64, 0)"),
        ({"max_grad_norm": 0.0}, "max_grad_norm must be greater than 0, got 0.0"),
        ({"huber_delta": -1.0}, "huber_delta must be greater than 0, got -1.0"),
        ({"samples_per_insert": 0.0}, "samples_per_insert must be greater than 0 and finite, got 0.0"),
        ({"max_staleness": -1}, "max_staleness must be at least 0, got -1"),
        ({"staleness_rate": -1.0}, "staleness_rate must be at least 0, got -1.0"),
        ({"exploration_final": 1.01}, "exploration_final must be from 0 to 1, got 1.01"),
        ({"exploration_repeat": 0}, "exploration_repeat must be at least 1, got 0"),
        ({"exploration_steps": -1}, "exploration_steps must be at least 0, got -1"),
        (
            {"learning_starts": 2000, "replay_capacity": 1999},
            "learning_starts must be at most replay_capacity (1999), got 2000",
        ),
    ],
)
def test_values_out_of_range(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        DQN(**options)


def test_values_at_the_edge_are_taken() -> None:
    DQN(gamma=1.0, tau=1.0, alpha=0.0, beta_start=0.0, exploration_steps=0, max_staleness=0, n_step=1)
    DQN(alpha=1.0, n_step=255)
    DQN(max_grad_norm=None, huber_delta=None, samples_per_insert=None, max_staleness=None)


@pytest.mark.parametrize(
    "action", [BoxAction((-1.0,), (1.0,), (1,)), MultiDiscreteAction((2, 3))], ids=["box", "multidiscrete"]
)
def test_other_action_spaces_do_not_fit(action: Any) -> None:
    spec = EnvSpec("Pendulum-v1", (3,), "float32", action)
    algorithm = DQN()
    for call in (
        lambda: algorithm.check(spec),
        lambda: algorithm.make_policy(spec),
        lambda: algorithm.make_updater(spec, "cpu", 0),
    ):
        with pytest.raises(SpacesDoNotFit) as caught:
            call()
        text = str(caught.value)
        assert text.startswith("[ASYNC005] dqn needs a discrete action space, and Pendulum-v1 has")
        assert type(action).__name__.removesuffix("Action") in text and "algorithms that fit" in text
    algorithm.check(SPEC)


@pytest.mark.parametrize("env_name", sorted(load_presets("dqn")))
def test_presets_are_valid_and_can_be_overridden(env_name: str) -> None:
    preset = load_presets("dqn")[env_name]
    made = DQN.preset(env_name)
    assert made == DQN(**preset.algorithm) and made != DQN()
    assert DQN.preset(env_name, gamma=0.5, n_step=7) == dataclasses.replace(made, gamma=0.5, n_step=7)
    TrainerConfig(env=env_name, algo="dqn", **preset.run)


def test_a_network_of_ones_own_comes_without_the_presets_heads() -> None:
    made = DQN.preset("CartPole-v1", network=torch.nn.Linear)
    tuned = DQN.preset("CartPole-v1")
    assert tuned.dueling and not made.dueling and made.network is torch.nn.Linear
    assert made == dataclasses.replace(tuned, dueling=False, network=torch.nn.Linear)
    with pytest.raises(ValueError, match="dueling must be off where network is given"):
        DQN.preset("CartPole-v1", network=torch.nn.Linear, dueling=True)


def test_a_family_of_environments_has_a_preset_and_its_members_their_own_before_it() -> None:
    assert (
        DQN.preset("ALE/Asterix-v5")
        == DQN(**load_presets("dqn")["ALE/*"].algorithm)
        == DQN.preset("ALE/Pong-v5")
    )
    assert PPO.preset("ALE/Pong-v5") == PPO(**load_presets("ppo")["ALE/Pong-v5"].algorithm)
    assert PPO.preset("ALE/Asterix-v5") == PPO(**load_presets("ppo")["ALE/*"].algorithm) != PPO()
    assert DQN.preset_options("ALE/Asterix-v5") == load_presets("dqn")["ALE/*"].run
    assert PPO.preset("Pong-v4") == PPO()


def test_the_module_in_front_of_an_id_does_not_change_its_preset() -> None:
    own = load_presets("ppo")["MiniGrid-DoorKey-5x5-v0"].run
    assert PPO.preset_options("minigrid:MiniGrid-DoorKey-5x5-v0") == own != {}
    assert PPO.preset("ale_py:ALE/Pong-v5") == PPO.preset("ALE/Pong-v5") != PPO()


def test_unknown_environment_has_the_defaults() -> None:
    assert DQN.preset("Nowhere-v0", gamma=0.5) == DQN(gamma=0.5)
    assert {"CartPole-v1", "Acrobot-v1", "LunarLander-v3", "MountainCar-v0"} <= set(load_presets("dqn"))


def test_foreign_state_names_what_does_not_fit() -> None:
    core = DQN(hidden_sizes=(8,)).make_updater(SPEC, "cpu", 0)
    state = dict(core.state_dict())
    wrong = {**state, "optimizer": {**state["optimizer"], "exp_avg": torch.zeros(3)}}
    with pytest.raises(ValueError, match=r"optimizer\.exp_avg must have shape \(67,\), got \(3,\)"):
        core.load_state_dict(wrong)
    with pytest.raises(ValueError, match="must hold"):
        core.load_state_dict({"online": {}})


@pytest.mark.parametrize("is_dueling", [False, True])
def test_update_never_looks_at_a_value(is_dueling: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Condition of a CUDA graph: on the meta device, which has no values, everything must run."""
    monkeypatch.setattr(torch, "_fused_adam_", lambda *_, **__: None)  # has no meta kernel
    core = DQN(dueling=is_dueling, hidden_sizes=(8, 8), prioritized=False).make_updater(SPEC, "meta", 0)
    for _ in range(2):
        core.update(filled_batch())
    with pytest.raises(RuntimeError, match="meta"):
        core.metrics()  # does look


# --- a network of the user's own ---


def module(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 16), nn.Tanh(), nn.Linear(16, outputs))


@pytest.mark.parametrize("name", SMALL)
def test_a_users_network_learns_and_acts(name: str) -> None:
    config = make(name, network=module, tau=1e-6, learning_rate=1e-2)
    core, policy = config.make_updater(SPEC, "cpu", 0), config.make_policy(SPEC)
    batch = filled_batch()
    core.update(batch)
    first = core.metrics()["train/loss"]
    for _ in range(200):
        core.update(batch)
    assert core.metrics()["train/loss"] < 0.5 * first
    policy.load_weights(written(core))
    np.testing.assert_allclose(
        policy.q_values(batch.obs), core.action_values(batch.obs), rtol=1e-4, atol=1e-5
    )
    other = config.make_updater(SPEC, "cpu", 1)
    other.load_state_dict(core.state_dict())
    core.update(batch), other.update(batch)
    assert (written(core) == written(other)).all()


def test_a_users_network_is_the_perceptron_of_the_same_weights() -> None:
    def perceptron(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(nn.Linear(inputs, 9), nn.ReLU(), nn.Linear(9, outputs))

    plain, own = (
        DQN(hidden_sizes=(9,), network=net).make_updater(SPEC, "cpu", 0) for net in (None, perceptron)
    )
    layers = {"0": "0", "1": "2"}
    named = {
        part: {f"{layers[name[0]]}{name[1:]}": value for name, value in plain.state_dict()[part].items()}
        for part in ("online", "target")
    }
    own.load_state_dict({**own.state_dict(), **named})
    for seed in range(5):
        ours, theirs = (core.update(filled_batch(seed=seed)).priorities for core in (own, plain))
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("option", ["dueling", "noisy"])
def test_a_users_network_has_no_dueling_head_and_no_noise(option: str) -> None:
    with pytest.raises(ValueError, match=f"^{option} must be off where network is given, got True$"):
        DQN(network=module, **{option: True})


def test_making_a_record_does_not_import_torch() -> None:
    code = "import sys; from asyncrl import algorithms; algorithms.DQN(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE_SECONDS)


@pytest.mark.parametrize(
    ("total", "exploration", "capacity"),
    [
        (20_000, 10_000, 100_000),
        (100_000, 10_000, 100_000),
        (250_000, 25_000, 250_000),
        (10_000_000, 1_000_000, 1_000_000),
        (None, 10_000, 100_000),
    ],
)
def test_exploration_and_replay_follow_from_the_steps_of_the_run(
    total: int | None, exploration: int, capacity: int
) -> None:
    config = TrainerConfig(env="any", algo="dqn", total_steps=total)
    chosen = DQN().for_run(config, EnvSpec("any", (4,), "float32", DiscreteAction(2)))
    assert (chosen.exploration_steps, chosen.replay_capacity) == (exploration, capacity)


def test_a_replay_of_large_observations_is_not_chosen_larger_than_half_a_gibibyte() -> None:
    config = TrainerConfig(env="any", algo="dqn", total_steps=2_000_000)

    def capacity(*shape: int, **options: Any) -> int | None:
        spec = EnvSpec("any", shape, "uint8", DiscreteAction(2))
        return DQN(**options).for_run(config, spec).replay_capacity

    assert capacity(42, 42) == 2**29 // 42**2 == 304_348
    assert capacity(84, 84) == 100_000, "as many at least"
    assert capacity(84, 84, replay_capacity=300_000) == 300_000
    assert capacity(84, 84, learning_starts=150_000) == 150_000
