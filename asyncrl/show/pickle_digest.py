"""Digest of cloudpickled functions: the same for one script in every process, wherever its code stands.

Nothing is unpickled, as a run's directory may come from anybody.
"""

from __future__ import annotations

import hashlib
import pickletools
import re
from typing import Any

SOURCE_FILE = re.compile(r".*\.py|<stdin>|<string>|<dynamic-code>|<ipython-input.*>", re.DOTALL)
CLASS_ID = re.compile(r"[0-9a-f]{32}")
"""Random id that cloudpickle gives a class of a script, another one in every process."""
CELL = "cloudpickle.cloudpickle _make_cell"
"""The function that makes a variable of a closure."""
TUPLES = ("EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3")
ENDS_OF_MARKS = ("TUPLE", "LIST", "DICT", "APPENDS", "SETITEMS", "POP_MARK")
SETS = ("FROZENSET", "ADDITEMS")
"""Their items come in another order in every process."""


def pickle_digest(data: bytes, seed: int | None) -> str:
    """Digest of 8 characters of a pickle by cloudpickle.

    Left out are names of source files, numbers of lines, cloudpickle's ids of classes, and the seed of the run where it
    is a closure's variable or has a name with "seed".

    Raises:
        ValueError: `data` is no pickle.
    """
    reading = _Reading(seed)
    for opcode, arg, _ in pickletools.genops(data):
        reading.read(opcode.name, arg)
    return hashlib.sha256(repr(reading.found).encode("utf-8", "surrogatepass")).hexdigest()[:8]


class _Reading:
    """What counts of the operations of a pickle.

    Attributes:
        found: operations without an argument by name, strings and numbers as they are.
        recent: the last values, also those that do not count; None for one that is no string or number.
        memo: values that later operations refer to by their place.
        marks: places in `found` where collections began.
    """

    def __init__(self, seed: int | None) -> None:
        self._seed = seed
        self.found: list[Any] = []
        self.recent: list[Any] = [None] * 4
        self.memo: list[Any] = []
        self.marks: list[int] = []
        self._attributes = False

    def read(self, name: str, arg: Any) -> None:
        """Add an operation; `arg` is None if it has none."""
        if name == "MEMOIZE":
            self.memo.append(self.recent[-1])
        elif name in ("BINGET", "LONG_BINGET"):
            self._value(self.memo[arg] if arg < len(self.memo) else None, name)
        elif name in ("FRAME", "PROTO"):
            pass
        elif arg is not None:
            self._value(arg, name)
        else:
            self._build(name)

    def _build(self, name: str) -> None:
        """Add an operation that makes a value of those before it."""
        if name in TUPLES:
            self._attributes = False
        if name == "MARK":
            self.marks.append(len(self.found))
        elif (name in SETS or name in ENDS_OF_MARKS) and self.marks:
            first = self.marks.pop()
            if name in SETS:
                self.found[first:] = sorted(self.found[first:], key=repr)
        if name == "STACK_GLOBAL":
            self.recent[-1] = f"{self.recent[-2]} {self.recent[-1]}"
        elif name != "MARK":
            self.recent.append(None)
        self.found.append((name,))

    def _value(self, value: Any, name: str) -> None:
        """Add a string or number, or one that was met before; None is another value that was met before."""
        if not self._is_left_out(value):
            self.found.append((name,) if value is None else value)
        if value == "__static_attributes__":
            self._attributes = True  # a tuple made of a set: see `SETS`
        self.recent.append(value)

    def _is_left_out(self, value: Any) -> bool:
        last = self.recent[-1]
        if isinstance(value, str):
            return self._attributes or is_file(value) or CLASS_ID.fullmatch(value) is not None
        # A code object has its file, its name, its qualified name, its first line and its table of lines in this order.
        if isinstance(value, bytes):
            return is_file(self.recent[-4])
        if last == "__firstlineno__" or is_file(self.recent[-3]):
            return True
        return value == self._seed and isinstance(last, str) and (last == CELL or "seed" in last.lower())


def is_file(value: Any) -> bool:
    """Whether a value is the name of a source file."""
    return isinstance(value, str) and SOURCE_FILE.fullmatch(value) is not None
