"""Policies on the hub: a push writes a file without pickles and a card; what is loaded is data."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from gymnasium.envs import registration
from hub_stand_in import HubStandIn, hub_stand_in, use_hub
from portable_policies import make_network, portable
from waiting import PATIENCE_SECONDS

import asyncrl
from asyncrl.config import TrainerConfig
from asyncrl.envs.source import EnvSource
from asyncrl.errors import AsyncRLError, CheckpointError, ConfigurationError, ResourceError
from asyncrl.interfaces import Agent, DiscreteAction, EnvSpec
from asyncrl.policies import hub as hub_module
from asyncrl.policies.policy_file import PolicyFile, read_policy_file, write_policy
from asyncrl.policies.policy_start import policy_to_begin_with
from asyncrl.policies.portable_policy import PortablePolicy
from asyncrl.storage.config_file import dump_config

huggingface_hub: Any = pytest.importorskip("huggingface_hub")
constants: Any = pytest.importorskip("huggingface_hub.constants")

SPEC = EnvSpec("CartPole-v1", (4,), "float32", DiscreteAction(2))
PLAYED = {"return_mean": 1.0, "return_std": 0.0, "episodes": 1, "seed": 0}
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def connections_are_closed() -> Iterator[None]:
    yield
    huggingface_hub.close_session()


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubStandIn]:
    with hub_stand_in() as served:
        use_hub(served, tmp_path, monkeypatch)
        yield served


def pushed(policy: Any, repo: str = "user/pole", **options: Any) -> str:
    return hub_module.push(policy, repo, "a card", **options)


def put(served: HubStandIn, file: PolicyFile, folder: Path, repo: str = "user/pole") -> None:
    """Put a file into a repository as anybody could."""
    write_policy(folder / "put", file)
    served.repos[repo] = {hub_module.FILE: (folder / "put").read_bytes()}


def command(*line: str, folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1", **environ}
    return subprocess.run(
        [sys.executable, "-m", "asyncrl", *line],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )


@pytest.mark.parametrize("lfs", [False, True])
def test_the_command_pushes_and_any_machine_loads(
    lfs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = portable(asyncrl.PPO(), SPEC)
    file = policy.save(tmp_path / "run" / "checkpoints" / "12")
    elsewhere = TrainerConfig(env="CartPole-v1", algo="ppo", eval_env_kwargs={"sutton_barto_reward": True})
    (tmp_path / "run" / "config.toml").write_text(dump_config(elsewhere, asyncrl.PPO()))
    with hub_stand_in(lfs) as served:
        use_hub(served, tmp_path, monkeypatch)
        done = command(
            *("push", str(file), "user/pole", "--episodes", "3", "--seed", "5"),
            *("--private", "--license", "apache-2.0"),
            folder=tmp_path,
        )
        assert (done.returncode, done.stderr) == (0, "")
        lines = done.stdout.splitlines()
        assert lines[0] == "policy       ppo on CartPole-v1 after 12 steps"
        assert lines[1].endswith("over 3 greedy episodes")
        assert lines[2] == f"page         {served.url}/user/pole"
        assert sorted(served.repos["user/pole"]) == ["README.md", "policy.safetensors"]
        assert served.visibility["user/pole"] in ("private", True)
        assert served.commits == ["ppo on CartPole-v1 after 12 steps"]
        assert bool(served.objects) == lfs

        loaded = asyncrl.load("hf://user/pole")
        assert np.array_equal(loaded.weights, policy.weights)
        assert loaded.predict(np.zeros(4))[0] == policy.predict(np.zeros(4))[0]
        played = command(
            "eval", "hf://user/pole", "--episodes", "3", "--seed", "5", "--json", folder=tmp_path
        )
        assert (played.returncode, played.stderr) == (0, "")
        record = json.loads(played.stdout)
        assert record["checkpoint"] == "hf://user/pole"
        _check_card(served.repos["user/pole"]["README.md"].decode(), record)


def _check_card(text: str, record: dict[str, Any]) -> None:
    _, front, body = text.split("---\n", 2)
    metadata = yaml.safe_load(front)
    assert metadata["license"] == "apache-2.0" and metadata["library_name"] == "asyncrl"
    assert {"reinforcement-learning", "asyncrl", "ppo", "CartPole-v1"} <= set(metadata["tags"])
    reached = f"{record['return_mean']:.2f} +/- {record['return_std']:.2f}"
    (result,) = metadata["model-index"][0]["results"]
    assert result["dataset"]["name"] == "CartPole-v1"
    assert result["metrics"][0]["value"] == reached
    assert f"| return | {reached} over 3 greedy episodes, seed 5 |" in body
    assert "asyncrl enjoy hf://user/pole\n" in body
    assert 'asyncrl.load("hf://user/pole")' in body
    options = json.loads(body.split("```json\n")[1].split("```")[0])
    assert options["gamma"] == asyncrl.PPO().gamma


def test_a_card_without_a_license_asks_for_one(tmp_path: Path) -> None:
    policy = portable(asyncrl.DQN(), SPEC)
    card = hub_module.model_card(policy, "user/pole", PLAYED, "unknown")
    assert yaml.safe_load(card.split("---\n")[1])["license"] == "unknown"
    assert "To be chosen by the author" in card
    own = portable(asyncrl.DQN(), SPEC, env=lambda: None)
    assert "The environment is a function of the author's" in hub_module.model_card(own, "a/b", PLAYED, "mit")


def test_a_push_again_replaces_the_files_and_critics_come_on_request(hub: HubStandIn) -> None:
    policy = portable(asyncrl.PPO(), SPEC)
    policy.critics = policy.algorithm.make_updater(SPEC, "cpu", 0).critic_weights()  # type: ignore[attr-defined]
    pushed(policy)
    assert asyncrl.load("hf://user/pole").critics is None
    policy.meta = replace(policy.meta, env_steps=99)
    pushed(policy, critics=True)
    again = asyncrl.load("hf://user/pole")
    assert again.meta.env_steps == 99 and again.critics is not None
    assert len(hub.commits) == 2


def test_no_pickle_leaves_and_none_comes_in(hub: HubStandIn, tmp_path: Path) -> None:
    mark = tmp_path / "ran"

    class Bomb:
        def __reduce__(self) -> Any:
            return (Path.touch, (mark,))

    policy = portable(asyncrl.DQN(), SPEC, env=lambda: None)
    pushed(policy)
    (tmp_path / "x").write_bytes(hub.repos["user/pole"][hub_module.FILE])
    sent = read_policy_file(tmp_path / "x")
    assert (sent.environment_kind, sent.environment, sent.network) == ("absent", None, None)
    absent = r"test_hub.* is a function of the author's, which is not in the policy's file"
    for make in (PortablePolicy.make_env, lambda policy: policy.make_env("rgb_array")):
        with pytest.raises(ConfigurationError, match=absent):
            make(asyncrl.load("hf://user/pole"))
    again = asyncrl.load("hf://user/pole").save(tmp_path / "again.policy")
    with pytest.raises(ConfigurationError, match=absent):
        asyncrl.load(again).make_env()

    for kind in ("factory", "spec"):
        put(hub, replace(sent, environment_kind=kind, environment=pickle.dumps(Bomb())), tmp_path)
        loaded = asyncrl.load("hf://user/pole")
        assert loaded.predict(np.zeros(4))[0] in (0, 1)
        with pytest.raises(AsyncRLError):
            loaded.make_env()
        with pytest.raises(AsyncRLError):
            loaded.built_env("rgb_array")
    own = portable(asyncrl.DQN(network=make_network), SPEC)
    put(hub, replace(own.file(), network=pickle.dumps(Bomb())), tmp_path)
    with pytest.raises(CheckpointError, match="network of its own"):
        asyncrl.load("hf://user/pole")
    with pytest.raises(ConfigurationError, match="trusted is not for a policy of the hub"):
        asyncrl.load("hf://user/pole", trusted=True)
    done = command("eval", "hf://user/pole", folder=tmp_path)
    assert done.returncode == 1 and "network of its own" in done.stderr
    assert not mark.exists()
    given = asyncrl.load("hf://user/pole", network=make_network)
    assert np.array_equal(given.predict(np.eye(4))[0], own.predict(np.eye(4))[0])
    assert not mark.exists()


def test_a_spec_of_another_package_becomes_its_id(hub: HubStandIn) -> None:
    policy = portable(asyncrl.DQN(), SPEC)
    source = replace(policy.source, kind="spec", payload=b"no pickle that anybody reads")
    policy.source = source
    pushed(policy)
    env = asyncrl.load("hf://user/pole").make_env()
    assert env.spec.id == "CartPole-v1"
    env.close()


def test_a_spec_that_a_run_has_kept_is_no_function_of_the_authors(tmp_path: Path) -> None:
    """A run keeps both as a pickle; one of another package, as of MiniGrid, is a spec."""
    spec = EnvSource.from_user(registration.EnvSpec("Grid-v0", entry_point="grid:Grid"))
    for source, kind in ((spec, "spec"), (EnvSource.from_user(lambda: None), "factory")):
        (tmp_path / "environment.pkl").write_bytes(source.payload)
        kept = EnvSource.from_file(source.name, tmp_path / "environment.pkl")
        assert kept.kind == kind
        policy = portable(asyncrl.DQN(), SPEC)
        policy.source = kept
        card = hub_module.model_card(policy, "a/b", PLAYED, "mit")
        assert ("function of the author's" in card) == (kind == "factory")
        assert ("asyncrl enjoy hf://a/b" in card) == (kind == "spec")
        assert ("asyncrl eval hf://a/b --env my_module:MyEnv" in card) == (kind == "factory")


@pytest.mark.parametrize(
    "algorithm",
    [
        asyncrl.PPO(recurrent="gru", recurrent_size=4, hidden_sizes=(4,)),
        asyncrl.PPO(recurrent="lstm", recurrent_size=4, hidden_sizes=(4,)),
        asyncrl.DQN(frame_stack=3, hidden_sizes=(4,)),
    ],
)
def test_the_call_on_a_card_gives_a_policy_its_state_back(algorithm: Any) -> None:
    policy = portable(algorithm, SPEC)
    card = hub_module.model_card(policy, "a/b", PLAYED, "mit")
    lines = card.split("```python\n")[1].split("```")[0].splitlines()
    (call,) = (line for line in lines if line.startswith("action, "))
    names: dict[str, Any] = {"policy": policy, "state": None, "start": True}
    expected = None
    for step in range(4):
        obs = np.full(4, 0.3 * step)
        action, expected = policy.predict(obs, state=expected, episode_start=step == 0)
        exec(call, names | {"obs": obs}, names)
        assert names["action"] == action and np.array_equal(names["state"], expected)
        assert expected is not None
        names["start"] = False


def test_a_run_begins_with_a_policy_of_the_hub(hub: HubStandIn) -> None:
    policy = portable(asyncrl.DQN(), SPEC)
    pushed(policy)
    begun = policy_to_begin_with("hf://user/pole", asyncrl.DQN(), SPEC)
    np.testing.assert_array_equal(begun.weights, policy.weights)
    options = {"num_actors": 1, "http": "off", "eval_episodes": 1}
    trainer = asyncrl.Trainer("CartPole-v1", asyncrl.DQN(), init_from="hf://user/none", **options)
    with pytest.raises(ConfigurationError, match="the hub has no policy of asyncrl at user/none"):
        trainer.learn(100, progress=False)


def test_a_card_of_several_agents_predicts_by_agent() -> None:
    agents = (Agent("red"), Agent("green"))
    policy = portable(asyncrl.DQN(), replace(SPEC, agents=agents))
    card = hub_module.model_card(policy, "user/pole", PLAYED, "mit")
    assert "policy.predict(observations)  # {agent: observation}" in card and "predict(obs)" not in card


@pytest.mark.parametrize(
    ("env", "extras"),
    [("CartPole-v1", "hub"), ("HalfCheetah-v5", "hub,mujoco"), ("mpe2:simple_spread_v3", "hub,multi-agent")],
)
def test_a_card_names_the_extra_of_the_environment(env: str, extras: str) -> None:
    policy = portable(asyncrl.DQN(), SPEC)
    policy.meta = replace(policy.meta, env=env)
    assert f'pip install "asyncrl[{extras}]"\n' in hub_module.model_card(policy, "user/pole", PLAYED, "mit")


def test_errors_say_what_to_do(hub: HubStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = portable(asyncrl.DQN(), SPEC)
    for name in ("pole", "user/pole/x", "https://x/user/pole", "user/po le"):
        with pytest.raises(ConfigurationError, match="must be named user/name"):
            pushed(policy, name)
    with pytest.raises(ConfigurationError, match="must be named user/name, got 'hf://pole'"):
        asyncrl.load("hf://pole")
    with pytest.raises(ConfigurationError, match="no policy of asyncrl at user/none") as caught:
        asyncrl.load("hf://user/none")
    assert "hf auth login" in caught.value.fix
    pushed(policy)
    with pytest.raises(ConfigurationError, match="no policy of asyncrl at user/pole"):
        asyncrl.load("hf://user/pole@gone")
    with pytest.raises(ConfigurationError, match="checkpoint is not for a policy of the hub"):
        asyncrl.load("hf://user/pole", checkpoint="best")
    hub.repos["user/pole"][hub_module.FILE] += b"x"
    with pytest.raises(CheckpointError, match="damaged"):
        asyncrl.load("hf://user/pole")
    hub.unknown = 401, b"{}", {"X_Error_Code": "RepoNotFound"}  # what it answers without a token
    with pytest.raises(ConfigurationError, match="no policy of asyncrl at user/none, or it is private"):
        asyncrl.load("hf://user/none")
    hub.unknown = 403, b"{}", {"X_Error_Code": "GatedRepo"}
    with pytest.raises(ConfigurationError, match="the hub refuses access to user/none") as caught:
        asyncrl.load("hf://user/none")
    assert "a token that may read it" in caught.value.fix
    own = portable(asyncrl.DQN(network=make_network), SPEC)
    with pytest.raises(ConfigurationError, match="network of your own cannot be pushed"):
        hub_module.require_pushable(own, "user/pole")
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(ConfigurationError, match="the hub refuses access to user/other") as caught:
        pushed(policy, "user/other")
    assert "a token that may write there: hf auth login" in caught.value.fix
    assert "hf_wrong" not in str(caught.value)


def test_a_full_disk_is_not_told_as_a_hub_that_is_down(
    hub: HubStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(hub_module, "write_policy", full)
    with pytest.raises(OSError, match="No space left"):
        pushed(portable(asyncrl.DQN(), SPEC), "user/pole")


def test_without_network_or_client_it_says_so(
    hub: HubStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = portable(asyncrl.DQN(), SPEC)
    pushed(policy)
    loaded = asyncrl.load("hf://user/pole")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ResourceError, match="the hub cannot be reached, or failed, for user/pole") as caught:
        pushed(policy)
    assert caught.value.fix == "check the network, try again"
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert np.array_equal(asyncrl.load("hf://user/pole").weights, loaded.weights), "from the client's cache"
    with pytest.raises(ResourceError, match="the hub cannot be reached, or failed, for user/none") as caught:
        asyncrl.load("hf://user/none")
    assert caught.value.fix.startswith(
        "unset HF_HUB_OFFLINE; once loaded, a policy stays in the client's cache"
    )
    script = (
        "import sys; sys.modules['huggingface_hub'] = None\nimport asyncrl\nasyncrl.load('hf://user/pole')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert 'pip install "asyncrl[hub]"' in done.stderr


def test_a_name_that_the_hub_refuses_is_the_callers_mistake(hub: HubStandIn) -> None:
    policy = portable(asyncrl.DQN(), SPEC)
    for name in ("user/a--b", "user/.a", "user-/a", "user/a.git", f"user/{'a' * 97}", "user/a..b"):
        with pytest.raises(ConfigurationError, match="the hub has no repository of the name"):
            asyncrl.load(f"hf://{name}")
        with pytest.raises(ConfigurationError, match="the hub has no repository of the name"):
            hub_module.require_pushable(policy, name)
    from huggingface_hub.utils import validate_repo_id

    for name in ("_u/a_", "u/a.b-c", f"{'u' * 96}/{'a' * 96}"):
        validate_repo_id(name)
        hub_module.require_pushable(policy, name)
