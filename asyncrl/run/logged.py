"""Numbers that the user's callbacks and scripts log beside the run's own metrics.

A name has its newest value on the page, and in the metric files the value that it has when the next row is written, if
it was logged since the row before. Nothing that is learned depends on them.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from typing import Any

from asyncrl.show.kept_run import SECTIONS
from asyncrl.show.metrics import FIELDS

MOST_NAMES = 100
"""Most names of a run: each is a chart of the page and a column of its history."""
MOST_CHARACTERS = 80
_NAME = re.compile(r"[\w.:-]+(?:[ /][\w.:-]+)*", re.ASCII)
_ALLOWED = "letters, digits, `_`, `-`, `.` and `:`, with single spaces or `/` between them"


class LoggedMetrics:
    """The numbers that were logged in one run; any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._newest: dict[str, float] = {}
        self._fresh: dict[str, float] = {}

    def log(self, values: Mapping[str, Any]) -> None:
        """Take these values by name: all, or none if one is refused.

        Raises:
            TypeError: a name is no text, or a value is not one real number.
            ValueError: a name is one of the run's own, has other characters or is too long, or there are too many.
        """
        checked = {checked_name(name): _number(name, value) for name, value in values.items()}
        with self._lock:
            new = [name for name in checked if name not in self._newest]
            if len(self._newest) + len(new) > MOST_NAMES:
                first = new[MOST_NAMES - len(self._newest)]
                raise ValueError(
                    f"a run logs at most {MOST_NAMES} names, got {first!r} beyond them; "
                    "log one name with a mean over what the names tell apart, or write to a file of your own"
                )
            self._newest |= checked
            self._fresh |= checked

    def newest(self) -> dict[str, float]:
        """The newest value of every name, in the order of the first logs; a copy."""
        with self._lock:
            return dict(self._newest)

    def take(self) -> dict[str, float]:
        """The values that were logged since the last call."""
        with self._lock:
            fresh, self._fresh = self._fresh, {}
        return fresh

    def restore(self, newest: Mapping[str, Any]) -> None:
        """Take the newest values of the run that this one resumes."""
        before = {str(name): float(value) for name, value in newest.items()}
        with self._lock:
            self._newest = before | self._newest


def checked_name(name: Any) -> str:
    """Return the name. Raises TypeError or ValueError if no number may be logged by it."""
    if not isinstance(name, str):
        raise TypeError(
            f"a logged name must be a text, got {name!r}; write trainer.log('probe/success', 0.5)"
        )
    if len(name) > MOST_CHARACTERS or not _NAME.fullmatch(name):
        shown = name if len(name) <= MOST_CHARACTERS else f"{name[:MOST_CHARACTERS]}..."
        raise ValueError(
            f"a logged name must have at most {MOST_CHARACTERS} of {_ALLOWED}, got {shown!r}; "
            "write for example 'probe/success'"
        )
    section, slash, _ = name.partition("/")
    if slash and section in SECTIONS:
        raise ValueError(
            f"a logged name must not begin with {section}/, where the run's own metrics are, got {name!r}; "
            f"write for example 'my_{name}'"
        )
    if not slash and name in FIELDS:
        raise ValueError(
            f"a logged name must not be one of the run's own numbers, got {name!r}; write for example 'my/{name}'"
        )
    return name


def _number(name: Any, value: Any) -> float:
    """Value as a float; also of NumPy, and of a tensor with one element."""
    shape = tuple(getattr(value, "shape", ()))
    if shape:
        raise TypeError(
            f"the value of {name!r} must be one number, got an array of shape {shape}; log its mean, or one of it"
        )
    if not hasattr(type(value), "__float__") and not hasattr(type(value), "__index__"):
        raise TypeError(
            f"the value of {name!r} must be one number, got {value!r:.60} of type {type(value).__name__}; "
            "log an int or a float"
        )
    if hasattr(value, "detach"):  # torch warns of a tensor with a gradient
        value = value.detach()
    try:
        return float(value)
    except (OverflowError, TypeError, ValueError) as error:
        raise TypeError(
            f"the value of {name!r} must be a number that a float holds, got one that does not: {error}"
        ) from error
