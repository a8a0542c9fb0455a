"""Learning rate, clip range and exploration as functions of progress."""

from __future__ import annotations

import re
import threading
import tomllib
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncrl
from asyncrl import DQN, IQL, PPO, SAC, Callback, Trainer
from asyncrl.acting.schedules import EpsilonSchedule
from asyncrl.algorithms import ALGORITHMS
from asyncrl.algorithms.on_policy_update import OnPolicyUpdate
from asyncrl.algorithms.q_learning_update import QLearningUpdate
from asyncrl.cli.train import parse
from asyncrl.config import TrainerConfig
from asyncrl.envs.source import EnvSource
from asyncrl.errors import ConfigurationError, OptionNotKept, ScheduleWithoutSteps
from asyncrl.interfaces import BoxAction, EnvSpec
from asyncrl.options import functions_of, option_values
from asyncrl.run.job import Job
from asyncrl.storage.config_file import dump_config, options_by_table
from asyncrl.storage.resume import options_of_run
from asyncrl.storage.run_directory import RunDirectory
from asyncrl.storage.run_files import functions_of_run, write_run_files
from asyncrl.trainer.arguments import require_steps

SOURCE = EnvSource.from_user("CartPole-v1")


def falling(progress: float) -> float:
    return 1e-3 * (1 - progress)


class Explored(Callback):
    """The exploration rate of the last report."""

    rate: float | None = None

    def on_report(self, trainer: Trainer, snapshot: Any) -> None:
        self.rate = snapshot.exploration_rate


def train(env: str, algorithm: Any, steps: int, **options: Any) -> float | None:
    """Train; return the last exploration rate."""
    explored = Explored()
    given = {"num_actors": 1, "envs_per_actor": 4, "http": "off", "eval_interval_steps": None, "seed": 1}
    trainer = Trainer(env, algorithm, target_eval_episodes=1, **given, **options)
    trainer.learn(total_steps=steps, callbacks=[explored])
    return explored.rate


def test_dqn_follows_functions_of_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    dqn = DQN(
        learning_rate=falling,
        exploration=lambda progress: 0.8 if progress < 0.5 else 0.2,
        exploration_steps=1_000,
        learning_starts=100,
        samples_per_insert=8.0,
        discipline="lockstep",
    )
    seen: list[tuple[float, float]] = []
    update = QLearningUpdate.update

    def recorded(core: Any, batch: Any) -> Any:
        result = update(core, batch)
        seen.append((batch.progress, core.metrics()["train/learning_rate"]))
        return result

    monkeypatch.setattr(QLearningUpdate, "update", recorded)
    assert train("CartPole-v1", dqn, 4_000) == pytest.approx(0.2, abs=1e-5)
    for progress, rate in seen:
        assert rate == pytest.approx(falling(progress))
    progress, _ = zip(*seen, strict=True)
    assert list(progress) == sorted(progress) and 0.02 < progress[0] < 0.06 and 0.95 < progress[-1] <= 1.0


def test_ppo_follows_functions_of_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """An iteration has the learning rate and clip range of the progress at which it begins."""
    seen: list[tuple[float, float, float]] = []
    step = OnPolicyUpdate.step

    def recorded(core: Any) -> bool:
        progress = core._rollout.progress
        clip, _ = core.config._clip_ranges(progress)
        seen.append((progress, core.metrics()["train/learning_rate"], clip))
        return step(core)

    monkeypatch.setattr(OnPolicyUpdate, "step", recorded)
    train(
        "CartPole-v1",
        PPO(segment_length=128, learning_rate=falling, clip_range=lambda p: 0.3 - 0.2 * p),
        4_000,
    )
    begun = sorted({progress for progress, _, _ in seen})
    assert begun[0] == 0.0 and begun[-1] > 0.75
    assert np.diff(begun).max() <= 512 / 4_000, "an iteration has 4 x 128 rows, some of them of resets"
    for progress, rate, clip in seen:
        assert rate == pytest.approx(falling(progress)) and clip == pytest.approx(0.3 - 0.2 * progress)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_takes_a_function(name: str) -> None:
    record = ALGORITHMS[name](learning_rate=falling)
    assert functions_of(record) == {"learning_rate": falling} and "learning_rate" not in option_values(record)


def test_the_clip_range_is_that_of_the_progress() -> None:
    assert PPO(clip_range=lambda p: 0.3 - 0.2 * p)._clip_ranges(0.5) == (pytest.approx(0.2), None)
    assert PPO(clip_range=0.1, value_clip_range=falling)._clip_ranges(1.0) == (0.1, 0.0)


