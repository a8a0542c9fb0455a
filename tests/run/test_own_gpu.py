"""The GPU of a rank: the ranks of a machine take its GPUs in turn. The functions of `torch.cuda` are faked."""

from __future__ import annotations

import os
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from waiting import PATIENCE_SECONDS

from asyncrl import Trainer
from asyncrl.learning.learner_thread import LearnerThread
from asyncrl.run import run as run_module
from asyncrl.run.machine import take_own_gpu
from asyncrl.trainer.rank import place_on_machine


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str]]:
    """Index and thread of every call of `torch.cuda.set_device`, on a machine with two GPUs."""
    taken: list[tuple[int, str]] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(
        torch.cuda, "set_device", lambda index: taken.append((index, threading.current_thread().name))
    )
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    return taken


@pytest.mark.parametrize(("local_rank", "index"), [(0, 0), (1, 1), (2, 0), (5, 1)])
def test_ranks_take_the_gpus_in_turn(
    local_rank: int, index: int, taken: list[tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_RANK", str(local_rank))
    assert take_own_gpu("cuda") == f"cuda:{index}"
    assert [one for one, _ in taken] == [index]


def test_without_ranks_or_on_the_cpu_nothing_is_taken(
    taken: list[tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert take_own_gpu("cuda") == "cuda"
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert take_own_gpu("cpu") == "cpu"
    assert taken == []


def test_the_learner_takes_its_gpu_before_the_updater_is_made(
    taken: list[tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "3")
    made: list[Any] = []

    def make_updater(spec: Any, device: str, seed: int) -> None:
        made.append((device, seed, [*taken], threading.current_thread().name))

    thread = LearnerThread(1)
    try:
        algorithm: Any = SimpleNamespace(make_updater=make_updater)
        spec: Any = SimpleNamespace(policies=())
        making = thread._executor.submit(run_module.make_updater, algorithm, spec, "cuda", 5, None)
        making.result(PATIENCE_SECONDS)
    finally:
        thread.close()
    ((device, seed, taken_before, learner),) = made
    assert (device, seed) == ("cuda", 5)
    assert taken_before == [(1, learner)]
    assert learner != threading.current_thread().name


def test_a_run_asks_for_its_gpu_on_its_own_thread_too(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []

    def take(device: str) -> str:
        asked.append((device, threading.current_thread().name))
        return device

    monkeypatch.setattr(run_module, "take_own_gpu", take)
    options: dict[str, Any] = {"num_actors": 1, "http": "off", "target_eval_episodes": 1}
    Trainer("CartPole-v1", "dqn", total_steps=100, device="cpu", **options).learn()
    assert [device for device, _ in asked] == ["cpu", "cpu"]
    assert asked[0][1] == "asyncrl-run" != asked[1][1]


def test_ranks_with_an_agent_each_still_share_their_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `async` torchrun gives every rank the local rank 0 of 1, since each has its own agent."""
    for name, value in {"RANK": "1", "WORLD_SIZE": "3", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    place_on_machine()
    assert (os.environ["LOCAL_RANK"], os.environ["LOCAL_WORLD_SIZE"]) == ("1", "3")
