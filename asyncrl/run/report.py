"""The snapshot of a run, made from the statistics of its parts; and `summary.json`, made from the last snapshot."""

from __future__ import annotations

import math
import time
from typing import Any

from asyncrl.actors.statistics import ActorStatistics
from asyncrl.config import TrainerConfig
from asyncrl.learning.clock import TrainClock
from asyncrl.learning.histogram import HistogramStatistics
from asyncrl.learning.inference_server import InferenceServer, InferenceStatistics
from asyncrl.learning.learner import NOTHING, LearnerReport
from asyncrl.run.episode_window import EpisodeWindow
from asyncrl.show.group_statistics import summary_of
from asyncrl.show.metrics import EvaluationResult, Snapshot
from asyncrl.show.rates import Counters, RateMeter


class SnapshotBuilder:
    """Turns counters into rates and makes snapshots; event-loop thread only.

    Args:
        config: the run's options.
        replay_capacity: environment steps that the rings hold; may be set later.
        clock: the training clock.

    Attributes:
        episodes: the last training episodes.
        actor_wait_seconds: how long the mean actor has waited for a grant while the training clock ran.
        restarts_before: of the actors of an earlier run, which this one goes on from.
        network: which convolutional network was chosen, "" for none.
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
        """Take rates from here on: what the counters say was counted by an earlier run."""
        self._meter = RateMeter()
        env_steps = sum(actor.env_steps for actor in actors)
        self._meter.observe(time.monotonic(), _counters(env_steps, learner))
        self.actor_wait_seconds, self.restarts_before = waited, restarts

    def count_waiting(self, seconds: float) -> None:
        """Note how long the mean actor has waited since the start; time while the clock is paused does not count.

        Called often: the time between two calls counts if the clock runs at the second.
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
        """A snapshot of this moment; rates are over the time since the last call."""
        config, clock = self._config, self._clock
        env_steps = sum(actor.env_steps for actor in actors)
        balance = learner.balance if learner else None
        inference = self.inference.statistics() if self.inference is not None else None
        counters = _counters(env_steps, learner, inference)
        rates = self._meter.observe(time.monotonic(), counters)
        train_metrics = dict(learner.train_metrics) if learner else {}
        return Snapshot(
            algo=config.algo,
            env=config.env,
            seed=config.seed,
            state=state,
            wall_seconds=clock.wall_seconds,
            train_seconds=clock.train_seconds,
            startup_seconds=clock.startup_seconds,
            total_steps=config.total_steps,
            target_return=config.target_return,
            training_target=config.target_training_return,
            max_seconds=config.max_seconds,
            env_steps=env_steps,
            updates=counters.updates,
            episodes=self.episodes.count,
            policy_version=learner.policy_version if learner else 0,
            env_steps_per_second=rates.production_per_second,
            received_steps_per_second=rates.receipt_per_second,
            consumed_samples_per_second=rates.consumption_per_second,
            consumption_per_production=rates.consumption_per_production,
            updates_per_second=rates.updates_per_second,
            learner_wait_fraction=rates.learner_wait_fraction,
            actor_wait_fraction=_mean([actor.wait_fraction for actor in actors]),
            return_mean=self.episodes.return_mean,
            length_mean=self.episodes.length_mean,
            exploration_rate=exploration_rate,
            loss=train_metrics.pop("train/loss", None),
            learning_rate=train_metrics.pop("train/learning_rate", None),
            train_metrics=train_metrics,
            evaluation=evaluations[-1] if evaluations else None,
            evaluations=evaluations,
            best_evaluation=best,
            **_distributions(learner),
            publish_interval=learner.publish_interval if learner else 0.0,
            publish_seconds=learner.publish_seconds if learner else 0.0,
            discarded_fraction=discarded_fraction(learner) if learner else 0.0,
            discipline=balance.discipline if balance else "",
            samples_per_insert_target=balance.target if balance else None,
            samples_per_insert_achieved=balance.achieved if balance else 0.0,
            inference_batch_size=rates.rows_per_pass if inference else None,
            inference_wait_fraction=rates.inference_wait_fraction if inference else None,
            ring_fill=_mean([actor.ring_fill for actor in actors]),
            replay_steps=learner.stored_steps if learner else 0,
            replay_capacity=self.replay_capacity,
            actors=actors,
            actor_restarts=self.restarts_before + sum(actor.restarts for actor in actors),
            stop_reason=stop_reason,
            error=error,
            network=self.network,
        )


def _counters(
    env_steps: int, learner: LearnerReport | None, inference: InferenceStatistics | None = None
) -> Counters:
    served = (inference.passes, inference.rows, inference.wait_seconds) if inference else (0, 0, 0.0)
    if learner is None:
        return Counters(produced=env_steps, inference=served)
    return Counters(
        inference=served,
        produced=env_steps,
        received=learner.balance.received_steps,
        consumed=learner.balance.sampled,
        updates=learner.updates,
        learner_wait_seconds=learner.wait_seconds,
    )


