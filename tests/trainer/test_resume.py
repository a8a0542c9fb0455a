"""Resuming a run: counters, files, options, and the messages if it cannot continue as before."""

from __future__ import annotations

import asyncio
import csv
import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from resume_rig import stop_after, trainer_of

from asyncrl import DQN, IMPALA, PPO, PQN, QMIX, R2D2, SAC, Trainer
from asyncrl.config import TrainerConfig
from asyncrl.errors import CheckpointError, ConfigurationError, SpacesDoNotFit
from asyncrl.run.grouped import Alone
from asyncrl.show.kept_run import KeptRun
from asyncrl.storage.checkpoint import load, save
from asyncrl.storage.resume import changed_options, options_of_run, total_of
from asyncrl.storage.resume_rules import FIXED, FIXED_IN_LOCKSTEP, check_changes
from asyncrl.trainer.arguments import paths_from

SMALL: dict[str, Any] = {
    "seed": 1,
    "num_actors": 2,
    "envs_per_actor": 2,
    "http": "off",
    "eval_interval_steps": 500,
    "eval_episodes": 1,
    "target_eval_episodes": 1,
}
ALGORITHM = DQN(learning_starts=200, hidden_sizes=(16,))


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of a run of 1,000 steps in the relaxed discipline."""
    path = tmp_path_factory.mktemp("runs") / "run"
    Trainer("CartPole-v1", ALGORITHM, run_dir=path, **SMALL).learn(total_steps=1_000)
    return path


@pytest.fixture
def run(kept: Path, tmp_path: Path) -> Path:
    """A copy of that run in another place."""
    return Path(shutil.copytree(kept, tmp_path / "moved"))


def test_a_checkpoint_that_is_not_there_is_answered_with_those_that_are(run: Path) -> None:
    there = ", ".join(sorted(file.name for file in (run / "checkpoints").iterdir()))
    with pytest.raises(CheckpointError, match=f"the run has no checkpoint '77'; it has {there}"):
        Trainer.resume(run, "+1k", checkpoint="77")
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(CheckpointError, match="has no checkpoint: it ended before it saved one"):
        Trainer.resume(run, "+1k")


def lines_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_counters_clocks_and_files_go_on(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = json.loads((run / "summary.json").read_text())
    old_lines = (run / "metrics.jsonl").read_text()
    trainer = Trainer.resume(run, "+500", eval_interval_steps=250)
    assert trainer.resumed_from == (
        f"goes on from {run / 'checkpoints' / 'latest'}: {before['env_steps']:,} steps, {before['updates']:,} updates",
        "the actors begin new episodes",
        "the replay is filled again: 200 steps before the next update (save_replay_buffer keeps it)",
    )
    shown: list[Any] = []
    result = trainer.learn(on_snapshot=lambda snapshot: shown.append((snapshot, KeptRun(run).summary)))
    first, last = shown[0][0], next(summary for snapshot, summary in shown if snapshot.state == "training")
    assert first.state == "starting" and first.wall_seconds > 0.5 * before["wall_seconds"]
    assert (first.env_steps, first.updates) == (before["env_steps"], before["updates"])
    assert (first.env_steps_per_second, first.updates_per_second) == (0.0, 0.0)
    assert last == {}, "killed now, the run has no summary of its end before"
    assert "\n".join(trainer.resumed_from) in capfd.readouterr().err, "a script shows where the run goes on"
    after = json.loads((run / "summary.json").read_text())
    total = before["env_steps"] + 500
    assert total <= after["env_steps"] <= total + 8 and after == result.summary
    for name in ("updates", "episodes", "policy_version", "train_seconds", "wall_seconds"):
        assert after[name] > before[name], name
    # 200 of the 500 steps fill the replay; the others pay for 16 samples each.
    assert after["updates"] - before["updates"] == pytest.approx(300 * 16 / 64, abs=12)
    text = (run / "metrics.jsonl").read_text()
    assert text.startswith(old_lines)
    entries = lines_of(run)
    steps = [entry["time/total_timesteps"] for entry in entries if "time/total_timesteps" in entry]
    assert steps == sorted(steps) and steps[-1] == after["env_steps"]
    evaluated = [entry["eval/total_timesteps"] for entry in entries if "eval/total_timesteps" in entry]
    assert evaluated == sorted(evaluated) and len(evaluated) >= 5
    with (run / "progress.csv").open() as file:
        assert len(list(csv.DictReader(file))) == len(entries), "one header, one row per entry"
    assert len(list((run / "tb").glob("events.*"))) in (0, 2)
    meta = json.loads((run / "meta.json").read_text())
    (resumed,) = meta["resumed"]
    assert resumed["env_steps"] == before["env_steps"] and not resumed["exact"]
    assert meta["started"] <= resumed["started"]
    assert tuple(resumed["notes"]) == trainer.resumed_from[1:]
    config, algorithm = options_of_run(run)
    chosen = {"gamma": 0.99, "exploration_steps": 10_000, "replay_capacity": 100_000}
    without_goals = dataclasses.replace(ALGORITHM, n_sampled_goal=0, normalize_observations=False, **chosen)
    assert (config.total_steps, config.eval_interval_steps, algorithm) == (total, 250, without_goals)


def test_the_best_evaluation_is_remembered(run: Path) -> None:
    trainer = Trainer.resume(run, "+8")
    seen: list[Any] = []
    trainer.learn(on_snapshot=seen.append)
    old = max(entry["eval/mean_reward"] for entry in lines_of(run)[:-1] if "eval/mean_reward" in entry)
    assert seen[-1].best_evaluation.return_mean >= old
    assert len(seen[-1].evaluations) >= 3


def test_the_best_of_few_episodes_that_was_corrected_stays_corrected(tmp_path: Path) -> None:
    """Nothing is learned, so that all evaluations play the same weights, and that over more episodes counts."""
    algorithm = DQN(learning_starts=100, learning_rate=1e-30, hidden_sizes=(16,), discipline="lockstep")
    options = {**SMALL, "run_dir": tmp_path, "target_eval_episodes": 9, "eval_interval_steps": 100}
    first = Trainer("CartPole-v1", algorithm, **options).learn(1_000)
    assert first.best is not None and first.best.evaluation.episodes == 9
    assert max(evaluation.return_mean for evaluation in first.evaluations) > first.best.evaluation.return_mean
    shown: list[Any] = []
    Trainer.resume(tmp_path, "+8").learn(on_snapshot=shown.append)
    known = [snapshot.best_evaluation for snapshot in shown if snapshot.best_evaluation is not None]
    assert known and known[0] == first.best.evaluation


def test_an_evaluation_whose_checkpoint_was_written_before_its_end_is_not_counted_twice(run: Path) -> None:
    """The best checkpoint is written with its evaluation, before the callbacks of that evaluation are called."""
    latest = run / "checkpoints" / "latest"
    state, meta = load(latest)
    evaluations = {name: column[:1] for name, column in state["run"]["evaluations"].items()}
    steps = int(evaluations["env_steps"][0])
    copy = {"weights": state["weights"], "version": meta.policy_version, "updates": meta.updates}
    pending = [{**copy, "env_steps": steps - 100, "other_steps": 100}]
    state["run"] |= {"evaluations": evaluations, "pending": pending}
    save(latest, state, meta)
    trainer = Trainer.resume(run, "+8")
    assert trainer.job.resumed is not None and trainer.job.resumed.record()["evaluated"] == 0
    result = trainer.learn()
    assert [evaluation.episodes for evaluation in result.evaluations] == [1, 1], "it and the last one"
    told = [line["eval/total_timesteps"] for line in lines_of(run) if "eval/total_timesteps" in line]
    assert told == [evaluation.env_steps for evaluation in result.evaluations], "its line is written again"


def test_a_run_with_nothing_left_to_do_says_what_to_give(run: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"used up its total_steps: 1,00\d of 1,000") as raised:
        Trainer.resume(run)
    assert "Trainer.resume(run, '+100k'), on the command line --steps +100k" in raised.value.fix
    with pytest.raises(ConfigurationError, match="used up its max_seconds"):
        Trainer.resume(run, "+1", max_seconds=1e-6)


class StopsAt:
    """Ends the run with the checkpoint of its last step, before its final evaluation."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_checkpoint(self, trainer: Trainer, path: str) -> bool:
        return not path.endswith("/0") and int(Path(path).name) < self.steps


