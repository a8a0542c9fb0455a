"""Numbers of the user's own: what may be logged, and where a run shows it."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from small_records import small

from asyncrl import Callback, Trainer, flat
from asyncrl.run.logged import MOST_NAMES, LoggedMetrics
from asyncrl.show.kept_run import KeptRun

STEPS = "time/total_timesteps"


def trainer(run_dir: Path | None = None, algo: str = "dqn", **options: Any) -> Trainer:
    record = small(algo, learning_starts=200, samples_per_insert=4.0, **options)
    return Trainer("CartPole-v1", record, run_dir=run_dir, num_actors=1, http="off", target_eval_episodes=1)


def rows(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


class Probe(Callback):
    """Logs the number of reports, and something at every event."""

    def __init__(self) -> None:
        self.reports = 0
        self.seen: list[dict[str, float]] = []

    def on_start(self, trainer: Trainer) -> None:
        trainer.log({"my/start": True})

    def on_report(self, trainer: Trainer, snapshot: Any) -> None:
        self.seen.append({name: v for name, v in flat(snapshot).items() if name.startswith("my/")})
        self.reports += 1
        trainer.log("my/reports", self.reports)

    def on_end(self, trainer: Trainer, result: Any) -> None:
        trainer.log("my/end", 7)


def test_it_is_in_the_next_row_and_what_comes_last_in_rows_of_its_own(tmp_path: Path) -> None:
    own, probe = trainer(tmp_path / "run"), Probe()
    own.log("my/before", 0.5)
    own.learn(total_steps=1_000, callbacks=[probe])
    logged = [
        {name: value for name, value in row.items() if name.startswith("my/")}
        for row in rows(tmp_path / "run")
        if STEPS in row
    ]
    first, *between, last, end = logged
    assert first == {"my/before": 0.5, "my/start": 1.0}, "each once, not in every row"
    assert [row["my/reports"] for row in [*between, last]] == [*range(1, probe.reports + 1)]
    assert end == {"my/end": 7.0}
    assert probe.seen == logged[: probe.reports], "a callback for W&B gets the same in flat(snapshot)"
    tail = [row for row in rows(tmp_path / "run") if STEPS in row][-3:]
    assert len({row[STEPS] for row in tail}) == 1
    assert set(tail[-1]) == {STEPS, "time/time_elapsed", "my/end"}
    snapshot = own.snapshot()
    assert snapshot is not None and snapshot.logged["my/start"] == 1.0, "the newest of every name"
    with pytest.raises(RuntimeError, match="log works until the run has ended"):
        own.log("my/late", 1)


def test_it_is_in_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    trainer(tmp_path / "run").learn(total_steps=500, callbacks=[Probe()])
    (file,) = (tmp_path / "run" / "tb").iterdir()
    values = {
        value.tag: value.tensor.float_val[0]
        for event in EventFileLoader(str(file)).Load()
        for value in event.summary.value
    }
    assert values["my/start"] == 1.0 and values["my/end"] == 7.0 and values["my/reports"] >= 1


def test_a_resumed_run_goes_on_with_rows_and_newest_values(tmp_path: Path) -> None:
    trainer(tmp_path / "run").learn(total_steps=600, callbacks=[Probe()])
    before = len([row for row in rows(tmp_path / "run") if "my/reports" in row])

    class Later(Callback):
        seen: Any = None

        def on_start(self, trainer: Trainer) -> None:
            trainer.log("my/later", 2)

        def on_report(self, trainer: Trainer, snapshot: Any) -> None:
            self.seen = snapshot.logged

    later = Later()
    Trainer.resume(tmp_path / "run", "+400").learn(callbacks=[later])
    assert later.seen["my/start"] == 1.0 and later.seen["my/later"] == 2.0
    kept = rows(tmp_path / "run")
    assert len([row for row in kept if "my/reports" in row]) == before, (
        "rows of before stay, none is repeated"
    )
    assert [row["my/later"] for row in kept if "my/later" in row] == [2.0]
    assert KeptRun(tmp_path / "run").last_values()["my/start"] == 1.0


def test_another_thread_logs_while_the_run_goes_on(tmp_path: Path) -> None:
    own = trainer(tmp_path / "run")
    own.start(max_seconds=60)
    own.log("from/outside", np.float32(0.25))
    while (snapshot := own.snapshot()) is None or "from/outside" not in snapshot.logged_now:
        assert not own.done
    own.close()
    assert [row["from/outside"] for row in rows(tmp_path / "run") if "from/outside" in row] == [0.25]


@pytest.mark.parametrize("algo", ["dqn", "ppo"])
def test_lockstep_learns_the_same_to_the_bit(algo: str) -> None:
    found = [
        trainer(algo=algo, discipline="lockstep").learn(total_steps=1_500, callbacks=callbacks)
        for callbacks in ([], [Probe()])
    ]
    first, second = (result.policy.weights.tobytes() for result in found)
    assert first == second and found[0].summary["updates"] > 0


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("train/mine", r"must not begin with train/, .* got 'train/mine'; write for example 'my_train/mine'"),
        ("eval/x", r"must not begin with eval/"),
        ("loss", r"must not be one of the run's own numbers, got 'loss'; write for example 'my/loss'"),
        ("a\nb", r"must have at most 80 of letters, .* got 'a\\nb'"),
        ("", r"must have at most 80 of letters"),
        ("/a", r"got '/a'"),
        ("a//b", r"got 'a//b'"),
        ("größe", r"got 'größe'; write for example 'probe/success'"),
        ("x" * 81, r"must have at most 80"),
    ],
)
def test_a_name_is_refused_with_the_rule_and_a_fix(name: str, told: str) -> None:
    logged = LoggedMetrics()
    with pytest.raises(ValueError, match=told):
        logged.log({"good": 1, name: 2})
    assert logged.newest() == {}, "all or none"


def test_names_that_other_libraries_take_are_taken() -> None:
    names = ["reward", "my metric", "Probe/hard level/success_rate", "a.b:c-d", "0/1"]
    logged = LoggedMetrics()
    logged.log(dict.fromkeys(names, 1.0))
    assert list(logged.newest()) == names


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (None, r"the value of 'x' must be one number, got None of type NoneType; log an int or a float"),
        ("3", r"got '3' of type str"),
        (2j, r"of type complex"),
        ([1.0], r"of type list"),
        (np.zeros(3), r"got an array of shape \(3,\); log its mean"),
        (torch.zeros(1, 2), r"got an array of shape \(1, 2\)"),
        (10**400, r"must be a number that a float holds"),
    ],
)
def test_what_is_no_number_is_refused_by_its_name(value: Any, told: str) -> None:
    with pytest.raises(TypeError, match=told):
        LoggedMetrics().log({"x": value})
    with pytest.raises(TypeError, match=r"a logged name must be a text, got 3"):
        LoggedMetrics().log({3: 1.0})  # type: ignore[dict-item]


def test_numbers_of_numpy_and_torch_and_what_is_not_finite_are_taken() -> None:
    logged, nan, wide = LoggedMetrics(), math.nan, torch.tensor(1.5, requires_grad=True)
    logged.log({"a": np.int64(3), "b": np.array(0.5), "c": wide, "d": True, "e": nan, "f": -math.inf})
    newest = logged.take()
    assert [newest[name] for name in "abcd"] == [3.0, 0.5, 1.5, 1.0]
    assert math.isnan(newest["e"]) and newest["f"] == -math.inf
    assert {type(value) for value in newest.values()} == {float}
    assert logged.take() == {}


def test_the_number_of_names_is_bounded() -> None:
    logged = LoggedMetrics()
    logged.log({f"n{i}": i for i in range(MOST_NAMES)})
    logged.log({"n0": -1})
    with pytest.raises(ValueError, match=rf"at most {MOST_NAMES} names, got 'more' beyond them"):
        logged.log({"n1": 0, "more": 1})
    assert (logged.newest()["n0"], logged.newest()["n1"]) == (-1.0, 1.0)


def test_a_dict_and_a_value_are_refused() -> None:
    with pytest.raises(TypeError, match="a name and its value, or one dict"):
        trainer().log({"a": 1}, 2)


def test_the_launcher_of_several_groups_sends_them_to_rank_0() -> None:
    from asyncrl.trainer.ranks import Ranks

    sent: list[Any] = []
    logged = LoggedMetrics()

    class Reports(Callback):
        def on_report(self, trainer: Any, snapshot: Any) -> None:
            logged.log({"my/x": 3})

    async def show() -> None:
        job: Any = SimpleNamespace(config=None, resumed=None)
        ranks = Ranks(job, lambda _: None, callbacks=[Reports()], logged=logged)
        ranks._channels[0] = SimpleNamespace(send=lambda *message: sent.append(message))  # type: ignore[assignment]
        ranks._show(SimpleNamespace(state="training", evaluations=()))  # type: ignore[arg-type]

    asyncio.run(show())
    assert sent == [("log", {"my/x": 3.0})]


def test_a_rank_logs_what_its_launcher_sends() -> None:
    from asyncrl.trainer.rank import _obey

    messages = iter([("log", {"my/x": 3.0}), None])
    done: list[Any] = []
    fake: Any = SimpleNamespace(log=done.append, stop=done.append)
    receive: Callable[[], Any] = lambda: next(messages)  # noqa: E731
    _obey(SimpleNamespace(receive=receive), fake)  # type: ignore[arg-type]
    assert done == [{"my/x": 3.0}, "interrupted"]
