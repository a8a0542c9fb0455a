"""The command line: turns arguments into records of options, and what happens into an exit code.

    0  done                       3  the environment failed
    1  the user's error           4  the machine had not enough of something
    2  the command was misread    130  interrupted (a checkpoint is written first)

Help and wrong arguments are answered without importing torch. A command that trains or plays starts its
fork server before anything else, so that the server loads NumPy, gymnasium and the kernels while this process
loads torch.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import asyncrl.learning.clock  # noqa: F401  (first: it looks at the time)
from asyncrl.cli.flags import Parser
from asyncrl.cli.interrupts import Interrupts
from asyncrl.errors import AsyncRLError
from asyncrl.options import near_miss
from asyncrl.version import __version__

if TYPE_CHECKING:
    from asyncrl.actors.forkserver import ForkServer

MISREAD = 2
INTERRUPTED = 130

COMMANDS = """\
commands:
  train ENV   train an agent in an environment
  eval RUN    play greedy episodes with what a run has learned

`asyncrl COMMAND --help` lists the options of a command.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code. Takes the process's own arguments where None is given."""
    _open_standard_streams()
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _dispatch(given)
    except AsyncRLError as error:
        _complain(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        _complain("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        _discard_output()
        return 0


def _open_standard_streams() -> None:
    """Open descriptors 0 to 2 on the null device where they are closed.

    A file or socket of ours would take their numbers otherwise: libuv aborts at such a one, and an environment's prints
    would go into it.
    """
    while (lowest_free := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(lowest_free, True)
    os.close(lowest_free)
    sys.stdin = sys.stdin or open(os.devnull, encoding="utf-8")  # noqa: SIM115
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def _complain(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)


def _discard_output() -> None:
    """Whoever read our output has gone; the interpreter must not fail on it once more when it exits."""
    with contextlib.suppress(OSError, ValueError):
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, sys.stdout.fileno())
        os.close(nothing)


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
    """Run a command beside a fork server that is still starting; close the server whatever happens."""
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
        # Some rules need the whole run to be checked, such as a pace at which actors and learner would wait for
        # each other. They read like the others.
        flag = flag_refused(error, algorithm)
        if flag is None:
            raise
        _complain(f"asyncrl train: error: argument {flag}: {error}")
        return MISREAD


def _evaluate(arguments: list[str], server: ForkServer | None) -> int:
    from asyncrl.cli.arguments import parse_eval

    options = parse_eval(arguments)
    from asyncrl.cli.commands import evaluate

    return evaluate(options, server)


if __name__ == "__main__":
    sys.exit(main())
