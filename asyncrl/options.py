"""Options: fields of frozen records, each with a type, a default and a docstring that is its help text.

A record of options is a frozen dataclass whose fields are each followed by a string literal:

    @dataclass(frozen=True, kw_only=True)
    class Pace:
        batch_size: int = 64
        \"\"\"Transitions per update.\"\"\"

The record is the only source of the command line's flags and help (`option_help`), of the check of a configuration file
and of the conversion of text (`coerce`). The record's `__post_init__` checks ranges. It raises ValueError with a text
that begins with the field's name, `num_actors must be at least 1, got 0`; the caller adds the origin of the value.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import functools
import numbers
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from asyncrl.docstrings import field_docstrings

FunctionOfProgress = Callable[[float], float]
"""Number that changes over a run, as a function of the fraction of `total_steps` done, from 0 to 1."""

_SUFFIXES = {"k": 1_000, "m": 1_000_000, "g": 1_000_000_000}


@dataclass(frozen=True)
class Option:
    """One field of a record of options.

    Attributes:
        name: the field's name.
        type: the field's resolved annotation.
        default: the field's default, or `dataclasses.MISSING` if it has none.
        help: the docstring below the field, on one line.
    """

    name: str
    type: Any
    default: object
    help: str

    @property
    def required(self) -> bool:
        """Whether the option has no default."""
        return self.default is dataclasses.MISSING


def option_help(record: type) -> Mapping[str, Option]:
    """All options of `record` by name, in the order of its fields.

    A field with metadata `{"option": False}` is not an option: it cannot be given on a command line or in a file. A
    field with metadata `{"type": kind}` is limited to `kind` on a command line and in a file; Python accepts more.

    Raises:
        TypeError: `record` is not a dataclass.
        ValueError: a field has no docstring below it.
    """
    return _options(record)


@functools.cache
def _options(record: type) -> Mapping[str, Option]:
    if not dataclasses.is_dataclass(record):
        raise TypeError(f"record must be a dataclass, got {record!r}")
    hints, (docs, complete) = get_type_hints(record), field_docstrings(record)
    options = {}
    for field in dataclasses.fields(record):
        if not field.metadata.get("option", True):
            continue
        if field.name not in docs and complete:
            raise ValueError(f"{record.__name__}.{field.name} must have a docstring under it, got none")
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        kind = field.metadata.get("type", hints[field.name])
        options[field.name] = Option(field.name, kind, default, docs.get(field.name, ""))
    return types.MappingProxyType(options)


def option_values(record: object) -> dict[str, Any]:
    """Values of a record's options by name, as a new dict; functions, which have no text form, are left out."""
    values = {name: getattr(record, name) for name in option_help(type(record))}
    return {name: value for name, value in values.items() if not callable(value)}


def functions_of(record: Any) -> dict[str, Any]:
    """Functions among the values of a record's fields by name, including fields that are not options (`network`)."""
    values = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
    return {name: value for name, value in values.items() if callable(value)}


def near_miss(name: str, known: Iterable[str]) -> str | None:
    """Known name most similar to `name`, or None."""
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return matches[0] if matches else None


class _TooLarge(ValueError):
    """A whole number that 64 bits do not hold."""


def parse_count(text: str) -> int:
    """Parse a whole number: `200000`, `200_000`, `200k`, `1.5M`, `1e6`.

    Raises:
        ValueError: `text` is not a number, is not whole, or is 2**63 or larger in magnitude.
    """
    digits, factor = text.strip(), 1
    if digits and digits[-1].lower() in _SUFFIXES:
        digits, factor = digits[:-1], _SUFFIXES[digits[-1].lower()]
    try:
        value = Decimal(digits) * factor
    except ArithmeticError:
        raise ValueError(f"{text!r} is not a number") from None
    if not value.is_finite() or value != value.to_integral_value():
        raise ValueError(f"{text!r} is not a whole number")
    if abs(value) >= 2**63:
        raise _TooLarge(f"{text!r} is 2**63 or larger in magnitude")
    return int(value)


def coerce(name: str, kind: Any, value: object) -> Any:
    """Convert `value` from a file, a flag or Python to an option of type `kind`.

    Raises:
        ValueError: `value` does not fit; the text is `num_actors must be a whole number, got 'many'`.
    """
    try:
        return _convert(kind, value)
    except _TooLarge:
        raise ValueError(f"{name} must be below 2**63 in magnitude, got {value!r}") from None
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"{name} must be {describe(kind)}, got {value!r}") from None


