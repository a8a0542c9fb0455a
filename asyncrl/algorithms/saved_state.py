"""State of an updater: copies of its parts on the host, their check, and their restoration.

A part is a tensor, a random generator, an object with `state_dict` and `load_state_dict` (a network, an optimiser), or
a dict of parts by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor


def copied(part: Any) -> Any:
    """State of a part, as copies on the host."""
    if isinstance(part, Mapping):
        return {name: copied(own) for name, own in part.items()}
    if isinstance(part, torch.Generator):
        return part.get_state()
    return part.cpu().clone() if isinstance(part, Tensor) else part.state_dict()


@torch.no_grad()
def restore(part: Any, state: Any) -> None:
    """Restore the `state` that `copied` returned; `require_like` has checked it."""
    if isinstance(part, Mapping):
        for name, own in part.items():
            restore(own, state[name])
    elif isinstance(part, torch.Generator):
        part.set_state(state)
    elif isinstance(part, Tensor):
        part.copy_(state)
    else:
        part.load_state_dict(state)


def require_like(state: object, own: object, path: str) -> None:
    """Raise ValueError unless `state` has the keys of the nested dicts `own` and arrays of equal shapes."""
    if isinstance(own, Mapping):
        if not isinstance(state, Mapping) or set(state) != set(own):
            got = sorted(map(str, state)) if isinstance(state, Mapping) else type(state).__name__
            raise ValueError(f"{path} must hold {sorted(own)}, got {got}")
        for name, value in own.items():
            require_like(state[name], value, f"{path}.{name}")
    elif isinstance(own, (Tensor, np.ndarray)):
        shape = tuple(getattr(state, "shape", ()))
        if shape != tuple(own.shape):
            raise ValueError(f"{path} must have shape {tuple(own.shape)}, got {shape}")
