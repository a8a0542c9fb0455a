"""Production-consumption balance: limits on production by the actors and consumption by the learner.

All four disciplines use one mechanism: the side that is ahead waits. The learner does not begin an update; an actor
gets no grant (`RingReader.grant`). Nothing is dropped to keep up, and there is no polling.

    discipline    actors wait when                   learner waits when               cursor (1) stays in
    replay        it exceeds +e, by (3)              it would fall below -e, by (2)   [-e, +e]
    relaxed       the segments in flight are at      fewer than K segments are        [0, e], e from the segments that
                  their bound (segment_balance)      complete, of whichever rings     may be in flight
    lockstep      a segment ahead of the update      a ring has no complete segment   [0, e], e from two batches
    synchronous   the update is not published        the same                         [0, e], e from one batch

Replay can train on a step any number of times, so both sides are bound by an error band: this module. A segment is
trained on a fixed number of times (with I0 = 0), so the lower bound is exact and the upper one is a number of credits:
`segment_balance.py`. Exceptions are additional epochs that an algorithm may make while it waits (`reuse_epochs`);
they show in the cursor. Steps that are discarded as too stale, or skipped by an early stop, are produced but never
consumed, and remain in the cursor.

The formulas of both modules are original to this package. The idea of matching production and consumption is TianJi's
(arXiv 2502.20190), which states it for its data flow; its released code relies on static sizes of queues and batches
and never throttles the learner. Reverb's `SampleToInsertRatio` also bounds a ratio from both sides.

Replay
------
All quantities are environment steps or training samples, counted since the run began:

    I    inserted steps (RESET rows are not steps)         sigma  target samples per insert, times N agents
    I0   learning_starts, steps before the first update    B      batch size
    s    samples trained on                                e      half width of the error band, in samples

    cursor = sigma * (I - I0) - s                                                        (1)

The cursor is the lead of production over consumption. It is kept in the band [-e, +e] from both sides:

    the learner may run an update      while  I >= I0  and  cursor - B >= -e             (2)
    actors may be granted a step more  while  sigma * (I + O + 1 - I0) - s <= +e         (3)

O counts steps that are granted and not yet taken, so (3) holds for every order in which actors use their grants. Within
(3) a grant goes to the ring with the fewest rows left, at most M rows per ring. So a slow, hung or dead actor holds at
most M rows, and nobody waits for a particular actor.

Liveness. Suppose that the learner may not continue, cursor < B - e, and no responsive actor has a row left. At most
N * M * E steps are granted to unresponsive actors, so (3) refuses a row of E steps only if
cursor > e - sigma * E * (N * M + 1). Both cannot hold if

    2 * e >= B + sigma * E * (N * M + 1)                                                 (4)

The constructor refuses an `e` that violates (4) for M = 1. With `samples_per_insert` None the pace is free: only the
rings' room bounds the actors and only the data bounds the learner.

With a staleness bound, all rows may be discarded before they are trained on, so that the cursor stays high; then it is
reset (`write_off`). A resumed run may have another sigma: its cursor is moved to the nearer end of the band, so that
the new ratio holds for the new steps.

The reported ratio `achieved` is s / (I - I0): steps before `learning_starts` do not count.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from asyncrl.learning.pace import UNLIMITED, Pace
from asyncrl.options import COUNT
from asyncrl.shm.kernel import kernel

_DEFAULT_ROWS_AHEAD = 4
"""Minimum M of the default error band; 4 rows give an actor enough work for the time of a wake-up."""
_DEFAULT_BATCHES = 8
"""Minimum e of the default error band, in batches: with few samples per insert this allows a large M, so that actors
that are the bottleneck do not need a grant every millisecond. In the run of `benchmarks/systems/actors.py` on
CartPole-v1: 0.36 of the raw stepping rate with M = 4, 0.74 with this."""


class Balance(Pace):
    """Balance of replay, which keeps samples per insert at its target. Pure arithmetic; learner thread only.

    Args:
        samples_per_insert: sigma, or None for a free pace.
        batch_size: B.
        learning_starts: I0 in environment steps; at least 1.
        num_actors: N.
        envs_per_actor: E.
        num_slots: slots of a ring; M is at most a sixteenth of it, so that most of the ring can be sampled.
        error_samples: e, or None for the minimum by (4) with M = 4 rows, but at least eight batches.
        num_agents: samples that one step inserts.
        max_env_steps: maximum number of steps granted (rounded up to whole rows), or None.

    Attributes:
        error_samples: e, bound of the cursor in samples; 0 if the pace is free.
        rows_ahead: M, maximum number of rows granted ahead per ring.

    Raises:
        ValueError: an argument is out of its range, or the setting would deadlock by (4).
    """

    STATE = (*Pace.STATE, "_written_off", "_start", "_begin")

    def __init__(
        self,
        *,
        samples_per_insert: float | None,
        batch_size: int,
        learning_starts: int,
        num_actors: int,
        envs_per_actor: int,
        num_slots: int,
        error_samples: float | None = None,
        num_agents: float = 1,
        max_env_steps: int | None = None,
    ) -> None:
        if samples_per_insert is not None and not (0 < samples_per_insert < math.inf):
            raise ValueError(
                f"samples_per_insert must be positive and finite, or None, got {samples_per_insert}"
            )
        COUNT.check("batch_size", batch_size)
        COUNT.check("learning_starts", learning_starts)
        COUNT.check("num_actors", num_actors)
        COUNT.check("envs_per_actor", envs_per_actor)
        capacity = num_actors * envs_per_actor * num_slots
        if learning_starts > capacity // 2:
            raise ValueError(
                f"learning_starts must be at most half of the replay capacity of {capacity} steps, "
                f"got {learning_starts}: the actors would stop before the learner may start"
            )
        super().__init__(samples_per_insert, learning_starts, max_env_steps, num_agents)
        self._batch_size = batch_size
        self._begin = learning_starts
        self._num_actors = num_actors
        self._envs = envs_per_actor
        most_ahead = max(1, num_slots // 16)
        self.error_samples, self.rows_ahead = self._band(error_samples, most_ahead)
        self._written_off = 0.0

    def _band(self, error: float | None, most_ahead: int) -> tuple[float, int]:
        """Return e and M: e as given or the default, and the largest M that (4) allows for it."""
        if self._sigma is None:
            return 0.0, most_ahead
        row = self._sigma * self._envs
        if error is None:
            ahead = min(_DEFAULT_ROWS_AHEAD, most_ahead)
            error = (self._batch_size + row * (self._num_actors * ahead + 1)) / 2
            error = max(error, _DEFAULT_BATCHES * self._batch_size)
        needed = (self._batch_size + row * (self._num_actors + 1)) / 2
        if error < needed:
            raise ValueError(
                f"samples_per_insert_error must be at least {needed:g} samples, got {error:g}: with "
                f"samples_per_insert={self._target:g}, batch_size={self._batch_size} and {self._num_actors} actors of "
                f"{self._envs} environments the learner would wait for the actors while they wait for the learner"
            )
        ahead = int((2 * error - self._batch_size) / row - 1) // self._num_actors
        return float(error), max(1, min(ahead, most_ahead))

    @property
    def cursor(self) -> float:
        """See `Pace`; without the samples written off."""
        return super().cursor - self._written_off

    def write_off(self) -> None:
        """Reduce a positive cursor to 0, because all inserted rows are too stale to be trained on.

        Without this the actors would wait for updates that the learner cannot make. The samples written off do not
        count as sampled, so `achieved` falls below the target.
        """
        if self._sigma is not None:
            self._written_off += max(0.0, self.cursor)

    def _restored(self) -> None:
        """Bring the cursor back into its band, far outside of which another `samples_per_insert` puts it."""
        if self._sigma is not None and self._inserted >= self._begin:
            bound = self.error_samples
            self._written_off += self.cursor - min(max(self.cursor, -bound), bound)

    def refill(self) -> None:
        """See `Pace`."""
        self.write_off()
        self._begin = self._inserted + self._learning_starts
        super().refill()

    def updates_allowed(self) -> int:
        """Number of updates that the learner may run now, by (2); a very large number if the pace is free.

        With a free pace no update is allowed after the last step.
        """
        if self._inserted < min(self._begin, self._max_steps):
            return 0
        if self._sigma is None:
            return UNLIMITED if self._inserted < self._max_steps else 0
        return max(0, math.floor((self.cursor + self.error_samples) / self._batch_size))

    def steps_wanted(self, updates: int) -> int:
        """Number of further steps to insert before `updates` updates are allowed; at least 1."""
        until_start = self._begin - self._inserted
        if self._sigma is None:
            return max(1, until_start)
        for_ratio = (updates * self._batch_size - self.error_samples - self.cursor) / self._sigma
        return max(1, until_start, math.ceil(for_ratio))

    @property
    def updates_worth_waking(self) -> int:
        """Number of updates for whose steps a starved learner sleeps: half of the band's half width.

        This costs nothing, because the steps are the bottleneck, and each wake-up briefly takes an actor's core.
        """
        return max(1, int(self.error_samples / (2 * self._batch_size)))

    def exhausted(self) -> bool:
        """Whether `max_env_steps` are inserted and the updates for them are made; asked when no update can be made.

        The last updates go down to the lower end of the band, by (2), so that their number does not depend on which
        side was faster. Where no row can be sampled any more, the cursor was reset before (`write_off`).
        """
        if not self.complete:
            return False
        return self._sigma is None or self.cursor < self._batch_size

    def grant(self, published: NDArray[np.int64], granted: NDArray[np.int64], unpaced: bool = False) -> bool:
        """Increase `granted` (int64 `[N]`, written in place) as far as (3) allows.

        Args:
            published: int64 `[N]`, rows published by each ring; their steps must have been counted by `inserted`.
            granted: int64 `[N]`, rows granted so far.
            unpaced: ignore (3) while no row can be sampled yet (none has n successors), so that no update can be made;
                then only M and the limit bound the actors.

        Returns:
            Whether any position moved.
        """
        allowed = self._max_steps
        if self._sigma is not None and not unpaced:
            paid = self._sampled + self._written_off + self.error_samples
            allowed = min(allowed, math.floor(paid / self._sigma) + self._start)
        return bool(_fill(published, granted, allowed - self._inserted, self._envs, self.rows_ahead))


@kernel("boolean(int64[::1], int64[::1], int64, int64, int64)")
def _fill(
    published: NDArray[np.int64], granted: NDArray[np.int64], steps: int, envs: int, rows_ahead: int
) -> bool:
    """Grant rows of `envs` steps, first to the ring with the fewest, while `steps` minus outstanding ones is positive.

    An actor writes the next observation one row ahead, so all but one of `granted - published` rows can be stepped.
    """
    rings = published.shape[0]
    left = steps
    for i in range(rings):
        left -= max(0, granted[i] - published[i] - 1) * envs
    moved = False
    while left > 0:
        poorest = -1
        fewest = rows_ahead
        for i in range(rings):
            ahead = max(0, granted[i] - published[i] - 1)
            if ahead < fewest:
                fewest = ahead
                poorest = i
        if poorest < 0:
            break
        granted[poorest] = published[poorest] + 1 + fewest + 1
        left -= envs
        moved = True
    return moved
