"""Algorithms of a size that trains in seconds."""

from __future__ import annotations

from typing import Any

from asyncrl.algorithms import ALGORITHMS
from asyncrl.options import option_help


def small(name: str, **options: Any) -> Any:
    """The algorithm of that name with these options, without those that it does not have."""
    known = option_help(ALGORITHMS[name])
    sizes = {
        "hidden_sizes": (32, 32),
        "critic_hidden_sizes": (32, 32),
        "learning_rate": 3e-3,
        "batch_size": 64,
    }
    return ALGORITHMS[name](**{key: value for key, value in {**sizes, **options}.items() if key in known})