@pytest.mark.parametrize("algorithm", [ALGORITHM, PPO(segment_length=16)], ids=["replay", "segments"])
def test_a_run_that_was_stopped_at_its_end_gets_its_final_evaluation(tmp_path: Path, algorithm: Any) -> None:
    """Its closing lines suggest `asyncrl resume RUN`, which asked for more steps."""
    first = Trainer("CartPole-v1", algorithm, run_dir=tmp_path, report_interval_steps=100, **SMALL)
    stopped = first.learn(1_000, callbacks=[StopsAt(1_000)])
    assert stopped.stop_reason in ("stopped", "total_steps") and stopped.evaluation is None
    with pytest.raises(ConfigurationError, match=r"used up its total_steps: 1,0\d\d of 900"):
        Trainer.resume(tmp_path, 900)
    trainer = Trainer.resume(tmp_path)
    assert trainer.resumed_from[1:] == ("it was stopped at its end: the final evaluation follows",)
    result = trainer.learn()
    assert result.summary["state"] == "finished" and result.evaluation is not None
    assert result.summary["env_steps"] == stopped.summary["env_steps"] == result.evaluation.env_steps
    with pytest.raises(ConfigurationError, match="used up its total_steps"):
        Trainer.resume(tmp_path)


def test_a_run_that_was_stopped_at_its_training_target_gets_its_final_evaluation(tmp_path: Path) -> None:
    low = {**SMALL, "target_training_return": 5.0, "eval_interval_steps": None}
    Trainer("CartPole-v1", ALGORITHM, run_dir=tmp_path, **low).learn(total_steps=100_000)
    latest = tmp_path / "checkpoints" / "latest"
    state, meta = load(latest)
    state["run"] |= {"has_final": False}
    save(latest, state, meta)
    result = Trainer.resume(tmp_path).learn()
    assert result.stop_reason == "target_training_return" and result.evaluation is not None


