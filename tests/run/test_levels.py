"""Evaluations in environments of their own: another one, other keyword arguments, several levels with a figure each."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from small_records import small

from asyncrl import Trainer, flat
from asyncrl.cli.main import main
from asyncrl.config import TrainerConfig
from asyncrl.envs.changes import unpack_changes
from asyncrl.envs.source import EnvSource
from asyncrl.errors import SpacesDoNotFit
from asyncrl.interfaces import DiscreteAction, EnvSpec
from asyncrl.show.kept_run import KeptRun
from asyncrl.show.readout import readout

QUICK: dict[str, Any] = {
    "num_actors": 1,
    "envs_per_actor": 2,
    "http": "off",
    "device": "cpu",
    "eval_interval_steps": 200,
    "eval_episodes": 3,
    "target_eval_episodes": 2,
}


class Paid(gymnasium.Env[Any, Any]):
    """Episodes of five steps with a constant reward; `size` is that of the observation."""

    def __init__(self, reward: float = 1.0, size: int = 2) -> None:
        self.observation_space = gymnasium.spaces.Box(-1, 1, (size,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.reward, self.steps = reward, 0

    def reset(self, **_: Any) -> Any:
        self.steps = 0
        return np.zeros(self.observation_space.shape, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return np.zeros(self.observation_space.shape, np.float32), self.reward, self.steps == 5, False, {}


class Debited(Paid):
    """The same, where every step costs."""

    def __init__(self, reward: float = -1.0) -> None:
        super().__init__(reward)


class Lasting(Paid):
    """The same, where episodes last `steps`, and `offset` is added to every reward."""

    def __init__(self, reward: float = -1.0, steps: int = 5, offset: float = 0.0) -> None:
        super().__init__(reward + offset)
        self.last = steps

    def step(self, action: Any) -> Any:
        obs, reward, *_ = super().step(action)
        return obs, reward, self.steps == self.last, False, {}


def trained(tmp_path: Path | None = None, **options: Any) -> Any:
    record = small("dqn", learning_starts=50, discipline="lockstep")
    trainer = Trainer(
        Paid, record, run_dir=None if tmp_path is None else tmp_path / "run", **{**QUICK, **options}
    )
    result = trainer.learn(total_steps=300, progress=False)
    return result, trainer


def test_keyword_arguments_of_evaluations_lie_over_those_of_training() -> None:
    result, trainer = trained(env_kwargs={"reward": 2.0}, eval_env_kwargs={"reward": 3.0})
    assert [evaluation.return_mean for evaluation in result.evaluations] == [15.0, 15.0]
    assert result.summary["episodes_return_mean"] == 10.0 and result.evaluation.level_returns == {}
    assert trainer.config.eval_env_kwargs == {"reward": 3.0}


def test_another_environment_is_evaluated_in() -> None:
    result, trainer = trained(eval_env=partial(Paid, -1.0), env_kwargs={"reward": 2.0})
    assert result.evaluation.return_mean == -5.0 and "Paid" in trainer.config.eval_env


def test_every_level_has_its_figure(tmp_path: Path) -> None:
    levels = {"easy": {"reward": 4.0}, "hard": {"reward": 1.0}}
    result, trainer = trained(tmp_path, eval_levels=levels)
    for evaluation in result.evaluations:
        assert evaluation.level_returns == {"easy": 20.0, "hard": 5.0}
        assert (evaluation.return_mean, evaluation.return_std) == (12.5, 7.5)
    first, final = result.evaluations
    assert (first.episodes, final.episodes) == (6, 4), "so many of each level"
    assert flat(final)["eval/mean_reward/easy"] == 20.0
    snapshot = trainer.snapshot()
    assert snapshot is not None and snapshot.metrics["eval/mean_reward/hard"] == 5.0
    assert [(f.label, f.value) for f in readout(snapshot).levels] == [("easy", "20"), ("hard", "5")]
    run = tmp_path / "run"
    assert json.loads((run / "summary.json").read_text())["eval"]["level_returns"] == {
        "easy": 20.0,
        "hard": 5.0,
    }
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["eval/mean_reward/hard"] for line in lines if "eval/mean_reward" in line] == [5.0, 5.0]
    assert [value for _, value in KeptRun(run).evaluations] == [12.5, 12.5]

    resumed = Trainer.resume(run, "+200", eval_levels={"easy": {"reward": 4.0}, "new": {"reward": 9.0}})
    more = resumed.learn(progress=False)
    assert [e.level_returns for e in more.evaluations[:2]] == [{"easy": 20.0, "hard": 5.0}] * 2
    assert more.evaluation.level_returns == {"easy": 20.0, "new": 45.0}

    again = Trainer.resume(run, "+200", eval_levels={"easy": {"reward": 0.0}}).learn(progress=False)
    kept = [e.level_returns for e in again.evaluations[: len(more.evaluations)]]
    assert kept == [e.level_returns for e in more.evaluations]
    assert again.best is not None and again.best.evaluation.level_returns == {"easy": 20.0, "new": 45.0}


def test_a_factory_of_evaluations_is_kept_for_a_resumed_run(tmp_path: Path) -> None:
    trained(tmp_path, eval_env=lambda: Paid(7.0), eval_env_kwargs={})
    resumed = Trainer.resume(tmp_path / "run", "+200").learn(progress=False)
    assert resumed.evaluation is not None and resumed.evaluation.return_mean == 35.0


def test_levels_of_a_factory_of_evaluations_are_the_same_in_a_resumed_run(tmp_path: Path) -> None:
    """The file has the factory that was given, and not that of the first level."""
    levels = {"rich": {"reward": 7.0}, "plain": {}}
    result, _ = trained(tmp_path, eval_env=Paid, eval_levels=levels)
    resumed = Trainer.resume(tmp_path / "run", "+200").learn(progress=False)
    assert result.evaluation.level_returns == {"rich": 35.0, "plain": 5.0}
    assert resumed.evaluation is not None
    assert resumed.evaluation.level_returns == result.evaluation.level_returns


def test_an_environment_with_other_spaces_is_refused_before_training() -> None:
    with pytest.raises(SpacesDoNotFit, match=r"The observation space of .* is not that"):
        trained(eval_env_kwargs={"size": 3})


def test_levels_are_texts_on_the_command_line() -> None:
    config = TrainerConfig(env="x", algo="dqn", eval_levels=["hard:{'gravity': -12.0}"])  # type: ignore[arg-type]
    assert config.eval_levels == {"hard": {"gravity": -12.0}}
    with pytest.raises(ValueError, match="eval_levels must have keyword arguments for hard, got 3"):
        TrainerConfig(env="x", algo="dqn", eval_levels={"hard": 3})


def mountain(steps: int) -> Any:
    return gymnasium.make("MountainCar-v0", max_episode_steps=steps)


def test_evaluations_last_as_long_as_their_own_environment_lets_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not as the environment of training, whose episodes are often made shorter."""
    trainer = Trainer(
        partial(mountain, 7),
        small("dqn", learning_starts=50, discipline="lockstep"),
        eval_env=partial(mountain, 30),
        run_dir=tmp_path / "run",
        **QUICK,
    )
    result = trainer.learn(total_steps=300, progress=False)
    assert {each.length_mean for each in result.evaluations} == {30.0}
    assert result.summary["eval"]["cut_episodes"] == 0
    assert played(tmp_path / "run", capsys)["length_mean"] == 30.0
    result.policy.save(tmp_path / "x.policy")
    assert played(tmp_path / "x.policy", capsys)["length_mean"] == 7.0, (
        "a file has the environment of training"
    )
    longer = played(tmp_path / "x.policy", capsys, "--env", "MountainCar-v0")
    assert longer["length_mean"] == 200.0


