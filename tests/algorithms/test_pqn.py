"""PQN against the formulas of its papers, written slowly in float64."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from segment_rig import SPECS, acted, batch_of, iterate, record, weights_of
from torch import nn

from asyncrl import PQN, TrainerConfig
from asyncrl.algorithms.pqn import pqn_loss
from asyncrl.algorithms.pqn_update import rectification
from asyncrl.envs.observations import mask_of
from asyncrl.errors import SpacesDoNotFit
from asyncrl.interfaces import RESET, TERMINATED, TRUNCATED, DiscreteAction, EnvSpec, Leaf, Segment
from asyncrl.networks.mlp import FlatMLP

KINDS = {
    "vector": SPECS["discrete"],
    "pixels": EnvSpec("pixels", (12, 10), "uint8", DiscreteAction(3)),
    "grid": EnvSpec("grid", (7, 6, 2), "uint8", DiscreteAction(3), observation_kind="grid"),
    "masked": EnvSpec(
        "masked",
        (5,),
        "float32",
        DiscreteAction(3),
        leaves=(Leaf(("action_mask",), "values", (3,)), Leaf(("x",), "values", (2,))),
    ),
}


def slow_network(core: Any) -> nn.Module:
    """The core's network as modules in float64."""
    network = core.nets._network
    if not isinstance(network, FlatMLP):
        return copy.deepcopy(network.modules[0]).double()
    named, layers = network.state_dict(), list[nn.Module]()
    for i in range(len(network.sizes) - 1):
        weight = named[f"{i}.weight"]
        linear = nn.Linear(weight.shape[1], weight.shape[0])
        linear.load_state_dict({"weight": weight, "bias": named[f"{i}.bias"]})
        layers.append(linear)
        if i < len(network.sizes) - 2:
            norm = nn.LayerNorm(weight.shape[0])
            norm.load_state_dict({k: named[f"{i}.norm.{k}"] for k in ("weight", "bias")})
            layers += [norm, nn.ReLU()]
    return nn.Sequential(*layers).double()


def slow_greatest(module: nn.Module, spec: EnvSpec, obs: np.ndarray) -> np.ndarray:
    """Greatest value of an allowed action for each of `obs` `[R, ...]`."""
    factor = 1 / 255 if spec.observation_dtype == "uint8" and spec.byte_factor != 1 else 1.0
    rows = obs.reshape(len(obs), -1).astype(np.float64) * factor
    with torch.no_grad():
        q = module(torch.from_numpy(rows)).numpy()
    if mask_of(spec) is not None:
        allowed = rows[:, :3] > 0.5
        q = np.where(allowed | ~allowed.any(axis=1, keepdims=True), q, -np.inf)
    greatest: np.ndarray = q.max(axis=1)
    return greatest


def slow_targets(algorithm: PQN, spec: EnvSpec, module: nn.Module, segment: Segment) -> np.ndarray:
    """Peng's Q(lambda) of every row, `[E, T]`; NaN in RESET rows.

    Every lambda-return is the sum of its n-step returns with weights (1 - lambda) lambda^(n - 1), of which the last has
    the rest of the weight (Peng & Williams 1996).
    """
    gamma, lam = algorithm.discount, algorithm.q_lambda
    found = np.full(segment.reward.shape, np.nan)
    for e in range(segment.num_envs):
        obs = np.concatenate((segment.obs[e], segment.last_obs[e : e + 1]))
        value, flags, length = slow_greatest(module, spec, obs), segment.flags[e], segment.num_rows
        for t in range(length):
            if flags[t] & RESET:
                continue
            total, left, rewards, k = 0.0, 1.0, 0.0, t
            while True:
                rewards += gamma ** (k - t) * float(segment.reward[e, k])
                ahead = 0.0 if flags[k] & TERMINATED else gamma ** (k - t + 1) * value[k + 1]
                ends = bool(flags[k] & (TERMINATED | TRUNCATED)) or k + 1 == length
                if ends or flags[k + 1] & RESET:
                    found[e, t] = total + left * (rewards + ahead)
                    break
                total += left * (1 - lam) * (rewards + ahead)
                left, k = left * lam, k + 1
    return found


def masked_rows(segment: Segment) -> Segment:
    """The segment with observations whose first three values are action masks."""
    rng = np.random.default_rng(3)
    for obs in (segment.obs, segment.last_obs):
        obs[..., :3] = rng.random((*obs.shape[:-1], 3)) < 0.5
    return segment