def test_an_actors_rate_follows_its_own_function_or_the_critics_schedule() -> None:
    box = EnvSpec("box", (3,), "float32", BoxAction((-1.0,), (1.0,), (1,)))

    def rate(**options: Any) -> float:
        core = SAC(hidden_sizes=(4,), **options).make_updater(box, "cpu", 0)
        core._updates, core._progress = 7, 0.25
        return core.actor_learning_rate

    assert rate(learning_rate=falling) == falling(0.25)
    assert rate(learning_rate=falling, actor_learning_rate=2e-3) == 2e-3
    assert rate(actor_learning_rate=falling) == falling(0.25)
    assert rate(actor_learning_rate=6e-4) == pytest.approx(6e-4)
    linear = {"learning_rate_schedule": "linear", "learning_rate_updates": 14}
    assert rate(learning_rate=1e-3, actor_learning_rate=1e-4, **linear) == pytest.approx(5e-5)
    assert rate(actor_learning_rate=falling, **linear) == falling(0.25)


def test_exploration_follows_its_function_over_its_steps() -> None:
    epsilon = EpsilonSchedule(steps=100, function=lambda progress: 1 - progress)
    assert [epsilon.base(steps) for steps in (0, 25, 100, 1_000)] == [1.0, 0.75, 0.0, 0.0]


def test_the_policy_of_a_run_explores_at_the_last_value_of_the_function(tmp_path: Path) -> None:
    """A checkpoint holds no function: it was read with the default final rate, 0.05."""
    record = DQN(hidden_sizes=(8,), exploration=lambda progress: 1 - 0.75 * progress, learning_starts=100)
    options: dict[str, Any] = {
        "num_actors": 1,
        "http": "off",
        "eval_interval_steps": None,
        "eval_episodes": 1,
    }
    run = Trainer("CartPole-v1", record, run_dir=tmp_path / "run", **options)
    run.learn(total_steps=200, progress=False)
    policy = asyncrl.load(tmp_path / "run")
    policy.predict(np.zeros((10, 4), np.float32), deterministic=False)
    assert policy.policy.exploration_rate == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"learning_rate": lambda p: -p},
            "learning_rate must be at least 0 and finite, got -0.5 at progress 0.5",
        ),
        ({"learning_rate": lambda p: None}, "learning_rate must be at least 0 and finite, got None"),
        (
            {"exploration": lambda p: 2 * p},
            r"exploration must be at least 0 and at most 1, got 2.0 at progress 1.0",
        ),
        (
            {"learning_rate": lambda: 1e-3},
            "learning_rate must be a function of progress alone, got one whose call fails: too many positional arg",
        ),
        (
            {"learning_rate": lambda progress_remaining: progress_remaining},
            r"rises from 0 to 1, got one of progress_remaining, .*; write lambda progress: f\(1 - progress\)",
        ),
        (
            {"learning_rate": falling, "learning_rate_schedule": "linear"},
            "learning_rate_schedule must be constant where learning_rate is a function",
        ),
        ({"learning_rate": "fast"}, "learning_rate must be a number or a function of progress, got 'fast'"),
        ({"exploration": 0.1}, "exploration must be a function of progress or none, got 0.1"),
        ({"goal_reward": 0.1}, "goal_reward must be a function or none, got 0.1"),
    ],
)
def test_a_function_that_does_not_do_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DQN(**options)


def test_a_function_needs_total_steps() -> None:
    with pytest.raises(
        ValueError, match="total_steps must be given where learning_rate is a function of progress"
    ):
        Trainer("CartPole-v1", DQN(learning_rate=falling), http="off").learn(max_seconds=1)


def test_an_own_network_is_no_function_of_progress() -> None:
    record = DQN(network=lambda inputs, outputs: None)
    require_steps(Job(TrainerConfig(env="CartPole-v1", algo="dqn", max_seconds=1.0), record, SOURCE))


@pytest.mark.parametrize(
    ("record", "says"),
    [
        (
            PPO(learning_rate_schedule="linear"),
            "learning_rate_schedule is linear .* learning_rate stays as it",
        ),
        (PPO(learning_rate_schedule="cooldown"), "learning_rate_schedule is cooldown"),
        (IQL(), "actor_learning_rate_schedule is cosine .* actor_learning_rate stays as it begins"),
        (PPO(), None),
        (DQN(learning_rate_schedule="linear"), "learning_rate_schedule is linear"),
        (DQN(learning_rate_schedule="linear", learning_rate_updates=1_000), None),
    ],
)
def test_a_schedule_over_the_steps_warns_without_total_steps(record: Any, says: str | None) -> None:
    job = Job(TrainerConfig(env="CartPole-v1", algo=record.name, max_seconds=1.0), record, SOURCE)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        require_steps(job)
        require_steps(replace(job, config=replace(job.config, total_steps=1_000)))
    found = [str(one.message) for one in caught if issubclass(one.category, ScheduleWithoutSteps)]
    assert len(found) == (says is not None)
    assert says is None or re.search(rf"ASYNC048\] {says}", found[0])


