"""VDN and QMIX: mixers and loss against hand-worked numbers, the update against modules and autograd in float64, and
what the papers say of matrix games."""

from __future__ import annotations

import dataclasses
import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from q_rig import column
from several_agents import Together, TwoStep
from torch import nn

from asyncrl import QMIX, VDN, Trainer
from asyncrl.algorithms.joint_staging import JointStage
from asyncrl.algorithms.mixers import MonotoneMixer, SumMixer
from asyncrl.algorithms.reward_factor import RewardFactor
from asyncrl.algorithms.value_bounds import ValueBounds
from asyncrl.algorithms.value_decomposition import team_loss
from asyncrl.errors import SpacesDoNotFit
from asyncrl.interfaces import Agent, DiscreteAction, EnvSpec, JointBatch, Leaf

BOTH = pytest.mark.parametrize("record", [VDN, QMIX])
SPEC = EnvSpec("team", (4,), "float32", DiscreteAction(3), agents=tuple(map(Agent, "abc")))
MASKED = EnvSpec(
    "masked",
    (5,),
    "float32",
    DiscreteAction(3),
    leaves=(Leaf(("action_mask",), "values", (3,)), Leaf(("observation",), "values", (2,))),
    agents=SPEC.agents,
)


# --- mixers ---


def test_the_sum_ignores_the_state() -> None:
    q = torch.tensor([[1.0, -2.0, 4.0], [0.5, 0.0, -1.0]])
    assert SumMixer()(q, torch.ones(2, 7)).tolist() == [[3.0], [-0.5]]


def test_monotone_mixer_by_hand() -> None:
    """Two agents, a state of one value and two hidden units; every hypernetwork is linear in the state."""
    mixer = MonotoneMixer(2, 1, 2, None)
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.zero_()
        mixer.w_1.weight[:, 0] = torch.tensor([1.0, -2.0, 3.0, 0.5])  # [agent, unit]: |s| (1, 2; 3, 0.5)
        mixer.b_1.weight[:, 0] = torch.tensor([-4.0, 1.0])
        mixer.w_2.weight[:, 0], mixer.w_2.bias[:] = torch.tensor([-1.0, 0.0]), torch.tensor([0.0, -5.0])
        mixer.v[0].weight[:, 0], mixer.v[2].weight[:] = torch.tensor([1.0, -1.0]), torch.tensor([10.0, 100.0])
    q = torch.tensor([[2.0, 1.0], [0.0, 1.0]])
    # s = 1: h = ELU(2 + 3 - 4, 4 + 0.5 + 1) = (1, 5.5); 1 h_0 + 5 h_1 + V, V = 10
    # s = 2: h = ELU(0 + 6 - 8, 0 + 1 + 2) = (e^-2 - 1, 3); 2 h_0 + 5 h_1 + V, V = 20
    wanted = [[1.0 + 27.5 + 10.0], [2 * (np.exp(-2.0) - 1.0) + 15.0 + 20.0]]
    np.testing.assert_allclose(mixer(q, torch.tensor([[1.0], [2.0]])).detach(), wanted, rtol=1e-6)


def partial_derivatives(mixer: nn.Module, seed: int, agents: int, state_size: int) -> torch.Tensor:
    """dQ_tot / dQ_a `[200, agents]` at random values and states, by autograd."""
    generator = torch.Generator().manual_seed(seed)
    q = (5 * torch.randn(200, agents, generator=generator)).requires_grad_()
    state = 3 * torch.randn(200, state_size, generator=generator)
    (found,) = torch.autograd.grad(mixer(q, state).sum(), q)
    return found


@pytest.mark.parametrize("hypernet_size", [None, 16])
@pytest.mark.parametrize("agents", [2, 5])
def test_the_mixer_is_monotone(agents: int, hypernet_size: int | None) -> None:
    """Rashid et al. 2018, eq. 5, and every agent counts somewhere, by amounts that depend on the state."""
    torch.manual_seed(0)
    mixer = MonotoneMixer(agents, 6, 8, hypernet_size)
    for seed in range(5):
        found = partial_derivatives(mixer, seed, agents, 6)
        assert (found >= 0).all() and (found > 0).any(dim=0).all()
        assert (found.std(dim=0) > 0.01).all()


