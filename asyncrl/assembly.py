"""What a run is made of, sized and reserved before any process starts."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from asyncrl.balance import Balance
from asyncrl.config import TrainerConfig, usable_cores
from asyncrl.core import Algorithm, Batch, EnvSpec, LearnerCore
from asyncrl.errors import DeviceNotAvailable, ReplayTooLarge, TooManyThreads
from asyncrl.learner import Learner, LearnerOptions, LearnerThread
from asyncrl.replay.replay import PrioritizedReplay
from asyncrl.shm.doorbell import Doorbell
from asyncrl.shm.ring import RingLayout, RingReader
from asyncrl.shm.segment import available_bytes, bytes_needed
from asyncrl.shm.weights import WeightMailbox
from asyncrl.staleness import StalenessMeter

GPU_WEIGHTS = 500_000
"""`device="auto"` takes a GPU from this many weights on; below, launching kernels costs more than computing."""
PUBLISH_SECONDS = {"cpu": 0.0, "cuda": 0.01}
"""Least time between two publications; each waits for the device, which on the CPU has nothing to wait for."""


def choose_device(asked: str, weight_count: int) -> str:
    """`"cpu"` or `"cuda"`.

    Raises:
        DeviceNotAvailable: a GPU was asked for and torch has none; it never falls back silently (ASYNC016).
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


def ring_layout(config: TrainerConfig, algorithm: Algorithm, spec: EnvSpec) -> RingLayout:
    """The layout of one actor's ring: the replay's capacity divided among the rings, up to the next power of two.

    Raises:
        ReplayTooLarge: all rings together need more memory than there is (ASYNC010).
    """
    streams = config.actors * config.envs_per_actor
    rows = max(64, 4 * algorithm.n_step, math.ceil(algorithm.replay_capacity / streams))
    layout = RingLayout(
        num_envs=config.envs_per_actor,
        num_slots=1 << (rows - 1).bit_length(),
        spec=spec,
        extra_fields=algorithm.extra_fields(spec),
    )
    needed, there = config.actors * bytes_needed(layout.arrays()), available_bytes()
    if needed > there:
        per_step = layout.bytes_per_row() / layout.num_envs
        fits = int(there / per_step) // 2
        raise ReplayTooLarge(
            f"replay_capacity of {algorithm.replay_capacity:,} steps is larger than memory",
            facts={
                "bytes per step": f"{per_step:,.0f}",
                "needed": f"{needed:,} bytes for {config.actors} rings of {layout.num_slots * layout.num_envs:,} steps",
                "there": f"{there:,} bytes",
            },
            fix=f"set replay_capacity to {fits:,} or less",
        )
    return layout


def warn_of_too_many_threads(config: TrainerConfig) -> None:
    """ASYNC021 where actors alone, or torch's threads beside them, outnumber the cores."""
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


@dataclass
class LearnerParts:
    """What the learner is built from, once rings and network exist."""

    config: TrainerConfig
    algorithm: Algorithm
    spec: EnvSpec
    device: str
    core: LearnerCore
    rings: tuple[RingReader, ...]
    mailbox: WeightMailbox
    doorbell: Doorbell
    thread: LearnerThread
    wake: Callable[[int], None]
    dump_dir: Path | None

    def learner(self) -> Learner:
        """The learner with its replay, balance and staleness meter.

        Raises:
            ValueError: a pace that would deadlock (see `Balance`).
        """
        algorithm, config = self.algorithm, self.config
        replay = PrioritizedReplay(
            self.rings,
            n_step=algorithm.n_step,
            gamma=algorithm.gamma,
            alpha=algorithm.alpha,
            uniform=not algorithm.prioritized,
            rng=np.random.default_rng(np.random.SeedSequence(config.seed).spawn(1)[0]),
        )
        sigma, error = algorithm.samples_per_insert, algorithm.samples_per_insert_error
        balance = Balance(
            samples_per_insert=sigma,
            batch_size=algorithm.batch_size,
            learning_starts=algorithm.learning_starts,
            num_actors=config.actors,
            envs_per_actor=config.envs_per_actor,
            num_slots=self.rings[0].layout.num_slots,
            error_samples=error * sigma if error is not None and sigma is not None else None,
            max_env_steps=config.total_steps,
        )
        return Learner(
            core=self.core,
            replay=replay,
            balance=balance,
            mailbox=self.mailbox,
            doorbell=self.doorbell,
            staleness=StalenessMeter(
                algorithm.staleness_correction, algorithm.staleness_rate, algorithm.max_staleness
            ),
            batch=Batch.allocate(algorithm.batch_size, self.spec, algorithm.extra_fields(self.spec)),
            thread=self.thread,
            wake=self.wake,
            max_staleness=algorithm.max_staleness,
            options=LearnerOptions(
                batch_size=algorithm.batch_size,
                beta_start=algorithm.beta_start,
                beta_end=algorithm.beta_end,
                total_steps=config.total_steps,
                burst_seconds=config.burst_seconds,
                publish_interval_seconds=PUBLISH_SECONDS[self.device],
                dump_dir=self.dump_dir,
            ),
        )
