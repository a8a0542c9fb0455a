"""Errors of the learner: nonfinite losses, priorities or weights, and lack of device memory."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from asyncrl.errors import GPUOutOfMemory, TrainingDiverged, describe_error

DeviceFull = torch.cuda.OutOfMemoryError
"""Torch's exception for lack of GPU memory, so that other modules catch it without importing torch."""
_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


class Divergence:
    """Check of losses, and creation of the error ASYNC022; learner thread only.

    Args:
        folder: returns the directory in which the batch is saved, or None.
        batch: returns the arrays to save, by name.
    """

    def __init__(
        self, folder: Callable[[], Path | None], batch: Callable[[], Mapping[str, NDArray[np.generic]]]
    ) -> None:
        self._folder = folder
        self._batch = batch
        self._finite_loss: float | None = None

    def check(self, loss: float, updates: int) -> None:
        """Store a finite loss. Raises `TrainingDiverged` if it is NaN or infinite."""
        if not math.isfinite(loss):
            raise self.error("the loss", updates)
        self._finite_loss = loss

    def error(self, what: str, updates: int) -> TrainingDiverged:
        """Save the batch and return the error: `what` became NaN or infinite at update `updates`."""
        loss = "none was reported" if self._finite_loss is None else self._finite_loss
        return TrainingDiverged(
            f"{what} became NaN or infinite at update {updates}",
            facts={"update": updates, "last finite loss": loss, "batch saved": self._save_batch(updates)},
            fix="lower learning_rate, set max_grad_norm, or look at the rewards in the saved batch",
        )

    def _save_batch(self, updates: int) -> str:
        """Save the batch; return its path, or the reason of a failure, which must not hide the divergence."""
        folder = self._folder()
        if folder is None:
            return "not saved (the run has no directory)"
        path = folder / f"diverged_batch_{updates}.npz"
        try:
            np.savez(path, **self._batch())  # type: ignore[arg-type]
        except Exception as error:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            return f"not saved ({describe_error(error)})"
        return str(path)


def out_of_gpu_memory(error: BaseException, **options: int) -> GPUOutOfMemory:
    """Make the error ASYNC009 with the request that failed, the responsible options and the state of the memory.

    Args:
        error: torch's exception.
        options: values of the options that decide the size of an update.
    """
    free, total = torch.cuda.mem_get_info()
    return GPUOutOfMemory(
        "the GPU ran out of memory in an update",
        facts={
            **options,
            "asked": _requested_bytes(str(error)),
            "held by this process": f"{torch.cuda.memory_allocated():,} bytes",
            "free": f"{free:,} of {total:,} bytes",
        },
        fix=f"lower {' or '.join(options)} or hidden_sizes, or end other programs that use the GPU",
    )


def _requested_bytes(text: str) -> str:
    """Size of the allocation that failed, from torch's text, which is its only source."""
    found = re.search(r"Tried to allocate ([\d.]+) (bytes|KiB|MiB|GiB)", text)
    if found is None:
        return "unknown"
    return f"{round(float(found[1]) * _UNITS[found[2]]):,} bytes"
