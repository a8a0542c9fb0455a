"""The command line: parses arguments, runs a command and returns its exit code. `entry.py` calls it.

    0  done                    3    the environment failed
    1  the user's error        4    the machine lacks a resource
    2  wrong usage             130  interrupted (a checkpoint is written first)

Help and errors of arguments need neither torch nor another process. A command that trains or plays then starts its fork
server, which loads NumPy, gymnasium and the kernels while this process loads torch.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
import warnings
from collections.abc import Sequence
from typing import TextIO

import asyncrl.learning.clock  # noqa: F401  (first: it reads the start time)
from asyncrl.cli.flags import Parser
from asyncrl.cli.output import print_error, without_waiting
from asyncrl.cli.table import COMMANDS, Command
from asyncrl.errors import AsyncRLError, AsyncRLWarning, ResourceError
from asyncrl.options import near_miss
from asyncrl.version import __version__

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. `arguments` None uses `sys.argv`."""
    _open_standard_streams()
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = _dispatch(given)
        without_waiting("stdout", sys.stdout.flush)
        return code
    except AsyncRLError as error:
        print_error(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        print_error("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        from asyncrl.show.console import discard

        discard(sys.stdout)
        return 0
    except OSError as error:
        from asyncrl.show.console import discard
        from asyncrl.storage.disk_space import DISK_FAILS

        if _working_directory_is_gone():
            print_error("the working directory was deleted; change to another one")
            return 1
        if error.errno not in DISK_FAILS:
            raise
        discard(sys.stdout)
        print_error(f"{error.filename or 'the output'} cannot be written: {error.strerror}")
        return ResourceError.exit_code


def _open_standard_streams() -> None:
    """Open descriptors 0 to 2 on the null device if they are closed, and let standard output escape characters.

    Otherwise a file or socket of the run would get their numbers: libuv aborts on that, and prints of an environment
    would be written to it. Characters are escaped that the output's encoding lacks, such as those of a run's name.
    """
    while (lowest_free := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(lowest_free, True)
    os.close(lowest_free)
    sys.stdin = sys.stdin or open(os.devnull, encoding="utf-8")  # noqa: SIM115
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def _working_directory_is_gone() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def _dispatch(arguments: list[str]) -> int:
    if arguments and arguments[0] in COMMANDS:
        return _run(COMMANDS[arguments[0]], arguments[1:])
    parser = Parser(
        "COMMAND ...",
        "Asynchronous reinforcement learning on one workstation.",
        prog="asyncrl",
        epilog=_list_of_commands(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"asyncrl {__version__}")
    if arguments and not arguments[0].startswith("-"):
        parser.unknown("command", arguments[0], near_miss(arguments[0], COMMANDS))
    parser.parse_exactly(arguments)
    parser.error(f"a command is missing: one of {', '.join(COMMANDS)}")


def _list_of_commands() -> str:
    lines = [f"  {name + ' ' + command.usage:<17} {command.help}" for name, command in COMMANDS.items()]
    return "\n".join(["commands:", *lines, "", "`asyncrl COMMAND --help` lists the options of a command."])


def _run(command: Command, arguments: list[str]) -> int:
    """Parse and run a command, with a fork server if it needs one; the fork server is always closed."""
    module, options = command.load(), command.parse(arguments)
    _find_modules_here()
    _show_warnings_plainly()
    if not command.needs_server:
        return module.run(options) or 0
    from asyncrl.actors.forkserver import ForkServer

    server = ForkServer()
    server.start()
    try:
        return module.run(options, server) or 0
    finally:
        server.close()


def _find_modules_here() -> None:
    """Append the working directory to `sys.path`, after all installed packages, for modules of environments."""
    with contextlib.suppress(OSError):  # a directory that was deleted
        here = os.getcwd()
        if here not in sys.path and "" not in sys.path:
            sys.path.append(here)


def _show_warnings_plainly() -> None:
    """Print warnings of this package as one line on standard error, without the line of code."""
    before = warnings.showwarning

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if issubclass(category, AsyncRLWarning):
            print_error(f"warning: {message}")
        else:
            before(message, category, filename, lineno, file, line)

    warnings.showwarning = show


if __name__ == "__main__":
    sys.exit(main())
