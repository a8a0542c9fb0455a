"""VDN and QMIX with recurrent agents: the update against a slow unrolled one, what episodes and waiting agents cut, and
a game of two agents that needs a memory."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from several_agents import Password
from test_contract import filled_joint_sequences
from test_r2d2 import slow_values
from torch import Tensor, nn

from asyncrl import QMIX, VDN, Trainer, load
from asyncrl.algorithms.joint_staging import JointSequenceStage
from asyncrl.algorithms.reward_factor import RewardFactor
from asyncrl.algorithms.value_bounds import ValueBounds
from asyncrl.interfaces import Agent, DiscreteAction, EnvSpec, JointSequenceBatch, Leaf, SequenceShape
from asyncrl.networks.module import ModuleGradient

BOTH = pytest.mark.parametrize("record", [VDN, QMIX])
SPEC = EnvSpec("team", (4,), "float32", DiscreteAction(3), agents=tuple(map(Agent, "abc")))
SMALL: dict[str, Any] = {
    "hidden_sizes": (6,),
    "recurrent_size": 5,
    "sequence_length": 4,
    "burn_in": 3,
    "n_step": 2,
    "max_grad_norm": None,
}


def batch_of(config: Any, spec: EnvSpec, seed: int, size: int = 5, states: int = 0) -> JointSequenceBatch:
    rng, shape = np.random.default_rng(seed), config.sequence_shape
    return filled_joint_sequences(shape, spec, config.extra_fields(spec), rng, size, states)


# --- the update ---


def slow_mix(mixer: nn.Module, q: list[Tensor], state: Tensor) -> Tensor:
    """Q_tot from the papers' formulas, one agent after the other."""
    parts = dict(mixer.named_parameters())
    if not parts:
        return torch.stack(q).sum()

    def hypernet(name: str) -> Tensor:
        hidden = torch.relu(parts[f"{name}.0.weight"] @ state + parts[f"{name}.0.bias"])
        return parts[f"{name}.2.weight"] @ hidden + parts[f"{name}.2.bias"]

    units = parts["b_1.bias"].numel()
    first, second = hypernet("w_1").abs(), hypernet("w_2").abs()
    hidden = parts["b_1.weight"] @ state + parts["b_1.bias"]
    for a, value in enumerate(q):
        hidden = hidden + value * first[a * units : (a + 1) * units]
    hidden = torch.where(hidden > 0, hidden, hidden.clamp(max=0).exp() - 1)
    return (hidden * second).sum() + hypernet("v")[0]


def slow_update(
    config: Any, nets: dict[str, Any], batch: JointSequenceBatch, states: int, reset: bool = True
) -> tuple[list[Tensor], list[float]]:
    """Gradients of agents and mixer, and priorities: sequence by sequence, agent by agent and row by row."""
    loss, priorities, nothing = torch.zeros(()), [], torch.zeros(())
    agents = batch.trained.shape[1]
    begins = batch.begins if reset else np.zeros_like(batch.begins)
    for b in range(batch.size):
        obs = torch.from_numpy(batch.obs[b])
        q, q_minus = (
            [
                slow_values(
                    nets[which],
                    obs[n],
                    begins[b, n],
                    torch.from_numpy(batch.extras["state"][b, n : n + 1]),
                    config.burn_in,
                    stop=True,
                )
                for n in range(agents)
            ]
            for which in ("online", "target")
        )
        deltas = []
        for t in range(config.sequence_length):
            row, acting = config.burn_in + t, [n for n in range(agents) if batch.trained[b, n, t]]
            if not acting:
                continue
            later = [int(batch.bootstrap[b, n, t]) for n in range(agents)]
            taken = [
                q[n][row][0, int(batch.action[b, n, t])] if n in acting else nothing for n in range(agents)
            ]
            goes_on = [n for n in acting if batch.discount[b, n, t] > 0]
            best = []
            for n in range(agents):
                chooser = q if config.double else q_minus
                action = int(chooser[n][later[n]].argmax())
                best.append(q_minus[n][later[n]][0, action].detach() if n in goes_on else nothing)
            if states:
                seen = torch.from_numpy(batch.state[b])
                state, next_state = seen[row], seen[max(later[n] for n in acting)]
            else:
                state = torch.cat([obs[n, row] for n in range(agents)])
                next_state = torch.cat([obs[n, later[n]] for n in range(agents)])
            y = float(batch.reward[b, :, t].sum())
            if goes_on:
                discount = min(float(batch.discount[b, n, t]) for n in goes_on)
                y += discount * slow_mix(nets["target_mixer"], best, next_state).item()
            delta = slow_mix(nets["mixer"], taken, state) - y
            deltas.append(abs(delta.item()))
            loss = loss + float(batch.weight[b]) * nn.functional.huber_loss(delta, torch.zeros(()))
        priorities.append(config.eta * max(deltas) + (1 - config.eta) * sum(deltas) / len(deltas))
    loss = loss / (batch.size * config.sequence_length)
    parameters = [*nets["online"].parameters(), *nets["mixer"].parameters()]
    return list(torch.autograd.grad(loss, parameters)), priorities


