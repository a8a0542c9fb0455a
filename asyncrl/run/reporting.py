"""Reports of a run: their times, and their output to files, listener and callbacks.

A report is due by seconds, by environment steps and after every evaluation, whichever comes first. It becomes a
`Snapshot` (`report.py`), which is written to the run directory and passed to the listener and the callbacks.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
import warnings
from collections.abc import Callable
from typing import Any

from asyncrl.acting.images import network_text
from asyncrl.acting.policies import has_epsilon
from asyncrl.actors.pool import ActorPool
from asyncrl.actors.statistics import ActorStatistics
from asyncrl.config import TrainerConfig
from asyncrl.errors import ListenerFailed, SamplesTooStale
from asyncrl.learning.clock import TrainClock
from asyncrl.learning.learner import Learner, LearnerReport
from asyncrl.printable import describe_error
from asyncrl.protocols import Policy
from asyncrl.run.callbacks import Callbacks
from asyncrl.run.episode_window import EpisodeWindow
from asyncrl.run.evaluate import EvaluationSchedule
from asyncrl.run.report import SnapshotBuilder
from asyncrl.show.metrics import EvaluationResult, Snapshot
from asyncrl.show.writers import RunWriters
from asyncrl.storage.run_directory import RunDirectory

LEAST_SECONDS = 0.05
"""Least time between two reports, unless an evaluation requests one."""
LOOK_SECONDS = 0.02
"""Interval at which the environment steps are checked."""
STALE_FRACTION = 0.5
"""Discarded fraction from which ASYNC020 is given, once."""
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


class Reporting:
    """Makes snapshots of a run, writes them and passes them to the listener; event-loop thread only.

    Args:
        config: the run's options.
        clock: the training clock.
        listener: called with every snapshot.
        callbacks: called with every report and evaluation.

    Attributes:
        state: state of the run, for the next snapshot.
        pool, schedule: parts of the run that snapshots describe; None until they exist.
        has_epsilon: whether the policy's exploration rate is an epsilon, and is reported.
        last_report: the learner's report in the newest snapshot, or None.
        builder: makes the snapshots.
        shown: maps every new snapshot to the one that is published, with totals over groups.
    """

    def __init__(
        self,
        config: TrainerConfig,
        clock: TrainClock,
        listener: Callable[[Snapshot], None],
        callbacks: Callbacks | None = None,
    ) -> None:
        self.callbacks = callbacks or Callbacks(None)
        self.state = "starting"
        self.has_epsilon = False
        self.pool: ActorPool | None = None
        self.schedule: EvaluationSchedule | None = None
        self.last_report: LearnerReport | None = None
        self.shown: Callable[[Snapshot], Snapshot] = lambda snapshot: snapshot
        self._listener = listener
        self._clock = clock
        self.builder = SnapshotBuilder(config, 0, clock)
        self._times = ReportTimes(config.report_interval_seconds, config.report_interval_steps)
        self._writers: RunWriters | None = None
        self._last: Snapshot | None = None
        self._told: tuple[int, int, int] | None = None
        self._warned_of_staleness = self._warned_of_listener = False

    @property
    def episodes(self) -> EpisodeWindow:
        """The last finished training episodes."""
        return self.builder.episodes

    def current(self) -> Snapshot:
        """The newest snapshot; `publish` must have been called."""
        assert self._last is not None
        return self._last

    def open_files(self, directory: RunDirectory) -> None:
        """Write every later report and evaluation to the metric files of `directory`. Raises OSError."""
        assert directory.path is not None
        self._writers = RunWriters(directory.path, directory.check)

    def describe(self, pool: ActorPool, policy: Policy, exact: bool) -> None:
        """Set the actors and their policy, and whether the discipline `is_exact`."""
        self.pool, self.has_epsilon, self.episodes.by_steps = pool, has_epsilon(policy), exact
        self.builder.replay_capacity = sum(ring.num_slots * ring.num_envs for ring in pool.rings)
        self.builder.network = network_text(policy)

    def actor_wait_seconds(self) -> float:
        """Mean over the actors of the seconds spent waiting for a grant while the training clock ran."""
        return self.builder.actor_wait_seconds

    def read_actors(self) -> None:
        """Read the actors' finished episodes and waiting times."""
        if self.pool is not None:
            self.episodes.extend(self.pool.episodes())
            self.builder.count_waiting(self.pool.wait_seconds())

    def evaluated(self, result: EvaluationResult) -> None:
        """Write an evaluation at once, call the callbacks, and make a report due that shows it."""
        if self._writers is not None:
            self._writers.write(result)
        self.callbacks.evaluation(result)
        self._times.ask()

    async def run(self, learner: Learner) -> None:
        """Publish a report whenever one is due, until cancelled."""
        while True:
            await self._times.wait(lambda: learner.inserted_steps)
            self._times.reported(learner.inserted_steps)
            self.publish(await learner.report())

    def publish(self, report: LearnerReport | None) -> None:
        """Make a snapshot, write it, and pass it to the listener and the callbacks."""
        self.last_report = report
        self.show(self.shown(self._snapshot(report, None, None)))

    def show(self, snapshot: Snapshot) -> None:
        """Write a snapshot and pass it to the listener, even if writing fails, and to the callbacks."""
        self._last = snapshot
        try:
            if self._writers is not None:
                self._writers.write(snapshot)
        finally:
            self._call_listener(snapshot)
        self._call_callbacks(snapshot)
        self._warned_of_staleness = self._warned_of_staleness or _warn_of_staleness(snapshot)

    def tell(self, state: str, **fields: Any) -> None:
        """Show a new state at once: pass the newest snapshot with it to the listener and the page, not to files."""
        self.state = state
        if self._last is not None:
            seconds = self._clock.wall_seconds
            self._last = dataclasses.replace(self._last, state=state, wall_seconds=seconds, **fields)
            self._call_listener(self._last)

    def last_snapshot(self, report: LearnerReport | None, reason: str, error: str | None) -> Snapshot:
        """Make the run's last snapshot; if that fails, from the snapshot before it."""
        self.state, self.last_report = "failed" if reason == "failed" else "stopped", report
        try:
            if self.pool is not None:
                self.episodes.extend(self.pool.episodes())
            return self.shown(self._snapshot(report, reason, error))
        except Exception:
            if self._last is None:
                raise
            return dataclasses.replace(self._last, state=self.state, stop_reason=reason, error=error)

    def close(self) -> None:
        """Close the files, and drop the references to the run's parts to free their memory."""
        self.pool = self.schedule = self.builder.inference = None
        if self._writers is not None:
            self._writers.close()

    def _snapshot(self, report: LearnerReport | None, stop_reason: str | None, error: str | None) -> Snapshot:
        pool, schedule = self.pool, self.schedule
        holds_training = schedule is not None and schedule.holds_training
        return self.builder.snapshot(
            "evaluating" if self.state == "training" and holds_training else self.state,
            actors=_of_actors(pool, ended=stop_reason is not None),
            learner=report,
            exploration_rate=pool.exploration_rate() if pool is not None and self.has_epsilon else None,
            evaluations=schedule.evaluations if schedule is not None else (),
            best=schedule.best if schedule is not None else None,
            stop_reason=stop_reason,
            error=error,
        )

    def _call_callbacks(self, snapshot: Snapshot) -> None:
        """Call `on_report`, unless nothing that is learned has changed since the last call and the run goes on.

        Actors and learner may rest for a long time: training waits for an evaluation, or has ended before the last one.
        """
        told = snapshot.env_steps, snapshot.updates, len(snapshot.evaluations)
        if told != self._told or snapshot.stop_reason is not None:
            self._told = told if self.callbacks.started else None
            self.callbacks.report(snapshot)

    def _call_listener(self, snapshot: Snapshot) -> None:
        """Pass `snapshot` to the listener; an exception gives one warning (ASYNC042) and does not end the run."""
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


