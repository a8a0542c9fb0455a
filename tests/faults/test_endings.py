"""Ends of runs: weights and summary are kept whatever fails, nothing waits endlessly, and signals are handled."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import tomllib
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import cloudpickle
import gymnasium
import numpy as np
import pytest
from fakes import SimpleEnv
from snapshots import make_snapshot
from waiting import PATIENCE_SECONDS as SECONDS

import asyncrl
from asyncrl import DQN, Trainer, errors
from asyncrl.actors import evaluator
from asyncrl.actors.episodes import EPISODE_STEPS
from asyncrl.cli import interrupts
from asyncrl.cli.interrupts import Interrupts, run_until_signal
from asyncrl.cli.main import main
from asyncrl.config import TrainerConfig
from asyncrl.learning.clock import TrainClock
from asyncrl.policies import policy_file
from asyncrl.run import evaluate
from asyncrl.run.evaluate import EvaluationSchedule
from asyncrl.run.grouped import Alone
from asyncrl.run.job import Job
from asyncrl.run.run import Run
from asyncrl.run.saving import CheckpointSaver
from asyncrl.storage.checkpoint import CheckpointFolder, read_policy
from asyncrl.storage.run_directory import RunDirectory

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # actors would import torch with this module
PACKAGE = str(Path(asyncrl.__file__).parent.parent)
SMALL: dict[str, Any] = {
    "envs_per_actor": 2,
    "num_actors": 1,
    "http": "off",
    "target_eval_episodes": 3,
    "eval_interval_steps": None,
}


def small() -> DQN:
    return DQN(
        hidden_sizes=(16,), learning_starts=50, replay_capacity=2_000, batch_size=16, samples_per_insert=4.0
    )


def summary_of(run: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((run / "summary.json").read_text())
    return summary


class RaisesAtStep300(gymnasium.Wrapper[Any, Any, Any, Any]):
    """CartPole that raises at its 300th step, when the run has learned something."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self.steps = 0

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.steps == 300:
            raise KeyError("the table is gone")
        return self.env.step(action)


def test_a_run_that_fails_leaves_its_weights_and_a_summary(tmp_path: Path) -> None:
    trainer = Trainer(RaisesAtStep300, small(), run_dir=tmp_path, **SMALL)
    with pytest.raises(errors.EnvironmentRaised, match="the table is gone"):
        trainer.learn(total_steps=50_000)
    summary = summary_of(tmp_path)
    assert (summary["state"], summary["stop_reason"]) == ("failed", "failed")
    assert "[ASYNC002]" in summary["error"]
    assert "the table is gone" in summary["error"]
    assert summary["updates"] > 0
    assert trainer.result is not None
    saved = read_policy(tmp_path / "checkpoints" / "latest")
    assert saved.meta.updates == summary["updates"]
    assert saved.weights.tolist() == trainer.result.policy.weights.tolist()


def test_the_page_hears_of_a_failure_before_its_server_closes() -> None:
    trainer = Trainer(RaisesAtStep300, small(), **{**SMALL, "http": "auto"})
    trainer.start(total_steps=50_000)
    while trainer.url is None:
        time.sleep(0.01)
    host = trainer.url.removeprefix("http://")
    connection = http.client.HTTPConnection(host, timeout=SECONDS)
    connection.request("GET", "/events")
    events = connection.getresponse().read().decode().split("\n\n")
    connection.close()
    with pytest.raises(errors.EnvironmentRaised):
        asyncio.run(trainer.wait())
    assert events[-2].startswith("event: end")
    last = json.loads(events[-3].removeprefix("data: "))
    assert (last["state"], last["stop_reason"]) == ("failed", "failed")
    assert "the table is gone" in last["error"]
    assert {actor["state"] for actor in last["actors"]} == {"stopped"}


def test_a_start_that_fails_leaves_a_summary_and_its_directory_may_be_used_again(tmp_path: Path) -> None:
    with pytest.raises(errors.SpacesDoNotFit):
        Trainer("Pendulum-v1", small(), run_dir=tmp_path, **SMALL).learn(total_steps=100)
    summary = summary_of(tmp_path)
    assert (summary["state"], summary["env_steps"]) == ("failed", 0)
    assert "[ASYNC005]" in summary["error"]
    Trainer("CartPole-v1", small(), run_dir=tmp_path, **SMALL).learn(total_steps=200)
    summary = summary_of(tmp_path)
    assert (summary["state"], summary["error"], summary["stop_reason"]) == ("finished", None, "total_steps")


def test_a_final_evaluation_that_fails_costs_only_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fake(self: Any, weights: Any, episodes: int, key: Any = ()) -> Any:
        raise errors.EnvironmentRaised("greedy actions fell off the table")

    monkeypatch.setattr(evaluator.RemoteEvaluator, "evaluate", fake)
    trainer = Trainer("CartPole-v1", small(), run_dir=tmp_path, **SMALL)
    with pytest.warns(errors.EvaluationIncomplete, match=r"ASYNC041.*fell off the table"):
        result = trainer.learn(total_steps=400)
    assert (result.stop_reason, result.evaluation) == ("total_steps", None)
    assert "fell off the table" in result.summary["eval"]["error"]
    assert summary_of(tmp_path) == result.summary
    saved = read_policy(tmp_path / "checkpoints" / "latest")
    assert saved.weights.tolist() == result.policy.weights.tolist()