def networks_of(core: Any) -> dict[str, Any]:
    """Copies of the modules of an updater."""
    parts = {
        "online": core._online,
        "target": core._target,
        "mixer": core._mixer,
        "target_mixer": core._target_mixer,
    }
    return {name: copy.deepcopy(part.modules[0]) for name, part in parts.items()}


def gradients_of(core: Any) -> list[Tensor]:
    own = ModuleGradient((core._online.modules, core._gradient)).views
    mixing = [
        gradient.view(parameter.shape)
        for gradient, parameter in zip(core._mixer_gradients, core._mixer_parameters, strict=True)
    ]
    return [*own, *mixing]


@BOTH
@pytest.mark.parametrize("kind", ["gru", "lstm"])
@pytest.mark.parametrize(
    "options", [{}, {"double": False, "burn_in": 0}, {"burn_in": 1, "n_step": 4}, {"central_state": "state"}]
)
def test_update_is_the_slow_unrolled_one(record: Any, kind: str, options: dict[str, Any]) -> None:
    states = 2 if "central_state" in options else 0
    if states and record is VDN:
        pytest.skip("the sum sees no state")
    spec = replace(SPEC, state_values=states)
    settings = {**SMALL, "recurrent": kind, "bound_targets": False, "prioritized": True, **options}
    if record is QMIX:
        settings |= {"mixing_size": 5, "hypernet_size": 7}
    config = record(**settings)
    core = config.make_updater(spec, "cpu", 0)
    for seed in range(3):  # so that online and target differ
        core.update(batch_of(config, spec, seed, states=states))
    batch, nets = batch_of(config, spec, 7, states=states), networks_of(core)
    assert (batch.trained.any(axis=1) & ~batch.trained.all(axis=1)).any(), "some agents wait"
    wanted, priorities = slow_update(config, nets, batch, states)
    found = core.update(batch).priorities
    np.testing.assert_allclose(found, priorities, rtol=1e-4)
    for ours, theirs in zip(gradients_of(core), wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-6)
    without, _ = slow_update(config, nets, batch, states, reset=False)
    assert any(not torch.allclose(a, b, rtol=1e-2) for a, b in zip(wanted, without, strict=True)), (
        "the state is reset where an episode begins"
    )


@BOTH
def test_rows_that_no_agent_trains_on_and_actions_of_waiting_agents_change_nothing(record: Any) -> None:
    config = record(**SMALL, recurrent="gru", prioritized=True)
    first, second = (batch_of(config, SPEC, 0) for _ in range(2))
    for batch in (first, second):  # whole rows without an agent
        batch.trained[:, :, 2] = False
        batch.reward[~batch.trained], batch.discount[~batch.trained] = 0.0, 0.0
    second.action[~first.trained] = (first.action[~first.trained] + 1) % 3
    cores = [config.make_updater(SPEC, "cpu", 0) for _ in range(2)]
    found = [core.update(batch).priorities.copy() for core, batch in zip(cores, (first, second), strict=True)]
    assert np.array_equal(*found) and torch.equal(cores[0]._flat, cores[1]._flat)


