"""Flags of the command line, generated from the option records: one flag per field, with its docstring as help.

`--num-actors` sets `TrainerConfig.num_actors`, `--dqn.learning-rate` sets `DQN.learning_rate`, and a boolean field also
has a `--no-` flag. The result holds only the flags that were given; files and presets supply the rest. A wrong flag or
value ends with exit code 2.

The parser is argparse, with shtab for tab completion. tyro and cyclopts also make flags from a record, in 0.06 s of
processor time instead of 0.015, but only from its type hints: help for only the chosen algorithm, ranges that the
records check themselves and hints for other libraries' names would need as much own code as this module.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import re
import shutil
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar, get_origin

from asyncrl.options import Option, describe, near_miss, option_help, parse_count

R = TypeVar("R")

SWITCH_VALUES = {"yes": True, "true": True, "on": True, "no": False, "false": False, "off": False}
"""Values that may follow a switch, in any case of letters."""
UNLISTED = (
    "agent_id",
    "pad_spaces",
    "policies",
    "policy_options",
    "demonstration_fraction",
    "eval_env_kwargs",
    "eval_levels",
    "eval_deterministic",
    "eval_film",
    "burst_seconds",
    "ready_timeout_seconds",
    "max_restarts",
    "self_play",
    "self_play_fraction",
    "self_play_interval",
    "self_play_versions",
    "fusion_interval",
    "max_fusion_staleness",
    "fusion_dtype",
    "fusion_learning_rate",
    "fusion_momentum",
    "fusion_moments",
)
"""Flags left out of help to keep it within two screens; `asyncrl explain` and the documentation have them."""
SHORT = {
    "num_actors": "--actors",
    "total_steps": "--steps",
    "wrappers": "--wrapper",
    "policies": "--policy",
    "policy_options": "--policy-option",
}
"""Short forms of the most common flags."""
_ITEMS = {
    "env_kwargs": "KEY:VALUE",
    "wrappers": "MODULE:NAME",
    "eval_env_kwargs": "KEY:VALUE",
    "eval_levels": "NAME:{KEY:VALUE}",
    "policies": "NAME:PATTERN",
    "policy_options": "NAME.OPTION:VALUE",
}
LIST = "N,N"
"""Placeholder of a list in help."""
_PLACEHOLDERS = {"a whole number": "N", "a number": "X", "a text": "TEXT"}
_HELP_COLUMN, _WIDEST, _LONGEST_LINE = 30, 110, 118


class Parser(argparse.ArgumentParser):
    """Argument parser of a command, without abbreviations; an unknown flag's error names the most similar known one.

    Args:
        usage: the command's name and its arguments.
        description: what the command does.
        answer: returns a hint for an unknown flag, or None to name the most similar flag instead. A hint that begins
            with the flag is the whole text.
        options: of `argparse.ArgumentParser`.
    """

    def __init__(
        self,
        usage: str,
        description: str,
        *,
        answer: Callable[[str], str | None] = lambda _: None,
        **options: Any,
    ) -> None:
        defaults: dict[str, Any] = {"prog": f"asyncrl {usage.split()[0]}", "formatter_class": Help}
        options = defaults | options | {"usage": f"asyncrl {usage}", "description": description}
        super().__init__(allow_abbrev=False, **options)
        # Values too are -1e3 and -200k; argparse knows -1 and -0.5.
        self._negative_number_matcher = re.compile(r"-\.?\d")
        self._answer = answer

    def parse_exactly(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse `arguments`. Raises SystemExit with code 2 for an unknown or wrong argument."""
        # Checked before parsing: argparse would report an unknown flag's value, or a missing argument.
        for argument in arguments:
            name = argument.split("=", 1)[0]
            if name == "--":
                break
            if name.startswith("--") and name not in self._option_string_actions:
                self.unknown_flag(name)
        parsed, rest = self.parse_known_args(self._without_switch_values(arguments))
        if rest and rest[0].startswith("-"):
            self.error(f"unknown option {rest[0]}; options have long names, of two dashes")
        if rest:
            self.error(f"unexpected argument {rest[0]!r}{self._list_with_commas(arguments, rest[0])}")
        return parsed

    def _list_with_commas(self, arguments: Sequence[str], rest: str) -> str:
        """Hint for a further value behind the flag of a list, `--dqn.hidden-sizes 64 64`; "" where there is none."""
        before = list(arguments[: arguments.index(rest)] if rest in arguments else ())
        while before and not before[-1].startswith("--"):
            before.pop()
        flag, given, first = (before or [""])[-1].partition("=")
        action = self._option_string_actions.get(flag)
        if action is None or action.metavar != LIST:
            return ""
        values = list(arguments[len(before) :])
        end = next((i for i, word in enumerate(values) if word.startswith("-")), len(values))
        return f"; write {flag} {','.join(([first] if given else []) + values[:end])}"

    def _without_switch_values(self, arguments: Sequence[str]) -> list[str]:
        """Write `--flag=yes`, `--flag yes` and the like of a switch as `--flag` or `--no-flag`."""
        words, rest = list[str](), list(arguments)
        while rest and rest[0] != "--":
            word = rest.pop(0)
            name, given, value = word.partition("=")
            switch = isinstance(self._option_string_actions.get(name), argparse.BooleanOptionalAction)
            if switch and not given and rest and rest[0].lower() in SWITCH_VALUES:
                given, value = "=", rest.pop(0)
            if not (switch and given):
                words.append(word)
            elif value.lower() not in SWITCH_VALUES or name.startswith("--no-"):
                self.error(f"argument {name}: must be given alone, or with yes or no, got {value!r}")
            else:
                words.append(name if SWITCH_VALUES[value.lower()] else name.replace("--", "--no-", 1))
        return words + rest

    def unknown_flag(self, name: str) -> NoReturn:
        """Report an unknown flag and exit with code 2."""
        answer = self._answer(name)
        if answer is not None:
            self.error(answer if answer.startswith(f"{name} ") else f"unknown option {name}; {answer}")
        known = list(self._option_string_actions)
        # A port is --port in `ui` and --http where a run has a page.
        port = {"--http": "--port", "--port": "--http"}.get(name)
        self.unknown("option", name, port if port in known else near_flag(name, known))

    def unknown(self, what: str, name: str, miss: str | None) -> NoReturn:
        """Report an unknown name and exit with code 2."""
        self.error(f"unknown {what} {name}" + (f"; did you mean {miss}?" if miss else ""))

    def error(self, message: str) -> NoReturn:
        """Report a wrong argument in two lines and exit with code 2."""
        text = f"{self.prog}: error: {message}"
        if len(text) > _LONGEST_LINE:
            indent = {"subsequent_indent": "  ", "break_on_hyphens": False, "break_long_words": False}
            text = textwrap.fill(text, _LONGEST_LINE, **indent)  # type: ignore[arg-type]
        self.exit(2, f"{text}\n`{self.prog} --help` lists its options\n")


