"""`asyncrl tune`: search options of an algorithm, and compare the best with the given ones on new seeds."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from asyncrl.algorithms import ALGORITHMS
from asyncrl.algorithms.search_spaces import SearchSpace, load_space, read_space
from asyncrl.cli.flags import Parser, count, finite_number
from asyncrl.cli.interrupts import EXIT_CODE, Interrupts
from asyncrl.cli.output import print_error
from asyncrl.cli.run_name import runs_folder
from asyncrl.cli.train import parse_run
from asyncrl.cli.train_flags import add_jobs, add_run_flags, answer, reported_as_usage
from asyncrl.config import TrainerConfig
from asyncrl.errors import StoppedWhileStarting, describe_error
from asyncrl.protocols import Algorithm

if TYPE_CHECKING:
    from asyncrl.trainer.run_pool import Event
    from asyncrl.tuning.search import Search

SKIPPED = ("max_seconds", "target_return", "target_training_return", "init_from")
"""Options of a run without a flag here: trials have a fixed number of steps, and begin anew."""


@dataclass(frozen=True)
class TuneOptions:
    """A search.

    Attributes:
        config, algorithm: options of the run that is to be beaten.
        space: what is searched.
        folder: directory of the search.
        trials, held_out: numbers of trials, and of seeds of the comparison.
        max_seconds: seconds after which no further trial is begun, None for no limit.
        at_once: runs at a time, None for as many as there are cores for.
    """

    config: TrainerConfig
    algorithm: Algorithm
    space: SearchSpace
    folder: Path
    trials: int
    held_out: int
    max_seconds: float | None
    at_once: int | None


def make_parser(algorithms: Sequence[str] | None = None) -> Parser:
    """Flags of `asyncrl tune` with those of `algorithms` (names, None for all)."""
    names = list(ALGORITHMS) if algorithms is None else list(algorithms)
    parser = Parser(
        "tune ENV --algo ALGO --trials N [options]",
        "Search for better options of an algorithm than those that `asyncrl train` takes, and compare both on "
        "new seeds. The same command continues a search that was interrupted.",
        epilog="An option that is given, as --ppo.gamma 0.9, is not searched.",
        add_help=False,
        answer=lambda flag: answer(flag, names[0] if len(names) == 1 else None),
    )
    group = parser.add_argument_group("search")
    group.add_argument("--trials", type=count, default=50, metavar="N", help="Trials in all (50)")
    group.add_argument(
        "--max-seconds", type=finite_number, metavar="X", help="Begin no trial after this many seconds"
    )
    group.add_argument("--space", metavar="FILE", help="TOML file of the search space; see docs/search.md")
    at_least_0 = partial(count, least=0)
    group.add_argument(
        "--held-out",
        type=at_least_0,
        default=5,
        metavar="N",
        help="Seeds of the comparison; 0 makes none (5)",
    )
    add_jobs(group)
    add_run_flags(parser, names, skip=SKIPPED, seeds=False)
    return parser


def parse(arguments: Sequence[str]) -> TuneOptions:
    """Parse. Raises SystemExit with code 2 for a wrong flag, and `ConfigurationError` for a wrong file."""
    parsed, config, algorithm, names_folder = parse_run(arguments, make_parser)
    parser = make_parser([config.algo])
    if names_folder and config.run_dir is None:
        parser.error("argument --run-dir: must be a directory, as a search is kept, got none")
    record = ALGORITHMS[config.algo]
    file = parsed.space and Path(parsed.space).expanduser()
    space = read_space(file, record) if file else load_space(config.algo, record)
    given = {name.partition(".")[2] for name in vars(parsed) if name.startswith(f"{config.algo}.")}
    searched = {name: values for name, values in space.options.items() if name not in given}
    if not searched:
        parser.error("every option of the search space is given, so that there is nothing to search")
    return TuneOptions(
        _config_of_trials(parser, config, space, set(vars(parsed))),
        algorithm,
        SearchSpace(searched, space.total_steps),
        Path(config.run_dir) if config.run_dir else _folder(config.env, config.algo),
        parsed.trials,
        parsed.held_out,
        parsed.max_seconds,
        parsed.jobs,
    )


def _config_of_trials(
    parser: Parser, config: TrainerConfig, space: SearchSpace, given: set[str]
) -> TrainerConfig:
    from asyncrl.tuning.trial_options import config_of_trials

    if isinstance(config.http, int):
        parser.error("argument --http: must be auto or off, as one run takes the port")
    try:
        return config_of_trials(config, space, given)
    except ValueError as error:
        parser.error(f"argument --steps: {error}")


def _folder(env: str, algo: str) -> Path:
    """Directory of a search without `--run-dir`; it has no date, so that the same command goes on."""
    name = re.sub(r"[^A-Za-z0-9._]+", "-", env).strip("-.") or "env"
    return runs_folder() / f"tune-{name}-{algo}"


def run(options: TuneOptions) -> int:
    """Search and print the result; returns the exit code."""
    with Interrupts() as interrupts:
        from asyncrl.trainer.run_pool import runs_at_once
        from asyncrl.trainer.trainer import Trainer
        from asyncrl.tuning.search import Search

        try:
            trainer = Trainer.from_config(options.config, options.algorithm)
            with Search(
                options.folder,
                dataclasses.replace(trainer.job, config=options.config, algorithm=options.algorithm),
                options.space,
                trials=options.trials,
                at_once=runs_at_once(options.config, options.at_once),
                held_out_seeds=options.held_out,
                max_seconds=options.max_seconds,
            ) as search:
                return _search(search, options, interrupts)
        except ValueError as error:
            return reported_as_usage(error, "tune", options.algorithm.name)


def _search(search: Search, options: TuneOptions, interrupts: Interrupts) -> int:
    from asyncrl.cli.runs_shown import RunsShown
    from asyncrl.cli.seeds import pace
    from asyncrl.show.runs_view import RunRow
    from asyncrl.trainer.run_pool import RunPool, Warned

    config, failed = options.config, dict[str, BaseException]()
    what = f"tune {config.algo} {config.env}  {options.trials} trials of {config.total_steps:,} steps"

    def title() -> str:
        if not shown.live:
            return f"{what}, {pace(config, search.at_once)}"
        done, best = sum(t.state is not None for t in search.trials.values()), search.complete()[:1]
        return f"{what}, {done} done" + (
            f", best {best[0].value:.4g} (trial {best[0].number})" if best else ""
        )

    with RunPool() as pool, RunsShown(title, interrupts) as shown:
        interrupts.run = pool
        for task, event in search.run(pool):
            if task is not None and not isinstance(event, Warned):
                shown.rows.setdefault(event.key, RunRow(task.label))
                if (end := search.early_end(task)) and not shown.rows[event.key].end:
                    shown.rows[event.key] = RunRow(task.label, shown.rows[event.key].snapshot, end=end)
                if (error := _failure(event)) is not None:
                    failed[task.label] = error
            shown.take(event)
    for label, error in failed.items():
        print_error(f"{label}: {describe_error(error).splitlines()[0]}")
    if interrupts.count:
        print(f"stopped; the same command goes on with {options.folder}", flush=True)
        return EXIT_CODE
    found, folder = search.result(), shlex.quote(str(options.folder))
    print(found, flush=True)
    print(f"files         {folder}\nnext          asyncrl train --config {folder}/best.toml", flush=True)
    print(f"{'':<13} asyncrl plot {folder}\n{'':<13} asyncrl ui {folder}", flush=True)
    return 0


def _failure(event: Event) -> BaseException | None:
    """The error that ended a run, unless it was stopped while it started."""
    error: BaseException | None = getattr(event, "error", None)
    return None if isinstance(error, StoppedWhileStarting) else error
