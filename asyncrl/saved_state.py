"""State of objects in checkpoints. `STATE` of a class lists the names of the attributes that are its state.

`saved` copies them, `restore` puts them back into a new object, whose constructor makes everything else. The saved
value of an attribute, under its name without leading underscores:

    object with STATE, network      the dict of its own state (`state_dict`)
    torch tensor, generator         a copy on the host; restored in place
    NumPy array                     a copy; restored in place
    NumPy generator                 its state as JSON, because its integers have more than 64 bits; restored in place
    sequence or dict of such parts  one of their states
    None                            nothing: the attribute is left out
    other values                    a copy; restored by assignment
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any

import numpy as np


class Stateful:
    """Base of classes with `STATE` that are saved by themselves."""

    STATE: tuple[str, ...] = ()
    """Names of the attributes that are the state."""

    def state_dict(self) -> dict[str, Any]:
        """State as copies on the host; see `STATE`."""
        return saved(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; the object continues with the same numbers.

        Raises:
            ValueError: a part is missing or has another shape; nothing is written in that case.
        """
        restore(self, state)

    def _refuse(self, state: Mapping[str, Any]) -> None:
        """Raise an error if the state belongs elsewhere; called before its shapes are compared with one's own."""

    def _restored(self) -> None:
        """Compute what follows from the state; called after it was restored."""


def attributes(part: Any) -> dict[str, Any]:
    """Attributes in `part.STATE` by name without leading underscores; not copies, and without those that are None."""
    values = {name.lstrip("_"): getattr(part, name) for name in part.STATE}
    return {name: value for name, value in values.items() if value is not None}


def set_attributes(part: Any, values: Mapping[str, Any]) -> None:
    """Set the result of `attributes` of another object."""
    for name in part.STATE:
        setattr(part, name, values.get(name.lstrip("_")))


def saved(part: Any) -> dict[str, Any]:
    """State of `part` as copies on the host."""
    return {name: _saved(value) for name, value in attributes(part).items()}


def restore(part: Any, state: Mapping[str, Any]) -> None:
    """Restore a result of `saved`.

    Raises:
        ValueError: a part is missing or has another shape or dtype; nothing is written in that case.
        Exception: what a part's `_refuse` raises; nothing is written in that case either.
    """
    _require_attributes(part, state, "state")
    _restore_attributes(part, state)


def generator_state(rng: np.random.Generator) -> str:
    """State of a NumPy generator as JSON."""
    return json.dumps(rng.bit_generator.state)


def restore_generator(rng: np.random.Generator, state: str) -> None:
    """Restore a result of `generator_state`. Raises ValueError if it is from another kind of generator."""
    rng.bit_generator.state = json.loads(state)


def _saved(value: Any) -> Any:
    if hasattr(value, "state_dict"):
        return value.state_dict()
    if hasattr(value, "STATE"):
        return saved(value)
    if isinstance(value, np.random.Generator):
        return generator_state(value)
    if _is_generator(value):
        return value.get_state()
    if _is_tensor(value):
        return value.detach().cpu().clone()
    if isinstance(value, Mapping) and _is_part(next(iter(value.values()), None)):
        return {name: _saved(own) for name, own in value.items()}
    if isinstance(value, list) and _is_part(next(iter(value), None)):
        return [_saved(own) for own in value]
    return copy.deepcopy(value)


def _restore_attributes(part: Any, state: Mapping[str, Any]) -> None:
    for name in part.STATE:
        if (key := name.lstrip("_")) in state and not _restored_in_place(getattr(part, name), state[key]):
            setattr(part, name, copy.deepcopy(state[key]))
    if hasattr(part, "_restored"):
        part._restored()


def _restored_in_place(own: Any, state: Any) -> bool:
    """Restore `own` in place, or return False if it has to be assigned."""
    if hasattr(own, "load_state_dict"):
        own.load_state_dict(state)
    elif hasattr(own, "STATE"):
        _restore_attributes(own, state)
    elif isinstance(own, np.random.Generator):
        restore_generator(own, state)
    elif _is_generator(own):
        own.set_state(state)
    elif _is_tensor(own):
        own.detach().copy_(state)
    elif isinstance(own, np.ndarray):
        own[...] = state
    elif isinstance(own, Mapping) and _is_part(next(iter(own.values()), None)):
        return all(_restored_in_place(value, state[name]) for name, value in own.items())
    elif isinstance(own, list) and _is_part(next(iter(own), None)):
        return all(_restored_in_place(value, found) for value, found in zip(own, state, strict=True))
    else:
        return False
    return True


def _require_attributes(part: Any, state: object, path: str) -> None:
    if hasattr(part, "_refuse") and isinstance(state, Mapping):
        part._refuse(state)
    names = {name.lstrip("_"): getattr(part, name) for name in part.STATE}
    needed = {name for name, value in names.items() if value is not None}
    _require_keys(state, needed, set(names), path)
    assert isinstance(state, Mapping)
    for name, own in names.items():
        if name in state:
            _require_like(own, state[name], f"{path}.{name}")


def _require_keys(state: object, needed: set[Any], allowed: set[Any], path: str) -> None:
    if not isinstance(state, Mapping) or not needed <= set(state) <= allowed:
        got = sorted(map(str, state)) if isinstance(state, Mapping) else type(state).__name__
        raise ValueError(f"{path} must hold {sorted(map(str, needed))}, got {got}")


def _require_like(own: Any, state: Any, path: str) -> None:
    """Raise ValueError unless `state` is the saved state of an object like `own`."""
    if own is None and isinstance(state, Mapping):
        raise ValueError(f"{path} must be nothing, got {sorted(map(str, state))}")
    if hasattr(own, "STATE"):
        _require_attributes(own, state, path)
    elif hasattr(own, "state_dict"):
        _require_like(own.state_dict(), state, path)
    elif _is_generator(own):
        _require_like(own.get_state(), state, path)
    elif _is_tensor(own) or isinstance(own, np.ndarray):
        shape, got = tuple(own.shape), tuple(getattr(state, "shape", ()))
        if shape != got:
            raise ValueError(f"{path} must have shape {shape}, got {got}")
        if isinstance(own, np.ndarray) and getattr(state, "dtype", None) != own.dtype:
            raise ValueError(
                f"{path} must be {own.dtype}, got {getattr(state, 'dtype', type(state).__name__)}"
            )
    elif isinstance(own, Mapping) and _is_part(next(iter(own.values()), None)):
        _require_keys(state, set(own), set(own), path)
        for name, value in own.items():
            _require_like(value, state[name], f"{path}.{name}")
    elif isinstance(own, list) and _is_part(next(iter(own), None)):
        if not isinstance(state, list) or len(state) != len(own):
            found = len(state) if isinstance(state, list) else type(state).__name__
            raise ValueError(f"{path} must hold {len(own)} parts, got {found}")
        for place, value in enumerate(own):
            _require_like(value, state[place], f"{path}[{place}]")


def _is_part(value: Any) -> bool:
    """Whether a value in a dict or list is restored in place; a dict of arrays is a plain value."""
    return (
        hasattr(value, "STATE") or hasattr(value, "state_dict") or _is_tensor(value) or _is_generator(value)
    )


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "copy_") and hasattr(value, "detach")


def _is_generator(value: Any) -> bool:
    return hasattr(value, "get_state") and hasattr(value, "set_state")
