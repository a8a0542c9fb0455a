"""`asyncrl explain OPTION`: print the documentation of one option, which `asyncrl.cli.explanation` collects."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from asyncrl.cli.flags import Parser


def make_parser() -> Parser:
    """Flags of `asyncrl explain`."""
    parser = Parser(
        prog="asyncrl explain",
        usage="asyncrl explain OPTION",
        description="Tell what an option does, its type, range, defaults, presets and names elsewhere.",
        epilog="Written as in Python (samples_per_insert), on the command line (--dqn.samples-per-insert), or in\n"
        "Stable-Baselines3 and CleanRL (buffer_size).",
    )
    parser.add_argument("OPTION", help="name of the option")
    return parser


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse. Raises SystemExit with code 2 for a wrong argument."""
    parser = make_parser()
    # The option may be written as a flag, but this command has no such flag.
    plain = [word if word in ("-h", "--help") else word.removeprefix("--") for word in arguments]
    return parser.parse_exactly(plain)


def run(options: argparse.Namespace) -> int:
    """Print the explanation; returns the exit code."""
    from asyncrl.cli.explanation import explain

    text, known = explain(options.OPTION)
    if not known:
        make_parser().error(text)
    print(text)
    return 0
