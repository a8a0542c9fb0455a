"""`init_from`: a run that begins with a policy's weights."""

from __future__ import annotations

import itertools
import re
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from numpy.typing import NDArray
from portable_policies import portable
from several_agents import Parallel

from asyncrl import A2C, C51, DDPG, DQN, PPO, QRDQN, R2D2, SAC, TD3, Trainer, load
from asyncrl.algorithms.agent_policies import make_updater
from asyncrl.algorithms.normalization import RewardScale
from asyncrl.envs.source import EnvSource, describe
from asyncrl.errors import CheckpointError
from asyncrl.interfaces import DiscreteAction, EnvSpec
from asyncrl.options import option_values
from asyncrl.policies.policy_start import begin_with_policy, policy_to_begin_with
from asyncrl.policies.portable_policy import PortablePolicy
from asyncrl.storage.checkpoint_meta import CheckpointMeta

SMALL: dict[str, Any] = {
    "seed": 1,
    "num_actors": 1,
    "envs_per_actor": 2,
    "http": "off",
    "target_eval_episodes": 1,
}


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    algorithm = DQN(hidden_sizes=(16,), learning_starts=100)
    Trainer("CartPole-v1", algorithm, run_dir=path, **SMALL).learn(total_steps=400)
    return path


def test_a_run_begins_with_the_policy_of_a_run_or_of_a_file(kept: Path, tmp_path: Path) -> None:
    policy = load(kept)
    policy.save(tmp_path / "cartpole.policy")
    for number, path in enumerate((kept, kept / "checkpoints" / "latest", tmp_path / "cartpole.policy")):
        trainer = Trainer(
            "CartPole-v1", DQN(hidden_sizes=(16,)), init_from=path, **{**SMALL, "seed": 7 + number}
        )
        result = trainer.learn(total_steps=1)
        assert result.summary["updates"] == 0
        assert np.array_equal(result.policy.weights, load(path).weights)


@pytest.mark.parametrize("algorithm", [SAC, PPO])
def test_critics_come_with_the_policy_of_a_run_and_not_with_another_algorithms(
    algorithm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"hidden_sizes": (16,), **({"learning_starts": 100} if algorithm is SAC else {})}
    run = tmp_path / "run"
    Trainer("Pendulum-v1", algorithm(**options), run_dir=run, **SMALL).learn(total_steps=300)
    kept = load(run)
    assert kept.critics is not None
    with pytest.raises(ValueError, match=r"write init_from=policy.save\('begin.policy', critics=True\)"):
        Trainer("Pendulum-v1", algorithm(**options), init_from=kept, **SMALL)  # type: ignore[arg-type]
    kept.save(tmp_path / "with.policy", critics=True)
    kept.save(tmp_path / "without.policy")
    for path, same in (
        (run, True), (tmp_path / "with.policy", True), (tmp_path / "without.policy", False)
    ):  # fmt: skip
        still = algorithm(**options, learning_rate=1e-30)  # PPO trains on its first segment
        trainer = Trainer("Pendulum-v1", still, init_from=path, **{**SMALL, "seed": 7})
        policy = trainer.learn(total_steps=1).policy
        assert np.array_equal(policy.weights, kept.weights)
        assert np.array_equal(policy.critics, kept.critics) == same


def thousandfold(name: str) -> gymnasium.Env[Any, Any]:
    """The environment with rewards a thousand times as large."""
    return gymnasium.wrappers.TransformReward(gymnasium.make(name), lambda reward: 1000.0 * float(reward))