def test_a_schedule_of_one_policy_of_several_warns_too() -> None:
    own = {
        "policies": {"a": "a.*", "b": "b.*"},
        "policy_options": {"a": {"learning_rate_schedule": "linear"}},
    }
    job = Job(TrainerConfig(env="CartPole-v1", algo="ppo", **own), PPO(), SOURCE)
    with pytest.warns(ScheduleWithoutSteps, match="learning_rate_schedule is linear"):
        require_steps(job)


def test_a_file_names_what_it_cannot_hold() -> None:
    config = TrainerConfig(env="CartPole-v1", algo="dqn")
    record = DQN(learning_rate=falling, exploration=lambda progress: 0.1, gamma=0.9)
    text = dump_config(config, record)
    where = Path(__file__).name
    assert "# learning_rate is falling: a function, kept in functions.pkl" in text
    assert f"# exploration is test_a_file_names_what_it_cannot_hold.<locals>.<lambda> in {where}:" in text
    assert tomllib.loads(text)["dqn"]["gamma"] == 0.9 and "learning_rate" not in tomllib.loads(text)["dqn"]
    assert options_by_table(config, record)["dqn"]["learning_rate"] == "falling"


def test_a_run_directory_keeps_functions_that_pickle(tmp_path: Path) -> None:
    config, source = TrainerConfig(env="CartPole-v1", algo="dqn"), EnvSource.from_user("CartPole-v1")
    for name, rate, kept in (
        ("pickles", lambda progress: 1e-3 * (1 - progress), {"learning_rate"}),
        ("number", 1e-3, set()),
    ):
        directory = RunDirectory(tmp_path / name)
        write_run_files(directory, config, DQN(learning_rate=rate), source)
        directory.close()
        functions = functions_of_run(tmp_path / name)
        assert set(functions) == kept
        assert not kept or functions["learning_rate"](0.5) == 5e-4
    _, resumed = options_of_run(tmp_path / "pickles")
    assert resumed.learning_rate_at(0, 0.5) == 5e-4
    (tmp_path / "pickles" / "functions.pkl").write_bytes(b"broken")
    with pytest.raises(ConfigurationError, match="the functions of the run cannot be unpickled"):
        functions_of_run(tmp_path / "pickles")


def test_a_function_that_does_not_pickle_is_named_and_asked_for_again(tmp_path: Path) -> None:
    config, source = TrainerConfig(env="CartPole-v1", algo="dqn"), EnvSource.from_user("CartPole-v1")
    lock = threading.Lock()
    record = DQN(learning_rate=lambda progress: 1e-3 if lock else 0.0, exploration=lambda progress: 0.5)
    directory = RunDirectory(tmp_path)
    with pytest.warns(OptionNotKept, match="ASYNC046.*learning_rate is a function .*lock.*given again"):
        write_run_files(directory, config, record, source)
    directory.close()
    with pytest.raises(
        ConfigurationError, match="learning_rate of the run was a function that did not pickle"
    ):
        options_of_run(tmp_path)
    _, resumed = options_of_run(tmp_path, given={"learning_rate": 1e-4})
    assert resumed.exploration(0.3) == 0.5


def test_a_file_in_its_run_takes_the_functions_and_a_flag_goes_before_them(tmp_path: Path) -> None:
    config, source = TrainerConfig(env="CartPole-v1", algo="dqn"), EnvSource.from_user("CartPole-v1")
    directory = RunDirectory(tmp_path)
    write_run_files(directory, config, DQN(learning_rate=lambda progress: 1e-3 * (1 - progress)), source)
    directory.close()
    arguments = ["--config", str(tmp_path / "config.toml"), "--run-dir", "none"]
    assert parse(arguments)[1].learning_rate_at(0, 0.5) == 5e-4
    assert parse([*arguments, "--dqn.learning-rate", "0.5"])[1].learning_rate == 0.5


def test_a_flag_that_contradicts_a_kept_function_is_a_wrong_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, source = (
        TrainerConfig(env="asyncrl/BitFlip-v0", algo="dqn"),
        EnvSource.from_user("asyncrl/BitFlip-v0"),
    )
    directory = RunDirectory(tmp_path)
    write_run_files(directory, config, DQN(goal_reward=lambda achieved, desired, info: achieved), source)
    directory.close()
    arguments = ["--config", str(tmp_path / "config.toml"), "--run-dir", "none", "--dqn.n-sampled-goal", "0"]
    with pytest.raises(SystemExit):
        parse(arguments)
    assert "n_sampled_goal must be above 0 where goal_reward is given, got 0" in capsys.readouterr().err


def test_without_a_directory_nothing_has_to_be_kept() -> None:
    config, source = TrainerConfig(env="CartPole-v1", algo="dqn"), EnvSource.from_user("CartPole-v1")
    lock = threading.Lock()
    directory = RunDirectory(None)
    write_run_files(directory, config, DQN(learning_rate=lambda p: 1e-3 if lock else 0.0), source)
    directory.close()
