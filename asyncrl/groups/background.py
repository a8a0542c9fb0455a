"""Fusion of weights in the background: learning goes on while a snapshot of the weights is fused.

    learner's thread    update ... update | snapshot | update ... update | w += fused - snapshot | update ...
    fusion's thread                       | fuse the snapshot ........... |

Nothing that was learned meanwhile is lost. A group takes its next snapshot `interval` updates after the last one, or
as soon as the last one is fused, whichever is later: a slow fusion makes fusions rarer and never holds the learner.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import torch
from torch import Tensor

from asyncrl.groups.statistics import FusionStatistics
from asyncrl.networks.flat_vector import FlatVector


class Fuser(Protocol):
    """Fuses a group's weights with those of the others; fusion's thread only, but for `statistics`."""

    def fuse(self, snapshot: Tensor, finished: bool) -> tuple[Tensor, bool]:
        """Fuse `snapshot` `[P]`; returns what takes its place, valid until the next call, and whether that is final.

        With `finished` this group learns nothing further, and calls again until the answer is final.
        """
        ...

    def close(self) -> None:
        """Let a `fuse` that waits raise `PeerLost`; any thread."""
        ...

    def statistics(self) -> FusionStatistics:
        """A frozen record; any thread."""
        ...


class BackgroundFusion:
    """One group's fusions; learner's thread only, but for `close` and `statistics`.

    Args:
        fuser: what a snapshot goes through.
        vector: the learner's.
        interval: updates between two snapshots, at least 1.
    """

    def __init__(self, fuser: Fuser, vector: FlatVector, interval: int) -> None:
        self._fuser, self._vector, self._interval = fuser, vector, interval
        self._thread = ThreadPoolExecutor(1, "asyncrl-fusion", initializer=_prepare_thread)
        self._snapshot = torch.empty(vector.parameters.numel())
        self._since = -1
        self._running: Future[tuple[Tensor, bool]] | None = None
        vector.on_update = self._update

    @torch.no_grad()
    def _update(self) -> None:
        """An update begins: apply what is fused; begin the next fusion where `interval` updates were made."""
        self._since += 1
        if self._running is not None:
            if not self._running.done():
                return
            self._apply()
        if self._since >= self._interval:
            self._begin(finished=False)

    @torch.no_grad()
    def finish(self) -> None:
        """Fuse what was learned since the last snapshot and wait until the others have; raises `PeerLost`.

        The weights are the fused ones then, the same in all groups but for `async`.
        """
        self._vector.on_update = None
        if self._running is not None:
            self._apply()
        final = False
        while not final:
            self._begin(finished=True)
            final = self._apply(nothing_learned=True)

    def _begin(self, finished: bool) -> None:
        self._since = 0
        self._snapshot.copy_(self._vector.parameters)
        self._running = self._thread.submit(self._fuser.fuse, self._snapshot, finished)

    def _apply(self, nothing_learned: bool = False) -> bool:
        """Set w += fused - snapshot; return whether that is final. Waits for it, raises what it raised.

        With `nothing_learned` since the snapshot, w = fused without rounding.
        """
        assert self._running is not None
        running, self._running = self._running, None
        fused, final = running.result()
        parameters = self._vector.parameters
        if nothing_learned:
            parameters.copy_(fused)
        else:
            parameters.add_(fused.sub(self._snapshot).to(parameters.device))
        return final

    def abort(self) -> None:
        """Let a fusion that waits raise `PeerLost` within half a second; any thread."""
        self._fuser.close()

    def close(self) -> None:
        """End the fusion and its thread, within a second. Any thread, idempotent."""
        self.abort()
        self._thread.shutdown(wait=True, cancel_futures=True)

    def statistics(self) -> FusionStatistics:
        """A frozen record; any thread."""
        return self._fuser.statistics()


def _prepare_thread() -> None:
    """Intra-operation threads are per thread."""
    torch.set_num_threads(1)
