"""Trials of a search in Optuna's storage, a SQLite file; the only door to Optuna.

Trial 0 has the options that are to be beaten. Trial n > 0 is drawn by a tree-structured Parzen estimator (Bergstra et
al. 2011) from the trials that it knows, those up to n - k where k trials run at a time, with a generator of its own. So
the options of every trial follow from the seed and the returns before it: neither the order in which trials end nor an
interruption changes them.
"""

from __future__ import annotations

import contextlib
import functools
import sqlite3
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from asyncrl.algorithms.search_spaces import Choices, Interval, SearchSpace, plain_value
from asyncrl.errors import ConfigurationError, ResourceError

FILE = "study.db"
NAME = "asyncrl"
RANDOM_TRIALS = 10
"""Trials that are drawn evenly from the space before the estimator draws."""
OUTCOME = "outcome"

State = Literal["complete", "pruned", "failed"]


@dataclass(frozen=True)
class Trial:
    """A trial of the study.

    Attributes:
        number: from 0.
        options: options of the algorithm that differ from the record that is searched from.
        state: how it ended, None before.
        value: its return, None without one.
        evaluations: mean return of every evaluation, in the order of training.
    """

    number: int
    options: Mapping[str, Any]
    state: State | None = None
    value: float | None = None
    evaluations: tuple[float, ...] = ()


def _optuna() -> ModuleType:
    try:
        import optuna
    except ImportError as error:
        raise ConfigurationError(
            "the search needs Optuna, which is not installed", fix='pip install "asyncrl[tune]"'
        ) from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


class Study:
    """Trials in `folder`; a new study, or the one that is there.

    Args:
        folder: the search's directory.
        space: what is searched.
        base: values of the searched options that trial 0 has.
        seed: seed of the draws.

    Raises:
        ConfigurationError: Optuna is not installed, or the file is no study.
        ResourceError: SQLite cannot read or write the file (the disk is full); so do all methods.
    """

    def __init__(self, folder: Path, space: SearchSpace, base: Mapping[str, Any], seed: int) -> None:
        self._optuna, self._seed, self._base = _optuna(), seed, base
        self._distributions = {name: self._distribution(values) for name, values in space.options.items()}
        self._space = space
        self._ids: list[int] = []  # of the trials in the storage, by number: reading all of them takes long
        self._file = folder / FILE
        try:
            with _errors_of_sqlite(self._file):
                self._study = self._optuna.create_study(
                    storage=_storage(self._optuna, folder),
                    study_name=NAME,
                    direction="maximize",
                    load_if_exists=True,
                )
                self.trials()  # a damaged file may open and fail here
        except ResourceError:
            raise
        except Exception as error:  # SQLAlchemy's many
            raise ConfigurationError(
                f"the study cannot be opened: {_words_of_sqlite(error) or type(error).__name__}",
                facts={"file": folder / FILE},
                fix="delete it to begin the search anew, or name another directory: --run-dir DIR",
            ) from error

    def _distribution(self, values: Interval | Choices) -> Any:
        of = self._optuna.distributions
        if isinstance(values, Choices):
            return of.CategoricalDistribution(values.values)
        if values.whole:
            return of.IntDistribution(int(values.low), int(values.high), log=values.log)
        return of.FloatDistribution(values.low, values.high, log=values.log)

    def trials(self) -> list[Trial]:
        """All trials, by number."""
        return [_read(trial) for trial in self._begun()]

    def ask(self, at_once: int) -> Trial:
        """Draw the next trial, of which `at_once` run at a time; those that it knows must have ended."""
        with _errors_of_sqlite(self._file):
            return self._ask(at_once)

    def _ask(self, at_once: int) -> Trial:
        begun = self._begun()
        number = len(begun)
        for trial in begun[: max(0, number - at_once + 1)]:
            if trial.state == self._optuna.trial.TrialState.RUNNING:
                self._tell(trial)
        # In one transaction, with all its options: `Study.ask` writes them one by one, and a kill would leave some.
        self._study.add_trial(self._drawn(number) if number else self._of_base())
        return self.trials()[number]

    def _of_base(self) -> Any:
        """Trial 0, without the options whose value the space does not have."""
        kept = [name for name, values in self._space.options.items() if self._base[name] in values]
        return self._optuna.trial.create_trial(
            state=self._optuna.trial.TrialState.RUNNING,
            params={name: plain_value(self._base[name]) for name in kept},
            distributions={name: self._distributions[name] for name in kept},
        )

    def _drawn(self, number: int) -> Any:
        """Trial `number` with the options that the estimator draws, in a copy of the study in memory."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of arguments that are experimental in Optuna
            sampler = self._optuna.samplers.TPESampler(
                n_startup_trials=RANDOM_TRIALS,
                multivariate=True,
                group=True,
                constant_liar=True,
                seed=self._seed_of(number),
            )
            copy = self._optuna.create_study(direction="maximize", sampler=sampler)
            copy.add_trials(self._begun())
            copy.ask(fixed_distributions=self._distributions)
        return copy.get_trials(deepcopy=False)[number]

    def _begun(self) -> list[Any]:
        begun: list[Any] = self._study.get_trials(deepcopy=False)
        self._ids = [trial._trial_id for trial in begun]
        return begun

    def _seed_of(self, number: int) -> int:
        import numpy as np

        return int(np.random.SeedSequence(self._seed, spawn_key=(number,)).generate_state(1)[0])

    def report(self, number: int, index: int, value: float) -> None:
        """Keep the return of a trial's evaluation `index`, from 0; also that of a trial that begins again."""
        with _errors_of_sqlite(self._file):
            self._study._storage.set_trial_intermediate_value(self._id(number), index, value)

    def end(self, number: int, state: State, value: float | None) -> None:
        """Keep how a trial ended; the estimator learns of it when it draws a trial that knows this one."""
        outcome = {"state": state, "value": value}
        with _errors_of_sqlite(self._file):
            self._study._storage.set_trial_user_attr(self._id(number), OUTCOME, outcome)

    def _id(self, number: int) -> int:
        if number >= len(self._ids):
            self._begun()
        return self._ids[number]

    def _tell(self, trial: Any) -> None:
        """Tell the estimator how a trial ended; one that failed counts as pruned."""
        outcome = trial.user_attrs[OUTCOME]
        if outcome["state"] == "complete":
            self._study.tell(trial.number, outcome["value"])
        else:
            self._study.tell(trial.number, state=self._optuna.trial.TrialState.PRUNED)


