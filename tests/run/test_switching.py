"""The interpreter while runs train: its switch interval, and objects that it does not collect."""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from gymnasium.envs.classic_control import CartPoleEnv
from small_records import small

from asyncrl import Trainer
from asyncrl.run import switching
from asyncrl.run.switching import (
    LOOP_SLACK_NANOSECONDS,
    SWITCH_SECONDS,
    _program_freezes,
    fast_switching,
    frozen_objects,
    own_process,
    paused_collection,
)
from asyncrl.timer_slack import USUAL_NANOSECONDS, set_timer_slack


@pytest.mark.skipif(
    not Path("/proc/self/timerslack_ns").exists(), reason="the kernel does not show timer slack"
)
def test_waits_of_the_learner_end_on_time_and_those_of_the_loop_and_of_environments_do_not() -> None:
    slack: dict[str, int] = {}
    before = int(Path("/proc/self/timerslack_ns").read_text())

    def read(snapshot: object) -> None:
        for thread in threading.enumerate():
            slack[thread.name] = int(Path(f"/proc/{thread.native_id}/timerslack_ns").read_text())

    with Trainer("CartPole-v1", small("dqn"), http="off", num_actors=1, eval_interval_steps=None) as trainer:
        trainer.learn(1_000, progress=False, on_snapshot=read)
    assert slack["asyncrl-learner_0"] == 1
    assert slack["asyncrl-run"] == LOOP_SLACK_NANOSECONDS
    assert slack["MainThread"] == before


class Waiting(CartPoleEnv):
    """CartPole that writes the timer slack of its thread to a file."""

    def __init__(self, file: str) -> None:
        super().__init__()
        Path(file).write_text(Path("/proc/self/timerslack_ns").read_text())


@pytest.mark.skipif(
    not Path("/proc/self/timerslack_ns").exists(), reason="the kernel does not show timer slack"
)
def test_environments_wait_as_usual_whatever_the_thread_that_starts_their_processes(tmp_path: Path) -> None:
    before = int(Path("/proc/self/timerslack_ns").read_text())
    set_timer_slack(LOOP_SLACK_NANOSECONDS)  # as the run's thread, which replaces a fork server
    try:
        trainer = Trainer(
            Waiting, small("dqn"), env_kwargs={"file": str(tmp_path / "slack")}, http="off", num_actors=1
        )
        trainer.learn(100, progress=False)
    finally:
        set_timer_slack(before)
    assert int((tmp_path / "slack").read_text()) == USUAL_NANOSECONDS


def test_the_interval_is_restored_after_the_last_of_overlapping_runs() -> None:
    before = sys.getswitchinterval()
    first, second = contextlib.ExitStack(), contextlib.ExitStack()
    first.enter_context(fast_switching())
    second.enter_context(fast_switching())
    first.close()
    assert abs(sys.getswitchinterval() - SWITCH_SECONDS) < 1e-9
    second.close()
    assert abs(sys.getswitchinterval() - before) < 1e-9


@pytest.fixture
def nothing_frozen() -> Iterator[None]:
    gc.unfreeze()
    _program_freezes.cache_clear()
    yield
    gc.collect()
    gc.freeze()
    _program_freezes.cache_clear()


def test_objects_are_collected_again_after_a_run(nothing_frozen: None) -> None:
    with pytest.raises(KeyError), frozen_objects():
        assert gc.get_freeze_count() > 0
        raise KeyError
    assert gc.get_freeze_count() == 0


def test_what_the_program_has_frozen_stays_so(nothing_frozen: None) -> None:
    gc.freeze()
    before = gc.get_freeze_count()
    with frozen_objects():
        assert gc.get_freeze_count() == before
    assert gc.get_freeze_count() == before


def test_the_first_of_two_runs_leaves_nothing_frozen(nothing_frozen: None) -> None:
    first, second = contextlib.ExitStack(), contextlib.ExitStack()
    first.enter_context(frozen_objects())
    second.enter_context(frozen_objects())
    first.close()
    assert gc.get_freeze_count() == 0
    second.close()


def test_a_process_of_ours_freezes_for_good_and_without_a_collection(
    nothing_frozen: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(switching, "_for_good", False)
    collections = [generation["collections"] for generation in gc.get_stats()]
    with own_process():
        with frozen_objects():
            pass
        assert gc.get_freeze_count() > 0
    assert [generation["collections"] for generation in gc.get_stats()][2] == collections[2]


@pytest.mark.parametrize("enabled", [True, False])
def test_collection_goes_on_after_a_pause_as_before_it(enabled: bool) -> None:
    (gc.enable if enabled else gc.disable)()
    try:
        with pytest.raises(KeyError), paused_collection():
            assert not gc.isenabled()
            raise KeyError
        assert gc.isenabled() == enabled
    finally:
        gc.enable()
