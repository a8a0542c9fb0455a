"""Reports of a run: their times, their content, and their output to files, listener and callbacks.

A report is due by seconds, by environment steps and after every evaluation, whichever comes first. It becomes a
`Snapshot`, which is written to the run directory and passed to the listener and the callbacks.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Callable
from typing import Any

from asyncrl.actors.pool import ActorPool
from asyncrl.config import TrainerConfig
from asyncrl.errors import ListenerFailed, SamplesTooStale, describe_error, warn
from asyncrl.interfaces import Metrics
from asyncrl.learning.clock import TrainClock
from asyncrl.run.callbacks import Callbacks
from asyncrl.run.episode_window import EpisodeWindow
from asyncrl.run.logged import LoggedMetrics
from asyncrl.show.metrics import RUN_METRICS, UNMEASURED, EvaluationResult, Metric, Snapshot
from asyncrl.show.writers import RunWriters
from asyncrl.storage.run_directory import RunDirectory

LEAST_SECONDS = 0.05
"""Least time between two reports, unless an evaluation requests one."""
CHECK_SECONDS = 0.02
"""Interval at which the environment steps are checked."""
STALE_FRACTION = 0.5
"""Discarded fraction from which ASYNC020 is given, once."""
MOST_RETURNS = 400
"""Most points of `Reporter.returns`; beyond it every second one is dropped."""
FASTER = 1.05
"""Ratio of two rates from which one is called the faster."""
RATES = tuple(metric for metric in RUN_METRICS if metric.of)
"""The metrics that are rates."""
AXES = ("time/total_timesteps", "time/time_elapsed")
"""Numbers of a row that has nothing else but what was logged."""


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
        self._reported_at = -float("inf")
        self._next_steps = interval_steps
        self._requested = asyncio.Event()

    def request(self) -> None:
        """Make a report due now, because an evaluation has ended."""
        self._requested.set()

    def due(self, env_steps: int) -> bool:
        """Whether a report is due at `env_steps`."""
        seconds = self._now() - self._reported_at
        if self._requested.is_set() or seconds >= self._interval_seconds:
            return True
        passed = self._next_steps is not None and env_steps >= self._next_steps
        return passed and seconds >= LEAST_SECONDS

    def reported(self, env_steps: int) -> None:
        """Note that a report begins now; a later `request` is for the next one."""
        self._reported_at = self._now()
        self._requested.clear()
        if self._interval_steps is not None:
            self._next_steps = (env_steps // self._interval_steps + 1) * self._interval_steps

    async def wait(self, env_steps: Callable[[], int]) -> None:
        """Wait until a report is due."""
        while not self.due(env_steps()):
            # Not `wait_for`: before Python 3.12 it drops a cancellation that comes together with the event, and the
            # last evaluation asks for a report just before it ends the run.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CHECK_SECONDS):
                    await self._requested.wait()


class Reporter:
    """Completes the metrics of a run, writes its snapshots and passes them to the listener; event-loop thread only.

    Args:
        config: the run's options.
        clock: the training clock.
        listener: called with every snapshot.
        callbacks: called with every report and evaluation.
        exact: whether the discipline is exact; see `EpisodeWindow.by_steps`.
        logged: the numbers that the user logs; None for none.

    Attributes:
        state: state of the run, for the next snapshot.
        times: decides when a report is due.
        episodes: the last training episodes.
        last: the newest snapshot, None before the first.
        logged: the numbers that the user logs.
        returns: steps, and mean return of the training episodes, over the run; thinned to a few hundred.
        actor_wait_seconds: mean over the actors of the seconds spent waiting for a grant while the training clock ran.
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
        logged: LoggedMetrics | None = None,
    ) -> None:
        self.state = "starting"
        self.times = ReportTimes(config.report_interval_seconds, config.report_interval_steps)
        self.episodes = EpisodeWindow(by_steps=exact)
        self.last: Snapshot | None = None
        self.returns: list[tuple[int, float]] = []
        self.actor_wait_seconds = 0.0
        self._before = 0.0, 0.0  # the same of an earlier run, and its training time
        self.restarts_before = 0
        self._clock = clock
        self._listener = listener
        self._callbacks = callbacks
        self.logged = logged or LoggedMetrics()
        self._meter = RateMeter()
        self._meter.observe(time.monotonic(), {})
        self._actors_waited = 0.0
        self._writers: RunWriters | None = None
        self._last_moment: tuple[int, int, int] | None = None
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
        """Write what was logged after the last report, and close the files; may be called again after a log."""
        rest = self.logged.take()
        if self._writers is not None and self.last is not None:
            if rest:
                metrics = {name: self.last.metrics[name] for name in AXES}
                self._writers.write(dataclasses.replace(self.last, metrics=metrics, logged_now=rest))
            self._writers.close()

    def go_on_from(self, metrics: Metrics, waited: float, restarts: int) -> None:
        """Restore numbers of an earlier run, so that rates count only what is added from now on.

        Args:
            metrics: numbers of actors and learner by public name.
            waited: `actor_wait_seconds`.
            restarts: actor restarts.
        """
        self._meter = RateMeter()
        self._meter.observe(time.monotonic(), metrics)
        self.actor_wait_seconds, self.restarts_before = waited, restarts
        self._before = waited, self._clock.train_seconds

    def read_actors(self, pool: ActorPool) -> None:
        """Read the actors' finished episodes and waiting times."""
        self.episodes.extend(pool.episodes())
        self.count_waiting(pool.wait_seconds())

    def count_waiting(self, seconds: float) -> None:
        """Update `actor_wait_seconds` from the actors' mean waiting time since the start.

        The time between two calls, which are frequent, counts if the training clock runs at the second one. An actor
        says how long it has waited when it wakes: the first time after the clock has started, with all of the start-up.
        So the sum is never more than the training time.
        """
        if self._clock.running:
            waited, trained = self._before
            most = waited + self._clock.train_seconds - trained
            self.actor_wait_seconds = min(most, self.actor_wait_seconds + seconds - self._actors_waited)
        self._actors_waited = seconds

    def metrics(self, measured: Metrics) -> Metrics:
        """Complete the numbers of the run, in the order of the table; rates are over the time since the last call.

        Args:
            measured: what actors, learner and inference server have measured, by public name.
        """
        metrics = {**UNMEASURED, **measured, **self._clock.statistics(), **self.episodes.statistics()}
        metrics["async/actor_restarts"] = self.restarts_before + (metrics["async/actor_restarts"] or 0)
        return metrics | self._meter.observe(time.monotonic(), metrics)

    def show(self, snapshot: Snapshot) -> None:
        """Write a snapshot and pass it to the listener, even if writing fails, and to the callbacks.

        It gets what was logged since the last one, unless its run has no files yet.
        """
        logged_now = {} if self.state == "starting" else self.logged.take()
        snapshot = dataclasses.replace(snapshot, logged=self.logged.newest(), logged_now=logged_now)
        self.last = snapshot
        try:
            if self._writers is not None:
                self._writers.write(snapshot)
        finally:
            self._call_listener(snapshot)
        self._call_callbacks(snapshot)
        agents = max(1, len(self.episodes.agents))
        self._warned_of_staleness = self._warned_of_staleness or _warn_of_staleness(snapshot, agents)

    def show_state(self, state: str, **fields: Any) -> None:
        """Pass the newest snapshot with a new state to the listener and the page at once; files do not get it."""
        self.state = state
        if self.last is not None:
            metrics = {**self.last.metrics, **self._clock.statistics()}
            self.last = dataclasses.replace(self.last, state=state, metrics=metrics, **fields)
            self._call_listener(self.last)

    def evaluated(self, result: EvaluationResult) -> None:
        """Write an evaluation at once, call the callbacks, and make a report due that shows it."""
        if self._writers is not None:
            self._writers.write(result)
        self._callbacks.evaluation(result)
        self.times.request()

    def _call_callbacks(self, snapshot: Snapshot) -> None:
        """Call `on_report`, unless nothing that is learned has changed since the last call and the run goes on.

        Actors and learner may rest for a long time: training waits for an evaluation, or has ended before the last one.
        """
        moment = snapshot.env_steps, snapshot.updates, len(snapshot.evaluations)
        if moment != self._last_moment or snapshot.stop_reason is not None:
            self._last_moment = moment if self._callbacks.started else None
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
                warn(ListenerFailed(text))


