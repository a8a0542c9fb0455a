"""Runs of two groups: from Python, by torchrun's two commands on two addresses, and with a rank that is killed."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import torch.distributed as dist
from waiting import PATIENCE_SECONDS, wait_until

import asyncrl
from asyncrl import DQN, Trainer, TrainerConfig
from asyncrl.cli.main import main
from asyncrl.errors import EnvironmentRaised, GroupLost, ResourceError, StoppedWhileStarting
from asyncrl.groups.launch import describe_failure, free_port
from asyncrl.run.job import Job
from asyncrl.storage.checkpoint import load as load_checkpoint
from asyncrl.trainer.channel import Channel
from asyncrl.trainer.ranks import SOCKET, Ranks

SMALL: dict[str, Any] = {"num_actors": 1, "envs_per_actor": 8, "eval_interval_steps": None}
SMALL |= {"target_eval_episodes": 2, "http": "off"}
pytestmark = pytest.mark.timeout(240)


@pytest.fixture(autouse=True, scope="module")
def libuv_of_torch_has_started() -> None:
    """Start torch's libuv, whose first store opens a pipe for the whole process; that is not a leak of a test."""
    dist.TCPStore("127.0.0.1", free_port(), is_master=True, wait_for_workers=False)


STEPS = "1500"
LOCKSTEP = ("--dqn.discipline", "lockstep", "--dqn.learning-rate", "1e-3", "--steps", STEPS)
SMALL_FLAGS = ("--actors", "1", "--envs-per-actor", "8", "--eval-interval-steps", "none")
SMALL_FLAGS += ("--target-eval-episodes", "2", "--fusion-interval", "8", "--http", "off")
TRAIN = ("train", "CartPole-v1", "--algo", "dqn", *SMALL_FLAGS)
MODULE = """
import gymnasium
from asyncrl import DQN

def make():
    return gymnasium.make("CartPole-v1")

def algorithm():
    return DQN.preset("CartPole-v1", discipline="lockstep", learning_rate=lambda progress: 1e-3)
"""
SCRIPT = """
import json, sys, tempfile
from own_cart_pole import algorithm, make
from asyncrl import Trainer, load

class Checkpoints:
    paths = []

    def on_checkpoint(self, trainer, path):
        assert isinstance(trainer, Trainer)
        self.paths.append(path)

tempfile.tempdir, shown = sys.argv[1], []
options = json.loads(sys.argv[2])
trainer = Trainer(make, algorithm(), **options)
result = trainer.learn(on_snapshot=shown.append, callbacks=[Checkpoints()])
action, _ = result.policy.predict([0.0] * 4)
rate = result.policy.algorithm.learning_rate(0.5)
groups = max(len(snapshot.groups) for snapshot in shown)
same = bool((result.policy.weights == load(options["run_dir"]).weights).all())
print(json.dumps([result.summary["fusions"], Checkpoints.paths, int(action), rate, groups, same]))
"""


def weights_of(run: Path) -> Any:
    return asyncrl.load(run).weights


def velocity_of(run: Path) -> Any:
    """Velocity of the outer step of fusions, in the newest checkpoint."""
    state, _ = load_checkpoint(run / "checkpoints" / "latest")
    return state["run"]["learner"]["velocity"]


def by_script(folder: Path, run: Path) -> None:
    """Train by a script with a module beside it, a local function among the options and a long temporary folder.

    `python folder/train.py` has `folder` on its path, which `-m asyncrl.trainer.rank` has not. The launcher cannot
    import the local function of the result. The path of a socket has at most a hundred bytes.
    """
    long = folder / ("long" * 30)
    long.mkdir()
    (folder / "own_cart_pole.py").write_text(MODULE)
    (folder / "train.py").write_text(SCRIPT)
    options = {**SMALL, "groups": 2, "fusion": "gradients", "fusion_interval": 8, "run_dir": str(run)}
    line = [
        sys.executable,
        str(folder / "train.py"),
        str(long),
        json.dumps({**options, "total_steps": STEPS}),
    ]
    done = subprocess.run(line, capture_output=True, text=True, timeout=3 * PATIENCE_SECONDS, cwd="/")
    assert done.returncode == 0, done.stderr
    fusions, checkpoints, action, rate, groups, same = json.loads(done.stdout.splitlines()[-1])
    assert checkpoints and all(Path(path).exists() for path in checkpoints)
    assert (action in (0, 1), rate, groups, same) == (True, 1e-3, 2, True)
    summary = json.loads((run / "summary.json").read_text())
    assert summary["fusions"] == fusions and fusions["count"] > 5 and fusions["sent_bytes"] > 0
    assert (run / "groups" / "1" / "summary.json").exists()