def test_learn_adds_steps_to_those_of_the_run(run: Path) -> None:
    """`learn("+300")` of a run of a thousand steps was one of 300 in all, which it had used up."""
    trainer = Trainer.resume(run, "+500")
    resumed = trainer.job.resumed
    assert resumed is not None
    result = trainer.learn(total_steps="+8", progress=False)
    assert trainer.config.total_steps == resumed.total_steps + 8
    assert result.stop_reason == "total_steps" and result.summary["env_steps"] <= resumed.total_steps + 16
    with pytest.raises(ConfigurationError, match=r"total_steps must be a whole number, or \+N for"):
        Trainer.resume(run, "+500").learn(total_steps="+many")


def test_a_resumed_run_is_not_given_fewer_steps_than_it_has_made(run: Path) -> None:
    with Trainer.resume(run, "+500") as trainer:
        with pytest.raises(ConfigurationError, match=r"used up its total_steps: 1,00\d of 900"):
            trainer.learn(total_steps=900)
        assert trainer.learn().summary["env_steps"] >= 1_500


def test_a_target_that_was_reached_no_longer_ends_the_run(kept: Path, run: Path) -> None:
    low = {**SMALL, "target_return": 1.0}
    shutil.rmtree(run)
    Trainer("CartPole-v1", ALGORITHM, run_dir=run, **low).learn(total_steps=100_000)
    before = json.loads((run / "summary.json").read_text())
    assert before["stop_reason"] == "target_return"
    with pytest.raises(ConfigurationError, match="has reached its target_return, 1") as raised:
        Trainer.resume(run)
    assert "Trainer.resume(run, '+100k'), on the command line --steps +100k" in raised.value.fix
    lines = [line for line in lines_of(run) if "eval/mean_reward" in line]
    trainer = Trainer.resume(run, "+600")
    assert "target_return 1 was reached and no longer ends the run" in trainer.resumed_from
    result = trainer.learn()
    assert result.stop_reason == "total_steps"
    # Not those of the end, where an evaluation that is due there precedes the final one.
    steps = [evaluation.env_steps for evaluation in result.evaluations]
    earlier = [at for at in steps if at <= before["env_steps"]]
    assert earlier and len(earlier) == len(set(earlier)), (
        "the weights that reached it are not evaluated again"
    )
    assert [line for line in lines_of(run) if "eval/mean_reward" in line][: len(lines)] == lines
    assert result.summary["env_steps"] > before["env_steps"]
    higher = Trainer.resume(run, "+600", target_return=1e9)
    assert higher.config.target_return == 1e9
    higher.close()


