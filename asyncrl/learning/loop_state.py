"""State of an update loop for checkpoints, and its restoration into a new loop (`UpdateLoop.state_dict`, `restore`).

    core, loop, pace, publisher       counters and positions (`STATE` of each)
    published                         version, updates and values of the acting weights
    staleness, policy_lag             histograms
    replay or queue, generator        positions in the rings, recent priorities; random generator of batches
    past                              past segments kept for reuse

There are three cases, depending on what the caller has restored before:

    rows and actors     exact: all later numbers equal those of an uninterrupted run (lockstep, synchronous)
    rows                the learner continues exactly; the actors begin new lives, which cut the trajectories
    neither             replay is filled again before the first update; segments in flight are lost

`STATE` of a class lists the attributes to save: numbers, flags and arrays. The constructor makes everything else. State
is taken and restored on the learner's thread, between two ticks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np


def state_of(part: Any) -> dict[str, Any]:
    """Attributes of `part.STATE` by name without leading underscore; arrays are copied."""
    values = {name.lstrip("_"): getattr(part, name) for name in part.STATE}
    return {name: v.copy() if isinstance(v, np.ndarray) else v for name, v in values.items()}


def restore_state(part: Any, state: Mapping[str, Any]) -> None:
    """Restore a result of `state_of` into `part`; arrays are filled in place.

    Raises:
        ValueError: an attribute is missing, or an array has another shape or dtype.
    """
    for name in part.STATE:
        key = name.lstrip("_")
        if key not in state:
            raise ValueError(f"the state of {type(part).__name__} must hold {key!r}, got {sorted(state)}")
        now, saved = getattr(part, name), state[key]
        if not isinstance(now, np.ndarray):
            setattr(part, name, saved)
            continue
        if not isinstance(saved, np.ndarray) or (saved.shape, saved.dtype) != (now.shape, now.dtype):
            raise ValueError(f"{key} of {type(part).__name__} must be {now.dtype} {list(now.shape)}")
        now[...] = saved


def generator_state(rng: np.random.Generator) -> str:
    """State of a generator as JSON, because its integers have more than 64 bits."""
    return json.dumps(rng.bit_generator.state)


def restore_generator(rng: np.random.Generator, state: str) -> None:
    """Restore a result of `generator_state`. Raises ValueError if it is from another kind of generator."""
    rng.bit_generator.state = json.loads(state)
