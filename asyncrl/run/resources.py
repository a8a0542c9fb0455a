"""Processor time and memory of a run's processes, and its GPU."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

import psutil

from asyncrl.actors.heartbeat import private_bytes
from asyncrl.interfaces import Metrics
from asyncrl.run.machine import gpu_bytes, gpu_utilization

LEAST_SECONDS = 1.0
"""Least time between two measurements."""


class ResourceMeter:
    """Meter of the resources of this process and of the actors; event-loop thread only. For display alone.

    Args:
        device: torch device of the learner.
    """

    def __init__(self, device: str) -> None:
        self._device = device if device.startswith("cuda") else None
        self._utilization_known = self._device is not None
        self._own = psutil.Process()
        self._actors: dict[int, psutil.Process] = {}
        self._measured_at = -float("inf")
        self._numbers: Metrics = {}

    def measure(self, pids: Iterable[int]) -> Metrics:
        """Numbers by public name, at most `LEAST_SECONDS` old; cores are over the time since the last measurement.

        Args:
            pids: the actors' process ids, 0 for one that does not run.
        """
        now = time.monotonic()
        if now - self._measured_at < LEAST_SECONDS:
            return self._numbers
        known, self._measured_at = bool(self._numbers), now
        alive = [pid for pid in pids if pid]
        self._actors = {pid: process for pid in alive if (process := self._process(pid)) is not None}
        learner_cores, actor_cores = _cores(self._own), sum(map(_cores, self._actors.values()))
        self._numbers = {
            "system/learner_cores": learner_cores if known else None,
            "system/actor_cores": actor_cores if known else None,
            "system/learner_bytes": private_bytes(os.getpid()),
            "system/actor_bytes": sum(map(private_bytes, self._actors)),
            **self._gpu(),
        }
        return self._numbers

    def _process(self, pid: int) -> psutil.Process | None:
        try:
            return self._actors.get(pid) or psutil.Process(pid)
        except psutil.Error:  # it has just ended
            return None

    def _gpu(self) -> Metrics:
        """Memory that torch holds, and utilisation if `nvidia-ml-py` is installed; nothing without a GPU."""
        if self._device is None:
            return {}
        numbers: Metrics = {"system/gpu_bytes": gpu_bytes(self._device)}
        if self._utilization_known:
            numbers["system/gpu_utilization"] = utilization = gpu_utilization(self._device)
            self._utilization_known = utilization is not None
        return numbers


def _cores(process: psutil.Process) -> float:
    """Cores that the process has used since the last call; 0 at the first one, or if it has ended."""
    try:
        return float(process.cpu_percent()) / 100
    except psutil.Error:
        return 0.0
