"""Preparation of the kernels of a run before their first use."""

from __future__ import annotations

import asyncio
import threading

from asyncrl.config import TrainerConfig
from asyncrl.protocols import Algorithm
from asyncrl.shm.prepare import prepare_run


async def prepare_kernels(config: TrainerConfig, algorithm: Algorithm) -> None:
    """Load or compile the kernels of the learner's side; a cancellation takes effect after the current kernel."""
    replay = {"segments": ("asyncrl.replay",), "replay": ("asyncrl.replay.sequence_gather",)}
    without: tuple[str, ...] = replay.get(algorithm.update_loop, ())
    if config.inference == "actor":
        without += ("asyncrl.shm.requests",)
    cancelled = threading.Event()
    try:
        await asyncio.to_thread(prepare_run, without, cancelled)
    finally:
        cancelled.set()
