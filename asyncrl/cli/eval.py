"""`asyncrl eval`: its flags; `asyncrl.cli.playing` plays the episodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from asyncrl.cli.eval_options import EvalOptions
from asyncrl.cli.flags import Parser, add_options, given_flags, merged

if TYPE_CHECKING:
    from asyncrl.actors.forkserver import ForkServer


def make_parser() -> Parser:
    """The flags of `asyncrl eval`."""
    parser = Parser(
        prog="asyncrl eval",
        usage="asyncrl eval RUN [options]",
        description="Play greedy episodes with the policy of a run.",
    )
    parser.add_argument("RUN", help="directory of a run, a checkpoint file, or a policy file")
    add_options(parser, "options of the evaluation", EvalOptions, skip=("run",))
    return parser


def parse(arguments: Sequence[str]) -> EvalOptions:
    """Parse the options of `asyncrl eval`. Raises SystemExit with code 2 for a wrong flag or value."""
    parser = make_parser()
    parsed = parser.parse_exactly(arguments)
    return merged(parser, EvalOptions, given_flags(parsed, EvalOptions), {"run": parsed.RUN})


def run(options: EvalOptions, server: ForkServer | None) -> int:
    """Play the episodes; returns the exit code."""
    from asyncrl.cli.playing import evaluate

    return evaluate(options, server)
