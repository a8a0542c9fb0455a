"""Several runs side by side: each as if it were alone, and one that fails or dies does not end the others."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from small_records import small
from waiting import PATIENCE_SECONDS, wait_until

import asyncrl.trainer.run_pool as run_pool
from asyncrl import Trainer, train_seeds
from asyncrl.config import TrainerConfig
from asyncrl.envs.factory_pickle import pack_policy
from asyncrl.errors import (
    ConfigurationError,
    EnvironmentRaised,
    ResourceError,
    StoppedWhileStarting,
    UnknownEnvironment,
)
from asyncrl.trainer.arguments import folders_of, seeds_from
from asyncrl.trainer.channel import Channel
from asyncrl.trainer.pool_worker import Worker
from asyncrl.trainer.run_pool import Ended, Progressed, RunPool, Started, runs_at_once
from asyncrl.trainer.seeds import jobs, train_all

QUICK: Mapping[str, Any] = {
    "num_actors": 1,
    "envs_per_actor": 4,
    "total_steps": 600,
    "target_eval_episodes": 2,
    "http": "off",
    "device": "cpu",
}


def lockstep() -> Any:
    return small("dqn", discipline="lockstep", learning_starts=100)


def end_of(pool: RunPool) -> Ended:
    """Wait for the end of the pool's next run."""
    while not isinstance(event := pool.wait(PATIENCE_SECONDS), Ended):
        assert event is not None
    return event


class Fails(gymnasium.Wrapper[Any, Any, Any, Any]):
    """CartPole that fails in its third episode."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self.episodes = 0

    def reset(self, **options: Any) -> Any:
        self.episodes += 1
        return super().reset(**options)

    def step(self, action: Any) -> Any:
        if self.episodes > 2:
            raise RuntimeError("third episode")
        return super().step(action)


def test_runs_side_by_side_are_those_that_each_seed_has_alone(tmp_path: Path) -> None:
    found = train_seeds("CartPole-v1", lockstep(), seeds=[3, 4, 5], at_once=2, run_dir=tmp_path, **QUICK)
    assert list(found.results) == [3, 4, 5] and not found.errors
    alone = Trainer("CartPole-v1", lockstep(), seed=4, **QUICK).learn()
    assert np.array_equal(found.results[4].policy.weights, alone.policy.weights)
    assert not np.array_equal(found.results[5].policy.weights, alone.policy.weights)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s3", "s4", "s5"]
    assert alone.evaluation is not None and found.finals[1] == alone.evaluation.return_mean
    assert found.mean is not None and found.mean.value == found.finals.mean()
    lines = repr(found).splitlines()
    assert [line.split(maxsplit=2)[:2] for line in lines[:3]] == [["seed", "3"], ["seed", "4"], ["seed", "5"]]
    assert f"final return {alone.evaluation.return_mean:.1f} +/- " in lines[1]
    assert lines[3].startswith(f"final return  mean {found.finals.mean():.1f} [")


def test_a_worker_that_dies_or_fails_ends_its_run_alone_and_is_replaced_also_while_it_is_idle(
    tmp_path: Path,
) -> None:
    def runs(env: Any, folders: Mapping[int, Any], **options: Any) -> Any:
        return jobs(Trainer(env, lockstep(), **{**QUICK, **options}), folders)

    made = runs("CartPole-v1", {0: tmp_path / "s0"}, total_steps=100_000)
    made |= runs(Fails, {1: None}) | runs("CartPole-v1", {2: None, 3: None})
    ends: dict[int, Ended] = {}
    workers: dict[int, int] = {}
    with RunPool() as pool:
        for event in train_all(pool, made, at_once=1):
            if isinstance(event, Progressed):
                workers[event.key] = pool._busy[event.key]._process.pid
                if event.key == 0 and event.snapshot.env_steps:
                    os.kill(workers[0], signal.SIGKILL)
            if isinstance(event, Ended):
                ends[event.key] = event
        (worker,) = pool._idle
        os.kill(worker._process.pid, signal.SIGTERM)
        wait_until(lambda: worker.closed, "its connection is closed")
        pool.begin(4, made[2])
        after_idle = end_of(pool)
    assert isinstance(ends[0].error, ResourceError) and "was killed by SIGKILL" in str(ends[0].error)
    assert isinstance(ends[1].error, EnvironmentRaised) and "third episode" in str(ends[1].error)
    assert ends[2].result is not None and ends[2].error is ends[3].error is None
    assert len(set(workers.values())) == 3 and workers[2] == workers[3], "one that failed is not used again"
    assert worker._process.returncode == -signal.SIGTERM
    assert after_idle.error is None and after_idle.result is not None


class Unreadable:
    """An object that cannot be unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("no number",)


