"""Pilot runs: short trainings that measure the speed, for `asyncrl plan`.

    Mao et al. 2023     Spreeze: high-throughput parallel reinforcement learning framework (batch size, actors)

`plan` varies the numbers of actors, of an environment's threads and of environments per actor, and the batch size. The
two sides of a run, actors with a nearly idle learner and the learner with idle actors, are pilots with changed options.
For replay `samples_per_insert` is tiny or huge, so that one side waits for the other. For segments `epochs` is 1 or
endless; the time that actors wait for the single epoch is subtracted.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from asyncrl.config import ENVIRONMENTS, TrainerConfig
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
FEW_SAMPLES, MANY_SAMPLES = 1e-3, 1e6
ENDLESS = 1 << 30
SMALL_RATE = 1e-9
"""Learning rate of the pilot of the learner, which trains on the same few steps for seconds and must not diverge."""
CORES_SHARED = 0.8
"""If the run is slower than this share of its slower side alone, the cores that both sides share limit it."""


@dataclass(frozen=True)
class Pilot:
    """Measurements of a pilot run.

    Attributes:
        num_actors, envs_per_actor: numbers of the run; a vector environment sets the second one itself.
        env_steps_per_second, updates_per_second: rates while it learned.
        learner_wait_fraction, actor_wait_fraction: shares of that time.
        actor_bytes: private memory of all actors.
        env_threads: threads of an environment, if they are varied.
        batch_size: rows of an update, None where the algorithm has no such option.
    """

    num_actors: int
    envs_per_actor: int
    env_steps_per_second: float
    updates_per_second: float
    learner_wait_fraction: float
    actor_wait_fraction: float
    actor_bytes: int
    env_threads: int = 1
    batch_size: int | None = None

    @property
    def cores(self) -> int:
        """Cores that the environments can use: actors times threads; an actor steps one after the other."""
        return self.num_actors * self.env_threads

    @property
    def limit(self) -> str:
        """The side that waited less and so limits the speed: `actors` or `learner`."""
        return "actors" if self.learner_wait_fraction > self.actor_wait_fraction else "learner"


def plan(
    config: TrainerConfig,
    algorithm: Any,
    seconds: float,
    *,
    cores: int,
    env_threads: str | None = None,
    batch_sizes: Sequence[int] = (),
    on_pilot: Callable[[Pilot], None] = lambda pilot: None,
) -> list[Pilot]:
    """Run pilots with 1, 2, 4, ... actors and threads, then, at the fastest, with other environments and batches.

    Args:
        config: options of the planned run.
        algorithm: options of its algorithm.
        seconds: seconds of learning per pilot; the time before the first update does not count.
        cores: most actors times threads of an environment.
        env_threads: keyword argument of the environment's constructor with its number of threads; None varies none.
        batch_sizes: batch sizes measured at the fastest numbers.
        on_pilot: called with each pilot when it has ended.

    Raises:
        AsyncRLError: the errors of a run.
    """
    pilots: list[Pilot] = []

    def measure(actors: int, envs: int, threads: int, record: Any = algorithm) -> None:
        run = config if env_threads is None else with_threads(config, env_threads, threads)
        found = run_pilot(run, record, actors, envs, seconds)
        pilots.append(dataclasses.replace(found, env_threads=threads))
        on_pilot(pilots[-1])

    first = config.envs_per_actor or ENVIRONMENTS
    for threads in [1] if env_threads is None else _counts(cores):
        for actors in _counts(cores // threads):
            measure(actors, first, threads)
    best = fastest(pilots)
    for envs in sorted({max(1, first // 4), first * 4}):
        if best.envs_per_actor == first != envs:
            measure(best.num_actors, envs, best.env_threads)
    best = fastest(pilots)
    for size in batch_sizes:
        if size != best.batch_size:
            record = dataclasses.replace(algorithm, **{batch_option(algorithm): size})
            measure(best.num_actors, best.envs_per_actor, best.env_threads, record)
    return pilots


def with_threads(config: TrainerConfig, argument: str, threads: int) -> TrainerConfig:
    """Return `config` with this keyword argument of the environment's constructor."""
    return dataclasses.replace(config, env_kwargs={**config.env_kwargs, argument: threads})


def batch_option(algorithm: Any) -> str:
    """Name of the algorithm's option that sets the rows of an update, "" if it has none."""
    return next((name for name in ("minibatch_size", "batch_size") if hasattr(algorithm, name)), "")


def _counts(most: int) -> list[int]:
    """1, 2, 4, ... and `most`."""
    return sorted({*(1 << k for k in range(most.bit_length()) if 1 << k <= most), max(1, most)})


