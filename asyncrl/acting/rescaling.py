"""Rescaled returns h(R) of R2D2's action values, in NumPy; `algorithms/r2d2.py` has the twin in torch.

Pohlen et al. 2018   Observe and look further: achieving consistent performance on Atari
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

EPSILON = 1e-3
"""Epsilon of the rescaling h(x) = sign(x) (sqrt(|x| + 1) - 1) + epsilon x."""


def return_of(value: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return h^-1(`value`), float32; see `r2d2.rescale_inverse`."""
    one, two = np.float32(1.0), np.float32(2.0)
    inner = np.abs(value) + np.float32(1.0 + EPSILON)
    root = two * inner / (np.sqrt(one + np.float32(4.0 * EPSILON) * inner) + one)
    found: NDArray[np.float32] = np.sign(value) * (np.square(root) - one)
    return found