def test_a_mixer_without_absolute_values_is_not_monotone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control of the test above."""
    torch.manual_seed(0)
    mixer = MonotoneMixer(2, 6, 8, 16)
    monkeypatch.setattr(torch.Tensor, "abs", lambda tensor: tensor)
    assert (partial_derivatives(mixer, 0, 2, 6) < 0).any()


@BOTH
def test_the_best_joint_action_is_that_of_every_agent(record: Any) -> None:
    """Rashid et al. 2018, eq. 4, by trying every joint action."""
    core = record(hidden_sizes=(16,)).make_updater(SPEC, "cpu", 3)
    obs = np.random.default_rng(0).normal(size=(50, 3, 4)).astype(np.float32)
    greedy = core.action_values(obs.reshape(-1, 4)).argmax(axis=1).reshape(50, 3)
    values = [
        core.joint_values(obs, np.tile(np.array(joint), (50, 1)))
        for joint in itertools.product(range(3), repeat=3)
    ]
    np.testing.assert_allclose(core.joint_values(obs, greedy), np.max(values, axis=0), rtol=1e-5)


# --- the loss and its data ---


def test_loss_by_hand() -> None:
    batch = SimpleNamespace(
        reward=column(0.5, 10.0, 1.0),
        discount=column(0.25, 0.0, 1.0),
        weight=column(1.0, 0.5, 0.25),
        low=torch.tensor(-2.0).double(),
        high=torch.tensor(4.0).double(),
    )
    q_tot, next_q_tot = column(2.0, 3.0, 6.0), column(8.0, 8.0, 0.0)
    # 2 - (0.5 + 0.25 * 8) = -0.5; no agent goes on: 3 - 10 = -7; 6 - (1 + 0) = 5
    result: Any = team_loss(q_tot, next_q_tot, batch, huber_delta=1.0, bound_targets=False)  # type: ignore[arg-type]
    assert result.priorities[:, 0].tolist() == [-0.5, -7.0, 5.0]
    assert result.loss.item() == 0.125 + 0.5 * 6.5 + 0.25 * 4.5
    result = team_loss(q_tot, next_q_tot, batch, huber_delta=None, bound_targets=True)  # type: ignore[arg-type]
    assert result.priorities[:, 0].tolist() == [0.5, -7.0, 5.0], "8 is clipped to 4"
    assert result.loss.item() == 0.125 + 0.5 * 24.5 + 0.25 * 12.5


def test_team_columns_by_hand() -> None:
    """Waiting agents count for nothing; the discount is that of the environment's steps, and 0 once nobody goes on."""
    stage = JointStage(4, SPEC, torch.device("cpu"), RewardFactor(2.0), ValueBounds(), None)
    batch = JointBatch.allocate(4, SPEC)
    batch.obs[:], batch.next_obs[:] = np.arange(48).reshape(4, 3, 4), -np.arange(48).reshape(4, 3, 4)
    batch.action[:] = np.arange(12).reshape(4, 3) % 3
    batch.trained[:] = [[1, 1, 1], [1, 0, 1], [1, 1, 0], [0, 1, 0]]
    batch.reward[:] = [[1, 2, 4], [8, 0, 16], [32, 64, 0], [0, 0.5, 0]]
    # all go on; one truncated earlier than the others go on; one terminated, one goes on; the last terminated
    batch.discount[:] = [[0.25, 0.25, 0.25], [0.5, 0, 0.25], [0, 0.25, 0], [0, 0, 0]]
    batch.weight[:] = [1, 0.5, 0.25, 0]
    stage.stage(batch)
    assert stage.reward[:, 0].tolist() == [14, 48, 192, 1]
    assert stage.discount[:, 0].tolist() == [0.25, 0.25, 0.25, 0]
    assert stage.weight[:, 0].tolist() == [0.25, 0.125, 0.0625, 0]
    assert stage.acts.tolist() == batch.trained.tolist()
    assert stage.goes_on.tolist() == [[1, 1, 1], [1, 0, 1], [0, 1, 0], [0, 0, 0]]
    assert stage.state.tolist() == batch.obs.reshape(4, 12).tolist()
    assert stage.next_state.tolist() == batch.next_obs.reshape(4, 12).tolist()
    assert stage.action[:, 0].tolist() == batch.action.reshape(-1).tolist()
    assert (stage.low.item(), stage.high.item()) == (0.0, 192 / 0.75)


# --- the update ---


