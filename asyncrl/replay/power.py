"""Vectorised x ** y for priorities and importance weights.

The C library's powf takes 9 ns and cannot be vectorised: 5 microseconds per update of batch 256, as much as the tree
itself. The loop below has no call and no branch, so LLVM computes four or eight items at once.

With x = m 2**e, m in [sqrt(1/2), sqrt(2)) and s = (m - 1) / (m + 1):

    log2 x = e + 2 / ln 2 (s + s**3 / 3 + s**5 / 5 + ...)       |s| <= 0.172: five terms leave 2e-10
    2**t   = 2**k (1 + r + r**2 / 2! + ...),  r = (t - k) ln 2   |r| <= 0.347: seven powers leave 5e-9

so the error of the result is that of rounding to float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.replay.handles import bits_of, float_of
from asyncrl.shm.kernel import inlined

_ROOT_HALF = 0x3F3504F3  # bits of sqrt(1/2) as float32
_LN2 = float(np.log(2.0))


@inlined
def power(values: NDArray[Any], shift: float, exponent: float, out: NDArray[np.float32]) -> None:
    """`out[i] = (values[i] + shift) ** exponent` in float32; an exponent of 1 is exact.

    The sums must be positive normal float32 (1.2e-38 and above), the exponent from -1 to 1, `out` another array.
    """
    shift32 = np.float32(shift)
    if exponent == 1.0:
        for i in range(out.shape[0]):
            out[i] = np.float32(values[i]) + shift32
        return
    for i in range(out.shape[0]):
        bits = bits_of(np.float32(values[i]) + shift32)
        e = np.int32(np.int32(bits - np.int32(_ROOT_HALF)) >> np.int32(23))
        m = np.float64(float_of(np.int32(bits - np.int32(e << np.int32(23)))))
        s = (m - 1.0) / (m + 1.0)
        q = s * s
        log2 = e + (2.0 / _LN2) * s * (1.0 + q * (1 / 3 + q * (1 / 5 + q * (1 / 7 + q / 9))))
        t = exponent * log2
        k = np.floor(t + 0.5)
        r = (t - k) * _LN2
        tail = 1 / 24 + r * (1 / 120 + r * (1 / 720 + r / 5040))
        mantissa = np.float32(1.0 + r * (1.0 + r * (1 / 2 + r * (1 / 6 + r * tail))))
        out[i] = float_of(np.int32(bits_of(mantissa) + np.int32(np.int32(k) << np.int32(23))))
