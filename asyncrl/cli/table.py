"""Table of the commands: name, module, one line of help, and whether a fork server is started first.

A command is a module of this folder with two or three functions; a new command adds its module and its line here.

    def make_parser() -> Parser: ...                     # its flags; for help, tab completion and tests
    def parse(arguments: Sequence[str]) -> Options: ...  # optional: makes the argument of `run` from the flags
    def run(options: Options) -> int | None: ...         # exit code, None is 0; takes a fork server if it needs one

`make_parser` and `parse` import nothing heavy: torch, numba and gymnasium are imported inside `run`, or by a module
that `run` imports. The fork server is started between `parse` and `run` and always closed after `run`.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


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
    Command("eval", "RUN", "play greedy episodes with the policy of a run", needs_server=True),
    Command("resume", "RUN", "go on with a run in its directory", needs_server=True),
    Command("enjoy", "RUN", "watch the policy of a run, or record it as a video"),
    Command("export", "RUN", "write the policy of a run as an ONNX model"),
    Command("plot", "RUN...", "plot the return of runs, in the terminal or as a picture"),
    Command("ls", "[FOLDER]", "list the runs of a folder"),
    Command("diff", "A B", "show the options and the outcome in which two runs differ"),
    Command("doctor", "RUN", "say what is wrong with a run, and which option to change"),
    Command(
        "check", "ENV", "try an environment: spaces, speed, problems, algorithms that fit", needs_server=True
    ),
    Command("plan", "ENV", "measure how many actors and environments are fastest on this machine"),
    Command(
        "bench", "ENV", "measure environment, actors and learner, and name the bottleneck", needs_server=True
    ),
    Command("ps", "", "list your runs that go on now"),
    Command("stop", "RUN", "end a run in good order"),
    Command("clean", "[FOLDER]", "remove what killed runs have left, never a result"),
    Command("ui", "[FOLDER]", "serve a page over all runs of a folder, live and finished"),
    Command("presets", "[NAME]", "list what is tuned for which environment, and what it reached"),
    Command("explain", "OPTION", "tell all about one option, by our name or another library's"),
    Command("completion", "SHELL", "print a script for tab completion"),
)
COMMANDS = {command.name: command for command in _COMMANDS}
"""All commands by name, in the order of `asyncrl --help`."""
