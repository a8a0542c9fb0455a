"""One run per seed, side by side, and statistics over their returns.

    results = asyncrl.train_seeds("CartPole-v1", "dqn", seeds=5, total_steps=50_000)
    print(results)                   # a line per seed, mean and interquartile mean of the final returns
    results.results[0].policy        # the run of seed 0

The runs have the same options but the seed, so that `plot`, `ls` and `ui` show them as one group.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from asyncrl.errors import StoppedWhileStarting, UserError, error_text
from asyncrl.protocols import Algorithm
from asyncrl.run.job import Job
from asyncrl.show.aggregates import Array, Estimate, estimate, iqm, mean
from asyncrl.show.numbers import of_return, with_deviation, with_interval
from asyncrl.trainer.arguments import RunOptions, folders_of, seeds_from
from asyncrl.trainer.run_pool import Ended, Event, RunPool, runs_at_once
from asyncrl.trainer.trainer import Trainer

if TYPE_CHECKING:
    from asyncrl.run.result import TrainResult

CALLERS_ERRORS = (UserError, ValueError, TypeError)
"""Errors that the caller has caused, which the runs of all seeds would have."""


@dataclass(frozen=True, repr=False)
class SeedResults:
    """Results of one run per seed.

    Attributes:
        results: result by seed, in the order of the seeds, of every run that has learned.
        errors: error by seed of the runs that have failed.
    """

    results: Mapping[int, TrainResult]
    errors: Mapping[int, BaseException]

    @property
    def finals(self) -> Array:
        """Mean return of each run's final evaluation, `[runs]`, of those that have one."""
        ends = (result.evaluation for result in self.results.values())
        return np.array([evaluation.return_mean for evaluation in ends if evaluation is not None])

    @property
    def mean(self) -> Estimate | None:
        """Mean of `finals` with its 95 % bootstrap interval; None without one."""
        return estimate([self.finals], mean) if self.finals.size else None

    @property
    def iqm(self) -> Estimate | None:
        """Interquartile mean of `finals`, likewise."""
        return estimate([self.finals], iqm) if self.finals.size else None

    def __repr__(self) -> str:
        return "\n".join([*self.rows(), self.statistics()])

    def rows(self) -> list[str]:
        """A line per seed."""
        seeds = [*self.results, *(seed for seed in self.errors if seed not in self.results)]
        return [self._row(seed) for seed in sorted(seeds)]

    def _row(self, seed: int) -> str:
        result, error = self.results.get(seed), self.errors.get(seed)
        head = f"seed {seed:<6} "
        if isinstance(error, StoppedWhileStarting):
            return f"{head}stopped while it started; it leaves no policy"
        if result is None:
            return f"{head}failed: {error_text(error).partition(chr(10))[0] if error else ''}"
        final = result.evaluation
        ending = "not evaluated" if final is None else with_deviation(final.return_mean, final.return_std)
        best = "" if result.best is None else f"best {of_return(result.best.evaluation.return_mean)}, "
        summary = result.summary
        reached = summary.get("steps_to_target")
        target = "" if reached is None else f", target after {reached:,} steps"
        return (
            f"{head}final return {ending}, {best}{summary['env_steps']:,} steps, "
            f"{summary['train_seconds']:.1f} s, {result.stop_reason}{target}"
        )

    def statistics(self) -> str:
        """Mean and interquartile mean of the final returns with their intervals."""
        if self.mean is None or self.iqm is None:
            return "final return  no run was evaluated at its end"
        runs = len({*self.results, *self.errors})
        return (
            f"final return  mean {_shown(self.mean)}, interquartile mean {_shown(self.iqm)} "
            f"over {self.finals.size} of {runs} runs (95 % bootstrap)"
        )


def _shown(found: Estimate) -> str:
    return with_interval(found.value, found.low, found.high)


def train_seeds(
    env: Any,
    algorithm: Algorithm | str = "ppo",
    *,
    seeds: int | Sequence[int] = 5,
    at_once: int | None = None,
    **options: Unpack[RunOptions],
) -> SeedResults:
    """Train once per seed, each run in a process of its own; blocks. Interrupted, it stops all runs in good order.

    Args:
        env: see `Trainer`.
        algorithm: see `Trainer`.
        seeds: the seeds, or how many, counted from the option `seed`.
        at_once: number of runs at a time; None takes as many as the cores allow, for their actors and learners.
        options: of `Trainer`; the run of seed 3 lies in `<run_dir>/s3`.

    Raises:
        UserError, ValueError, TypeError: an error that the caller has caused; the other runs are stopped.
        AsyncRLError: the first error, if no run has a result. Otherwise errors are in the result.
    """
    trainer = Trainer(env, algorithm, **options)
    chosen = seeds_from(trainer.config.seed, seeds)
    folders = folders_of(chosen, trainer.config.run_dir)
    with RunPool() as pool:
        events = train_all(pool, jobs(trainer, folders), runs_at_once(trainer.config, at_once))
        ends = {event.key: event for event in events if isinstance(event, Ended)}
    return collected(chosen, ends)


def jobs(trainer: Trainer, folders: Mapping[int, os.PathLike[str] | None]) -> dict[int, Job]:
    """A trainer's run for every seed in the folder of that seed."""
    made = {}
    for seed, folder in folders.items():
        run_dir = None if folder is None else os.fspath(folder)
        config = dataclasses.replace(trainer.config, seed=seed, run_dir=run_dir)
        made[seed] = dataclasses.replace(trainer.job, config=config)
    return made


def train_all(pool: RunPool, jobs: Mapping[int, Job], at_once: int) -> Iterator[Event]:
    """Train jobs in their order, `at_once` at a time, and yield the events of their runs.

    One of `CALLERS_ERRORS` ends all.
    """
    waiting = list(jobs.items())
    while True:
        while waiting and pool.running < at_once and pool.stop_reason is None:
            key, job = waiting.pop(0)
            pool.begin(key, job)
        if not pool.running:
            return
        event = pool.wait()
        assert event is not None, "it waits for ever"
        if isinstance(event, Ended) and isinstance(event.error, CALLERS_ERRORS):
            pool.stop()
        yield event


def collected(seeds: Sequence[int], ends: Mapping[int, Ended], *, interrupted: bool = False) -> SeedResults:
    """Results of the runs that have ended.

    Raises any of `CALLERS_ERRORS`, and the first error if none has a result and they were not `interrupted`.
    """
    errors = {seed: error for seed in seeds if seed in ends and (error := ends[seed].error) is not None}
    results = {seed: result for seed in seeds if seed in ends and (result := ends[seed].result) is not None}
    failed = not results and not interrupted
    for error in errors.values():
        if isinstance(error, CALLERS_ERRORS) or (failed and not isinstance(error, StoppedWhileStarting)):
            raise error
    return SeedResults(results, errors)
