"""Weight mailbox: the newest weights in shared memory, for any number of readers.

The mailbox has two buffers, each a flat float32 block. Version v is in buffer v mod 2, so the publisher never writes
into the newest complete buffer:

    header[LATEST]         version of the newest complete weights; 0 = nothing published yet
    header[HOLDS + 16 b]   version that buffer b holds completely, or -v while version v is written into it
    header[UPDATES + 16 b] updates that the learner had made when it published them
    values[b]              float32 [weight_count]

Publishing v: HOLDS[b] = -v, fence, write, HOLDS[b] = v (release), LATEST = v (release). Weights that are not finite
are never committed. Refreshing: read LATEST, check that its buffer holds that version, copy, fence, check again. If
the buffer was overwritten (by two publications during one copy), the reader copies the newer version. Attempts are
bounded; a reader that has copied nothing keeps its weights.

If a publisher dies while writing, LATEST still points to the other buffer, so readers do not notice, and its successor
writes the same version number again. With a single buffer readers starve (49,337 gave up in the same test), and a
publisher killed while writing blocks them forever.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.shm.atomics import copy_words, fence, load_acquire, load_word, store_release
from asyncrl.shm.kernel import kernel
from asyncrl.shm.segment import ArraySpec, Segment

LATEST = 0
HOLDS = 16
UPDATES = 17
ATTEMPTS = 16
"""Attempts of one `refresh` to find a complete buffer before it keeps its weights."""
ATTEMPTS_WHEN_SPOILT = 10_000
"""Attempts once a copy was overwritten during the copy; more are needed only if the memory is corrupt."""


def mailbox_arrays(weight_count: int) -> tuple[ArraySpec, ...]:
    """Arrays of a mailbox's segment. Raises ValueError if `weight_count` is below 1."""
    if weight_count < 1:
        raise ValueError(f"weight_count must be at least 1, got {weight_count}")
    return (
        ArraySpec("header", (48,), "int64", control=True),
        ArraySpec("values", (2, weight_count), "float32"),
    )


@kernel("int64(int64[::1])", nogil=False)
def _begin(header: NDArray[np.int64]) -> int:
    """Mark the back buffer as being written; returns the version that it will hold."""
    version = load_acquire(header, LATEST) + 1
    store_release(header, HOLDS + 16 * (version & 1), -version)
    fence()
    return version  # type: ignore[no-any-return]


@kernel("boolean(int64[::1], float32[::1], int64, int64)", fastmath={"reassoc"})
def _commit(header: NDArray[np.int64], values: NDArray[np.float32], version: int, updates: int) -> bool:
    """Commit `version`, written into `values`, as the newest; False and no commit if a value is not finite."""
    total = np.float32(0.0)
    for i in range(values.shape[0]):
        total += values[i] * np.float32(0.0)  # 0 if finite, NaN if not
    if total != 0.0:
        return False
    header[UPDATES + 16 * (version & 1)] = updates
    store_release(header, HOLDS + 16 * (version & 1), version)
    store_release(header, LATEST, version)
    return True


@kernel("int64(int64[::1], float32[:, ::1], float32[::1], int64, int64[::1])")
def _refresh(
    header: NDArray[np.int64],
    values: NDArray[np.float32],
    out: NDArray[np.float32],
    have: int,
    updates: NDArray[np.int64],
) -> int:
    """Copy the newest weights; returns the version in `out`, `have` if `out` is unchanged, or -1 if `out` is torn.

    `updates[0]` is set to the updates of a new version.
    """
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
        made = header[UPDATES + 16 * (version & 1)]
        fence()
        if load_acquire(header, holds) == version:
            updates[0] = made
            return version  # type: ignore[no-any-return]
        if have >= 0:  # overwritten during the copy: `out` is torn and must be copied again
            have, attempts = -1, ATTEMPTS_WHEN_SPOILT
    return have