def by_torchrun(run: Path) -> None:
    """Train by two commands on two addresses."""
    port = free_port()
    commands = [
        [
            *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"),
            *("--node-rank", str(rank), "--master-addr", "127.0.0.2", "--master-port", str(port)),
            *("--local-addr", f"127.0.0.{2 + rank}", "-m", "asyncrl", *TRAIN, *LOCKSTEP),
            *("--fusion", "gradients", "--run-dir", str(run)),
        ]
        for rank in range(2)
    ]
    machines = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    outputs = [machine.communicate(timeout=3 * PATIENCE_SECONDS)[0] for machine in machines]
    assert [machine.returncode for machine in machines] == [0, 0]
    assert "stopped by    total_steps" in outputs[0] and outputs[1] == ""


def test_a_script_and_torchrun_give_the_same_weights_in_lockstep(tmp_path: Path) -> None:
    runs = [tmp_path / name for name in ("script", "torchrun")]
    by_script(tmp_path, runs[0])
    by_torchrun(runs[1])
    updates = []
    for run in runs:
        summary = json.loads((run / "summary.json").read_text())
        first, second = summary["groups"]
        assert [first["rank"], second["rank"]] == [0, 1]
        assert (summary["stop_reason"], summary["env_steps"] >= 1500) == ("total_steps", True)
        assert all(group["env_steps"] >= 750 and group["fusions"] > 0 for group in (first, second))
        assert abs(first["updates"] - second["updates"]) < 10, (
            "the last ones are of the group that ended last"
        )
        assert first["updates"] == summary["updates"] > 100
        updates.append(summary["updates"])
    assert updates[0] == updates[1]
    assert np.array_equal(*map(weights_of, runs))


def test_two_groups_of_the_command_line_train_one_policy_and_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the command in this process, which has imported torch already."""
    run = tmp_path / "run"
    line = [*TRAIN, "--groups", "2", "--fusion", "average", "--steps", "4000", "--run-dir", str(run)]
    assert main([*line, "--fusion-momentum", "0.9", "--fusion-learning-rate", "0.7"]) == 0
    assert "stopped by    total_steps" in capsys.readouterr().out
    summary = json.loads((run / "summary.json").read_text())
    groups = summary["groups"]
    assert [group["rank"] for group in groups] == [0, 1]
    assert summary["fusions"]["count"] > 5 and summary["fusions"]["sent_bytes"] > 0
    assert summary["env_steps"] == sum(group["env_steps"] for group in groups) >= 4000
    assert all(group["updates"] > 100 for group in groups) and groups[0]["policy_lag_mean"] > 0
    assert "total_steps = 4000" in (run / "config.toml").read_text()
    metrics = (run / "metrics.jsonl").read_text()
    velocity = velocity_of(run)
    going_on = Trainer.resume(run, total_steps="+1000", learning_rate=1e-12)
    told = f"{summary['env_steps']:,} steps, {summary['updates']:,} updates"
    assert going_on.resumed_from[0].endswith(told), "those of all groups"
    more = going_on.learn().summary
    assert (run / "metrics.jsonl").read_text().startswith(metrics)
    assert summary["env_steps"] + 1000 <= more["env_steps"] < summary["env_steps"] + 1200
    assert summary["updates"] < more["updates"] and len(more["groups"]) == 2
    for before, after in zip(groups, more["groups"], strict=True):
        assert before["env_steps"] + 400 < after["env_steps"] < before["env_steps"] + 700
    # Without learning, the velocity of the outer step only decays.
    fusions = more["fusions"]["count"]
    np.testing.assert_allclose(velocity_of(run), 0.9**fusions * velocity, atol=1e-6)
    assert fusions < 50 and np.abs(velocity).max() > 1e-3


def rank_process(rank: int) -> psutil.Process:
    """Process of a rank that this one has started."""
    for child in psutil.Process().children(recursive=True):
        try:
            if "asyncrl.trainer.rank" in child.cmdline() and child.environ().get("RANK") == str(rank):
                return child
        except psutil.Error:
            continue
    raise AssertionError(f"rank {rank} is not there")


def wait_until_both_learn(trainer: Trainer) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline and not trainer.done:
        snapshot = trainer.snapshot()
        if snapshot is not None and len([g for g in snapshot.groups if g.updates > 0 and g.fusions > 0]) == 2:
            return
        time.sleep(0.05)
    raise AssertionError("the groups do not learn")


def test_a_killed_rank_ends_average_at_once_and_is_named(tmp_path: Path) -> None:
    options = {**SMALL, "groups": 2, "fusion": "average", "fusion_interval": 4, "run_dir": tmp_path / "run"}
    trainer = Trainer("CartPole-v1", "dqn", **options)
    trainer.start()
    try:
        wait_until_both_learn(trainer)
        rank_process(1).send_signal(signal.SIGKILL)
        with pytest.raises(GroupLost, match=r"Rank 1 on .* is lost") as caught:
            trainer._done.result(PATIENCE_SECONDS)
    finally:
        trainer.close()
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["state"] == "failed" and "ASYNC032" in summary["error"]
    assert "cause: Connection closed by peer" in str(caught.value)
    assert (tmp_path / "run" / "checkpoints" / "latest").exists()


def test_ranks_that_do_not_end_after_one_was_lost_are_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 may be the suspended one, which never reports."""
    monkeypatch.setattr("asyncrl.trainer.ranks.LOST_SECONDS", 0.01)
    ranks = object.__new__(Ranks)

    async def outcomes() -> None:
        killed = asyncio.Event()
        ranks._errors, ranks._loop = {}, asyncio.get_running_loop()
        monkeypatch.setattr(ranks, "kill", killed.set)
        ranks._receive(None, ("result", 1, None, ValueError("its environment failed")))  # type: ignore[arg-type]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(killed.wait(), 0.2)
        ranks._receive(None, ("result", 1, None, GroupLost("Rank 0 is lost.", fix="")))  # type: ignore[arg-type]
        await asyncio.wait_for(killed.wait(), 10)

    asyncio.run(outcomes())


