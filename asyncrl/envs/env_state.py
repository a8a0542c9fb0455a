"""Environments in mid-episode as bytes, where they really pickle.

Most environments written in Python do: gymnasium's classic control and toy text, and vectors of them. Those that are
`gymnasium.utils.EzPickle` (MuJoCo, Box2D, Atari) pickle their constructor's arguments only and come back in no episode
at all, so one of them anywhere in what is pickled counts as not picklable. What holds processes, windows or native
state does not pickle in the first place.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import cloudpickle

from asyncrl.errors import error_text


class StateNotKept(Exception):
    """Environments cannot be kept in mid-episode; the text says which object is in the way."""


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Refuses objects that would come back without their state."""

    def persistent_id(self, value: Any) -> None:
        kind = type(value)
        if _rebuilds_itself(kind):
            raise StateNotKept(f"{kind.__name__} pickles its constructor's arguments only (EzPickle)")


def _rebuilds_itself(kind: type) -> bool:
    """Whether a class is an EzPickle that has not got a `__getstate__` of its own."""
    from gymnasium.utils import EzPickle

    return (
        isinstance(kind, type)
        and issubclass(kind, EzPickle)
        and getattr(kind, "__getstate__", None) is EzPickle.__getstate__
    )


def pack_state(state: object) -> bytes:
    """`state`, environments and whatever goes with them, as bytes for `unpack_state`.

    Raises:
        StateNotKept: something in it does not pickle, or would come back without its state.
    """
    file = io.BytesIO()
    try:
        _Pickler(file, protocol=pickle.HIGHEST_PROTOCOL).dump(state)
    except StateNotKept:
        raise
    except Exception as error:
        raise StateNotKept(f"{type(error).__name__}: {error_text(error)}") from error
    return file.getvalue()


def unpack_state(data: bytes) -> Any:
    """What `pack_state` was given; runs the code in it. Raises whatever the pickle raises."""
    return pickle.loads(data)