class Help(argparse.RawDescriptionHelpFormatter):
    """Help formatter: lines of at most 110 characters, one form of each flag with its help beside it."""

    def __init__(self, prog: str) -> None:
        width = min(_WIDEST, shutil.get_terminal_size((80, 24)).columns)
        super().__init__(prog, max_help_position=_HELP_COLUMN, width=max(60, width))

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n" in text:  # line breaks set by hand
            return super()._fill_text(text, width, indent)
        return argparse.HelpFormatter._fill_text(self, text, width, indent)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or "-h" in action.option_strings:
            return super()._format_action_invocation(action)
        flag = action.option_strings[0]
        if isinstance(action, argparse.BooleanOptionalAction):
            return f"--[no-]{flag.removeprefix('--')}"
        return flag if action.nargs == 0 else f"{flag} {action.metavar or action.dest.upper()}"


def near_flag(name: str, flags: Sequence[str]) -> str | None:
    """Flag most similar to `name`; the prefix of an algorithm's flag may be missing in `name`."""
    bare = {"--" + flag.partition(".")[2]: flag for flag in flags if "." in flag}
    miss = bare.get(name) or near_miss(name, flags) or near_miss(name, bare)
    return bare.get(miss, miss) if miss else None


def add_flags(
    group: argparse._ActionsContainer,
    record: type,
    *,
    prefix: str = "",
    only: Sequence[str] | None = None,
    skip: Sequence[str] = (),
    brief: bool = False,
) -> None:
    """Add flags `--<prefix><field>` for fields of `record`.

    Args:
        group: gets the flags; `parser.add_argument_group(title)`.
        record: class of options.
        prefix: put before each field's name.
        only: the fields to add, None for all.
        skip: fields to leave out.
        brief: whether the help is only the first clause of the docstring.
    """
    options = option_help(record)
    for name in options if only is None else only:
        if name in options and name not in skip:
            _add(group, options[name], prefix, brief)


