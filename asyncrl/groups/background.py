"""Fusion of weights in the background: learning goes on while a snapshot of the weights is fused.

    learner's thread    update ... update | snapshot | update ... update | w += fused - snapshot | update ...
    gloo's thread                         | fuse the snapshot ........... |

Nothing that was learned meanwhile is lost. Where numbers must be exact, what is fused is applied at a fixed update, an
eighth of `interval` after its snapshot, and waited for; otherwise a slow fusion never holds the learner.

A group takes its next snapshot `interval` updates after the last one, or twice as many as the last fusion took,
whichever is more, so that a slow fusion makes fusions rarer. A fusion as long as the interval loses what is learned.
Two learners of one problem approach its solution meanwhile, so that their difference d shrinks to nearly nothing; the
late correction for d makes it -d, and the next one d again. Two Adam learners of a noisy quadratic, H = 32: loss 36e-6
where it is applied at once, 46e-6 after 16 updates, 2180e-6 after 32; with H = 64, 47e-6 after 32 updates.

There is no Python thread for it. With one, its wake-ups and its turns at the GIL took the learner's time: 3 to 7 ms for
a fusion where other work shared the cores (docs/groups.md).
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from asyncrl.groups.statistics import FusionStatistics
from asyncrl.networks.flat_vector import FlatVector

_LOOKS = 8
"""Looks in an interval whether a fusion is over; at every update they would cost more than the fusion."""


class Fuser(Protocol):
    """Fuses a group's weights with those of the others; learner's thread only, but for `close` and `statistics`."""

    def begin(self, snapshot: Tensor, finished: bool) -> None:
        """Begin to fuse `snapshot` `[P]` on the CPU, which stays as it is until `end`; waits for nobody.

        With `finished` this group learns nothing further, and fuses again until the outcome is final.
        """
        ...

    def done(self) -> bool:
        """Whether `end` would not wait."""
        ...

    def end(self) -> tuple[Tensor, bool]:
        """What takes the snapshot's place, valid until the next `begin`, and whether it is final."""
        ...

    def close(self) -> None:
        """Let an `end` that waits raise `PeerLost`; any thread."""
        ...

    def statistics(self) -> FusionStatistics:
        """A frozen record; any thread."""
        ...


def fused_parts(vector: FlatVector, moments: bool) -> list[Tensor]:
    """What is fused: the parameters and, with `moments`, the optimiser's; in the order of a message, as views."""
    return [vector.parameters, *(one for pair in vector.moments for one in pair if moments)]


class BackgroundFusion:
    """One group's fusions; learner's thread only, but for `abort`, `close` and `statistics`.

    Args:
        fuser: what a snapshot goes through.
        vector: the learner's.
        interval: updates between two snapshots, at least 1.
        exact: apply what is fused at a fixed update, and wait for it there.
        moments: fuse the optimiser's moments too.
    """

    def __init__(
        self, fuser: Fuser, vector: FlatVector, interval: int, *, exact: bool = False, moments: bool = False
    ) -> None:
        self._fuser, self._vector, self._interval, self._exact = fuser, vector, interval, exact
        self._parts = fused_parts(vector, moments)
        self._snapshot = torch.empty(sum(part.numel() for part in self._parts))
        self._snapshots = self._snapshot.split([part.numel() for part in self._parts])
        self._second_moments = [second for _, second in vector.moments if moments]
        self._look = max(1, interval // _LOOKS)
        self._since, self._next = -1, interval
        self.running = False
        vector.on_update = self._update

    def _update(self) -> None:
        """An update begins. Most of them end here, so that it costs little."""
        self._since += 1
        if self._since >= self._next:
            self._meet()

    @torch.no_grad()
    def _meet(self) -> None:
        """Apply what is fused; begin the next fusion where `interval` updates were made."""
        if self.running:
            if not (self._exact or self._fuser.done()):
                self._next = self._since + self._look
                return
            self._apply()
            self._next = max(self._interval, 2 * self._since)
        if self._since >= self._next:
            self._begin(finished=False)

    @torch.no_grad()
    def finish(self) -> None:
        """Fuse what was learned since the last snapshot and wait until the others have; raises `PeerLost`.

        The weights are the fused ones then, the same in all groups but for `async`.
        """
        self._vector.on_update = None
        if self.running:
            self._apply()
        final = False
        while not final:
            self._begin(finished=True)
            final = self._apply(nothing_learned=True)

    def _begin(self, finished: bool) -> None:
        self._since, self._next = 0, self._look
        for part, snapshot in zip(self._parts, self._snapshots, strict=True):
            snapshot.copy_(part)
        self._fuser.begin(self._snapshot, finished)
        self.running = True

    def _apply(self, nothing_learned: bool = False) -> bool:
        """Set w += fused - snapshot; return whether that is final. Waits for it, raises what it raised.

        With `nothing_learned` since the snapshot, w = fused without rounding.
        """
        self.running = False
        fused, final = self._fuser.end()
        if not nothing_learned:
            fused = torch.sub(fused, self._snapshot, out=self._snapshot)
        for part, change in zip(self._parts, fused.split([s.numel() for s in self._snapshots]), strict=True):
            if nothing_learned:
                part.copy_(change)
            else:
                part.add_(change.to(part.device))
        for second in self._second_moments:
            second.clamp_(min=0.0)  # it has decayed since its snapshot
        return final

    def abort(self) -> None:
        """Let a fusion that waits raise `PeerLost` within half a second; any thread."""
        self._fuser.close()

    def close(self) -> None:
        """End the fusion and its threads, within seconds. Any thread, idempotent."""
        self.abort()

    def statistics(self) -> FusionStatistics:
        """A frozen record; any thread."""
        return self._fuser.statistics()