def test_weights_are_saved_before_what_waits_is_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The evaluator hangs until training has used its steps: copies are queued, and the final evaluation hangs too."""
    saved: list[bool] = []
    latest = tmp_path / "checkpoints" / "latest"

    async def fake(self: Any, weights: Any, episodes: int, key: Any = ()) -> Any:
        try:
            await asyncio.Event().wait()
        finally:  # it is given up
            saved.append(latest.exists())

    monkeypatch.setattr(evaluator.RemoteEvaluator, "evaluate", fake)
    monkeypatch.setattr(evaluate, "EVALUATION_SECONDS", 0.0)
    monkeypatch.setattr(evaluate, "EVALUATION_SHARE", 0.0)
    monkeypatch.setattr(evaluate, "GRACE_SECONDS", 0.01)
    options = {**SMALL, "eval_interval_steps": 200}
    trainer = Trainer("CartPole-v1", small(), run_dir=tmp_path, **options)

    async def main() -> Any:
        trainer.start(total_steps=1_000)
        return await asyncio.wait_for(trainer.wait(), SECONDS)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = asyncio.run(main())
    assert [str(w.message)[:10] for w in caught] == ["[ASYNC041]"] * 2
    assert "after the end of training" in str(caught[0].message)
    assert saved == [True, True], "the checkpoint stands before an evaluation is given up"
    assert result.stop_reason == "total_steps"
    assert read_policy(latest).meta.updates == result.summary["updates"] > 0


def test_training_goes_on_where_every_evaluation_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fake(self: Any, weights: Any, episodes: int, key: Any = ()) -> Any:
        raise errors.EnvironmentRaised("greedy actions fell off the table")

    monkeypatch.setattr(evaluator.RemoteEvaluator, "evaluate", fake)
    options = {**SMALL, "eval_interval_steps": 100}
    trainer = Trainer("CartPole-v1", small(), run_dir=tmp_path, **options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = trainer.learn(total_steps=1_000, target_return=1e9)
    assert [str(w.message)[:10] for w in caught] == ["[ASYNC041]"] * 2, (
        "of the first one, and of the final one"
    )
    assert (result.stop_reason, result.summary["state"]) == ("total_steps", "finished")
    assert result.summary["env_steps"] >= 1_000


def test_a_run_that_only_an_evaluation_can_end_ends_where_all_of_them_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fake(self: Any, weights: Any, episodes: int, key: Any = ()) -> Any:
        raise errors.EnvironmentRaised("greedy actions fell off the table")

    monkeypatch.setattr(evaluator.RemoteEvaluator, "evaluate", fake)
    options = {**SMALL, "eval_interval_steps": 100}
    trainer = Trainer("CartPole-v1", small(), run_dir=tmp_path, **options)
    with (
        pytest.warns(errors.EvaluationIncomplete),
        pytest.raises(errors.EnvironmentRaised, match="fell off the table"),
    ):
        trainer.learn(target_return=1e9)
    summary = summary_of(tmp_path)
    assert summary["state"] == "failed" and summary["updates"] > 0
    assert read_policy(tmp_path / "checkpoints" / "latest").meta.updates == summary["updates"]


def test_episodes_that_never_end_do_not_keep_a_run_from_ending() -> None:
    trainer = Trainer(SimpleEnv, small(), **SMALL)

    async def main() -> Any:
        trainer.start(total_steps=500)
        return await asyncio.wait_for(trainer.wait(), SECONDS)

    with pytest.warns(
        errors.EvaluationIncomplete, match=r"ASYNC041.*3 of 3.*27,000 steps.*eval_max_episode_steps"
    ):
        result = asyncio.run(main())
    assert result.stop_reason == "total_steps"
    assert (result.evaluation.length_mean, result.evaluation.return_mean) == (EPISODE_STEPS, EPISODE_STEPS)
    assert result.summary["eval"]["cut_episodes"] == 3


class DiesOnce(gymnasium.Wrapper[Any, Any, Any, Any]):
    """CartPole whose process is killed once, when the file `go` exists."""

    def __init__(self, go: Path) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self.go = go

    def step(self, action: Any) -> Any:
        if self.go.exists():
            self.go.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.env.step(action)


@pytest.mark.parametrize(
    ("lost", "instead"), [("moved", "nothing"), ("moved", "a file"), ("deleted", "another run")]
)
def test_a_run_whose_directory_is_lost_goes_on_and_writes_nothing_at_its_path(
    tmp_path: Path, lost: str, instead: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """It writes neither into the next run's directory nor into a new one; also an actor's next life does not."""
    run, go = tmp_path / "run", tmp_path / "go"
    trainer = Trainer(lambda: DiesOnce(go), small(), run_dir=run, **SMALL)

    def until(condition: Callable[[], Any], what: str) -> None:
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < deadline, what
            assert not trainer.done, what
            time.sleep(0.005)

    def snapshot() -> Any:
        return trainer.snapshot()

    with trainer:
        trainer.start()
        until(lambda: snapshot() is not None and snapshot().updates > 0, "updates")
        run.rename(tmp_path / "elsewhere")
        if lost == "deleted":
            shutil.rmtree(tmp_path / "elsewhere")
        other = RunDirectory(run) if instead == "another run" else None
        if instead == "a file":
            run.write_text("a file in its place")
        before = contents(run)
        go.touch()
        with pytest.warns(errors.FilesNotWritten) as warned:
            until(lambda: sum(actor.restarts for actor in snapshot().actors) == 1, "another life")
            steps = snapshot().env_steps
            until(lambda: snapshot().env_steps > steps + 200, "steps of it")
            trainer.stop()
            result = asyncio.run(asyncio.wait_for(trainer.wait(), SECONDS))
    assert (result.stop_reason, result.summary["actor_restarts"]) == ("stopped", 1)
    assert contents(run) == before
    (text,) = (str(warning.message) for warning in warned)
    assert text.startswith(f"[ASYNC040] the run's files cannot be written: {run} was deleted or moved"), text
    assert result.unsaved.startswith(f"{run} was deleted or moved"), result.unsaved
    if other is not None:
        other.close()


def contents(path: Path) -> dict[str, bytes]:
    """Files below a path with their bytes."""
    files = [path, *sorted(path.rglob("*"))]
    return {str(file.relative_to(path)): file.read_bytes() for file in files if file.is_file()}


NO_TEMPORARY_DIRECTORY = """
import errno, tempfile

