"""Pilot runs: short trainings that measure the speed by numbers of actors and of environments per actor."""

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
"""Time limit of a pilot that does not learn, as a multiple of its seconds of learning."""
LEARNING_STARTS = 1000
"""Upper limit of `learning_starts` in a pilot."""
NEVER = 1 << 60
SAME_SHARE = 0.95
"""Share of the highest speed that counts as equally fast, so that fewer actors are preferred."""


@dataclass(frozen=True)
class Pilot:
    """Measurements of a pilot run.

    Attributes:
        num_actors, envs_per_actor: numbers of the run; a vector environment sets the second one itself.
        env_steps_per_second, updates_per_second: rates while it learned.
        learner_wait_fraction, actor_wait_fraction: shares of that time.
        actor_bytes: private memory of all actors.
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
        """The side that waited less and so limits the speed: `actors` or `learner`."""
        return "actors" if self.learner_wait_fraction > self.actor_wait_fraction else "learner"


def plan(
    config: TrainerConfig,
    algorithm: Algorithm,
    cores: int,
    seconds: float,
    on_pilot: Callable[[Pilot], None] = lambda pilot: None,
) -> list[Pilot]:
    """Run pilots with 1, 2, 4, ... actors up to `cores`, then with fewer and more environments at the fastest of these.

    Args:
        config: options of the planned run.
        algorithm: options of its algorithm.
        cores: most actors.
        seconds: seconds of learning per pilot; the time before the first update does not count.
        on_pilot: called with each pilot when it has ended.

    Raises:
        AsyncRLError: the errors of a run.
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
    """The fastest pilot by steps per second; within `SAME_SHARE`, the one with the fewest actors, then environments."""
    limit = SAME_SHARE * max(pilot.env_steps_per_second for pilot in pilots)
    fast = [pilot for pilot in pilots if pilot.env_steps_per_second >= limit]
    return min(fast, key=lambda pilot: (pilot.num_actors, pilot.envs_per_actor))


def run_pilot(
    config: TrainerConfig, algorithm: Any, num_actors: int, envs_per_actor: int, seconds: float
) -> Pilot:
    """Train for `seconds` of learning, without evaluations and files. Raises what a run raises."""
    changed = dataclasses.replace(
        config,
        num_actors=num_actors,
        envs_per_actor=envs_per_actor,
        total_steps=None,
        max_seconds=LIMIT * seconds,
        target_return=None,
        target_training_return=None,
        eval_interval_steps=NEVER,
        eval_episodes=1,
        eval_max_episode_steps=1,
        report_interval_seconds=min(0.1, seconds / 20),
        report_interval_steps=None,
        run_dir=None,
        groups=1,
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
        warnings.simplefilter("ignore", EvaluationIncomplete)  # its episodes are truncated on purpose
        result = trainer.learn(on_snapshot=collect)
        last = trainer.snapshot()
    assert last is not None
    return _measured(learned or [last], result.policy.spec.vector_envs or envs_per_actor)


def _measured(learned: Sequence[Snapshot], envs_per_actor: int) -> Pilot:
    """Measure between the first and the last of these snapshots; a single one is measured from the start."""
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
