"""Values, probabilities and log probabilities of loaded policies are those of the learner's torch networks."""

from __future__ import annotations

import itertools
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from portable_policies import BOX, CASES, make_network, portable
from waiting import PATIENCE_SECONDS

import asyncrl
from asyncrl import A2C, C51, DDPG, DQN, PPO, QRDQN, R2D2, SAC, TD3, TQC, CrossQ, Trainer
from asyncrl.acting.agent_policies import make_policy
from asyncrl.acting.log_prob import squashed_gaussian
from asyncrl.algorithms.maximum_entropy_update import squashed_draw
from asyncrl.cli.main import main
from asyncrl.envs.source import EnvSource
from asyncrl.errors import CheckpointError, ConfigurationError
from asyncrl.interfaces import (
    Agent,
    AgentPolicy,
    BoxAction,
    DiscreteAction,
    EnvSpec,
    Leaf,
    MultiDiscreteAction,
    ValuePairs,
)
from asyncrl.learning.learner import Learner
from asyncrl.policies.policy_file import read_policy_file, write_policy
from asyncrl.policies.portable_policy import PortablePolicy
from asyncrl.storage.checkpoint_meta import CheckpointMeta

ROWS = 30
UNBOUNDED = BoxAction((-1.0, -float("inf")), (1.0, float("inf")), (2,))
IMAGE = (12, 12, 2)


def learner(algorithm: Any, spec: EnvSpec) -> tuple[PortablePolicy, Any]:
    """A policy with critics as from a run, and the updater, whose weights differ from the initial ones."""
    core = algorithm.make_updater(spec, "cpu", 0)
    generator = torch.Generator().manual_seed(1)
    flat = core.vector.parameters
    flat.add_(0.05 * torch.randn(flat.shape, generator=generator))
    weights = np.empty(core.weight_count, np.float32)
    core.write_weights(weights)
    policy = portable(algorithm, spec)
    policy.weights[:] = weights
    critics = getattr(core, "critic_weights", lambda: None)()
    return PortablePolicy(algorithm, policy.weights, policy.meta, policy.source, critics), core


def observations(spec: EnvSpec, frames: int = 1) -> NDArray[Any]:
    stack = () if frames == 1 else (frames,)
    rng = np.random.default_rng(2)
    if spec.observation_dtype == "uint8":
        return rng.integers(0, 256, (ROWS, *stack, *spec.observation_shape)).astype(np.uint8)
    return rng.normal(size=(ROWS, *stack, *spec.observation_shape)).astype(np.float32)


def inputs_of(policy: PortablePolicy, obs: NDArray[Any]) -> torch.Tensor:
    """Inputs of a network for images or float32 values, as torch."""
    x = torch.from_numpy(obs.reshape(len(obs), -1).astype(np.float32))
    return x / 255 if obs.dtype == np.uint8 else x


CRITICS_OF_ACTIONS = {
    "ddpg": DDPG(hidden_sizes=(8, 7)),
    "td3": TD3(num_critics=3, critic_hidden_sizes=(9,)),
    "sac": SAC(hidden_sizes=(8, 7), critic_hidden_sizes=(6, 5)),
    "tqc": TQC(num_critics=3, hidden_sizes=(8,)),
    "crossq": CrossQ(hidden_sizes=(8,), critic_hidden_sizes=(9, 7)),
    "sac, frames": SAC(frame_stack=2, hidden_sizes=(8, 7)),
    "sac, own network": SAC(network=make_network),
    "crossq, own network": CrossQ(network=make_network),
    "sac, images": SAC(network="small"),
}