def test_a_training_target_that_was_reached_no_longer_ends_the_run(tmp_path: Path) -> None:
    low = {**SMALL, "target_training_return": 5.0, "eval_interval_steps": None}
    first = Trainer("CartPole-v1", ALGORITHM, run_dir=tmp_path, **low).learn(total_steps=100_000)
    assert first.stop_reason == "target_training_return"
    with pytest.raises(ConfigurationError, match="has reached its target_training_return, 5") as raised:
        Trainer.resume(tmp_path)
    assert "Trainer.resume(run, '+100k'), on the command line --steps +100k" in raised.value.fix
    higher = Trainer.resume(tmp_path, target_training_return=1e9)
    assert higher.config.target_training_return == 1e9
    trainer = Trainer.resume(tmp_path, "+400")
    assert "target_training_return 5 was reached and no longer ends the run" in trainer.resumed_from
    result = trainer.learn()
    assert result.stop_reason == "total_steps"
    assert result.summary["env_steps"] > first.summary["env_steps"] + 200


def test_there_must_be_a_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="there is no run in"):
        Trainer.resume(tmp_path)


def test_total_steps_or_so_many_more() -> None:
    assert [total_of(steps, 7) for steps in (None, 5, "200k", "+3")] == [None, 5, 200_000, 10]
    with pytest.raises(ConfigurationError, match="total_steps must be a whole number"):
        total_of("+many", 7)


def test_numbers_of_other_types_are_numbers(run: Path) -> None:
    for steps in (np.int64(4_000), 4e3, 4_000):
        trainer = Trainer.resume(run, steps)  # type: ignore[arg-type]
        assert trainer.config.total_steps == 4_000
    newest = max(int(file.name) for file in (run / "checkpoints").iterdir() if file.name.isdecimal())
    (path, *_) = Trainer.resume(run, "+1", checkpoint=newest).resumed_from  # type: ignore[arg-type]
    assert f"checkpoints/{newest}:" in path
    with pytest.raises(ConfigurationError, match=r"total_steps must be a whole number, or .*1.5"):
        Trainer.resume(run, 1.5)  # type: ignore[arg-type]


LACKING = (
    "rings",
    "evaluations",
    "pending",
    "clock",
    "rounds",
    "episodes",
    "learner",
    "next_copy",
    "actor_restarts",
)


@pytest.mark.parametrize(
    "name", [*LACKING, "rings/steps", "rings/first", "rings/num_actors", "rings/published"]
)
def test_a_checkpoint_whose_run_lacks_a_key_is_refused(run: Path, name: str) -> None:
    """Written by another version, or by another program: its digest is right."""
    latest = run / "checkpoints" / "latest"
    state, meta = load(latest)
    *tables, key = ["run", *name.split("/")]
    table = state
    for outer in tables:
        table = table[outer]
    del table[key]
    save(latest, state, meta)
    with pytest.raises(CheckpointError, match=f"does not fit: it lacks '{key}'"):
        Trainer.resume(run, "+100").learn()


@pytest.mark.parametrize(
    ("name", "value"), [("groups", 3), ("evaluations", 3), ("pending", None), ("clock", [1.0])]
)
def test_a_checkpoint_whose_run_holds_something_else_is_refused(run: Path, name: str, value: object) -> None:
    latest = run / "checkpoints" / "latest"
    state, meta = load(latest)
    state["run"][name] = value
    save(latest, state, meta)
    with pytest.raises(CheckpointError, match="does not fit"):
        Trainer.resume(run, "+100").learn()