def none():
    raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

tempfile._get_default_tempdir = none
"""
WITHOUT_TEMPORARY_DIRECTORY = """
import json, os, signal, sys, time
import asyncio, asyncrl
from asyncrl import DQN, Trainer

run = sys.argv[1]
trainer = Trainer(
    "CartPole-v1", DQN(hidden_sizes=(16,), learning_starts=50, replay_capacity=2000, batch_size=16),
    num_actors=1, envs_per_actor=2, http="off", report_interval_seconds=0.05, run_dir=run, target_eval_episodes=2,
)

def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert not trainer.done and time.monotonic() < deadline
        time.sleep(0.005)

with trainer:
    trainer.start()
    until(lambda: trainer.snapshot() is not None and trainer.snapshot().updates > 0)
    os.kill(trainer.snapshot().actors[0].pid, signal.SIGKILL)
    until(lambda: trainer.snapshot().actors[0].restarts == 1)
    steps = trainer.snapshot().env_steps
    until(lambda: trainer.snapshot().env_steps > steps + 100)
    trainer.stop()
    result = asyncio.run(trainer.wait())
action, _ = asyncrl.load(run).predict([0.0, 0.0, 0.0, 0.0], deterministic=True)
print(json.dumps([result.stop_reason, result.unsaved, result.summary["actor_restarts"], int(action) in (0, 1)]))
"""


def test_a_run_needs_no_temporary_directory_also_to_start_an_actor_again(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(NO_TEMPORARY_DIRECTORY)
    environ = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{PACKAGE}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TEMPORARY_DIRECTORY, str(tmp_path / "run")],
        env=environ,
        capture_output=True,
        text=True,
        timeout=2 * SECONDS,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["stopped", "", 1, True]


FULL_DISK = """
import json, resource, sys, time, warnings
from pathlib import Path
from asyncrl import DQN, Trainer
from asyncrl.storage.checkpoint import load, read_policy

seen = []
warnings.showwarning = lambda message, *rest: seen.append(str(message)[:10])
warnings.simplefilter("always")
run = Path(sys.argv[1])
latest = run / "checkpoints" / "latest"
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]

def most_bytes(number):
    resource.setrlimit(resource.RLIMIT_FSIZE, (number, hard))

def until(condition, what):
    deadline = time.monotonic() + 150
    while not condition():
        assert not trainer.done, f"the run ended before: {what}"
        assert time.monotonic() < deadline, what
        time.sleep(0.005)

trainer = Trainer(
    "CartPole-v1",
    DQN(hidden_sizes=(16,), learning_starts=50, replay_capacity=2000, batch_size=16, samples_per_insert=1.0),
    num_actors=1, envs_per_actor=2, http="off", eval_interval_steps=None, run_dir=run,
    target_eval_episodes=2, checkpoint_interval_seconds=0.1, report_interval_seconds=0.05,
)
trainer.start()
until(lambda: latest.exists() and (trainer.snapshot().updates or 0) > 0, "the first checkpoint")
most_bytes(100)
until(lambda: seen.count("[ASYNC040]") == 2, "a warning for numbers and one for checkpoints")
before = load(latest)[1].updates
goal = trainer.snapshot().updates + 200
until(lambda: trainer.snapshot().updates > goal, "learning goes on while the disk is full")
assert load(latest)[1].updates == before, "the old checkpoint stays"
lines = (run / "metrics.jsonl").read_bytes()
assert lines.endswith(b"\\n") and all(json.loads(line) for line in lines.splitlines())
most_bytes(hard)
until(lambda: load(latest)[1].updates > before, "a checkpoint once there is space")
until(lambda: (run / "metrics.jsonl").stat().st_size > len(lines), "a line once there is space")
most_bytes(100)
until(lambda: seen.count("[ASYNC040]") == 3, "another warning for checkpoints")
trainer.stop()
import asyncio
result = asyncio.run(trainer.wait())
most_bytes(hard)
saved = read_policy(latest).meta.updates
print(json.dumps([result.stop_reason, result.summary["updates"] >= saved, seen.count("[ASYNC040]"),
                  (run / "summary.json").exists(), sorted(p.name for p in run.rglob("*.tmp"))]))
