"""Several policies of the agents, end to end: learning, lockstep, resuming, files, kills, and what is refused."""

from __future__ import annotations

import json
import os
import signal
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from resume_rig import numbers
from several_agents import NAMES, MaskedByInfo, Parallel, Pursuit, Together, Unequal
from test_several_agents import ALGORITHMS
from test_trainer_lockstep_replay import suspensions
from waiting import wait_until

import asyncrl
from asyncrl import DQN, MADDPG, MAPPO, PPO, QMIX, SAC, TD3, VDN, Trainer
from asyncrl.cli.main import main
from asyncrl.envs.checks import require_same_spaces, spec_of
from asyncrl.envs.source import EnvSource
from asyncrl.errors import CheckpointError, ConfigurationError, SpacesDoNotFit
from asyncrl.policies.playback import play
from asyncrl.show.numbers import of_return

POLICIES = {"warm": "red", "cool": "green|blue"}
EACH = {"r": "red", "g": "green", "b": "blue"}
SIDES = {"hunter": "hunter_.*", "prey": "prey"}
COMMON: dict[str, Any] = {"seed": 3, "envs_per_actor": 2, "http": "off", "target_eval_episodes": 2}
CONTINUOUS: dict[str, Any] = {
    "hidden_sizes": (16,),
    "learning_starts": 60,
    "batch_size": 16,
    "replay_capacity": 600,
    "samples_per_insert": 4.0,
}
ALONE = [name for name, record in ALGORITHMS.items() if not record.needs_agents]


def trainer_of(name: str, env: Any = Parallel, **options: Any) -> Trainer:
    return Trainer(env, ALGORITHMS[name], **{**COMMON, "num_actors": 2, "policies": POLICIES, **options})


@pytest.mark.parametrize("name", ALONE)
def test_every_kind_of_algorithm_trains_several_policies(name: str) -> None:
    trainer = trainer_of(name, eval_interval_steps=400, eval_episodes=2)
    result = trainer.learn(total_steps=600)
    last = trainer.snapshot()
    assert last is not None and last.updates > 10 and last.episodes > 50
    own = last.train_metrics
    assert own["rollout/ep_rew_mean/cool"] == pytest.approx(
        own["rollout/ep_rew_mean/green"] + own["rollout/ep_rew_mean/blue"]
    )
    losses = [own[f"train/loss/{policy}"] for policy in POLICIES]
    assert np.isfinite(losses).all() and last.loss == pytest.approx(np.mean(losses))
    assert result.policy.by_policy.keys() == POLICIES.keys()
    for evaluation in result.evaluations:
        assert evaluation.agent_returns.keys() == set(NAMES)
        assert evaluation.return_mean == pytest.approx(sum(evaluation.policy_returns.values()))
        assert evaluation.policy_returns["warm"] == evaluation.agent_returns["red"]
    assert result.summary["eval"]["policy_returns"].keys() == POLICIES.keys()


@pytest.mark.parametrize(
    "algorithm",
    [
        SAC(**CONTINUOUS),
        TD3(**CONTINUOUS, prioritized=True),
        PPO(hidden_sizes=(16,), segment_length=16, discipline="synchronous"),
    ],
    ids=lambda record: record.name,
)
def test_policies_may_see_and_do_different_things(algorithm: Any, tmp_path: Path) -> None:
    """The environment refuses an action that is not in the agent's own space."""
    options = {**COMMON, "policies": SIDES, "num_actors": 1}
    result = Trainer(Pursuit, algorithm, **options).learn(total_steps=150)
    assert result.evaluation is not None
    returns = result.evaluation.agent_returns
    assert (
        returns["prey"] == pytest.approx(-returns["hunter_1"]) and returns["hunter_0"] == returns["hunter_1"]
    )
    specs = [policy.spec for policy in result.policy.spec.policies]
    assert [(s.observation_shape, s.action.shape, len(s.agents)) for s in specs] == [
        ((3,), (1,), 2),
        ((5,), (2,), 1),
    ]
    kept = asyncrl.load(result.policy.save(tmp_path / "two.policy"))
    obs, _ = kept.make_env().reset(seed=0)
    for deterministic in (True, False):
        actions, _ = kept.predict(obs, deterministic=deterministic)
        assert {name: action.shape for name, action in actions.items()} == {
            "hunter_0": (1,), "prey": (2,), "hunter_1": (1,)
        }  # fmt: skip
    few, _ = kept.predict({"prey": obs["prey"]})
    np.testing.assert_array_equal(few["prey"], result.policy.predict(obs)[0]["prey"])