def test_options_that_may_not_change_are_refused_by_name_and_values(run: Path) -> None:
    with pytest.raises(ConfigurationError, match="hidden_sizes may not change") as raised:
        Trainer.resume(run, "+1", hidden_sizes=(32,))
    assert raised.value.facts == {"option": "hidden_sizes", "of the run": (16,), "asked for": (32,)}
    for name, value in {
        "seed": 5,
        "envs_per_actor": 3,
        "discipline": "lockstep",
        "env": "Acrobot-v1",
    }.items():
        with pytest.raises(ConfigurationError, match=f"{name} may not change"):
            Trainer.resume(run, "+1", **{name: value})
    for before, after, value in (
        (TrainerConfig(env="CartPole-v1", algo="pqn"), PQN(), {"layer_norm": False}),
        (TrainerConfig(env="CartPole-v1", algo="impala"), IMPALA(), {"value_epochs": 2}),
        (
            TrainerConfig(env="CartPole-v1", algo="qmix"),
            QMIX(central_state="state"),
            {"central_state": "observations"},
        ),
        (TrainerConfig(env="CartPole-v1", algo="ppo"), PPO(), {"shared_trunk": False}),
        (TrainerConfig(env="CartPole-v1", algo="ppo"), PPO(), {"initial_log_std": -1.0}),
        (TrainerConfig(env="Pendulum-v1", algo="sac"), SAC(), {"ent_coef_initial": 0.1}),
        (TrainerConfig(env="CartPole-v1", algo="dqn", demonstrations="x"), DQN(), {"prioritized": False}),
        (TrainerConfig(env="CartPole-v1", algo="r2d2"), R2D2(), {"value_rescaling": False}),
        (TrainerConfig(env="CartPole-v1", algo="dqn"), DQN(reward_scale=1.0), {"reward_scale": 0.1}),
        (TrainerConfig(env="CartPole-v1", algo="dqn"), DQN(), {"network": lambda inputs, outputs: None}),
        (TrainerConfig(env="CartPole-v1", algo="dqn"), DQN(network=lambda i, o: None), {"network": "mlp"}),
    ):
        with pytest.raises(ConfigurationError, match=f"{next(iter(value))} may not change"):
            changed_options(before, after, value)
    with pytest.raises(TypeError, match="no option 'learning_rat'; did you mean learning_rate"):
        Trainer.resume(run, "+1", learning_rat=1)


def test_exploration_may_be_another_function_or_none(run: Path) -> None:
    with pytest.raises(ValueError, match="exploration must be a function of progress or none, got"):
        Trainer.resume(run, "+8", exploration=0.3)
    again = Trainer.resume(run, "+8", exploration=lambda progress: 0.2)
    assert again.algorithm.exploration(0.5) == 0.2
    again.learn()
    assert options_of_run(run)[1].exploration(0.5) == 0.2, "this one was kept"
    without = Trainer.resume(run, "+8", exploration=None)
    assert without.algorithm.exploration is None
    without.learn()
    assert options_of_run(run)[1].exploration is None
    with pytest.raises(TypeError, match="no option 'exploratio'; did you mean exploration"):
        Trainer.resume(run, "+1", exploratio=None)


def test_a_reward_of_goals_is_dropped_with_what_it_is_for() -> None:
    config = TrainerConfig(env="asyncrl/BitFlip-v0", algo="dqn")
    record = DQN(goal_reward=lambda achieved, desired, info: None, n_sampled_goal=4)
    with pytest.raises(ValueError, match="n_sampled_goal must be above 0 where goal_reward is given, got 0"):
        changed_options(config, record, {"n_sampled_goal": 0})
    _, changed = changed_options(config, record, {"n_sampled_goal": 0, "goal_reward": None})
    assert (changed.goal_reward, changed.n_sampled_goal) == (None, 0)
    assert changed_options(config, record, {"goal_reward": None})[1].n_sampled_goal == 4


