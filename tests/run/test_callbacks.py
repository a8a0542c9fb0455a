"""Callbacks: times and thread of the calls, and ending a run."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from small_records import small

from asyncrl import Callback, Trainer, TrainResult, flat
from asyncrl.errors import ListenerFailed
from asyncrl.run.callbacks import Callbacks, checked


class Journal(Callback):
    """Callback that records every call."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.threads: set[str] = set()

    def _note(self, hook: str, event: Any = None) -> None:
        self.calls.append((hook, event))
        self.threads.add(threading.current_thread().name)

    def on_start(self, trainer: Trainer) -> None:
        self._note("start", trainer.config.total_steps)

    def on_report(self, trainer: Trainer, snapshot: Any) -> None:
        self._note("report", snapshot)

    def on_evaluation(self, trainer: Trainer, evaluation: Any) -> None:
        self._note("evaluation", evaluation)

    def on_checkpoint(self, trainer: Trainer, path: str) -> None:
        assert Path(path).exists()
        self._note("checkpoint", path)

    def on_end(self, trainer: Trainer, result: Any) -> None:
        assert result is trainer.result
        self._note("end", result)

    def events(self, hook: str) -> list[Any]:
        return [event for name, event in self.calls if name == hook]


def trainer(tmp_path: Path | None = None, **options: Any) -> Trainer:
    small_dqn = small("dqn", learning_starts=200, samples_per_insert=4.0)
    given = {"http": "off", "num_actors": 1, "eval_interval_steps": 1_000, "eval_episodes": 2, **options}
    return Trainer("CartPole-v1", small_dqn, run_dir=tmp_path, target_eval_episodes=3, **given)


async def started(own: Trainer, **given: Any) -> TrainResult:
    own.start(**given)
    return await own.wait()


RUNS: dict[str, Callable[..., TrainResult]] = {
    "learn": Trainer.learn,
    "run": lambda own, **given: asyncio.run(own.run(**given)),
    "start": lambda own, **given: asyncio.run(started(own, **given)),
}


