"""The thread of a run: ends by the script's end, a disk that hangs, interrupts and callbacks."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import gymnasium
import pytest
from small_records import small
from waiting import PATIENCE_SECONDS, wait_until

import asyncrl
from asyncrl import Snapshot, Trainer
from asyncrl.actors.pool import ActorPool
from asyncrl.errors import (
    EnvironmentNotBuilt,
    FilesNotWritten,
    ResourceError,
    StoppedWhileStarting,
    UnknownEnvironment,
)
from asyncrl.learning.learner import Learner
from asyncrl.run import evaluate, saving, slow_stop
from asyncrl.run import run as run_module
from asyncrl.run.run import Run
from asyncrl.run.saving import CheckpointSaver
from asyncrl.server.run_server import RunServer
from asyncrl.storage.checkpoint import CheckpointFolder, read_policy
from asyncrl.trainer import running
from asyncrl.trainer import trainer as trainer_module
from asyncrl.trainer.trainer import SERVED_SECONDS

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # actors would import torch with this module


def trainer(env: Any = "CartPole-v1", **options: Any) -> Trainer:
    given = {"num_actors": 1, "envs_per_actor": 4, "http": "off", "target_eval_episodes": 2, **options}
    return Trainer(env, small("dqn", learning_starts=200, samples_per_insert=4.0), **given)


def test_a_background_run_is_saved_when_the_script_ends(tmp_path: Path) -> None:
    """Python ends its thread pools before it calls `atexit`; a checkpoint is written by one of them."""
    script = f"""
        import time
        from asyncrl import DQN, Trainer
        trainer = Trainer("CartPole-v1", DQN(learning_starts=200, replay_capacity=2_000, batch_size=32),
                          num_actors=1, envs_per_actor=4, http="off", run_dir={str(tmp_path / "run")!r},
                          target_eval_episodes=2)
        trainer.start()
        while (snapshot := trainer.snapshot()) is None or snapshot.updates == 0:
            time.sleep(0.01)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert read_policy(tmp_path / "run" / "checkpoints" / "latest").meta.updates > 0


def test_a_script_without_standard_streams_trains(tmp_path: Path) -> None:
    """As a daemon. libuv aborts the process where a file of the run gets the number of one of them."""
    script = f"""
        import os
        from asyncrl import DQN, Trainer
        dqn = DQN(learning_starts=200, replay_capacity=2_000, batch_size=32)
        options = dict(num_actors=1, envs_per_actor=4, target_eval_episodes=2, run_dir={str(tmp_path / "run")!r})
        Trainer("CartPole-v1", dqn, **options).learn(total_steps=500)
    """

    def close_streams() -> None:
        for descriptor in (0, 1, 2):
            os.close(descriptor)

    command = [sys.executable, "-c", textwrap.dedent(script)]
    assert subprocess.run(command, preexec_fn=close_streams, timeout=PATIENCE_SECONDS).returncode == 0
    assert (tmp_path / "run" / "summary.json").exists()


UNJOINED = """
    import atexit, threading
    from asyncrl import DQN, Trainer

    begun = threading.Event()

    def learn():
        for seed in range(2):
            trainer = Trainer("CartPole-v1", DQN(learning_starts=200, replay_capacity=2_000, batch_size=32),
                              num_actors=1, envs_per_actor=4, http="off", seed=seed, target_eval_episodes=1)
            try:
                result = trainer.learn(total_steps=1_500, on_snapshot=lambda _: begun.set(), progress=False)
                print(result.stop_reason, result.summary["env_steps"] >= 1_500)
            except RuntimeError as error:
                print(error)
"""


def test_learn_in_a_thread_that_nobody_joins_runs_to_its_end() -> None:
    """The main thread's last line comes once the first of two runs has begun."""
    script = textwrap.dedent(UNJOINED) + "threading.Thread(target=learn).start()\nbegun.wait()\n"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "total_steps True\n" * 2


def test_learn_at_exit_is_refused_in_one_sentence() -> None:
    script = textwrap.dedent(UNJOINED) + "atexit.register(learn)\n"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.partition(" (")[0] for line in done.stdout.splitlines()] == [
        "a run cannot be started while the program ends"
    ] * 2


def test_a_forked_child_closes_no_runs_of_its_parent() -> None:
    """As one of `multiprocessing`, which ends by the same functions of `threading`."""
    run = trainer()
    running.add(run, None)
    try:
        child = os.fork()
        if not child:
            os._exit(len(running._started))
        assert os.waitpid(child, 0)[1] == 0
    finally:
        running.remove(run)