@BOTH
def test_nothing_behind_the_end_of_an_episode_reaches_what_is_before_it(record: Any) -> None:
    """All agents end in the second trained row: the rows behind it, not trained on, are another episode's."""
    config = record(**{**SMALL, "n_step": 1}, recurrent="gru")
    shape = config.sequence_shape
    first = batch_of(config, SPEC, 0)
    first.begins[:, :, 4:], first.begins[:, :, 6] = False, True
    first.trained[:] = [
        True,
        True,
        False,
        False,
    ]  # the episode's end, its RESET row, and a next one not trained on
    row = shape.burn_in + np.arange(shape.length)
    first.bootstrap[:] = np.where(first.trained, row + 1, row)
    first.discount[:] = np.where(first.trained, 0.9, 0.0)
    first.discount[:, :, 1] = 0.0  # terminated
    first.reward[~first.trained] = 0.0
    second = copy.deepcopy(first)
    second.obs[:, :, 5:] += 3.0
    cores = [config.make_updater(SPEC, "cpu", 0) for _ in range(2)]
    for core, batch in zip(cores, (first, second), strict=True):
        core.update(batch)
    torch.testing.assert_close(cores[0]._flat, cores[1]._flat, rtol=1e-5, atol=1e-7)
    second.obs[:, :, 4] += 3.0  # the row that the first one bootstraps from
    other = config.make_updater(SPEC, "cpu", 0)
    other.update(second)
    assert not torch.allclose(other._flat, cores[0]._flat, rtol=1e-5, atol=1e-7)


def test_team_columns_by_hand() -> None:
    """One sequence of two agents without burn-in: rows of one, both and no agents, states by the longest return."""
    spec = replace(SPEC, agents=SPEC.agents[:2], state_values=1)
    shape = SequenceShape(0, 4, 1, 2, 0.5)
    bounds = ValueBounds()
    stage = JointSequenceStage(
        1, shape, spec, torch.device("cpu"), RewardFactor(2.0), bounds, None, state_values=1
    )
    fields = VDN(recurrent="gru", recurrent_size=3).extra_fields(spec)
    batch = JointSequenceBatch.allocate(1, shape, spec, fields, 1)
    batch.obs[:] = np.arange(48).reshape(batch.obs.shape)
    batch.extras["state"][:], batch.begins[:] = 0.0, False
    batch.state[0, :, 0] = np.arange(6) * 10
    batch.trained[0] = [[1, 1, 0, 0], [1, 0, 0, 1]]
    batch.reward[0] = [[1, 2, 0, 0], [4, 0, 0, 8]]
    batch.discount[0] = [[0.25, 0, 0, 0], [0.5, 0, 0, 0.25]]
    batch.bootstrap[0] = [[2, 2, 2, 3], [1, 1, 2, 5]]
    batch.action[0], batch.weight[:] = [[0, 1, 2, 0], [2, 1, 0, 1]], 0.5
    stage.stage(batch)
    assert stage.reward[:, 0].tolist() == [10, 4, 0, 16]
    assert stage.discount[:, 0].tolist() == [0.25, 0, 0, 0.25]
    assert stage.trained[:, 0].tolist() == [1, 1, 0, 1] and stage.weight[:, 0].tolist() == [
        0.125,
        0.125,
        0,
        0.125,
    ]
    assert stage.acts.tolist() == [[1, 1], [1, 0], [0, 0], [0, 1]]
    assert stage.goes_on.tolist() == [[1, 1], [0, 0], [0, 0], [0, 1]]
    assert stage.state[:, 0].tolist() == [0, 10, 20, 30] and stage.next_state[:, 0].tolist() == [
        20,
        20,
        20,
        50,
    ]
    assert stage.by_item(stage.action).tolist() == [[0, 2], [1, 1], [2, 0], [0, 1]]
    assert (stage.low.item(), stage.high.item()) == (0.0, np.float32(16 / 0.75))
    plain = JointSequenceStage(1, shape, spec, torch.device("cpu"), RewardFactor(2.0), bounds, None)
    plain.stage(batch)
    obs = batch.obs[0]
    assert plain.state.tolist() == [np.concatenate([obs[0, t], obs[1, t]]).tolist() for t in range(4)]
    after = [(2, 1), (2, 1), (2, 2), (3, 5)]
    assert plain.next_state.tolist() == [np.concatenate([obs[0, a], obs[1, c]]).tolist() for a, c in after]