def test_the_number_of_actors_may_change_unless_in_lockstep() -> None:
    config = TrainerConfig(env="CartPole-v1", algo="ppo", num_actors=2)
    changed_options(config, PPO(), {"num_actors": 3, "learning_rate": 1e-4})
    with pytest.raises(ConfigurationError, match="num_actors may not change"):
        changed_options(config, PPO(discipline="lockstep"), {"num_actors": 3})
    with pytest.raises(ConfigurationError, match="torch_threads may not change"):
        changed_options(config, PPO(discipline="lockstep"), {"torch_threads": 2})
    changed_options(config, PPO(), {"torch_threads": 2})


def test_every_rule_is_of_an_option() -> None:
    from asyncrl.algorithms import ALGORITHMS
    from asyncrl.options import option_help

    known = {name for record in (TrainerConfig, *ALGORITHMS.values()) for name in option_help(record)}
    assert {*FIXED, *FIXED_IN_LOCKSTEP} <= known
    check_changes(TrainerConfig(env="a", algo="dqn"), DQN(), TrainerConfig(env="a", algo="dqn"), DQN())


def test_environments_that_are_left_to_the_run_stay_as_many_when_it_goes_on_with_other_actors(
    tmp_path: Path,
) -> None:
    small: dict[str, Any] = {"http": "off", "eval_interval_steps": None, "target_eval_episodes": 1}
    Trainer("CartPole-v1", PPO(), num_actors=2, run_dir=tmp_path, **small).learn(total_steps=1_024)
    config, algorithm = options_of_run(tmp_path)
    assert isinstance(algorithm, PPO) and (config.envs_per_actor, algorithm.segment_length) == (8, 128)
    trainer = Trainer.resume(tmp_path, "+1k", num_actors=1)
    assert trainer.config.envs_per_actor == 8 and trainer.learn().summary["env_steps"] >= 2_024


def test_another_number_of_actors_goes_on_with_an_empty_replay(run: Path) -> None:
    result = Trainer.resume(run, "+400", num_actors=1, save_replay_buffer=True).learn()
    assert 1_400 <= result.summary["env_steps"] <= 1_410


def test_a_kept_replay_is_trained_on_at_once(tmp_path: Path) -> None:
    first = Trainer("CartPole-v1", ALGORITHM, run_dir=tmp_path, save_replay_buffer=True, **SMALL)
    before = first.learn(total_steps=1_000).summary
    trainer = Trainer.resume(tmp_path, "+160")
    assert trainer.resumed_from[1:] == ("the actors begin new episodes",)
    after = trainer.learn().summary
    # Not one of the 160 steps fills a replay again: each pays for 16 samples in batches of 64.
    assert after["updates"] - before["updates"] == pytest.approx(160 * 16 / 64, abs=12)
    assert len(list((tmp_path / "checkpoints").glob("*.replay"))) == 1


def test_more_groups_go_on_with_an_empty_replay(tmp_path: Path) -> None:
    """A group's part of the capacity holds fewer rows than were kept."""
    first = Trainer("CartPole-v1", ALGORITHM, run_dir=tmp_path, save_replay_buffer=True, **SMALL)
    first.learn(total_steps=400)
    more = Trainer.resume(tmp_path, "+400", groups=2)
    assert more.job.resumed is not None and more.job.resumed.rows is None
    assert more.resumed_from[1].endswith("(groups was 1, and each has its part of the replay)")
    assert more.resumed_from[2].startswith("the replay is filled again")