@pytest.mark.parametrize("case", CRITICS_OF_ACTIONS)
def test_critics_judge_actions_as_in_the_learner(case: str, tmp_path: Path) -> None:
    algorithm = CRITICS_OF_ACTIONS[case]
    shape = IMAGE if "images" in case else (4,)
    spec = EnvSpec("any", shape, "uint8" if "images" in case else "float32", BOX)
    made, core = learner(algorithm, spec)
    policy = asyncrl.load(
        made.save(tmp_path / "x.policy", critics=True), network=make_network if "own" in case else None
    )
    obs = observations(spec, algorithm.frame_stack)
    unit = np.random.default_rng(3).uniform(-1, 1, (ROWS, 2)).astype(np.float32)
    low, high = np.array(BOX.low, np.float32), np.array(BOX.high, np.float32)
    action = low + (unit + 1) / 2 * (high - low)
    x = torch.cat((inputs_of(policy, obs), torch.from_numpy(unit)), dim=1)
    critics = getattr(core, "evaluated_critics", core.critics)
    expected = critics.make_pass(x).forward().mean(dim=2).T
    got = policy.q_values(obs, action)
    assert (got.dtype, got.shape) == (np.float32, (ROWS, core.critics.copies))
    np.testing.assert_allclose(got, expected, rtol=2e-4, atol=2e-5)
    np.testing.assert_array_equal(policy.q_values(obs[0], action[0]).shape, (core.critics.copies,))

    greedy = core.policy if not hasattr(core, "evaluated_policy") else core.evaluated_policy
    out = greedy.make_pass(inputs_of(policy, obs)).forward()[:, :2].tanh()
    q = critics.make_pass(torch.cat((inputs_of(policy, obs), out), dim=1)).forward().mean(dim=2)
    np.testing.assert_allclose(policy.q_values(obs), q.T, rtol=2e-4, atol=2e-5)
    value = q.mean(dim=0) if isinstance(algorithm, TQC) else q.amin(dim=0)
    np.testing.assert_allclose(policy.values(obs), value, rtol=2e-4, atol=2e-5)
    assert np.ptp(policy.values(obs)) > 1e-3
    assert policy.values(obs[0]).shape == ()
    assert policy.values(obs[0]) == pytest.approx(policy.values(obs)[0], rel=1e-4)


@pytest.mark.parametrize("case", ["sac", "tqc", "crossq"])
def test_a_squashed_gaussian_knows_the_density_of_its_draws(case: str) -> None:
    spec = EnvSpec("any", (4,), "float32", BOX)
    policy, core = learner(CRITICS_OF_ACTIONS[case], spec)
    obs = observations(spec)
    network = getattr(core, "evaluated_policy", core.policy)
    out = network.make_pass(torch.from_numpy(obs)).forward()
    noise = torch.randn(ROWS, 2, generator=torch.Generator().manual_seed(0)).clamp(-2, 2)
    drawn = squashed_draw(out, noise)
    low, high = np.array(BOX.low), np.array(BOX.high)
    action = low + (drawn.action.double().numpy() + 1) / 2 * (high - low)
    got = policy.log_prob(obs, action)
    assert (got.dtype, got.shape) == (np.float32, (ROWS,))
    np.testing.assert_allclose(got, drawn.log_prob[:, 0], rtol=1e-3, atol=1e-3)
    assert np.isfinite(policy.log_prob(obs, np.broadcast_to(high, (ROWS, 2)))).all()
    assert policy.log_prob(obs[0], action[0]) == pytest.approx(got[0], rel=1e-4)


def test_the_density_of_an_action_is_that_of_stable_baselines() -> None:
    """Its formula: u = artanh(a), |a| at most 1 - 2^-23, and log(1 - a^2 + 1e-6) in place of log(1 - a^2).

    `theirs` are the numbers of its `SquashedDiagGaussianDistribution` for mean 0.3 and log std -0.5.
    """
    box = BoxAction((-1.0,), (1.0,), (1,))
    actions = np.array([0.0, 0.9, -0.9, 0.999, -0.99999, 1.0, -1.0], np.float32).astype(np.float64)
    mean, log_std = np.full((7, 1), 0.3, np.float32), np.full((7, 1), -0.5, np.float32)
    found = squashed_gaussian(mean, actions[:, None], log_std, box)
    u = np.arctanh(actions.clip(-1 + 2.0**-23, 1 - 2.0**-23))
    normal = -0.5 * ((u - 0.3) / np.exp(-0.5)) ** 2 + 0.5 - 0.5 * np.log(2 * np.pi)
    theirs = np.array([-0.541262, -0.625806, -3.026950, -10.855760, -45.360630, -73.975212, -87.541245])
    np.testing.assert_allclose(normal - np.log(1 - actions**2 + 1e-6), theirs, rtol=1e-5)
    slope = 1 - actions.clip(-1 + 2.0**-23, 1 - 2.0**-23) ** 2
    np.testing.assert_allclose(found, normal - np.log(slope), rtol=1e-5)
    np.testing.assert_allclose(found - theirs, [0, 0, 0, 5e-4, 0.049, 1.434, 1.434], atol=1e-3)


