"""Runs in the background: return of `start`, reports of errors, and state after an interrupt."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import signal
import threading
import time
import typing
from pathlib import Path
from typing import Any

import pytest
from fakes import Raises
from small_records import small
from waiting import PATIENCE_SECONDS, wait_until

import asyncrl
from asyncrl import PPO, Trainer, errors
from asyncrl.config import TrainerConfig
from asyncrl.run.result import shown_path
from asyncrl.trainer.arguments import RunOptions


def trainer(env: Any = "CartPole-v1", **options: Any) -> Trainer:
    given = {"num_actors": 1, "envs_per_actor": 4, **options}
    return Trainer(env, small("dqn", learning_starts=200, samples_per_insert=4.0), **given)


def wait_for_steps(run: Trainer) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (snapshot := run.snapshot()) is None or snapshot.updates == 0:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_run_stays_in_its_directory_when_the_working_directory_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `%cd` in a notebook does."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)
    with trainer(run_dir="run", num_actors=2, http="off") as run:
        run.start()
        wait_for_steps(run)
        monkeypatch.chdir(elsewhere)
        os.kill(run.snapshot().actors[0].pid, signal.SIGKILL)
        wait_until(lambda: run.snapshot().actor_restarts == 1, "another actor")
    left = tmp_path / "run"
    assert run.result is not None and run.result.run_dir == left and shown_path(left) == left
    monkeypatch.chdir(tmp_path)
    assert str(shown_path(left)) == "run"
    assert (left / "checkpoints" / "latest").exists() and (left / "summary.json").exists()
    assert list(elsewhere.iterdir()) == []


def test_start_returns_when_the_url_is_known_and_the_run_is_found() -> None:
    with trainer() as run:
        run.start()
        assert run.url is not None and run.url.startswith("http://127.0.0.1:")
        assert asyncrl.running() == (run,)
        wait_for_steps(run)
        asyncrl.stop_all()
        assert run.done and asyncrl.running() == () and run.result is not None
        assert run.result.stop_reason == "stopped"


def test_start_raises_what_ends_the_run_before_that() -> None:
    with trainer() as first:
        first.start()
        assert first.url is not None
        with pytest.raises(errors.PortInUse):
            trainer(http=int(first.url.rpartition(":")[2])).start()


def test_an_error_in_the_background_is_printed_once(capfd: pytest.CaptureFixture[str]) -> None:
    run = trainer(Raises, http="off")
    run.start()
    with pytest.raises(errors.EnvironmentRaised):
        run._done.result(timeout=PATIENCE_SECONDS)
    run.close()
    printed = capfd.readouterr().err
    assert printed.count("[ASYNC002]") == 1 and printed.startswith("asyncrl: the run of dqn in ")
    with pytest.raises(errors.EnvironmentRaised):
        asyncio.run(run.wait())
    assert "ASYNC002" not in capfd.readouterr().err


def test_a_stream_of_a_run_that_fails_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """asyncio logs the traceback of an error in a future that nobody has looked at; a stream waits many times."""

    async def watch() -> list[Any]:
        run.start()
        return [snapshot async for snapshot in run.stream(0.01)]

    run = trainer(Raises, http="off")
    streamed = asyncio.run(watch())
    gc.collect()
    assert streamed[-1].error is not None and "ASYNC002" in streamed[-1].error
    assert [record.message for record in caplog.records] == []


def test_a_run_that_is_cancelled_while_it_starts_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def cancel() -> None:
        running = asyncio.create_task(trainer(http="off").run())
        await asyncio.sleep(0.05)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(cancel())
    gc.collect()
    assert [record.message for record in caplog.records] == []


def test_an_error_that_somebody_waits_for_is_not_printed(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(errors.EnvironmentRaised):
        trainer(Raises, http="off").learn()
    assert "asyncrl: the run" not in capfd.readouterr().err


def test_learn_interrupted_keeps_the_result() -> None:
    run = trainer(http="off")

    def interrupt() -> None:
        wait_for_steps(run)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        run.learn()
    thread.join()
    assert run.result is not None and run.result.stop_reason == "interrupted"
    assert run.result.policy.predict([0.0] * 4)[0] in (0, 1)


def test_an_interrupt_that_another_thread_receives_is_heard() -> None:
    """The kernel may deliver a signal of the process to any thread; only the main one runs its handler."""
    run = trainer(http="off")

    def interrupt() -> None:
        wait_for_steps(run)
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        if not run._done.done() and not ended.wait(PATIENCE_SECONDS):  # else the test would hang
            run.stop()

    ended = threading.Event()
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            run.learn()
    finally:
        ended.set()
        thread.join()
    assert run.result is not None and run.result.stop_reason == "interrupted"


def test_a_class_in_place_of_a_record_is_refused() -> None:
    with pytest.raises(TypeError, match=r"must be a record or a name, got the class PPO; write PPO\(\)"):
        Trainer("CartPole-v1", PPO)  # type: ignore[arg-type]


def test_without_an_algorithm_it_is_ppo_everywhere() -> None:
    """It was DQN, which refuses Pendulum after the start, and the README says PPO first."""
    assert Trainer("Pendulum-v1", http="off").config.algo == "ppo"
    for call in (Trainer, asyncrl.train, asyncrl.train_seeds, asyncrl.tune):
        assert inspect.signature(call).parameters["algorithm"].default == "ppo"


def test_arguments_of_wrong_kinds_are_named() -> None:
    with pytest.raises(TypeError, match="algorithm must be a record or a name, got None"):
        Trainer("CartPole-v1", None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Trainer has no option 'algo'"):
        Trainer("CartPole-v1", algo="ppo")  # type: ignore[call-arg]


def test_wrappers_may_be_written_as_in_a_file() -> None:
    wrappers = "gymnasium.wrappers:FlattenObservation,gymnasium.wrappers:ClipReward"
    own = trainer(wrappers=wrappers)
    assert own.config.wrappers == tuple(wrappers.split(","))


def test_the_typed_options_are_those_of_the_record() -> None:
    typed, real = typing.get_type_hints(RunOptions), typing.get_type_hints(TrainerConfig)
    assert set(typed) == set(real) - {"env", "env_file", "eval_env_file", "algo"}
    # These take a path, classes and functions as well, or say more of what a mapping holds.
    assert {name for name in typed if typed[name] != real[name]} == {
        *("run_dir", "init_from", "wrappers", "dataset", "demonstrations"),
        *("eval_env", "eval_levels", "policy_options"),
    }
