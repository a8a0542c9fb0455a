"""Several agents with one policy, end to end: steps, returns, files, resuming, lockstep, and what a death cuts."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from resume_rig import numbers
from several_agents import NAMES, MaskedByInfo, Parallel, Together, Tuples, Unasked, Unequal, WithState
from test_trainer_lockstep_replay import suspensions
from waiting import wait_until

import asyncrl
from asyncrl import DQN, IMPALA, MADDPG, MAPPO, PPO, QMIX, R2D2, VDN, Trainer
from asyncrl.cli.main import main
from asyncrl.errors import ConfigurationError

ENVS = 2
COMMON: dict[str, Any] = {"seed": 3, "envs_per_actor": ENVS, "http": "off", "target_eval_episodes": 2}
ALGORITHMS: dict[str, Any] = {
    "dqn": DQN(
        hidden_sizes=(16,), learning_starts=60, batch_size=32, replay_capacity=600, n_step=3, beta_end=0.4
    ),
    "ppo": PPO(
        hidden_sizes=(16,),
        segment_length=16,
        normalize_observations=True,
        normalize_rewards=True,
        learning_rate_schedule="constant",
    ),
    "impala": IMPALA(hidden_sizes=(16,), segment_length=16, frame_stack=2),
    "r2d2": R2D2(
        hidden_sizes=(16,),
        recurrent_size=8,
        learning_starts=60,
        batch_size=8,
        replay_capacity=600,
        sequence_length=6,
        burn_in=3,
    ),
    "vdn": VDN(
        hidden_sizes=(16,),
        learning_starts=60,
        batch_size=16,
        replay_capacity=600,
        n_step=3,
        prioritized=True,
        beta_end=0.4,
    ),
    "qmix": QMIX(
        hidden_sizes=(16,), learning_starts=60, batch_size=16, replay_capacity=600, n_step=2, frame_stack=2
    ),
    "mappo": MAPPO(
        hidden_sizes=(16,),
        learning_rate_schedule="constant",
        segment_length=16,
        normalize_observations=True,
        normalize_rewards=True,
    ),
    "maddpg": MADDPG(hidden_sizes=(16,), learning_starts=60, batch_size=16, replay_capacity=600, n_step=2),
    "qmix-state": QMIX(
        hidden_sizes=(16,),
        learning_starts=60,
        batch_size=16,
        replay_capacity=600,
        n_step=3,
        normalize_observations=True,
        central_state="state",
    ),
    "mappo-state": MAPPO(
        hidden_sizes=(16,),
        learning_rate_schedule="constant",
        segment_length=16,
        normalize_observations=True,
        central_state="state",
    ),
    "maddpg-state": MADDPG(
        hidden_sizes=(16,), learning_starts=60, batch_size=16, replay_capacity=600, central_state="state"
    ),
    "vdn-gru": VDN(
        hidden_sizes=(16,),
        recurrent="gru",
        recurrent_size=8,
        learning_starts=60,
        batch_size=8,
        replay_capacity=600,
        sequence_length=6,
        burn_in=3,
        n_step=2,
    ),
    "qmix-lstm-state": QMIX(
        hidden_sizes=(16,),
        frame_stack=2,
        recurrent="lstm",
        recurrent_size=8,
        learning_starts=60,
        batch_size=8,
        replay_capacity=600,
        sequence_length=6,
        burn_in=3,
        prioritized=True,
        beta_end=0.4,
        normalize_observations=True,
        central_state="state",
    ),
    "ppo-gru": PPO(
        hidden_sizes=(16,),
        learning_rate_schedule="constant",
        segment_length=16,
        recurrent="gru",
        recurrent_size=8,
        epochs=3,
    ),
}
ALGORITHMS |= {  # nothing here looks at what is learned: few updates
    name: replace(record, samples_per_insert=2.0)
    for name, record in ALGORITHMS.items()
    if record.update_loop != "segments"
}


def env_of(name: str) -> Any:
    return WithState if name.endswith("-state") else Parallel


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_kind_of_algorithm_trains_all_agents_by_one_policy(name: str) -> None:
    trainer = Trainer(
        env_of(name), ALGORITHMS[name], num_actors=2, eval_interval_steps=400, eval_episodes=2, **COMMON
    )
    result = trainer.learn(total_steps=600)
    last = trainer.snapshot()
    assert last is not None and last.updates > 10 and last.episodes > 50
    assert 600 <= result.summary["env_steps"] == last.env_steps < 600 + 2 * 16 * ENVS * 3
    assert sum(actor.env_steps for actor in last.actors) >= last.env_steps - 2 * 16 * ENVS * 3
    each = [last.train_metrics[f"rollout/ep_rew_mean/{agent}"] for agent in NAMES]
    assert last.return_mean == pytest.approx(sum(each)), "the return of an episode is the sum of the agents'"
    for evaluation in result.evaluations:
        assert evaluation.agent_returns.keys() == set(NAMES)
        assert evaluation.return_mean == pytest.approx(sum(evaluation.agent_returns.values()))
    assert result.summary["eval"]["agent_returns"].keys() == set(NAMES)


def test_single_observations_by_agent_are_no_stack_of_one_agent() -> None:
    """Two agents that take part and two frames: both observations have the shape of one agent's stack."""
    algorithm = replace(ALGORITHMS["dqn"], frame_stack=2)
    policy = Trainer(Parallel, algorithm, num_actors=1, **COMMON).learn(200).policy
    obs, _ = policy.make_env().reset(seed=0)
    assert len(obs) == 2
    with pytest.raises(ValueError, match=r"obs of each agent must have shape \(2, .*give stacks, or state"):
        policy.predict(obs)
    with pytest.raises(ValueError, match="obs of each agent"):
        policy.q_values(obs)
    actions, stacks = policy.predict(obs, None, True)
    assert actions.keys() == obs.keys()
    assert policy.predict(stacks)[0] == actions