def random_batch(spec: EnvSpec, size: int, seed: int) -> JointBatch:
    rng = np.random.default_rng(seed)
    batch = JointBatch.allocate(size, spec)
    batch.obs[:], batch.next_obs[:] = rng.normal(size=(2, *batch.obs.shape))
    batch.action[:] = rng.integers(0, 3, batch.action.shape)
    batch.trained[:] = rng.random(batch.trained.shape) < 0.7
    batch.trained[:, 1] = True
    batch.reward[:] = rng.normal(0, 2, batch.reward.shape) * batch.trained
    batch.discount[:] = np.where(rng.random(batch.discount.shape) < 0.3, 0.0, 0.9) * batch.trained
    batch.weight[:] = rng.random(size)
    return batch


class Twin(nn.Module):
    """Agents' network and mixer from the papers' formulas, float64, one agent and one item after the other."""

    def __init__(self, core: Any, which: str) -> None:
        super().__init__()
        state = core.state_dict()
        own, mixing = state[which], state["mixer" if which == "online" else "target_mixer"]
        self.network = {name: nn.Parameter(value.double()) for name, value in own.items()}
        self.mixing = {name: nn.Parameter(value.double()) for name, value in mixing.items()}

    def q(self, obs: torch.Tensor) -> torch.Tensor:
        """Action values of one observation."""
        hidden = torch.relu(self.network["0.weight"] @ obs + self.network["0.bias"])
        return self.network["1.weight"] @ hidden + self.network["1.bias"]

    def mix(self, values: list[torch.Tensor], state: torch.Tensor) -> torch.Tensor:
        m = self.mixing
        if not m:
            return sum(values, torch.zeros((), dtype=torch.float64))

        def hypernet(name: str) -> torch.Tensor:
            hidden = torch.relu(m[f"{name}.0.weight"] @ state + m[f"{name}.0.bias"])
            return m[f"{name}.2.weight"] @ hidden + m[f"{name}.2.bias"]

        size = m["b_1.bias"].numel()
        first, second = hypernet("w_1").abs(), hypernet("w_2").abs()
        hidden = m["b_1.weight"] @ state + m["b_1.bias"]
        for a, value in enumerate(values):
            hidden = hidden + value * first[a * size : (a + 1) * size]
        hidden = torch.where(hidden > 0, hidden, torch.exp(hidden) - 1)
        return (hidden * second).sum() + hypernet("v")[0]


def slow_loss(config: Any, online: Twin, target: Twin, batch: JointBatch) -> torch.Tensor:
    """Sum of the weighted squared (or Huber) joint errors, divided by B."""
    total = torch.zeros((), dtype=torch.float64)
    nothing = torch.zeros((), dtype=torch.float64)
    for i in range(batch.size):
        obs, next_obs = torch.tensor(batch.obs[i]).double(), torch.tensor(batch.next_obs[i]).double()
        taken, best = [], []
        for a in range(obs.shape[0]):
            acts, goes_on = bool(batch.trained[i, a]), batch.discount[i, a] > 0
            taken.append(online.q(obs[a])[batch.action[i, a]] if acts else nothing)
            chooser = online if config.double else target
            best.append(target.q(next_obs[a])[chooser.q(next_obs[a]).argmax()] if goes_on else nothing)
        discounts = [d for d in batch.discount[i].tolist() if d > 0]
        y = float(batch.reward[i].astype(np.float64).sum()) * (config.reward_scale or 1.0)
        if discounts:
            y += min(discounts) * target.mix(best, next_obs.reshape(-1)).item()
        error = online.mix(taken, obs.reshape(-1)) - y
        delta = config.huber_delta
        inside = delta is None or error.abs() <= delta
        loss = error**2 / 2 if inside else delta * (error.abs() - delta / 2)
        total = total + batch.weight[i].item() * loss
    return total / batch.size


