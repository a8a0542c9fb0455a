"""Pickling of factories and policies for the actors, with an error that names the unpicklable object (ASYNC001).

cloudpickle pickles lambdas, closures and everything defined in `__main__` or a notebook by value, so almost everything
pickles. What does not is usually inside another object: a lock in a closure, an open file in an attribute. The error of
pickle names only its type, so the search below finds the path to it.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import cloudpickle

from asyncrl.errors import FactoryNotPicklable

_MAX_DEPTH = 8
_MOST_OF_ARGUMENT, _MOST_OF_ARGUMENTS = 40, 80
"""Characters of one argument and of all, in the name of a `functools.partial`."""


def pack_factory(factory: Callable[[], object]) -> bytes:
    """Pickle `factory`, for `pickle.loads` in another process.

    Raises:
        FactoryNotPicklable: it contains an object that does not pickle (ASYNC001).
    """
    return _pack(factory, "environment factory")


def pack_policy(policy: object) -> bytes:
    """Pickle a policy for the actors; a network factory defined in `__main__` is pickled by value.

    Raises:
        FactoryNotPicklable: its network factory contains an object that does not pickle (ASYNC001).
    """
    return _pack(policy, "policy")


def pack_network(network: Callable[[int, int], object]) -> bytes:
    """Pickle the factory of a network. Raises `FactoryNotPicklable` as `pack_factory` does."""
    return _pack(network, "network factory")


def pack_functions(functions: Mapping[str, Callable[[float], float] | None]) -> bytes:
    """Pickle functions by name. Raises `FactoryNotPicklable` as `pack_factory` does."""
    return _pack(dict(functions), "functions")


def _pack(thing: object, what: str) -> bytes:
    try:
        packed: bytes = cloudpickle.dumps(thing)
        return packed
    except Exception as error:
        raise _explain(thing, error, what) from error


def factory_name(factory: object) -> str:
    """Name of a factory in messages and files, the same in every process.

    It is the qualified name, with file and line for a lambda and with the arguments of a `functools.partial`.
    """
    if isinstance(factory, partial):
        given = [_argument(value) for value in factory.args]
        given += [f"{name}={_argument(value)}" for name, value in factory.keywords.items()]
        arguments = _cut(", ".join(given), _MOST_OF_ARGUMENTS)
        return f"{factory_name(factory.func)}({arguments})" if given else factory_name(factory.func)
    name = str(getattr(factory, "__qualname__", type(factory).__qualname__))
    code = getattr(factory, "__code__", None)
    if "<lambda>" in name and code is not None:
        return f"{name} in {code.co_filename.rsplit('/', 1)[-1]}:{code.co_firstlineno}"
    return name


def _argument(value: object) -> str:
    """Short text of an argument; an object's own text may hold its address or be long, so its type stands for it."""
    if value is None or isinstance(value, bool | int | float | str):
        return _cut(repr(value), _MOST_OF_ARGUMENT)
    if callable(value):
        return factory_name(value)
    return f"<{type(value).__qualname__}>"


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 3]}..."


def _explain(thing: object, error: Exception, what: str) -> FactoryNotPicklable:
    name = factory_name(thing)
    path, culprit = _find_culprit(thing)
    described = f"{_short_repr(culprit)} of type {_type_name(culprit)}"
    where = " -> ".join([name, *path])
    return FactoryNotPicklable(
        f"The {what} {name} cannot be sent to the actors: {described} does not pickle.",
        facts={"object": described, "captured": where, "pickle says": f"{type(error).__name__}: {error}"},
        fix="create that object inside the factory or the environment's __init__ instead of capturing it",
    )


def _find_culprit(root: object) -> tuple[list[str], object]:
    """Find the innermost unpicklable object reachable from `root`; return the path to it, and the object."""
    path: list[str] = []
    seen = {id(root)}
    current = root
    for _ in range(_MAX_DEPTH):
        for step, held in _held_by(current):
            if id(held) not in seen and not _pickles(held):
                seen.add(id(held))
                path.append(step)
                current = held
                break
        else:
            break
    return path, current


def _pickles(thing: object) -> bool:
    try:
        cloudpickle.dumps(thing)
    except Exception:
        return False
    return True


def _held_by(thing: object) -> Iterator[tuple[str, object]]:
    """Yield the objects that pickling `thing` includes, each with a description of its place."""
    if isinstance(thing, types.MethodType):
        yield "bound object", thing.__self__
        thing = thing.__func__
    if isinstance(thing, types.FunctionType):
        yield from _held_by_function(thing)
    if isinstance(thing, dict):
        yield from ((f"[{key!r}]", value) for key, value in thing.items())
    elif isinstance(thing, (list, tuple, set, frozenset)):
        yield from ((f"[{i}]", value) for i, value in enumerate(thing))
    elif isinstance(thing, type):
        if thing.__module__ == "__main__" or "<locals>" in thing.__qualname__:
            yield from ((f"class attribute {name!r}", value) for name, value in vars(thing).items())
    else:
        yield from ((f"argument {i}", value) for i, value in enumerate(getattr(thing, "args", ())))
        yield from ((f"argument {k!r}", v) for k, v in (getattr(thing, "keywords", None) or {}).items())
        if hasattr(thing, "func"):
            yield "wrapped function", thing.func
        yield from ((f"attribute {name!r}", value) for name, value in getattr(thing, "__dict__", {}).items())
        yield "class", type(thing)


def _held_by_function(function: types.FunctionType) -> Iterator[tuple[str, object]]:
    code = function.__code__
    where = f"{code.co_filename.rsplit('/', 1)[-1]}:{code.co_firstlineno}"
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f"closure variable {name!r} ({where})", cell.cell_contents
        except ValueError:
            continue  # an empty cell
    for name in _global_names(code):
        if name in function.__globals__:
            yield f"global variable {name!r} ({where})", function.__globals__[name]
    yield from ((f"default value {i}", value) for i, value in enumerate(function.__defaults__ or ()))
    yield from ((f"default of {k!r}", value) for k, value in (function.__kwdefaults__ or {}).items())


def _global_names(code: types.CodeType) -> list[str]:
    names = list(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names += _global_names(constant)
    return names


def _type_name(thing: Any) -> str:
    kind = type(thing)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _short_repr(thing: object) -> str:
    try:
        text = repr(thing)
    except Exception:
        text = object.__repr__(thing)
    return _cut(text, 80)
