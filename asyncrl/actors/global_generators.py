"""Global random generators of an actor's process: those of `random`, NumPy and, if it is loaded, torch.

Some environments draw from them. Forked processes share the state of NumPy's: unseeded, all actors and evaluations
would see the same draws. That of torch is another one in every process: unseeded, no run would repeat.
"""

from __future__ import annotations

import random
import sys
from typing import Any

import numpy as np

States = tuple[Any, Any, bytes | None]
"""States of the generators of `random`, NumPy and torch; None for torch if it is not loaded."""


def seed_generators(seed: int, spawn_key: tuple[int, ...] = ()) -> None:
    """Seed all generators from `SeedSequence(seed, spawn_key=spawn_key)`."""
    for_random, for_numpy, for_torch = np.random.SeedSequence(seed, spawn_key=spawn_key).spawn(3)
    random.seed(for_random.generate_state(4).tobytes())
    np.random.seed(for_numpy.generate_state(4))
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(int(for_torch.generate_state(1, np.uint64)[0]))


def states_of_generators() -> States:
    """The present states, as copies."""
    torch = sys.modules.get("torch")
    of_torch = None if torch is None else torch.get_rng_state().numpy().tobytes()
    return random.getstate(), np.random.get_state(), of_torch


def restore_generators(states: States) -> None:
    """Restore `states`."""
    of_random, of_numpy, of_torch = states
    random.setstate(of_random)
    np.random.set_state(of_numpy)
    if of_torch is not None and (torch := sys.modules.get("torch")) is not None:
        torch.set_rng_state(torch.frombuffer(bytearray(of_torch), dtype=torch.uint8))