@BOTH
@pytest.mark.parametrize("options", [{}, {"double": False, "huber_delta": None, "reward_scale": 0.5}])
def test_update_is_the_papers_formula(record: Any, options: dict[str, Any]) -> None:
    """Loss and gradient against float64 autograd over slowly written formulas; then Adam and the moving target."""
    settings = {"hidden_sizes": (8,), "max_grad_norm": None, "bound_targets": False, "tau": 0.25, **options}
    if record is QMIX:
        settings |= {"mixing_size": 5, "hypernet_size": 7}
    config = record(**settings)
    core = config.make_updater(SPEC, "cpu", 1)
    for seed in range(3):  # online and target differ
        core.update(random_batch(SPEC, 16, seed))
    batch = random_batch(SPEC, 16, 9)
    online, target = Twin(core, "online"), Twin(core, "target")
    loss = slow_loss(config, online, target, batch)
    parameters = [*online.network.values(), *online.mixing.values()]
    wanted = torch.autograd.grad(loss, parameters)
    before = core._flat.clone(), core._target_flat.clone()
    core.update(batch)
    assert core.metrics()["train/loss"] == pytest.approx(loss.item(), rel=1e-5)
    network = core._online.on(core._gradient)  # a gradient has the network's own names and axes
    mixing = core._mixer.on(
        torch.cat([g.reshape(-1) for g in core._mixer_gradients]) if record is QMIX else torch.empty(0)
    )
    found = {**network.state_dict(), **{f"mixer.{k}": v for k, v in mixing.state_dict().items()}}
    names = [*online.network, *(f"mixer.{name}" for name in online.mixing)]
    for name, gradient in zip(names, wanted, strict=True):
        np.testing.assert_allclose(found[name], gradient, rtol=1e-3, atol=1e-6, err_msg=name)
    moved, followed = core._flat, core._target_flat
    assert (moved != before[0]).float().mean() > 0.5
    torch.testing.assert_close(followed, before[1].lerp(moved, 0.25))


def test_hard_targets_are_copies_of_network_and_mixer() -> None:
    core = QMIX(hidden_sizes=(8,), target_update="hard", target_update_interval=3).make_updater(
        SPEC, "cpu", 1
    )
    first = core._target_flat.clone()
    for update in range(1, 7):
        core.update(random_batch(SPEC, 8, update))
        assert (core._target_flat == core._flat).all() == (update % 3 == 0)
    assert (core._target_flat != first).any()


@BOTH
def test_a_forbidden_action_is_never_bootstrapped(record: Any) -> None:
    """With a mask in the observation: the update bootstraps from the best of the allowed actions of every agent."""
    config = record(hidden_sizes=(8,), double=False, bound_targets=False, huber_delta=None)
    core, batch = config.make_updater(MASKED, "cpu", 0), random_batch(MASKED, 8, 0)
    batch.obs[:, :, :3] = 1.0
    batch.next_obs[:, :, :3] = np.random.default_rng(1).permuted(np.tile([0.0, 1.0, 0.0], (8, 3, 1)), axis=2)
    batch.discount[:], batch.trained[:] = 0.9, True
    allowed = batch.next_obs[:, :, :3].argmax(axis=2)
    wanted = batch.reward.sum(axis=1) + 0.9 * core.joint_values(batch.next_obs, allowed)
    error = core.joint_values(batch.obs, batch.action) - wanted
    core.update(batch)
    loss = (batch.weight * error**2 / 2).mean()
    assert core.metrics()["train/loss"] == pytest.approx(loss, rel=1e-5)


# --- what the papers say ---


def regress(record: Any, payoff: Any, updates: int, **options: Any) -> np.ndarray:
    """Q_tot of every joint action of a game of one step, learned from all of them equally often."""
    payoff = np.array(payoff, np.float32)
    spec = EnvSpec("game", (2,), "float32", DiscreteAction(len(payoff)), agents=(Agent("a"), Agent("b")))
    config = record(hidden_sizes=(32,), huber_delta=None, bound_targets=False, **options)
    joint = np.array(list(np.ndindex(*payoff.shape)))
    core, batch = config.make_updater(spec, "cpu", 0), JointBatch.allocate(len(joint), spec)
    batch.obs[:] = batch.next_obs[:] = np.eye(2)
    batch.action[:], batch.trained[:], batch.weight[:], batch.discount[:] = joint, True, 1.0, 0.0
    batch.reward[:, 0], batch.reward[:, 1] = payoff.reshape(-1), 0.0
    for update in range(updates):
        batch.progress = update / updates
        core.update(batch)
    return np.asarray(core.joint_values(batch.obs, joint).reshape(payoff.shape))


RATES: dict[str, Any] = {"reward_scale": 1.0, "learning_rate": lambda progress: 5e-3 * (1.001 - progress)}
CLIMBING = ((11.0, -30.0, 0.0), (-30.0, 7.0, 6.0), (0.0, 0.0, 5.0))
PENALTY = ((-100.0, 0.0, 10.0), (0.0, 2.0, 0.0), (10.0, 0.0, -100.0))
NOT_MONOTONE = ((8.0, -12.0, -12.0), (-12.0, 0.0, 0.0), (-12.0, 0.0, 0.0))


