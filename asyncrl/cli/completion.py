"""`asyncrl completion SHELL`: print a script for tab completion, made by shtab."""

from __future__ import annotations

import argparse

from asyncrl.cli.flags import Parser

SHELLS = ("bash", "zsh")
FOLDERS = ("RUN", "FOLDER", "A", "B", "run_dir")
"""Arguments that are directories."""


def make_parser() -> Parser:
    """Flags of `asyncrl completion`."""
    parser = Parser(
        "completion bash|zsh",
        "Print a script that completes commands, options and their values.",
        epilog="bash:  asyncrl completion bash > ~/.local/share/bash-completion/completions/asyncrl\n"
        'zsh:   asyncrl completion zsh > "${fpath[1]}/_asyncrl"',
    )
    parser.add_argument("SHELL", choices=SHELLS, help="name of the shell")
    return parser


def run(options: argparse.Namespace) -> None:
    """Print the script."""
    import shtab

    print(shtab.complete(whole_parser(), options.SHELL))


def whole_parser() -> argparse.ArgumentParser:
    """One parser with all commands and the values of their options."""
    import shtab

    from asyncrl.algorithms import ALGORITHMS
    from asyncrl.cli.main import COMMANDS

    whole = argparse.ArgumentParser(prog="asyncrl")
    commands = whole.add_subparsers()
    for name, command in COMMANDS.items():
        parser = command.load().make_parser()
        made = commands.add_parser(name, parents=[parser], add_help=False, help=command.help)
        for action in made._actions:
            if action.dest in FOLDERS:
                action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
            elif action.dest == "algo":
                action.choices = list(ALGORITHMS)
            elif isinstance(action.metavar, str) and "|" in action.metavar:
                action.choices = [word for word in action.metavar.split("|") if word.islower()]
    return whole
