"""Lockstep for replay end to end: the same seed gives the same numbers with any delays of the processes."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import psutil
import pytest
from waiting import wait_until

from asyncrl import C51, DDPG, DQN, QRDQN, SAC, TD3, TQC, CrossQ, Rainbow, Trainer
from asyncrl.learning import replay_loop
from asyncrl.learning.replay_loop import PolicyLagMeter, ReplayLoop

UPDATES = 250
FEW_UPDATES = 100
RUNS: dict[str, tuple[str, Any]] = {
    "dqn": ("CartPole-v1", partial(DQN, prioritized=True)),
    "uniform": ("CartPole-v1", partial(DQN, prioritized=False)),
    "c51": ("CartPole-v1", C51),
    "qrdqn": ("CartPole-v1", QRDQN),
    "rainbow": ("CartPole-v1", Rainbow),
    "ddpg": ("Pendulum-v1", DDPG),
    "td3": ("Pendulum-v1", TD3),
    "sac": ("Pendulum-v1", SAC),
    "tqc": ("Pendulum-v1", TQC),
    "crossq": ("Pendulum-v1", partial(CrossQ, critic_hidden_sizes=(16, 16))),  # 512 wide by default
}
TARGET = 30.0
LONG = ("dqn", "rainbow", "sac", "td3")


def small(record: Any, **changes: Any) -> Any:
    fields: dict[str, Any] = {
        "discipline": "lockstep",
        "batch_size": 32,
        "samples_per_insert": 16.0,
        "learning_starts": 100,
        "replay_capacity": 2_000,
        "hidden_sizes": (16, 16),
    }
    return record(**{**fields, **changes})


@contextmanager
def suspensions(trainer: Trainer) -> Iterator[dict[str, set[int]]]:
    """Stop children for 20 to 50 milliseconds each, an actor and another one in turn, until the block ends.

    The others are the evaluator, the fork server and its guardian. Yields the stopped ones of both kinds.
    """
    over, me = threading.Event(), psutil.Process()
    stopped: dict[str, set[int]] = {"actors": set(), "others": set()}

    def suspend() -> None:
        rng = np.random.default_rng(0)
        for kind in itertools.cycle(stopped):
            if over.wait(rng.uniform(0, 0.02)):
                return
            snapshot = trainer.snapshot()
            actors = {actor.pid for actor in snapshot.actors if actor.pid} if snapshot is not None else set()
            others = {child.pid for child in me.children(recursive=True)} - actors
            if pids := sorted(actors if kind == "actors" else others):
                pid = int(rng.choice(pids))
                with contextlib.suppress(ProcessLookupError):  # the run may end meanwhile
                    os.kill(pid, signal.SIGSTOP)
                    stopped[kind].add(pid)
                    # The delay is what is tested; nothing is waited for.
                    time.sleep(rng.uniform(0.02, 0.05))
                    os.kill(pid, signal.SIGCONT)

    thread = threading.Thread(target=suspend)
    thread.start()
    try:
        yield stopped
    finally:
        over.set()
        thread.join()


class Recorder:
    """Records of every update loop that is made while it is installed.

    Attributes:
        stopped: processes that were suspended, by kind; the first update waits until there is one of each.
        meters: policy-lag meters.
        metrics: the core's metrics after each update.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stopped: dict[str, set[int]] = {}
        self.meters: list[PolicyLagMeter] = []
        self.metrics: list[dict[str, float]] = []
        recorder, make = self, ReplayLoop.__init__

        class Kept(PolicyLagMeter):
            def __init__(self, *arguments: Any) -> None:
                super().__init__(*arguments)
                recorder.meters.append(self)

        def make_recorded(loop: ReplayLoop, *arguments: Any, **named: Any) -> None:
            make(loop, *arguments, **named)
            core: Any = loop.core
            core.update = partial(recorder.update, core, core.update)

        monkeypatch.setattr(replay_loop, "PolicyLagMeter", Kept)
        monkeypatch.setattr(ReplayLoop, "__init__", make_recorded)

    def update(self, core: Any, update: Any, batch: Any) -> Any:
        wait_until(lambda: all(self.stopped.values()), "a suspension of an actor and of another process")
        result = update(batch)
        self.metrics.append(dict(core.metrics()))
        return result


def numbers(
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    suspended: bool = False,
    seed: int = 3,
    updates: int = UPDATES,
    stop_reason: str = "total_steps",
    **options: Any,
) -> dict[str, Any]:
    """All numbers of a run that must not depend on timing."""
    with monkeypatch.context() as patches:
        recorder = Recorder(patches)
        env, record = RUNS[name]
        trainer = Trainer(
            env, small(record), seed=seed, num_actors=2, envs_per_actor=2, http="off",
            report_interval_seconds=0.02, **{"target_eval_episodes": 1, **options},
        )  # fmt: skip
        with suspensions(trainer) if suspended else nullcontext({}) as recorder.stopped:
            trainer.start(total_steps=100 + updates * 32 // 16)
            result = asyncio.run(trainer.wait())
    last = trainer.snapshot()
    assert last is not None and result.stop_reason == stop_reason
    (meter,) = recorder.meters
    return {
        "weights": result.policy.weights.tobytes(),
        "updates": last.updates,
        "policy_version": last.policy_version,
        "env_steps": last.env_steps,
        "episodes": last.episodes,
        "metrics": recorder.metrics,
        "staleness": last.staleness_counts,
        "policy_lag": meter.overall(),
        "evaluations": [replace(one, train_seconds=0.0) for one in result.evaluations],
        "steps_to_target": result.summary["steps_to_target"],
        "updates_to_target": result.summary["updates_to_target"],
    }


@pytest.mark.parametrize("name", RUNS)
def test_two_runs_are_equal_to_the_bit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    updates = UPDATES if name in LONG else FEW_UPDATES
    quiet = numbers(name, monkeypatch, updates=updates)
    assert updates <= quiet["updates"] == len(quiet["metrics"]) <= updates + 2
    assert quiet["policy_lag"].max == 4
    disturbed = numbers(name, monkeypatch, suspended=True, updates=updates, burst_seconds=1e-6)
    for what, value in quiet.items():
        assert disturbed[what] == value, what


def test_the_first_evaluation_that_passes_decides_whatever_the_delays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The learner has gone on meanwhile, so how far depends on timing; what the run is judged by does not."""
    options = {"eval_interval_steps": 100, "eval_episodes": 2, "target_eval_episodes": 5}
    options |= {"target_return": TARGET, "stop_reason": "target_return", "updates": 10 * UPDATES}
    quiet = numbers("dqn", monkeypatch, **options)
    assert len(quiet["evaluations"]) > 2 and quiet["updates_to_target"] > 50
    disturbed = numbers("dqn", monkeypatch, suspended=True, **options)
    for what in ("weights", "evaluations", "steps_to_target", "updates_to_target"):
        assert disturbed[what] == quiet[what], what
    both = min(len(quiet["metrics"]), len(disturbed["metrics"]))
    assert disturbed["metrics"][:both] == quiet["metrics"][:both]


def test_another_seed_gives_other_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (numbers("dqn", monkeypatch, seed=seed)["weights"] for seed in (3, 4))
    assert first != second
