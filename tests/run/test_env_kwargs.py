"""A run whose callbacks change the keyword arguments of its training environments."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import levels
import numpy as np
import pytest
from small_records import small
from waiting import wait_until

from asyncrl import Callback, Curriculum, Trainer
from asyncrl.errors import EnvironmentNotBuilt, SpacesDoNotFit

DISCIPLINES = [
    ("dqn", "relaxed"),
    ("dqn", "lockstep"),
    ("ppo", "relaxed"),
    ("ppo", "lockstep"),
    ("ppo", "synchronous"),
]


class Harder(Callback):
    """Sets the next level after every evaluation."""

    def on_evaluation(self, trainer: Trainer, evaluation: Any) -> None:
        trainer.set_env_kwargs(level=trainer.env_kwargs.get("level", 0) + 1)


class HarderUntil(Harder):
    """`Harder`, and ends the run after some evaluations."""

    def __init__(self, evaluations: int) -> None:
        self.left = evaluations

    def on_evaluation(self, trainer: Trainer, evaluation: Any) -> Any:
        super().on_evaluation(trainer, evaluation)
        self.left -= 1
        return self.left > 0


class Calls(Callback):
    """Calls `call(trainer)` at one event, and keeps the exception."""

    def __init__(self, event: str, call: Any) -> None:
        self.error: BaseException | None = None
        self.call = call
        setattr(self, event, self.at_event)

    def at_event(self, trainer: Trainer, event: Any = None) -> None:
        if self.error is None:
            try:
                self.call(trainer)
            except Exception as error:
                self.error = error


def trainer_of(
    algo: str, discipline: str, run_dir: Path | None = None, env: Any = levels.Level, **given: Any
) -> Trainer:
    options: dict[str, Any] = {"learning_starts": 100} if algo == "dqn" else {"segment_length": 16}
    run: dict[str, Any] = {
        "num_actors": 2,
        "envs_per_actor": 2,
        "eval_interval_steps": 200,
        "eval_episodes": 2,
    }
    record = small(algo, discipline=discipline, **options)
    return Trainer(
        env, record, http="off", seed=2, run_dir=run_dir, target_eval_episodes=2, **{**run, **given}
    )


def changes_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "env_kwargs.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(("algo", "discipline"), DISCIPLINES)
def test_every_change_counts_and_repeatable_runs_repeat(algo: str, discipline: str, tmp_path: Path) -> None:
    runs = [tmp_path / "a", tmp_path / "b"]
    if discipline == "relaxed":  # however late an evaluation ends, training goes on until some have
        results = [trainer_of(algo, discipline, runs[0]).learn(1_000_000, callbacks=[HarderUntil(4)])]
    else:
        results = [trainer_of(algo, discipline, run).learn(1_000, callbacks=[Harder()]) for run in runs]
    found = changes_of(runs[0])
    numbers = [change["number"] for change in found]
    assert numbers and numbers == sorted(set(numbers)), "in order"
    assert all(change["env_kwargs"] == {"level": change["number"]} for change in found)
    steps = [change["env_steps"] for change in found]
    assert steps == sorted(steps)
    if discipline != "relaxed":
        evaluated = [evaluation.env_steps for evaluation in results[0].evaluations]
        assert steps == evaluated[1 : len(steps) + 1], "each from the step of the next evaluation on"
        assert found == changes_of(runs[1])
        assert np.array_equal(results[0].policy.weights, results[1].policy.weights)
        assert results[0].summary["episodes"] == results[1].summary["episodes"]
        plain = trainer_of(algo, discipline).learn(1_000)
        assert results[0].summary["episodes"] < plain.summary["episodes"], "longer episodes on higher levels"


@pytest.mark.parametrize("algo", ["dqn", "ppo"])
def test_a_resumed_run_goes_on_with_the_newest_to_the_bit(algo: str, tmp_path: Path) -> None:
    whole = trainer_of(algo, "lockstep", tmp_path / "whole").learn(1_500, callbacks=[Harder()])
    halves = tmp_path / "halves"
    first = trainer_of(algo, "lockstep", halves, save_replay_buffer=True)

    class Stops(Harder):
        def on_evaluation(self, trainer: Trainer, evaluation: Any) -> Any:
            super().on_evaluation(trainer, evaluation)
            return evaluation.env_steps < 600

    first.learn(1_500, callbacks=[Stops()])
    second = Trainer.resume(halves)
    assert second.env_kwargs == {}, "known once the run goes on"
    result = second.learn(callbacks=[Harder()])
    assert result.stop_reason == "total_steps"
    assert np.array_equal(result.policy.weights, whole.policy.weights)
    assert changes_of(halves) == changes_of(tmp_path / "whole")
    assert result.summary["episodes"] == whole.summary["episodes"]


def test_damaged_lines_of_the_file_are_left_out(tmp_path: Path) -> None:
    """The checkpoint says what the environments have; the file is for people."""
    run = tmp_path / "run"
    trainer_of("dqn", "lockstep", run).learn(800, callbacks=[Harder()])
    before = changes_of(run)
    lines = (run / "env_kwargs.jsonl").read_bytes().splitlines(keepends=True)
    (run / "env_kwargs.jsonl").write_bytes(b"\xff\n" + b"".join(lines[:-1]) + lines[-1][:9] + b"\n[]\n{}\n")
    seen: list[dict[str, Any]] = []
    callback = Calls("on_start", lambda trainer: seen.append(dict(trainer.env_kwargs)))
    Trainer.resume(run, "+100").learn(callbacks=[callback])
    assert len(seen) == 1 and seen[0]["level"] >= before[-1]["number"], "those of the checkpoint"
    assert changes_of(run)[: len(before) - 1] == before[:-1]


def test_a_method_of_the_environment_takes_its_place(tmp_path: Path) -> None:
    runs = {env: tmp_path / env.__name__ for env in (levels.Settable, levels.SettableVector)}
    for env, run in runs.items():
        trainer_of("dqn", "lockstep", run, env).learn(800, callbacks=[Harder()])
        assert len(changes_of(run)) >= 2


@pytest.mark.parametrize(
    ("kwargs", "kind"), [({"height": 3}, EnvironmentNotBuilt), ({"wide": True}, SpacesDoNotFit)]
)
def test_what_the_environment_does_not_take_ends_the_run_in_good_order(
    kwargs: dict[str, Any], kind: type[Exception], tmp_path: Path
) -> None:
    with pytest.raises(kind):
        trainer_of("dqn", "relaxed", tmp_path / "run").learn(
            50_000, callbacks=[Calls("on_evaluation", lambda trainer: trainer.set_env_kwargs(**kwargs))]
        )
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["state"] == "failed" and summary["env_steps"] > 0
    assert not (tmp_path / "run" / "env_kwargs.jsonl").exists(), "no actor has heard of it"
    assert Trainer.resume(tmp_path / "run", "+100").learn().stop_reason == "total_steps"


@pytest.mark.parametrize(
    ("event", "discipline", "call", "kind", "text"),
    [
        ("on_report", "lockstep", {"level": 1}, RuntimeError, "is called in on_start or on_evaluation"),
        ("on_start", "relaxed", {"level": object}, TypeError, "Python literals, got level=<class 'object'>"),
    ],
)
def test_calls_that_are_refused(
    event: str, discipline: str, call: dict[str, Any], kind: Any, text: str
) -> None:
    refused = Calls(event, lambda trainer: trainer.set_env_kwargs(**call))
    trainer_of("dqn", discipline, report_interval_steps=100).learn(300, callbacks=[refused])
    assert isinstance(refused.error, kind) and text in str(refused.error)


def test_a_value_of_another_type_is_a_change(tmp_path: Path) -> None:
    """1, 1.0 and True are equal in Python, and an environment may do something else with each."""
    values = iter([1, np.int64(1), 1.0, 1.0, True])

    class Next(Callback):
        def on_evaluation(self, trainer: Trainer, evaluation: Any) -> None:
            if (value := next(values, None)) is not None:
                trainer.set_env_kwargs(level=value)

    trainer_of("dqn", "lockstep", tmp_path / "run", env_kwargs={"level": 1}).learn(1_800, callbacks=[Next()])
    levels = [change["env_kwargs"]["level"] for change in changes_of(tmp_path / "run")]
    assert [repr(level) for level in levels] == ["1.0", "True"]


def test_before_and_after_a_run_nothing_can_be_set() -> None:
    trainer = trainer_of("dqn", "relaxed", env_kwargs={"level": 1})
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"give Trainer\(env_kwargs=...\) before it"):
            trainer.set_env_kwargs(level=2)
        assert trainer.env_kwargs == {"level": 1}
        if not trainer.done:
            trainer.learn(200)
    with pytest.raises(RuntimeError, match="runs of one group, got groups=2"):
        trainer_of("dqn", "relaxed", groups=2).set_env_kwargs(level=2)


def test_any_thread_can_set_them_in_a_relaxed_run(tmp_path: Path) -> None:
    trainer = trainer_of("dqn", "relaxed", tmp_path / "run")
    trainer.start(1_000_000)
    wait_until(lambda: (shown := trainer.snapshot()) is not None and shown.env_steps > 0, "steps")
    trainer.set_env_kwargs(level=5)
    assert trainer.env_kwargs == {"level": 5}
    wait_until(lambda: (tmp_path / "run" / "env_kwargs.jsonl").exists(), "the change")
    trainer.close()
    assert [change["env_kwargs"] for change in changes_of(tmp_path / "run")] == [{"level": 5}]


def test_a_loop_that_a_callback_keeps_from_answering_is_an_error_and_nothing_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("asyncrl.trainer.trainer.CLOSE_SECONDS", 0.2)
    errors: list[BaseException | None] = []

    def call_from_another_thread(trainer: Trainer) -> None:
        with ThreadPoolExecutor(1) as other:
            errors.append(other.submit(trainer.set_env_kwargs, level=1).exception())

    trainer = trainer_of("dqn", "relaxed")
    trainer.learn(300, callbacks=[Calls("on_start", call_from_another_thread)])
    assert isinstance(errors[0], RuntimeError) and "had no answer from the run for 0.2 s" in str(errors[0])
    assert trainer.env_kwargs == {}


def test_a_curriculum_of_a_resumed_run_goes_on_where_it_was() -> None:
    courses = {"first": {"level": 0}, "second": {"level": 2}}
    for resumed, level, expected in ((True, 2, []), (True, 5, [0]), (False, 2, [0])):
        given: list[int] = []
        trainer = SimpleNamespace(
            config=SimpleNamespace(eval_levels=courses, env_kwargs={}),
            env_kwargs={"level": level},
            resumed_from=("goes on from ...",) if resumed else (),
            set_env_kwargs=lambda level, given=given: given.append(level),
        )
        Curriculum(target_return=0.5).on_start(trainer)
        assert given == expected


def test_a_curriculum_goes_through_the_levels_that_are_mastered(tmp_path: Path) -> None:
    """An episode's return is about half its steps: 1.5 on level 0, 2.5 on level 2, 5.5 on level 8."""
    courses = {"first": {"level": 0}, "second": {"level": 2}, "third": {"level": 8}, "fourth": {"level": 9}}
    options: dict[str, Any] = {"eval_levels": courses, "eval_episodes": 20, "env_kwargs": {"level": 1}}
    trainer = trainer_of("dqn", "lockstep", tmp_path / "run", **options)
    curriculum = Curriculum(target_return=0.5)
    trainer.learn(400, callbacks=[curriculum])
    assert [change["env_kwargs"]["level"] for change in changes_of(tmp_path / "run")] == [0, 2]
    strict = trainer_of("dqn", "lockstep", tmp_path / "strict", **options)
    strict.learn(400, callbacks=[Curriculum(target_return=100.0)])
    assert [change["env_kwargs"]["level"] for change in changes_of(tmp_path / "strict")] == [0]
    target = trainer_of("dqn", "lockstep", tmp_path / "target", **{**options, "env_kwargs": {"level": 9}})
    target.learn(400, callbacks=[curriculum])  # the keyword arguments are those of the last level
    assert [change["env_kwargs"]["level"] for change in changes_of(tmp_path / "target")] == [0, 2]
    with pytest.raises(ValueError, match="Curriculum needs the levels of the run"):
        trainer_of("dqn", "relaxed").learn(300, callbacks=[Curriculum(1.0)])


def test_a_level_of_a_curriculum_is_trained_as_it_is_evaluated(tmp_path: Path) -> None:
    """A level that leaves an argument out is evaluated with that of the run, not with that of the level before."""
    options: dict[str, Any] = {"eval_levels": {"easy": {"level": 0}, "own": {}}, "eval_episodes": 20}
    trainer = trainer_of("dqn", "lockstep", tmp_path / "run", **options, env_kwargs={"level": 2})
    trainer.learn(400, callbacks=[Curriculum(target_return=0.5)])
    assert [change["env_kwargs"]["level"] for change in changes_of(tmp_path / "run")] == [0, 2]
    with pytest.raises(
        ValueError, match="level 'own' of a Curriculum must name level, as level 'easy' before"
    ):
        trainer_of("dqn", "relaxed", **options).learn(300, callbacks=[Curriculum(1.0)])