@pytest.mark.parametrize("interval", [None, 500])
def test_a_disk_that_hangs_costs_only_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interval: int | None
) -> None:
    released = threading.Event()
    monkeypatch.setattr(CheckpointFolder, "save", lambda *given, **named: released.wait(3 * PATIENCE_SECONDS))
    monkeypatch.setattr(slow_stop, "STEP_SECONDS", 0.5)
    monkeypatch.setattr(saving, "BEST_SECONDS", 0.5, raising=False)
    monkeypatch.setattr(trainer_module, "WORKER_SECONDS", 0.5)
    results = []
    run = trainer(run_dir=tmp_path, eval_interval_steps=interval, eval_episodes=1)
    with pytest.warns(FilesNotWritten, match="cannot be written"):
        thread = threading.Thread(target=lambda: results.append(run.learn(total_steps=1_500)))
        thread.start()
        thread.join(PATIENCE_SECONDS)
        waits = thread.is_alive()
        released.set()
        thread.join(PATIENCE_SECONDS)
    assert not waits
    assert run._thread is not None and not run._thread.is_alive()
    (result,) = results
    assert result.evaluation is not None and result.evaluation.episodes == 2
    assert result.unsaved == "the disk did not answer in time"


def test_rows_are_not_written_from_the_memory_of_rings_that_are_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer that the end of the run has given up reads zeros once the rings are freed."""
    closed, ended = threading.Event(), threading.Event()
    pieces, write_rows, close = saving.pieces, saving.write_rows, ActorPool.close

    def late(*of: Any) -> Any:
        assert closed.wait(PATIENCE_SECONDS)
        yield from pieces(*of)

    def write(*given: Any) -> None:
        try:
            write_rows(*given)
        finally:
            ended.set()

    async def close_and_tell(pool: ActorPool, *given: Any) -> None:
        await close(pool, *given)
        closed.set()

    monkeypatch.setattr(saving, "pieces", late)
    monkeypatch.setattr(saving, "write_rows", write)
    monkeypatch.setattr(ActorPool, "close", close_and_tell)
    monkeypatch.setattr(slow_stop, "STEP_SECONDS", 0.5)
    with pytest.warns(FilesNotWritten, match="the last checkpoint cannot be written") as warned:
        trainer(run_dir=tmp_path, save_replay_buffer=True, eval_interval_steps=None).learn(total_steps=500)
    assert ended.wait(PATIENCE_SECONDS)
    assert len(warned) == 1 and list((tmp_path / "checkpoints").iterdir()) == []


def test_no_rows_file_is_replaced_before_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`latest` refers to its rows by name: a kill between the two files must leave it those that it had."""
    write_rows, save, written = saving.write_rows, CheckpointFolder.save, []

    def write(path: Path, arrays: Any) -> None:
        assert not path.exists(), "the rows of another checkpoint"
        written.append(path)
        write_rows(path, arrays)

    def save_and_forget(folder: CheckpointFolder, *given: Any, **named: Any) -> Path:
        run._run.saver._rows_written = ("", ())
        return save(folder, *given, **named)

    monkeypatch.setattr(saving, "write_rows", write)
    monkeypatch.setattr(CheckpointFolder, "save", save_and_forget)
    monkeypatch.setattr(CheckpointSaver, "_is_written", lambda *given: False)
    run = trainer(run_dir=tmp_path, save_replay_buffer=True, eval_interval_steps=None)
    steps = run.learn(total_steps=500).summary["env_steps"]
    assert len(written) > 1
    assert list((tmp_path / "checkpoints").glob("*.replay")) == [written[-1]]
    monkeypatch.undo()
    assert Trainer.resume(tmp_path, "+100").learn().summary["env_steps"] == steps + 100


def test_a_checkpoint_that_is_asked_for_while_the_run_closes_is_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    close, paths = RunServer.close, []

    async def ask_and_close(server: RunServer) -> None:
        paths.append(await run._run.saver.save_on_request())
        await close(server)

    monkeypatch.setattr(RunServer, "close", ask_and_close)
    run = trainer(run_dir=tmp_path, eval_interval_steps=None, http="auto")
    steps = run.learn(total_steps=500).summary["env_steps"]
    assert paths == [str(tmp_path / "checkpoints" / str(steps))]