@pytest.mark.filterwarnings("ignore::asyncrl.errors.EvaluationIncomplete")
def test_eval_cuts_episodes_where_the_evaluations_of_the_run_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result, _ = trained(tmp_path, eval_max_episode_steps=3)
    assert result.evaluation.length_mean == 3.0
    assert played(tmp_path / "run", capsys)["return_mean"] == result.evaluation.return_mean == 3.0


def test_eval_draws_actions_where_the_evaluations_of_the_run_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result, _ = trained(tmp_path, eval_deterministic=False)
    run, file = tmp_path / "run", tmp_path / "x.policy"
    result.policy.save(file)
    for named, flag, greedy in (
        (run, [], False),
        (run, ["--deterministic"], True),
        (file, [], True),
        (file, ["--no-deterministic"], False),
    ):
        assert played(named, capsys, *flag)["deterministic"] == greedy


def test_a_source_without_other_environments_is_evaluated_in_itself() -> None:
    source = EnvSource.from_user("CartPole-v1")
    assert source.evaluated_in(None, {}, {}) is source
    (named,) = source.evaluated_in(None, {"sutton_barto_reward": True}, {}).levels
    assert named[0] == "" and named[1].kind == "changed"


def test_eval_takes_keyword_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained(tmp_path)
    for arguments, mean in (([], 5.0), (["--env-kwargs", "reward:9"], 45.0)):
        assert main(["eval", str(tmp_path / "run"), "--episodes", "2", "--json", *arguments]) == 0
        assert json.loads(capsys.readouterr().out)["return_mean"] == mean


