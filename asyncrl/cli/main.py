"""The command line: its commands, and how one is parsed and run. `entry.py` calls it.

    0  done                    3    the environment failed
    1  the user's error        4    the machine lacks a resource
    2  wrong usage             130  interrupted (a checkpoint is written first)

Help and errors of arguments need neither torch nor another process. A command that trains or plays then starts its fork
server, which loads NumPy, gymnasium and the kernels while this process loads torch.

A command is a module of this folder with two or three functions; a new one adds its module and a line to `COMMANDS`.

    def make_parser() -> Parser: ...                     # its flags; for help, tab completion and tests
    def parse(arguments: Sequence[str]) -> Options: ...  # optional: makes the argument of `run` from the flags
    def run(options: Options) -> int | None: ...         # exit code, None is 0; takes a fork server if it needs one

`make_parser` and `parse` import nothing heavy: torch, numba and gymnasium are imported inside `run`, or by a module
that `run` imports.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import os
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TextIO

import asyncrl.learning.clock  # noqa: F401  (first: it reads the start time)
from asyncrl.actors.descriptors import open_standard_descriptors
from asyncrl.cli.flags import Parser
from asyncrl.cli.output import print_error, without_waiting
from asyncrl.errors import AsyncRLError, AsyncRLWarning, ResourceError
from asyncrl.options import near_miss
from asyncrl.version import __version__

INTERRUPTED = 130


@dataclass(frozen=True)
class Command:
    """One command.

    Attributes:
        name: its name, and that of its module in `asyncrl.cli`.
        usage: its arguments in the list of commands.
        help: one line, lower case, without a full stop.
        needs_server: whether it steps environments in processes of a fork server.
    """

    name: str
    usage: str
    help: str
    needs_server: bool = False

    def load(self) -> Any:
        """Import the module and return it."""
        return importlib.import_module(f"asyncrl.cli.{self.name}")

    def parse(self, arguments: Sequence[str]) -> Any:
        """Parse the options for the module's `run`. Raises SystemExit with code 2 for a wrong argument."""
        module = self.load()
        if hasattr(module, "parse"):
            return module.parse(arguments)
        return module.make_parser().parse_exactly(arguments)


_COMMANDS = (
    Command("train", "ENV", "train an agent in an environment", needs_server=True),
    Command("tune", "ENV", "search better options of an algorithm, and compare them on new seeds"),
    Command("eval", "RUN", "play episodes with the policy of a run", needs_server=True),
    Command("resume", "RUN", "continue a run in its directory", needs_server=True),
    Command("enjoy", "RUN", "watch the policy of a run, or record it as a video"),
    Command("export", "RUN", "write the policy of a run as an ONNX model"),
    Command("record", "RUN", "write the steps of a policy as a dataset that Minari loads"),
    Command(
        "push", "RUN REPO", "put the policy of a run on the Hugging Face Hub, with a card", needs_server=True
    ),
    Command("plot", "RUN...", "plot the return of runs, in the terminal or as a picture"),
    Command("ls", "[FOLDER]", "list the runs of a folder, and process and page of those in progress"),
    Command("diff", "A B", "show the options and the outcome in which two runs differ"),
    Command("doctor", "RUN", "say what is wrong with a run, and which option to change"),
    Command(
        "check", "ENV", "try an environment: spaces, speed, problems, algorithms that fit", needs_server=True
    ),
    Command(
        "plan",
        "ENV",
        "measure the fastest numbers of actors and environments, and the bottleneck",
        needs_server=True,
    ),
    Command("stop", "RUN", "end a run in good order"),
    Command("ui", "[FOLDER]", "serve a page over all runs of a folder, live and finished"),
    Command("presets", "[NAME]", "list what is tuned for which environment, and what it reached"),
    Command("explain", "OPTION", "tell all about one option, by our name or another library's"),
    Command("completion", "SHELL", "print a script for tab completion"),
)
COMMANDS = {command.name: command for command in _COMMANDS}
"""All commands by name, in the order of `asyncrl --help`."""
GONE = {
    "bench": "asyncrl plan ENV --algo ALGO --actors N measures environment, actors and learner, too",
    "clean": "killed runs leave nothing that has to be removed; delete the directory of a run that you do not want",
    "ps": "asyncrl ls shows process id and page of the runs in progress",
}
"""Commands of earlier versions, and what to use instead."""


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
    except AsyncRLWarning as warning:  # `python -W error`
        print_error(str(warning))
        return AsyncRLError.exit_code
    except KeyboardInterrupt:
        print_error("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        from asyncrl.show.console import discard

        discard(sys.stdout)
        return 0
    except OSError as error:
        from asyncrl.show.console import discard
        from asyncrl.storage.atomic_file import DISK_FAILS

        if _working_directory_is_gone():
            print_error("the working directory was deleted; change to another one")
            return 1
        if error.errno not in DISK_FAILS:
            raise
        discard(sys.stdout)
        print_error(f"{error.filename or 'the output'} cannot be written: {error.strerror}")
        return ResourceError.exit_code


def _open_standard_streams() -> None:
    """Open standard streams that are closed on the null device, and let standard output escape characters.

    Characters are escaped that the output's encoding lacks, such as those of a run's name.
    """
    open_standard_descriptors()
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
    if arguments and arguments[0] in GONE:
        parser.error(f"there is no command {arguments[0]} any more: {GONE[arguments[0]]}")
    if arguments and not arguments[0].startswith("-"):
        parser.unknown("command", arguments[0], near_miss(arguments[0], COMMANDS))
    parser.parse_exactly(arguments)
    parser.error(f"a command is missing: one of {', '.join(COMMANDS)}")


def _list_of_commands() -> str:
    lines = [f"  {name + ' ' + command.usage:<17} {command.help}" for name, command in COMMANDS.items()]
    return "\n".join(["commands:", *lines, "", "`asyncrl COMMAND --help` lists the options of a command."])


def _run(command: Command, arguments: list[str]) -> int:
    """Parse and run a command, with a fork server if it needs one; the fork server is always closed."""
    module = command.load()
    _find_modules_here()  # before `parse`, which imports the user's algorithm
    options = command.parse(arguments)
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
    """Append the working directory to `sys.path`, after all packages, for modules of environments and algorithms."""
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
