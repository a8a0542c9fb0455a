"""Docstrings below the fields of dataclasses, read from the source because Python does not keep them."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import linecache
import re
import sys
import textwrap
import types
from collections.abc import Mapping


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