def _add(group: argparse._ActionsContainer, option: Option, prefix: str, brief: bool) -> None:
    flags = [f"--{prefix}{option.name.replace('_', '-')}"]
    if not prefix and option.name in SHORT:
        flags.insert(0, SHORT[option.name])
    text = argparse.SUPPRESS if option.name in UNLISTED else _text(option, brief).replace("%", "%%")
    common: dict[str, Any] = {"dest": f"{prefix}{option.name}", "help": text, "default": argparse.SUPPRESS}
    if option.type in (bool, bool | None):  # without either flag, None stays
        group.add_argument(*flags, action=argparse.BooleanOptionalAction, **common)
    elif get_origin(option.type) is Mapping or option.type == tuple[str, ...]:
        # Several values after one flag, or the flag several times; the record converts them together.
        group.add_argument(*flags, nargs="+", action="extend", metavar=metavar(option), **common)
    else:
        group.add_argument(*flags, metavar=metavar(option), **common)


def _text(option: Option, brief: bool) -> str:
    text = first_clause(option.text.rstrip(".")) if brief else option.help.rstrip(".")
    if option.required or option.default in ((), {}) or (brief and option.default is None):
        return text
    return f"{text} ({shown(option.default)})" if brief else f"{text} (default: {shown(option.default)})"


def first_clause(text: str) -> str:
    """Text up to its first semicolon, or its first comma unless the comma may be part of a list."""
    clause = text.split(";")[0]
    head, _, _ = clause.partition(", ")
    return clause if ":" in head or len(head.split()) < 2 else head


def finite_number(text: str, *, or_zero: bool = False) -> float:
    """Parse a finite number above 0; `type` of a flag that sets no field of a record."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf or (value == 0 and not or_zero):
        least = "of at least 0" if or_zero else "above 0"
        raise argparse.ArgumentTypeError(f"must be a finite number {least}, got {text!r}")
    return value


def count(text: str, *, least: int = 1) -> int:
    """Parse a whole number of at least `least`; likewise."""
    with contextlib.suppress(ValueError):
        if (value := parse_count(text)) >= least:
            return value
    raise argparse.ArgumentTypeError(f"must be a whole number of at least {least}, got {text!r}")


def shown(value: object) -> str:
    """Format a value as on the command line."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return "none" if value is None else str(value)


def metavar(option: Option) -> str:
    """Placeholder for a flag's value in help."""
    if option.name in _ITEMS:
        return _ITEMS[option.name]
    if describe(option.type).startswith("a list"):
        return LIST
    written = (
        _PLACEHOLDERS.get(kind) or kind.removeprefix("one of ").replace(", ", "|")
        for kind in describe(option.type).split(" or ")
        if kind in _PLACEHOLDERS or kind.startswith("one of ")  # other kinds can be given only in Python
    )
    return "|".join(written) or option.name.upper()


def given_flags(parsed: argparse.Namespace, record: type, prefix: str = "") -> dict[str, Any]:
    """Fields of `record` whose flags were given, with their texts; the record converts them."""
    given = vars(parsed)
    return {name: given[prefix + name] for name in option_help(record) if prefix + name in given}


def flag_of(name: str, prefix: str = "") -> str:
    """Flag that sets a field, in its short form if it has one."""
    own = f"--{prefix}{name.replace('_', '-')}"
    return own if prefix else SHORT.get(name, own)


def merged(
    parser: Parser, record: type[R], given: Mapping[str, Any], rest: Mapping[str, Any], *, prefix: str = ""
) -> R:
    """Make `record` from the flags `given` and, for the other fields, the values of `rest`, which are valid alone.

    Exits with code 2 if the record refuses the combination.
    """
    try:
        return record(**{**rest, **given})
    except ValueError as error:
        name = str(error).split(" ", 1)[0]
        where = f"argument {flag_of(name, prefix)}: " if name in given else ""
        parser.error(f"{where}{error}")


class PolicyParser(Parser):
    """Parser of a command that takes a policy: RUN is the field `run` of `record`, its other fields are flags.

    Args:
        usage: see `Parser`.
        description: see `Parser`.
        record: class of options.
        others: help of the other arguments without a flag, by the name of their field.
    """

    def __init__(
        self, usage: str, description: str, record: type, others: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(usage, description)
        run = "directory of a run, a checkpoint file, a policy file, or hf://user/name"
        self._record, arguments = record, {"run": run, **(others or {})}
        self._arguments = tuple(arguments)
        for name, text in arguments.items():
            self.add_argument(name.upper(), help=text)
        add_flags(self, record, skip=self._arguments)

    def parse_exactly(self, arguments: Sequence[str]) -> Any:
        """Parse into a `record`. Raises SystemExit with code 2 for an unknown flag or a wrong value."""
        parsed = super().parse_exactly(arguments)
        named = {name: getattr(parsed, name.upper()) for name in self._arguments}
        return merged(self, self._record, given_flags(parsed, self._record), named)
