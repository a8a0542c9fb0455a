"""The production-consumption balance of segments: credits, each of which lets one actor produce one segment.

`balance.py` holds replay's samples per insert in a band; here every inserted step is trained on a fixed number of
times (the epochs), so what is left to balance is how far production may be ahead. All counts are of segments:

    N   rings                       h_r  segments ring r was ever granted, (granted_r - 1) / T
    K   segments_per_batch          c_r  of these complete        o_r = h_r - c_r   open: granted, not complete
    Q   queue_batches               l_r  of these released        f_r = h_r - l_r   in flight: granted, not released
    T   rows of a segment           D    = sum of c_r - l_r, complete and not released;   F = sum of f_r
    S   slots of a ring             room = (S - 1) / T rounded down, for the row after a segment holds its last
                                    observation

**lockstep** and **synchronous** (K = N, one segment of every ring per batch): each ring holds one segment beyond what
is released,

    h_r = l_r + 1,     granted_r = (l_r + 1) T + 1                                        (1)

Which of the two it is lies in when the learner releases: a batch when its update begins (lockstep: the next batch is
made meanwhile, by weights exactly one publication behind), or when its update was published (synchronous: none).

**relaxed**: ring r may be granted one more segment while it has room, f_r < room, and

    F < C  or  f_r = 0  or  (o_r = 0 and D < K),        C = max(N, Q K)                   (2)

where the ring with the fewest in flight goes first. The first clause bounds what is in the pipe, so a learner that is
the bottleneck finds data that is at most about Q batches old; the second lets every actor work on one segment; the
third lets fast actors go on while the learner has nothing to begin with, so nobody waits for a particular actor.

Bound. A ring takes a further credit of the first clause only as the poorest, so at most ceil(C / N) of a ring are open:

    F <= max(C, K + (N - 1) ceil(C / N))                                                  (3)

Liveness. If the learner waits, then D < K, and by (2) each ring with room has an open segment; so an actor that answers
goes on. If m actors answer and all of their rings are full, then D >= m room, so the learner need not wait while

    m room >= K                                                                           (4)

and the constructor refuses a setting that breaks (4) for m = N. `slots_for` gives rings for which it holds with one
actor missing (an actor that hangs for longer is started again by the pool).

**max_env_steps**: segments are granted in batches of K. A new batch is begun only while the steps of complete segments
and at most T E of each open one are below the limit; one that was begun is completed. So a run ends with less than
K T E steps beyond the limit, and with no segment left over.

The formulas are ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from asyncrl.learning.balance_statistics import BalanceStatistics

Discipline = Literal["relaxed", "lockstep", "synchronous"]
DISCIPLINES: tuple[Discipline, ...] = ("relaxed", "lockstep", "synchronous")


def is_exact(algorithm: object) -> bool:
    """Whether the algorithm's discipline makes the numbers of a run independent of timing."""
    return getattr(algorithm, "discipline", "relaxed") != "relaxed"


@dataclass(frozen=True)
class SegmentShape:
    """How rings are cut into segments.

    Attributes:
        num_rings: N.
        envs_per_actor: E.
        length: T in rows.
        num_slots: S, rows of one ring.
    """

    num_rings: int
    envs_per_actor: int
    length: int
    num_slots: int


