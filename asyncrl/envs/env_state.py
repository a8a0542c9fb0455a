"""Pickles of environments in mid-episode, if their state is picklable.

That of most environments written in Python is: gymnasium's classic control and toy text, and vectors of them. A pickle
of a `gymnasium.utils.EzPickle` (MuJoCo, Box2D, Atari) contains the constructor's arguments only, not the episode, so
such an object anywhere in the state counts as not picklable. Processes, windows and native state do not pickle.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import cloudpickle

from asyncrl.errors import describe_error


class StateNotKept(Exception):
    """The state of the environments cannot be pickled in mid-episode; the message names the object that prevents it."""


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickler that refuses objects whose pickle would not contain their state."""

    def persistent_id(self, value: Any) -> None:
        kind = type(value)
        if _rebuilds_itself(kind):
            raise StateNotKept(f"{kind.__name__} pickles its constructor's arguments only (EzPickle)")


def _rebuilds_itself(kind: type) -> bool:
    """Whether a class is an EzPickle without a `__getstate__` of its own."""
    from gymnasium.utils import EzPickle

    return (
        isinstance(kind, type)
        and issubclass(kind, EzPickle)
        and getattr(kind, "__getstate__", None) is EzPickle.__getstate__
    )


def pack_state(state: object) -> bytes:
    """Pickle `state`, which contains environments, for `unpack_state`.

    Raises:
        StateNotKept: an object in it does not pickle, or its pickle would not contain its state.
    """
    file = io.BytesIO()
    try:
        _Pickler(file, protocol=pickle.HIGHEST_PROTOCOL).dump(state)
    except StateNotKept:
        raise
    except Exception as error:
        raise StateNotKept(describe_error(error)) from error
    return file.getvalue()


def unpack_state(data: bytes) -> Any:
    """Unpickle the result of `pack_state`; executes code in it. Raises whatever unpickling raises."""
    return pickle.loads(data)
