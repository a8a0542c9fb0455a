"""Self-play end to end: training, lockstep, resuming, what is shown and kept, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from resume_rig import numbers
from several_agents import Parallel, Together
from test_several_agents import ALGORITHMS
from test_trainer_lockstep_replay import suspensions

from asyncrl import DQN, MADDPG, PPO, VDN, Trainer
from asyncrl.errors import ConfigurationError

GAME: dict[str, Any] = {"rows": 3, "columns": 4, "length": 3}
COMMON: dict[str, Any] = {
    "seed": 3,
    "envs_per_actor": 4,
    "http": "off",
    "target_eval_episodes": 2,
    "eval_interval_steps": None,
    "env_kwargs": GAME,
    "self_play": "prioritized",
    "self_play_interval": 4,
    "self_play_versions": 5,
}


def trainer_of(algorithm: Any, **options: Any) -> Trainer:
    return Trainer("asyncrl/ConnectFour-v0", algorithm, **{**COMMON, "num_actors": 2, **options})


@pytest.mark.parametrize("name", [name for name, record in ALGORITHMS.items() if not record.needs_agents])
def test_every_kind_of_algorithm_learns_against_past_versions(name: str) -> None:
    trainer = trainer_of(ALGORITHMS[name], self_play_interval=1)
    result = trainer.learn(total_steps=900)
    last = trainer.snapshot()
    assert last is not None and last.updates > 5
    assert last.elo is not None and 0 < last.win_rate < 1
    assert len(last.opponents) == 5
    versions = [opponent.updates for opponent in last.opponents]
    assert versions == sorted(versions, reverse=True) and versions[0] > 4
    assert all(0 <= opponent.win_rate <= 1 <= opponent.games for opponent in last.opponents)
    assert [entry["updates"] for entry in result.summary["opponents"]] == versions


@pytest.mark.parametrize("name", ["dqn", "ppo"])
def test_a_sample_is_that_of_an_agent_that_learns(name: str) -> None:
    """Four environments of two agents, with opponents in three of them: five of eight agents learn."""
    algorithm = replace(ALGORITHMS[name], discipline="lockstep")
    if name == "dqn":
        algorithm = replace(algorithm, samples_per_insert=2.0)
    trainer = trainer_of(algorithm, self_play_fraction=0.75)
    trainer.learn(total_steps=1200)
    last = trainer.snapshot()
    assert last is not None
    assert last.samples_per_insert_achieved == pytest.approx(last.samples_per_insert_target, rel=0.05)
    steps = last.env_steps - (algorithm.learning_starts if name == "dqn" else 0)
    trained = last.consumed_samples / last.samples_per_insert_target / steps
    assert trained == pytest.approx(5 / 4, rel=0.05)


@pytest.mark.parametrize(
    ("name", "sampling"),
    [("dqn", "uniform"), ("ppo", "prioritized"), ("r2d2", "newest"), ("ppo-gru", "prioritized")],
)
def test_half_and_half_is_a_whole_that_is_suspended(name: str, sampling: str, tmp_path: Path) -> None:
    """To the bit: neither the stop nor delays of actors, evaluator and fork server are seen in the numbers."""
    algorithm = replace(ALGORITHMS[name], discipline="lockstep")
    options: dict[str, Any] = {"save_replay_buffer": True, "self_play": sampling}
    trainer_of(algorithm, run_dir=tmp_path / "run", **options).learn(total_steps=600)
    second = Trainer.resume(tmp_path / "run", 1_200)
    assert len(second.resumed_from) == 1, "nothing begins anew"
    result = second.learn()
    whole = trainer_of(algorithm, report_interval_seconds=0.02, **options)
    with suspensions(whole):
        expected = numbers(whole, whole.learn(total_steps=1_200))
    assert numbers(second, result) == expected
    ours, theirs = second.snapshot(), whole.snapshot()
    assert ours is not None and theirs is not None and ours.opponents
    assert ours.opponents == theirs.opponents and ours.elo == theirs.elo
    with pytest.raises(ConfigurationError, match="self_play_interval may not change when a run goes on"):
        Trainer.resume(tmp_path / "run", 1_400, self_play_interval=5)


def test_a_relaxed_run_goes_on_against_the_versions_of_before(tmp_path: Path) -> None:
    """Its actors begin new lives; the versions are the learner's."""
    first = trainer_of(
        ALGORITHMS["ppo"], run_dir=tmp_path / "run", self_play="uniform", self_play_interval=20
    )
    first.learn(total_steps=600)
    before = first.snapshot()
    assert before is not None and before.opponents
    second = Trainer.resume(tmp_path / "run", "+200", self_play_interval=100_000)
    second.learn()
    after = second.snapshot()
    assert after is not None and after.updates > before.updates
    met = {opponent.updates: opponent.games for opponent in after.opponents}
    assert max(met) <= before.updates, "no version is kept any more"
    earlier = {opponent.updates: opponent.games for opponent in before.opponents}
    grown = [version for version in met if met[version] > earlier.get(version, 0)]
    assert len(grown) > 1 and min(grown) < before.updates


def test_files_have_the_ratings(tmp_path: Path) -> None:
    trainer_of(ALGORITHMS["ppo"], run_dir=tmp_path / "run").learn(total_steps=800)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    rated = [line for line in lines if "rollout/elo" in line]
    assert rated and all(0 <= line["rollout/win_rate"] <= 1 for line in rated)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (
        len(summary["opponents"]) == 5
        and {"updates", "elo", "games", "win_rate"} == summary["opponents"][0].keys()
    )


def test_self_play_is_refused_where_it_cannot_be() -> None:
    with pytest.raises(
        ConfigurationError, match="self_play must be none for CartPole-v1, which has one agent"
    ):
        Trainer("CartPole-v1", PPO(), self_play="newest", num_actors=1, http="off").learn(100)
    alone = partial(Parallel, names=("red",))
    with pytest.raises(
        ConfigurationError, match=r"self_play must be none for Parallel.*, which has one agent"
    ):
        Trainer(alone, PPO(), self_play="newest", num_actors=1, http="off").learn(100)
    served = DQN(inference="server")
    with pytest.raises(ConfigurationError, match="inference must be actor with self_play"):
        Trainer(Parallel, served, self_play="newest", num_actors=1, http="off").learn(100)
    with pytest.raises(ConfigurationError, match="self_play must be none for vdn, whose agents are one team"):
        Trainer(Together, VDN(), self_play="newest", num_actors=1, http="off").learn(100)
    with pytest.raises(
        ConfigurationError, match="self_play must be none for maddpg, whose critic sees all agents"
    ):
        Trainer(Together, MADDPG(), self_play="newest", num_actors=1, http="off").learn(100)
    with pytest.raises(ValueError, match="self_play_fraction must be greater than 0 and at most 1, got 0"):
        Trainer(Parallel, PPO(), self_play_fraction=0.0)
    with pytest.raises(
        ValueError, match="self_play must be one of none, newest, uniform, prioritized, got 'best'"
    ):
        Trainer(Parallel, PPO(), self_play="best")  # type: ignore[arg-type]
