"""The command line: parses arguments, runs a command and returns its exit code.

    0  done                    3    the environment failed
    1  the user's error        4    the machine lacks a resource
    2  wrong usage             130  interrupted (a checkpoint is written first)

Help and wrong arguments are answered without torch. A command that trains or plays first starts its fork server, which
loads NumPy, gymnasium and the kernels while this process loads torch.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import asyncrl.learning.clock  # noqa: F401  (first: it reads the start time)
from asyncrl.cli.flags import Parser
from asyncrl.cli.interrupts import Interrupts
from asyncrl.errors import AsyncRLError
from asyncrl.options import near_miss
from asyncrl.version import __version__

if TYPE_CHECKING:
    from asyncrl.actors.forkserver import ForkServer

WRONG_USAGE = 2
INTERRUPTED = 130

COMMANDS = """\
commands:
  train ENV   train an agent in an environment
  eval RUN    play greedy episodes with the policy of a run

`asyncrl COMMAND --help` lists the options of a command.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code. None takes the process's own arguments."""
    _open_standard_streams()
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _dispatch(given)
    except AsyncRLError as error:
        _print_error(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        _print_error("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        from asyncrl.show.console import discard

        discard(sys.stdout)
        return 0


def _open_standard_streams() -> None:
    """Open descriptors 0 to 2 on the null device where they are closed.

    Otherwise a file or socket of the run would take their numbers: libuv aborts on it, and an environment's prints
    would go into it.
    """
    while (lowest_free := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(lowest_free, True)
    os.close(lowest_free)
    sys.stdin = sys.stdin or open(os.devnull, encoding="utf-8")  # noqa: SIM115
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def _print_error(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)


def _dispatch(arguments: list[str]) -> int:
    commands = {"train": _train, "eval": _evaluate}
    if arguments and arguments[0] in commands:
        return _with_fork_server(commands[arguments[0]], arguments[1:])
    parser = Parser(
        prog="asyncrl",
        usage="asyncrl COMMAND ...",
        description="Asynchronous reinforcement learning on one workstation.",
        epilog=COMMANDS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"asyncrl {__version__}")
    if arguments and not arguments[0].startswith("-"):
        parser.unknown("command", arguments[0], near_miss(arguments[0], commands))
    parser.parse_exactly(arguments)
    parser.error(f"a command is missing: {' or '.join(commands)}")


def _with_fork_server(command: Callable[[list[str], ForkServer | None], int], arguments: list[str]) -> int:
    """Start a fork server, run the command meanwhile, and close the server in every case."""
    if {"-h", "--help"} & set(arguments):
        return command(arguments, None)
    from asyncrl.actors.forkserver import ForkServer

    server = ForkServer()
    server.start()
    try:
        return command(arguments, server)
    finally:
        server.close()


def _train(arguments: list[str], server: ForkServer | None) -> int:
    with Interrupts() as interrupts:  # before the imports, which take the longest part of the start
        return _train_unless(interrupts, arguments, server)


def _train_unless(interrupts: Interrupts, arguments: list[str], server: ForkServer | None) -> int:
    from asyncrl.cli.arguments import flag_refused, parse_train

    config, algorithm = parse_train(arguments)
    from asyncrl.cli.commands import train

    try:
        return train(config, algorithm, server, interrupts)
    except ValueError as error:
        # Some rules are checked when the run is built, such as a pace that would deadlock. They read like the others.
        flag = flag_refused(error, algorithm)
        if flag is None:
            raise
        _print_error(f"asyncrl train: error: argument {flag}: {error}")
        return WRONG_USAGE


def _evaluate(arguments: list[str], server: ForkServer | None) -> int:
    from asyncrl.cli.arguments import parse_eval

    options = parse_eval(arguments)
    from asyncrl.cli.commands import evaluate

    return evaluate(options, server)


if __name__ == "__main__":
    sys.exit(main())