@pytest.mark.parametrize("q_lambda", [0.0, 0.65, 1.0])
@pytest.mark.parametrize("kind", KINDS)
def test_targets_are_the_papers_sum(kind: str, q_lambda: float) -> None:
    algorithm, spec = record("pqn", q_lambda=q_lambda, gamma=0.9), KINDS[kind]
    core = algorithm.make_updater(spec, "cpu", 0)
    for seed in range(3):
        segments = batch_of(algorithm, spec, core, seed)
        if kind == "masked":
            segments = [masked_rows(segment) for segment in segments]
        core.begin(segments, 0.0)
        module = slow_network(core)
        wanted = np.concatenate([slow_targets(algorithm, spec, module, segment) for segment in segments])
        found, trained = core._rollout.column("target"), core._rollout.trained
        assert (trained == ~np.isnan(wanted)).all()
        np.testing.assert_allclose(found[trained], wanted[trained], rtol=1e-4, atol=1e-4)
        while core.step():  # the next targets are those of other weights
            pass


@pytest.mark.parametrize("kind", ["vector", "pixels"])
def test_a_step_is_that_of_the_loss_in_float64(kind: str) -> None:
    options: Any = {"epochs": 1, "minibatch_size": 1_000, "max_grad_norm": 0.5}
    algorithm, spec = record("pqn", **options), KINDS[kind]
    core = algorithm.make_updater(spec, "cpu", 0)
    segment = acted(algorithm, spec, weights_of(core), seed=4)
    module = slow_network(core)
    targets = slow_targets(algorithm, spec, module, segment)
    core.begin([segment], 0.0)
    assert not core.step()
    rows = ~np.isnan(targets).reshape(-1)
    factor = 1 / 255 if kind == "pixels" else 1.0
    x = torch.from_numpy(segment.obs.reshape(len(rows), -1)[rows].astype(np.float64) * factor)
    q = module(x)[torch.arange(int(rows.sum())), torch.from_numpy(segment.action.reshape(-1)[rows])]
    loss = 0.5 * (q - torch.from_numpy(targets.reshape(-1)[rows])).square().mean()
    grads = torch.autograd.grad(loss, list(module.parameters()))
    norm = torch.cat([grad.reshape(-1) for grad in grads]).norm()
    assert float(norm) > 0.5, "the gradient is clipped"
    metrics = core.metrics()
    assert metrics["train/loss"] == pytest.approx(float(loss.detach()), rel=1e-4)
    assert metrics["train/grad_norm"] == pytest.approx(float(norm), rel=1e-4)
    rate = algorithm.learning_rate * rectification(1)
    after = slow_network(core)
    for before, grad, now in zip(module.parameters(), grads, after.parameters(), strict=True):
        clipped = grad * 0.5 / norm
        wanted = before - rate * clipped / (clipped.abs() + algorithm.adam_eps)  # Adam's first step
        torch.testing.assert_close(now, wanted, rtol=0, atol=rate * 2e-2)


def test_loss_by_hand() -> None:
    q = torch.tensor([[1.0, 5.0], [2.0, -3.0]])
    loss, error = pqn_loss(q, torch.tensor([1, 0]), torch.tensor([3.0, 5.0]), torch.tensor([0.5, 0.25]))
    assert error.tolist() == [2.0, -3.0]
    assert float(loss) == 0.5 * (0.5 * 4 + 0.25 * 9)