def bare_ranks(**attributes: Any) -> Ranks:
    ranks = object.__new__(Ranks)
    start: dict[str, Any] = {"_errors": {}, "result": None, "_reason": None, "_killed": False}
    start |= {"_channels": {}, "_pids": {}, "_directory": None}
    for name, value in {**start, **attributes}.items():
        setattr(ranks, name, value)
    return ranks


LOST, STOPPED = GroupLost("Rank 1 has failed."), StoppedWhileStarting("stopped")
FAILED = EnvironmentRaised("no screen")


@pytest.mark.parametrize(
    ("errors", "shown"),
    [
        ({0: LOST, 1: FAILED}, FAILED),
        ({0: STOPPED, 1: FAILED}, FAILED),
        ({0: LOST, 1: LOST, 2: FAILED}, FAILED),
        ({0: FAILED, 1: LOST}, FAILED),
        ({0: STOPPED, 1: STOPPED}, STOPPED),
        ({1: LOST, 2: FAILED}, FAILED),
        ({0: ValueError("a"), 1: FAILED}, ValueError),
    ],
)
def test_the_error_of_the_rank_that_has_failed_is_raised(errors: dict[int, Any], shown: Any) -> None:
    found = bare_ranks(_errors=errors)._error([])
    assert found is shown or type(found) is shown


@pytest.mark.parametrize("lost", [0, 1])
def test_a_rank_that_dies_while_all_start_is_named(lost: int) -> None:
    """The agent ends the others by SIGTERM, which then say that they were stopped."""
    failures = [{"rank": lost, "pid": 4711, "exit_code": -9}]
    found = bare_ranks(_errors={1 - lost: STOPPED})._error(failures)
    assert isinstance(found, GroupLost)
    assert f"rank {lost} on" in str(found) and "was killed by SIGKILL" in str(found)
    assert bare_ranks(_errors={1 - lost: STOPPED}, _killed=True)._error(failures) is STOPPED


def test_an_error_of_an_earlier_life_of_a_rank_is_forgotten() -> None:
    ranks = bare_ranks(_errors={1: FAILED})
    ranks._receive(None, ("hello", 1, 4711))  # type: ignore[arg-type]
    assert ranks._errors == {}


