"""Fusion of weights in the background: learning continues while a snapshot of the weights is fused.

    learner's thread    update ... update | snapshot | update ... update | w += fused - snapshot | update ...
    gloo's thread                         | fuse the snapshot ........... |

The updates made meanwhile are kept. A running statistic, such as a variance, is no sum of updates; it stays between its
present and its fused value. If numbers must be exact, the learner waits for the fused values and applies them at a
fixed update, an eighth of `interval` after the snapshot. Otherwise a slow fusion never blocks the learner.

A group takes its next snapshot `interval` updates after the last one, or after twice as many updates as the last fusion
took, whichever is later, so that slow fusions become less frequent. A fusion that takes the whole interval H would undo
the learning: meanwhile two learners approach the solution and their difference d shrinks to nearly 0; the late
correction for d makes it -d, and the next one d again. Loss of two Adam learners of a noisy quadratic, H = 32: 36e-6 if
applied at once, 46e-6 after 16 updates, 2180e-6 after 32; with H = 64, 47e-6 after 32 updates.

The fusion has no Python thread. Its wake-ups and its waits for the GIL took 3 to 7 ms of the learner's time per fusion
when other work shared the cores (docs/groups.md).

What a `Fuser` makes of the snapshots is the mode of fusion: `average` is `AverageFuser` below, `async` is in
`async_fusion.py`. Both send changes of the weights since a base (`Deltas`).
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.groups.rounds import Rounds
from asyncrl.networks.flat_vector import FlatVector

_CHECKS = 8
"""Number of checks per interval whether a fusion is done; a check at every update would cost more than the fusion."""


class Fuser(Protocol):
    """Fuses a group's weights with those of the others; learner's thread only, except `close` and `statistics`.

    `begin` and `end` are called without gradients.
    """

    def begin(self, snapshot: Tensor, finished: bool) -> None:
        """Begin to fuse `snapshot` `[P]` on the CPU, which must not change until `end`; does not wait.

        With `finished` this group makes no further updates, and fuses until the result is final.
        """
        ...

    def done(self) -> bool:
        """Whether `end` would not wait."""
        ...

    def end(self) -> tuple[Tensor, bool]:
        """Wait for the fused values, valid until the next `begin`; returns them and whether they are final."""
        ...

    def close(self) -> None:
        """Close: a waiting `end` raises `PeerLost`; any thread."""
        ...

    def statistics(self) -> dict[str, float]:
        """Statistics so far, by attributes of `GroupStatistics`; any thread."""
        ...


def fused_parts(vector: FlatVector, moments: bool) -> list[Tensor]:
    """Tensors to fuse, in the message's order: the parameters and, with `moments`, the optimiser's moments; views."""
    return [vector.parameters, *(one for pair in vector.moments for one in pair if moments)]


class BackgroundFusion:
    """Background fusions of one group; learner's thread only, except `close` and `statistics`.

    Args:
        fuser: fuses the snapshots.
        vector: the learner's parameters and moments.
        interval: least number of updates between two snapshots, at least 1.
        exact: whether the fused values are waited for and applied at a fixed update.
        moments: whether to fuse the optimiser's moments too.

    Attributes:
        running: whether a fusion is in progress.
    """

    def __init__(
        self, fuser: Fuser, vector: FlatVector, interval: int, *, exact: bool = False, moments: bool = False
    ) -> None:
        self._fuser, self._vector, self._interval, self._exact = fuser, vector, interval, exact
        self._parts = fused_parts(vector, moments)
        self._snapshot = torch.empty(sum(part.numel() for part in self._parts))
        self._snapshots = self._snapshot.split([part.numel() for part in self._parts])
        self._buffers = vector.buffers if vector.buffers.numel() else None
        self._second_moments = [second for _, second in vector.moments if moments]
        self._check_interval = max(1, interval // _CHECKS)
        self._since, self._next = -1, interval
        self.running = False
        vector.on_update = self._update

    def _update(self) -> None:
        """Called at the start of every update; most calls return at once, so that they cost little."""
        self._since += 1
        if self._since >= self._next:
            self._meet()

    def _meet(self) -> None:
        """Apply a fusion that is done; begin the next one if it is due."""
        if self.running and not (self._exact or self._fuser.done()):
            self._next = self._since + self._check_interval
            return
        with torch.no_grad():
            if self.running:
                self._apply()
                self._next = max(self._interval, 2 * self._since)
            if self._since >= self._next:
                self._begin(finished=False)

    @torch.no_grad()
    def finish(self) -> None:
        """Fuse the updates since the last snapshot until the result is final. Raises `PeerLost`.

        The weights are then the fused ones, equal in all groups except with `async`.
        """
        self._vector.on_update = None
        if self.running:
            self._apply()
        final = False
        while not final:
            self._begin(finished=True)
            final = self._apply(nothing_learned=True)

    def _begin(self, finished: bool) -> None:
        self._since, self._next = 0, self._check_interval
        for part, snapshot in zip(self._parts, self._snapshots, strict=True):
            snapshot.copy_(part)
        self._fuser.begin(self._snapshot, finished)
        self.running = True

    def _apply(self, nothing_learned: bool = False) -> bool:
        """Wait for the fused values and set w += fused - snapshot; returns whether they are final.

        With `nothing_learned` since the snapshot, w = fused without rounding. Raises what `Fuser.end` raises.
        """
        self.running = False
        fused, final = self._fuser.end()
        statistics = self._statistics(fused)
        if nothing_learned:
            self._snapshot.copy_(fused)
        else:
            torch.sub(fused, self._snapshot, out=self._snapshot)
        for part, change in zip(self._parts, self._snapshots, strict=True):
            if nothing_learned:
                part.copy_(change)
            else:
                part.add_(change if part.device == change.device else change.to(part.device))
        if self._buffers is not None and statistics is not None and not nothing_learned:
            parameters = self._vector.parameters
            parameters[self._buffers.to(parameters.device)] = statistics.to(parameters.device)
        for second in self._second_moments:
            second.clamp_(min=0.0)  # it has decayed since the snapshot, so the sum may be negative
        return final

    def _statistics(self, fused: Tensor) -> Tensor | None:
        """New values of the running statistics, on the CPU; None without any."""
        if self._buffers is None:
            return None
        parameters = self._vector.parameters
        present = parameters[self._buffers.to(parameters.device)].cpu()
        value, start = fused[self._buffers], self._snapshot[self._buffers]
        bounds = torch.minimum(present, value), torch.maximum(present, value)
        return (present + value - start).clamp_(*bounds)

    def close(self) -> None:
        """End the fusion and its threads: a waiting call raises `PeerLost` within half a second. Any thread."""
        self._fuser.close()

    def statistics(self) -> dict[str, float]:
        """Statistics so far; any thread."""
        return self._fuser.statistics()


class Deltas:
    """Changes of a learner's vector since a base, as groups send and add them.

    A vector may contain running statistics, such as the means and variances of batch normalisation. These are not sums
    of steps: added to each other, or extrapolated, changes of a variance make it negative. So a message holds a
    statistic's value in place of its change, and fusing mixes values.

    Args:
        buffers: `[K]` int64, positions of the running statistics; None or empty without any.

    Attributes:
        buffers: as given; None without any.
    """

    def __init__(self, buffers: Tensor | None = None) -> None:
        self.buffers = buffers if buffers is not None and buffers.numel() else None

    def between(self, base: Tensor, vector: Tensor, out: Tensor) -> Tensor:
        """Write the change from `base` to `vector` into `out` and return it, all `[P]`; values of the statistics."""
        torch.sub(vector, base, out=out)
        if self.buffers is not None:
            out[self.buffers] = vector[self.buffers]
        return out

    def add(self, base: Tensor, delta: Tensor, weight: float = 1.0) -> None:
        """Add `weight * delta` to `base` in place; statistics become (1 - weight) base + weight delta.

        Args:
            base: `[P]`.
            delta: `[P]`, as `between` returns it.
            weight: from 0 to 1.
        """
        if self.buffers is None:
            base.add_(delta, alpha=weight)
            return
        mixed = torch.lerp(base[self.buffers], delta[self.buffers], weight)
        base.add_(delta, alpha=weight)
        base[self.buffers] = mixed


class AverageFuser:
    """One rank's side of `average`: the mean of the weights, optionally with an outer step. Implements `Fuser`.

        Stich 2019             Local SGD converges fast and communicates little
        Douillard et al. 2023  DiLoCo: distributed low-communication training of language models

    Every rank has the same anchor a, the last fused weights. The messages contain delta_k = w_k - a, which is small, so
    that lossy encodings have small errors:

        d = mean of delta_k      a += d                                without momentum: a is the mean of the weights
                                 v = mu v + d;  a += eta (mu v + d)    DiLoCo, with Nesterov momentum mu, outer rate eta

    The mean is over the ranks that still learn: one that has finished in an earlier round has learned nothing since,
    and its zeros would shrink what the others learn. All ranks know from the rounds who has finished. What a lossy
    message has left of a finished rank's delta is still added.

    Running statistics are averaged without an outer step (see `Deltas`). If the optimiser's moments are fused too, they
    follow the weights in the vector, and are averaged without an outer step.

    Args:
        rounds: rounds with the other groups.
        anchor: `[P]`, the values that all ranks start from; copied.
        learning_rate: eta, the outer learning rate.
        momentum: mu, 0 for the plain mean.
        weights: number of leading values to which the outer step applies; None for all.
        deltas: rules of the deltas.
        velocity: v of an earlier run, which is copied; None for 0.

    Attributes:
        anchor: the last fused values, equal on all ranks.
        velocity: v, equal on all ranks.
    """

    def __init__(
        self,
        rounds: Rounds,
        anchor: Tensor,
        *,
        learning_rate: float = 1.0,
        momentum: float = 0.0,
        weights: int | None = None,
        deltas: Deltas | None = None,
        velocity: NDArray[np.float32] | None = None,
    ) -> None:
        self._rounds, self._deltas = rounds, deltas or Deltas()
        self._rate, self._momentum = learning_rate, momentum
        self.anchor = anchor.detach().to("cpu", torch.float32, copy=True)
        self._weights = slice(weights)
        self.velocity = torch.zeros_like(self.anchor[self._weights])
        if velocity is not None:
            self.velocity.copy_(torch.from_numpy(velocity))
        self._finished = np.zeros(rounds.peers.size, np.bool_)

    def begin(self, snapshot: Tensor, finished: bool) -> None:
        """See `Fuser`. Raises `PeerLost`."""
        delta = self._deltas.between(self.anchor, snapshot, self._rounds.room)
        if self._finished[self._rounds.peers.rank] and self._deltas.buffers is not None:
            delta[self._deltas.buffers] = 0.0  # values, of the ranks that still learn
        self._rounds.begin(delta, finished=finished)

    def done(self) -> bool:
        """See `Fuser`."""
        return self._rounds.done()

    def end(self) -> tuple[Tensor, bool]:
        """See `Fuser`; final if every group has finished. Raises `PeerLost`."""
        round_ = self._rounds.end()
        mean, buffers = round_.total.div_(int((~self._finished).sum())), self._deltas.buffers
        self._finished = round_.finished_ranks
        statistics = mean[:0] if buffers is None else mean[buffers]
        if self._momentum:
            self.velocity.mul_(self._momentum).add_(mean[self._weights])
            self.anchor[self._weights].add_(self.velocity, alpha=self._rate * self._momentum)
        if self._rate != 1.0:
            mean[self._weights].mul_(self._rate)
        self.anchor.add_(mean)
        if buffers is not None:
            self.anchor[buffers] = statistics
        return self.anchor, round_.finished

    def close(self) -> None:
        """See `Fuser`."""
        self._rounds.peers.close()

    def statistics(self) -> dict[str, float]:
        """See `Fuser`."""
        return self._rounds.statistics()
