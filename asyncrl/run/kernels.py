"""Probe of the environment, and preparation of the kernels of a run before their first use."""

from __future__ import annotations

import asyncio
import threading
import warnings

from asyncrl.acting.network_policy import is_served
from asyncrl.actors.forkserver import ForkServer
from asyncrl.actors.probe import probe
from asyncrl.config import TrainerConfig
from asyncrl.envs.observations import unread_text
from asyncrl.envs.source import EnvSource
from asyncrl.errors import TextLeftOut
from asyncrl.interfaces import EnvSpec
from asyncrl.protocols import Algorithm
from asyncrl.shm.prepare import prepare_run


async def probe_and_prepare(
    config: TrainerConfig, algorithm: Algorithm, source: EnvSource, server: ForkServer
) -> EnvSpec:
    """Probe the environment and check that the algorithm can act in it; meanwhile prepare the kernels.

    Meanwhile the fork server, which both tasks wait for, loads or compiles the actors' kernels. Nothing is printed
    before the check: its error is printed alone.

    Raises:
        ExceptionGroup: of the errors of the probe and of the check.
    """
    probed = threading.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_prepare(algorithm, probed), name="prepare-kernels")
        probing = tasks.create_task(_probe(config, algorithm, source, server, probed), name="probe")
    return probing.result()


async def _probe(
    config: TrainerConfig,
    algorithm: Algorithm,
    source: EnvSource,
    server: ForkServer,
    probed: threading.Event,
) -> EnvSpec:
    spec = await probe(server, source, config.ready_timeout_seconds)
    algorithm.check(spec)
    probed.set()
    if spec.unread:
        warnings.warn(TextLeftOut(f"[ASYNC047] {spec.name}: {unread_text(spec)}"), stacklevel=2)
    return spec


async def _prepare(algorithm: Algorithm, told: threading.Event) -> None:
    """Load or compile the kernels of the learner's side; a cancellation takes effect after the current kernel."""
    replay = {"segments": ("asyncrl.replay",), "replay": ("asyncrl.replay.sequence_replay",)}
    without: tuple[str, ...] = replay.get(algorithm.update_loop, ())
    if not is_served(algorithm):
        without += ("asyncrl.shm.requests",)
    cancelled = threading.Event()
    try:
        await asyncio.to_thread(prepare_run, without, cancelled, told)
    finally:
        cancelled.set()