def test_a_final_evaluation_is_kept_though_its_file_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hangs_later(folder: CheckpointFolder, *given: Any, **named: Any) -> Path:
        if named["best"]:
            hangs.set()
            released.wait(3 * PATIENCE_SECONDS)
        return save(folder, *given, **named)

    async def until_it_hangs(*given: Any) -> None:
        while not hangs.is_set():
            await asyncio.sleep(0.01)

    save, hangs, released = CheckpointFolder.save, threading.Event(), threading.Event()
    monkeypatch.setattr(CheckpointFolder, "save", hangs_later)
    monkeypatch.setattr(evaluate.EvaluationSchedule, "_wait_and_report", until_it_hangs)
    monkeypatch.setattr(slow_stop, "STEP_SECONDS", 0.5)
    monkeypatch.setattr(trainer_module, "WORKER_SECONDS", 0.5)
    try:
        with pytest.warns(FilesNotWritten, match="the last checkpoint cannot be written"):
            result = trainer(run_dir=tmp_path, eval_interval_steps=None).learn(total_steps=1_000)
    finally:
        released.set()
    assert result.evaluation is not None and result.summary["eval"]["episodes"] == 2


class SlowToBuild(gymnasium.Wrapper[Any, Any, Any, Any]):
    def __init__(self) -> None:
        time.sleep(5 * PATIENCE_SECONDS)
        super().__init__(gymnasium.make("CartPole-v1"))


@pytest.mark.parametrize("close", [Trainer.close, lambda run: asyncrl.stop_all()])
def test_a_run_stopped_while_it_is_built_has_a_policy_after_close(close: Any) -> None:
    with trainer() as run:
        run.start()
        run.stop()
        close(run)
        assert run.result is not None and run.result.stop_reason == "stopped"


def test_an_interrupt_after_a_stop_ends_a_run_that_is_being_built() -> None:
    run = trainer(env=SlowToBuild)
    run.start()
    wait_until(lambda: run._run is not None, "the run")
    run.stop()
    run.stop("interrupted")
    assert isinstance(run._done.exception(timeout=PATIENCE_SECONDS), StoppedWhileStarting)
    run.close()


def test_an_interrupt_while_learn_starts_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(trainer_module, "wait_for_futures", interrupted)
    run = trainer()
    try:
        with pytest.raises(KeyboardInterrupt):
            run.learn()
        assert run.done
    finally:
        run.close()


def test_learn_that_is_left_by_a_signal_handler_ends_the_run() -> None:
    """As a time limit does that a program sets by `signal.alarm`."""

    class Late(Exception):
        pass

    def raises(number: int, frame: object) -> None:
        raise Late

    def interrupt(snapshot: Snapshot) -> None:
        if snapshot.updates and not sent.is_set():
            sent.set()
            os.kill(os.getpid(), signal.SIGUSR1)

    sent, before = threading.Event(), signal.signal(signal.SIGUSR1, raises)
    run = trainer(max_seconds=2 * PATIENCE_SECONDS)
    try:
        with pytest.raises(Late):
            run.learn(on_snapshot=interrupt)
        assert run.done and asyncrl.running() == ()
    finally:
        signal.signal(signal.SIGUSR1, before)
        run.close()
    assert run.result is not None and run.result.stop_reason == "interrupted"


def test_a_listener_of_a_refused_call_is_not_called_twice() -> None:
    run, shown = trainer(), list[Snapshot]()
    with pytest.raises(ValueError, match="total_steps must be at least 1"):
        run.learn(total_steps=0, on_snapshot=shown.append)
    run.learn(total_steps=300, on_snapshot=shown.append)
    assert len({id(snapshot) for snapshot in shown}) == len(shown)


def test_an_interrupt_that_another_thread_receives_ends_start(monkeypatch: pytest.MonkeyPatch) -> None:
    run, ended = trainer(), threading.Event()
    monkeypatch.setattr(run, "_receive", lambda snapshot: None)  # so that the page has no address

    def interrupt() -> None:
        while run._run is None:
            ended.wait(0.01)
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        if not ended.wait(SERVED_SECONDS / 2):
            os.kill(os.getpid(), signal.SIGINT)  # else the test would wait for `SERVED_SECONDS`
            heard_late.append(True)

    heard_late: list[bool] = []
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            run.start()
    finally:
        ended.set()
        thread.join()
        run.close()
    assert not heard_late


def test_a_card_that_cannot_be_shown_hides_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    class Card:
        def show(self, snapshot: Snapshot) -> None:
            raise OSError("the front end is gone")

    monkeypatch.setattr(trainer_module, "live_card", Card)
    result = asyncio.run(trainer().run(total_steps=300))
    assert result.stop_reason == "total_steps"


