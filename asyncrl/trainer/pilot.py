"""Pilot runs: the speed of a run by numbers of actors and of environments per actor, measured by training shortly."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from asyncrl.config import TrainerConfig
from asyncrl.errors import EvaluationIncomplete
from asyncrl.protocols import Algorithm
from asyncrl.show.metrics import Snapshot
from asyncrl.trainer.trainer import Trainer

LIMIT = 10.0
"""A pilot that does not learn ends after so many times its seconds."""
LEARNING_STARTS = 1000
"""Most random steps of a pilot before its first update."""
NEVER = 1 << 60
SAME_SHARE = 0.95
"""Share of the highest speed from which on fewer processes are preferred."""


@dataclass(frozen=True)
class Pilot:
    """What a pilot run measured.

    Attributes:
        num_actors, envs_per_actor: of the run; a vector environment sets the second one itself.
        env_steps_per_second, updates_per_second: while it learned.
        learner_wait_fraction, actor_wait_fraction: of that time.
        actor_bytes: memory of all actors that nobody shares.
    """

    num_actors: int
    envs_per_actor: int
    env_steps_per_second: float
    updates_per_second: float
    learner_wait_fraction: float
    actor_wait_fraction: float
    actor_bytes: int

    @property
    def limit(self) -> str:
        """The side that waited less and so bounds the speed: `actors` or `learner`."""
        return "actors" if self.learner_wait_fraction > self.actor_wait_fraction else "learner"


def plan(
    config: TrainerConfig,
    algorithm: Algorithm,
    cores: int,
    seconds: float,
    on_pilot: Callable[[Pilot], None] = lambda pilot: None,
) -> list[Pilot]:
    """Pilots of 1, 2, 4, ... actors up to `cores`, then of fewer and more environments at the fastest of these.

    Args:
        config: options of the run that is planned.
        algorithm: options of its algorithm.
        cores: most actors.
        seconds: of learning, each; what comes before the first update is left out.
        on_pilot: told each pilot when it has ended.

    Raises:
        AsyncRLError: whatever a run would raise.
    """
    pilots: list[Pilot] = []

    def measure(actors: int, envs: int) -> None:
        pilots.append(run_pilot(config, algorithm, actors, envs, seconds))
        on_pilot(pilots[-1])

    for actors in _actor_counts(cores):
        measure(actors, config.envs_per_actor)
    best = fastest(pilots)
    for envs in sorted({max(1, config.envs_per_actor // 4), config.envs_per_actor * 4}):
        if best.envs_per_actor == config.envs_per_actor != envs:
            measure(best.num_actors, envs)
    return pilots


def _actor_counts(cores: int) -> list[int]:
    """1, 2, 4, ... and `cores`."""
    return sorted({*(1 << k for k in range(cores.bit_length()) if 1 << k <= cores), max(1, cores)})


def fastest(pilots: Sequence[Pilot]) -> Pilot:
    """The pilot of most steps per second; of those that are as fast, that of fewest actors and environments."""
    limit = SAME_SHARE * max(pilot.env_steps_per_second for pilot in pilots)
    fast = [pilot for pilot in pilots if pilot.env_steps_per_second >= limit]
    return min(fast, key=lambda pilot: (pilot.num_actors, pilot.envs_per_actor))


def run_pilot(
    config: TrainerConfig, algorithm: Any, num_actors: int, envs_per_actor: int, seconds: float
) -> Pilot:
    """Train until it has learned for so long, without evaluations and files. Raises what a run raises."""
    changed = dataclasses.replace(
        config,
        num_actors=num_actors,
        envs_per_actor=envs_per_actor,
        total_steps=None,
        max_seconds=LIMIT * seconds,
        target_return=None,
        target_training_return=None,
        eval_interval_steps=NEVER,
        eval_interval_seconds=None,
        eval_episodes=1,
        eval_max_episode_steps=1,
        report_interval_seconds=min(0.1, seconds / 20),
        report_interval_steps=None,
        run_dir=None,
        http="off",
    )
    if algorithm.update_loop != "segments":
        starts = min(algorithm.learning_starts, LEARNING_STARTS)
        algorithm = dataclasses.replace(algorithm, learning_starts=starts)
    learned: list[Snapshot] = []

    def collect(snapshot: Snapshot) -> None:
        if snapshot.state == "training" and snapshot.updates > 0:
            learned.append(snapshot)
            if snapshot.train_seconds >= learned[0].train_seconds + seconds:
                trainer.stop()

    with warnings.catch_warnings(), Trainer.from_config(changed, algorithm) as trainer:
        warnings.simplefilter("ignore", EvaluationIncomplete)  # its episodes are cut on purpose
        result = trainer.learn(on_snapshot=collect)
        last = trainer.snapshot()
    assert last is not None
    return _measured(learned or [last], result.policy.spec.vector_envs or envs_per_actor)


def _measured(learned: Sequence[Snapshot], envs_per_actor: int) -> Pilot:
    """Rates between the first and the last of these snapshots; those of a single one are its own."""
    first, last = learned[0], learned[-1]
    env_steps, updates = last.env_steps - first.env_steps, last.updates - first.updates
    passed, waits = last.train_seconds - first.train_seconds, learned[1:]
    if len(learned) == 1:
        env_steps, updates, passed, waits = last.env_steps, last.updates, last.train_seconds, learned
    return Pilot(
        num_actors=len(last.actors),
        envs_per_actor=envs_per_actor,
        env_steps_per_second=env_steps / max(passed, 1e-9),
        updates_per_second=updates / max(passed, 1e-9),
        learner_wait_fraction=sum(snapshot.learner_wait_fraction for snapshot in waits) / len(waits),
        actor_wait_fraction=sum(snapshot.actor_wait_fraction for snapshot in waits) / len(waits),
        actor_bytes=sum(actor.private_bytes for actor in last.actors),
    )
