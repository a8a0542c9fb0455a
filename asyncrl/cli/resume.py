"""`asyncrl resume`: go on with a run in its directory."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

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


def make_parser(algorithm: str | None = None) -> Parser:
    """Flags of `asyncrl resume`, with those of the run's algorithm if it is known."""
    parser = Parser(
        "resume RUN [--steps +100k] [options]",
        "Go on with a run in its directory, from its last checkpoint. Options that are given change.",
        answer=partial(_answer, algorithm),
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


def _answer(algorithm: str | None, flag: str) -> str | None:
    """Hint for the flag of an option that must not change, or of another algorithm than the run's (None: no run)."""
    owner, _, option = flag.removeprefix("--").removeprefix("no-").rpartition(".")
    name = option.replace("-", "_")
    if name in FIXED:
        return (
            f"{flag} may not change when a run goes on: {FIXED[name]}; begin a new run, with --init-from RUN where "
            "spaces and network are the same"
        )
    if owner not in ALGORITHMS or owner == algorithm:
        return None
    if algorithm is None:
        return f"{flag} changes a run of {owner}, and no argument is the directory of a run"
    return f"{flag} is an option of {owner}, and the run is of {algorithm}"


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse, and collect the `changes` of options. Raises SystemExit with code 2 for a wrong flag or value."""
    algorithm = _algorithm_of(arguments)
    parsed = make_parser(algorithm).parse_exactly(arguments)
    parsed.algorithm, parsed.changes = algorithm, given_flags(parsed, TrainerConfig)
    if algorithm is not None:
        parsed.changes |= given_flags(parsed, ALGORITHMS[algorithm], f"{algorithm}.")
    return parsed


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


def run(options: argparse.Namespace, server: ForkServer) -> int:
    """Print where the run continues and train; returns the exit code. Raises the error that ended the run."""
    with Interrupts() as interrupts:  # before the imports, the longest part of the start
        from asyncrl.cli.training import learn
        from asyncrl.learning.clock import PROGRAM_START
        from asyncrl.trainer.trainer import Trainer

        try:
            trainer = Trainer.resume(
                options.RUN,
                options.steps,
                checkpoint=options.checkpoint,
                restore_episodes=not options.new_episodes,
                server=server,
                started=PROGRAM_START,
                **options.changes,
            )
            for line in trainer.resumed_from:
                print(line, flush=True)
            return learn(trainer, interrupts)
        except ValueError as error:
            return reported_as_usage(error, "resume", options.algorithm)
