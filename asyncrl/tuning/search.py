"""Search for options of an algorithm that are better than a given record.

    trials        runs of `seed` by drawn options, each pruned where it falls behind the trials that it knows
    finalists     the best `FINALISTS` trials, run with `CHOOSING_SEEDS` further seeds; the best mean is chosen
    held-out      the chosen options and the record, run with seeds that have chosen nothing

    <run_dir>/search.json          what is searched
              study.db             the trials, in Optuna's form
              trial-003/           a run; `finalist-003-s1/`, `held-out/best-003-s1000/`, `held-out/default-s1000/` too
              best.toml            the chosen options, for `asyncrl train --config`
              result.json          the comparison

Seconds decide only how many trials are begun. A trial knows those that had to end before it began, whenever they ended
(`study.py`); it is pruned by them alone. So in lockstep a search of the same seed and number of runs at a time is the
same on every machine. A search that was interrupted goes on where it was: a run that had not ended begins anew.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from asyncrl.algorithms.search_spaces import SearchSpace
from asyncrl.config import TrainerConfig
from asyncrl.errors import ConfigurationError, EnvironmentFailed, StoppedWhileStarting, TrainingDiverged
from asyncrl.run.job import Job
from asyncrl.show.kept_run import LABELS, KeptRun
from asyncrl.storage.atomic_file import write_atomically
from asyncrl.storage.config_file import options_by_table
from asyncrl.storage.disk_space import error_of_file
from asyncrl.storage.run_directory import refuse_run_at
from asyncrl.storage.run_files import FUNCTIONS, option_files
from asyncrl.trainer.run_pool import Ended, Event, Progressed, RunPool, Started, Warned
from asyncrl.trainer.seeds import CALLERS_ERRORS
from asyncrl.tuning.result import HeldOut, Searched
from asyncrl.tuning.study import FILE as STUDY
from asyncrl.tuning.study import Study, Trial, is_begun

SEARCH, BEST, RESULT, LOCK = "search.json", "best.toml", "result.json", ".search-lock"
OWN_FOLDERS = ("trial-[0-9][0-9][0-9]*", "finalist-[0-9][0-9][0-9]*", "held-out")
"""Folders of a search's runs, which a run that begins anew replaces."""
FINALISTS, CHOOSING_SEEDS = 3, 2
FIRST_HELD_OUT = 1000
"""First of the seeds that choose nothing, counted from the search's seed."""
LAST_SHARE = 0.2
"""Share of a run's steps, from its end, whose evaluations are its value: the last policy alone may be an outlier."""
PRUNED_FROM_SHARE, PRUNED_FROM_TRIALS = 0.3, 4
"""Share of its steps, and complete trials that it knows, from which a trial is pruned."""
FAILURES_IN_A_ROW = 3
"""Trials that fail one after the other, after which the search ends with the error of the last."""


RunEvent = Started | Progressed | Ended


@dataclass(frozen=True)
class Task:
    """A run of the search.

    Attributes:
        label: what it is, `trial 3`.
        folder: its directory.
        job: its options.
        trial: its trial, None for a run after the trials.
    """

    label: str
    folder: Path
    job: Job
    trial: Trial | None = None