@pytest.mark.parametrize("how", RUNS)
def test_a_run_tells_its_callbacks_what_happens(tmp_path: Path, how: str) -> None:
    journal, own = Journal(), trainer(tmp_path, report_interval_steps=500, report_interval_seconds=60.0)
    result = RUNS[how](own, total_steps=3_000, callbacks=[journal])
    hooks = [hook for hook, _ in journal.calls]
    assert hooks[0] == "start" and hooks[-1] == "end" and hooks.count("start") == hooks.count("end") == 1
    assert journal.events("start") == [3_000] and journal.events("end") == [result]
    assert journal.threads == {"asyncrl-run"}
    assert [e.env_steps // 1_000 for e in journal.events("evaluation")][:2] == [1, 2]
    reports = journal.events("report")
    assert reports[-1].stop_reason == "total_steps" and all(r.state != "starting" for r in reports)
    assert flat(reports[-1])["time/total_timesteps"] >= 3_000
    assert {str(Path(path).parent) for path in journal.events("checkpoint")} == {
        str(tmp_path / "checkpoints")
    }


@pytest.mark.parametrize("rows", [False, True])
def test_the_last_checkpoint_is_told_once(tmp_path: Path, rows: bool) -> None:
    journal = Journal()
    run = trainer(tmp_path, eval_interval_steps=None, save_replay_buffer=rows)
    run.learn(total_steps=1_000, callbacks=[journal])
    told = journal.events("checkpoint")
    assert told and told.count(told[-1]) == 1


def test_a_run_of_less_than_a_second_has_reports_by_steps() -> None:
    journal = Journal()
    short = trainer(report_interval_steps=1_000, report_interval_seconds=60.0, eval_interval_steps=None)
    short.learn(total_steps=20_000, callbacks=[journal])
    steps = [report.env_steps for report in journal.events("report")]
    # One for each 1,000 steps, unless they come faster than 20 a second.
    assert len(steps) >= 4 and steps == sorted(steps)


def test_a_callback_stops_the_run_by_false() -> None:
    class Enough(Callback):
        def on_evaluation(self, trainer: Trainer, evaluation: Any) -> bool:
            return False

    result = trainer().learn(callbacks=[Enough()])  # without it the run would never end
    assert result.stop_reason == "stopped" and 1_000 <= result.summary["env_steps"] < 100_000


def test_a_numpy_false_stops_the_run_too() -> None:
    class Enough(Callback):
        def on_report(self, trainer: Trainer, snapshot: Any) -> Any:
            return np.float64(1.0) < np.float64(0.0)

    stopped: list[bool] = []
    callbacks = Callbacks(None, [Enough()], lambda: stopped.append(True), lambda error: None)
    callbacks.start()
    callbacks.report(None)  # type: ignore[arg-type]
    assert stopped == [True]


class Taking(Callback):
    """Takes numbers out of its snapshot, as a logger takes the step."""

    def on_report(self, trainer: Trainer, snapshot: Any) -> None:
        snapshot.metrics.pop("time/total_timesteps")
        snapshot.metrics.clear()


def test_numbers_that_a_callback_takes_out_of_its_snapshot_are_missed_by_nobody(tmp_path: Path) -> None:
    journal = Journal()
    result = trainer(tmp_path).learn(
        500, callbacks=[Taking(), journal], on_snapshot=lambda snapshot: snapshot.metrics.clear()
    )
    assert journal.events("report")[-1].env_steps >= 500 and result.policy.meta.env_steps >= 500
    rows = [json.loads(row) for row in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["time/total_timesteps"] >= 500


def test_callbacks_may_come_from_a_generator() -> None:
    journal = Journal()
    trainer().learn(total_steps=300, callbacks=(own for own in [journal]))  # type: ignore[arg-type]
    assert journal.events("end")


class Pruned(Exception):
    """Exception like `optuna.TrialPruned`."""


class Failing(Callback):
    def __init__(self, hook: str) -> None:
        self.calls = 0
        setattr(self, hook, self._raise)

    def _raise(self, *event: Any) -> None:
        self.calls += 1
        raise Pruned("not promising")


def test_an_exception_ends_the_run_in_good_order_and_is_raised(tmp_path: Path) -> None:
    failing, journal, own = Failing("on_evaluation"), Journal(), trainer(tmp_path)
    with pytest.raises(Pruned, match="not promising"):
        own.learn(callbacks=[failing, journal])
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["stop_reason"] == "failed" and failing.calls == 1
    assert (tmp_path / "checkpoints" / "latest").exists()
    assert own.result is not None and own.result.stop_reason == "failed"
    assert journal.events("end") == [own.result], "the others are called to the end"


class Strange(Callback):
    """Callback that raises an exception to which coroutines or futures give another meaning."""

    def __init__(self, hook: str, error: type[BaseException]) -> None:
        def raises(trainer: Trainer, event: Any) -> None:
            raise error("of the callback")

        setattr(self, hook, raises)


@pytest.mark.parametrize("how", ["learn", "run"])
@pytest.mark.parametrize(
    ("hook", "error"),
    [
        ("on_checkpoint", StopIteration),
        ("on_report", asyncio.CancelledError),
        ("on_evaluation", StopIteration),
        ("on_checkpoint", asyncio.CancelledError),
    ],
)
def test_what_means_something_else_to_coroutines_reaches_the_caller_with_its_line(
    tmp_path: Path, hook: str, error: type[BaseException], how: str
) -> None:
    own = trainer(tmp_path, checkpoint_interval_seconds=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it must not look like a full disk (ASYNC040)
        with pytest.raises(RuntimeError, match=rf"Strange\.{hook} raised {error.__name__}") as raised:
            RUNS[how](own, total_steps=200_000, callbacks=[Strange(hook, error)])
    cause = raised.value.__cause__
    assert isinstance(cause, error)
    assert "raises" in [frame.name for frame in traceback.extract_tb(cause.__traceback__)]
    assert json.loads((tmp_path / "summary.json").read_text())["state"] == "failed"


def test_a_listener_that_raises_cancelled_error_gets_the_next_snapshot_too() -> None:
    seen: list[Any] = []

    def listener(snapshot: Any) -> None:
        seen.append(snapshot)
        raise asyncio.CancelledError

    with pytest.warns(ListenerFailed, match=r"ASYNC042.*CancelledError") as given:
        result = trainer().learn(total_steps=3_000, on_snapshot=listener)
    assert result.stop_reason == "total_steps" and len(seen) > 1
    places = {(one.filename, one.lineno) for one in given if one.category is ListenerFailed}
    assert places == {("asyncrl", 0)}, "no line of the run, or of asyncio"


def test_sys_exit_in_a_callback_ends_the_run_in_good_order(tmp_path: Path) -> None:
    class Exits(Callback):
        def on_report(self, trainer: Trainer, snapshot: Any) -> None:
            if snapshot.updates:
                sys.exit(3)

    journal, own = Journal(), trainer(tmp_path)
    with pytest.raises(SystemExit):
        own.learn(callbacks=[Exits(), journal])
    assert own.result is not None and own.result.stop_reason == "failed"
    assert journal.events("end") == [own.result]


def test_an_exception_in_on_end_is_raised_and_one_in_on_start_trains_nothing() -> None:
    own = trainer()
    with pytest.raises(Pruned):
        own.learn(total_steps=500, callbacks=[Failing("on_end")])
    assert own.result is not None and own.result.stop_reason == "total_steps"
    journal, own = Journal(), trainer()
    with pytest.raises(Pruned):
        own.learn(callbacks=[Failing("on_start"), journal])
    assert [hook for hook, _ in journal.calls] == ["start", "report", "end"]
    (last,) = journal.events("report")
    assert (last.state, last.env_steps, last.updates) == ("failed", 0, 0)


def test_a_callback_must_be_one() -> None:
    with pytest.raises(
        TypeError, match=r"callbacks\[0\] must be an object, got the class; write Journal\(\)"
    ):
        checked([Journal])
    with pytest.raises(
        TypeError, match=r"callbacks\[1\] must have one of the methods on_start, .* got function"
    ):
        checked([Journal(), lambda: None])

    class Async:
        async def on_report(self, trainer: Any, snapshot: Any) -> None: ...

    with pytest.raises(TypeError, match=r"callbacks\[0\].on_report must not be a coroutine function"):
        checked([Async()])


def test_a_coroutine_that_a_callback_returns_ends_the_run(tmp_path: Path) -> None:
    async def late() -> bool:
        return False

    class Hidden(Callback):
        on_report = staticmethod(
            lambda trainer, snapshot: late()
        )  # no coroutine function, but it returns a coroutine

    own = trainer(tmp_path)
    with (
        warnings.catch_warnings(),
        pytest.raises(TypeError, match=r"Hidden.on_report must not return a coroutine, got .*late\(\)"),
    ):
        warnings.simplefilter("error")
        own.learn(total_steps=50_000, callbacks=[Hidden()])


@pytest.mark.parametrize("name", ["on_step", "on_rollout_end", "_on_step"])
def test_a_method_that_no_event_calls_is_refused_by_its_name(name: str) -> None:
    kind = type("Mine", (Callback,), {name: lambda self: True})
    with pytest.raises(TypeError, match=rf"callbacks\[0\].{name} is called by no event; .* on_report"):
        checked([kind()])


def test_any_object_with_a_method_will_do() -> None:
    class Plain:
        seen: Any = None

        def on_end(self, trainer: Any, result: Any) -> None:
            self.seen = result

    plain, callbacks = Plain(), None
    callbacks = Callbacks("trainer", [plain], lambda: None, lambda error: None)
    callbacks.end("too early")
    callbacks.start()
    callbacks.report(None)  # type: ignore[arg-type]
    callbacks.end("result")
    assert plain.seen == "result"


def test_evaluations_are_heard_by_a_method_of_the_class_or_of_the_object() -> None:
    def heard(callback: Any) -> bool:
        return Callbacks(None, [callback], lambda: None, lambda error: None).hear_evaluations

    assert heard(Journal()) and heard(SimpleNamespace(on_evaluation=lambda trainer, evaluation: None))
    assert not heard(Callback()) and not heard(SimpleNamespace(on_start=lambda trainer: None))
