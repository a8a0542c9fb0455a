"""Kill storms: actors are killed at random moments, and all that the learner reads is checked.

The environment counts, so every row and every batch can be recomputed. `python -m benchmarks.faults actors` is the long
form.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any

import pytest
from waiting import PATIENCE_SECONDS

from asyncrl import DQN, PPO, Trainer
from asyncrl.actors.pool import ActorPool
from asyncrl.learning.segment_loop import SegmentLoop
from asyncrl.replay import PrioritizedReplay, SegmentQueue
from benchmarks.faults import actors

KILLS = 20
LONGEST_LIFE_SECONDS = 0.02
ALGORITHMS = {
    # A discount of 1/2 and one-step transitions: the check of batches counts on them.
    "dqn": DQN(
        gamma=0.5, n_step=1, hidden_sizes=(16,), learning_starts=100, replay_capacity=4_000, batch_size=32,
        samples_per_insert=1.0,
    ),
    "ppo": PPO(hidden_sizes=(16,), segment_length=32),
}  # fmt: skip
PATCHED = (
    (PrioritizedReplay, "ingest"),
    (PrioritizedReplay, "sample"),
    (SegmentQueue, "poll"),
    (SegmentLoop, "_train_on"),
    (ActorPool, "start"),
)


@pytest.fixture
def faults() -> Iterator[Any]:
    """The benchmark; what it patches is restored afterwards."""
    before = [getattr(owner, name) for owner, name in PATCHED]
    with pytest.MonkeyPatch.context() as patch:
        for (owner, name), method in zip(PATCHED, before, strict=True):
            patch.setattr(owner, name, method)
        patch.setattr(actors, "PATIENCE_SECONDS", PATIENCE_SECONDS)
        yield actors
    assert [getattr(owner, name) for owner, name in PATCHED] == before


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_row_and_batch_is_whole_in_a_storm_of_kills(faults: Any, name: str) -> None:
    findings = faults.Findings()
    checks, pools = faults.watch_learner(findings), faults.find_pool()
    options = {
        "num_actors": 2,
        "envs_per_actor": 4,
        "http": "off",
        "device": "cpu",
        "eval_interval_steps": None,
    }
    trainer = Trainer(
        faults.CountingEnv, ALGORITHMS[name], max_restarts=KILLS, report_interval_seconds=0.05, **options
    )
    rng = random.Random(0)
    with trainer:
        trainer.start()
        faults.until(lambda: (now := trainer.snapshot()) is not None and now.updates > 0, trainer, "updates")
        (pool,) = pools
        for _ in range(KILLS):
            actor = rng.choice(pool.actors)
            faults.until(lambda actor=actor: actor.ready and actor.alive, trainer, "an actor")
            time.sleep(rng.uniform(0.0, LONGEST_LIFE_SECONDS))  # the random moment; nothing is waited for
            faults.seconds_to_new_row(pool, actor.index, trainer)
        samples = findings.samples
        # Not the snapshot's updates: those of the batch that was just checked may still be coming.
        faults.until(lambda: findings.samples > samples, trainer, "batches after the storm")
        trainer.stop()
    assert sum(actor.restarts for actor in pool.actors) == KILLS
    assert len(checks) == 2 and findings.rows > 1000 and findings.samples > samples > 100
    assert (findings.torn, findings.disorder) == (0, 0)
