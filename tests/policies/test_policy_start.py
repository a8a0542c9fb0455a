"""`init_from`: a run that begins with a policy's weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from several_agents import Parallel

from asyncrl import DDPG, DQN, PPO, SAC, TD3, Trainer, load
from asyncrl.algorithms.agent_policies import make_updater
from asyncrl.envs.source import EnvSource, describe
from asyncrl.errors import CheckpointError
from asyncrl.interfaces import EnvSpec
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


def test_a_missing_one_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be read"):
        Trainer("CartPole-v1", DQN(), init_from=tmp_path / "none", **SMALL).learn(total_steps=1)