def _distributions(learner: LearnerReport | None) -> dict[str, Any]:
    """Fields of the snapshot that describe staleness and policy lag."""
    staleness = learner.staleness if learner else NOTHING
    versions = learner.staleness_versions if learner else NOTHING
    lag = learner.policy_lag if learner else NOTHING
    named = {"staleness": staleness, "staleness_versions": versions, "policy_lag": lag}
    fields = {f"{name}_{key}": value for name, d in named.items() for key, value in _distribution(d).items()}
    return fields | {
        "staleness_edges": staleness.edges,
        "staleness_counts": staleness.counts,
        "policy_lag_edges": lag.edges,
        "policy_lag_counts": lag.counts,
        "staleness_sum": _sum(learner.staleness_overall) if learner else 0.0,
        "policy_lag_sum": _sum(learner.policy_lag_overall) if learner else 0.0,
    }


def _sum(overall: HistogramStatistics) -> float:
    return overall.mean * overall.samples


def discarded_fraction(learner: LearnerReport) -> float:
    """Share of the inserted steps that became too stale to be used."""
    return learner.discarded_steps / max(1, learner.balance.inserted_steps)


def end_state(stop_reason: str | None) -> str:
    """State of a run that has ended: `"failed"`, `"interrupted"`, `"stopped"`, or `"finished"` by a stopping rule."""
    return stop_reason if stop_reason in ("failed", "interrupted", "stopped") else "finished"


def summarize(
    last: Snapshot, learner: LearnerReport | None, final: EvaluationResult | None, actor_wait_seconds: float
) -> dict[str, Any]:
    """Content of `summary.json`; rates and fractions are over the whole of `train_seconds`.

    Times to a target are on the training clock, which is paused while an evaluation holds training.
    `time_to_target_seconds` belongs to a confirmed greedy evaluation, `time_to_training_target_seconds` to the mean of
    the last 100 training episodes. Time, steps and updates to the greedy target are those at which the weights that
    passed were copied, not those at which their evaluation ended.

    Args:
        last: the run's last snapshot.
        learner: the learner's last report, None where the run failed before there was one.
        final: evaluation of the weights that the run returns, None where none was made.
        actor_wait_seconds: how long the mean actor has waited for a grant while the training clock ran.
    """
    staleness = learner.staleness_overall if learner else NOTHING
    seconds = max(last.train_seconds, 1e-9)
    reached = last.stop_reason == "target_return" and final is not None
    trained = last.stop_reason == "target_training_return"
    return {
        "algo": last.algo,
        "env": last.env,
        "seed": last.seed,
        "state": end_state(last.stop_reason),
        "error": last.error,
        "stop_reason": last.stop_reason,
        "env_steps": last.env_steps,
        "updates": last.updates,
        "episodes": last.episodes,
        "policy_version": last.policy_version,
        "wall_seconds": last.wall_seconds,
        "train_seconds": last.train_seconds,
        "startup_seconds": last.startup_seconds,
        "time_to_target_seconds": final.train_seconds if reached and final else None,
        "steps_to_target": final.env_steps if reached and final else None,
        "updates_to_target": final.updates if reached and final else None,
        "time_to_training_target_seconds": last.train_seconds if trained else None,
        "steps_to_training_target": last.env_steps if trained else None,
        "episodes_return_mean": last.return_mean,
        "eval": {
            "return_mean": final.return_mean if final else None,
            "return_std": final.return_std if final else None,
            "episodes": final.episodes if final else 0,
        },
        "env_steps_per_second": last.env_steps / seconds,
        "updates_per_second": last.updates / seconds,
        "staleness": {
            "mean": staleness.mean,
            "p95": staleness.p95,
            "max": staleness.max,
            "discarded_fraction": last.discarded_fraction,
        },
        "staleness_versions": _distribution(learner.staleness_versions_overall if learner else NOTHING),
        "policy_lag": _distribution(learner.policy_lag_overall if learner else NOTHING),
        "samples_per_insert": {
            "target": last.samples_per_insert_target,
            "achieved": last.samples_per_insert_achieved,
        },
        "learner_wait_fraction": min(1.0, (learner.wait_seconds if learner else 0.0) / seconds),
        "actor_wait_fraction": min(1.0, actor_wait_seconds / seconds),
        "actor_restarts": last.actor_restarts,
        **summary_of(last.groups),
    }


def _distribution(statistics: HistogramStatistics) -> dict[str, float]:
    return {"mean": statistics.mean, "p95": statistics.p95, "max": statistics.max}


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0