def _warn_of_staleness(snapshot: Snapshot) -> bool:
    """Give ASYNC020 if most of the steps were too stale to learn from; return whether they were."""
    if snapshot.discarded_fraction < STALE_FRACTION or snapshot.updates == 0:
        return False
    warnings.warn(
        SamplesTooStale(
            f"[ASYNC020] {snapshot.discarded_fraction:.0%} of the steps became too stale to learn from: "
            f"{_who_is_faster(snapshot)}; raise max_staleness or samples_per_insert, or lower num_actors"
        ),
        stacklevel=2,
    )
    return True


def _who_is_faster(snapshot: Snapshot) -> str:
    """Steps that the actors make against steps that the learner uses, both per second of the last interval."""
    made, target = snapshot.env_steps_per_second, snapshot.samples_per_insert_target
    used = snapshot.consumed_samples_per_second / target if target else snapshot.received_steps_per_second
    rates = f"{made:,.0f} steps/s, used {used:,.0f} steps/s"
    if used <= 0:
        return f"actors make all steps and the learner uses none ({rates})"
    if made < FASTER * used:
        return f"actors make no more than the learner can use ({rates})"
    return f"actors make {made / used:,.1f} times what the learner can use ({rates})"


def _of_actors(pool: ActorPool | None, *, ended: bool) -> tuple[ActorStatistics, ...]:
    """Statistics of every actor; after the end of training all are shown as stopped, even if they still run."""
    if pool is None:
        return ()
    actors = pool.statistics()
    return tuple(dataclasses.replace(actor, state="stopped") for actor in actors) if ended else actors