class WeightMailbox:
    """Both ends of the mailbox: one publisher at a time, any number of readers, each in its own process.

    The creator owns the memory; all methods are available after `create` and `attach`. By contract the learner side
    publishes and actors refresh. A publisher that replaces a dead one attaches and continues.
    """

    def __init__(self, segment: Segment, weight_count: int) -> None:
        self.segment = segment
        self.weight_count = weight_count
        self._header: NDArray[np.int64] = segment["header"]
        self._values: NDArray[np.float32] = segment["values"]
        self._buffers = (self._values[0], self._values[1])
        self._refreshed = np.zeros(1, np.int64)

    @classmethod
    def create(cls, weight_count: int, *, poison: bool = False) -> WeightMailbox:
        """Create a mailbox for `weight_count` float32 values, at version 0.

        Raises `SharedMemoryTooSmall` (ASYNC008), or ValueError if `weight_count` is below 1.
        """
        arrays = mailbox_arrays(weight_count)
        return cls(Segment.create("weights", arrays, poison=poison, populate=True), weight_count)

    @classmethod
    def attach(cls, fd: int, weight_count: int, *, writable: bool = True) -> WeightMailbox:
        """Attach a mailbox; takes ownership of `fd`. Raises ValueError if its memory is too small.

        Args:
            fd: file descriptor of the mailbox.
            weight_count: number of values that it was created for.
            writable: False for a process that only refreshes: a write to the memory ends it (SIGSEGV).
        """
        return cls(Segment.attach(fd, mailbox_arrays(weight_count), writable=writable), weight_count)

    @property
    def fd(self) -> int:
        """File descriptor for other processes; owned by the mailbox."""
        return self.segment.fd

    @property
    def version(self) -> int:
        """Version of the newest complete weights; 0 before the first publication."""
        return load_word(self._header, LATEST)

    @property
    def updates(self) -> int:
        """Learner updates of the weights of the last `refresh`, at their publication; 0 before the first."""
        return int(self._refreshed[0])

    def count_from(self, version: int) -> None:
        """Make the next version `version` + 1, to resume a run. Publisher only, before the first publication."""
        if self.version != 0:
            raise ValueError(f"nothing must have been published yet, got version {self.version}")
        self._header[LATEST] = version

    def publish(self, values: NDArray[np.float32], updates: int = 0) -> int:
        """Publish a copy of `values` (float32 `[weight_count]`, contiguous); returns their version. Publisher only.

        Raises ValueError if shape, dtype or layout differ, or a value is NaN or infinite; then nothing is published.
        """
        self._check("values", values)
        version = self.publish_with(lambda out: np.copyto(out, values), updates)
        if version == 0:
            raise ValueError("values must be finite, got NaN or infinity")
        return version

    def publish_with(self, fill: Callable[[NDArray[np.float32]], object], updates: int = 0) -> int:
        """Publish weights that `fill` writes directly into shared memory. Publisher only.

        Args:
            fill: called with the back buffer, float32 `[weight_count]`, with older weights or nothing; must write every
                element before it returns. If it raises, nothing is published and the exception propagates.
            updates: updates that the learner has made.

        Returns:
            The version, or 0 if a weight is NaN or infinite; then nothing is published.
        """
        version = _begin(self._header)
        values = self._buffers[version & 1]
        fill(values)
        return version if _commit(self._header, values, version, updates) else 0

    def refresh(self, out: NDArray[np.float32], have: int) -> int:
        """Copy the newest weights into `out` unless it holds them already; returns the version in `out`.

        Any reader may call it at any time. It never waits for the publisher and never returns with `out` torn.

        Args:
            out: float32 `[weight_count]`, contiguous, holding version `have`.
            have: version in `out`, 0 before the first.

        Raises:
            ValueError: shape, dtype or layout differ, or `have` is negative.
        """
        self._check("out", out)
        if have < 0:
            raise ValueError(f"have must be at least 0, got {have}")
        version = _refresh(self._header, self._values, out, have, self._refreshed)
        assert version >= 0, "the weight mailbox is corrupt: its newest buffer never held what it says"
        return version

    def past(self) -> dict[str, Any]:
        """State of past versions, for a checkpoint; a plain mailbox keeps none. Publisher only."""
        return {}

    def restore_past(self, state: Mapping[str, Any]) -> None:
        """Restore a result of `past` in a new mailbox. Publisher only, before the first publication."""

    def close(self) -> None:
        """Drop the views and close the segment; idempotent. The mailbox must not be used afterwards."""
        vars(self).pop("_header", None)
        vars(self).pop("_values", None)
        vars(self).pop("_buffers", None)
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