"""


def child(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    environ = {**os.environ, "PYTHONPATH": PACKAGE, "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
    return subprocess.Popen([sys.executable, *arguments], env=environ, text=True, **options)


def test_training_goes_on_while_the_disk_is_full(tmp_path: Path) -> None:
    program = child(
        "-c", textwrap.dedent(FULL_DISK), str(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, err = program.communicate(timeout=SECONDS)
    assert program.returncode == 0, err
    # One warning each for numbers and checkpoints when the disk was full first, and for checkpoints and the summary
    # when it was full at the end.
    assert json.loads(out) == ["stopped", True, 4, False, []]


@pytest.mark.filterwarnings("ignore:.ASYNC040.")
@pytest.mark.parametrize("place", ["working directory", "temporary directory", "nowhere"])
def test_the_policy_of_a_run_whose_disk_stays_full_is_kept_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], place: str
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def write(path: Path, *arguments: Any) -> None:
        if place != "nowhere" and (place == "working directory" or path.parent != work):
            return real(path, *arguments)
        return full()

    work, temporary = tmp_path / "work", tmp_path / "temporary"
    for folder in (work, temporary):
        folder.mkdir()
        (folder / "run.policy").write_text("of another run")
    monkeypatch.chdir(work)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setattr(CheckpointFolder, "save", full)
    real = policy_file.write_tensors
    monkeypatch.setattr(policy_file, "write_tensors", write)
    options = [
        "--algo",
        "dqn",
        "--dqn.learning-starts",
        "50",
        "--steps",
        "300",
        "--target-eval-episodes",
        "1",
    ]
    small = ["--actors", "1", "--envs-per-actor", "2", "--http", "off", "--run-dir", str(tmp_path / "run")]
    assert main(["train", "CartPole-v1", *options, *small]) == 4
    printed = capfd.readouterr().out.splitlines()
    (line,) = (line for line in printed if line.startswith("policy "))
    commands = [line.removeprefix("next").strip() for line in printed if "asyncrl " in line]
    if place == "nowhere":
        assert line.count("No space left on device") == 2 and "lost" in line and not commands
    else:
        path = (work if place == "working directory" else temporary) / "run-1.policy"
        why = "the last checkpoint could not be written: [Errno 28] No space left on device"
        assert line == f"policy        {path} ({why})"
        assert commands == [f"asyncrl eval {path}"], "the run has no checkpoint to evaluate"
        assert asyncrl.load(path).meta.updates == summary_of(tmp_path / "run")["updates"] > 0
    assert (work / "run.policy").read_text() == (temporary / "run.policy").read_text() == "of another run"


def test_a_policy_that_is_in_a_checkpoint_is_not_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    options = [
        "--algo",
        "dqn",
        "--dqn.learning-starts",
        "50",
        "--steps",
        "300",
        "--target-eval-episodes",
        "1",
    ]
    small = ["--actors", "1", "--envs-per-actor", "2", "--http", "off", "--run-dir", "run"]
    assert main(["train", "CartPole-v1", *options, *small]) == 0
    assert "policy " not in capfd.readouterr().out
    assert not list(tmp_path.glob("*.policy"))


def wait_until(condition: Callable[[], bool], program: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert program.poll() is None, f"it ended with {program.returncode}"
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_hangup_without_standard_streams_leaves_a_checkpoint_and_a_summary(tmp_path: Path) -> None:
    """A dropped ssh session: several SIGHUPs, and closed output streams."""
    options = [
        "--actors",
        "1",
        "--envs-per-actor",
        "2",
        "--dqn.learning-starts",
        "50",
        "--report-interval-seconds",
    ]
    command = [
        "-m",
        "asyncrl",
        "train",
        "CartPole-v1",
        "--algo",
        "dqn",
        *options,
        "0.1",
        "--target-eval-episodes",
        "2",
        "--run-dir",
        str(tmp_path),
    ]

    def close_streams() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # `nohup` before the tests leaves it ignored
        for descriptor in (0, 1, 2):
            os.close(descriptor)

    program = child(*command, preexec_fn=close_streams)
    try:
        lines = tmp_path / "metrics.jsonl"
        wait_until(lambda: lines.exists() and '"train/loss"' in lines.read_text(), program)
        program.send_signal(signal.SIGHUP)
        program.send_signal(signal.SIGHUP)
        try:
            assert program.wait(SECONDS) == 130
        except subprocess.TimeoutExpired:
            pytest.fail((tmp_path / "waiting.txt").read_text())
    finally:
        program.kill()
        program.wait()
    summary = summary_of(tmp_path)
    assert (summary["state"], summary["stop_reason"]) == ("interrupted", "interrupted")
    assert read_policy(tmp_path / "checkpoints" / "latest").meta.updates == summary["updates"]


def full_pipe() -> tuple[int, int]:
    """Both ends of a pipe that nobody reads and that takes no more bytes."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, bytes(1 << 16))
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"0")
    os.set_blocking(writer, True)
    return reader, writer


def test_a_signal_is_heard_although_nobody_reads_the_output(tmp_path: Path) -> None:
    reader, writer = full_pipe()
    options = ["--actors", "1", "--dqn.learning-starts", "50", "--report-interval-seconds", "0.1"]
    options += ["--target-eval-episodes", "2"]
    command = ["train", "CartPole-v1", "--algo", "dqn", "--steps", "100m", "--http", "off", *options]
    program = child("-m", "asyncrl", *command, "--run-dir", str(tmp_path), stdout=writer, stderr=writer)
    try:
        lines = tmp_path / "metrics.jsonl"
        wait_until(lambda: lines.exists() and '"train/loss"' in lines.read_text(), program)
        program.send_signal(signal.SIGTERM)
        assert program.wait(SECONDS) == 130
    finally:
        program.kill()
        program.wait()
        for descriptor in (reader, writer):
            os.close(descriptor)
    assert summary_of(tmp_path)["state"] == "interrupted"


def test_a_run_ends_although_nobody_reads_what_it_prints_and_warns(tmp_path: Path) -> None:
    """Its closing lines and a warning of its loop (ASYNC020 and the like) go to pipes that are full."""
    reader, writer = full_pipe()
    script = """
        import sys, warnings
        from asyncrl.cli import entry
        from asyncrl.errors import SamplesTooStale
        from asyncrl.show import console

        def warn(snapshot):
            warnings.warn(SamplesTooStale("[ASYNC020] as the run's loop does"), stacklevel=2)
            return True

        console.is_worth_showing = warn
        sys.argv = ["asyncrl", *sys.argv[1:]]
        sys.exit(entry.main())
    """
    command = ["train", "CartPole-v1", "--algo", "dqn", "--steps", "300", "--http", "off", "--actors", "1"]
    command += ["--target-eval-episodes", "2"]
    program = child(
        "-c", textwrap.dedent(script), *command, "--run-dir", str(tmp_path), stdout=writer, stderr=writer
    )
    try:
        assert program.wait(SECONDS) == 0
    finally:
        program.kill()
        program.wait()
        os.close(reader)
        os.close(writer)
    assert summary_of(tmp_path)["state"] == "finished"