@pytest.mark.parametrize(("before", "ranks"), [(1, 2), (2, 3), (2, 1)])
def test_under_torchrun_a_run_goes_on_with_as_many_groups_as_there_are_ranks(
    before: int, ranks: int, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (run / "config.toml").read_text()
    assert "\ngroups = 1\n" in text
    (run / "config.toml").write_text(text.replace("\ngroups = 1\n", f"\ngroups = {before}\n"))
    torchrun = {"RANK": "0", "WORLD_SIZE": str(ranks), "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    for name, value in torchrun.items():
        monkeypatch.setenv(name, value)
    assert Trainer.resume(run, "+400").config.groups == ranks


def test_under_torchrun_more_groups_go_on_with_an_empty_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The part of a group would have no room for the rows of the only one."""
    trainer_of("dqn", tmp_path, {"discipline": "relaxed"}, num_actors=1).learn(total_steps=200)
    for name, value in {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "1",
    }.items():
        monkeypatch.setenv(name, value)
    more = Trainer.resume(tmp_path, "+400")
    assert more.resumed_from[1].endswith("(groups was 1, and each has its part of the replay)")


def test_actors_whose_grants_were_not_used_up_are_granted_anew(tmp_path: Path) -> None:
    """The learner is starved, so that every actor always has all rows that may be granted ahead."""
    starved: dict[str, Any] = {"discipline": "relaxed", "samples_per_insert": 0.5}
    trainer, done = trainer_of("dqn", tmp_path / "run", starved, total_steps=1_000_000), 0
    for _ in range(2):
        trainer.start()
        try:
            stop_after(trainer, done + 400, limit_seconds=30)
        finally:
            trainer.stop()
        done = asyncio.run(trainer.wait()).summary["env_steps"]
        trainer = Trainer.resume(tmp_path / "run")


def test_a_run_that_is_stopped_before_its_actors_have_a_grant_goes_on_again(tmp_path: Path) -> None:
    """Its rings are full: the next observation of an actor takes the slot of the oldest row."""
    trainer_of("dqn", tmp_path / "run", {"discipline": "relaxed"}).learn(total_steps=1_000)
    Trainer.resume(tmp_path / "run", "+100").learn(callbacks=[StopsAtOnce()])
    last = Trainer.resume(tmp_path / "run", "+100")
    assert last.resumed_from[1:] == ("the actors begin new episodes",)
    assert last.learn().stop_reason == "total_steps"


class StopsAtOnce:
    """A callback that ends the run before it trains."""

    def on_start(self, trainer: Trainer) -> bool:
        return False


def test_a_restored_replay_leaves_its_file_free(tmp_path: Path) -> None:
    """A file that is mapped keeps its space on the disk after the next checkpoint has removed it."""
    options = {**SMALL, "eval_interval_steps": None, "run_dir": tmp_path, "save_replay_buffer": True}
    Trainer("CartPole-v1", ALGORITHM, **options).learn(total_steps=400)
    trainer, mapped = Trainer.resume(tmp_path, "+400"), list[bool]()

    class Maps:
        def on_start(self, trainer: Trainer) -> None:
            mapped.append(str(tmp_path) in Path("/proc/self/maps").read_text())

    trainer.learn(callbacks=[Maps()])
    assert mapped == [False] and "goes on from" in trainer.resumed_from[0]


def test_a_damaged_checkpoint_names_the_one_before_it(run: Path) -> None:
    latest = run / "checkpoints" / "latest"
    data = bytearray(latest.read_bytes())
    data[-5] ^= 1
    shutil.copy(latest, latest.parent / "400")  # a short run may have saved only once
    steps = sorted(int(p.name) for p in latest.parent.iterdir() if p.name.isdecimal())
    (latest.parent / str(steps[-1])).unlink()
    latest.unlink()
    latest.write_bytes(data)
    with pytest.raises(CheckpointError, match="is damaged") as raised:
        Trainer.resume(run, "+100")
    assert raised.value.fix == f"use the one before it, {latest.parent / str(steps[-2])}"
    trainer = Trainer.resume(run, "+100", checkpoint=str(steps[-2]))
    assert trainer.learn().summary["env_steps"] >= steps[-2] + 100


def test_a_damaged_replay_is_refused(tmp_path: Path) -> None:
    algorithm = PPO(discipline="lockstep", hidden_sizes=(8,), segment_length=16)
    Trainer("CartPole-v1", algorithm, run_dir=tmp_path, **SMALL).learn(total_steps=200)
    (file,) = (tmp_path / "checkpoints").glob("*.replay")
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(data)
    with pytest.raises(CheckpointError, match="replay of the checkpoint is damaged"):
        Trainer.resume(tmp_path, "+100")


def test_a_checkpoint_without_rows_goes_on_with_new_episodes(tmp_path: Path) -> None:
    algorithm = PPO(discipline="lockstep", hidden_sizes=(8,), segment_length=16)
    Trainer("CartPole-v1", algorithm, run_dir=tmp_path, **SMALL).learn(total_steps=800)
    trainer = Trainer.resume(tmp_path, 1_200, checkpoint="best")
    assert trainer.resumed_from[1].startswith("the actors begin new episodes")
    assert trainer.learn().summary["env_steps"] >= 1_200
    with pytest.raises(ConfigurationError, match="num_actors may not change"):
        Trainer.resume(tmp_path, "+100", num_actors=3)


def test_a_directory_of_a_run_is_refused_with_the_command_that_goes_on(run: Path) -> None:
    with pytest.raises(ConfigurationError, match="holds a run") as raised:
        Trainer("CartPole-v1", ALGORITHM, run_dir=run, **SMALL).learn(total_steps=10)
    assert raised.value.fix == f"give another directory, or go on with that run: asyncrl resume {run}"


def test_the_home_folder_may_be_written_as_in_a_shell(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    config = TrainerConfig(env="CartPole-v1", algo="dqn", run_dir="~/x", init_from="~/y")
    assert (config.run_dir, config.init_from) == (str(tmp_path / "x"), str(tmp_path / "y"))


def test_a_relative_directory_is_that_of_the_moment_at_which_the_trainer_was_made(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = run.parent / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(run.parent)
    trainer = Trainer.resume(run.name, total_steps="+100")
    monkeypatch.chdir(elsewhere)
    assert trainer.learn(progress=False).run_dir == run
    assert list(elsewhere.iterdir()) == []
    options = TrainerConfig(
        env="CartPole-v1", algo="dqn", run_dir="new", init_from=run.name, dataset="cartpole/name-v0"
    )
    assert paths_from(run.parent, options) == {"run_dir": str(run.parent / "new"), "init_from": str(run)}
    assert Trainer("CartPole-v1", run_dir="x").config.run_dir == "x", "texts say what was given"


def test_a_run_made_with_a_factory_goes_on(tmp_path: Path) -> None:
    import gymnasium

    length = 20
    made = lambda: gymnasium.make("CartPole-v1", max_episode_steps=length)  # noqa: E731
    Trainer(made, ALGORITHM, run_dir=tmp_path, **SMALL).learn(total_steps=300)
    after = Trainer.resume(tmp_path, "+200").learn()
    assert after.summary["env_steps"] >= 500
    assert after.evaluation is not None and after.evaluation.length_mean <= length


def files_of(run: Path) -> dict[str, bytes]:
    return {
        file.name: file.read_bytes()
        for file in run.iterdir()
        if file.suffix in (".toml", ".json", ".jsonl", ".csv")
    }


def test_a_run_whose_last_part_fails_is_left_as_it_was(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*_: Any) -> None:
        raise RuntimeError("no other group")

    ended = files_of(run)
    monkeypatch.setattr(Alone, "attach", fails)
    with pytest.raises(RuntimeError, match="no other group"):
        Trainer.resume(run, "+1k", eval_episodes=2).learn()
    assert files_of(run) == ended


def test_an_environment_whose_spaces_have_changed_leaves_the_run_as_it_was(tmp_path: Path) -> None:
    (size := tmp_path / "size").write_text("4")

    def made() -> Any:
        import gymnasium
        from gymnasium.wrappers import TransformObservation

        count = int(size.read_text())
        space = gymnasium.spaces.Box(-100, 100, (count,), np.float32)
        return TransformObservation(gymnasium.make("CartPole-v1"), lambda obs: np.resize(obs, count), space)

    Trainer(made, ALGORITHM, run_dir=tmp_path / "run", **SMALL).learn(total_steps=300)
    ended = files_of(tmp_path / "run")
    size.write_text("5")
    with pytest.raises(SpacesDoNotFit, match="The observation space of"):
        Trainer.resume(tmp_path / "run", "+200").learn()
    assert files_of(tmp_path / "run") == ended
    size.write_text("4")
    assert Trainer.resume(tmp_path / "run", "+200").learn().summary["env_steps"] >= 500
