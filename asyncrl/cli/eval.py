"""`asyncrl eval`: flags; `asyncrl.cli.playing` plays the episodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from asyncrl.cli.eval_options import EvalOptions
from asyncrl.cli.flags import Parser, add_policy_flags, parse_policy_flags

if TYPE_CHECKING:
    from asyncrl.actors.forkserver import ForkServer


def make_parser() -> Parser:
    """Flags of `asyncrl eval`."""
    parser = Parser(
        prog="asyncrl eval",
        usage="asyncrl eval RUN [options]",
        description="Play greedy episodes with the policy of a run.",
    )
    add_policy_flags(parser, EvalOptions)
    return parser


def parse(arguments: Sequence[str]) -> EvalOptions:
    """Parse the options of `asyncrl eval`. Raises SystemExit with code 2 for a wrong flag or value."""
    return parse_policy_flags(make_parser(), EvalOptions, arguments)


def run(options: EvalOptions, server: ForkServer) -> int:
    """Play the episodes; returns the exit code."""
    from asyncrl.cli.playing import evaluate

    return evaluate(options, server)