def test_a_second_signal_kills_before_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped, interrupts = Stopped(), Interrupts()
    interrupts.run = stopped
    monkeypatch.setattr(os, "_exit", lambda code: stopped.reasons.append(f"exit {code}"))
    monkeypatch.setattr(interrupts, "_print", lambda text: stopped.reasons.append(text))
    interrupts._handle(signal.SIGTERM, None)
    wait_for(lambda: len(stopped.reasons) == 2)
    interrupts._handle(signal.SIGTERM, None)
    assert stopped.reasons == [
        "interrupted",
        "SIGTERM: stopping, once more to kill\n",
        "killed",
        "killed\n",
        "exit 130",
    ]


class Stopped:
    def __init__(self) -> None:
        self.reasons: list[str] = []

    def stop(self, reason: str) -> None:
        self.reasons.append(reason)

    def kill(self) -> None:
        self.reasons.append("killed")


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.001)


def test_a_hangup_stops_and_a_second_one_does_not_kill(capfd: pytest.CaptureFixture[str]) -> None:
    def unheard(*_: Any) -> None:
        stopped.reasons.append("unheard")

    stopped = Stopped()
    before = signal.signal(signal.SIGHUP, unheard)
    try:
        with Interrupts() as interrupts:
            interrupts.run = stopped
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGHUP)
            wait_for(lambda: bool(stopped.reasons))
        assert stopped.reasons == ["interrupted"]
        assert signal.getsignal(signal.SIGHUP) is unheard
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
        with Interrupts():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_an_import_that_turns_the_interrupt_into_an_error_was_interrupted() -> None:
    with pytest.raises(KeyboardInterrupt), Interrupts():
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        raise ImportError("numpy._core.multiarray failed to import")
    with pytest.raises(ImportError), Interrupts():
        raise ImportError("no module named torch")