@pytest.mark.parametrize("algorithm", [DQN, SAC, A2C])
def test_the_factor_on_rewards_comes_with_the_values(algorithm: Any, tmp_path: Path) -> None:
    """Rewards of 1 would get a factor of 1, in whose units the values of rewards of 1,000 would be 1,000 times off."""
    options: dict[str, Any] = {"hidden_sizes": (16,)}
    options |= {"normalize_rewards": False} if algorithm is A2C else {"learning_starts": 100}
    env = "Pendulum-v1" if algorithm is SAC else "CartPole-v1"
    Trainer(partial(thousandfold, env), algorithm(**options), run_dir=tmp_path / "run", **SMALL).learn(
        total_steps=400
    )
    learned = load(tmp_path / "run").meta.reward_scale
    assert learned is not None and learned < 0.01
    load(tmp_path / "run").save(tmp_path / "with.policy", critics=algorithm is not DQN)
    load(tmp_path / "run").save(tmp_path / "without.policy")
    for file, given, scale in (
        ("with.policy", {}, learned),
        ("without.policy", {}, learned if algorithm is DQN else 1.0),
        ("with.policy", {"reward_scale": 0.5}, 0.5),
    ):
        if given and algorithm is A2C:
            continue
        trainer = Trainer(env, algorithm(**options, **given), init_from=tmp_path / file, **SMALL)
        assert trainer.learn(total_steps=400).policy.meta.reward_scale == pytest.approx(scale), (file, given)


def test_normalised_rewards_go_on_from_the_divisor_of_the_policy() -> None:
    spec = EnvSpec("t", (4,), "float32", DiscreteAction(2))
    donor, core = (PPO(hidden_sizes=(8,)).make_updater(spec, "cpu", seed) for seed in (1, 2))
    assert donor.learned_reward_scale != pytest.approx(0.02)
    core.begin_with_reward_scale(0.02, 1_000)
    assert core.learned_reward_scale == pytest.approx(0.02)
    ones = RewardScale(0.99)
    ones.moments.add(np.random.default_rng(0).normal(0.0, 1.0, (1_000, 1)))
    core._rewards.moments.absorb(ones.moments)
    halfway = (50.0**2 + 1.0) / 2
    assert core.learned_reward_scale == pytest.approx(halfway**-0.5, rel=0.01), (
        "of as many steps as the policy saw"
    )


def test_critics_of_another_algorithm_are_left(tmp_path: Path) -> None:
    """Of one network they may have the same shape, and value another policy."""
    run = tmp_path / "run"
    options: dict[str, Any] = {"hidden_sizes": (16,), "learning_starts": 100}
    Trainer("Pendulum-v1", DDPG(**options), run_dir=run, **SMALL).learn(total_steps=300)
    policy = Trainer("Pendulum-v1", TD3(**options), init_from=run, **SMALL).learn(total_steps=1).policy
    assert np.array_equal(policy.weights, load(run).weights)
    assert not np.array_equal(policy.critics[:1], load(run).critics[:1])


def test_one_that_does_not_fit_is_refused_by_what_differs(kept: Path) -> None:
    spec = load(kept).meta.spec
    policy_to_begin_with(kept, DQN(hidden_sizes=(16,)), spec)
    for algorithm in (
        DQN(hidden_sizes=(17,)),
        PPO(hidden_sizes=(16,)),
        DQN(hidden_sizes=(16,), dueling=True),
    ):
        with pytest.raises(CheckpointError, match="the policy of init_from has other networks"):
            policy_to_begin_with(kept, algorithm, spec)
    with pytest.raises(CheckpointError, match="other observations"):
        Trainer("Acrobot-v1", DQN(hidden_sizes=(16,)), init_from=kept, **SMALL).learn(total_steps=1)


def weights_of(core: Any) -> NDArray[np.float32]:
    weights = np.empty(core.weight_count, np.float32)
    core.write_weights(weights)
    return weights