class SegmentBalance:
    """Says how many segments each actor may produce. Pure arithmetic; one caller, the learner thread.

    Args:
        shape: of rings and segments.
        discipline: `relaxed`, `lockstep` or `synchronous`.
        segments_per_batch: K; must be N unless relaxed.
        queue_batches: Q; relaxed only.
        samples_per_insert: how often a step is trained on (epochs), for what is reported.
        max_env_steps: no batch is begun beyond this many steps, None for no limit.

    Raises:
        ValueError: an argument out of its range, or a setting that would deadlock by (4).
    """

    STATE = ("_inserted", "_received", "_sampled", "_open")

    def __init__(
        self,
        shape: SegmentShape,
        *,
        discipline: Discipline,
        segments_per_batch: int,
        queue_batches: int = 1,
        samples_per_insert: float,
        max_env_steps: int | None = None,
    ) -> None:
        if discipline not in DISCIPLINES:
            raise ValueError(f"discipline must be one of {', '.join(DISCIPLINES)}, got {discipline!r}")
        for name, value in (
            ("num_rings", shape.num_rings),
            ("envs_per_actor", shape.envs_per_actor),
            ("length", shape.length),
            ("segments_per_batch", segments_per_batch),
            ("queue_batches", queue_batches),
        ):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if not 0 < samples_per_insert < math.inf:
            raise ValueError(f"samples_per_insert must be positive and finite, got {samples_per_insert}")
        if discipline != "relaxed" and segments_per_batch != shape.num_rings:
            raise ValueError(
                f"segments_per_batch must be the number of actors, {shape.num_rings}, with discipline={discipline!r}, "
                f"got {segments_per_batch}: such a batch is one segment of every actor"
            )
        self._room = _room(shape, segments_per_batch)
        self._discipline = discipline
        self._rings, self._length, self._batch = shape.num_rings, shape.length, segments_per_batch
        self._steps_of_segment = shape.length * shape.envs_per_actor
        self._credits = max(shape.num_rings, queue_batches * segments_per_batch)
        self._sigma = float(samples_per_insert)
        self._max_steps = max_env_steps
        self._inserted = self._received = self._sampled = 0
        self._open = 0

    def inserted(self, steps: int) -> None:
        """Count `steps` more steps of complete segments (RESET rows excluded)."""
        self._inserted += steps

    def received(self, steps: int) -> None:
        """Count `steps` more steps that the learner took in (RESET rows excluded)."""
        self._received += steps

    def sampled(self, samples: int) -> None:
        """Count `samples` more training samples."""
        self._sampled += samples

    def grant(
        self,
        released_rows: NDArray[np.int64],
        complete_rows: NDArray[np.int64],
        granted: NDArray[np.int64],
    ) -> bool:
        """Move `granted` (int64 `[N]` rows, written in place) as far as (1) or (2) allow; never backwards.

        Args:
            released_rows: int64 `[N]`, rows of each ring that may be overwritten.
            complete_rows: int64 `[N]`, rows of each ring in complete segments, or published rows; must be what
                `inserted` has been told of.
            granted: int64 `[N]`, rows granted so far.

        Returns:
            Whether any position moved.
        """
        released: list[int] = (released_rows // self._length).tolist()
        complete: list[int] = (complete_rows // self._length).tolist()
        before: list[int] = (np.maximum(granted - 1, 0) // self._length).tolist()
        have = list(before)
        if self._discipline == "relaxed":
            self._deal(released, complete, have)
        else:
            self._next_round(released, have)
        self._open = sum(have) - sum(complete)
        for r, segments in enumerate(have):
            if segments > before[r]:
                granted[r] = segments * self._length + 1
        return have != before

    def _next_round(self, released: list[int], have: list[int]) -> None:
        """Equation (1): segment j of all rings, or of none where the limit is reached."""
        begun = max(have)
        for r, segments in enumerate(released):
            if have[r] == segments and (segments < begun or self._below_limit(0)):
                have[r] = segments + 1

    def _deal(self, released: list[int], complete: list[int], have: list[int]) -> None:
        """Equation (2): credits one by one, the ring with the fewest in flight first."""
        ready = sum(complete) - sum(released)
        granted = sum(have)
        while granted % self._batch or self._below_limit(granted - sum(complete)):
            full = granted - sum(released) >= self._credits
            poorest, fewest = -1, self._room
            for r in range(self._rings):
                in_flight = have[r] - released[r]
                idle = in_flight == 0 or (have[r] == complete[r] and ready < self._batch)
                if in_flight < fewest and (idle or not full):
                    poorest, fewest = r, in_flight
            if poorest < 0:
                break
            have[poorest] += 1
            granted += 1

    def _below_limit(self, open_segments: int) -> bool:
        """Whether a new batch may be begun while so many segments are granted and not complete."""
        return (
            self._max_steps is None
            or self._inserted + open_segments * self._steps_of_segment < self._max_steps
        )

    def exhausted(self, ready: int) -> bool:
        """Whether `max_env_steps` are inserted and no further batch can come together.

        Args:
            ready: segments that are complete and not taken now.
        """
        if self._max_steps is None or self._inserted < self._max_steps:
            return False
        return ready + self._open < self._batch

    @property
    def cursor(self) -> float:
        """Production ahead of consumption in samples, `samples_per_insert * inserted - sampled`."""
        return self._sigma * self._inserted - self._sampled

    @property
    def achieved(self) -> float:
        """Samples per inserted step; 0 before the first."""
        return self._sampled / self._inserted if self._inserted else 0.0

    @property
    def most_in_flight(self) -> int:
        """Segments in flight at most, by (1) or (3) and the room."""
        if self._discipline != "relaxed":
            return self._rings
        most = max(self._credits, self._batch + (self._rings - 1) * -(-self._credits // self._rings))
        return min(most, self._rings * self._room)

    def statistics(self) -> BalanceStatistics:
        """A frozen record of the balance as it stands.

        `error_samples` is what the credits let the cursor reach: all that may be in flight, and the batch that is
        trained on after it was released.
        """
        training = 0 if self._discipline == "synchronous" else self._batch
        ahead = 1
        if self._discipline == "relaxed":
            ahead = min(-(-self._credits // self._rings), self._room)
        return BalanceStatistics(
            target=self._sigma,
            achieved=self.achieved,
            inserted_steps=self._inserted,
            sampled=self._sampled,
            cursor=self.cursor,
            error_samples=self._sigma * (self.most_in_flight + training) * self._steps_of_segment,
            rows_ahead=ahead * self._length,
            received_steps=self._received,
            discipline=self._discipline,
        )


def _room(shape: SegmentShape, segments_per_batch: int) -> int:
    """Segments that one ring may hold."""
    num_rings, length, num_slots = shape.num_rings, shape.length, shape.num_slots
    if num_slots < length + 1:
        raise ValueError(f"num_slots must be at least length + 1 = {length + 1}, got {num_slots}")
    room = (num_slots - 1) // length
    if segments_per_batch > num_rings * room:
        raise ValueError(
            f"segments_per_batch must be at most {num_rings * room}, got {segments_per_batch}: {num_rings} rings of "
            f"{num_slots} slots hold no more segments of {length} rows, and the learner would wait for ever"
        )
    return room


def slots_for(
    *, discipline: Discipline, num_rings: int, length: int, segments_per_batch: int, queue_batches: int = 1
) -> int:
    """Slots of a ring (a power of two) that never limit (2) before the credits do and hold (4) with one actor missing.

    With lockstep or synchronous one segment and the row after it.
    """
    held = 1
    if discipline == "relaxed":
        credit = max(num_rings, queue_batches * segments_per_batch)
        held = max(2, -(-credit // num_rings), -(-segments_per_batch // max(1, num_rings - 1)))
    return 1 << (held * length).bit_length()
