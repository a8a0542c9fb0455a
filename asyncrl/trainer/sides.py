"""Speeds of the two sides of a run: actors with a nearly idle learner, and the learner with idle actors.

Both are pilot runs with changed options. For replay `samples_per_insert` is tiny or huge, so that one side waits for
the other. For segments `epochs` is 1 or endless; the time that actors wait for the single epoch is subtracted.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from asyncrl.config import TrainerConfig
from asyncrl.protocols import Algorithm
from asyncrl.trainer.pilot import Pilot, run_pilot

FEW_SAMPLES, MANY_SAMPLES = 1e-3, 1e6
ENDLESS = 1 << 30
SMALL_RATE = 1e-9
"""Learning rate of the pilot of the learner, which trains on the same few steps for seconds and must not diverge."""
CORES_SHARED = 0.8
"""If the run is slower than this share of its slower side alone, the cores that both sides share limit it."""


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
    return _pilot(config, algorithm, seconds, samples_per_insert=FEW_SAMPLES, epochs=1)


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
    return run_pilot(config, algorithm, config.actors, config.envs_per_actor, seconds)
