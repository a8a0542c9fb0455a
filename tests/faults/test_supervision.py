"""Runs whose processes are killed, suspended or never ready: each continues or ends, and none hangs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import fakes
import psutil
import pytest
from waiting import PATIENCE_SECONDS, is_running, wait_until

from asyncrl import DQN, Trainer
from asyncrl.errors import EnvironmentHung, StoppedWhileStarting

ROOT = Path(fakes.__file__).parent.parent
SMALL: dict[str, Any] = {
    "num_actors": 2,
    "envs_per_actor": 2,
    "http": "off",
    "device": "cpu",
    "eval_episodes": 2,
    "target_eval_episodes": 2,
    "report_interval_seconds": 0.05,
}


def trainer_of(env: Any, **options: Any) -> Trainer:
    return Trainer(env, DQN(learning_starts=200, hidden_sizes=(16,)), **{**SMALL, **options})


def forked() -> list[psutil.Process]:
    """Children of the fork server."""
    parents: dict[int, int] = {}
    everybody = psutil.Process().children(recursive=True)
    for process in everybody:
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended since
            parents[process.pid] = process.ppid()
    guardians = {pid for pid, parent in parents.items() if parent == os.getpid()}
    servers = {pid for pid, parent in parents.items() if parent in guardians}
    return [process for process in everybody if parents.get(process.pid) in servers]


def finish(trainer: Trainer) -> Any:
    return asyncio.run(asyncio.wait_for(trainer.wait(), PATIENCE_SECONDS))


class HangsInActors(fakes.SimpleEnv):
    """Factory that passes the probe, which builds one environment, and hangs in actors, which build two."""

    built = 0

    def __init__(self) -> None:
        super().__init__()
        HangsInActors.built += 1
        while HangsInActors.built == 2:
            time.sleep(3600)


@pytest.mark.parametrize("env", [fakes.HangsWhenBuilt, HangsInActors])
def test_interrupt_is_heard_while_an_environment_hangs_in_its_start(env: Any) -> None:
    with trainer_of(env, ready_timeout_seconds=10 * PATIENCE_SECONDS) as trainer:
        trainer.start(total_steps=1_000)
        wait_until(lambda: len(forked()) == (1 if env is fakes.HangsWhenBuilt else 2), "who hangs")
        trainer.stop("interrupted")
        with pytest.raises(StoppedWhileStarting, match=r"ASYNC031\] The run was stopped while it started"):
            finish(trainer)
        snapshot = trainer.snapshot()
        assert snapshot is not None and snapshot.stop_reason == "interrupted"


def test_environment_that_never_gets_ready_ends_the_run() -> None:
    with pytest.raises(EnvironmentHung, match=r"(?s)ASYNC015\].*raise ready_timeout_seconds"):
        trainer_of(fakes.HangsWhenBuilt, ready_timeout_seconds=0.3).learn(total_steps=1_000)


def test_run_goes_on_after_the_deaths_of_its_evaluator_and_its_fork_server() -> None:
    with trainer_of("CartPole-v1", eval_interval_steps=200) as trainer:
        trainer.start(total_steps=10**9)

        def actors() -> set[int]:
            snapshot = trainer.snapshot()
            assert not trainer.done, finish(trainer)
            return set() if snapshot is None else {actor.pid for actor in snapshot.actors}

        def evaluators() -> list[psutil.Process]:
            return [process for process in forked() if len(actors()) == 2 and process.pid not in actors()]

        wait_until(lambda: trainer.snapshot() and trainer.snapshot().evaluation is not None, "an evaluation")
        (first,) = evaluators()
        first.kill()
        wait_until(lambda: (now := evaluators()) and now[0].pid != first.pid, "another evaluator")

        (server,) = {process.ppid() for process in forked()}
        before = actors()
        os.kill(server, signal.SIGKILL)
        wait_until(lambda: len(actors()) == 2 and 0 not in actors() and not actors() & before, "other actors")
        steps = trainer.snapshot().env_steps
        wait_until(lambda: trainer.snapshot().env_steps > steps + 500, "learning to go on")
        trainer.stop()
        result = finish(trainer)
        assert result.stop_reason == "stopped"
        assert result.summary["actor_restarts"] >= 2


def command(*arguments: str, limit: int | None = None, path: Path = ROOT) -> subprocess.Popen[str]:
    """The command line in a separate process with at most `limit` descriptors."""
    shell = "exec " if limit is None else f"ulimit -n {limit}; exec "
    return subprocess.Popen(
        ["bash", "-c", shell + '"$@"', "bash", sys.executable, "-m", "asyncrl", *arguments],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{path}", "NO_COLOR": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_too_few_descriptors_are_told_before_the_start() -> None:
    options = ["--algo", "dqn", "--actors", "40", "--http", "off", "--steps", "1k"]
    process = command("train", "CartPole-v1", *options, limit=256)
    _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 4, err
    assert "[ASYNC030] A run with 40 actors needs" in err and "ulimit -n 1024" in err
    assert "never retrieved" not in err and "Traceback" not in err


def test_sigterm_is_heard_while_the_environment_hangs_in_its_start(tmp_path: Path) -> None:
    module = """
        import time
        from pathlib import Path
        import gymnasium

        class Hangs(gymnasium.Env):
            def __init__(self):
                Path(__file__).with_name("hangs").touch()
                time.sleep(3600)

        gymnasium.register("Hangs-v0", entry_point=Hangs)
    """
    (tmp_path / "hanging.py").write_text(textwrap.dedent(module))
    options = ["--algo", "dqn", "--actors", "1", "--http", "off"]
    process = command("train", "hanging:Hangs-v0", *options, path=tmp_path)
    try:
        wait_until(lambda: (tmp_path / "hangs").exists() or process.poll() is not None, "the constructor")
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=PATIENCE_SECONDS)
        assert process.returncode == 130, err
        assert "SIGTERM: stopping, once more to kill\n[ASYNC031] The run was stopped" in err
        assert "Traceback" not in err
        assert not any(is_running(child.pid) for child in children)
    finally:
        process.kill()
        process.communicate()
