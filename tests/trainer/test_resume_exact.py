"""In lockstep a stopped and resumed run is bitwise equal to one that never stopped."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from resume_rig import RUNS, numbers, stop_after, trainer_of
from waiting import PATIENCE_SECONDS

from asyncrl import Trainer

STEPS = 700


def whole(name: str, steps: int, **options: Any) -> dict[str, Any]:
    """Numbers of a run that never stops."""
    trainer = trainer_of(name, None, **options)
    return numbers(trainer, trainer.learn(total_steps=steps))


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    for what, value in expected.items():
        assert found[what] == value, what


@pytest.mark.parametrize("name", RUNS)
def test_half_and_half_is_a_whole(name: str, tmp_path: Path) -> None:
    trainer_of(name, tmp_path / "run").learn(total_steps=STEPS)
    second = Trainer.resume(tmp_path / "run", 2 * STEPS)
    assert len(second.resumed_from) == 1, "nothing begins anew"
    result = second.learn()
    assert_same(numbers(second, result), whole(name, 2 * STEPS))


@pytest.mark.parametrize("name", ["dqn", "ppo", "ppo-cooldown"])
def test_a_run_that_is_stopped_anywhere_goes_on_exactly(name: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"report_interval_seconds": 0.01, "burst_seconds": 1e-6}
    trainer = trainer_of(name, tmp_path / "run", total_steps=3 * STEPS, **options)
    trainer.start()
    stop_after(trainer, 400)
    asyncio.run(trainer.wait())
    for _ in range(2):  # stopped again in the middle of what went on
        trainer = Trainer.resume(tmp_path / "run")
        trainer.start()
        stop_after(trainer, 600)
        asyncio.run(trainer.wait())
    last = Trainer.resume(tmp_path / "run")
    result = last.learn()
    assert result.stop_reason == "total_steps"
    assert_same(numbers(last, result), whole(name, 3 * STEPS))


KILLED = """
import sys
from pathlib import Path
from resume_rig import trainer_of
trainer_of("dqn", Path(sys.argv[1]), checkpoint_interval_seconds=0.05).learn(total_steps=40_000)
"""


def test_a_run_that_was_killed_goes_on_from_its_last_checkpoint(tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(run)], cwd=Path(__file__).parent)
    try:
        latest, end = run / "checkpoints" / "latest", time.monotonic() + PATIENCE_SECONDS
        while not latest.exists() or not (run / "metrics.jsonl").stat().st_size:
            assert process.poll() is None and time.monotonic() < end
            time.sleep(0.005)
        time.sleep(0.2)  # the kill may come anywhere; nothing is waited for
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    trainer = Trainer.resume(run, "+500", checkpoint_interval_seconds=60.0)
    result = trainer.learn()
    assert_same(numbers(trainer, result), whole("dqn", trainer.config.total_steps or 0))


def test_without_the_actors_the_numbers_are_others(tmp_path: Path) -> None:
    """Negative control of the comparison above: it must detect new episodes."""
    trainer_of("ppo", tmp_path / "run").learn(total_steps=STEPS)
    second = Trainer.resume(tmp_path / "run", 2 * STEPS, restore_episodes=False)
    assert "new episodes" in second.resumed_from[1]
    result = second.learn()
    found, expected = numbers(second, result), whole("ppo", 2 * STEPS)
    assert found["weights"] != expected["weights"]
    assert found["updates"] == expected["updates"]


def test_exploration_may_change_although_the_actors_go_on(tmp_path: Path) -> None:
    trainer_of("dqn", tmp_path / "run").learn(total_steps=STEPS)
    second = Trainer.resume(
        tmp_path / "run", 2 * STEPS, exploration_initial=0.25, exploration_final=0.25, exploration_repeat=2
    )
    assert len(second.resumed_from) == 1, "nothing begins anew"
    second.learn()
    last = second.snapshot()
    assert last is not None and last.metrics["rollout/exploration_rate"] == pytest.approx(0.25)
