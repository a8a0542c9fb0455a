"""Random segments with every kind of trajectory end, and a slow interpretation of their flags."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from asyncrl.interfaces import RESET, TERMINATED, TRUNCATED


@dataclass
class Rows:
    """The arrays of a segment."""

    reward: np.ndarray
    value: np.ndarray
    last_value: np.ndarray
    flags: np.ndarray
    log_ratio: np.ndarray


def flags_of(rng: np.random.Generator, length: int) -> list[int]:
    """Flags of one stream under NEXT_STEP, actors' deaths included; may begin with the RESET of an earlier end."""
    flags = [RESET] if rng.random() < 0.3 else []
    while len(flags) < length:
        kind = rng.integers(0, 10)
        if kind == 0:
            flags += [TERMINATED, RESET]
        elif kind == 1:
            flags += [TRUNCATED, RESET]
        elif kind == 2:
            flags += [TERMINATED | TRUNCATED, RESET]
        elif kind == 3:
            flags += [0, RESET]  # the actor died behind a row; its next life begins with a RESET row
        elif kind == 4:
            flags += [TERMINATED, RESET, RESET]  # and here right behind a reset
        else:
            flags += [0] * int(rng.integers(1, 4))
    return flags[:length]


def random_rows(seed: int, envs: int = 12, length: int = 17) -> Rows:
    """Ratios on both sides of every truncation; values of RESET rows are not zero. Exact in float32."""
    rng = np.random.default_rng(seed)

    def draw(*shape: int, scale: float = 1.0) -> np.ndarray:
        return rng.normal(0, scale, shape).astype(np.float32)

    flags = np.array([flags_of(rng, length) for _ in range(envs)], np.uint8)
    reward = np.where(flags & RESET, 0, draw(envs, length)).astype(np.float32)
    return Rows(reward, draw(envs, length), draw(envs), flags, draw(envs, length, scale=0.8))


def pieces(flags: np.ndarray) -> Iterator[tuple[list[int], bool]]:
    """Groups of consecutive rows of one trajectory, and whether the last of them terminated."""
    rows: list[int] = []
    for t, flag in enumerate(flags):
        if flag & RESET:
            if rows:
                yield rows, False
            rows = []
            continue
        rows.append(t)
        if flag & (TERMINATED | TRUNCATED):
            yield rows, bool(flag & TERMINATED)
            rows = []
    if rows:
        yield rows, False