# --- asyncrl eval ---------------------------------------------------------------------------------------------


def played(run: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """The record of `asyncrl eval`."""
    capsys.readouterr()
    assert main(["eval", str(run), "--episodes", "2", "--json", *arguments]) == 0
    record: dict[str, Any] = json.loads(capsys.readouterr().out)
    return record


def test_eval_plays_what_the_evaluations_of_the_run_play(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    levels = {"rich": {"reward": 7.0}, "plain": {}}
    result, _ = trained(tmp_path, eval_env=Debited, env_kwargs={"reward": 2.0}, eval_levels=levels)
    record = played(tmp_path / "run", capsys)
    assert record["level_returns"] == result.evaluation.level_returns == {"rich": 35.0, "plain": -5.0}
    assert (record["return_mean"], record["episodes"]) == (15.0, 4)
    assert (record["env"], record["trained_env"]) == ("Debited", "Paid")
    assert main(["eval", str(tmp_path / "run"), "--episodes", "1"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert "levels       rich 35.0, plain -5.00" in told
    assert "environment  Debited, trained in Paid" in told
    assert played(result.policy.save(tmp_path / "own.policy"), capsys)["return_mean"] == 10.0


def test_keyword_arguments_of_eval_leave_levels_as_different_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    levels = {"rich": {"reward": 7.0}, "long": {"steps": 6}}
    trained(tmp_path, eval_env=Lasting, eval_levels=levels)
    run = tmp_path / "run"
    capsys.readouterr()
    assert main(["eval", str(run), "--env-kwargs", "reward:3.0"]) == 1
    told = " ".join(capsys.readouterr().err.split())
    assert (
        "env_kwargs must leave reward to the levels" in told and "level rich sets it to 7.0, got 3.0" in told
    )
    assert "--env NAME --env-kwargs reward:3.0" in told
    with_offset = played(run, capsys, "--env-kwargs", "offset:1.0")
    assert with_offset["level_returns"] == {"rich": 40.0, "long": 0.0}, "one that no level sets is for all"
    same = played(run, capsys, "--env-kwargs", "steps:6")
    assert same["level_returns"] == {"rich": 42.0, "long": -6.0}, "and so is a value that a level has"


def test_eval_plays_an_environment_that_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    record = small("dqn", learning_starts=50)
    Trainer("levels:Level", record, run_dir=run, **QUICK, env_kwargs={"level": 1}).learn(total_steps=100)
    assert played(run, capsys)["length_mean"] == 4.0
    named = played(run, capsys, "--env", "levels:Settable", "--env-kwargs", "level:4")
    assert (named["length_mean"], named["env"], named["trained_env"]) == (
        7.0,
        "levels:Settable",
        "levels:Level",
    )
    assert played(run, capsys, "--env", "levels:Level")["length_mean"] == 3.0, (
        "not the run's keyword arguments"
    )
    assert main(["eval", str(run), "--env", "levels:Level", "--env-kwargs", "wide:True"]) == 1
    assert (
        "[ASYNC005] The observation space of levels:Level is not that of a policy's training in levels:Level"
        in (capsys.readouterr().err)
    )
    assert main(["eval", str(run), "--env-kwargs", "wide:True"]) == 1
    assert "The observation space of levels:Level" in capsys.readouterr().err
    assert main(["eval", str(run), "--env", "CartPole-v9"]) == 1
    assert "[ASYNC006]" in capsys.readouterr().err


def test_an_environment_in_place_of_another_gets_its_named_wrappers() -> None:
    wrapper = "gymnasium.wrappers:ClipReward"
    trained_in = EnvSource.from_user("levels:Level").changed({"level": 3}, (wrapper,), agent_id=True)
    alone = EnvSpec("levels:Level", (1,), "float32", DiscreteAction(2))
    source = EnvSource.from_user("levels:Settable").in_place_of(trained_in, alone)
    wrappers = [wrapper, "asyncrl.envs.agents:AgentId"]
    assert unpack_changes(source.payload) == ("levels:Settable", {}, wrappers)
    assert EnvSource.from_user("a").in_place_of(EnvSource.from_user(Paid), alone) == EnvSource.from_user("a")