@pytest.mark.parametrize("env", [Unequal, MaskedByInfo])
def test_each_agent_with_a_policy_of_its_own_needs_no_padding(env: Any) -> None:
    for name in ("dqn", "ppo"):
        result = trainer_of(name, env, policies=EACH, num_actors=1).learn(500)
        assert result.evaluation is not None
        if env is MaskedByInfo:
            assert result.evaluation.return_mean == 15.0
    padded = trainer_of("dqn", env, pad_spaces=True, agent_id=True, num_actors=1).learn(300)
    assert padded.evaluation is not None


def test_each_policy_learns_what_pays_its_own_agent() -> None:
    """All agents see the same; each is paid for another action, which one policy could not learn without an index."""
    algorithm = DQN(
        hidden_sizes=(32,), learning_starts=200, learning_rate=2e-3, exploration_steps=1500, gamma=0.5
    )
    options: dict[str, Any] = {**COMMON, "num_actors": 1, "envs_per_actor": 8, "eval_interval_steps": 500}
    result = Trainer(Together, algorithm, policies=EACH, target_return=15.0, **options).learn(20_000)
    assert result.stop_reason == "target_return" and result.evaluation is not None
    assert result.evaluation.policy_returns == {"r": 5.0, "g": 5.0, "b": 5.0}
    seen = {name: np.zeros(4, np.float32) for name in NAMES}
    assert result.policy.predict(seen)[0] == {"red": 0, "green": 1, "blue": 2}
    values = result.policy.q_values(seen)
    assert [int(values[name].argmax()) for name in NAMES] == [0, 1, 2]
    assert result.policy.by_policy["g"].predict({"green": seen["green"]})[0] == {"green": 1}


def test_samples_per_insert_is_that_of_every_policy() -> None:
    algorithm = replace(ALGORITHMS["dqn"], discipline="lockstep", samples_per_insert=2.0)
    trainer = Trainer(Together, algorithm, policies=POLICIES, **{**COMMON, "num_actors": 1})
    trainer.learn(total_steps=600)
    last = trainer.snapshot()
    assert last is not None
    sampled, wanted = last.updates * 32, 2.0 * 3 * (last.env_steps - algorithm.learning_starts)
    assert wanted - 32 < sampled <= wanted
    assert last.samples_per_insert_achieved == pytest.approx(2.0, rel=0.05)


@pytest.mark.parametrize("name", ["dqn", "ppo", "impala", "r2d2", "ppo-gru"])
def test_half_and_half_is_a_whole_that_is_suspended(name: str, tmp_path: Path) -> None:
    """To the bit: neither the stop nor delays of actors, evaluator and fork server are seen in the numbers."""
    algorithm = replace(ALGORITHMS[name], discipline="lockstep")
    options: dict[str, Any] = {**COMMON, "num_actors": 2, "policies": POLICIES}
    options |= {"eval_interval_steps": 300, "save_replay_buffer": True, "agent_id": True}
    Trainer(Parallel, algorithm, run_dir=tmp_path / "run", **options).learn(total_steps=600)
    second = Trainer.resume(tmp_path / "run", 1_200)
    assert len(second.resumed_from) == 1, "nothing begins anew"
    result = second.learn()
    whole = Trainer(Parallel, algorithm, report_interval_seconds=0.02, **options)
    with suspensions(whole):
        expected = numbers(whole, whole.learn(total_steps=1_200))
    assert numbers(second, result) == expected
    assert any(metric.endswith("/cool") for metric in expected["metrics"])
    assert all(evaluation.policy_returns.keys() == POLICIES.keys() for evaluation in result.evaluations)
    with pytest.raises(ConfigurationError, match="policies may not change when a run goes on"):
        Trainer.resume(tmp_path / "run", 1_400, policies=EACH)


@pytest.mark.parametrize("name", ["dqn", "ppo"])
def test_a_relaxed_run_goes_on_with_empty_rings(name: str, tmp_path: Path) -> None:
    trainer_of(name, run_dir=tmp_path / "run").learn(total_steps=600)
    second = Trainer.resume(tmp_path / "run", "+600")
    result = second.learn()
    last = second.snapshot()
    assert last is not None and last.env_steps >= 1_200 and result.summary["state"] == "finished"


