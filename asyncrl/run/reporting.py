"""Reports of a run: their times, their content, and their output to files, listener and callbacks.

A report is due by seconds, by environment steps and after every evaluation, whichever comes first. It becomes a
`Snapshot`, which is written to the run directory and passed to the listener and the callbacks.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
import time
import warnings
from collections.abc import Callable
from typing import Any

from asyncrl.actors.pool import ActorPool
from asyncrl.actors.statistics import ActorStatistics
from asyncrl.config import TrainerConfig
from asyncrl.errors import ListenerFailed, SamplesTooStale, describe_error
from asyncrl.learning.clock import TrainClock
from asyncrl.learning.histogram import HistogramStatistics
from asyncrl.learning.inference_server import InferenceStatistics
from asyncrl.learning.learner import LearnerReport
from asyncrl.run.callbacks import Callbacks
from asyncrl.run.episode_window import EpisodeWindow
from asyncrl.show.metrics import EvaluationResult, Snapshot
from asyncrl.show.rates import Counters, RateMeter
from asyncrl.show.writers import RunWriters
from asyncrl.storage.run_directory import RunDirectory

OPTIONS = ("algo", "env", "seed", "total_steps", "target_return", "target_training_return", "max_seconds")
"""Options of a run that a snapshot has too."""
LEAST_SECONDS = 0.05
"""Least time between two reports, unless an evaluation requests one."""
LOOK_SECONDS = 0.02
"""Interval at which the environment steps are checked."""
STALE_FRACTION = 0.5
"""Discarded fraction from which ASYNC020 is given, once."""
MOST_RETURNS = 400
"""Most points of `Reporter.returns`; beyond it every second one is dropped."""
FASTER = 1.05
"""Ratio of two rates from which one is called the faster."""


class ReportTimes:
    """Decides when the next report is due; event-loop thread only.

    Args:
        interval_seconds: longest time between two reports.
        interval_steps: a report is due when the environment steps pass another multiple of this; None ignores steps.
        now: monotonic seconds.
    """

    def __init__(
        self, interval_seconds: float, interval_steps: int | None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._interval_seconds = interval_seconds
        self._interval_steps = interval_steps
        self._now = now
        self._then = -float("inf")
        self._next_steps = interval_steps
        self._asked = asyncio.Event()

    def ask(self) -> None:
        """Make a report due now, because an evaluation has ended."""
        self._asked.set()

    def due(self, env_steps: int) -> bool:
        """Whether a report is due at `env_steps`."""
        seconds = self._now() - self._then
        if self._asked.is_set() or seconds >= self._interval_seconds:
            return True
        passed = self._next_steps is not None and env_steps >= self._next_steps
        return passed and seconds >= LEAST_SECONDS

    def reported(self, env_steps: int) -> None:
        """Note that a report begins now; a later `ask` requests the next one."""
        self._then = self._now()
        self._asked.clear()
        if self._interval_steps is not None:
            self._next_steps = (env_steps // self._interval_steps + 1) * self._interval_steps

    async def wait(self, env_steps: Callable[[], int]) -> None:
        """Wait until a report is due."""
        while not self.due(env_steps()):
            # Not `wait_for`: before Python 3.12 it drops a cancellation that comes together with the event, and the
            # last evaluation asks for a report just before it ends the run.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._asked.wait()


class Reporter:
    """Makes snapshots of a run, writes them and passes them to the listener; event-loop thread only.

    Args:
        config: the run's options.
        clock: the training clock.
        listener: called with every snapshot.
        callbacks: called with every report and evaluation.
        exact: whether the discipline is exact; see `EpisodeWindow.by_steps`.

    Attributes:
        state: state of the run, for the next snapshot.
        times: decides when a report is due.
        episodes: the last training episodes.
        last: the newest snapshot, None before the first.
        returns: steps, and mean return of the training episodes, over the run; thinned to a few hundred.
        actor_wait_seconds: mean over the actors of the seconds spent waiting for a grant while the training clock ran.
        agents: names of several agents of an environment, in the order of their streams; empty for one agent.
        restarts_before: actor restarts of the earlier run that this one resumes.
    """

    def __init__(
        self,
        config: TrainerConfig,
        clock: TrainClock,
        listener: Callable[[Snapshot], None],
        callbacks: Callbacks,
        *,
        exact: bool = False,
    ) -> None:
        self.state = "starting"
        self.times = ReportTimes(config.report_interval_seconds, config.report_interval_steps)
        self.episodes = EpisodeWindow(by_steps=exact)
        self.last: Snapshot | None = None
        self.returns: list[tuple[int, float]] = []
        self.actor_wait_seconds = 0.0
        self.agents: tuple[str, ...] = ()
        self.restarts_before = 0
        self._config = config
        self._clock = clock
        self._listener = listener
        self._callbacks = callbacks
        self._meter = RateMeter()
        self._meter.observe(time.monotonic(), Counters())
        self._actors_waited = 0.0
        self._writers: RunWriters | None = None
        self._told: tuple[int, int, int] | None = None
        self._warned_of_staleness = self._warned_of_listener = False

    def current(self) -> Snapshot:
        """The newest snapshot; `show` must have been called."""
        assert self.last is not None
        return self.last

    def open_files(self, directory: RunDirectory) -> None:
        """Write every later report and evaluation to the metric files of `directory`. Raises OSError."""
        assert directory.path is not None
        self._writers = RunWriters(directory.path, directory.check)

    def close(self) -> None:
        """Close the files."""
        if self._writers is not None:
            self._writers.close()

    def go_on_from(
        self, actors: tuple[ActorStatistics, ...], learner: LearnerReport, waited: float, restarts: int
    ) -> None:
        """Restore counters of an earlier run, so that rates count only what is added from now on."""
        self._meter = RateMeter()
        env_steps = sum(actor.env_steps for actor in actors)
        self._meter.observe(time.monotonic(), _counters(env_steps, learner))
        self.actor_wait_seconds, self.restarts_before = waited, restarts

    def read_actors(self, pool: ActorPool) -> None:
        """Read the actors' finished episodes and waiting times."""
        self.episodes.extend(pool.episodes())
        self.count_waiting(pool.wait_seconds())

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
        learner: LearnerReport | None = None,
        *,
        actors: tuple[ActorStatistics, ...] = (),
        inference: InferenceStatistics | None = None,
        replay_capacity: int = 0,
        network: str = "",
        exploration_rate: float | None = None,
        evaluations: tuple[EvaluationResult, ...] = (),
        best: EvaluationResult | None = None,
        stop_reason: str | None = None,
        error: str | None = None,
    ) -> Snapshot:
        """Make a snapshot of the current state; rates are over the time since the last call.

        Args:
            state: state of the run.
            learner: the learner's report, None before there is one.
            actors: statistics of every actor.
            inference: statistics of the inference server, None where actors run the network.
            replay_capacity: capacity of all rings in environment steps.
            network: name of the convolutional network, "" for none.
            exploration_rate: mean exploration rate if it is an epsilon, else None.
            evaluations: all evaluations so far.
            best: the best of them.
            stop_reason: why the run has ended, None before its end.
            error: text of the error that ended it, or None.
        """
        clock, learner = self._clock, learner or LearnerReport()
        env_steps = sum(actor.env_steps for actor in actors)
        rates = self._meter.observe(time.monotonic(), _counters(env_steps, learner, inference, self.agents))
        return Snapshot(
            state=state,
            wall_seconds=clock.wall_seconds,
            train_seconds=clock.train_seconds,
            startup_seconds=clock.startup_seconds,
            env_steps=env_steps,
            **self.episodes.statistics(),
            exploration_rate=exploration_rate,
            evaluations=evaluations,
            best_evaluation=best,
            replay_capacity=replay_capacity,
            actor_restarts=self.restarts_before + sum(actor.restarts for actor in actors),
            stop_reason=stop_reason,
            error=error,
            network=network,
            **{name: getattr(self._config, name) for name in OPTIONS},
            **vars(rates),
            evaluation=evaluations[-1] if evaluations else None,
            **_of_actors(actors),
            **_of_learner(learner, dict(zip(self.agents, self.episodes.agent_return_means, strict=False))),
        )

    def show(self, snapshot: Snapshot) -> None:
        """Write a snapshot and pass it to the listener, even if writing fails, and to the callbacks."""
        self.last = snapshot
        try:
            if self._writers is not None:
                self._writers.write(snapshot)
        finally:
            self._call_listener(snapshot)
        self._call_callbacks(snapshot)
        told = self._warned_of_staleness or _warn_of_staleness(snapshot, max(1, len(self.agents)))
        self._warned_of_staleness = told

    def tell(self, state: str, **fields: Any) -> None:
        """Show a new state at once: pass the newest snapshot with it to the listener and the page, not to files."""
        self.state = state
        if self.last is not None:
            seconds = self._clock.wall_seconds
            self.last = dataclasses.replace(self.last, state=state, wall_seconds=seconds, **fields)
            self._call_listener(self.last)

    def evaluated(self, result: EvaluationResult) -> None:
        """Write an evaluation at once, call the callbacks, and make a report due that shows it."""
        if self._writers is not None:
            self._writers.write(result)
        self._callbacks.evaluation(result)
        self.times.ask()

    def _call_callbacks(self, snapshot: Snapshot) -> None:
        """Call `on_report`, unless nothing that is learned has changed since the last call and the run goes on.

        Actors and learner may rest for a long time: training waits for an evaluation, or has ended before the last one.
        """
        told = snapshot.env_steps, snapshot.updates, len(snapshot.evaluations)
        if told != self._told or snapshot.stop_reason is not None:
            self._told = told if self._callbacks.started else None
            self._callbacks.report(snapshot)

    def _keep_return(self, snapshot: Snapshot) -> None:
        point = (snapshot.env_steps, snapshot.return_mean)
        if point[1] is not None and point not in self.returns[-1:]:  # a new state comes with the old numbers
            self.returns.append((snapshot.env_steps, point[1]))
            if len(self.returns) > MOST_RETURNS:
                del self.returns[1::2]

    def _call_listener(self, snapshot: Snapshot) -> None:
        """Pass `snapshot` to the listener; an exception gives one warning (ASYNC042) and does not end the run."""
        self._keep_return(snapshot)
        try:
            self._listener(snapshot)
        except (Exception, asyncio.CancelledError) as error:
            if not self._warned_of_listener:
                self._warned_of_listener = True
                text = (
                    f"[ASYNC042] the callback for snapshots raised {describe_error(error)}; training goes "
                    "on, and the callback gets the next snapshot too; mend it"
                )
                warnings.warn(ListenerFailed(text), stacklevel=2)