class Search:
    """A search in a directory, new or gone on with; a context manager that holds the directory's lock.

    Args:
        folder: its directory.
        job: the run that is to be beaten; its seed is that of the trials.
        space: what is searched.
        trials: number of trials in the end.
        at_once: runs at a time.
        held_out_seeds: number of seeds of the comparison, 0 for none.
        max_seconds: seconds from now after which no trial but the first is begun.

    Raises:
        ConfigurationError: the directory holds another search or is in use, or Optuna is not installed (ASYNC017).
    """

    def __init__(
        self,
        folder: Path,
        job: Job,
        space: SearchSpace,
        *,
        trials: int,
        at_once: int,
        held_out_seeds: int = 5,
        max_seconds: float | None = None,
    ) -> None:
        self.folder, self.at_once = folder, at_once
        self._job, self._space, self._wanted = job, space, trials
        self._held_out_seeds = held_out_seeds
        self._end = None if max_seconds is None else time.monotonic() + max_seconds
        refuse_run_at(folder)
        with error_of_file("the search", folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = _lock(folder)
        try:
            self._write_or_compare()
            base = {name: getattr(job.algorithm, name) for name in space.options}
            self._study = Study(folder, space, base, job.config.seed)
        except BaseException:
            self.close()
            raise
        self.trials = {trial.number: trial for trial in self._study.trials()}
        self._evaluations: dict[int, list[float]] = {}
        self._finals: dict[Path, tuple[float, float]] = {}
        self._failures = self._begun = 0

    def __enter__(self) -> Search:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the directory; idempotent."""
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)

    def _write_or_compare(self) -> None:
        """Write what is searched, or refuse a directory in which something else is.

        A search of which nothing is known yet, as the first run has failed, gives way to one of other options.
        """
        config = dataclasses.replace(self._job.config, run_dir=None)
        tables = options_by_table(config, self._job.algorithm)
        space = {name: dataclasses.asdict(values) for name, values in self._space.options.items()}
        own = json.loads(json.dumps({**tables, "space": space}, default=str))
        file = self.folder / SEARCH
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
            kept = {table: dict(values) for table, values in found.items()}
        except FileNotFoundError:
            self._refuse_foreign_runs()
            self._write(SEARCH, "the search", json.dumps(own, indent=2).encode() + b"\n")
            return
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise ConfigurationError(
                "the search cannot be read", facts={"file": file}, fix="name another directory: --run-dir DIR"
            ) from error
        different = [
            f"{table}.{name}"
            for table in {**kept, **own}
            for name in {**kept.get(table, {}), **own.get(table, {})}
            if kept.get(table, {}).get(name) != own.get(table, {}).get(name)
        ]
        if different and is_begun(self.folder):
            raise ConfigurationError(
                f"{self.folder} holds a search of other options",
                facts={"different": ", ".join(different[:8])},
                fix="give the same options to go on with it, or another directory: --run-dir DIR",
            )
        if different:
            with error_of_file("the search", self.folder):
                (self.folder / STUDY).unlink(missing_ok=True)
            self._write(SEARCH, "the search", json.dumps(own, indent=2).encode() + b"\n")

    def _refuse_foreign_runs(self) -> None:
        """Refuse the directory of a new search in which there are folders that its runs would replace."""
        found = [path.name for name in OWN_FOLDERS for path in self.folder.glob(name)]
        if found:
            raise ConfigurationError(
                f"{self.folder} is no search, and holds {min(found)}, a name of a search's runs",
                facts={"such folders": len(found)},
                fix="name another directory: --run-dir DIR",
            )

    # --- the runs ----------------------------------------------------------------------------------------------------

    def run(self, pool: RunPool) -> Iterator[tuple[Task | None, Event]]:
        """Search, and yield the events of all runs with their tasks; `result` is there when it has ended.

        Raises:
            AsyncRLError: trial 0 has failed, or `FAILURES_IN_A_ROW` trials one after the other.
        """
        yield from self._train(pool, self._trials(), self._take_trial)
        if pool.stop_reason is None:
            yield from self._train(pool, iter(self._finalists()), self._take_run)
        if pool.stop_reason is None:
            self._write_best()
            yield from self._train(pool, iter(self._held_out()), self._take_run)

    def _train(
        self, pool: RunPool, tasks: Iterator[Task | None], take: Callable[[RunPool, Task, RunEvent], None]
    ) -> Iterator[tuple[Task | None, Event]]:
        """Train tasks, `at_once` at a time; None stands for a task that cannot begin before a run has ended."""
        running: dict[int, Task] = {}
        while True:
            while len(running) < self.at_once and pool.stop_reason is None:
                task = next(tasks, None)
                if task is None:
                    break
                _clear(task.folder)
                self._begun += 1
                pool.begin(self._begun, task.job)
                running[self._begun] = task
            if not running:
                return
            event = pool.wait()
            assert event is not None, "it waits for ever"
            if isinstance(event, Warned):
                yield None, event
                continue
            task = running[event.key]
            if isinstance(event, Ended):
                del running[event.key]
            take(pool, task, event)
            yield task, event
            if isinstance(event, Ended):
                self._tag(task)

    def _tag(self, task: Task) -> None:
        """Tag a run for `asyncrl ui` and `asyncrl ls` with what it is in the search."""
        tags = [task.label.partition(" ")[0].rstrip(",")]
        if task.trial is not None and (state := self.trials[task.trial.number].state) not in (
            None,
            "complete",
        ):
            tags.append(str(state))
        with contextlib.suppress(OSError):
            write_atomically(task.folder / LABELS, [json.dumps({"tags": tags}).encode()], durable=False)

    def _trials(self) -> Iterator[Task | None]:
        """Trials to run: first those that were interrupted, then new ones."""
        for number in [n for n, trial in self.trials.items() if trial.state is None]:
            yield self._task(self.trials[number])
        while len(self.trials) < self._wanted and self._may_begin():
            before = len(self.trials) - self.at_once
            if before >= 0 and any(self.trials[n].state is None for n in range(before + 1)):
                yield None
                continue
            trial = self._study.ask(self.at_once)
            self.trials[trial.number] = trial
            try:
                task = self._task(trial)
            except ValueError:  # options that the record does not allow together
                self._end_trial(trial, "failed", None, ())
            else:
                yield task

    def _may_begin(self) -> bool:
        """Whether there is time for another trial; there is for the first."""
        return not self.trials or self._end is None or time.monotonic() < self._end

    def _task(self, trial: Trial) -> Task:
        self._evaluations[trial.number] = []
        label = "trial 0, default" if trial.number == 0 else f"trial {trial.number}"
        folder = self.folder / f"trial-{trial.number:03}"
        return Task(label, folder, self._job_of(trial.options, self._job.config.seed, folder), trial)

    def _job_of(self, options: Mapping[str, Any], seed: int, folder: Path) -> Job:
        config = dataclasses.replace(self._job.config, seed=seed, run_dir=str(folder))
        record: Any = self._job.algorithm
        return dataclasses.replace(self._job, config=config, algorithm=dataclasses.replace(record, **options))

    # --- trials ------------------------------------------------------------------------------------------------------

    def _take_trial(self, pool: RunPool, task: Task, event: RunEvent) -> None:
        trial = task.trial
        assert trial is not None
        if self.trials[trial.number].state is not None:  # pruned, and about to stop
            return
        seen = self._evaluations[trial.number]
        if isinstance(event, Progressed):
            for evaluation in event.snapshot.evaluations[len(seen) :]:
                seen.append(evaluation.return_mean)
                self._study.report(trial.number, len(seen) - 1, evaluation.return_mean)
                share = evaluation.env_steps / self._total_steps
                if PRUNED_FROM_SHARE <= share < 1 and self._falls_behind(trial.number, seen):
                    self._end_trial(trial, "pruned", max(seen), seen)
                    pool.stop_run(event.key)
                    return
        elif isinstance(event, Ended):
            self._end_of_trial(pool, task, trial, seen, event)

    @property
    def _total_steps(self) -> int:
        steps = self._job.config.total_steps
        assert steps is not None, "a search has trials of a given length"
        return steps

    def _falls_behind(self, number: int, seen: Sequence[float]) -> bool:
        """Whether the best return so far is below the median of the known complete trials at the same evaluation."""
        known = [self.trials[n] for n in range(max(0, number - self.at_once + 1))]
        bests = [max(t.evaluations[: len(seen)]) for t in known if t.state == "complete" and t.evaluations]
        return len(bests) >= PRUNED_FROM_TRIALS and max(seen) < float(np.median(bests))

    def _end_of_trial(
        self, pool: RunPool, task: Task, trial: Trial, seen: Sequence[float], event: Ended
    ) -> None:
        """Note the end of a trial, unless the search is stopped: then it begins anew when the search goes on."""
        error, result = event.error, event.result
        if error is None and result is not None and result.stop_reason == "total_steps":
            if result.evaluations:
                returns = [(found.env_steps, found.return_mean) for found in result.evaluations]
                self._end_trial(trial, "complete", value_of(returns, self._total_steps), seen)
                return
            what = f"No evaluation of trial {trial.number} has succeeded, so that it has no value."
            error = EnvironmentFailed(what, facts={"run": task.folder}, fix="play it: asyncrl eval RUN")
        if pool.stop_reason is not None:
            return
        if error is None or isinstance(error, StoppedWhileStarting):  # by `asyncrl stop` or a signal
            self._end_trial(trial, "pruned", max(seen, default=None), seen)
            return
        diverged = isinstance(error, TrainingDiverged)
        if trial.number == 0 and not diverged:
            raise error
        self._end_trial(trial, "failed", None, seen)
        self._failures += not diverged
        if self._failures >= FAILURES_IN_A_ROW:
            raise error

    def _end_trial(self, trial: Trial, state: Any, value: float | None, seen: Sequence[float]) -> None:
        ended = dataclasses.replace(trial, state=state, value=value, evaluations=tuple(seen))
        self.trials[trial.number] = ended
        self._study.end(trial.number, state, value)
        if state != "failed":
            self._failures = 0

    def early_end(self, task: Task) -> str:
        """`pruned` for the run of a trial that was pruned, else ""."""
        trial = None if task.trial is None else self.trials[task.trial.number]
        return "pruned" if trial is not None and trial.state == "pruned" else ""

    # --- finalists and the comparison --------------------------------------------------------------------------------

    def complete(self) -> list[Trial]:
        """Complete trials, the best first; of equals the earlier one."""
        found = [
            trial for trial in self.trials.values() if trial.state == "complete" and trial.value is not None
        ]
        return sorted(found, key=lambda trial: (-float(trial.value or 0.0), trial.number))

    def _finalists(self) -> list[Task]:
        """Runs of the finalists that are not there yet."""
        seed = self._job.config.seed
        tasks = []
        for trial in self.complete()[:FINALISTS]:
            for further in range(seed + 1, seed + 1 + CHOOSING_SEEDS):
                folder = self._finalist_folder(trial, further)
                label = f"finalist {trial.number}, seed {further}"
                tasks.append(Task(label, folder, self._job_of(trial.options, further, folder)))
        return self._missing(tasks)

    def _finalist_folder(self, trial: Trial, seed: int) -> Path:
        return self.folder / f"finalist-{trial.number:03}-s{seed}"

    def chosen(self) -> Trial:
        """The finalist with the best mean value over its seeds, among those of which the fewest runs failed.

        Raises `ConfigurationError` if no trial is complete.
        """
        finalists = self.complete()[:FINALISTS]
        if not finalists:
            raise ConfigurationError(
                "no trial is complete, so that there is nothing to choose",
                facts={"trials": len(self.trials)},
                fix="give the search more --trials or --max-seconds, or trials of fewer --steps",
            )
        values = {trial.number: self._values(trial) for trial in finalists}
        return max(
            finalists, key=lambda trial: (len(values[trial.number]), float(np.mean(values[trial.number])))
        )

    def _values(self, trial: Trial) -> list[float]:
        """Values of a complete trial and of its further runs that have not failed."""
        assert trial.value is not None
        seed = self._job.config.seed
        folders = [
            self._finalist_folder(trial, further) for further in range(seed + 1, seed + 1 + CHOOSING_SEEDS)
        ]
        return [trial.value, *(self._finals[folder][0] for folder in folders if folder in self._finals)]

    def _held_out(self) -> list[Task]:
        """Runs of the comparison that are not there yet; none if no trial is better than the record."""
        best = self.chosen()
        return self._missing(
            [
                Task(f"held-out {name}, seed {seed}", folder, self._job_of(options, seed, folder))
                for seed in self.held_out_seeds()
                for name, options in (("best", best.options), ("default", {}))
                for folder in [self._held_out_folder(name, best, seed)]
                if best.number
            ]
        )

    def _held_out_folder(self, name: str, best: Trial, seed: int) -> Path:
        """Directory of a run of the comparison; that of the chosen options has the number of their trial."""
        of = f"best-{best.number:03}" if name == "best" else name
        return self.folder / "held-out" / f"{of}-s{seed}"

    def held_out_seeds(self) -> tuple[int, ...]:
        """Seeds of the comparison."""
        first = self._job.config.seed + FIRST_HELD_OUT
        return tuple(range(first, first + self._held_out_seeds))

    def _missing(self, tasks: Sequence[Task]) -> list[Task]:
        """Tasks whose run has not ended in an earlier search; the returns of the others are read."""
        missing = []
        for task in tasks:
            kept = KeptRun(task.folder)
            ended = kept.pid is None and kept.summary.get("state") == "finished"
            if ended and kept.final is not None and kept.evaluations:
                self._finals[task.folder] = value_of(kept.evaluations, self._total_steps), kept.final
            else:
                missing.append(task)
        return missing

    def _take_run(self, pool: RunPool, task: Task, event: RunEvent) -> None:
        if not isinstance(event, Ended):
            return
        result = event.result
        if isinstance(event.error, CALLERS_ERRORS):
            raise event.error
        if (
            event.error is None
            and result is not None
            and result.stop_reason == "total_steps"
            and result.evaluation
        ):
            returns = [(found.env_steps, found.return_mean) for found in result.evaluations]
            self._finals[task.folder] = value_of(returns, self._total_steps), result.evaluation.return_mean

    # --- the result --------------------------------------------------------------------------------------------------

    def _write_best(self) -> None:
        """Write the chosen options as a file for `--config`; without the trials' page, which is off by default."""
        best = self.chosen()
        made = self._job_of(best.options, self._job.config.seed, self.folder)
        head = f"# Trial {best.number} of {len(self.trials)} of a search; `asyncrl train --config` takes this file.\n"
        config = dataclasses.replace(made.config, http=TrainerConfig.http)
        files = option_files(config, made.algorithm, made.source, BEST)
        if FUNCTIONS not in files:  # the trial that was chosen before may have had a function
            (self.folder / FUNCTIONS).unlink(missing_ok=True)
        for name, data in files.items():
            self._write(name, f"the best options ({name})", head.encode() * (name == BEST) + data)

    def result(self) -> Searched:
        """Result of the search; writes `result.json`. Raises `ConfigurationError` without a complete trial."""
        best, seeds = self.chosen(), self.held_out_seeds()
        returns = {
            name: tuple(
                self._finals.get(self._held_out_folder(name, best, seed), (0.0, math.nan))[1]
                for seed in seeds
            )
            for name in ("best", "default")
        }
        held_out = HeldOut(seeds, **returns) if best.number and seeds else None
        algorithm = self._job_of(best.options, 0, self.folder).algorithm
        trials = tuple(self.trials[number] for number in sorted(self.trials))
        searched = Searched(algorithm, best.options, best.number, trials, held_out, self.folder / BEST)
        self._write(RESULT, "the result", json.dumps(searched.record(), indent=2).encode() + b"\n")
        return searched

    def _write(self, name: str, what: str, data: bytes) -> None:
        """Write a file of the search. Raises `ResourceError` or `ConfigurationError` that names `what`."""
        with error_of_file(what, self.folder / name):
            write_atomically(self.folder / name, [data])


def value_of(evaluations: Sequence[tuple[int, float]], total_steps: int) -> float:
    """Value of a run: mean return of the evaluations in the last `LAST_SHARE` of its steps, else of the last one."""
    last = [value for steps, value in evaluations if steps >= (1 - LAST_SHARE) * total_steps]
    return float(np.mean(last or [value for _, value in evaluations[-1:]]))


def _lock(folder: Path) -> int:
    """Lock a search's directory until the returned descriptor is closed."""
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise ConfigurationError(
            f"another search uses {folder}", fix="wait for its end, or name another directory: --run-dir DIR"
        ) from error
    return descriptor


def _clear(folder: Path) -> None:
    """Remove the directory of a run that was interrupted, which begins anew."""
    if KeptRun(folder).pid is not None:
        raise ConfigurationError(
            f"a run in progress uses {folder}", fix="stop it: `asyncrl ls` shows its process"
        )
    shutil.rmtree(folder, ignore_errors=True)