def test_an_end_that_cannot_be_read_is_told_and_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker's process is another program, which ends at once: its end of the connection is the test's."""
    monkeypatch.setattr(sys, "executable", shutil.which("true"))
    with RunPool() as pool:
        pool.begin(0, jobs(Trainer("CartPole-v1", lockstep(), **QUICK), {0: None})[0])
        worker = pool._busy[0]
        ours, theirs = socket.socketpair()
        worker._channel.close()
        worker._receiver.join(PATIENCE_SECONDS)
        worker._key, worker._channel = 0, Channel(ours)
        pool._events.get()
        reading = threading.Thread(target=worker._receive, daemon=True)
        reading.start()
        Channel(theirs).send(Unreadable())
        reading.join(PATIENCE_SECONDS)
        told = pool.wait(PATIENCE_SECONDS)
        theirs.close()
    assert isinstance(told, Ended) and isinstance(told.error, ValueError)


def test_stop_ends_every_run_with_its_checkpoint_and_begins_no_other_and_each_has_its_page(
    tmp_path: Path,
) -> None:
    trainer = Trainer("CartPole-v1", lockstep(), **{**QUICK, "total_steps": None, "http": "auto"})
    ends: dict[int, Ended] = {}
    pages: dict[int, str | None] = {}
    learning: set[int] = set()
    with RunPool() as pool:
        for event in train_all(pool, jobs(trainer, {s: tmp_path / f"s{s}" for s in range(3)}), at_once=2):
            if isinstance(event, Started):
                pages[event.key] = event.page
            if isinstance(event, Progressed) and event.snapshot.updates:
                learning.add(event.key)
            if learning == {0, 1}:
                pool.stop("interrupted")
            if isinstance(event, Ended):
                ends[event.key] = event
    assert sorted(ends) == [0, 1], "the third was not begun"
    assert len(set(pages.values())) == 2 and all(page and "#token=" in page for page in pages.values())
    assert all(e.result is not None and e.result.stop_reason == "interrupted" for e in ends.values())
    assert all((tmp_path / f"s{seed}" / "checkpoints" / "latest").exists() for seed in (0, 1))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_a_worker_that_still_imports_waits_for_its_handlers(number: signal.Signals) -> None:
    """As a terminal's Ctrl-C, which every process of its group gets."""
    with RunPool() as pool:
        pool.begin(
            0, jobs(Trainer("CartPole-v1", lockstep(), **{**QUICK, "total_steps": None}), {0: None})[0]
        )
        os.kill(pool._busy[0]._process.pid, number)
        pool.stop("interrupted")
        ended = end_of(pool)
    assert ended.error is None or isinstance(ended.error, StoppedWhileStarting), ended.error


def test_a_signal_to_a_worker_alone_ends_it_before_its_run_begins() -> None:
    with RunPool() as pool:
        pool.begin(0, jobs(Trainer("CartPole-v1", lockstep(), **QUICK), {0: None})[0])
        process = pool._busy[0]._process
        os.kill(process.pid, signal.SIGTERM)
        ended = end_of(pool)
    assert isinstance(ended.error, StoppedWhileStarting) and "stopped by SIGTERM" in str(ended.error)
    assert process.returncode == -signal.SIGTERM


def test_a_worker_whose_pool_has_died_before_the_run_begins_does_not_train_it(tmp_path: Path) -> None:
    job = jobs(Trainer("CartPole-v1", lockstep(), **QUICK), {0: tmp_path})[0]
    ours, theirs = socket.socketpair()
    worker = Worker(Channel(theirs))
    Channel(ours).send("run", 0, list(sys.path), pack_policy(job))
    ours.close()
    worker._receive()
    worker.work()
    theirs.close()
    assert json.loads((tmp_path / "summary.json").read_text())["stop_reason"] == "interrupted"


def test_a_folder_that_holds_the_run_of_a_seed_is_refused_before_a_process_starts(tmp_path: Path) -> None:
    (tmp_path / "s1").mkdir()
    (tmp_path / "s1" / "summary.json").write_text("{}")
    with pytest.raises(ConfigurationError, match=r"s1 holds a run: summary.json"):
        train_seeds("CartPole-v1", lockstep(), seeds=3, run_dir=str(tmp_path), **QUICK)
    assert [path.name for path in tmp_path.iterdir()] == ["s1"]
    assert folders_of([0, 2], tmp_path) == {0: tmp_path / "s0", 2: tmp_path / "s2"}, "the others can be added"
    assert folders_of([0, 2], None) == {0: None, 2: None}


def test_the_callers_error_ends_all_and_is_raised() -> None:
    with pytest.raises(UnknownEnvironment):
        train_seeds("Nowhere-v0", lockstep(), seeds=3, at_once=1, **QUICK)


@pytest.mark.parametrize(("cores", "actors", "runs"), [(1, 1, 1), (2, 1, 1), (4, 1, 2), (9, 2, 3), (4, 8, 1)])
def test_as_many_runs_as_there_are_cores_for(
    cores: int, actors: int, runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_pool, "usable_cores", lambda: cores)
    config = TrainerConfig(env="x", algo="dqn", num_actors=actors)
    assert runs_at_once(config) == runs and runs_at_once(config, 7) == 7
    with pytest.raises(ValueError, match=r"at_once must be at least 1, or None .*, got -1"):
        runs_at_once(config, -1)


def test_seeds_are_counted_or_given() -> None:
    assert seeds_from(7, 3) == (7, 8, 9)
    assert seeds_from(7, [1, 5]) == (1, 5)
    for wrong in (0, [], [1, 1], [-1]):
        with pytest.raises(ValueError, match="seeds must be"):
            seeds_from(0, wrong)