def test_a_step_is_one_of_the_environment_and_a_sample_one_of_an_agent() -> None:
    """In lockstep everything is exact: five steps and a RESET row per episode, three samples per step."""
    algorithm = replace(ALGORITHMS["dqn"], discipline="lockstep", samples_per_insert=2.0)
    trainer = Trainer(Together, algorithm, num_actors=1, **COMMON)
    trainer.learn(total_steps=600)
    last = trainer.snapshot()
    assert last is not None and last.length_mean == 5.0
    assert last.episodes == last.env_steps // 5 // ENVS * ENVS
    sampled = last.updates * 32
    wanted = 2.0 * 3 * (last.env_steps - algorithm.learning_starts)
    assert wanted - 32 < sampled <= wanted
    assert last.samples_per_insert_target == 2.0
    assert last.samples_per_insert_achieved == pytest.approx(2.0, rel=0.05)
    assert last.replay_capacity == 1024, "600 steps of 2 environments, rounded up to 512 rows"


@pytest.mark.parametrize("name", ["dqn", "vdn", "ppo", "mappo"])
def test_policy_lag_counts_a_step_of_all_agents_once(name: str) -> None:
    """Five steps and a RESET row per episode: six counts for each environment, whose three agents act at once."""
    trainer = Trainer(Together, replace(ALGORITHMS[name], discipline="lockstep"), num_actors=1, **COMMON)
    trainer.learn(total_steps=300)
    last = trainer.snapshot()
    assert last is not None
    counted = sum(last.policy_lag_counts)
    assert counted % ENVS == 0 and counted == pytest.approx(last.env_steps * 6 / 5, abs=32 * ENVS)


def test_the_index_lets_one_policy_act_for_each_agent() -> None:
    """All agents see the same; each is paid for another action."""
    options: dict[str, Any] = {**COMMON, "num_actors": 1, "envs_per_actor": 8, "eval_interval_steps": 500}
    algorithm = DQN(
        hidden_sizes=(32,), learning_starts=200, learning_rate=2e-3, exploration_steps=1500, gamma=0.5
    )
    told = Trainer(Together, algorithm, agent_id=True, target_return=15.0, **options)
    assert told.learn(total_steps=20_000).stop_reason == "target_return"
    blind = Trainer(Together, algorithm, **options).learn(total_steps=1_000)
    assert blind.evaluation is not None and blind.evaluation.return_mean <= 5.0


