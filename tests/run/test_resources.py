"""Processor time and memory of a run's processes."""

from __future__ import annotations

import subprocess
import sys

import pytest
from waiting import wait_until

from asyncrl.run import machine
from asyncrl.run.machine import ResourceMeter

BUSY = "import sys; sys.stdout.write('x'); sys.stdout.flush()\nwhile True: pass"


def test_a_busy_actor_uses_a_core_and_one_that_is_gone_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "MEASURE_SECONDS", 0.0)
    process = subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None and process.stdout.read(1) == b"x"
        meter = ResourceMeter("cpu")
        first = meter.measure([process.pid, 0])
        assert first["system/learner_cores"] is None and first["system/actor_cores"] is None
        assert (first["system/learner_bytes"] or 0) > 1e6 and (first["system/actor_bytes"] or 0) > 1e5
        assert "system/gpu_bytes" not in first

        def used() -> bool:
            numbers = meter.measure([process.pid])
            return 0.0 < (numbers["system/actor_cores"] or 0.0) < 1.5

        wait_until(used, "processor time of the actor")
    finally:
        process.kill()
        process.communicate()
    gone = meter.measure([process.pid])
    assert (gone["system/actor_cores"], gone["system/actor_bytes"]) == (0, 0)


def test_processes_are_read_once_a_second_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(machine.time, "monotonic", lambda: now[0])
    meter = ResourceMeter("cpu")
    first = meter.measure([])
    now[0] += 0.9
    assert meter.measure([]) is first
    now[0] += 0.2
    assert meter.measure([])["system/learner_cores"] is not None


def test_the_use_of_a_gpu_that_does_not_say_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def utilization(device: str) -> int:
        asked.append(device)
        raise ModuleNotFoundError("pynvml")

    monkeypatch.setattr(machine, "MEASURE_SECONDS", 0.0)
    monkeypatch.setattr(machine.torch.cuda, "memory_reserved", lambda device: 7)
    monkeypatch.setattr(machine.torch.cuda, "utilization", utilization)
    meter = ResourceMeter("cuda:1")
    for _ in range(3):
        assert meter.measure([])["system/gpu_bytes"] == 7
    assert asked == ["cuda:1"]