def test_a_signal_handler_may_list_runs_while_one_is_added() -> None:
    """The handler runs on the main thread between any two instructions, also while that thread holds the lock."""
    listed = threading.Event()

    def handle() -> None:
        with running._lock:
            running.running()
        listed.set()

    threading.Thread(target=handle, daemon=True).start()
    assert listed.wait(PATIENCE_SECONDS)


def test_a_callback_may_close_its_trainer() -> None:
    class Closes:
        def on_report(self, trainer: Trainer, snapshot: Snapshot) -> None:
            if snapshot.updates:
                trainer.close()

    result = trainer(max_seconds=2 * PATIENCE_SECONDS).learn(callbacks=[Closes()])
    assert result.stop_reason == "interrupted"


def test_a_report_that_fails_costs_no_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(learner: Learner) -> Any:
        if learner.updates:
            raise ZeroDivisionError("a metric")
        return report(learner)

    report = Learner._report
    monkeypatch.setattr(Learner, "_report", fails)
    run = trainer(run_dir=tmp_path)
    with pytest.raises(ZeroDivisionError, match="a metric"):
        run.learn(total_steps=100_000)
    assert run.result is not None and run.result.stop_reason == "failed"
    assert read_policy(tmp_path / "checkpoints" / "latest").meta.updates > 0


def test_the_last_save_is_not_training_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def timed(saver: CheckpointSaver, *arguments: Any) -> str:
        assert isinstance(run._run, Run)
        clock = run._run.clock
        clocks.append((clock.running, clock.train_seconds))
        return await save(saver, *arguments)

    save, clocks = CheckpointSaver.save_latest, list[tuple[bool, float]]()
    monkeypatch.setattr(CheckpointSaver, "save_latest", timed)
    run = trainer(run_dir=tmp_path, checkpoint_interval_seconds=1000.0)
    result = run.learn(total_steps=1_000)
    assert set(clocks) == {(False, result.summary["train_seconds"])}


# --- mistakes in the environment ------------------------------------------------------------------------------


def test_a_mistake_is_told_while_the_run_is_still_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    monkeypatch.setattr(
        trainer_module,
        "importlib",
        SimpleNamespace(import_module=lambda name: released.wait(PATIENCE_SECONDS)),
    )
    monkeypatch.delitem(sys.modules, "asyncrl.run.run")
    own = trainer("NoSuchEnvironment-v0")
    try:
        with pytest.raises(UnknownEnvironment, match="NoSuchEnvironment-v0"):
            own.learn(total_steps=100)
        assert own.snapshot() is None and not released.is_set()
    finally:
        released.set()


def broken() -> Any:
    raise OSError("no display")


@pytest.mark.parametrize("alone_seconds", [PATIENCE_SECONDS, 0.0])
def test_the_page_waits_a_moment_for_the_probe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone_seconds: float
) -> None:
    monkeypatch.setattr(run_module, "ALONE_SECONDS", alone_seconds)
    own = trainer(broken, http="auto", run_dir=tmp_path / "run")
    with pytest.raises(EnvironmentNotBuilt, match="no display"):
        own.learn(total_steps=100)
    assert (own.url is None) == (alone_seconds > 0)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["state"] == "failed" and "no display" in summary["error"]


def test_a_stop_while_the_environment_is_probed_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """As an environment that takes long to build; nothing but the probe is waited for."""
    own = trainer(slow)
    own._start(total_steps=100)
    wait_until(lambda: own._run is not None, "the run is made")
    own.stop("interrupted")
    with pytest.raises(StoppedWhileStarting):
        asyncio.run(own.wait())


@pytest.mark.parametrize("made", [False, True])
def test_a_run_that_is_killed_while_it_starts_says_so(made: bool) -> None:
    own = trainer(slow)
    own._start(total_steps=100)
    if made:
        wait_until(lambda: own._run is not None, "the run is made")
    own.kill()
    with pytest.raises(StoppedWhileStarting, match=r"(killed|stopped) while it started; it leaves no policy"):
        asyncio.run(own.wait())


def test_a_run_that_is_killed_while_it_trains_says_so() -> None:
    own = trainer()
    own._start(total_steps=10**9)
    wait_until(lambda: own.snapshot() is not None and own.snapshot().env_steps > 0, "the first steps")
    own.kill()
    with pytest.raises(ResourceError, match="The run was killed"):
        asyncio.run(own.wait())


def slow() -> Any:
    threading.Event().wait(PATIENCE_SECONDS)
    return gymnasium.make("CartPole-v1")