def test_nothing_is_killed_after_the_ranks_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their process numbers may be those of other processes."""
    killed: list[int] = []
    monkeypatch.setattr("asyncrl.trainer.ranks.os.kill", lambda pid, _: killed.append(pid))
    ended: Any = concurrent.futures.Future()
    ranks = bare_ranks(_pids={0: 4711}, _ended=ended)
    ranks.kill()
    ended.set_result([])
    ranks.kill()
    assert killed == [4711]


def test_a_run_that_is_stopped_before_its_groups_starts_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would import torch before it heard of the stop."""
    monkeypatch.setattr("asyncrl.groups.launch.Launch", lambda *_, **__: pytest.fail("it is stopped"))

    async def run() -> None:
        job: Any = SimpleNamespace(
            config=TrainerConfig(env="CartPole-v1", algo="dqn", groups=2), resumed=None
        )
        ranks = Ranks(job, lambda _: None)
        ranks.stop("interrupted")
        with pytest.raises(StoppedWhileStarting, match="while its groups started"):
            await ranks.run()

    asyncio.run(run())


def test_a_launcher_that_cannot_start_leaves_neither_its_socket_nor_its_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listeners: list[socket.socket] = []
    accept = Ranks._accept

    def noted(ranks: Ranks, listener: socket.socket) -> None:
        listeners.append(listener)
        accept(ranks, listener)
        listeners.append(listener)

    def refused(*_: Any, **__: Any) -> None:
        wait_until(lambda: listeners, "the thread that accepts")
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Ranks, "_accept", noted)
    monkeypatch.setattr("asyncrl.groups.launch.Launch", refused)

    async def run() -> None:
        source: Any = None
        config = TrainerConfig(env="any", algo="dqn", groups=2)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            await Ranks(Job(config, DQN(), source), lambda _: None).run()

    asyncio.run(run())
    assert listeners[0].fileno() == -1
    wait_until(lambda: len(listeners) == 2, "the end of the thread")


def test_a_rank_that_comes_after_the_kill_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[int] = []
    monkeypatch.setattr("asyncrl.trainer.ranks.os.kill", lambda pid, _: killed.append(pid))
    ranks = bare_ranks(_ended=concurrent.futures.Future())
    ranks.kill()
    ranks._receive(None, ("hello", 0, 4711))  # type: ignore[arg-type]
    assert killed == [4711]


def test_a_kill_removes_the_directory_of_the_ranks(tmp_path: Path) -> None:
    """The second Ctrl-C ends the process right after it."""
    directory = tmp_path / "asyncrl-ranks-x"
    directory.mkdir()
    (directory / "job.pkl").write_bytes(b"weights")
    bare_ranks(_ended=concurrent.futures.Future(), _directory=directory).kill()
    assert not directory.exists()