@pytest.mark.parametrize("line", range(12))
def test_a_hangup_within_the_handler_of_another_does_not_kill(
    line: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second signal arrives when the handler of the first is at its `line`-th line."""
    stopped, interrupts, lines = Stopped(), Interrupts(), iter(range(100))
    interrupts.run = stopped
    monkeypatch.setattr(os, "_exit", lambda code: None)

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code is Interrupts._handle.__code__ and event == "line" and next(lines) == line:
            interrupts._handle(signal.SIGHUP, None)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        interrupts._handle(signal.SIGHUP, None)
    finally:
        sys.settrace(before)
    wait_for(lambda: bool(stopped.reasons))
    assert stopped.reasons == ["interrupted"]


def test_an_interrupt_that_an_import_has_swallowed_is_raised_again_when_there_is_a_run() -> None:
    with Interrupts() as interrupts:
        with contextlib.suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(10)
        assert interrupts.count == 1
        with pytest.raises(KeyboardInterrupt):
            interrupts.run = Stopped()


def test_an_interrupt_while_torch_is_imported_is_heard(tmp_path: Path) -> None:
    """The command handles the interrupt although the import swallows it."""
    swallows = """
        import builtins, os, runpy, signal, sys, time

        class Finder:
            def find_spec(self, name, path=None, target=None):
                if name == "torch":
                    try:
                        os.kill(os.getpid(), signal.SIGINT)
                        time.sleep(0.5)
                    except BaseException:
                        pass

        sys.meta_path.insert(0, Finder())
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.argv = ["asyncrl", "train", "CartPole-v1", "--algo", "dqn", "--steps", "1m", "--http", "off"]
        runpy.run_module("asyncrl", run_name="__main__")
    """
    program = child("-c", textwrap.dedent(swallows), cwd=tmp_path, stderr=subprocess.PIPE)
    try:
        _, err = program.communicate(timeout=SECONDS)
        assert program.returncode == 130, err
        assert err.rstrip().endswith("interrupted") or "[ASYNC031]" in err, err
        assert "Traceback" not in err
    finally:
        program.kill()
        program.communicate()


@pytest.mark.parametrize(
    ("number", "handler", "code", "state"),
    [
        (signal.SIGTERM, "SIG_DFL", 128 + signal.SIGTERM, "interrupted"),
        (signal.SIGHUP, "SIG_DFL", 128 + signal.SIGHUP, "interrupted"),
        (signal.SIGHUP, "SIG_IGN", 0, "finished"),
        (signal.SIGTERM, "own", 0, "finished"),
    ],
    ids=["terminated", "hung up", "hangup ignored", "of the program"],
)
def test_a_script_that_is_terminated_ends_its_run_in_good_order(
    number: signal.Signals, handler: str, code: int, state: str, tmp_path: Path
) -> None:
    steps = 2_000 if state == "finished" else 1_000_000  # a short run may end before the signal is heard
    script = f"""
        import asyncrl, os, signal
        own = lambda *_: None
        signal.signal({int(number)}, {handler if handler == "own" else f"signal.{handler}"})

        class Terminated(asyncrl.Callback):
            reports = 0

            def on_report(self, trainer, snapshot):
                self.reports += 1
                if snapshot.state == "training" and snapshot.updates:
                    os.kill(os.getpid(), {int(number)})
                    return self.reports < 100

        algorithm = asyncrl.DQN(learning_starts=50, replay_capacity=2_000)
        options = dict(num_actors=1, envs_per_actor=2, http="off", run_dir={str(tmp_path / "run")!r})
        try:
            trainer = asyncrl.Trainer("CartPole-v1", algorithm, report_interval_steps=100, **options)
            trainer.learn(total_steps={steps}, callbacks=[Terminated()], progress=False)
        finally:
            print("finally", signal.getsignal({int(number)}) == {handler if handler == "own" else f"signal.{handler}"})
    """
    program = child("-c", textwrap.dedent(script), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        out, err = program.communicate(timeout=SECONDS)
        assert (program.returncode, out) == (code, "finally True\n"), err
        assert "Traceback" not in err
        assert json.loads((tmp_path / "run" / "summary.json").read_text())["state"] == state
    finally:
        program.kill()
        program.communicate()


SCRIPT = tomllib.loads((Path(PACKAGE) / "pyproject.toml").read_text())["project"]["scripts"]["asyncrl"]
ENTRIES = {
    "python -m asyncrl": "runpy.run_module('asyncrl', run_name='__main__')",
    "asyncrl": "sys.exit(getattr(importlib.import_module({!r}), {!r})())".format(*SCRIPT.split(":")),
}


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize(
    ("module", "number"),
    [
        *((module, "SIGINT") for module in ("asyncrl.cli.main", "asyncrl.cli.flags", "asyncrl.options")),
        *(("asyncrl.cli.main", number) for number in ("SIGTERM", "SIGHUP")),
    ],
)
def test_a_signal_while_the_command_line_is_imported_gives_no_traceback(
    entry: str, module: str, number: str
) -> None:
    assert_interrupted_while_importing(entry, module, number)


def test_a_signal_before_the_command_heeds_it_gives_no_traceback() -> None:
    """While `python -m asyncrl` imports the module that heeds signals."""
    assert_interrupted_while_importing("python -m asyncrl", "asyncrl.cli.entry", "SIGINT")


def assert_interrupted_while_importing(entry: str, module: str, number: str) -> None:
    interrupted = f"""
        import importlib, runpy, signal, sys

        class Finder:
            def find_spec(self, name, path=None, target=None):
                if name == {module!r}:
                    signal.raise_signal(signal.{number})

        sys.meta_path.insert(0, Finder())
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # `nohup` before the tests leaves it ignored
        sys.argv = ["asyncrl", "presets"]
        {ENTRIES[entry]}
    """
    program = child("-c", textwrap.dedent(interrupted), stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    assert program.communicate(timeout=SECONDS) == ("", "interrupted\n")
    assert program.returncode == 130


def test_a_signal_within_a_string_that_an_import_executes_ends_the_command_with_its_code(
    tmp_path: Path,
) -> None:
    """As `dataclass` and `namedtuple` do: `python -m` would end by the signal, whoever has caught its error."""
    interrupted = """
        import signal, sys
        from asyncrl.cli.entry import main

        class Finder:
            def find_spec(self, name, path=None, target=None):
                if name == "asyncrl.cli.flags":
                    exec("signal.raise_signal(signal.SIGINT)", {"signal": signal})

        sys.meta_path.insert(0, Finder())
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.argv = ["asyncrl", "presets"]
        sys.exit(main())
    """
    (tmp_path / "interrupted.py").write_text(textwrap.dedent(interrupted))
    program = child("-m", "interrupted", cwd=tmp_path, stderr=subprocess.PIPE)
    assert program.communicate(timeout=SECONDS)[1] == "interrupted\n"
    assert program.returncode == 130


def test_next_to_nothing_is_imported_before_the_command_heeds_signals() -> None:
    """A Ctrl-C before that is a traceback; `typing` took three quarters of the time."""
    script = f"""
        import sys
        sys.path.insert(0, {PACKAGE!r})
        before = set(sys.modules)
        import asyncrl.cli.entry
        print(*sorted(set(sys.modules) - before))
    """
    told = subprocess.run(
        [sys.executable, "-I", "-S", "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        check=True,
    )
    slow = {"typing", "re", "enum", "functools", "collections", "contextlib"}
    assert not slow & {*told.stdout.split()}


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
def test_a_signal_that_an_import_swallows_ends_the_command_before_it_trains(
    number: str, tmp_path: Path
) -> None:
    """As a callback of the import's locks does, in which Python prints the error and goes on."""
    swallowed = f"""
        import contextlib, signal, sys
        from asyncrl.cli.entry import main

        class Finder:
            def find_spec(self, name, path=None, target=None):
                if name == "asyncrl.cli.flags":
                    with contextlib.suppress(KeyboardInterrupt):
                        signal.raise_signal(signal.{number})

        sys.meta_path.insert(0, Finder())
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.argv = ["asyncrl", *sys.argv[1:]]
        sys.exit(main())
    """
    command = ("train", "CartPole-v1", "--algo", "dqn", "--steps", "100M", "--run-dir", str(tmp_path / "run"))
    program = child("-c", textwrap.dedent(swallowed), *command, stderr=subprocess.PIPE)
    try:
        assert program.communicate(timeout=SECONDS)[1] == "interrupted\n"
    finally:
        program.kill()
        program.wait()
    assert program.returncode == 130 and not (tmp_path / "run").exists()


def test_a_hangup_that_is_ignored_stays_so_while_the_command_starts() -> None:
    program = child(
        "-c",
        "import signal, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN); from asyncrl.cli.entry import main; "
        "sys.argv[1:] = ['presets', 'dqn']; main(); print(signal.getsignal(signal.SIGHUP).name)",
        stdout=subprocess.PIPE,
    )
    assert program.communicate(timeout=SECONDS)[0].splitlines()[-1] == "SIG_IGN"


class Raises:
    """Object whose end raises a signal: an exception of its handler is printed there, and goes no further."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        signal.raise_signal(self.number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_at_any_place_cancels_a_command_without_a_run(number: int) -> None:
    before, closed = {n: signal.getsignal(n) for n in interrupts.SIGNALS}, []

    async def command() -> None:
        try:
            Raises(number)
            await asyncio.sleep(SECONDS)
        finally:
            await asyncio.sleep(0)
            closed.append(True)

    def own(number: int, frame: object) -> None:
        """Handler of the command's entry."""

    for one in interrupts.SIGNALS:
        signal.signal(one, own)
    try:
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            run_until_signal(command())
        assert closed and time.monotonic() - began < SECONDS
        handlers = {signal.getsignal(one) for one in interrupts.SIGNALS}
        assert handlers == {own}, "for what follows in the command"
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def test_a_signal_that_came_before_ends_a_command_without_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "received", [signal.SIGINT])
    with pytest.raises(KeyboardInterrupt):
        run_until_signal(asyncio.sleep(SECONDS))


