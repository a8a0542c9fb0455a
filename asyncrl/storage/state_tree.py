"""Nested state as a JSON tree and the arrays that it names.

Reading runs no code, allocates no array beyond those given, and returns arrays that the caller may change. The tree:

    null, true, 3, 2.5, "text"      themselves; NaN and infinity as Python's `json` writes them
    ["list", ...], ["tuple", ...]   a list, a tuple
    ["dict", [key, value], ...]     a dict; keys are strings or integers
    ["array", name]                 a NumPy array; ["bytes", name] bytes; ["tensor", name] a tensor on the CPU;
                                    ["bfloat16", name] one of that dtype, which NumPy lacks
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_STATE_NODES = 100_000
"""Most values (dicts, lists, arrays, numbers and so on) in a state that is read."""
_PLAIN = (bool, int, float, str)


def tree_of(state: Mapping[str, Any]) -> tuple[Any, dict[str, NDArray[Any]]]:
    """Return the tree of a state and its arrays by name: views on the CPU where possible.

    Raises:
        TypeError: a value is not a dict, list, tuple, tensor, NumPy array, number, string, bytes or None.
    """
    arrays: dict[str, NDArray[Any]] = {}
    return _tree(state, arrays), arrays


def from_tree(tree: Any, arrays: Mapping[str, NDArray[Any]]) -> Any:
    """Return the value of a tree; its arrays and tensors are those of `arrays`.

    Raises:
        AttributeError, LookupError, TypeError, ValueError, RecursionError: `tree_of` makes no such tree.
    """
    return _Reader(dict(arrays)).value(tree)


def _tree(value: Any, arrays: dict[str, NDArray[Any]]) -> Any:
    """Convert a value to JSON; its arrays are added to `arrays`."""

    def named(kind: str, array: NDArray[Any]) -> list[str]:
        name = str(len(arrays))
        arrays[name] = array
        return [kind, name]

    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, _PLAIN):
        return value
    if isinstance(value, np.ndarray):
        return named("array", value)
    torch = sys.modules.get("torch")  # without it there is no tensor
    if torch is not None and isinstance(value, torch.Tensor):
        dense = value.detach().cpu().contiguous()
        if dense.dtype == torch.bfloat16:
            return named("bfloat16", dense.view(torch.int16).numpy())
        return named("tensor", dense.numpy())
    if isinstance(value, bytes):
        return named("bytes", np.frombuffer(value, np.uint8))
    if isinstance(value, Mapping):
        if bad := [key for key in value if not isinstance(key, str | int)]:
            raise TypeError(f"keys of a state must be text or integers, got {bad[0]!r}")
        return ["dict", *([key, _tree(item, arrays)] for key, item in value.items())]
    if isinstance(value, list | tuple):
        return ["list" if isinstance(value, list) else "tuple", *(_tree(item, arrays) for item in value)]
    raise TypeError(f"a state may hold tensors, arrays, numbers and texts, got {type(value).__name__}")


class _Reader:
    """Makes values from a tree and its arrays, at most `MAX_STATE_NODES`."""

    def __init__(self, arrays: dict[str, NDArray[Any]]) -> None:
        self._arrays = arrays
        self._nodes = MAX_STATE_NODES
        self._kinds: dict[str, Callable[..., Any]] = {
            "list": lambda *items: [self.value(item) for item in items],
            "tuple": lambda *items: tuple(self.value(item) for item in items),
            "dict": self._dict,
            "array": self._array,
            "bytes": lambda name: self._array(name, np.uint8).tobytes(),
            "tensor": lambda name: _tensor(self._array(name)),
            "bfloat16": lambda name: _tensor(self._array(name, np.int16), "bfloat16"),
        }

    def value(self, tree: Any) -> Any:
        self._nodes -= 1
        if self._nodes < 0:
            raise ValueError(f"it holds more than {MAX_STATE_NODES:,} values")
        if tree is None or isinstance(tree, _PLAIN):
            return tree
        if not isinstance(tree, list) or not tree or tree[0] not in self._kinds:
            raise TypeError("its tree is not in order")
        return self._kinds[tree[0]](*tree[1:])

    def _dict(self, *items: Any) -> dict[Any, Any]:
        found = {key: self.value(item) for key, item in items}
        if not all(type(key) in (str, int) for key in found):
            raise TypeError("its tree is not in order")
        return found

    def _array(self, name: str, dtype: type[Any] | None = None) -> NDArray[Any]:
        # Each array may occur once in the tree, so that no value is a view of another's.
        array = self._arrays.pop(name)
        if dtype is not None and array.dtype != dtype:
            raise TypeError(f"array {name} is {array.dtype}")
        return array


def _tensor(array: NDArray[Any], dtype: str | None = None) -> Any:
    """Tensor over `array`, its bits read as `dtype`."""
    import torch  # here, so that a policy is read without it

    tensor = torch.from_numpy(array)
    return tensor if dtype is None else tensor.view(getattr(torch, dtype))