def test_files_policy_and_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, env = tmp_path / "run", "several_agents:Unequal"
    command = ["train", env, "--algo", "ppo", "--policy", "warm:red", "cool:green|blue", "--pad-spaces"]
    command += ["--steps", "900", "--actors", "1", "--envs-per-actor", "2", "--target-eval-episodes", "2"]
    assert main([*command, "--http", "off", "--run-dir", str(run), "--ppo.segment-length", "16"]) == 0
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for name in ("rollout/ep_rew_mean/cool", "eval/mean_reward/cool", "train/loss/cool", "train/loss"):
        assert any(name in line for line in lines)
    kept = asyncrl.load(run)
    path = kept.save(tmp_path / "agents.policy")
    shown = next(line for line in reversed(lines) if "eval/mean_reward" in line)
    for policy in (kept, asyncrl.load(path)):
        total = of_return(shown["eval/mean_reward"])
        assert f"evaluated at {total} in training, the sum of its agents" in policy.describe()
        for name, part in policy.by_policy.items():
            own = of_return(shown[f"eval/mean_reward/{name}"])
            assert own != total and f"evaluated at {own} in training" in part.describe()
        parallel = policy.make_env()
        obs, _ = parallel.reset(seed=5)
        total_return = 0.0
        while parallel.agents:
            actions, _ = policy.predict(obs)
            obs, rewards, *_ = parallel.step(actions)
            total_return += sum(rewards.values())
        assert total_return in range(16)
        probabilities = policy.probabilities(obs)
        assert [len(probabilities[name]) for name in NAMES] == [5, 4, 4]
    capsys.readouterr()
    assert main(["eval", str(run), "--episodes", "3", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["return_mean"] == pytest.approx(sum(record["policy_returns"].values()))
    assert main(["eval", str(path), "--episodes", "2"]) == 0
    assert "policies     warm " in capsys.readouterr().out
    assert main(["enjoy", str(run), "--video", str(tmp_path / "film.mp4"), "--episodes", "1"]) == 0
    assert "red " in capsys.readouterr().out and (tmp_path / "film.mp4").stat().st_size > 0
    assert (
        main(["check", env, "--policy", "warm:red", "cool:green|blue", "--pad-spaces", "--seconds", "0.1"])
        == 0
    )
    told = capsys.readouterr().out
    assert "3; policy warm: red; policy cool: green, blue" in told
    assert "ppo" in told and "sac" not in told
    assert not any(name in told for name in ("mappo", "qmix", "vdn", "maddpg")), "one policy for all agents"
    with pytest.raises(ConfigurationError, match="a model holds one policy"):
        kept.export_onnx(tmp_path / "model.onnx")
    with pytest.raises(ConfigurationError, match="those of several policies are not kept") as critics:
        kept.values(obs)
    assert critics.value.fix == "use predict or probabilities or log_prob"
    alone = kept.by_policy["cool"].save(tmp_path / "cool.policy")
    assert main(["eval", str(alone), "--episodes", "1"]) == 1
    told = capsys.readouterr().err
    assert "are not those that this policy acts for" in told and "acts for: green, blue" in told
    policy = asyncrl.load(alone)
    with pytest.raises(SpacesDoNotFit, match="are not those that this policy acts for"):
        next(play(policy, policy.built_env(), 1, 0))


def test_the_file_of_a_policy_of_all_agents_plays_like_that_of_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = trainer_of("ppo", policies={"all": ".*"}, agent_id=True, eval_episodes=1)
    whole = trainer.learn(total_steps=100, progress=False).policy
    files = whole.save(tmp_path / "whole.policy"), whole.by_policy["all"].save(tmp_path / "all.policy")
    records = []
    for file in files:
        assert main(["eval", str(file), "--episodes", "3", "--json"]) == 0
        records.append(json.loads(capsys.readouterr().out))
    assert records[0].pop("policy_returns").keys() == {"all"}
    assert records[0] | {"checkpoint": str(files[1])} == records[1]
    policy = asyncrl.load(files[1])
    assert next(play(policy, policy.built_env(), 1, 0)) == next(play(whole, whole.built_env(), 1, 0))


def test_a_policy_that_another_environment_does_not_fit_is_named() -> None:
    spec = spec_of("Unequal", EnvSource.from_user(Unequal).changed({}, (), policies=EACH).build())
    first, *others = spec.policies
    longer = replace(first, spec=replace(first.spec, observation_shape=(9,)))
    require_same_spaces(spec, replace(spec, policies=(*others, first)))
    with pytest.raises(
        SpacesDoNotFit, match=r"observation space of policy r in Unequal is not that of"
    ) as caught:
        require_same_spaces(spec, replace(spec, policies=(longer, *others)))
    assert "AgentPolicy" not in str(caught.value)
    with pytest.raises(SpacesDoNotFit, match="policies of Unequal are not those") as caught:
        require_same_spaces(spec, replace(spec, policies=()))
    assert caught.value.facts == {"trained in": "b, g, r", "this one": "one of all agents"}


class Paid(Parallel):
    """`Parallel` under another name, which pays 10 for every step."""

    def reward_of(self, name: str, action: int) -> float:
        return 10.0


def test_policies_are_evaluated_in_another_environment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only the spaces of each policy must be those of training, not the environment's name."""
    run = tmp_path / "run"
    trainer = trainer_of("ppo", num_actors=1, eval_env=Paid, run_dir=run)
    evaluation = trainer.learn(total_steps=100).evaluation
    assert evaluation is not None and evaluation.return_mean % 5 == 0 < evaluation.return_mean
    capsys.readouterr()
    assert main(["eval", str(run), "--env", "several_agents:Parallel", "--episodes", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["env"] == "several_agents:Parallel"
    assert main(["eval", str(run), "--env", "several_agents:Unequal", "--episodes", "2"]) == 1
    assert "[ASYNC005]" in capsys.readouterr().err


def test_a_new_run_begins_with_the_policies_of_another(tmp_path: Path) -> None:
    first = trainer_of("ppo", num_actors=1).learn(total_steps=300).policy.save(tmp_path / "first.policy")
    again = trainer_of("ppo", num_actors=1, init_from=first, eval_interval_steps=None)
    assert again.learn(total_steps=300).evaluation is not None
    with pytest.raises(CheckpointError, match="the policy of init_from has other"):
        trainer_of("ppo", num_actors=1, init_from=first, policies=EACH).learn(total_steps=300)


@pytest.mark.parametrize("name", ["dqn", "ppo"])
def test_a_killed_actor_is_replaced_and_all_policies_go_on(name: str) -> None:
    def updates() -> int:
        now = run.snapshot()
        return 0 if now is None else now.updates

    with trainer_of(name, eval_interval_steps=None, report_interval_seconds=0.05) as run:
        run.start()
        wait_until(updates, "updates")
        snapshot = run.snapshot()
        assert snapshot is not None
        os.kill(snapshot.actors[0].pid, signal.SIGKILL)
        wait_until(lambda: (now := run.snapshot()) is not None and now.actor_restarts == 1, "another actor")
        before = updates()
        wait_until(lambda: updates() > before + 40, "further updates")
        run.stop()


def test_policies_with_a_state_take_dicts_and_rows() -> None:
    policy = trainer_of("ppo-gru", Together, num_actors=1).learn(total_steps=300).policy
    parallel, state, rows_state = policy.make_env(), None, None
    obs, _ = parallel.reset(seed=0)
    start: Any = True
    while parallel.agents:
        rows = np.stack([obs[name] for name in NAMES])
        by_row, rows_state = policy.predict(rows, rows_state, start)
        actions, state = policy.predict(obs, state, start)
        assert [actions[name] for name in NAMES] == by_row
        assert rows_state is not None and state is not None
        np.testing.assert_array_equal(np.stack([state[name] for name in NAMES]), rows_state)
        obs, *_ = parallel.step(actions)
        start = False
    with pytest.raises(ValueError, match="obs must be given by agent where agents have several policies"):
        policy.predict(rows[:2])
    with pytest.raises(ValueError, match=r"several policies: .* got rows of different shapes"):
        policy.predict([rows[0], rows[1], rows[2][:1]])
    with pytest.raises(ValueError, match="obs must be given by agent"):
        policy.values(rows)
    for method in (policy.predict, policy.values):
        with pytest.raises(ValueError, match=r"given by agent, of blue, green, red, got a dict of black$"):
            method({"black": rows[0]})
    with pytest.raises(ValueError, match=r"given by agent, of .*, got an empty dict"):
        policy.predict({})


@pytest.mark.parametrize(
    ("policies", "text"),
    [
        (
            {"warm": "red", "cool": "green"},
            "every agent of .* one policy: of agent blue no pattern matches it",
        ),
        ({"warm": "red|blue", "cool": "green|blue"}, "of agent blue the patterns of warm and cool match it"),
        (
            {"all": ".*", "cold": "white"},
            "every pattern .* must match an agent .* 'white' of policy cold matches none",
        ),
        ({"all": "re"}, "of agent red no pattern matches it"),
        ({"red": "red|green|blue"}, "policy red must have another name"),
    ],
)
def test_patterns_divide_the_agents(policies: dict[str, str], text: str) -> None:
    trainer = trainer_of("dqn", policies=policies, num_actors=1)
    with pytest.raises(ConfigurationError, match=text) as told:
        trainer.learn(total_steps=100)
    assert told.value.facts["agents"] == "red, green, blue" and told.value.fix


def test_what_cannot_have_several_policies_says_so() -> None:
    team, critic = "whose agents are one team", "whose critic sees all agents"
    for algorithm, why in ((QMIX(), team), (VDN(), team), (MADDPG(), critic), (MAPPO(), critic)):
        with pytest.raises(ValueError, match=f"policies must be none for {algorithm.name}, {why}"):
            Trainer(Parallel, algorithm, policies=POLICIES)
    for algorithm, option, value in (
        (PPO(), "groups", 2),
        (DQN(), "self_play", "newest"),
        (DQN(), "demonstrations", "shown"),
    ):
        with pytest.raises(ValueError, match=f"{option} must be .* with policies, got {value}"):
            Trainer(Parallel, algorithm, policies=POLICIES, **{option: value})
    for algorithm in (PPO(inference="server"), DQN(replay_device="auto")):
        with pytest.raises(ValueError, match=r"must be (actor|cpu) with policies"):
            Trainer(Parallel, algorithm, policies=POLICIES)
    with pytest.raises(ValueError, match=r"policies must have a regular expression for bad, .* got '\['"):
        Trainer(Parallel, PPO(), policies={"bad": "["})
    with pytest.raises(
        ConfigurationError, match="policies must be none for CartPole-v1, which has one agent"
    ):
        Trainer("CartPole-v1", PPO(), policies={"all": ".*"}, num_actors=1, http="off").learn(100)
    with pytest.raises(
        SpacesDoNotFit, match="The agents green, blue of Unequal share one policy, and their obs"
    ):
        trainer_of("dqn", Unequal, num_actors=1).learn(100)


# --- options of single policies ---

OWN: dict[str, Any] = {"warm": {"hidden_sizes": (8, 8), "learning_rate": 1e-4}, "cool": {"gamma": 0.5}}


def test_each_policy_has_its_own_options(tmp_path: Path) -> None:
    """In the learner, the actors' policy, and all files; the policy of each plays by itself."""
    trainer = trainer_of("ppo", num_actors=1, run_dir=tmp_path / "run", policy_options=OWN)
    result = trainer.learn(total_steps=400)
    last = trainer.snapshot()
    assert last is not None
    rates = {name: last.train_metrics[f"train/learning_rate/{name}"] for name in POLICIES}
    assert rates == {"warm": 1e-4, "cool": 3e-4}
    kept = tomllib.loads((tmp_path / "run" / "config.toml").read_text())["trainer"]["policy_options"]
    assert kept == ["warm:{'hidden_sizes': (8, 8), 'learning_rate': 0.0001}", "cool:{'gamma': 0.5}"]
    obs, _ = Parallel().reset(seed=1)
    file = result.policy.save(tmp_path / "two.policy")
    for policy in (result.policy, asyncrl.load(tmp_path / "run"), asyncrl.load(file)):
        warm, cool = (policy.by_policy[name] for name in POLICIES)
        assert warm.algorithm.hidden_sizes == (8, 8) and cool.algorithm.hidden_sizes == (16,)
        assert (warm.algorithm.gamma, cool.algorithm.gamma) == (0.99, 0.5)
        assert policy.predict(obs)[0].keys() == obs.keys()
        alone = asyncrl.load(warm.save(tmp_path / "warm.policy"))
        assert alone.algorithm == warm.algorithm


@pytest.mark.parametrize("name", ["dqn", "ppo"])
def test_half_and_half_with_own_options_is_a_whole(name: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"policy_options": OWN, "save_replay_buffer": True, "num_actors": 1}
    algorithm = replace(ALGORITHMS[name], discipline="lockstep")
    common = {**COMMON, "policies": POLICIES, **options}
    Trainer(Parallel, algorithm, run_dir=tmp_path / "run", **common).learn(total_steps=300)
    second = Trainer.resume(tmp_path / "run", 600)
    assert second.config.policy_options == OWN
    result = second.learn()
    whole = Trainer(Parallel, algorithm, **common)
    assert numbers(second, result) == numbers(whole, whole.learn(total_steps=600))


def test_own_options_change_as_those_of_the_algorithm_may(tmp_path: Path) -> None:
    run = tmp_path / "run"
    trainer_of("ppo", num_actors=1, run_dir=run, policy_options=OWN).learn(total_steps=200)
    slower = {**OWN, "warm": {**OWN["warm"], "learning_rate": 1e-5}}
    assert Trainer.resume(run, 400, policy_options=slower).config.policy_options == slower
    wider = {**OWN, "warm": {"hidden_sizes": (9,)}}
    with pytest.raises(
        ConfigurationError, match="hidden_sizes of policy warm may not change when a run goes on"
    ):
        Trainer.resume(run, 400, policy_options=wider)


def test_a_policy_of_its_own_gamma_values_its_steps_by_it() -> None:
    """On replay the returns of each policy are discounted by its own gamma."""
    trainer = trainer_of("dqn", Together, num_actors=1, policy_options={"warm": {"gamma": 0.0}})
    trainer.learn(total_steps=300)
    last = trainer.snapshot()
    assert last is not None
    bounds = {name: last.train_metrics[f"train/value_high/{name}"] for name in POLICIES}
    assert bounds["warm"] == 1.0 and bounds["cool"] > 2.0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"hot": {"gamma": 0.5}}, r"policy_options must name policies of the run \(warm, cool\), got hot"),
        ({"warm": 3}, "policy_options must have options of the algorithm for warm, .* got 3"),
        (
            {"warm": {"learning_rat": 1e-3}},
            "of warm: ppo has no option 'learning_rat'; did you mean learning_rate",
        ),
        (
            {"warm": {"learning_rate": -1.0}},
            "policy_options of warm: learning_rate must be greater than 0, got -1",
        ),
        (
            {"cool": {"frame_stack": 2}},
            "of cool: frame_stack must be that of all policies, for it shapes the rows",
        ),
        ({"cool": {"discipline": "lockstep"}}, "of cool: discipline must be that of all policies"),
        (
            {"cool": {"segment_length": 9}},
            r"set it for the run: PPO\(segment_length=...\), --ppo.segment-length",
        ),
        ({"cool": {"gamma": abs}}, "policy_options must be key:value pairs of Python literals"),
    ],
)
def test_wrong_own_options_say_so(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        trainer_of("ppo", policy_options=options)


def test_own_options_need_policies() -> None:
    with pytest.raises(ValueError, match=r"policy_options must name policies of the run \(none\), got warm"):
        Trainer(Parallel, PPO(), policy_options=OWN)


def test_the_command_line_gives_own_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    arguments = [
        "several_agents:Parallel",
        "--algo",
        "ppo",
        "--steps",
        "100",
        "--actors",
        "1",
        "--http",
        "off",
    ]
    arguments += [
        "--policy",
        "warm:red",
        "cool:green|blue",
        "--run-dir",
        str(run),
        "--eval-interval-steps",
        "none",
    ]
    own = ["--policy-option", "warm.learning_rate:1e-4", "cool.hidden_sizes:8,8", "cool.activation:relu"]
    assert main(["train", *arguments, *own]) == 0
    kept = asyncrl.load(run).by_policy
    assert kept["warm"].algorithm.learning_rate == 1e-4 and kept["warm"].algorithm.activation == "tanh"
    assert kept["cool"].algorithm.hidden_sizes == (8, 8) and kept["cool"].algorithm.activation == "relu"
    capsys.readouterr()
    arguments[arguments.index(str(run))] = str(run) + "-2"
    assert main(["train", *arguments, "--policy-option", "warm.n_steps:3"]) in (1, 2)
    assert "policy_options of warm: ppo has no option 'n_steps'" in capsys.readouterr().err
    assert main(["explain", "policy_options"]) == 0
    assert "name.option:value" in capsys.readouterr().out