def test_rectification_is_that_of_radam() -> None:
    """With a constant gradient Adam's step is the learning rate, so that of RAdam is the factor."""
    x = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = torch.optim.RAdam([x], lr=1.0, eps=0.0)
    x.grad = torch.ones_like(x)
    for step in range(1, 3_000):
        before = float(x.detach())
        optimizer.step()
        if step >= 6:
            assert before - float(x.detach()) == pytest.approx(rectification(step), rel=1e-6)
    assert rectification(1) == rectification(6) < 0.05 and rectification(100_000) == pytest.approx(1.0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layer_norm", [True, False])
def test_policy_and_learner_agree_on_the_values(kind: str, layer_norm: bool) -> None:
    spec = KINDS[kind]
    options: Any = {"normalize_observations": True} if kind == "vector" else {}
    algorithm = record("pqn", layer_norm=layer_norm, **options)
    core = algorithm.make_updater(spec, "cpu", 0)
    for seed in range(3):
        iterate(core, batch_of(algorithm, spec, core, seed))
    segment = acted(algorithm, spec, weights_of(core), seed=9, envs=2)
    obs = segment.obs.reshape(-1, *spec.observation_shape)
    work = core.nets.make_pass(len(obs), gradient=False)
    with torch.no_grad():
        core.nets.normalized(obs, work.x.numpy())
        ours = work.forward().numpy()
    policy = algorithm.make_policy(spec)
    policy.load_weights(weights_of(core))
    theirs = policy.q_values(obs)
    assert ours.shape == theirs.shape == (len(obs), 3) and np.ptp(theirs) > 0.01
    np.testing.assert_allclose(theirs, ours, rtol=1e-4, atol=1e-4)
    policy.network.leave_torch()
    np.testing.assert_allclose(policy.q_values(obs), ours, rtol=1e-4, atol=1e-4)


def test_scale_of_the_observations_is_forgotten_behind_a_normalised_layer() -> None:
    """What layer normalisation is for; a network without it scales its values."""
    spec = SPECS["discrete"]
    obs = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    spread = {}
    for layer_norm in (True, False):
        algorithm = record("pqn", layer_norm=layer_norm)
        policy = algorithm.make_policy(spec)
        policy.load_weights(weights_of(algorithm.make_updater(spec, "cpu", 0)))
        spread[layer_norm] = np.ptp(policy.q_values(1_000 * obs)) / np.ptp(policy.q_values(obs))
    assert 0.5 < spread[True] < 2.0 and spread[False] > 500


def test_epsilon_falls_over_a_tenth_of_the_run() -> None:
    config = TrainerConfig(env="any", algo="pqn", num_actors=1, total_steps=50_000)
    chosen = PQN().for_run(config, SPECS["discrete"])
    assert chosen.exploration_steps == 5_000 and chosen.segment_length == 64
    policy = chosen.make_policy(SPECS["discrete"])
    assert [policy.epsilon.base(steps) for steps in (0, 2_500, 5_000)] == pytest.approx([1.0, 0.525, 0.05])
    told = PQN(exploration_steps=7, segment_length=9, gamma=0.9, normalize_observations=False)
    assert told.for_run(config, SPECS["discrete"]) == told
    endless = TrainerConfig(env="any", algo="pqn", num_actors=1)
    assert PQN().for_run(endless, SPECS["discrete"]).exploration_steps == 10_000


CARTPOLE = EnvSpec("CartPole-v1", (4,), "float32", DiscreteAction(2))


def greedy_return(policy: Any, episodes: int = 20) -> float:
    """Mean return of the greedy policy in CartPole, 500 at most."""
    envs = gymnasium.make_vec("CartPole-v1", num_envs=episodes, vectorization_mode="vector_entry_point")
    obs, _ = envs.reset(seed=12_345)
    alive, total = np.ones(episodes, np.bool_), np.zeros(episodes)
    while alive.any():
        obs, reward, terminated, truncated, _ = envs.step(policy.greedy(obs.astype(np.float32)))
        total += reward * alive
        alive &= ~(terminated | truncated)
    return float(total.mean())


def steps_until_solved(algorithm: PQN, seed: int, limit: int, envs: int = 16) -> int | None:
    """Steps until a greedy mean of 475, looked for every 2,048 steps, without processes: one actor, synchronous."""
    rng, rows = np.random.default_rng(seed), algorithm.segment_rows
    world = gymnasium.make_vec("CartPole-v1", num_envs=envs, vectorization_mode="vector_entry_point")
    now = world.reset(seed=seed)[0].astype(np.float32)
    core, policy = algorithm.make_updater(CARTPOLE, "cpu", seed), algorithm.make_policy(CARTPOLE)
    policy.assign_streams(0, envs, envs)
    policy.load_weights(weights_of(core))
    ended = np.zeros(envs, np.bool_)
    for steps in range(envs * rows, limit + 1, envs * rows):
        obs, action = np.empty((envs, rows, 4), np.float32), np.empty((envs, rows), np.int64)
        reward, flags = np.zeros((envs, rows), np.float32), np.zeros((envs, rows), np.uint8)
        for t in range(rows):
            obs[:, t] = now
            action[:, t], _ = policy.act(now, rng, steps - envs * (rows - t))
            seen, got, terminated, truncated, _ = world.step(action[:, t])
            flags[:, t] = np.where(ended, RESET, terminated * TERMINATED | truncated * TRUNCATED)
            reward[:, t] = np.where(ended, 0.0, got)
            ended, now = ~ended & (terminated | truncated), seen.astype(np.float32)
        zeros = np.zeros(rows, np.int64)
        ones = np.ones(rows, np.float32)
        iterate(core, [Segment(0, 0, obs, now, action, reward, flags, zeros, zeros, {}, ones, zeros)])
        policy.load_weights(weights_of(core))
        if steps % 2_048 == 0 and greedy_return(policy) >= 475:
            return steps
    return None


def test_cartpole_is_solved() -> None:
    """Seeds 1 to 3 took 10,240, 14,336 and 12,288 steps when this was written.

    Without layer normalisation seeds 1 and 2, and with one-step targets seed 2, had not solved it after 24,000: seed 2
    finds what the three do.
    """
    assert steps_until_solved(PQN.preset("CartPole-v1"), 2, 20_480) is not None


def test_what_pqn_lacks_is_refused() -> None:
    with pytest.raises(TypeError, match="recurrent"):
        PQN(recurrent="gru")  # type: ignore[call-arg]
    for kind in ("box", "multi"):
        with pytest.raises(SpacesDoNotFit, match="pqn needs a discrete action space"):
            PQN().make_policy(SPECS[kind])
