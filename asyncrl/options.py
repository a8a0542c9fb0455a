"""Options: fields of frozen records, each with a type, a default and a docstring that is its help text.

A record of options is a frozen dataclass whose fields are each followed by a string literal:

    @dataclass(frozen=True, kw_only=True)
    class Pace:
        batch_size: Count = 64
        \"\"\"Transitions per update.\"\"\"

The record is the only source of the command line's flags and help (`option_help`), of the check of a configuration file
and of the conversion of text (`coerce`). The range of an option is part of its annotation (`Annotated[int, COUNT]`, in
short `Count`); a field of a subclass without a range keeps that of the base. The record's `__post_init__` calls
`check_options` and then checks only rules across several fields. Errors are ValueErrors that begin with the field's
name, `num_actors must be at least 1, got 0`; the caller adds the origin of the value.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import functools
import inspect
import linecache
import math
import numbers
import re
import sys
import textwrap
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, Literal, Protocol, TypeVar, Union, get_args, get_origin
from urllib.parse import urlsplit

T = TypeVar("T")

FunctionOfProgress = Callable[[float], float]
"""Number that changes over a run, as a function of the fraction of `total_steps` done, from 0 to 1."""

_SUFFIXES = {"k": 1_000, "m": 1_000_000, "g": 1_000_000_000}


class Constraint(Protocol):
    """Rule for the values of an option, in the metadata of its `Annotated` type; `str` is its text in help."""

    def check(self, name: str, value: Any) -> None:
        """Raise ValueError, with a text that begins with `name`, if `value` breaks the rule."""
        ...


@dataclass(frozen=True, kw_only=True)
class Range:
    """Range of a number; values that are no numbers, such as None, pass, and NaN does not.

    Attributes:
        at_least, above, at_most, below: limits; None sets no limit.
        finite: whether infinity is refused.
        noun: text before the limits.
    """

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None
    finite: bool = False
    noun: str = ""

    def __str__(self) -> str:
        limits = {
            "at least": self.at_least,
            "greater than": self.above,
            "at most": self.at_most,
            "below": self.below,
        }
        texts = [f"{word} {limit}" for word, limit in limits.items() if limit is not None]
        if self.at_least is not None and self.at_most is not None:
            texts = [f"from {self.at_least} to {self.at_most}"]
        return f"{self.noun} ".lstrip() + " and ".join([*texts, *["finite"] * self.finite])

    def check(self, name: str, value: Any) -> None:
        """See `Constraint`."""
        if isinstance(value, numbers.Real) and not self._holds(value):
            raise ValueError(f"{name} must be {self}, got {value}")

    def _holds(self, value: Any) -> bool:
        return (
            (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.at_most is None or value <= self.at_most)
            and (self.below is None or value < self.below)
            and (not self.finite or math.isfinite(value))
        )


class _Widths:
    def __str__(self) -> str:
        return "at least one layer, each at least 1 wide"

    def check(self, name: str, value: Any) -> None:
        if value is not None and (not value or min(value) < 1):
            raise ValueError(f"{name} must name at least one width of at least 1, got {value}")


class _NotEmpty:
    def __str__(self) -> str:
        return "not empty"

    def check(self, name: str, value: Any) -> None:
        if value is not None and not value:
            raise ValueError(f"{name} must not be empty, got {value!r}")


class _HttpAddress:
    def __str__(self) -> str:
        return "an address that begins with http:// or https://"

    def check(self, name: str, value: Any) -> None:
        if value is not None and not (re.fullmatch(r"https?://\S+", value) and _has_host(value)):
            raise ValueError(f"{name} must be {self}, got {value!r}")


def _has_host(address: str) -> bool:
    """Whether an address names a host, and a port that there may be, if any."""
    try:
        parts = urlsplit(address)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:  # a bracket that is not closed, a port that is no number
        return False


COUNT = Range(at_least=1)
Count = Annotated[int, COUNT]
"""Whole number of at least 1."""
NotNegative = Annotated[int, Range(at_least=0)]
"""Whole number of at least 0."""
Positive = Annotated[float, Range(above=0)]
Coefficient = Annotated[float, Range(at_least=0)]
"""Number of at least 0."""
Fraction = Annotated[float, Range(at_least=0, at_most=1)]
Finite = Annotated[float, Range(finite=True)]
Widths = Annotated[tuple[int, ...], _Widths()]
"""Widths of hidden layers, at least one."""
Text = Annotated[str, _NotEmpty()]
"""Text that is not empty."""
HttpAddress = Annotated[str, _HttpAddress()]


@dataclass(frozen=True)
class Option:
    """One field of a record of options.

    Attributes:
        name: the field's name.
        type: the field's resolved annotation, without its constraints.
        default: the field's default, or `dataclasses.MISSING` if it has none.
        text: the docstring below the field, on one line.
        range: the constraints as text, "" without any.
        constraints: what a value must hold, beside its type.
    """

    name: str
    type: Any
    default: object
    text: str
    range: str
    constraints: tuple[Constraint, ...] = ()

    @property
    def required(self) -> bool:
        """Whether the option has no default."""
        return self.default is dataclasses.MISSING

    @property
    def help(self) -> str:
        """The docstring, and the range as a sentence."""
        return f"{self.text} {self.range[0].upper()}{self.range[1:]}." if self.range else self.text


def option_help(record: type) -> Mapping[str, Option]:
    """All options of `record` by name, in the order of its fields.

    A field with metadata `{"option": False}` is not an option: it cannot be given on a command line or in a file. A
    field with metadata `{"type": kind}` is limited to `kind` on a command line and in a file; Python accepts more.

    Raises:
        TypeError: `record` is not a dataclass.
        ValueError: a field has no docstring below it.
    """
    return _options(record)


def python_options(record: type) -> tuple[str, ...]:
    """Names of the fields of `record` that are functions alone, and so given in Python only; see `option_help`."""
    return tuple(field.name for field in dataclasses.fields(record) if not field.metadata.get("option", True))


@functools.cache
def _options(record: type) -> Mapping[str, Option]:
    hints, (docs, complete) = _hints(record), field_docstrings(record)
    if not dataclasses.is_dataclass(record):
        raise TypeError(f"record must be a dataclass, got {record!r}")
    options = {}
    for field in dataclasses.fields(record):
        if not field.metadata.get("option", True):
            continue
        if field.name not in docs and complete:
            raise ValueError(f"{record.__name__}.{field.name} must have a docstring under it, got none")
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        kind, constraints = hints[field.name]
        kind, within = field.metadata.get("type", kind), " and ".join(map(str, constraints))
        text = docs.get(field.name, "")
        options[field.name] = Option(field.name, kind, default, text, within, constraints)
    return types.MappingProxyType(options)


@functools.cache
def _hints(record: type) -> Mapping[str, tuple[Any, tuple[Constraint, ...]]]:
    """Type without constraints, and constraints, of every annotation; those of a base hold unless others are given."""
    hints: dict[str, tuple[Any, tuple[Constraint, ...]]] = {}
    for cls in reversed(record.__mro__):
        for name, annotation in inspect.get_annotations(cls, eval_str=True).items():
            kind, own = _without_constraints(annotation)
            hints[name] = kind, own or hints.get(name, (None, ()))[1]
    return hints


def _without_constraints(annotation: Any) -> tuple[Any, tuple[Constraint, ...]]:
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        kind, constraints = _without_constraints(parts[0])
        return kind, (*constraints, *(item for item in parts[1:] if hasattr(item, "check")))
    if origin in (Union, types.UnionType):
        found = [_without_constraints(part) for part in parts]
        return Union[tuple(kind for kind, _ in found)], tuple(item for _, own in found for item in own)  # noqa: UP007
    return annotation, ()


def check_options(record: Any, keep: Iterable[str] = ()) -> None:
    """Convert every option of a frozen record to its type and check its range; called by its `__post_init__`.

    Options in `keep` are not converted.

    Raises:
        ValueError: an option has the wrong type or is outside its range.
    """
    kind: Any = type(record)
    for name, option in option_help(kind).items():
        if name not in keep:
            object.__setattr__(record, name, coerce(name, option.type, getattr(record, name)))
    hints = _hints(kind)
    for name in python_options(kind):
        object.__setattr__(record, name, coerce(name, hints[name][0], getattr(record, name)))
    for field in dataclasses.fields(record):
        for constraint in hints[field.name][1]:
            constraint.check(field.name, getattr(record, field.name))


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
        written = "; write 64,64" if kind == tuple[int, ...] and isinstance(value, str) else ""
        raise ValueError(f"{name} must be {describe(kind)}, got {value!r}{written}") from None


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

    `easy.size:4` is an item of the mapping `easy`.

    Raises:
        ValueError: an item's key is not an identifier or is there twice, or its value is missing.
    """
    values: dict[str, Any] = {}
    for text in texts:
        path, _, value = text.partition(":")
        outer, dot, key = path.partition(".")
        if not outer.isidentifier() or (dot and not key.isidentifier()) or not value:
            raise ValueError(text)
        into, name = (values.setdefault(outer, {}), key) if dot else (values, outer)
        if not isinstance(into, dict) or name in into:
            raise ValueError(text)
        try:
            into[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            into[name] = value
    return values


def texts_of_mapping(values: Mapping[str, Any]) -> list[str]:
    """Format `values` as texts that `mapping_from_texts` parses back; NumPy's numbers become Python's.

    Raises:
        ValueError: a value is not a Python literal.
    """
    texts = [f"{key}:{_without_numpy(value)!r}" for key, value in values.items()]
    if mapping_from_texts(texts) != dict(values):
        raise ValueError(values)
    return texts


def _without_numpy(value: Any) -> Any:
    """`value` with Python's numbers in place of NumPy's, whose texts are not literals."""
    if isinstance(value, Mapping):
        return {key: _without_numpy(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_without_numpy, value))
    return value.item() if getattr(value, "shape", None) == () else value


def _convert_union(kinds: tuple[Any, ...], value: Any) -> Any:
    refused: ValueError = ValueError(value)
    # str last, so that "8080" is a number for `str | int`.
    for kind in sorted(kinds, key=lambda kind: kind is str):
        try:
            return _convert(kind, value)
        except _TooLarge as error:
            refused = error
        except (KeyError, TypeError, ValueError):
            continue
    raise refused


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
        return "a function of progress" if len(get_args(kind)[0]) == 1 else "a function"
    if origin is Mapping:
        return "key:value pairs of Python literals"
    return _NAMES[kind]


def field_docstrings(record: type) -> tuple[dict[str, str], bool]:
    """Docstrings of the fields of `record` and its bases, one line each, and whether all sources were found."""
    docs: dict[str, str] = {}
    complete = True
    for cls in reversed(record.__mro__):
        if not dataclasses.is_dataclass(cls):
            continue
        own = _own_docstrings(cls)
        if own is None:
            complete = False
            continue
        docs |= own
    return docs, complete


@functools.cache
def _own_docstrings(cls: type) -> Mapping[str, str] | None:
    """Docstrings in the class statement of `cls`, without its bases; None if the source is not found."""
    definition = _in_module(cls) or _definition(cls)
    if definition is None:
        return None
    docs: dict[str, str] = {}
    for field, text in zip(definition.body, definition.body[1:], strict=False):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(doc))):
                docs[name] = " ".join(doc.split())
    return docs