@pytest.mark.parametrize("env", [Unequal, MaskedByInfo, Tuples])
def test_padded_masked_and_tuple_agents_train(env: Any) -> None:
    """The environments refuse an action that is not the agent's own, in training and in evaluations."""
    for name in ("dqn", "ppo", "qmix", "mappo", "maddpg"):
        padded = env is Unequal
        result = Trainer(
            env, ALGORITHMS[name], num_actors=1, pad_spaces=padded, agent_id=True, **COMMON
        ).learn(300)
        assert result.evaluation is not None
        if env is MaskedByInfo:
            assert result.evaluation.return_mean == 15.0


@pytest.mark.parametrize(
    "name",
    [
        *("dqn", "ppo", "r2d2", "vdn", "qmix", "mappo", "maddpg"),
        *("qmix-state", "mappo-state", "maddpg-state", "vdn-gru", "qmix-lstm-state"),
    ],
)
def test_half_and_half_is_a_whole_that_is_suspended(name: str, tmp_path: Path) -> None:
    """To the bit: neither the stop nor delays of actors, evaluator and fork server are seen in the numbers."""
    algorithm = replace(ALGORITHMS[name], discipline="lockstep")
    options: dict[str, Any] = {
        **COMMON,
        "num_actors": 2,
        "eval_interval_steps": 300,
        "save_replay_buffer": True,
    }
    options |= {"agent_id": True}
    Trainer(env_of(name), algorithm, run_dir=tmp_path / "run", **options).learn(total_steps=600)
    second = Trainer.resume(tmp_path / "run", 1_200)
    assert len(second.resumed_from) == 1, "nothing begins anew"
    result = second.learn()
    whole = Trainer(env_of(name), algorithm, report_interval_seconds=0.02, **options)
    with suspensions(whole):
        expected = numbers(whole, whole.learn(total_steps=1_200))
    assert numbers(second, result) == expected
    assert result.evaluations[0].env_steps < 600 < result.evaluations[-1].env_steps
    assert all(evaluation.agent_returns.keys() == set(NAMES) for evaluation in result.evaluations)