def kept_trials(folder: Path) -> list[Trial]:
    """Trials of the search in `folder`, by number, also while it goes on.

    Raises:
        ConfigurationError: Optuna is not installed, or there is no study.
    """
    optuna = _optuna()
    try:
        study = optuna.load_study(study_name=NAME, storage=_storage(optuna, folder))
        return [_read(trial) for trial in study.get_trials(deepcopy=False)]
    except Exception as error:  # SQLAlchemy's many
        raise ConfigurationError(
            f"the study cannot be read: {type(error).__name__}",
            facts={"file": folder / FILE},
            fix="name the directory of a search",
        ) from error


def is_begun(folder: Path) -> bool:
    """Whether a trial of the search in `folder` has ended or been evaluated. Raises as `kept_trials` does."""
    if not (folder / FILE).exists():
        return False
    return any(trial.state is not None or trial.evaluations for trial in kept_trials(folder))


@contextlib.contextmanager
def _errors_of_sqlite(file: Path) -> Iterator[None]:
    """Turn an error of a full disk or a file that may not be written into `ResourceError`; the study is left alone."""
    try:
        yield
    except Exception as error:
        found = _cause_in_sqlite(error)
        if not isinstance(found, sqlite3.OperationalError):
            raise
        raise ResourceError(
            f"the study cannot be written: {found}",
            facts={"file": file},
            fix="make space, or the file writable: the same command then goes on with the search",
        ) from error


def _cause_in_sqlite(error: BaseException | None) -> sqlite3.Error | None:
    """SQLite's error behind one of SQLAlchemy or Optuna."""
    while error is not None and not isinstance(error, sqlite3.Error):
        error = error.__cause__ or error.__context__
    return error


def _words_of_sqlite(error: BaseException) -> str:
    found = _cause_in_sqlite(error)
    return "" if found is None else str(found)


def _storage(optuna: ModuleType, folder: Path) -> Any:
    """Optuna's storage of the study, which has the file open during its transactions only.

    SQLite gets the path itself: in an address `?` and `%` have a meaning.
    """
    from sqlalchemy.pool import NullPool  # of Optuna's requirements

    connect = functools.partial(sqlite3.connect, (folder / FILE).absolute(), check_same_thread=False)
    kwargs = {"creator": connect, "poolclass": NullPool}
    return optuna.storages.RDBStorage(f"sqlite:///{FILE}", engine_kwargs=kwargs)


def _read(trial: Any) -> Trial:
    outcome = trial.user_attrs.get(OUTCOME, {})
    returns = tuple(value for _, value in sorted(trial.intermediate_values.items()))
    own = dict(trial.params) if trial.number else {}
    return Trial(trial.number, own, outcome.get("state"), outcome.get("value"), returns)
