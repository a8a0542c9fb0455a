"""The weight mailbox: the newest weights, for whoever looks.

A flat float32 block in shared memory, twice. Version v lives in buffer v mod 2, so the publisher writes where
nobody is sent to read:

    header[LATEST]         version of the newest complete weights; 0 = nothing published yet
    header[HOLDS + 16 b]   version that buffer b holds completely, or -v while version v is written into it
    values[b]              float32 [weight_count]

Publishing v: HOLDS[b] = -v, fence, write, HOLDS[b] = v (release), LATEST = v (release). Refreshing: read
LATEST, check that its buffer holds it, copy, fence, check again; a reader that was overtaken (by two
publications during one copy) tries again with the newer version, a bounded number of times, and otherwise
keeps what it has.

A publisher that dies while it writes leaves LATEST where it was, at the other buffer, so readers never
notice, and a successor writes the same version number again. With a single buffer readers starve (49,337 gave
up in the same test) and a publisher killed inside blocks them for ever.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from asyncrl.shm.atomics import copy_words, fence, kernel, load_acquire, store_release
from asyncrl.shm.segment import ArraySpec, Segment

LATEST = 0
HOLDS = 16
ATTEMPTS = 16
"""How often one `refresh` looks for a complete buffer before it keeps what it has."""
ATTEMPTS_WHEN_SPOILT = 10_000
"""How often it copies again once it was overtaken; only memory overwritten by accident needs more."""


def _arrays(weight_count: int) -> tuple[ArraySpec, ...]:
    if weight_count < 1:
        raise ValueError(f"weight_count must be at least 1, got {weight_count}")
    return (
        ArraySpec("header", (48,), "int64", control=True),
        ArraySpec("values", (2, weight_count), "float32"),
    )


@kernel("int64(int64[::1])", nogil=False)
def _begin(header: NDArray[np.int64]) -> int:
    """Mark the back buffer as being written; returns the version that will be in it."""
    version = load_acquire(header, LATEST) + 1
    store_release(header, HOLDS + 16 * (version & 1), -version)
    fence()
    return version  # type: ignore[no-any-return]


@kernel("void(int64[::1], int64)", nogil=False)
def _commit(header: NDArray[np.int64], version: int) -> None:
    store_release(header, HOLDS + 16 * (version & 1), version)
    store_release(header, LATEST, version)


@kernel("int64(int64[::1], float32[:, ::1], float32[::1])")
def _publish(header: NDArray[np.int64], values: NDArray[np.float32], new: NDArray[np.float32]) -> int:
    version = _begin(header)
    copy_words(values[version & 1], new)
    _commit(header, version)
    return version


@kernel("int64(int64[::1], float32[:, ::1], float32[::1], int64)")
def _refresh(
    header: NDArray[np.int64], values: NDArray[np.float32], out: NDArray[np.float32], have: int
) -> int:
    """Version now in `out`, or `have` with `out` untouched, or -1 where `out` is spoilt for good."""
    attempts = ATTEMPTS
    while attempts > 0:
        attempts -= 1
        version = load_acquire(header, LATEST)
        if version == have:
            return have
        holds = HOLDS + 16 * (version & 1)
        if load_acquire(header, holds) != version:
            continue
        copy_words(out, values[version & 1])
        fence()
        if load_acquire(header, holds) == version:
            return version  # type: ignore[no-any-return]
        if have >= 0:  # overtaken in mid-copy: `out` is neither old nor new, there is no way back
            have, attempts = -1, ATTEMPTS_WHEN_SPOILT
    return have


@kernel("int64(int64[::1])", nogil=False)
def _latest(header: NDArray[np.int64]) -> int:
    return load_acquire(header, LATEST)  # type: ignore[no-any-return]


class WeightMailbox:
    """Both ends of the mailbox: one publisher at a time, any number of readers, each in its own process.

    `create` and `attach` differ in who owns the memory, not in what may be called; by contract the learner's
    side publishes and actors refresh. A publisher that takes over after another's death attaches and goes on.
    """

    def __init__(self, segment: Segment, weight_count: int) -> None:
        self.segment = segment
        self.weight_count = weight_count
        self._header: NDArray[np.int64] = segment["header"]
        self._values: NDArray[np.float32] = segment["values"]

    @classmethod
    def create(cls, weight_count: int, *, poison: bool = False) -> WeightMailbox:
        """A new mailbox for `weight_count` float32 values, at version 0.

        Raises `SharedMemoryTooSmall` (ASYNC008), or ValueError where `weight_count` is below 1.
        """
        arrays = _arrays(weight_count)
        return cls(Segment.create("weights", arrays, poison=poison, populate=True), weight_count)

    @classmethod
    def attach(cls, fd: int, weight_count: int) -> WeightMailbox:
        """The mailbox behind a descriptor, which is taken over. Raises ValueError where it is too small."""
        return cls(Segment.attach(fd, _arrays(weight_count)), weight_count)

    @property
    def fd(self) -> int:
        """Descriptor to hand to another process; owned by the mailbox."""
        return self.segment.fd

    @property
    def version(self) -> int:
        """Version of the newest complete weights; 0 where nothing was published yet."""
        return _latest(self._header)

    def publish(self, values: NDArray[np.float32]) -> int:
        """Copy `values` (float32 `[weight_count]`, contiguous) in; returns their version. Publisher only.

        Raises ValueError where shape, dtype or layout differ.
        """
        self._check("values", values)
        return _publish(self._header, self._values, values)

    def publish_with(self, fill: Callable[[NDArray[np.float32]], object]) -> int:
        """Let `fill` write the new weights straight into shared memory; returns their version..

        Args:
            fill: is given the back buffer, float32 `[weight_count]`, holding older weights or nothing, and
                must write every element before it returns. Where it raises, nothing is published and the
                exception goes on.
        """
        version = _begin(self._header)
        fill(self._values[version & 1])
        _commit(self._header, version)
        return version

    def refresh(self, out: NDArray[np.float32], have: int) -> int:
        """Copy the newest weights into `out` unless that is version `have`; returns the version in `out`.

        Any reader may call it at any time; it never waits for the publisher and never leaves `out` torn.

        Args:
            out: float32 `[weight_count]`, contiguous, holding version `have`.
            have: version held, 0 before the first.

        Raises:
            ValueError: shape, dtype or layout differ, or `have` is negative.
        """
        self._check("out", out)
        if have < 0:
            raise ValueError(f"have must be at least 0, got {have}")
        version = _refresh(self._header, self._values, out, have)
        assert version >= 0, "the weight mailbox is corrupt: its newest buffer never held what it says"
        return version

    def close(self) -> None:
        """Let go of the memory; idempotent. The mailbox must not be used afterwards."""
        vars(self).pop("_header", None)
        vars(self).pop("_values", None)
        self.segment.close()

    def _check(self, name: str, values: NDArray[np.float32]) -> None:
        if (
            values.dtype != np.float32
            or values.shape != (self.weight_count,)
            or not values.flags.c_contiguous
        ):
            raise ValueError(
                f"{name} must be contiguous float32 of shape ({self.weight_count},), "
                f"got {values.dtype} of shape {values.shape}"
            )
