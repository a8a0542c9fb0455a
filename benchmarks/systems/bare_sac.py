"""SAC's update in a loop on prepared batches, in a plain implementation and the core's: updates/s.

The shapes are those of HalfCheetah-v5, the sizes those of the peers: 256x256 networks, batches of 256.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from asyncrl.interfaces import Batch, BoxAction, EnvSpec
from benchmarks.systems.plain_sac import PlainSAC

WAYS = ("plain", "highest", "medium")
"""`PlainSAC`, and the core at two precisions."""
ENV, OBS, ACTIONS = "HalfCheetah-v5", 17, 6
SPEC = EnvSpec(ENV, (OBS,), "float32", BoxAction((-1.0,) * ACTIONS, (1.0,) * ACTIONS, (ACTIONS,)))
HIDDEN, BATCH, BATCHES = (256, 256), 256, 8
WARM_UPDATES = 50
Update = Callable[[Batch], Any]


def record(precision: str, **options: Any) -> Any:
    """The preset for HalfCheetah-v5 with the peers' sizes."""
    from asyncrl import SAC

    sizes = {"hidden_sizes": HIDDEN, "critic_hidden_sizes": None, "batch_size": BATCH, "policy_delay": 1}
    return SAC.preset(ENV, **{**sizes, "num_critics": 2, "matmul_precision": precision, **options})


def updater(way: str, hidden: tuple[int, int] = HIDDEN, size: int = BATCH) -> Update:
    """Update of a new learner: "plain", or the core at a precision."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # as the learner's thread does
    torch.manual_seed(0)
    if way == "plain":
        return PlainSAC(OBS, ACTIONS, hidden).update
    algorithm = record(way, hidden_sizes=hidden, batch_size=size)
    update: Update = algorithm.make_updater(SPEC, "cpu", 0).update
    return update


def batches(size: int) -> list[Batch]:
    """Random transitions."""
    rng, drawn = np.random.default_rng(0), []
    for _ in range(BATCHES):
        batch = Batch.allocate(size, SPEC)
        batch.obs[:], batch.next_obs[:] = rng.standard_normal((2, size, OBS))
        batch.action[:] = rng.uniform(-1, 1, (size, ACTIONS))
        batch.reward[:] = rng.standard_normal(size)
        batch.discount[:], batch.weight[:] = 0.99, 1.0
        drawn.append(batch)
    return drawn


def repeat(update: Update, count: int, size: int = BATCH) -> float:
    """Duration of `count` updates in seconds."""
    drawn = batches(size)
    started = time.perf_counter()
    for index in range(count):
        update(drawn[index % BATCHES])
    return time.perf_counter() - started


def bare(way: str, seconds: float) -> dict[str, Any]:
    """Updates/s in a loop."""
    update = updater(way)
    repeat(update, WARM_UPDATES)
    count = max(1, round(seconds / (repeat(update, WARM_UPDATES) / WARM_UPDATES)))
    return {"updates_per_second": count / repeat(update, count)}