def test_a_command_without_a_run_returns_its_result_and_its_own_cancellation() -> None:
    async def cancelled() -> None:
        raise asyncio.CancelledError

    assert run_until_signal(asyncio.sleep(0, "result")) == "result"
    with pytest.raises(asyncio.CancelledError):
        run_until_signal(cancelled())


# --- the steps of the end, each failing in turn -------------------------------------------------------------------


CRITICS = np.ones((1, 2), np.float32)


class Parts:
    """Parts of a run that record calls and fail where the test sets it."""

    updates = 7
    inserted_steps, policy_version = 70, 3
    max_seconds: float | None = None
    hangs, failure = False, ""
    cut_episodes = finished_episodes = 0
    actor_wait_seconds, returns = 0.0, ()
    state, last, episodes = "training", None, SimpleNamespace(extend=list)

    success_rate = None

    def __init__(self, run: Any, fails: str) -> None:
        self.run, self.fails = run, fails
        self.levels, self.level_returns, self.reward_scale = ("",), {}, 0.25
        self.agents, self.policies = (), ()
        self.log: list[str] = []

    def _note(self, step: str) -> None:
        self.log.append(step)
        if step == self.fails:
            raise errors.ResourceError(f"{step} failed")

    async def report(self) -> Any:
        self._note("report")
        return {}, {}

    async def current_weights(self) -> Any:
        self._note("weights")
        return np.ones(2, np.float32), 1

    async def critics(self) -> Any:
        return CRITICS

    async def save_latest(self, weights: Any, evaluation: Any) -> str:
        self._note("save")
        if self.fails == "weights diverged":
            raise errors.TrainingDiverged("the weights became NaN")
        return ""

    async def save_after_training(self, *arguments: Any) -> None:
        await CheckpointSaver.save_after_training(self, *arguments)  # type: ignore[arg-type]

    async def save_best(self, result: Any, weights: Any) -> None: ...

    def evaluated(self, result: Any) -> None: ...

    async def evaluate(self, weights: Any, episodes: int, key: Any) -> Any:
        self._note("evaluate")
        if self.fails == "user stops":
            self.run._stop_requested.set()
        if self.fails in ("evaluation hangs", "user stops", "user stops after a while"):
            await asyncio.Event().wait()
        return np.ones(episodes), np.full(episodes, 5)

    def policy(self, weights: Any, moment: Any) -> Any:
        assert weights.critics is CRITICS and weights.reward_scale == self.reward_scale
        return weights.acting

    def show_state(self, state: str, **fields: Any) -> None:
        pass

    def show(self, snapshot: Any) -> None:
        assert self.run.directory.path is not None
        written = (self.run.directory.path / "summary.json").exists()
        self.log += ["summary"] * written + [f"show {snapshot.stop_reason}"]


class Ending(Run):
    """A run whose training has ended, with `Parts` in place of its parts."""

    def __init__(self, path: Path, fails: str = "") -> None:
        self.directory, self.clock = RunDirectory(path), TrainClock()
        self._target_weights = None
        self.config = TrainerConfig(env="any", algo="dqn", target_eval_episodes=3)
        nothing: Any = None
        self.group = Alone(Job(self.config, nothing, nothing))
        self.whole_config, self._run_dir = self.config, None
        self.built, self.resumed = True, None
        parts: Any = Parts(self, fails)
        self.parts = self.learner = self.saver = self.evaluator = self.origin = self.reporter = parts
        self.pool: Any = SimpleNamespace(episodes=tuple)
        self.films = None
        self.spec: Any = SimpleNamespace(reward_threshold=475.0)

    def snapshot(self, stop_reason: str | None = None, error: str | None = None) -> Any:
        return make_snapshot(stop_reason=stop_reason, error=error)

    def finish(self, reason: str = "total_steps", error: BaseException | None = None) -> Any:
        async def end() -> Any:
            self._stop_requested = asyncio.Event()
            self.schedule = EvaluationSchedule(self)
            return await self.end(reason, error)

        outcome, error = asyncio.run(end())
        self.directory.close()
        return outcome, error


STEPS = ["report", "weights", "save", "weights", "evaluate", "summary", "show total_steps"]