STATE_VALUES = {
    "ppo": (PPO(value_hidden_sizes=(5, 6)), DiscreteAction(3, 1)),
    "ppo, several": (PPO(), MultiDiscreteAction((2, 3, 4, 2), (0, -2, 5, 0), (2, 2))),
    "ppo, gaussian": (PPO(activation="relu"), UNBOUNDED),
    "ppo, squashed": (PPO(squashed=True, hidden_sizes=(8,)), BOX),
    "a2c, frames": (A2C(frame_stack=3), DiscreteAction(4)),
    "impala": (asyncrl.IMPALA(), DiscreteAction(3)),
    "ppo, own network": (PPO(network=make_network), DiscreteAction(3)),
    "ppo, shared trunk": (PPO(network="small"), DiscreteAction(3)),
    "ppo, two trunks": (PPO(network="small", shared_trunk=False), DiscreteAction(3)),
}


@pytest.mark.parametrize("case", STATE_VALUES)
def test_value_network_and_distribution_are_the_learners(case: str, tmp_path: Path) -> None:
    algorithm, action = STATE_VALUES[case]
    shape, dtype = (IMAGE, "uint8") if "trunk" in case else ((4,), "float32")
    spec = EnvSpec("any", shape, dtype, action)
    made, core = learner(algorithm, spec)
    file = made.save(tmp_path / "x.policy", critics=True)
    policy = asyncrl.load(file, network=make_network if "own" in case else None)
    obs = observations(spec, algorithm.frame_stack)
    nets = core.nets.make_pass(ROWS, False)
    nets.x[:] = inputs_of(policy, obs)
    out, value = nets.forward()
    np.testing.assert_allclose(policy.values(obs), value, rtol=2e-4, atol=2e-5)
    assert policy.values(obs).dtype == np.float32 and np.ptp(policy.values(obs)) > 1e-3
    assert policy.values(obs[0]) == pytest.approx(float(value[0]), rel=1e-3, abs=1e-4)

    rng = np.random.default_rng(4)
    if isinstance(action, BoxAction):
        latent = out + 0.3 * torch.from_numpy(rng.normal(size=out.shape).astype(np.float32))
        expected = core.nets.log_prob(out, latent, core.nets.log_std)
        taken = latent.double().numpy()
        if algorithm.squashed:
            low, high = np.array(BOX.low), np.array(BOX.high)
            unit = latent.double().tanh()
            expected = expected - (1 - unit.square()).log().sum(dim=1)
            taken = low + (unit.numpy() + 1) / 2 * (high - low)
        np.testing.assert_allclose(policy.log_prob(obs, taken), expected, rtol=1e-3, atol=1e-3)
        return
    choices = policy.policy.layout.choices  # type: ignore[attr-defined]
    chosen = torch.from_numpy(rng.integers(0, choices, (ROWS, len(choices))))
    expected = core.nets.log_prob(out, chosen, core.nets.log_std)
    space_shape = getattr(action, "space_shape", ()) or action.shape
    moved = chosen.numpy() + np.array(action.start or 0)
    got = policy.log_prob(obs, moved.reshape(ROWS, *space_shape))
    np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4)
    parts = policy.probabilities(obs)
    parts = parts if isinstance(parts, tuple) else (parts,)
    assert [part.shape for part in parts] == [(ROWS, n) for n in choices]
    for part, logits in zip(parts, out.split(list(choices), dim=1), strict=True):
        np.testing.assert_allclose(part, logits.softmax(dim=1), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("network", ["mlp", "small"])
@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_a_recurrent_policy_speaks_of_its_state(cell: str, network: str) -> None:
    shape, dtype = (IMAGE, "uint8") if network == "small" else ((4,), "float32")
    spec = EnvSpec("any", shape, dtype, DiscreteAction(3))
    policy, core = learner(PPO(recurrent=cell, recurrent_size=5, network=network), spec)
    obs = observations(spec)
    _, state = policy.predict(obs)
    state = state + np.float32(0.1)
    (trunk,), (head,) = core.nets._policy.modules, core.nets._value.modules
    encoded = trunk.encoder(inputs_of(policy, obs))[None]
    features, _ = trunk.run(encoded, torch.from_numpy(state))
    np.testing.assert_allclose(
        policy.values(obs, state), head(features[0])[:, 0].detach(), rtol=2e-4, atol=2e-5
    )
    expected = trunk.head(features[0]).softmax(dim=1).detach()
    np.testing.assert_allclose(policy.probabilities(obs, state), expected, rtol=2e-4, atol=2e-5)
    assert not np.allclose(policy.values(obs, state), policy.values(obs), rtol=1e-3)
    begun = policy.values(obs, state, episode_start=True)
    np.testing.assert_allclose(begun, policy.values(obs))


@pytest.mark.parametrize(
    "algorithm",
    [DQN(), DQN(dueling=True), C51(v_min=-3, v_max=4), QRDQN(), R2D2(), R2D2(value_rescaling=False)],
    ids=repr,
)
def test_action_values_are_the_learners(algorithm: Any) -> None:
    spec = EnvSpec("any", (4,), "float32", DiscreteAction(3, 1))
    policy, core = learner(algorithm, spec)
    obs = observations(spec)
    expected = core.action_values(obs)
    got = policy.q_values(obs)
    assert (got.dtype, got.shape) == (np.float32, (ROWS, 3))
    np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(policy.values(obs), expected.max(axis=1), rtol=1e-3, atol=1e-4)
    assert policy.q_values(obs[0]).shape == (3,)
    with pytest.raises(ValueError, match=r"action must be None, for .* values all actions"):
        policy.q_values(obs, np.ones(ROWS, int))


LEAVES = (Leaf(("arm", "angle"), "values", (2, 2)), Leaf(("action_mask",), "values", (3,)))


def test_dicts_come_alone_in_batches_and_in_lists() -> None:
    spec = EnvSpec("any", (7,), "float32", DiscreteAction(3), leaves=LEAVES)
    policy, _ = learner(PPO(), spec)
    rng = np.random.default_rng(0)
    angle = rng.normal(size=(ROWS, 2, 2)).astype(np.float32)
    mask = (rng.random((ROWS, 3)) < 0.5).astype(np.float32)
    mask[:, 1] = 1
    batch = {"arm": {"angle": angle}, "action_mask": mask}
    listed = [{"arm": {"angle": a}, "action_mask": m} for a, m in zip(angle, mask, strict=True)]
    probabilities = policy.probabilities(batch)
    assert (probabilities[mask == 0] == 0).all() and np.allclose(probabilities.sum(axis=1), 1)
    for given in (listed, [listed[0]]):
        assert np.array_equal(policy.probabilities(given), probabilities[: len(given)])
        assert np.array_equal(policy.values(given), policy.values(batch)[: len(given)])
        assert np.array_equal(policy.predict(given)[0], policy.predict(batch)[0][: len(given)])
    assert np.array_equal(policy.probabilities(listed[0]), probabilities[0])
    values, _ = learner(DQN(), spec)
    q = values.q_values(batch)
    q[mask == 0] = -np.inf
    assert np.array_equal(values.values(listed), q.max(axis=1))
    pairs = EnvSpec("any", (2,), "float32", DiscreteAction(2), leaves=(Leaf(("0", "x"), "values", (2,)),))
    tuples, _ = learner(PPO(), pairs)
    assert tuples.values([{"x": np.zeros(2)}]).shape == (), "one observation of a Tuple of Dicts"


def test_tuples_come_alone_in_batches_and_in_lists() -> None:
    parts = (Leaf(("0",), "choices", (), (3,), (0,)), Leaf(("1",), "choices", (), (3,), (0,)))
    policy, _ = learner(DQN(), EnvSpec("any", (6,), "float32", DiscreteAction(3), leaves=parts))
    first, second = np.array([0, 1, 2]), np.array([2, 0, 0])
    expected = policy.q_values((first, second))
    listed = list(zip(first.tolist(), second.tolist(), strict=True))
    assert np.array_equal(policy.q_values(listed), expected), "three observations, not the parts of two"
    assert np.array_equal(policy.q_values(listed[:2]), expected[:2])
    for given in ((0, 2, 1), [0, 2, 1]):
        with pytest.raises(ValueError, match="obs must have 2 parts as its Tuple space has, got 3"):
            policy.predict(given)
    with pytest.raises(ValueError, match=r"got a pair as env.reset\(\) returns it"):
        policy.predict(((0, 2), {}))
    one, _ = learner(DQN(), EnvSpec("any", (3,), "float32", DiscreteAction(3), leaves=(Leaf((), *CHOICE),)))
    with pytest.raises(ValueError, match="must be of real numbers, got object"):
        one.predict([{"x": 1}])


CHOICE = ("choices", (), (3,), (0,))


@pytest.mark.parametrize(
    "case", ["vector", "choice", "image", "image and vector", "recurrent", "noisy", "gaussian"]
)
def test_a_batch_may_be_empty(case: str) -> None:
    image = Leaf(("camera",), "image", (8, 8))
    action = BOX if case == "gaussian" else DiscreteAction(3)
    spec = EnvSpec("any", (4,), "float32", action)
    if case == "choice":
        spec = EnvSpec("any", (3,), "float32", action, leaves=(Leaf((), *CHOICE),))
    elif case == "image":
        spec = EnvSpec("any", IMAGE, "uint8", action)
    elif case == "image and vector":
        spec = EnvSpec("any", (72,), "uint8", action, leaves=(image, Leaf(("x",), "values", (2,))))
    algorithm = {"recurrent": R2D2(), "noisy": DQN(noisy=True), "gaussian": SAC()}.get(case, DQN())
    policy, _ = learner(algorithm, spec)
    obs: Any = np.zeros((0, *spec.observation_shape), spec.observation_dtype)
    if case == "choice":
        obs = []
    elif case == "image and vector":
        obs = {"camera": np.zeros((0, 8, 8), np.uint8), "x": np.zeros((0, 2))}
    for deterministic in (True, False):
        found, _ = policy.predict(obs, deterministic=deterministic)
        assert found.shape == (0, *action.shape)
    assert policy.values(obs).shape == (0,)


def test_observations_by_agent_are_answered_by_agent() -> None:
    spec = EnvSpec("any", (4,), "float32", DiscreteAction(3), agents=(Agent("left"), Agent("right")))
    policy, _ = learner(PPO(), spec)
    obs = observations(spec)[:2]
    given = {"right": obs[1], "left": obs[0]}
    for name, more in (("values", ()), ("probabilities", ()), ("log_prob", ({"left": 2, "right": 0},))):
        by_agent = getattr(policy, name)(given, *more)
        each = getattr(policy, name)(obs, *([[2, 0]] if more else []))
        assert list(by_agent) == ["right", "left"]
        assert np.array_equal(by_agent["left"], each[0]) and np.array_equal(by_agent["right"], each[1])
    several, _ = learner(PPO(), replace(spec, action=MultiDiscreteAction((2, 3))))
    first, second = several.probabilities(given)["right"]
    assert (first.shape, second.shape) == ((2,), (3,))
    assert np.array_equal(second, several.probabilities(obs)[1][1])


LEFT_RIGHT = EnvSpec("any", (4,), "float32", DiscreteAction(3), agents=(Agent("left"), Agent("right")))
EACH = tuple(
    AgentPolicy(agent.name, agent.name, (n,), replace(LEFT_RIGHT, agents=(agent,)))
    for n, agent in enumerate(LEFT_RIGHT.agents)
)


@pytest.mark.parametrize("policies", [(), EACH], ids=["one", "several"])
def test_arguments_by_agent_must_have_every_agent(policies: Any) -> None:
    spec = replace(LEFT_RIGHT, policies=policies)
    algorithm = PPO(recurrent="gru", recurrent_size=4)
    weights = np.zeros(make_policy(algorithm, spec).weight_count, np.float32)
    meta = CheckpointMeta(env="any", algo="ppo", spec=spec)
    policy = PortablePolicy(algorithm, weights, meta, EnvSource("any", "id", b"any"))
    obs = {"right": np.zeros(4, np.float32), "left": np.zeros(4, np.float32)}
    everyone = {"left": True, "right": True}
    assert policy.predict({"left": obs["left"]}, None, everyone)[0].keys() == {"left"}
    assert policy.log_prob(obs, {"left": 0, "right": 1, "other": 2}, None, everyone).keys() == obs.keys()
    with pytest.raises(ValueError, match=r"episode_start must have all agents of obs, got none for right$"):
        policy.predict(obs, None, {"left": True})
    with pytest.raises(ValueError, match=r"action must have all agents of obs, got none for right$"):
        policy.log_prob(obs, {"left": 0})
    with pytest.raises(ValueError, match=r"action must be given by agent, as obs is, got list$"):
        policy.log_prob(obs, [0, 1])
    with pytest.raises(
        ValueError, match=r"action must be the action whose log probability is asked, got None"
    ):
        policy.log_prob(obs, None)
    if not policies:
        with pytest.raises(ValueError, match=r"agents must have one shape, got right \(4,\), left \(3,\)$"):
            policy.predict({**obs, "left": np.zeros(3, np.float32)})


WORDS = {
    "dqn has no log_prob": (DQN(), DiscreteAction(2), "log_prob"),
    "td3 has no log_prob": (TD3(), BOX, "log_prob"),
    "td3 has no probabilities": (TD3(), BOX, "probabilities"),
    "sac has no probabilities": (SAC(), BOX, "probabilities"),
    "ppo has no q_values": (PPO(), DiscreteAction(2), "q_values"),
    "ppo has no probabilities": (PPO(), BOX, "probabilities"),
}


@pytest.mark.parametrize("what", WORDS)
def test_what_an_algorithm_lacks_is_said_with_what_it_has(what: str) -> None:
    algorithm, action, name = WORDS[what]
    policy, _ = learner(algorithm, EnvSpec("any", (3,), "float32", action))
    given = (np.zeros(3), np.zeros(action.shape)) if name == "log_prob" else (np.zeros(3),)
    with pytest.raises(ConfigurationError, match=f"{what} in ") as caught:
        getattr(policy, name)(*given)
    (offered,) = caught.value.facts.values()
    assert "predict, values" in str(offered) and name not in str(offered)
    assert caught.value.fix.startswith("use values")


@pytest.mark.parametrize("action", [DiscreteAction(3), BOX])
def test_cloning_has_no_critics_and_says_so(action: Any, tmp_path: Path) -> None:
    policy, _ = learner(asyncrl.BC(), EnvSpec("any", (3,), "float32", action))
    for name in ("values", "q_values"):
        with pytest.raises(ConfigurationError, match=f"bc has no {name} in .*: it learns no critics"):
            getattr(policy, name)(np.zeros(3))
    with pytest.raises(ConfigurationError, match=r"bc has no values in .*: it learns no critics"):
        policy.save(tmp_path / "x", critics=True)


def test_critics_that_need_embeddings_are_not_kept(tmp_path: Path) -> None:
    policy, _ = learner(asyncrl.TD7(hidden_sizes=(8,)), EnvSpec("any", (3,), "float32", BOX))
    wanted = (
        r"td7 has no {} in .*: its critics need embeddings of actions, which a policy's file does not hold"
    )
    for name in ("values", "q_values"):
        with pytest.raises(ConfigurationError, match=wanted.format(name)):
            getattr(policy, name)(np.zeros(3))
    with pytest.raises(ConfigurationError, match=wanted.format("values")):
        policy.save(tmp_path / "x", critics=True)


def test_a_policy_kept_without_critics_says_how_to_keep_them(tmp_path: Path) -> None:
    for algorithm, action in ((SAC(), BOX), (PPO(), DiscreteAction(2))):
        made, _ = learner(algorithm, EnvSpec("any", (3,), "float32", action))
        small, whole = made.save(tmp_path / "a"), made.save(tmp_path / "b", critics=True)
        assert small.stat().st_size < 0.6 * whole.stat().st_size
        policy = asyncrl.load(small)
        with pytest.raises(
            ConfigurationError, match=f"values of {made.meta.algo} needs its critics"
        ) as caught:
            policy.values(np.zeros(3))
        assert "critics=True" in caught.value.fix and "values" not in str(caught.value.facts["it has"])
        with pytest.raises(ConfigurationError, match="needs its critics"):
            policy.save(tmp_path / f"{made.meta.algo}.lost", critics=True)
        assert not (tmp_path / f"{made.meta.algo}.lost").exists()
        again = asyncrl.load(asyncrl.load(whole).save(tmp_path / "c", critics=True))
        assert np.array_equal(again.values(np.zeros(3)), made.values(np.zeros(3)))
    dqn, _ = learner(DQN(), EnvSpec("any", (3,), "float32", DiscreteAction(2)))
    assert dqn.save(tmp_path / "d", critics=True).stat().st_size == dqn.save(tmp_path / "e").stat().st_size


def test_critics_of_another_shape_are_refused(tmp_path: Path) -> None:
    made, _ = learner(SAC(), EnvSpec("CartPole-v1", (3,), "float32", BOX))
    path = made.save(tmp_path / "x", critics=True)
    file = read_policy_file(path)
    assert file.critics is not None
    for wrong in (file.critics[:, 1:], file.critics[:1]):
        write_policy(path, type(file)(file.meta, file.weights, critics=wrong))
        with pytest.raises(CheckpointError, match="critics must have shape"):
            asyncrl.load(path)
    write_policy(path, type(file)(file.meta, file.weights, critics=file.critics[0]))
    with pytest.raises(CheckpointError, match="critics have shape"):
        asyncrl.load(path)


def test_wrong_actions_are_refused() -> None:
    policy, _ = learner(PPO(), EnvSpec("any", (3,), "float32", DiscreteAction(3, 1)))
    with pytest.raises(
        ValueError, match=r"action must have shape \(2,\), one for each observation, got \(3,\)"
    ):
        policy.log_prob(np.zeros((2, 3)), [1, 2, 3])
    with pytest.raises(ValueError, match="action must be an action of any, got 0"):
        policy.log_prob(np.zeros(3), 0)
    with pytest.raises(ValueError, match=r"action must be of whole numbers, got 1.5"):
        policy.log_prob(np.zeros(3), 1.5)
    with pytest.raises(ValueError, match="action must be finite, got nan among its values"):
        policy.log_prob(np.zeros(3), np.nan)
    with pytest.raises(ValueError, match="action must hold real numbers, got <U4: 'left'"):
        policy.log_prob(np.zeros(3), "left")
    assert np.isfinite(policy.log_prob(np.zeros(3), 3)) and np.isfinite(policy.log_prob(np.zeros(3), 3.0))
    real, _ = learner(SAC(), EnvSpec("any", (3,), "float32", BOX))
    with pytest.raises(ValueError, match="action must be finite, got nan among its values"):
        real.q_values(np.zeros(3), [0.5, np.nan])


@pytest.mark.parametrize("case", ["sac", "td3", "ppo", "dqn", "r2d2", "ppo normalised"])
def test_all_of_it_works_where_torch_cannot_be_imported(case: str, tmp_path: Path) -> None:
    algorithm, action = CASES[case]
    made, _ = learner(algorithm, EnvSpec("any", (4,), "float32", action))
    file = made.save(tmp_path / "x.policy", critics=True)
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import asyncrl, numpy\n"
        "policy = asyncrl.load(sys.argv[1])\n"
        "print(*policy.values(numpy.ones((3, 4), 'f')).tolist())\n"
    )
    line = [sys.executable, "-c", code, str(file)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert done.returncode == 0, done.stderr
    assert [float(v) for v in done.stdout.split()] == made.values(np.ones((3, 4), np.float32)).tolist()


SMALL: Any = {
    "num_actors": 1,
    "envs_per_actor": 2,
    "http": "off",
    "eval_episodes": 2,
    "target_eval_episodes": 2,
}


def test_a_run_leaves_critics_in_its_results_and_checkpoints(tmp_path: Path) -> None:
    record = SAC(learning_starts=100, batch_size=16, hidden_sizes=(8,), samples_per_insert=16.0)
    trainer = Trainer("Pendulum-v1", record, run_dir=tmp_path / "run", eval_interval_steps=200, **SMALL)
    result = trainer.learn(total_steps=600)
    obs = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    assert result.best is not None
    latest = asyncrl.load(tmp_path / "run", checkpoint="latest")
    assert np.array_equal(latest.q_values(obs), result.policy.q_values(obs))
    best = asyncrl.load(tmp_path / "run")
    assert np.array_equal(best.values(obs), result.best.policy.values(obs))
    file = tmp_path / "x.policy"
    assert main(["export", str(tmp_path / "run"), "--policy", str(file), "--critics"]) == 0
    assert np.array_equal(asyncrl.load(file).values(obs), best.values(obs))
    resumed = Trainer.resume(tmp_path / "run", total_steps="+200").learn()
    assert resumed.best is not None
    assert resumed.best.policy.values(obs).shape == (5,)


class Paid(gymnasium.Env[Any, Any]):
    """Episodes of one step, with a reward of 300 or 700 that the observation tells."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space: gymnasium.Space[Any] = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.obs = self.np_random.integers(2, size=1).astype(np.float32)
        return self.obs, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.obs, 300.0 + 400.0 * float(self.obs[0]), True, False, {}


class PaidBox(Paid):
    """The same with real-valued actions."""

    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)


PAID: dict[str, tuple[type[Paid], Any, float]] = {
    "ppo, normalised": (Paid, PPO(hidden_sizes=(32,)), 1 / 200),
    "a2c, decided": (Paid, A2C(hidden_sizes=(32,), normalize_rewards=False), 1e-3),
    "dqn, decided": (Paid, DQN(n_step=1, hidden_sizes=(32,), learning_starts=100, learning_rate=3e-3), 1e-3),
    "dqn, given": (Paid, DQN(hidden_sizes=(32,), learning_starts=100, learning_rate=3e-3, reward_scale=0.01), 0.01),
    "td3, decided": (PaidBox, TD3(hidden_sizes=(32,), learning_starts=100), 1e-3),
}  # fmt: skip


@pytest.mark.parametrize("case", PAID)
def test_values_are_in_the_units_of_the_environments_rewards(case: str, tmp_path: Path) -> None:
    env, algorithm, scale = PAID[case]
    trainer = Trainer(env, algorithm, run_dir=tmp_path / "run", eval_interval_steps=1_000, **SMALL)
    shown: list[ValuePairs] = []
    result = trainer.learn(
        4_000, on_snapshot=lambda s: shown.append(s.value_pairs) if s.value_pairs else None
    )
    assert result.best is not None
    np.testing.assert_allclose(np.unique(np.round(shown[-1].realised)), [300.0, 700.0])
    obs = np.array([[0.0], [1.0]], np.float32)
    result.policy.save(tmp_path / "paid.policy", critics="dqn" not in case)
    latest = tmp_path / "run" / "checkpoints" / "latest"
    for policy in (result.policy, asyncrl.load(latest), asyncrl.load(tmp_path / "paid.policy")):
        assert policy.meta.reward_scale == pytest.approx(scale, rel=0.1)
        np.testing.assert_allclose(policy.values(obs), [300.0, 700.0], atol=60)
    values = result.policy.q_values(obs) if case[:3] in ("dqn", "td3") else result.policy.values(obs)[:, None]
    assert values.min(axis=1) == pytest.approx(result.policy.values(obs), abs=60)
    np.testing.assert_array_equal(asyncrl.load(tmp_path / "run").values(obs), result.best.policy.values(obs))


def test_the_best_weights_have_the_same_critics_in_the_result_and_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, critics = itertools.count(), Learner.critics

    async def moved(self: Learner) -> Any:
        """The learner has gone on by every call."""
        return await critics(self) + np.float32(next(taken))

    monkeypatch.setattr(Learner, "critics", moved)
    record = SAC(learning_starts=100, batch_size=16, hidden_sizes=(8,), samples_per_insert=16.0)
    trainer = Trainer("Pendulum-v1", record, run_dir=tmp_path / "run", eval_interval_steps=200, **SMALL)
    best, obs = trainer.learn(total_steps=600).best, np.zeros((1, 3), np.float32)
    assert best is not None
    assert np.array_equal(asyncrl.load(tmp_path / "run").values(obs), best.policy.values(obs))