@pytest.mark.parametrize("payoff", [CLIMBING, PENALTY, NOT_MONOTONE])
def test_vdn_learns_the_best_sum(payoff: Any) -> None:
    """The least-squares sum of a term per agent: means of rows and columns (Sunehag et al. 2018, eq. 3).

    So greedy agents get 5 in the climbing game, 2 in the penalty game, and 0 in that of Son et al. 2019.
    """
    game = np.array(payoff)
    wanted = game.mean(axis=1, keepdims=True) + game.mean(axis=0, keepdims=True) - game.mean()
    found = regress(VDN, payoff, 1_500, **RATES)
    np.testing.assert_allclose(found, wanted, atol=0.05)
    value = {CLIMBING: 5.0, PENALTY: 2.0, NOT_MONOTONE: 0.0}[payoff]
    assert game.reshape(-1)[found.argmax()] == value


def test_qmix_learns_what_the_paper_of_qtran_reports() -> None:
    """Son et al. 2019, table 1: -8 where an agent takes its first action, else 0; so greedy agents get 0, not 8."""
    found = regress(QMIX, NOT_MONOTONE, 1_500, **RATES)
    wanted = np.full((3, 3), -8.0)
    wanted[1:, 1:] = 0.0
    np.testing.assert_allclose(found, wanted, atol=0.3)


@pytest.mark.parametrize(("payoff", "safe"), [(CLIMBING, 5.0), (PENALTY, 2.0)])
def test_qmix_on_games_of_penalties(payoff: Any, safe: float) -> None:
    """From all joint actions alike it takes what is safe, or what is better beside it, and not the best."""
    found = regress(QMIX, payoff, 1_500, **RATES)
    assert safe <= np.array(payoff).reshape(-1)[found.argmax()] < np.max(payoff)


@pytest.mark.parametrize(("record", "wanted"), [(VDN, 7.0), (QMIX, 8.0)])
def test_the_two_step_game(record: Any, wanted: float) -> None:
    """Rashid et al. 2018, section 5.1: with full exploration VDN takes the safe 7, and QMIX finds 8."""
    algorithm = record(
        hidden_sizes=(32,),
        learning_rate=3e-3,
        gamma=0.99,
        exploration_final=1.0,
        learning_starts=200,
        huber_delta=None,
        discipline="lockstep",
        replay_capacity=4_000,
        tau=0.05,
    )
    trainer = Trainer(
        TwoStep, algorithm, agent_id=True, seed=1, num_actors=1, envs_per_actor=8, http="off", eval_episodes=4
    )
    result = trainer.learn(total_steps=8_000)
    assert result.evaluation is not None
    assert result.evaluation.return_mean == wanted and result.evaluation.return_std == 0.0


@BOTH
def test_a_team_learns_what_each_agent_is_for(record: Any) -> None:
    """All agents see the same and their own index; each has an action of its own that is paid (15 is the most)."""
    algorithm = record(
        hidden_sizes=(32,), learning_starts=200, learning_rate=3e-3, exploration_steps=1_500, gamma=0.5
    )
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


# --- what is refused ---


@BOTH
def test_an_environment_of_one_agent_is_refused(record: Any) -> None:
    alone = dataclasses.replace(SPEC, name="Alone-v0", agents=())
    for refused in (record().check, record().make_policy, lambda spec: record().make_updater(spec, "cpu", 0)):
        with pytest.raises(
            SpacesDoNotFit, match=f"{record.name} trains the agents .* at least two, and Alone-v0"
        ) as found:
            refused(alone)
        text = str(found.value)
        assert "dqn" in text and "vdn" not in text.split("algorithms that fit")[1]
        assert "PettingZoo's parallel API" in text


@BOTH
@pytest.mark.parametrize("option", ["dueling", "noisy", "cuda_graph"])
def test_options_of_dqn_that_do_not_apply_are_refused(record: Any, option: str) -> None:
    with pytest.raises(ValueError, match=f"{option} must be off for {record.name}, .*got True"):
        record(**{option: True})


@BOTH
def test_what_needs_single_transitions_is_refused(record: Any) -> None:
    with pytest.raises(ValueError, match="replay_device must be cpu or auto for joint transitions, got cuda"):
        record(replay_device="cuda")
    with pytest.raises(
        ValueError, match="n_sampled_goal must be 0 for joint transitions, which have one goal"
    ):
        record(n_sampled_goal=4)