def test_the_checkpoint_comes_before_the_evaluation_and_the_summary_before_it_is_shown(
    tmp_path: Path,
) -> None:
    rig = Ending(tmp_path)
    outcome, error = rig.finish()
    assert (rig.parts.log, error) == (
        [*STEPS[:-2], "save", *STEPS[-2:]],
        None,
    )  # a run that goes on knows of the evaluation
    assert summary_of(tmp_path) == outcome.summary
    assert outcome.summary["eval"] == {
        "return_mean": 1.0, "return_std": 0.0, "episodes": 3, "deterministic": True, "cut_episodes": 0,
        "error": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("fails", "warning", "eval_error"),
    [
        ("save", errors.FilesNotWritten, None),
        ("evaluate", errors.EvaluationIncomplete, "evaluate failed"),
        ("evaluation hangs", errors.EvaluationIncomplete, "it took longer than 0 s"),
        ("user stops", None, "interrupted"),
    ],
)
def test_a_step_that_fails_does_not_keep_the_others_from_being_taken(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fails: str,
    warning: type[Warning] | None,
    eval_error: str | None,
) -> None:
    if fails == "evaluation hangs":
        monkeypatch.setattr(evaluate, "EVALUATION_SECONDS", 0.0)
        monkeypatch.setattr(evaluate, "GRACE_SECONDS", 0.01)
    rig = Ending(tmp_path, fails)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        outcome, error = rig.finish()
    assert [type(w.message) for w in caught] == ([warning] if warning else [])  # once, also of two saves
    assert (rig.parts.log, error) == (STEPS, None)
    assert outcome.policy.tolist() == [1, 1]
    assert summary_of(tmp_path)["state"] == "finished"
    assert (eval_error or "") in (outcome.summary["eval"]["error"] or "")


@pytest.mark.parametrize(
    ("fails", "log"),
    [
        ("save", ["report", "weights", "save", "summary", "show failed"]),
        ("evaluate", [*STEPS[:-2], "summary", "show failed"]),
        ("summary", [*STEPS[:-2], "save", "show total_steps"]),
    ],
)
def test_a_warning_that_is_an_error_costs_neither_the_result_nor_the_summary(
    tmp_path: Path, fails: str, log: list[str]
) -> None:
    """As with `python -W error`."""
    rig = Ending(tmp_path, fails)
    if fails == "summary":
        (tmp_path / "summary.json").mkdir()
        log = [*log[:-1], "summary", log[-1]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        outcome, error = rig.finish()
    assert isinstance(error, errors.AsyncRLWarning)
    assert rig.parts.log == log and outcome.policy.tolist() == [1, 1]
    if fails != "summary":
        assert summary_of(tmp_path)["state"] == "failed"
        assert str(error) in summary_of(tmp_path)["error"]


def test_a_summary_that_cannot_be_written_is_in_the_result(tmp_path: Path) -> None:
    rig = Ending(tmp_path)
    (tmp_path / "summary.json").mkdir()
    with pytest.warns(errors.FilesNotWritten, match=r"ASYNC040.*summary\.json"):
        outcome, error = rig.finish()
    assert error is None
    assert outcome.summary["state"] == "finished"


def test_a_learner_that_diverged_does_not_overwrite_the_last_checkpoint(tmp_path: Path) -> None:
    diverged = errors.TrainingDiverged("the loss became NaN")
    rig = Ending(tmp_path)
    assert rig.finish("failed", diverged) == (None, diverged)
    assert rig.parts.log == ["report", "summary", "show failed"]
    assert summary_of(tmp_path)["error"] == "[ASYNC022] the loss became NaN"


def test_weights_that_are_nan_only_at_the_end_fail_the_run_and_leave_a_summary(tmp_path: Path) -> None:
    rig = Ending(tmp_path, "weights diverged")
    outcome, error = rig.finish()
    assert outcome is None and isinstance(error, errors.TrainingDiverged)
    assert rig.parts.log == ["report", "weights", "save", "summary", "show failed"]
    summary = summary_of(tmp_path)
    assert (summary["state"], summary["error"]) == ("failed", "[ASYNC022] the weights became NaN")


@pytest.mark.parametrize("reason", ["stopped", "interrupted"])
def test_a_run_that_was_ended_by_its_user_leaves_a_summary(tmp_path: Path, reason: str) -> None:
    _, error = Ending(tmp_path).finish(reason)
    summary = summary_of(tmp_path)
    assert (error, summary["state"], summary["stop_reason"], summary["error"]) == (None, reason, reason, None)


def test_a_start_that_was_interrupted_leaves_a_summary(tmp_path: Path) -> None:
    rig = Ending(tmp_path)
    stopped = errors.StoppedWhileStarting("The run was stopped while it started.")
    rig.built = False
    _, error = rig.finish("interrupted", stopped)
    assert error is stopped
    summary = summary_of(tmp_path)
    assert (summary["state"], summary["stop_reason"]) == ("interrupted", "interrupted")
    assert "while it started" in summary["error"]


def test_the_final_evaluation_says_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate, "PROGRESS_SECONDS", 0.01)
    rig, told = Ending(tmp_path, "user stops after a while"), []

    def tell(state: str, final_evaluation: tuple[int, int]) -> None:
        told.append(final_evaluation)
        rig.parts.finished_episodes = min(final_evaluation[0] + 1, 3)
        if len(told) == 4:
            rig._stop_requested.set()

    rig.parts.show_state = tell
    rig.finish()
    assert told == [(0, 3), (1, 3), (2, 3), (3, 3)]


def test_a_learner_that_fails_only_at_the_end_fails_the_run(tmp_path: Path) -> None:
    rig = Ending(tmp_path, "weights")
    outcome, error = rig.finish()
    assert (outcome, str(error)) == (None, "[ASYNC000] weights failed")
    assert summary_of(tmp_path)["state"] == "failed"
