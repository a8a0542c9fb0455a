"""Flags of the command line, made from the records of options: one flag per field, with its docstring as help.

`--num-actors` sets `TrainerConfig.num_actors`, `--dqn.learning-rate` sets `DQN.learning_rate`, and a field that is true
or false has a `--no-` flag too. The result holds only the flags that were given; files and presets decide the rest. A
wrong flag or value ends with exit code 2.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar, get_origin

from asyncrl.options import Option, coerce, describe, near_miss, option_help

R = TypeVar("R")

SHORT = {"num_actors": "--actors", "total_steps": "--steps", "wrappers": "--wrapper"}
"""Short forms of the most common flags."""
_ITEMS = {"env_kwargs": "KEY:VALUE", "wrappers": "MODULE:NAME"}


class Parser(argparse.ArgumentParser):
    """An argument parser without abbreviations; the error for an unknown flag names the nearest known one."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def parse_exactly(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse `arguments`. Raises SystemExit with code 2 for any that is unknown or wrong."""
        # Before parsing: argparse would report an unknown flag by its value, or by a missing argument.
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
        """Candidates for a misspelt flag, without those of algorithms that were not chosen."""
        given = dict(itertools.pairwise(arguments))
        chosen = f"--{given['--algo']}." if "--algo" in given else None
        own = [flag for flag in flags if "." not in flag or (chosen and flag.startswith(chosen))]
        return own if chosen and any(flag.startswith(chosen) for flag in flags) else flags

    def unknown(self, what: str, name: str, miss: str | None) -> NoReturn:
        """Report an unknown name; ends with exit code 2."""
        self.error(f"unknown {what} {name}" + (f"; did you mean {miss}?" if miss else ""))


def add_options(
    parser: argparse.ArgumentParser, title: str, record: type, *, prefix: str = "", skip: Sequence[str] = ()
) -> None:
    """Add a group of flags `--<prefix><field>` for the fields of `record` that are not in `skip`."""
    group = parser.add_argument_group(title)
    for name, option in option_help(record).items():
        if name not in skip:
            _add(group, option, prefix)


def _add(group: argparse._ArgumentGroup, option: Option, prefix: str) -> None:
    flags = [f"--{prefix}{option.name.replace('_', '-')}"]
    if not prefix and option.name in SHORT:
        flags.insert(0, SHORT[option.name])
    text = option.help.replace("%", "%%").rstrip(".")
    if not option.required and option.type is not bool and option.default not in ((), {}):
        text += f" (default: {_shown(option.default)})"
    common: dict[str, Any] = {"dest": f"{prefix}{option.name}", "help": text}
    if get_origin(option.type) is Mapping or option.type == tuple[str, ...]:
        # Several after one flag, or the flag several times; the record converts them together.
        group.add_argument(
            *flags,
            nargs="+",
            action="extend",
            default=argparse.SUPPRESS,
            metavar=_ITEMS[option.name],
            **common,
        )
    elif option.type is bool:
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
            # argparse replaces the text of every other exception.
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
    """The flag that sets a field, in its short form if it has one."""
    own = f"--{prefix}{name.replace('_', '-')}"
    return own if prefix else SHORT.get(name, own)


def merged(
    parser: Parser, record: type[R], given: Mapping[str, Any], rest: Mapping[str, Any], *, prefix: str = ""
) -> R:
    """Make `record` from the flags `given` over the values of `rest`, which are valid by themselves.

    Ends with exit code 2 where the record refuses the combination.
    """
    try:
        return record(**{**rest, **given})
    except ValueError as error:
        name = str(error).split(" ", 1)[0]
        where = f"argument {flag_of(name, prefix)}: " if name in given else ""
        parser.error(f"{where}{error}")