def _counters(
    env_steps: int,
    learner: LearnerReport,
    inference: InferenceStatistics | None = None,
    agents: tuple[str, ...] = (),
) -> Counters:
    return Counters(
        produced=env_steps,
        received=learner.balance.received_steps,
        consumed=learner.balance.sampled,
        updates=learner.updates,
        learner_wait_seconds=learner.wait_seconds,
        inference=(inference.passes, inference.rows, inference.wait_seconds) if inference else None,
        agents=max(1, len(agents)),
    )


def _of_actors(actors: tuple[ActorStatistics, ...]) -> dict[str, Any]:
    return {
        "actors": actors,
        "actor_wait_fraction": _mean([actor.wait_fraction for actor in actors]),
        "ring_fill": _mean([actor.ring_fill for actor in actors]),
    }


def _of_learner(learner: LearnerReport, agent_returns: dict[str, float]) -> dict[str, Any]:
    metrics, balance = dict(learner.train_metrics), learner.balance
    metrics |= {f"rollout/ep_rew_mean/{name}": mean for name, mean in agent_returns.items()}
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


def _warn_of_staleness(snapshot: Snapshot, agents: int) -> bool:
    """Give ASYNC020 if most of the steps were too stale to learn from; return whether they were."""
    if snapshot.discarded_fraction < STALE_FRACTION or snapshot.updates == 0:
        return False
    warnings.warn(
        SamplesTooStale(
            f"[ASYNC020] {snapshot.discarded_fraction:.0%} of the steps became too stale to learn from: "
            f"{_who_is_faster(snapshot, agents)}; raise max_staleness or samples_per_insert, or lower num_actors"
        ),
        stacklevel=2,
    )
    return True


def _who_is_faster(snapshot: Snapshot, agents: int) -> str:
    """Steps that the actors make against steps that the learner uses, both per second of the last interval.

    A step inserts a sample of each of the `agents`.
    """
    made, target = snapshot.env_steps_per_second, snapshot.samples_per_insert_target
    samples = snapshot.consumed_samples_per_second / agents
    used = samples / target if target else snapshot.received_steps_per_second
    rates = f"{made:,.0f} steps/s, used {used:,.0f} steps/s"
    if used <= 0:
        return f"actors make all steps and the learner uses none ({rates})"
    if made < FASTER * used:
        return f"actors make no more than the learner can use ({rates})"
    return f"actors make {made / used:,.1f} times what the learner can use ({rates})"