def _convert(kind: Any, value: Any) -> Any:
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return _convert_union(get_args(kind), value)
    if origin is Literal:
        return {choice: choice for choice in get_args(kind)}[value]
    if origin is tuple:
        items = value.split(",") if isinstance(value, str) else value
        return tuple(_convert(get_args(kind)[0], item) for item in items)
    if origin is Callable:
        return _to_function(value)
    if origin is Mapping:
        texts = texts_of_mapping(value) if isinstance(value, Mapping) else value
        return mapping_from_texts([texts] if isinstance(texts, str) else texts)
    return _SCALARS[kind](value)


def mapping_from_texts(texts: Iterable[str]) -> dict[str, Any]:
    """Parse a mapping from texts such as `gravity:9`; a value that is not a Python literal stays a string.

    Raises:
        ValueError: an item's key is not an identifier, or its value is missing.
    """
    values = {}
    for text in texts:
        key, _, value = text.partition(":")
        if not key.isidentifier() or not value:
            raise ValueError(text)
        try:
            values[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            values[key] = value
    return values


def texts_of_mapping(values: Mapping[str, Any]) -> list[str]:
    """Format `values` as texts that `mapping_from_texts` parses back.

    Raises:
        ValueError: a value is not a Python literal.
    """
    texts = [f"{key}:{value!r}" for key, value in values.items()]
    if mapping_from_texts(texts) != dict(values):
        raise ValueError(values)
    return texts


def _convert_union(kinds: tuple[Any, ...], value: Any) -> Any:
    # str last, so that "8080" is a number for `str | int`.
    for kind in sorted(kinds, key=lambda kind: kind is str):
        try:
            return _convert(kind, value)
        except (KeyError, TypeError, ValueError):
            continue
    raise ValueError(value)


def _to_int(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Real | str):
        raise TypeError(value)
    return parse_count(str(value))


def _to_float(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real | str):
        raise TypeError(value)
    number = float(value)
    if number != number:
        raise ValueError(value)
    return number


def _to_bool(value: object) -> bool:
    if isinstance(value, str):
        return {"true": True, "false": False}[value.lower()]
    if not isinstance(value, bool):
        raise TypeError(value)
    return value


def _to_str(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _to_none(value: object) -> None:
    if value is not None and value != "none":
        raise ValueError(value)


def _to_function(value: object) -> FunctionOfProgress:
    if not callable(value):
        raise TypeError(value)
    return value


_SCALARS = {int: _to_int, float: _to_float, bool: _to_bool, str: _to_str, types.NoneType: _to_none}
_NAMES = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    types.NoneType: "none",
}


def describe(kind: Any) -> str:
    """Description of the values of an option of type `kind`: `a whole number or none`."""
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return " or ".join(describe(part) for part in get_args(kind))
    if origin is Literal:
        return "one of " + ", ".join(str(choice) for choice in get_args(kind))
    if origin is tuple:
        return f"a list, each item {describe(get_args(kind)[0])}"
    if origin is Callable:
        return "a function of progress"
    if origin is Mapping:
        return "key:value pairs of Python literals"
    return _NAMES[kind]


def require_at_least(name: str, value: float | None, minimum: float) -> None:
    """Raise ValueError unless `value` is None or at least `minimum`; NaN raises too."""
    if value is not None and not value >= minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {value}")


def require_at_most(name: str, value: float | None, maximum: float) -> None:
    """Raise ValueError unless `value` is None or at most `maximum`; NaN raises too."""
    if value is not None and not value <= maximum:
        raise ValueError(f"{name} must be at most {maximum}, got {value}")


def require_positive(name: str, value: float | None) -> None:
    """Raise ValueError unless `value` is None or greater than 0; NaN raises too."""
    if value is not None and not value > 0:
        raise ValueError(f"{name} must be greater than 0, got {value}")


def require_fraction(name: str, value: float) -> None:
    """Raise ValueError unless `value` is from 0 to 1; NaN raises too."""
    if not 0 <= value <= 1:
        raise ValueError(f"{name} must be from 0 to 1, got {value}")


def require_widths(name: str, sizes: tuple[int, ...] | None) -> None:
    """Raise ValueError unless `sizes` is None, or has at least one width and each is at least 1."""
    if sizes is not None and (not sizes or min(sizes) < 1):
        raise ValueError(f"{name} must name at least one width of at least 1, got {sizes}")
