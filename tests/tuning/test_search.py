"""The search, over runs that are arithmetic: draws, pruning, choice, and that an interruption changes nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sqlite3
import tomllib
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from portable_policies import make_network

pytest.importorskip("optuna")

from asyncrl.algorithms import ALGORITHMS
from asyncrl.algorithms.search_spaces import Choices, Interval, SearchSpace
from asyncrl.cli.train import make_parser, parse_run
from asyncrl.config import TrainerConfig
from asyncrl.envs.source import EnvSource
from asyncrl.errors import (
    ConfigurationError,
    EnvironmentFailed,
    EnvironmentRaised,
    ResourceError,
    StoppedWhileStarting,
    TrainingDiverged,
)
from asyncrl.run.job import Job
from asyncrl.storage.config_file import read_config
from asyncrl.trainer.run_pool import Ended, Event, Progressed
from asyncrl.tuning.search import FINALISTS, Search, value_of
from asyncrl.tuning.study import RANDOM_TRIALS, Study, kept_trials
from asyncrl.tuning.trial_options import config_of_trials

STEPS = 100
SPACE = SearchSpace(
    {
        "gamma": Interval(0.5, 0.99),
        "batch_size": Interval(16, 256, log=True, whole=True),
        "hidden_sizes": Choices(("64,64", "32,32")),
    }
)


def quality(job: Job) -> float:
    """Return of a run in the end: the best at gamma 0.8 and 64 units; a seed adds a little."""
    algorithm: Any = job.algorithm
    return (
        -100 * abs(algorithm.gamma - 0.8)
        - 5 * (algorithm.hidden_sizes == (32, 32))
        + job.config.seed % 7 * 0.1
    )


class Runs:
    """Stands for a `RunPool`: runs with ten evaluations each, whose events come in an order that the test chooses."""

    def __init__(self, newest_first: bool = False, errors: Mapping[str, BaseException] | None = None) -> None:
        self.stop_reason: str | None = None
        self.began: list[str] = []
        self.evaluated: dict[str, int] = {}
        self.most = 0
        self._events: dict[int, deque[Event]] = {}
        self._newest_first, self._errors = newest_first, errors or {}
        self._names: dict[int, str] = {}
        self._files: dict[int, tuple[Path, list[tuple[int, float]]]] = {}

    def begin(self, key: int, job: Job) -> None:
        folder = Path(str(job.config.run_dir))
        folder.mkdir(parents=True)
        name = folder.name
        self.began.append(name)
        self._names[key] = name
        returns = [(STEPS * n // 10, quality(job) - (10 - n)) for n in range(1, 11)]
        evaluations = tuple(SimpleNamespace(env_steps=s, return_mean=r) for s, r in returns)
        events: list[Any] = [
            Progressed(key, SimpleNamespace(evaluations=evaluations[:n])) for n in range(1, 11)
        ]
        if name in self._errors:
            events[3:] = [Ended(key, None, self._errors[name])]
        else:
            events.append(self._end(key, evaluations, "total_steps"))
            self._files[key] = folder, returns
        self._events[key] = deque(events)
        self.most = max(self.most, len(self._events))

    @staticmethod
    def _end(key: int, evaluations: Any, reason: str) -> Ended:
        state = "finished" if reason == "total_steps" else reason
        made: Any = SimpleNamespace(
            evaluations=evaluations,
            evaluation=evaluations[-1] if evaluations else None,
            stop_reason=reason,
            summary={"state": state},
        )
        return Ended(key, made, None)

    @staticmethod
    def _keep(folder: Path, returns: list[tuple[int, float]]) -> None:
        lines = [
            {"eval/mean_reward": value, "eval/total_timesteps": steps, "time/total_timesteps": steps}
            for steps, value in returns
        ]
        (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        summary = {"state": "finished", "eval": {"return_mean": returns[-1][1]}}
        (folder / "summary.json").write_text(json.dumps(summary))

    def wait(self) -> Event:
        key = max(self._events) if self._newest_first else min(self._events)
        event = self._events[key].popleft()
        if isinstance(event, Progressed):
            self.evaluated[self._names[key]] = len(event.snapshot.evaluations)
        else:
            del self._events[key]
            if event.result is not None and event.result.stop_reason == "total_steps":
                self._keep(*self._files[key])
        return event

    def stop_run(self, key: int, reason: str = "stopped") -> None:
        seen = self.evaluated.get(self._names[key], 0)
        evaluations = tuple(SimpleNamespace(env_steps=STEPS * n, return_mean=0.0) for n in range(seen))
        self._events[key] = deque([self._end(key, evaluations, reason)])

    def stop(self, reason: str) -> None:
        self.stop_reason = reason
        for key in list(self._events):
            self.stop_run(key, reason)


def job(**options: Any) -> Job:
    config = config_of_trials(TrainerConfig(env="CartPole-v1", algo="dqn", total_steps=STEPS), SPACE, set())
    algorithm = ALGORITHMS["dqn"](gamma=0.6, batch_size=64, **options)
    return Job(config, algorithm, EnvSource.from_user("CartPole-v1"))


def search(folder: Path, trials: int = 20, at_once: int = 2, **options: Any) -> Search:
    return Search(folder, job(), SPACE, trials=trials, at_once=at_once, **{"held_out_seeds": 3, **options})


def searched(folder: Path, pool: Runs | None = None, **options: Any) -> Any:
    with search(folder, **options) as made:
        for _ in made.run(pool or Runs()):  # type: ignore[arg-type]
            pass
        return made.result()


def drawn(found: Any) -> list[Any]:
    return [(t.number, dict(t.options), t.state, t.value) for t in found.trials]


@dataclasses.dataclass(frozen=True)
class Whole:
    """A search that ran without an interruption, at which several tests look."""

    folder: Path
    pool: Runs
    found: Any


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    folder, pool = tmp_path_factory.mktemp("whole"), Runs()
    return Whole(folder, pool, searched(folder, pool))


def test_it_finds_what_is_better_and_compares_it_on_new_seeds(whole: Whole) -> None:
    pool, found = whole.pool, whole.found
    assert found.trial > 0 and abs(found.algorithm.gamma - 0.8) < 0.1
    assert found.algorithm.hidden_sizes == (64, 64) and type(found.algorithm.batch_size) is int
    assert found.held_out.seeds == (1000, 1001, 1002)
    expected = [
        quality(Job(job().config, found.algorithm, None)) + seed % 7 * 0.1 for seed in (1000, 1001, 1002)
    ]
    assert found.held_out.best == pytest.approx(expected)
    assert found.held_out.default == pytest.approx([-20 + seed % 7 * 0.1 for seed in (1000, 1001, 1002)])
    assert found.held_out.difference.low > 0 and "(95 % bootstrap): better" in repr(found)
    one = dataclasses.replace(found.held_out, seeds=(1000,), best=(1.0,), default=(2.0,))
    assert "-1.0: one seed has no interval" in repr(dataclasses.replace(found, held_out=one))
    assert pool.most == 2, "as many at a time as asked for"
    assert pool.began[0] == "trial-000" and pool.began[-6:] == [
        f"{name}-s{seed}" for seed in (1000, 1001, 1002) for name in (f"best-{found.trial:03}", "default")
    ]
    assert len([name for name in pool.began if name.startswith("finalist")]) == 2 * FINALISTS


def test_trial_0_has_the_options_to_beat_and_the_first_trials_are_drawn_evenly(tmp_path: Path) -> None:
    found = searched(tmp_path, trials=1)
    assert (found.trial, found.held_out, dict(found.options)) == (0, None, {})
    assert found.algorithm == job().algorithm
    assert "none is better than the default" in repr(found)
    assert "no options apart" not in repr(found), "there is one value, of one trial"
    more = searched(tmp_path / "more", trials=RANDOM_TRIALS)
    assert "no options apart" not in repr(more)
    gammas = [t.options["gamma"] for t in more.trials[1:]]
    assert len(set(gammas)) == RANDOM_TRIALS - 1 and max(gammas) - min(gammas) > 0.2


def test_a_value_that_is_the_same_in_all_trials_is_told(whole: Whole) -> None:
    """As in a game against itself, whose returns sum to 0."""
    trials = tuple(
        dataclasses.replace(trial, value=0.0 if trial.state == "complete" else trial.value)
        for trial in whole.found.trials
    )
    told = repr(dataclasses.replace(whole.found, trials=trials)).splitlines()
    assert told[1] == "value         0 in all complete trials: it tells no options apart"


def test_the_order_in_which_runs_end_changes_nothing(whole: Whole, tmp_path: Path) -> None:
    first, second = whole.found, searched(tmp_path, Runs(newest_first=True))
    assert drawn(first) == drawn(second)
    assert first.trial == second.trial and first.held_out == second.held_out


def test_an_interrupted_search_goes_on_as_if_it_had_not_been(whole: Whole, tmp_path: Path) -> None:
    expected = whole.found
    for stops_after in (3, 40, 90, 130):
        pool = Runs()
        with search(tmp_path / "parts") as made:
            for count, _ in enumerate(made.run(pool)):  # type: ignore[arg-type]
                if count == stops_after:
                    pool.stop("interrupted")
    parts = searched(tmp_path / "parts")
    assert drawn(parts) == drawn(expected)
    assert (parts.trial, parts.held_out) == (expected.trial, expected.held_out)
    assert (tmp_path / "parts" / "best.toml").read_text() == (whole.folder / "best.toml").read_text()
    again = Runs()
    assert searched(tmp_path / "parts", again).held_out == expected.held_out and again.began == []


def test_a_search_that_is_killed_in_a_draw_has_all_options_of_the_trial_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Optuna writes the options of a trial one by one, and a trial with some of them ran with defaults for the rest."""
    from sqlalchemy.orm import Session

    class Killed(BaseException):
        pass

    def study(folder: Path) -> Study:
        folder.mkdir(exist_ok=True)
        return Study(folder, SPACE, {"gamma": 0.6, "batch_size": 64, "hidden_sizes": (64, 64)}, seed=0)

    first = study(tmp_path / "whole")
    first.end(first.ask(1).number, "complete", 1.0)
    before, commit, left = (tmp_path / "whole" / "study.db").read_bytes(), Session.commit, 0

    def killed(session: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Killed
        commit(session)

    (tmp_path / "again").mkdir()
    expected = first.ask(1).options
    assert expected.keys() == SPACE.options.keys()
    kills = 0
    while left <= 0:  # the last one had commits to spare
        (tmp_path / "again" / "study.db").write_bytes(before)
        again = study(tmp_path / "again")
        left = kills = kills + 1
        with monkeypatch.context() as patch, contextlib.suppress(Killed):
            patch.setattr(Session, "commit", killed)
            again.ask(1)
        begun = study(tmp_path / "again").trials()[1:]
        assert [trial.options for trial in begun] in ([], [expected]), f"killed at commit {kills}"
    assert kills > 3


def test_more_trials_that_change_the_choice_are_compared_anew(whole: Whole, tmp_path: Path) -> None:
    first = searched(tmp_path, trials=3, held_out_seeds=2)
    more = Runs()
    found = searched(tmp_path, more)
    assert first.trial not in (0, found.trial) and found.held_out == whole.found.held_out
    compared = [name for name in more.began if name.startswith(("best", "default"))]
    assert compared == [f"best-{found.trial:03}-s{seed}" for seed in (1000, 1001, 1002)] + ["default-s1002"]


def test_a_trial_that_falls_behind_the_trials_it_knows_is_pruned(whole: Whole) -> None:
    pool, found = whole.pool, whole.found
    pruned = [t for t in found.trials if t.state == "pruned"]
    assert len(pruned) > 3, "some are worse than the median"
    for trial in pruned:
        assert pool.evaluated[f"trial-{trial.number:03}"] == len(trial.evaluations) < 10
        assert len(trial.evaluations) >= 3 and trial.value == max(trial.evaluations)
        known = [t for t in found.trials[: trial.number - 1] if t.state == "complete"]
        at_that_time = sorted(max(t.evaluations[: len(trial.evaluations)]) for t in known)
        assert len(known) >= 4 and max(trial.evaluations) < at_that_time[(len(known)) // 2]
    tags = json.loads((whole.folder / f"trial-{pruned[0].number:03}" / "labels.json").read_text())
    assert tags == {"tags": ["trial", "pruned"]}


def test_a_finalist_whose_further_runs_fail_is_not_chosen(whole: Whole, tmp_path: Path) -> None:
    """Its first value alone is the lucky one, which the further runs are there to correct."""
    best = whole.found.trial
    errors = {f"finalist-{best:03}-s{seed}": TrainingDiverged("NaN") for seed in (1, 2)}
    found = searched(tmp_path, Runs(errors=errors))
    assert drawn(found) == drawn(whole.found) and found.trial != best


def test_seconds_only_limit_the_number_of_trials(tmp_path: Path) -> None:
    found = searched(tmp_path, max_seconds=1e-9, trials=5)
    assert [(trial.number, trial.state) for trial in found.trials] == [(0, "complete")]


def test_best_is_a_file_for_config(whole: Whole) -> None:
    file = whole.folder / "best.toml"
    tables = read_config(file, ALGORITHMS)
    assert ALGORITHMS["dqn"](**tables["dqn"]) == whole.found.algorithm
    assert tables["trainer"]["env"] == "CartPole-v1" and tables["trainer"]["total_steps"] == STEPS
    assert "run_dir" not in tables["trainer"]
    assert tables["trainer"]["http"] == "auto", "it is off for the trials"
    assert "# Trial" in file.read_text().splitlines()[0]
    assert tomllib.loads(file.read_text())["dqn"]["hidden_sizes"] == [64, 64]


def test_a_factory_is_kept_beside_best(tmp_path: Path) -> None:
    own = Job(job().config, job().algorithm, EnvSource.from_user(lambda: None))
    with Search(tmp_path, own, SPACE, trials=2, at_once=1, held_out_seeds=0) as made:
        for _ in made.run(Runs()):  # type: ignore[arg-type]
            pass
    tables = read_config(tmp_path / "best.toml", ALGORITHMS)
    assert Path(tables["trainer"]["env_file"]).read_bytes() == own.source.payload


def falls(progress: float) -> float:
    return 1e-3 * (1.0 - progress)


def test_functions_and_the_environment_of_the_evaluations_are_kept_beside_best(tmp_path: Path) -> None:
    """`train --config` trained another network at another rate, and found no environment to evaluate in."""
    config = dataclasses.replace(job().config, eval_env="another")
    source = EnvSource.from_user("CartPole-v1").evaluated_in(EnvSource.from_user(lambda: None), {}, {})
    own = Job(config, ALGORITHMS["dqn"](gamma=0.8, learning_rate=falls, network=make_network), source)
    with Search(tmp_path, own, SPACE, trials=1, at_once=1, held_out_seeds=0) as made:
        for _ in made.run(Runs()):  # type: ignore[arg-type]
            pass
    file = str(tmp_path / "best.toml")
    _, found, algorithm, _ = parse_run(["CartPole-v1", "--algo", "dqn", "--config", file], make_parser)
    assert source.evaluated is not None and found.eval_env_file is not None
    assert Path(found.eval_env_file).read_bytes() == source.evaluated.payload
    record: Any = algorithm
    assert record.learning_rate(0.5) == falls(0.5)
    assert record.network(3, 2)[0].out_features == make_network(3, 2)[0].out_features


def test_a_run_that_diverges_or_fails_is_a_trial_without_a_value(tmp_path: Path) -> None:
    errors = {
        "trial-002": TrainingDiverged("NaN"),
        "trial-004": EnvironmentRaised("it raised"),
        "best-001-s1001": EnvironmentRaised("it raised"),
    }
    found = searched(tmp_path, Runs(errors=errors), trials=8)
    assert [(t.number, t.value) for t in found.trials if t.state == "failed"] == [(2, None), (4, None)]
    assert found.trial == 1 and found.held_out.best[1] != found.held_out.best[1], "NaN"
    assert (
        "failed" in repr(found)
        and json.loads((tmp_path / "result.json").read_text())["held_out"]["best"][1] is None
    )


def test_a_run_whose_evaluations_have_all_failed_is_a_failed_trial(tmp_path: Path) -> None:
    class WithoutOne(Runs):
        def wait(self) -> Event:
            event = super().wait()
            if self.began[-1] != "trial-000" and isinstance(event, Ended) and event.result is not None:
                event.result.evaluations = ()  # type: ignore[misc]
            return event

    with pytest.raises(EnvironmentFailed, match="No evaluation of trial 3 has succeeded"):
        searched(tmp_path, WithoutOne(), at_once=1)


def test_a_failed_run_of_the_options_to_beat_ends_the_search_and_runs_again(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentRaised):
        searched(tmp_path, Runs(errors={"trial-000": EnvironmentRaised("it raised")}))
    assert searched(tmp_path, trials=1).trials[0].state == "complete"


def test_several_failures_in_a_row_end_the_search(tmp_path: Path) -> None:
    errors = {f"trial-00{n}": EnvironmentRaised(f"number {n}") for n in range(1, 9)}
    pool = Runs(errors=errors)
    with pytest.raises(EnvironmentRaised, match="number 3"):
        searched(tmp_path, pool, at_once=1)
    assert pool.began == ["trial-000", "trial-001", "trial-002", "trial-003"]


def test_failures_with_pruned_trials_between_them_do_not_end_the_search(tmp_path: Path) -> None:
    class FailedOrPruned(Runs):
        """From trial 6 on every second one fails, and the others fall behind."""

        def begin(self, key: int, job: Job) -> None:
            kind, number, *_ = Path(str(job.config.run_dir)).name.split("-")
            if kind == "trial" and int(number) >= 6:
                gamma = 0.8 if int(number) % 2 else 0.5
                job = dataclasses.replace(
                    job, algorithm=ALGORITHMS["dqn"](gamma=gamma, hidden_sizes=(64, 64))
                )
            super().begin(key, job)

    pool = FailedOrPruned(errors={f"trial-{n:03}": EnvironmentRaised(f"number {n}") for n in range(7, 15, 2)})
    found = searched(tmp_path, pool, trials=14, at_once=1)
    assert [t.state for t in found.trials[6:]] == ["pruned", "failed"] * 4


def test_a_run_that_is_stopped_while_it_starts_counts_like_one_that_is_stopped_later(tmp_path: Path) -> None:
    class Stopped(Runs):
        """Trials 0 and 2 are stopped after three evaluations, 1 and 3 before they have begun."""

        def begin(self, key: int, job: Job) -> None:
            super().begin(key, job)
            name = Path(str(job.config.run_dir)).name
            if name in ("trial-001", "trial-003"):
                self._events[key] = deque([Ended(key, None, StoppedWhileStarting("it was stopped"))])
            elif name in ("trial-000", "trial-002"):
                events = list(self._events[key])[:3]
                self._events[key] = deque([*events, self._end(key, (), "interrupted")])

    found = searched(tmp_path, Stopped(), trials=6, at_once=1)
    assert [t.state for t in found.trials] == ["pruned"] * 4 + ["complete"] * 2
    assert [len(t.evaluations) for t in found.trials[:4]] == [3, 0, 3, 0]
    assert [t.state for t in searched(tmp_path, trials=6).trials] == [t.state for t in found.trials]


def test_options_that_do_not_fit_together_are_a_failed_trial(tmp_path: Path) -> None:
    space = SearchSpace({"discipline": Choices(("lockstep",)), "samples_per_insert": Choices(("none", 4.0))})
    with Search(tmp_path, job(), space, trials=12, at_once=1, held_out_seeds=0) as made:
        for _ in made.run(Runs()):  # type: ignore[arg-type]
            pass
        states = {(t.options.get("samples_per_insert"), t.state) for t in made.trials.values()}
    assert states == {(None, "complete"), ("none", "failed"), (4.0, "complete")}


def test_a_directory_of_another_search_is_refused(tmp_path: Path) -> None:
    searched(tmp_path, trials=1)
    other = SearchSpace({**SPACE.options, "gamma": Interval(0.5, 0.9)})
    with pytest.raises(ConfigurationError, match="holds a search of other options") as refused:
        Search(tmp_path, job(), other, trials=1, at_once=1)
    assert refused.value.facts["different"] == "space.gamma"
    with pytest.raises(ConfigurationError, match="holds a search of other options") as refused:
        Search(tmp_path, job(n_step=5), SPACE, trials=1, at_once=1)
    assert refused.value.facts["different"] == "dqn.n_step"


def test_a_search_of_which_nothing_is_known_gives_way_to_one_of_other_options(tmp_path: Path) -> None:
    failing = Runs()
    failing.wait = lambda: Ended(1, None, ConfigurationError("a wrong option"))  # type: ignore[method-assign]
    with (
        Search(tmp_path, job(double=False), SPACE, trials=2, at_once=1) as made,
        pytest.raises(ConfigurationError, match="a wrong option"),
    ):
        list(made.run(failing))  # type: ignore[arg-type]
    found = searched(tmp_path, trials=2, at_once=1)
    assert [trial.state for trial in found.trials] == ["complete"] * 2 and found.algorithm.double
    with pytest.raises(ConfigurationError, match="holds a search of other options"):
        Search(tmp_path, job(double=False), SPACE, trials=2, at_once=1)


def test_a_directory_in_use_is_refused_and_released(tmp_path: Path) -> None:
    with search(tmp_path), pytest.raises(ConfigurationError, match="another search uses"):
        search(tmp_path)
    search(tmp_path).close()


def test_the_study_is_open_only_while_it_is_read_or_written(tmp_path: Path) -> None:
    """Left to garbage collection, connections stayed, and Python 3.13 warns of each."""

    def opened() -> list[str]:
        links = [os.readlink(entry) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
        return [link for link in links if "study.db" in link]

    with search(tmp_path, trials=4) as made:
        for _ in made.run(Runs()):  # type: ignore[arg-type]
            assert not opened()
        assert kept_trials(tmp_path) and not opened()
    (tmp_path / "study.db").write_text("something else, long enough to be no database at all" * 50)
    with pytest.raises(ConfigurationError, match="the study cannot be opened"):
        search(tmp_path)
    assert not opened()


def test_a_file_that_is_no_study_is_told_of(tmp_path: Path) -> None:
    (tmp_path / "study.db").write_text("something else, long enough to be no database at all" * 50)
    with pytest.raises(ConfigurationError, match="the study cannot be opened: file is not a database"):
        search(tmp_path)


def test_a_study_that_opens_and_cannot_be_read_is_told_of(tmp_path: Path) -> None:
    searched(tmp_path, trials=2)
    with contextlib.closing(sqlite3.connect(tmp_path / "study.db")) as study, study:
        study.execute("UPDATE trial_params SET distribution_json = 'x'")
    with pytest.raises(ConfigurationError, match="the study cannot be opened: JSONDecodeError"):
        search(tmp_path)


@pytest.mark.parametrize("content", ["[]", "3", '{"dqn": 3}'])
def test_a_file_that_is_no_search_is_told_of(content: str, tmp_path: Path) -> None:
    (tmp_path / "search.json").write_text(content)
    with pytest.raises(ConfigurationError, match="the search cannot be read") as refused:
        search(tmp_path)
    assert refused.value.facts["file"] == tmp_path / "search.json"


def test_a_directory_may_have_the_characters_of_an_address(tmp_path: Path) -> None:
    folder = tmp_path / "n_step?=5%41#"
    searched(folder, trials=1)
    assert [path.name for path in tmp_path.iterdir()] == [folder.name] and (folder / "study.db").exists()
    assert len(kept_trials(folder)) == 1


def test_a_run_without_its_metrics_is_made_again(tmp_path: Path) -> None:
    expected, again = searched(tmp_path), Runs()
    folder = min(tmp_path.glob("finalist-*"))
    (folder / "metrics.jsonl").unlink()
    assert searched(tmp_path, again).held_out == expected.held_out and again.began == [folder.name]


def test_a_full_disk_ends_the_search_and_the_study_is_left_alone(tmp_path: Path) -> None:
    import sqlalchemy

    def full_from_now_on(study: Any) -> None:
        """Let SQLite keep the present number of pages, so that the file does not grow."""
        sqlalchemy.event.listen(
            study._study._storage._backend.engine,
            "connect",
            lambda connection, _: connection.execute("PRAGMA max_page_count = 1"),
        )

    with search(tmp_path, at_once=1) as made:
        events = made.run(Runs())  # type: ignore[arg-type]
        next(events)
        full_from_now_on(made._study)
        with pytest.raises(
            ResourceError, match="the study cannot be written: database or disk is full"
        ) as full:
            for _ in events:
                pass
        assert full.value.facts["file"] == tmp_path / "study.db" and "delete" not in str(full.value)
    assert searched(tmp_path).trials


def test_a_study_that_cannot_be_opened_for_a_full_disk_is_not_to_be_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import optuna

    def full(**options: Any) -> None:
        try:
            raise sqlite3.OperationalError("database or disk is full")
        except sqlite3.Error as error:
            raise RuntimeError("a wrapper") from error

    monkeypatch.setattr(optuna, "create_study", full)
    with pytest.raises(ResourceError, match="database or disk is full") as refused:
        search(tmp_path)
    assert "delete" not in str(refused.value)


def test_a_directory_of_a_run_or_of_folders_with_a_searchs_names_is_refused(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "latest").touch()
    with pytest.raises(ConfigurationError, match="holds a run: checkpoints/latest"):
        search(tmp_path)
    other = tmp_path / "other"
    (other / "trial-000").mkdir(parents=True)
    with pytest.raises(ConfigurationError, match="is no search, and holds trial-000"):
        search(other)
    assert [path.name for path in other.iterdir() if path.is_dir()] == ["trial-000"]


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="the search cannot be written: Not a directory"):
        search(tmp_path / "file" / "below")


@pytest.mark.parametrize(
    ("evaluations", "value"),
    [
        ([(50, 1.0), (80, 2.0), (90, 4.0), (100, 6.0)], 4.0),
        ([(50, 3.0)], 3.0),
        ([(79, 9.0), (100, 1.0)], 1.0),
    ],
)
def test_a_value_is_the_mean_of_the_last_fifth(evaluations: list[tuple[int, float]], value: float) -> None:
    assert value_of(evaluations, 100) == value


def test_trials_have_a_length_and_no_other_end() -> None:
    given = TrainerConfig(env="x", algo="dqn", target_return=3.0, max_seconds=5, eval_interval_steps=7)
    made = config_of_trials(given, SearchSpace({}, 1000), set())
    assert (made.total_steps, made.target_return, made.max_seconds) == (1000, None, None)
    assert (made.eval_interval_steps, made.http, made.target_eval_episodes) == (100, "off", 30)
    kept = config_of_trials(given, SearchSpace({}, 1000), {"eval_interval_steps", "http"})
    assert (kept.eval_interval_steps, kept.http) == (7, "auto")
    with pytest.raises(ValueError, match="total_steps must be given"):
        config_of_trials(given, SearchSpace({}), set())
