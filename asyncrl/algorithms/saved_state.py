"""Check of a saved state before any part of it is restored."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch import Tensor


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
