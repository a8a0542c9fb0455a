"""Flags of the command line, made from the records of options: one flag per field, its docstring as help.

`--num-actors` sets `TrainerConfig.num_actors`, `--dqn.learning-rate` sets `DQN.learning_rate`, and a field
that is true or false has a `--no-` twin. Only flags that were given appear in the result, so that a file and
an environment's preset keep their say in everything else. A wrong flag or value ends with exit code 2.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from asyncrl.options import Option, coerce, describe, near_miss, option_help

R = TypeVar("R")

SHORT = {"num_actors": "--actors", "total_steps": "--steps"}
"""Flags that people type most have a short twin."""


class Parser(argparse.ArgumentParser):
    """An argument parser that never guesses: a flag is written in full, a wrong one gets its near miss."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def parse_exactly(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse `arguments`. Raises SystemExit with code 2 for anything that is not understood."""
        # First of all, or an unknown flag would be reported as its value or as what is missing beside it.
        flags = list(self._option_string_actions)
        for argument in arguments:
            name = argument.split("=", 1)[0]
            if name.startswith("--") and name != "--" and name not in flags:
                self.unknown("option", name, near_miss(name, self._likely(flags, arguments)))
        parsed, rest = self.parse_known_args(arguments)
        if rest:
            self.error(f"unexpected argument {rest[0]!r}")
        return parsed

    def _likely(self, flags: list[str], arguments: Sequence[str]) -> list[str]:
        """Flags that may have been meant: none of an algorithm that was not chosen."""
        given = dict(itertools.pairwise(arguments))
        chosen = f"--{given['--algo']}." if "--algo" in given else None
        own = [flag for flag in flags if "." not in flag or (chosen and flag.startswith(chosen))]
        return own if chosen and any(flag.startswith(chosen) for flag in flags) else flags

    def unknown(self, what: str, name: str, miss: str | None) -> NoReturn:
        """End with exit code 2 over a name that nothing has."""
        self.error(f"unknown {what} {name}" + (f"; did you mean {miss}?" if miss else ""))


def add_options(
    parser: argparse.ArgumentParser, title: str, record: type, *, prefix: str = "", skip: Sequence[str] = ()
) -> None:
    """A group of flags `--<prefix><field>` for the fields of `record` that are not in `skip`."""
    group = parser.add_argument_group(title)
    for name, option in option_help(record).items():
        if name not in skip:
            _add(group, option, prefix)


def _add(group: argparse._ArgumentGroup, option: Option, prefix: str) -> None:
    flags = [f"--{prefix}{option.name.replace('_', '-')}"]
    if not prefix and option.name in SHORT:
        flags.insert(0, SHORT[option.name])
    text = option.help.replace("%", "%%").rstrip(".")
    if not option.required and option.type is not bool:
        text += f" (default: {_shown(option.default)})"
    common: dict[str, Any] = {"dest": f"{prefix}{option.name}", "help": text}
    if option.type is bool:
        text += f" (default: {'yes' if option.default else 'no'})"
        common |= {"help": text, "default": argparse.SUPPRESS}
        group.add_argument(*flags, action=argparse.BooleanOptionalAction, **common)
    else:
        common |= {"default": argparse.SUPPRESS, "type": _converter(option), "metavar": _metavar(option)}
        group.add_argument(*flags, **common)


def _converter(option: Option) -> Callable[[str], Any]:
    def convert(text: str) -> Any:
        try:
            return coerce(option.name, option.type, text)
        except ValueError as error:
            # argparse would replace the text of any other exception with its own.
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


def _shown(default: object) -> str:
    if isinstance(default, tuple):
        return ",".join(map(str, default))
    return "none" if default is None else str(default)


def _metavar(option: Option) -> str:
    words = describe(option.type).removesuffix(" or none")
    if words.startswith("one of "):
        return "{" + words.removeprefix("one of ").replace(", ", ",") + "}"
    return {"a whole number": "N", "a number": "X", "a text": "TEXT"}.get(words, option.name.upper())


def given_flags(parsed: argparse.Namespace, record: type, prefix: str = "") -> dict[str, Any]:
    """The fields of `record` whose flags were given, and their values."""
    given = vars(parsed)
    return {name: given[prefix + name] for name in option_help(record) if prefix + name in given}


def flag_of(name: str, prefix: str = "") -> str:
    """The flag that sets a field, as people write it."""
    own = f"--{prefix}{name.replace('_', '-')}"
    return own if prefix else SHORT.get(name, own)


def merged(
    parser: Parser, record: type[R], given: Mapping[str, Any], rest: Mapping[str, Any], *, prefix: str = ""
) -> R:
    """`record` from the flags `given` over the values of the `rest`, which are known to be good.

    Ends with exit code 2 where the record refuses them together.
    """
    try:
        return record(**{**rest, **given})
    except ValueError as error:
        name = str(error).split(" ", 1)[0]
        where = f"argument {flag_of(name, prefix)}: " if name in given else ""
        parser.error(f"{where}{error}")