def _in_module(cls: type) -> ast.ClassDef | None:
    """Class statement of a class defined exactly once at the top level of its module's file, None for any other.

    Faster than `inspect`, which parses the whole file for each class.
    """
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    source = "".join(linecache.getlines(file)) if file else ""
    found = list(
        re.finditer(rf"^class {re.escape(cls.__qualname__)}\b.*?(?=^[^\s)#]|\Z)", source, re.M | re.S)
    )
    if len(found) != 1:
        return None
    try:
        (definition,) = ast.parse(found[0].group()).body
    except (SyntaxError, ValueError):  # text at the left margin within the class
        return None
    return definition if isinstance(definition, ast.ClassDef) else None


def _definition(cls: type) -> ast.ClassDef | None:
    """Class statement found by `inspect` or in a notebook's cell, None if the source is not found."""
    try:
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    except (OSError, TypeError):  # in a notebook a class has no file, but its methods have the cell's
        return _in_cell(cls)
    return definition if isinstance(definition, ast.ClassDef) else None


def _in_cell(cls: type) -> ast.ClassDef | None:
    methods = [value for value in vars(cls).values() if isinstance(value, types.FunctionType)]
    for file in {method.__code__.co_filename for method in methods}:
        for node in ast.walk(ast.parse("".join(linecache.getlines(file)))):
            if isinstance(node, ast.ClassDef) and node.name == cls.__name__:
                return node
    return None


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
    return f"        {name}:\n" + textwrap.indent(textwrap.fill(text, 88), " " * 12)
