"""Builder of run snapshots from the statistics of the run's parts."""

from __future__ import annotations

import math
import time
from typing import Any

from asyncrl.actors.statistics import ActorStatistics
from asyncrl.config import TrainerConfig
from asyncrl.learning.clock import TrainClock
from asyncrl.learning.histogram import HistogramStatistics
from asyncrl.learning.inference_server import InferenceServer
from asyncrl.learning.learner import LearnerReport
from asyncrl.run.episode_window import EpisodeWindow
from asyncrl.show.metrics import EvaluationResult, Snapshot
from asyncrl.show.rates import Counters, RateMeter

OPTIONS = ("algo", "env", "seed", "total_steps", "target_return", "target_training_return", "max_seconds")
"""Options of a run that a snapshot has too."""


class SnapshotBuilder:
    """Turns counters into rates and makes snapshots; event-loop thread only.

    Args:
        config: the run's options.
        replay_capacity: capacity of all rings in environment steps; may be set later.
        clock: the training clock.

    Attributes:
        episodes: the last training episodes.
        actor_wait_seconds: mean over the actors of the seconds spent waiting for a grant while the training clock ran.
        restarts_before: actor restarts of the earlier run that this one resumes.
        network: name of the convolutional network, "" for none.
        inference: the inference server, None where actors run the network.
    """

    def __init__(self, config: TrainerConfig, replay_capacity: int, clock: TrainClock) -> None:
        self._config = config
        self.replay_capacity = replay_capacity
        self._clock = clock
        self._meter = RateMeter()
        self._meter.observe(time.monotonic(), Counters())
        self._actors_waited = 0.0
        self.actor_wait_seconds = 0.0
        self.restarts_before = 0
        self.network = ""
        self.inference: InferenceServer | None = None
        self.episodes = EpisodeWindow()

    def go_on_from(
        self, actors: tuple[ActorStatistics, ...], learner: LearnerReport, waited: float, restarts: int
    ) -> None:
        """Restore counters of an earlier run, so that rates count only what is added from now on."""
        self._meter = RateMeter()
        env_steps = sum(actor.env_steps for actor in actors)
        self._meter.observe(time.monotonic(), _counters(env_steps, learner))
        self.actor_wait_seconds, self.restarts_before = waited, restarts

    def count_waiting(self, seconds: float) -> None:
        """Update `actor_wait_seconds` from the actors' mean waiting time since the start.

        The time between two calls, which are frequent, counts if the training clock runs at the second one.
        """
        if self._clock.running:
            self.actor_wait_seconds += seconds - self._actors_waited
        self._actors_waited = seconds

    def snapshot(
        self,
        state: str,
        *,
        actors: tuple[ActorStatistics, ...] = (),
        learner: LearnerReport | None = None,
        exploration_rate: float | None = None,
        evaluations: tuple[EvaluationResult, ...] = (),
        best: EvaluationResult | None = None,
        stop_reason: str | None = None,
        error: str | None = None,
    ) -> Snapshot:
        """Make a snapshot of the current state; rates are over the time since the last call."""
        clock, learner = self._clock, learner or LearnerReport()
        env_steps = sum(actor.env_steps for actor in actors)
        counters = _counters(env_steps, learner, self.inference)
        return Snapshot(
            state=state,
            wall_seconds=clock.wall_seconds,
            train_seconds=clock.train_seconds,
            startup_seconds=clock.startup_seconds,
            env_steps=env_steps,
            episodes=self.episodes.count,
            actor_wait_fraction=_mean([actor.wait_fraction for actor in actors]),
            return_mean=self.episodes.return_mean,
            length_mean=self.episodes.length_mean,
            exploration_rate=exploration_rate,
            evaluation=evaluations[-1] if evaluations else None,
            evaluations=evaluations,
            best_evaluation=best,
            ring_fill=_mean([actor.ring_fill for actor in actors]),
            replay_capacity=self.replay_capacity,
            actors=actors,
            actor_restarts=self.restarts_before + sum(actor.restarts for actor in actors),
            stop_reason=stop_reason,
            error=error,
            network=self.network,
            **{name: getattr(self._config, name) for name in OPTIONS},
            **vars(self._meter.observe(time.monotonic(), counters)),
            **_of_learner(learner),
        )


def _counters(env_steps: int, learner: LearnerReport, server: InferenceServer | None = None) -> Counters:
    inference = server.statistics() if server is not None else None
    return Counters(
        produced=env_steps,
        received=learner.balance.received_steps,
        consumed=learner.balance.sampled,
        updates=learner.updates,
        learner_wait_seconds=learner.wait_seconds,
        inference=(inference.passes, inference.rows, inference.wait_seconds) if inference else None,
    )


def _of_learner(learner: LearnerReport) -> dict[str, Any]:
    metrics, balance = dict(learner.train_metrics), learner.balance
    return {
        "updates": learner.updates,
        "policy_version": learner.policy_version,
        "loss": metrics.pop("train/loss", None),
        "learning_rate": metrics.pop("train/learning_rate", None),
        "train_metrics": metrics,
        **_prefixed("staleness", learner.staleness),
        **_prefixed("staleness_versions", learner.staleness_versions),
        **_prefixed("policy_lag", learner.policy_lag),
        "staleness_edges": learner.staleness.edges,
        "staleness_counts": learner.staleness.counts,
        "policy_lag_edges": learner.policy_lag.edges,
        "policy_lag_counts": learner.policy_lag.counts,
        "staleness_sum": learner.staleness_overall.mean * learner.staleness_overall.samples,
        "policy_lag_sum": learner.policy_lag_overall.mean * learner.policy_lag_overall.samples,
        "publish_interval": learner.publish_interval,
        "publish_seconds": learner.publish_seconds,
        "discarded_fraction": discarded_fraction(learner),
        "discipline": balance.discipline,
        "samples_per_insert_target": balance.target,
        "samples_per_insert_achieved": balance.achieved,
        "replay_steps": learner.stored_steps,
    }


def _prefixed(name: str, statistics: HistogramStatistics) -> dict[str, float]:
    return {f"{name}_{key}": value for key, value in distribution(statistics).items()}


def discarded_fraction(learner: LearnerReport) -> float:
    """Share of the inserted steps that were discarded as too stale."""
    return learner.discarded_steps / max(1, learner.balance.inserted_steps)


def distribution(statistics: HistogramStatistics) -> dict[str, float]:
    """Mean, 95th percentile and largest value."""
    return {"mean": statistics.mean, "p95": statistics.p95, "max": statistics.max}


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0
