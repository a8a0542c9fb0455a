"""Text of `help(DQN)`: the record's docstring, then every option with its help, its values and its default."""

from __future__ import annotations

import dataclasses
import textwrap
from typing import Any, TypeVar

from asyncrl.docstrings import field_docstrings
from asyncrl.options import Option, describe, option_help

T = TypeVar("T")

WIDTH = 100
"""Maximum line length of the text."""

_CHECKED = "A value of the wrong type or outside its range raises ValueError; the text begins with the option's name."


class OptionsDoc:
    """Descriptor for the `__doc__` of a record; reads the source for the options at first access, not at import."""

    def __init__(self, text: str | None) -> None:
        self._text = (text or "").rstrip()
        self._full: dict[type, str] = {}

    def __get__(self, record: object, kind: type) -> str:
        if kind not in self._full:
            self._full[kind] = f"{self._text}\n\n    {_CHECKED}\n\n    Options:\n{_options_text(kind)}\n    "
        return self._full[kind]


def documented(record: type[T]) -> type[T]:
    """Decorator of a dataclass that adds its options to `help(record)`."""
    text = record.__dict__.get("__doc__")
    if not isinstance(text, OptionsDoc):
        documentation: Any = OptionsDoc(text)
        record.__doc__ = documentation
    return record


def _options_text(record: Any) -> str:
    options, (docs, _) = option_help(record), field_docstrings(record)
    texts = [_entry(option.name, f"{option.help} ({_values(option)})") for option in options.values()]
    further = [field.name for field in dataclasses.fields(record) if field.name not in options]
    return "\n".join(texts + [_entry(name, f"{docs.get(name, '')} (in Python only)") for name in further])


def _values(option: Option) -> str:
    default = "required" if option.required else f"default {option.default!r}"
    return f"{describe(option.type)}; {default}"


def _entry(name: str, text: str) -> str:
    return f"        {name}:\n" + textwrap.indent(textwrap.fill(text, WIDTH - 12), " " * 12)