def test_each_of_several_policies_gets_the_weights_of_its_name(tmp_path: Path) -> None:
    """Names may come in another order; policies of other names are refused."""
    algorithm = PPO(hidden_sizes=(4,))

    def of_agents(policies: dict[str, str]) -> tuple[EnvSource, EnvSpec]:
        source = EnvSource.from_user(Parallel).changed({}, (), policies=policies)
        return source, describe(source)

    source, spec = of_agents({"warm": "red", "cool": "green|blue"})
    meta = CheckpointMeta(env="agents", algo="ppo", spec=spec, options=option_values(algorithm), env_steps=5)
    weights = weights_of(make_updater(algorithm, spec, "cpu", 0))
    kept = PortablePolicy(algorithm, weights, meta, source)
    file = kept.save(tmp_path / "agents.policy")
    assert not np.array_equal(*(part.weights for part in kept.by_policy.values()))
    for policies in ({"warm": "red", "cool": "green|blue"}, {"cool": "green|blue", "warm": "red"}):
        _, spec = of_agents(policies)
        core: Any = make_updater(algorithm, spec, "cpu", 9)
        begin_with_policy(core, policy_to_begin_with(file, algorithm, spec), algorithm, spec)
        for own, part in zip(core.policies, core.cores, strict=True):
            np.testing.assert_array_equal(weights_of(part), kept.by_policy[own.name].weights)
    with pytest.raises(CheckpointError, match="other policies than this run") as raised:
        policy_to_begin_with(file, algorithm, of_agents({"hot": "red", "cool": "green|blue"})[1])
    assert (raised.value.facts["policy"], raised.value.facts["run"]) == (
        "ppo on agents: cool, warm",
        "ppo on Parallel: cool, hot",
    )


@pytest.mark.parametrize("algorithm", [PPO(hidden_sizes=(4,)), DQN(hidden_sizes=(4,))], ids=lambda a: a.name)
def test_one_policy_of_all_agents_begins_with_or_without_a_name(algorithm: Any, tmp_path: Path) -> None:
    """The networks are the same, so each can begin with the weights of the other."""
    each: dict[str, dict[str, str]] = {"named": {"all": ".*"}, "other": {"every": ".*"}, "shared": {}}
    sources = {
        name: EnvSource.from_user(Parallel).changed({}, (), policies=policies)
        for name, policies in each.items()
    }
    specs, weights = {name: describe(source) for name, source in sources.items()}, {}
    for name, spec in specs.items():
        weights[name] = weights_of(make_updater(algorithm, spec, "cpu", len(weights)))
        meta = CheckpointMeta(env="agents", algo=algorithm.name, spec=spec, options=option_values(algorithm))
        PortablePolicy(algorithm, weights[name], meta, sources[name]).save(tmp_path / name)
    for theirs, ours in itertools.product(each, each):
        core: Any = make_updater(algorithm, specs[ours], "cpu", 9)
        policy = policy_to_begin_with(tmp_path / theirs, algorithm, specs[ours])
        begin_with_policy(core, policy, algorithm, specs[ours])
        np.testing.assert_array_equal(weights_of(core), weights[theirs])


def test_the_error_says_what_differs_in_plain_words(kept: Path) -> None:
    spec = load(kept).meta.spec
    with pytest.raises(CheckpointError) as raised:
        policy_to_begin_with(kept, DQN(hidden_sizes=(17,)), spec)
    assert raised.value.facts["policy"] == "dqn on CartPole-v1: hidden=(16,)"
    assert raised.value.facts["run"] == "dqn on CartPole-v1: hidden=(17,)"
    assert raised.value.fix.startswith("give this run the same options of the network")
    with pytest.raises(CheckpointError) as raised:
        policy_to_begin_with(kept, PPO(hidden_sizes=(16,)), spec)
    assert (raised.value.facts["policy"], raised.value.facts["run"]) == (
        "dqn on CartPole-v1",
        "ppo on CartPole-v1",
    )
    assert raised.value.fix.startswith("begin with a policy of this algorithm")


SMALL_NET: dict[str, Any] = {"hidden_sizes": (4,)}
NOISY: dict[str, Any] = {**SMALL_NET, "noisy": True}
R2D2_NET: dict[str, Any] = {**SMALL_NET, "recurrent_size": 4}


