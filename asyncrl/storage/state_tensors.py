"""Nested state as a safetensors file: the arrays and tensors, and the tree that contains them as JSON.

    __metadata__    "state"    JSON: the tree, whose leaves are values or the names of tensors
    0, 1, ...       every array and tensor, in the order of the tree

Reading runs no code, allocates no array larger than the file, and returns arrays that the caller may change. The tree:

    null, true, 3, 2.5, "text"      themselves; NaN and infinity as Python's `json` writes them
    ["list", ...], ["tuple", ...]   a list, a tuple
    ["dict", [key, value], ...]     a dict; keys are strings or integers
    ["array", name]                 a NumPy array; ["bytes", name] bytes; ["tensor", name] a tensor on the CPU;
                                    ["bfloat16", name] one of that dtype, which NumPy lacks
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load as parse_tensors
from safetensors.numpy import save as pack_tensors

MAX_STATE_NODES = 100_000
"""Most values (dicts, lists, tensors, numbers and so on) in a state that is read."""
_PLAIN = (bool, int, float, str)


def pack(state: Mapping[str, Any]) -> bytes:
    """Encode a state as the bytes of a file.

    Raises:
        TypeError: a value is not a dict, list, tuple, tensor, NumPy array, number, string, bytes or None.
    """
    tensors: dict[str, NDArray[Any]] = {}
    tree = _tree(state, tensors)
    return bytes(pack_tensors(tensors, metadata={"state": json.dumps(tree)}))


def unpack(data: bytes) -> dict[str, Any]:
    """Decode the state in a file; arrays and tensors are the caller's own.

    Raises:
        Exception: `pack` does not write such a file; several kinds, such as those of JSON and safetensors.
    """
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    state = _Reader(parse_tensors(data)).value(json.loads(header["__metadata__"]["state"]))
    if not isinstance(state, dict):
        raise TypeError(f"it holds a {type(state).__name__}, not a dict")
    return state


def _tree(value: Any, tensors: dict[str, NDArray[Any]]) -> Any:
    """Convert a value to JSON; its arrays are added to `tensors`."""

    def named(kind: str, array: NDArray[Any]) -> list[str]:
        name = str(len(tensors))
        tensors[name] = np.array(array, order="C")  # unlike ascontiguousarray, keeps 0 dimensions
        return [kind, name]

    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, _PLAIN):
        return value
    if isinstance(value, np.ndarray):
        return named("array", value)
    if isinstance(value, torch.Tensor):
        dense = value.detach().cpu().contiguous()
        if dense.dtype == torch.bfloat16:
            return named("bfloat16", dense.view(torch.int16).numpy())
        return named("tensor", dense.numpy())
    if isinstance(value, bytes):
        return named("bytes", np.frombuffer(value, np.uint8))
    if isinstance(value, Mapping):
        if bad := [key for key in value if not isinstance(key, str | int)]:
            raise TypeError(f"keys of a state must be text or integers, got {bad[0]!r}")
        return ["dict", *([key, _tree(item, tensors)] for key, item in value.items())]
    if isinstance(value, list | tuple):
        return ["list" if isinstance(value, list) else "tuple", *(_tree(item, tensors) for item in value)]
    raise TypeError(f"a state may hold tensors, arrays, numbers and texts, got {type(value).__name__}")


class _Reader:
    """Makes values from a tree and its tensors, at most `MAX_STATE_NODES`."""

    def __init__(self, tensors: dict[str, NDArray[Any]]) -> None:
        self._tensors = tensors
        self._nodes = MAX_STATE_NODES
        self._kinds: dict[str, Callable[..., Any]] = {
            "list": lambda *items: [self.value(item) for item in items],
            "tuple": lambda *items: tuple(self.value(item) for item in items),
            "dict": self._dict,
            "array": self._array,
            "bytes": lambda name: self._array(name, np.uint8).tobytes(),
            "tensor": lambda name: torch.from_numpy(self._array(name)),
            "bfloat16": lambda name: torch.from_numpy(self._array(name, np.int16)).view(torch.bfloat16),
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
        # Each tensor may occur once in the tree: repeats could need more memory than the file has bytes.
        array = self._tensors.pop(name)
        if dtype is not None and array.dtype != dtype:
            raise TypeError(f"tensor {name} is {array.dtype}")
        return np.array(array)
