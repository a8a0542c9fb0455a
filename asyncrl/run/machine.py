"""The machine of a run: choice of the device and of a rank's GPU, a warning about too few cores, resources in use."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

import psutil
import torch

from asyncrl.actors.heartbeat import private_bytes
from asyncrl.config import TrainerConfig, usable_cores
from asyncrl.errors import ConfigurationError, DeviceNotAvailable, TooManyThreads, warn
from asyncrl.interfaces import Metrics

GPU_WEIGHTS = 500_000
"""Least number of weights for which `device="auto"` takes a GPU; below, kernel launches cost more than computation."""
MEASURE_SECONDS = 1.0
"""Least time between two measurements of processor time and memory."""


def warn_of_too_many_threads(config: TrainerConfig) -> None:
    """Warn (ASYNC021) if the actors alone, or actors and several torch threads together, outnumber the cores."""
    cores = usable_cores()
    torch_threads = config.torch_threads
    if config.actors > cores or (torch_threads > 1 and config.actors + torch_threads > cores):
        warn(
            TooManyThreads(
                f"[ASYNC021] {config.actors} actors and {torch_threads} torch threads share {cores} cores; "
                f"set num_actors to {max(1, cores - torch_threads)} and torch_threads to 1"
            )
        )


def require_float32() -> None:
    """Raise `ConfigurationError` if torch makes tensors of another type than float32 where none is named.

    The default is the process's, so a run cannot set its own beside the caller's code; networks, kernels and the weight
    mailbox hold float32.
    """
    if (default := torch.get_default_dtype()) != torch.float32:
        raise ConfigurationError(
            f"torch's default dtype must be float32 while a run trains, got {str(default).removeprefix('torch.')}",
            fix="call torch.set_default_dtype(torch.float32) before, or train in a process of its own",
        )


def choose_device(asked: str, weight_count: int) -> str:
    """Choose `"cpu"` or `"cuda"`.

    Raises:
        DeviceNotAvailable: a GPU was requested and torch has none; there is no silent fallback (ASYNC016).
    """
    available = torch.cuda.is_available()
    if asked == "cuda" and not available:
        raise DeviceNotAvailable(
            "device cuda was asked for and torch sees no GPU",
            facts={"asked": "cuda", "torch": torch.__version__, "built for CUDA": torch.version.cuda or "no"},
            fix="use device cpu or auto, or install a torch built for your GPU's CUDA",
        )
    if asked == "auto":
        return "cuda" if available and weight_count >= GPU_WEIGHTS else "cpu"
    return asked


def take_own_gpu(device: str) -> str:
    """Make this rank's GPU the current one of the calling thread; return its name, `device` itself without ranks.

    The ranks of a machine take its GPUs in turn: `LOCAL_RANK` modulo their number. The current GPU belongs to a thread,
    so every thread that makes tensors on `"cuda"` calls this first.
    """
    if device != "cuda" or "LOCAL_RANK" not in os.environ:
        return device
    index = int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count()
    torch.cuda.set_device(index)
    return f"cuda:{index}"


class ResourceMeter:
    """Meter of the resources of this process and of the actors; event-loop thread only. For display alone."""

    def __init__(self, device: str) -> None:
        self._device = device if device.startswith("cuda") else None
        self._utilization_known = self._device is not None
        self._own = psutil.Process()
        self._actors: dict[int, psutil.Process] = {}
        self._measured_at = -float("inf")
        self._numbers: Metrics = {}

    def measure(self, pids: Iterable[int]) -> Metrics:
        """Numbers by public name, at most `MEASURE_SECONDS` old; cores are over the time since the last measurement.

        Args:
            pids: the actors' process ids, 0 for one that does not run.
        """
        now = time.monotonic()
        if now - self._measured_at < MEASURE_SECONDS:
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
        """Memory that torch holds, and utilisation where `nvidia-ml-py` says; nothing without a GPU."""
        if self._device is None:
            return {}
        numbers: Metrics = {"system/gpu_bytes": int(torch.cuda.memory_reserved(self._device))}
        if self._utilization_known:
            try:
                numbers["system/gpu_utilization"] = torch.cuda.utilization(self._device) / 100
            except Exception:  # no package, no permission, or a driver without the counter
                self._utilization_known = False
        return numbers


def _cores(process: psutil.Process) -> float:
    """Cores that the process has used since the last call; 0 at the first one, or if it has ended."""
    try:
        return float(process.cpu_percent()) / 100
    except psutil.Error:
        return 0.0