def _warn_of_staleness(snapshot: Snapshot, agents: int) -> bool:
    """Give ASYNC020 if most of the steps were too stale to learn from; return whether they were."""
    if snapshot.discarded_fraction < STALE_FRACTION or snapshot.updates == 0:
        return False
    warn(
        SamplesTooStale(
            f"[ASYNC020] {snapshot.discarded_fraction:.0%} of the steps became too stale to learn from: "
            f"{_who_is_faster(snapshot, agents)}; raise max_staleness or samples_per_insert, or lower num_actors"
        )
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


class RateMeter:
    """Converter of numbers that grow into their rates between two calls, by the table of metrics; for one caller.

        I   environment steps that the actors took (RESET rows are not steps)
        R   steps that the learner received: ingested by replay, or in a segment that was taken
        s   samples trained on, repetitions included

        production P = (I' - I) / (t' - t)     receipt = (R' - R) / (t' - t)     consumption C = (s' - s) / (t' - t)

        consumption per production = C / P = (s' - s) / (I' - I)

    In balance C / P is `samples_per_insert` and receipt is P. Receipt below production: steps wait in the rings or were
    discarded. C / P below its target: the learner falls behind or has just received steps. The names are TianJi's
    (arXiv 2502.20190), the formulas ours.
    """

    def __init__(self) -> None:
        self._last: tuple[float, Metrics] | None = None
        self._rates: Metrics = {metric.name: None if metric.optional else 0.0 for metric in RATES}

    def observe(self, now_seconds: float, now: Metrics) -> Metrics:
        """Rates since the last call by public name, none below 0, a number that `now` lacks counting as 0.

        The first call returns zeros, a call at the same time the last result. A rate is None while an optional number
        of it is unknown.

        Raises:
            ValueError: `now_seconds`, of a monotonic clock, is less than at the last call.
        """
        if self._last is not None:
            then_seconds, then = self._last
            seconds = now_seconds - then_seconds
            if seconds < 0:
                raise ValueError(f"now_seconds must not go back from {then_seconds}, got {now_seconds}")
            if seconds == 0:
                return self._rates
            self._rates = {metric.name: _rate(metric, then, now, seconds) for metric in RATES}
        self._last = now_seconds, now
        return self._rates


def _rate(metric: Metric, then: Metrics, now: Metrics, seconds: float) -> float | None:
    if metric.optional and now.get(metric.of) is None:
        return None
    passed = _growth(metric.per, then, now) if metric.per else seconds
    rate = _growth(metric.of, then, now) / passed if passed else 0.0
    return rate if metric.unit else min(1.0, rate)


def _growth(name: str, then: Metrics, now: Metrics) -> float:
    return max(0, (now.get(name) or 0) - (then.get(name) or 0))