def test_files_policy_and_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    env = "several_agents:Unequal"
    options: dict[str, Any] = {
        **COMMON,
        "agent_id": True,
        "pad_spaces": True,
        "run_dir": run,
        "num_actors": 1,
    }
    result = Trainer(env, ALGORITHMS["ppo"], **options).learn(total_steps=900)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert any("rollout/ep_rew_mean/green" in line for line in lines)
    assert any("eval/mean_reward/green" in line for line in lines)
    kept = asyncrl.load(run)
    path = result.policy.save(tmp_path / "agents.policy")
    for policy in (kept, asyncrl.load(path)):
        parallel = policy.make_env()
        obs, _ = parallel.reset(seed=5)
        total = 0.0
        while parallel.agents:
            actions, _ = policy.predict(obs)
            obs, rewards, *_ = parallel.step(actions)
            total += sum(rewards.values())
        assert total in range(16)
    assert main(["eval", str(run), "--episodes", "3", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["return_mean"] == pytest.approx(sum(record["agent_returns"].values()))
    assert main(["enjoy", str(run), "--video", str(tmp_path / "film.mp4"), "--episodes", "1"]) == 0
    out = capsys.readouterr().out
    assert "5 steps" in out and "red " in out and (tmp_path / "film.mp4").stat().st_size > 0
    assert main(["check", env, "--pad-spaces", "--seconds", "0.1"]) == 0
    assert "3 that share one policy: red, green, blue" in capsys.readouterr().out


@pytest.mark.parametrize("algorithm", [PPO(), VDN(), QMIX(central_state="observations")])
def test_a_state_that_nobody_reads_is_not_asked_for(algorithm: Any) -> None:
    trainer = Trainer(Unasked, algorithm, num_actors=1, **COMMON)
    assert trainer.learn(total_steps=100).policy.spec.state_values == 3


def test_policies_need_no_state(tmp_path: Path) -> None:
    """Their files play in environments without one; what the run has chosen is in its files."""
    result = Trainer(
        WithState,
        replace(ALGORITHMS["qmix-state"], central_state="auto"),
        num_actors=1,
        run_dir=tmp_path / "run",
        eval_env=Parallel,
        **COMMON,
    ).learn(total_steps=200)
    assert 'central_state = "state"' in (tmp_path / "run" / "config.toml").read_text()
    assert result.evaluation is not None and result.evaluation.episodes == 2
    policy = asyncrl.load(result.policy.save(tmp_path / "one.policy"))
    obs, _ = Parallel().reset(seed=0)
    assert policy.predict(obs)[0].keys() == obs.keys()


@pytest.mark.parametrize("name", ["qmix", "mappo", "qmix-state", "mappo-state", "qmix-lstm-state"])
def test_a_killed_actor_of_a_team_is_replaced_and_learning_goes_on(name: str) -> None:
    def updates() -> int:
        now = run.snapshot()
        return 0 if now is None else now.updates

    options = {**COMMON, "eval_interval_steps": None, "report_interval_seconds": 0.05}
    with Trainer(env_of(name), ALGORITHMS[name], num_actors=2, **options) as run:
        run.start()
        wait_until(updates, "updates")
        snapshot = run.snapshot()
        assert snapshot is not None
        os.kill(snapshot.actors[0].pid, signal.SIGKILL)
        wait_until(lambda: (now := run.snapshot()) is not None and now.actor_restarts == 1, "another actor")
        before = updates()
        wait_until(lambda: updates() > before + 20, "further updates")
        run.stop()


@pytest.mark.parametrize("name", ["mappo", "maddpg"])
def test_a_critic_of_all_agents_is_not_the_policys(name: str) -> None:
    policy = Trainer(Parallel, ALGORITHMS[name], num_actors=1, **COMMON).learn(total_steps=300).policy
    obs, _ = policy.make_env().reset(seed=0)
    for probabilities in policy.probabilities(obs).values():
        assert probabilities.sum() == pytest.approx(1.0)
    with pytest.raises(
        ConfigurationError, match=rf"{name} has no values .* critic needs what all agents observe"
    ):
        policy.values(obs)


@pytest.mark.parametrize("name", ["ppo-gru", "vdn-gru"])
def test_policies_with_a_state_take_dicts_too(name: str) -> None:
    result = Trainer(Parallel, ALGORITHMS[name], num_actors=1, **COMMON).learn(total_steps=300)
    parallel, state = result.policy.make_env(), None
    for episode in range(3):
        obs, _ = parallel.reset(seed=episode)
        start: Any = True
        while parallel.agents:
            actions, state = result.policy.predict({a: obs[a] for a in parallel.agents}, state, start)
            assert state is not None and state.keys() == set(parallel.agents)
            obs, *_ = parallel.step(actions)
            start = False


@pytest.mark.parametrize("options", [{"policies": {"a": "red", "b": "green|blue"}}, {}], ids=["two", "one"])
def test_the_agents_of_a_factory_are_those_of_an_environment_that_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: dict[str, Any]
) -> None:
    """Index, padding and policies are no wrappers of the user's, which a pickled factory hides."""
    trainer = Trainer(
        lambda: Unequal(), PPO(segment_length=16), agent_id=True, pad_spaces=True, **{**COMMON, **options}
    )
    path = trainer.learn(total_steps=50).policy.save(tmp_path / "agents.policy")
    assert main(["eval", str(path), "--env", "several_agents:Unequal", "--episodes", "2"]) == 0
    assert "several_agents:Unequal" in capsys.readouterr().out