@pytest.mark.parametrize(
    ("trained", "begun", "theirs", "ours"),
    [
        (
            QRDQN(**NOISY, num_quantiles=5),
            C51(**NOISY, num_atoms=5),
            "returns",
            "probabilities of returns from -10 to 10",
        ),
        (
            C51(**SMALL_NET, v_max=5.0),
            C51(**SMALL_NET),
            "probabilities of returns from -10 to 5",
            "probabilities of returns from -10 to 10",
        ),
        (R2D2(**R2D2_NET), R2D2(**R2D2_NET, value_rescaling=False), "rescaled returns", "returns"),
    ],
    ids=("quantiles-as-logits", "support", "rescaling"),
)
def test_a_network_of_the_same_shape_whose_outputs_are_others_is_refused(
    trained: Any, begun: Any, theirs: str, ours: str, kept: Path, tmp_path: Path
) -> None:
    spec = load(kept).meta.spec
    meta = CheckpointMeta(env="x", algo=trained.name, spec=spec, options=option_values(trained), env_steps=5)
    weights = weights_of(make_updater(trained, spec, "cpu", 0))
    file = PortablePolicy(trained, weights, meta, EnvSource.from_user("CartPole-v1")).save(tmp_path / "p")
    assert policy_to_begin_with(file, trained, spec).meta.algo == trained.name
    with pytest.raises(CheckpointError, match="other action values than this run") as raised:
        policy_to_begin_with(file, begun, spec)
    assert str(raised.value.facts["policy"]).endswith(f": {theirs}")
    assert str(raised.value.facts["run"]).endswith(f": {ours}")


def test_a_policy_in_place_of_its_file_is_answered_with_what_to_write(kept: Path, tmp_path: Path) -> None:
    policy = load(kept)
    refused = re.escape(f"init_from must be a path, got {policy!r}"[:100])
    with pytest.raises(ValueError, match=refused) as raised:
        Trainer("CartPole-v1", DQN(hidden_sizes=(16,)), init_from=policy, **SMALL)  # type: ignore[arg-type]
    assert str(raised.value).endswith("; write init_from=policy.save('begin.policy'), which returns its path")
    file = policy.save(tmp_path / "begin.policy")
    assert Trainer("CartPole-v1", DQN(), init_from=file, **SMALL).config.init_from == str(file)


def test_a_missing_one_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be read"):
        Trainer("CartPole-v1", DQN(), init_from=tmp_path / "none", **SMALL).learn(total_steps=1)


BOX = spaces.Box(-1.0, 1.0, (3,))


class InParts(gymnasium.Env[Any, Any]):
    """An environment whose observations are dicts of these spaces."""

    def __init__(self, parts: dict[str, Any]) -> None:
        self.observation_space, self.action_space = spaces.Dict(parts), spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.observation_space.sample(), 0.0, False, False, {}


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ({"a": spaces.Discrete(3), "b": BOX}, r"a choices \[3\] from \[0\], b values of shape \(3,\)"),
        ({"b": spaces.Discrete(3), "x": BOX}, r"b choices \[3\] from \[0\], x values of shape \(3,\)"),
        ({"a": BOX, "b": spaces.Discrete(3, start=5)}, r"b choices \[3\] from \[5\]"),
        ({"a": BOX, "b": BOX}, r"b values of shape \(3,\)"),
    ],
)
def test_parts_of_an_observation_that_are_others_are_refused_though_rows_are_as_long(
    other: dict[str, Any], text: str, tmp_path: Path
) -> None:
    """Weights of one part would be those of another."""
    algorithm, parts = DQN(hidden_sizes=(4,)), {"a": BOX, "b": spaces.Discrete(3)}
    spec, theirs = (describe(EnvSource.from_user(partial(InParts, own))) for own in (parts, other))
    assert spec.observation_shape == theirs.observation_shape
    file = portable(algorithm, spec).save(tmp_path / "dict.policy")
    policy_to_begin_with(file, algorithm, spec)
    with pytest.raises(CheckpointError, match="other observations than this run") as told:
        policy_to_begin_with(file, algorithm, theirs)
    assert (
        re.search(text, told.value.facts["run"]) and "a values of shape (3,), b" in told.value.facts["policy"]
    )
