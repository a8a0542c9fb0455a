"""`asyncrl resume`: go on with a run in its directory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncrl.algorithms import ALGORITHMS
from asyncrl.cli.flags import Parser, add_flags, given_flags
from asyncrl.cli.interrupts import Interrupts
from asyncrl.cli.train_flags import reported_as_usage, sections
from asyncrl.config import TrainerConfig
from asyncrl.errors import ConfigurationError
from asyncrl.storage.config_file import read_trainer
from asyncrl.storage.resume_rules import FIXED

if TYPE_CHECKING:
    from asyncrl.actors.forkserver import ForkServer

SKIPPED = (*FIXED, "total_steps", "run_dir")
"""Options of a run without a flag here: those that must not change, and those with an argument of the command."""


@dataclass(frozen=True)
class ResumeOptions:
    """Arguments of `asyncrl resume`.

    Attributes:
        run: the run directory.
        algorithm: name of the run's algorithm, None if there is no such run.
        steps: total steps, or `+N` for N more; None leaves them unchanged.
        checkpoint: name of the checkpoint.
        restore_episodes: whether to continue the episodes in the checkpoint.
        changes: changed options of the run and of its algorithm.
    """

    run: Path
    algorithm: str | None
    steps: str | None
    checkpoint: str
    restore_episodes: bool
    changes: dict[str, Any]


def make_parser(algorithm: str | None = None) -> Parser:
    """Flags of `asyncrl resume`, with those of the run's algorithm if it is known."""
    parser = Parser(
        prog="asyncrl resume",
        usage="asyncrl resume RUN [--steps +100k] [options]",
        description="Go on with a run in its directory, from its last checkpoint. Options that are given change.",
        answer=_answer,
    )
    parser.add_argument("RUN", help="directory of the run")
    parser.add_argument(
        "--steps", "--total-steps", dest="steps", metavar="N", help="total steps, or +N for so many more"
    )
    parser.add_argument(
        "--checkpoint",
        default="latest",
        metavar="NAME",
        help="latest, or a number of steps (default: latest)",
    )
    parser.add_argument(
        "--new-episodes",
        action="store_true",
        help="begin new episodes also where the checkpoint has the old ones",
    )
    for title, options in sections().items():
        changeable = [name for name in options if name not in SKIPPED]
        if changeable:
            add_flags(parser.add_argument_group(title), TrainerConfig, only=changeable, brief=True)
    if algorithm is not None:
        group = parser.add_argument_group(f"options of {algorithm}")
        add_flags(group, ALGORITHMS[algorithm], prefix=f"{algorithm}.", skip=tuple(FIXED), brief=True)
    return parser


def _answer(flag: str) -> str | None:
    """Hint for the flag of an option that must not change."""
    name = flag.removeprefix("--").removeprefix("no-").rpartition(".")[2].replace("-", "_")
    return f"it may not change when a run goes on: {FIXED[name]}" if name in FIXED else None


def parse(arguments: Sequence[str]) -> ResumeOptions:
    """Parse the arguments. Raises SystemExit with code 2 for a wrong flag or value."""
    algorithm = _algorithm_of(arguments)
    parser = make_parser(algorithm)
    parsed = parser.parse_exactly(arguments)
    changes = given_flags(parsed, TrainerConfig)
    if algorithm is not None:
        changes |= given_flags(parsed, ALGORITHMS[algorithm], f"{algorithm}.")
    run = Path(parsed.RUN).expanduser()
    return ResumeOptions(run, algorithm, parsed.steps, parsed.checkpoint, not parsed.new_episodes, changes)


def _algorithm_of(arguments: Sequence[str]) -> str | None:
    """Name of the algorithm of the run among the arguments; None if there is no such run."""
    for argument in arguments:
        file = Path(argument).expanduser() / "config.toml"
        if not argument.startswith("-") and file.is_file():
            try:
                name = str(read_trainer(file).get("algo"))
            except ConfigurationError:  # reported when the run is read
                return None
            return name if name in ALGORITHMS else None
    return None


def run(options: ResumeOptions, server: ForkServer) -> int:
    """Print where the run continues and train; returns the exit code. Raises the error that ended the run."""
    with Interrupts() as interrupts:  # before the imports, the longest part of the start
        from asyncrl.cli.training import learn
        from asyncrl.learning.clock import PROGRAM_START
        from asyncrl.trainer.trainer import Trainer

        try:
            trainer = Trainer.resume(
                options.run,
                options.steps,
                checkpoint=options.checkpoint,
                restore_episodes=options.restore_episodes,
                server=server,
                started=PROGRAM_START,
                **options.changes,
            )
            for line in trainer.resumed_from:
                print(line, flush=True)
            return learn(trainer, interrupts)
        except ValueError as error:
            return reported_as_usage(error, "resume", options.algorithm)
