"""Weight mailbox that also keeps past versions of the weights, the opponents of self-play.

The publisher keeps a version at the first publication at or after every `interval` updates, also the first of all, in
place of the oldest. Kept versions are told apart by the updates of their publication:

    header[KEPT]         versions kept so far; version k is in slot k mod P
    kept_updates[P]      updates of the version that the slot holds, or -1 while there is none or it is written
    kept[P, ...]         float32 [weight_count] of each slot

A version is kept before the same weights are published, so an actor that has taken weights finds at least one, and in
lockstep all actors find the same. They are in the mailbox and not in the actors, so that all actors have the same
opponents, none is lost with a killed actor, and a checkpoint has them once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from asyncrl.interfaces import SelfPlay
from asyncrl.shm.atomics import copy_words, fence, load_acquire, store_release, store_word
from asyncrl.shm.kernel import kernel
from asyncrl.shm.segment import ArraySpec, Segment
from asyncrl.shm.weights import WeightMailbox, mailbox_arrays

KEPT = 1
"""Word of the publisher, in the line of LATEST."""


@kernel("boolean(int64[::1], float32[:, ::1], float32[::1], int64, int64)", cold=True)
def _copy_kept(
    kept_updates: NDArray[np.int64],
    kept: NDArray[np.float32],
    out: NDArray[np.float32],
    slot: int,
    updates: int,
) -> bool:
    """Copy a slot; False, with `out` torn, unless it held the version of `updates` all the time."""
    if load_acquire(kept_updates, slot) != updates:
        return False
    copy_words(out, kept[slot])
    fence()
    return load_acquire(kept_updates, slot) == updates  # type: ignore[no-any-return]


@kernel("void(int64[::1], int64)", cold=True)
def _withdraw(kept_updates: NDArray[np.int64], slot: int) -> None:
    """Mark a slot as written, before any write to its weights is visible."""
    store_release(kept_updates, slot, -1)
    fence()


class PastWeights(WeightMailbox):
    """Mailbox with past versions; see the module. Its methods for them are the publisher's or a reader's, as named."""

    def __init__(self, segment: Segment, weight_count: int, self_play: SelfPlay) -> None:
        super().__init__(segment, weight_count)
        self._interval = self_play.interval
        self._kept_updates: NDArray[np.int64] = segment["kept_updates"]
        self._kept: NDArray[np.float32] = segment["kept"]

    @classmethod
    def create_for(cls, weight_count: int, self_play: SelfPlay) -> Self:
        """Create a mailbox, like `WeightMailbox.create`."""
        arrays = _arrays(weight_count, self_play)
        made = cls(Segment.create("weights", arrays, populate=True), weight_count, self_play)
        made._kept_updates[:] = -1
        return made

    @classmethod
    def attach_for(cls, fd: int, weight_count: int, self_play: SelfPlay) -> Self:
        """Attach a mailbox for a reader, like `WeightMailbox.attach`."""
        segment = Segment.attach(fd, _arrays(weight_count, self_play), writable=False)
        return cls(segment, weight_count, self_play)

    def publish_with(self, fill: Callable[[NDArray[np.float32]], object], updates: int = 0) -> int:
        """See `WeightMailbox`; keeps the version first if one is due."""
        count = int(self._header[KEPT])
        last = int(self._kept_updates[(count - 1) % len(self._kept)])
        if count and updates // self._interval <= last // self._interval:
            return super().publish_with(fill, updates)
        values = np.empty(self._kept.shape[1], np.float32)
        fill(values)
        if not np.isfinite(values).all():
            return 0
        np.copyto(self._begin_slot(count), values)
        self._end_slot(count, updates)
        return super().publish_with(lambda out: np.copyto(out, values), updates)

    def _begin_slot(self, count: int) -> NDArray[np.float32]:
        slot = count % len(self._kept)
        _withdraw(self._kept_updates, slot)
        values: NDArray[np.float32] = self._kept[slot]
        return values

    def _end_slot(self, count: int, updates: int) -> None:
        store_word(self._kept_updates, count % len(self._kept), updates)
        store_word(self._header, KEPT, count + 1)

    def versions(self) -> list[int]:
        """Updates of the kept versions, ascending; none while the only one is replaced. Any reader."""
        return sorted(updates for updates in self._kept_updates.tolist() if updates >= 0)

    def copy_version(self, updates: int, out: NDArray[np.float32]) -> bool:
        """Copy a kept version into `out` `[weight_count]`; False if it is no longer kept. Any reader."""
        for slot in np.flatnonzero(self._kept_updates == updates):
            return bool(_copy_kept(self._kept_updates, self._kept, out, int(slot), updates))
        return False

    def past(self) -> dict[str, Any]:
        """See `WeightMailbox`: `kept_updates` `[n]` and `kept` `[n, weight_count]`, copies, oldest first."""
        versions = self.versions()
        slots = [int(np.flatnonzero(self._kept_updates == updates)[0]) for updates in versions]
        return {"kept_updates": np.array(versions, np.int64), "kept": self._kept[slots]}

    def restore_past(self, state: Mapping[str, Any]) -> None:
        """See `WeightMailbox`; of more than P versions the newest are kept."""
        if "kept" not in state:  # of a run without self-play
            return
        newest = slice(-len(self._kept), None)
        for updates, weights in zip(state["kept_updates"][newest], state["kept"][newest], strict=True):
            count = int(self._header[KEPT])
            np.copyto(self._begin_slot(count), weights)
            self._end_slot(count, int(updates))

    def close(self) -> None:
        """See `WeightMailbox`."""
        vars(self).pop("_kept_updates", None)
        vars(self).pop("_kept", None)
        super().close()


def _arrays(weight_count: int, self_play: SelfPlay) -> tuple[ArraySpec, ...]:
    return (
        *mailbox_arrays(weight_count),
        ArraySpec("kept_updates", (self_play.kept,), "int64", control=True),
        ArraySpec("kept", (self_play.kept, weight_count), "float32"),
    )
