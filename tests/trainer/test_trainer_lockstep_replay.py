"""Lockstep for replay end to end: the same seed gives the same numbers with any delays of the processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from asyncrl import DQN, SAC, TD3, Rainbow, Trainer
from asyncrl.learning import replay_loop
from asyncrl.learning.policy_lag import PolicyLagMeter

UPDATES = 250
RUNS: dict[str, tuple[str, type]] = {
    "dqn": ("CartPole-v1", DQN),
    "rainbow": ("CartPole-v1", Rainbow),
    "sac": ("Pendulum-v1", SAC),
    "td3": ("Pendulum-v1", TD3),
}


def small(record: type, **changes: Any) -> Any:
    fields: dict[str, Any] = {
        "discipline": "lockstep",
        "batch_size": 32,
        "samples_per_insert": 16.0,
        "learning_starts": 100,
        "replay_capacity": 2_000,
        "hidden_sizes": (16, 16),
    }
    if record is DQN:
        fields["prioritized"] = True
    return record(**{**fields, **changes})


@contextmanager
def suspensions(trainer: Trainer) -> Iterator[list[int]]:
    """Stop an actor now and then for 20 to 50 milliseconds until the block ends; yields the stopped ones."""
    over, stopped = threading.Event(), []

    def suspend() -> None:
        rng = np.random.default_rng(0)
        while not over.wait(rng.uniform(0, 0.03)):
            snapshot = trainer.snapshot()
            pids = [actor.pid for actor in snapshot.actors if actor.pid] if snapshot is not None else []
            if not pids:
                continue
            pid = int(rng.choice(pids))
            with contextlib.suppress(ProcessLookupError):  # the run may end meanwhile
                os.kill(pid, signal.SIGSTOP)
                stopped.append(pid)
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


def numbers(
    name: str, monkeypatch: pytest.MonkeyPatch, suspended: bool = False, seed: int = 3, **options: Any
) -> dict[str, Any]:
    """All numbers of a run that must not depend on timing."""
    meters: list[PolicyLagMeter] = []

    class Kept(PolicyLagMeter):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            meters.append(self)

    monkeypatch.setattr(replay_loop, "PolicyLagMeter", Kept)
    env, record = RUNS[name]
    trainer = Trainer(
        env, small(record), seed=seed, num_actors=2, envs_per_actor=2, http="off", target_eval_episodes=1,
        report_interval_seconds=0.02, **options,
    )  # fmt: skip
    trainer.start(total_steps=100 + UPDATES * 32 // 16)
    if suspended:
        with suspensions(trainer) as stopped:
            result = asyncio.run(trainer.wait())
        assert stopped, "no actor was ever suspended"
    else:
        result = asyncio.run(trainer.wait())
    last = trainer.snapshot()
    assert last is not None and result.stop_reason == "total_steps"
    (meter,) = meters
    return {
        "weights": result.policy.weights.tobytes(),
        "updates": last.updates,
        "policy_version": last.policy_version,
        "env_steps": last.env_steps,
        "episodes": last.episodes,
        "metrics": last.train_metrics,
        "staleness": last.staleness_counts,
        "policy_lag": meter.overall(),
    }


@pytest.mark.parametrize("name", RUNS)
def test_two_runs_are_equal_to_the_bit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = numbers(name, monkeypatch)
    assert UPDATES <= quiet["updates"] <= UPDATES + 2 and quiet["policy_lag"].max == 4
    disturbed = numbers(name, monkeypatch, suspended=True, burst_seconds=1e-6)
    for what, value in quiet.items():
        assert disturbed[what] == value, what


def test_another_seed_gives_other_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (numbers("dqn", monkeypatch, seed=seed)["weights"] for seed in (3, 4))
    assert first != second