@pytest.mark.parametrize("removed", [False, True])
def test_a_rank_whose_launcher_was_killed_meanwhile_ends_quietly(tmp_path: Path, removed: bool) -> None:
    directory = tmp_path / "asyncrl-ranks-x"
    directory.mkdir()
    (directory / "job.pkl").write_bytes(b"weights")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(directory / SOCKET))
    if removed:
        (directory / SOCKET).unlink()
    place = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    command = (sys.executable, "-m", "asyncrl.trainer.rank", str(directory))
    ended = subprocess.run(
        command, env=os.environ | place, capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert not directory.exists()


def test_ranks_whose_launcher_is_killed_keep_a_checkpoint_and_leave_no_directory(tmp_path: Path) -> None:
    run, metrics = tmp_path / "run", tmp_path / "run" / "metrics.jsonl"
    flags = ("--steps", "10M", "--groups", "2", "--run-dir", str(run), "--report-interval-seconds", "0.2")
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    launcher = subprocess.Popen((sys.executable, "-m", "asyncrl", *TRAIN, *flags), env=environment)

    def learns() -> bool:
        rows = metrics.read_text().splitlines() if metrics.exists() else []
        return any(json.loads(row).get("train/n_updates", 0) > 0 for row in rows[-1:])

    try:
        wait_until(learns, "the first updates")
        children = psutil.Process(launcher.pid).children()
        ranks = [child for child in children if "asyncrl.trainer.rank" in child.cmdline()]
    finally:
        launcher.kill()
        launcher.wait()
    gone, alive = psutil.wait_procs(ranks, timeout=PATIENCE_SECONDS)
    assert len(gone) == 2 and not alive
    assert (run / "checkpoints" / "latest").exists()
    assert not list(tmp_path.glob("asyncrl-ranks-*"))


def test_a_launcher_says_that_rank_0_is_lost_without_frames_of_torch(tmp_path: Path) -> None:
    """With `async` every rank has its own agent in the launcher, and the first one's store ends with rank 0."""
    metrics = tmp_path / "run" / "metrics.jsonl"
    flags = ("--steps", "10M", "--groups", "2", "--fusion", "async", "--run-dir", str(tmp_path / "run"))
    launcher = subprocess.Popen(
        (sys.executable, "-m", "asyncrl", *TRAIN, *flags, "--report-interval-seconds", "0.2"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(lambda: metrics.exists() and bool(metrics.read_text()), "the first report")
        ranks = psutil.Process(launcher.pid).children()
        next(rank for rank in ranks if rank.environ().get("RANK") == "0").kill()
        _, err = launcher.communicate(timeout=PATIENCE_SECONDS)
    finally:
        launcher.kill()
        launcher.wait()
    assert launcher.returncode == 4 and err.startswith("[ASYNC032] Rank 0 on ")


def test_callbacks_of_a_run_that_goes_on_get_new_evaluations_only() -> None:
    called: list[Any] = []
    resumed = SimpleNamespace(run={"evaluations": {"return_mean": np.zeros(2)}})
    old, new, thinned = ("a", "b"), ("a", "b", "c"), ("b", "d")

    class Evaluated:
        def on_evaluation(self, trainer: None, evaluation: str) -> None:
            called.append(evaluation)

    async def show() -> None:
        going_on: Any = SimpleNamespace(config=None, resumed=resumed)
        ranks = Ranks(going_on, lambda _: None, None, [Evaluated()])
        for evaluations in ((), old, old, new, new, thinned, thinned):
            ranks._show(SimpleNamespace(state="training", evaluations=evaluations))  # type: ignore[arg-type]

    asyncio.run(show())
    assert called == ["c", "d"]


class SlowToRead:
    """An object that takes a second to unpickle."""

    def __reduce__(self) -> tuple[Any, ...]:
        return time.sleep, (1.0,)


def fails_after_a_second() -> None:
    time.sleep(1.0)
    raise ValueError("it is known to the rank alone")


class Unreadable:
    """An object that cannot be unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return fails_after_a_second, ()


@pytest.mark.parametrize("outcome", [SlowToRead(), Unreadable()])
def test_an_outcome_that_is_still_read_when_the_ranks_have_ended_is_kept(
    monkeypatch: pytest.MonkeyPatch, outcome: Any
) -> None:
    class Ended:
        """A launch whose rank 0 sends its outcome and has ended before it is read."""

        def __init__(self, command: list[str], ranks: int, *, on_end: Any, **_: Any) -> None:
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(str(Path(command[-1]) / SOCKET))
            channel = Channel(connection)
            channel.send("hello", 0, 4711)
            channel.send("result", 0, ["policy", outcome], None)
            channel.close()
            wait_until(lambda: "asyncrl-rank" in {thread.name for thread in threading.enumerate()}, "it")
            on_end([])

        def join(self, seconds: float) -> bool:
            return True

    monkeypatch.setattr("asyncrl.groups.launch.Launch", Ended)

    async def run() -> Any:
        source: Any = None
        config = TrainerConfig(env="any", algo="dqn", groups=2)
        return await Ranks(Job(config, DQN(), source), lambda _: None).run()

    if isinstance(outcome, SlowToRead):
        assert asyncio.run(run()) == ["policy", None]
    else:
        with pytest.raises(ValueError, match="known to the rank alone"):
            asyncio.run(run())


@pytest.mark.parametrize(
    ("failure", "text"),
    [
        ({"rank": 1, "pid": 5, "exit_code": -9}, "rank 1 on x (pid 5) was killed by SIGKILL"),
        ({"rank": 1, "pid": 5, "exit_code": -36}, "rank 1 on x (pid 5) was killed by signal 36"),
        (
            {"rank": None, "pid": 0, "exit_code": 1, "text": "no port"},
            "the launcher on x (pid 0) ended with exit code 1: no port",
        ),
    ],
)
def test_a_failed_rank_is_described(failure: dict[str, Any], text: str) -> None:
    assert describe_failure(failure, "x") == text


def test_more_groups_than_the_memory_holds_are_refused_before_a_process_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unwanted(*_: Any, **__: Any) -> Any:
        raise AssertionError("a rank was launched")

    monkeypatch.setattr("asyncrl.groups.launch.Launch", unwanted)
    with pytest.raises(
        ResourceError, match=r"The memory is too small for 1,000,000 groups\.[\s\S]*lower groups"
    ):
        Trainer("CartPole-v1", DQN(), groups=1_000_000, http="off").learn(total_steps=100)