def fastest(pilots: Sequence[Pilot]) -> Pilot:
    """The fastest pilot by steps per second with the batch size of the first one.

    Within `SAME_SHARE` it is the one with the fewest actors, then threads, then environments.
    """
    comparable = [pilot for pilot in pilots if pilot.batch_size == pilots[0].batch_size]
    limit = SAME_SHARE * max(pilot.env_steps_per_second for pilot in comparable)
    fast = [pilot for pilot in comparable if pilot.env_steps_per_second >= limit]
    return min(fast, key=lambda pilot: (pilot.num_actors, pilot.env_threads, pilot.envs_per_actor))


def efficiency(pilot: Pilot, first: Pilot) -> float:
    """Steps per second over those of the first pilot times its factor of cores: 1 is linear."""
    linear = first.env_steps_per_second * pilot.cores / first.cores
    return pilot.env_steps_per_second / max(linear, 1e-9)


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
        result = trainer.learn(on_snapshot=collect, progress=False)
        last = trainer.snapshot()
    assert last is not None
    found = _measured(learned or [last], result.policy.spec.vector_envs or envs_per_actor)
    return dataclasses.replace(found, batch_size=getattr(algorithm, batch_option(algorithm), None))


def _measured(learned: Sequence[Snapshot], envs_per_actor: int) -> Pilot:
    """Measure between the first and the last of these snapshots; a single one is measured from the start.

    So is the rate of steps where none was received between them, as by a slow learner within one large batch.
    """
    first, last = learned[0], learned[-1]
    env_steps, updates = last.env_steps - first.env_steps, last.updates - first.updates
    passed, waits = last.train_seconds - first.train_seconds, learned[1:]
    if len(learned) == 1:
        env_steps, updates, passed, waits = last.env_steps, last.updates, last.train_seconds, learned
    steps, during = (env_steps, passed) if env_steps else (last.env_steps, last.train_seconds)
    return Pilot(
        num_actors=len(last.actors),
        envs_per_actor=envs_per_actor,
        env_steps_per_second=steps / max(during, 1e-9),
        updates_per_second=updates / max(passed, 1e-9),
        learner_wait_fraction=sum(snapshot.learner_wait_fraction for snapshot in waits) / len(waits),
        actor_wait_fraction=sum(snapshot.actor_wait_fraction for snapshot in waits) / len(waits),
        actor_bytes=sum(actor.private_bytes for actor in last.actors),
    )


@dataclass(frozen=True)
class Sides:
    """Speeds of a run and of its two sides.

    Attributes:
        env_steps_per_second: speed of one environment in one process with random actions.
        actors: pilot of the actors alone.
        learner: pilot of the learner alone.
        together: pilot of the unchanged run.
    """

    env_steps_per_second: float
    actors: Pilot
    learner: Pilot
    together: Pilot

    @property
    def actor_steps_per_second(self) -> float:
        """Environment steps per second of the actors while they do not wait."""
        return self.actors.env_steps_per_second / max(1e-9, 1 - self.actors.actor_wait_fraction)

    @property
    def learner_steps_per_second(self) -> float | None:
        """Environment steps per second that the learner can keep up with; None if the run made no steps or updates."""
        if not self.together.env_steps_per_second or not self.together.updates_per_second:
            return None
        updates_per_step = self.together.updates_per_second / self.together.env_steps_per_second
        return self.learner.updates_per_second / updates_per_step

    @property
    def limit(self) -> str:
        """Limit of the speed: `actors`, `learner`, or `cores` if the run is slower than either side alone."""
        learner = self.learner_steps_per_second
        slower = min(self.actor_steps_per_second, self.actor_steps_per_second if learner is None else learner)
        if self.together.env_steps_per_second < CORES_SHARED * slower:
            return "cores"
        return self.together.limit


def actors_alone(config: TrainerConfig, algorithm: Algorithm, seconds: float) -> Pilot:
    """Run a pilot with a nearly idle learner. Raises what a run raises."""
    return _pilot(config, algorithm, seconds, samples_per_insert=FEW_SAMPLES, epochs=1, value_epochs=0)


def learner_alone(config: TrainerConfig, algorithm: Algorithm, seconds: float) -> Pilot:
    """Run a pilot whose actors become idle once the learner has data to train on. Raises what a run raises."""
    return _pilot(
        config,
        algorithm,
        seconds,
        samples_per_insert=MANY_SAMPLES,
        epochs=ENDLESS,
        max_staleness=None,
        target_kl=None,
        learning_rate=SMALL_RATE,
        learning_rate_schedule="constant",
    )


def _pilot(config: TrainerConfig, algorithm: Any, seconds: float, **options: Any) -> Pilot:
    """Run a relaxed pilot with those of `options` that the algorithm has."""
    known = {field.name for field in dataclasses.fields(algorithm)}
    options |= {"discipline": "relaxed", "samples_per_insert_error": None, "reuse_epochs": 0}
    changed = {name: value for name, value in options.items() if name in known}
    algorithm = dataclasses.replace(algorithm, **changed)
    return run_pilot(config, algorithm, config.actors, config.envs, seconds)