@BOTH
def test_a_forbidden_action_is_never_bootstrapped(record: Any) -> None:
    leaves = (Leaf(("action_mask",), "values", (3,)), Leaf(("observation",), "values", (2,)))
    spec = EnvSpec("masked", (5,), "float32", DiscreteAction(3), leaves=leaves, agents=SPEC.agents)
    config = record(**SMALL, recurrent="gru", double=False, bound_targets=False)
    core, batch = config.make_updater(spec, "cpu", 0), batch_of(config, spec, 0)
    allowed = np.random.default_rng(1).integers(0, 3, batch.obs.shape[:3])
    batch.obs[..., :3] = np.eye(3, dtype=np.float32)[allowed]
    core.update(batch)
    buffers = core._buffers
    best = buffers.target_out.masked_fill(~buffers.batch.next_mask, -torch.inf).argmax(dim=1)
    wanted = np.take_along_axis(allowed, batch.bootstrap, axis=2)
    assert np.array_equal(best.numpy().reshape(wanted.shape), wanted)


@BOTH
def test_the_mixer_stays_monotone_and_agents_act_as_they_learn(record: Any) -> None:
    config = record(**SMALL, recurrent="lstm")
    core, policy = config.make_updater(SPEC, "cpu", 0), config.make_policy(SPEC)
    for seed in range(20):
        core.update(batch_of(config, SPEC, seed))
    q = (3 * torch.randn(50, 3)).requires_grad_()
    (slopes,) = torch.autograd.grad(core._mixer.modules[0](q, 3 * torch.randn(50, 12)).sum(), q)
    assert (slopes >= 0).all() and (slopes > 0).any()
    core.write_weights(policy.weights)
    obs = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    policy.assign_streams(0, 6, 6)
    np.testing.assert_allclose(policy.q_values(obs), core.action_values(obs), rtol=1e-4, atol=1e-6)


# --- options ---


@BOTH
def test_options(record: Any) -> None:
    plain, config = record(), record(recurrent="gru", sequence_length=8, burn_in=2, n_step=3)
    assert plain.sequence_shape is None and plain.cell is None and plain.extra_fields(SPEC) == ()
    assert plain.sample_rows == 1 and plain.layout(SPEC).cell is None
    shape = config.sequence_shape
    assert (shape.rows, shape.period, config.sample_rows) == (13, 4, 12 + 4)
    assert [field.name for field in config.extra_fields(SPEC)] == ["state"]
    for options, text in (
        ({"recurrent": "rnn"}, "recurrent must be one of none, gru, lstm"),
        ({"recurrent": "gru", "inference": "server"}, "inference must be actor where recurrent is set"),
        ({"eta": 1.5}, r"eta must be from 0 to 1, got 1\.5"),
    ):
        with pytest.raises(ValueError, match=text):
            record(**options)


# --- a game that needs a memory ---


LEARNING: dict[str, Any] = {
    "discipline": "lockstep",
    "hidden_sizes": (32,),
    "learning_rate": 3e-3,
    "learning_starts": 300,
    "exploration_steps": 4_000,
    "gamma": 0.95,
    "samples_per_insert": 16.0,
}
MEMORY: dict[str, Any] = {"recurrent_size": 32, "sequence_length": 12, "burn_in": 4, "batch_size": 16}


def trained(algorithm: Any, steps: int) -> Any:
    with Trainer(
        Password,
        algorithm,
        seed=0,
        http="off",
        num_actors=1,
        envs_per_actor=16,
        eval_interval_steps=2_000,
        eval_episodes=40,
    ) as trainer:
        return trainer.learn(target_return=0.9, total_steps=steps)


@pytest.mark.slow
@pytest.mark.timeout(280)
@pytest.mark.parametrize(
    "algorithm", [VDN(recurrent="gru", **LEARNING, **MEMORY), QMIX(recurrent="lstm", **LEARNING, **MEMORY)]
)
def test_a_team_remembers_and_does_not_without_a_memory(algorithm: Any, tmp_path: Path) -> None:
    result = trained(algorithm, 40_000)
    assert result.stop_reason == "target_return", result.summary
    policy, right = load(result.policy.save(tmp_path / "password.policy")), 0
    env = Password()
    for episode in range(40):
        obs, _ = env.reset(seed=episode)
        state, start, rewards = None, True, {}
        while env.agents:
            actions, state = policy.predict(obs, state=state, episode_start=start)
            obs, rewards, *_ = env.step(actions)
            start = False
        right += sum(rewards.values()) == 1.0
    assert right >= 36
    if algorithm.name == "qmix":
        return  # that the game needs a memory is shown once
    without = trained(type(algorithm)(**LEARNING), max(8_000, result.summary["env_steps"]))
    assert without.stop_reason == "total_steps" and without.summary["eval"]["return_mean"] < 0.5, (
        without.summary
    )
