"""Choice of a run's device and of a rank's GPU, use of that GPU, and a warning about too few cores."""

from __future__ import annotations

import os
import warnings

import torch

from asyncrl.config import TrainerConfig, usable_cores
from asyncrl.errors import ConfigurationError, DeviceNotAvailable, TooManyThreads

GPU_WEIGHTS = 500_000
"""Least number of weights for which `device="auto"` takes a GPU; below, kernel launches cost more than computation."""


def warn_of_too_many_threads(config: TrainerConfig) -> None:
    """Warn (ASYNC021) if the actors alone, or actors and several torch threads together, outnumber the cores."""
    cores = usable_cores()
    torch_threads = config.torch_threads
    if config.actors > cores or (torch_threads > 1 and config.actors + torch_threads > cores):
        warnings.warn(
            TooManyThreads(
                f"[ASYNC021] {config.actors} actors and {torch_threads} torch threads share {cores} cores; "
                f"set num_actors to {max(1, cores - torch_threads)} and torch_threads to 1"
            ),
            stacklevel=2,
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

    Args:
        device: `"cpu"` or `"cuda"`.
    """
    if device != "cuda" or "LOCAL_RANK" not in os.environ:
        return device
    index = int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count()
    torch.cuda.set_device(index)
    return f"cuda:{index}"


def gpu_bytes(device: str) -> int:
    """Memory of the GPU that torch holds in this process."""
    return int(torch.cuda.memory_reserved(device))


def gpu_utilization(device: str) -> float | None:
    """Fraction of the last moments in which the GPU has computed; None if `nvidia-ml-py` or the driver does not say."""
    try:
        return torch.cuda.utilization(device) / 100
    except Exception:  # no package, no permission, or a driver without the counter
        return None
