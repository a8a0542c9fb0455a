"""Production-consumption balance of segments by credits, each of which allows one actor to produce one segment.

`balance.py` keeps replay's samples per insert within an error band. Here every inserted step is trained on a fixed
number of times (the passes), so the balance only bounds how far production is ahead. All counts are of segments:

    N   rings                       h_r  segments ring r was ever granted, (granted_r - 1) / T
    K   segments_per_batch          c_r  of these complete        o_r = h_r - c_r   open: granted, not complete
    Q   queue_batches               l_r  of these released        f_r = h_r - l_r   in flight: granted, not released
    T   rows of a segment           D    = sum of c_r - l_r, complete and not released;   F = sum of f_r
    S   slots of a ring             room = (S - 1) / T rounded down, for the row after a segment holds its last
                                    observation

**lockstep** and **synchronous** (K = N, one segment of every ring per batch): each ring is granted one segment beyond
the released ones,

    h_r = l_r + 1,     granted_r = (l_r + 1) T + 1                                        (1)

The two differ in the time of release: in lockstep a batch is released when its update begins (the next batch is
produced meanwhile, with weights exactly one publication behind), in synchronous after publication of its update.

**relaxed**: ring r may be granted one more segment while it has room, f_r < room, and

    F < C  or  f_r = 0  or  (o_r = 0 and D < K and the learner waits),    C = max(N, Q K)    (2)

where rings with the fewest segments in flight come first. The first clause bounds the segments in flight, so that data
is at most about Q batches old if the learner is the bottleneck. The second allows every actor one segment. The third
lets fast actors continue while the learner waits for less than a batch, so that nobody waits for a particular actor.
(It says "waits", because of N segments in flight one is complete last: with "D < K" alone each of the N - 1 actors that
are done got another segment meanwhile, so that all data was two batches old where the learner is the bottleneck.)

Bound. A ring gets a further credit by the first clause only if it has the fewest, so at most ceil(C / N) of its
segments are open:

    F <= max(C, K + (N - 1) ceil(C / N))                                                  (3)

Liveness. If the learner waits, then D < K, and by (2) each ring with room has an open segment; so responsive actors
continue. If m actors are responsive and all of their rings are full, then D >= m room, so the learner need not wait if

    m room >= K                                                                           (4)

The constructor refuses settings that violate (4) for m = N. `slots_for` returns ring sizes for which (4) holds with one
actor missing (the pool restarts an actor that hangs for longer).

**max_env_steps**: segments are granted in batches of K. A new batch is begun only while the steps of complete segments
plus T E per open segment are below the limit; a batch that was begun is completed. So a run ends with less than K T E
steps beyond the limit and without incomplete batches.

The formulas are original to this package.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from asyncrl.interfaces import Metrics
from asyncrl.learning.pace import Pace
from asyncrl.options import COUNT

Discipline = Literal["relaxed", "lockstep", "synchronous"]
DISCIPLINES: tuple[Discipline, ...] = ("relaxed", "lockstep", "synchronous")


class SegmentBalance(Pace):
    """Grants of segments to actors. Pure arithmetic; learner thread only.

    Args:
        num_rings: N.
        envs_per_actor: E.
        length: T, rows of a segment.
        num_slots: S, slots of a ring.
        num_agents: samples that one step inserts.
        discipline: `relaxed`, `lockstep` or `synchronous`.
        segments_per_batch: K; must be N unless relaxed.
        queue_batches: Q; relaxed only.
        samples_per_insert: number of times that a step is trained on (passes), for statistics only.
        max_env_steps: number of steps at which no further batch is begun, or None.

    Raises:
        ValueError: an argument is out of its range, or the setting would deadlock by (4).
    """

    STATE = (*Pace.STATE, "_received", "_open")
    _sigma: float

    def __init__(
        self,
        *,
        num_rings: int,
        envs_per_actor: int,
        length: int,
        num_slots: int,
        num_agents: float = 1,
        discipline: Discipline,
        segments_per_batch: int,
        queue_batches: int = 1,
        samples_per_insert: float,
        max_env_steps: int | None = None,
    ) -> None:
        if discipline not in DISCIPLINES:
            raise ValueError(f"discipline must be one of {', '.join(DISCIPLINES)}, got {discipline!r}")
        COUNT.check("num_rings", num_rings)
        COUNT.check("envs_per_actor", envs_per_actor)
        COUNT.check("length", length)
        COUNT.check("segments_per_batch", segments_per_batch)
        COUNT.check("queue_batches", queue_batches)
        if not 0 < samples_per_insert < math.inf:
            raise ValueError(f"samples_per_insert must be positive and finite, got {samples_per_insert}")
        if discipline != "relaxed" and segments_per_batch != num_rings:
            raise ValueError(
                f"segments_per_batch must be the number of actors, {num_rings}, with discipline={discipline!r}, "
                f"got {segments_per_batch}: such a batch is one segment of every actor"
            )
        super().__init__(float(samples_per_insert), 0, max_env_steps, num_agents)
        self._room = _room(num_rings, length, num_slots, segments_per_batch)
        self.discipline = discipline
        self._rings, self._length, self._batch = num_rings, length, segments_per_batch
        self._steps_of_segment = length * envs_per_actor
        self._credits = max(num_rings, queue_batches * segments_per_batch)
        self._received = self._open = 0

    def refill(self) -> None:
        """Forget the open segments, for a resumed run with empty rings."""
        self._open = 0

    def received(self, steps: int) -> None:
        """Count `steps` more steps received by the learner (RESET rows excluded)."""
        self._received += steps

    def grant(
        self,
        released_rows: NDArray[np.int64],
        complete_rows: NDArray[np.int64],
        granted: NDArray[np.int64],
        *,
        learning: bool = False,
    ) -> bool:
        """Increase `granted` (int64 `[N]` rows, written in place) as far as (1) or (2) allow.

        Args:
            released_rows: int64 `[N]`, rows of each ring that may be overwritten.
            complete_rows: int64 `[N]`, rows of each ring in complete segments, or published rows; their steps must have
                been counted by `inserted`.
            granted: int64 `[N]`, rows granted so far.
            learning: whether the learner has a batch to train on, so that it does not wait.

        Returns:
            Whether any position moved.
        """
        released: list[int] = (released_rows // self._length).tolist()
        complete: list[int] = (complete_rows // self._length).tolist()
        before: list[int] = (np.maximum(granted - 1, 0) // self._length).tolist()
        have = list(before)
        if self.discipline == "relaxed":
            self._deal(released, complete, have, self._batch if not learning else 0)
        else:
            self._next_round(released, have)
        self._open = sum(have) - sum(complete)
        for r, segments in enumerate(have):
            if segments > before[r]:
                granted[r] = segments * self._length + 1
        return have != before

    def _next_round(self, released: list[int], have: list[int]) -> None:
        """Apply (1): grant segment j to all rings, or to none if the limit is reached."""
        begun = max(have)
        for r, segments in enumerate(released):
            if have[r] == segments and (segments < begun or self._below_limit(0)):
                have[r] = segments + 1

    def _deal(self, released: list[int], complete: list[int], have: list[int], wanted: int) -> None:
        """Apply (2): grant credits one by one, first to the ring with the fewest segments in flight.

        `wanted` is the number of complete segments that the learner waits for, 0 while it learns.
        """
        ready = sum(complete) - sum(released)
        granted = sum(have)
        while granted % self._batch or self._below_limit(granted - sum(complete)):
            full = granted - sum(released) >= self._credits
            poorest, fewest = -1, self._room
            for r in range(self._rings):
                in_flight = have[r] - released[r]
                idle = in_flight == 0 or (have[r] == complete[r] and ready < wanted)
                if in_flight < fewest and (idle or not full):
                    poorest, fewest = r, in_flight
            if poorest < 0:
                break
            have[poorest] += 1
            granted += 1

    def _below_limit(self, open_segments: int) -> bool:
        """Whether a new batch may be begun while `open_segments` are granted and not complete."""
        return self._inserted + open_segments * self._steps_of_segment < self._max_steps

    def exhausted(self, ready: int) -> bool:
        """Whether `max_env_steps` are inserted and no further batch can be completed.

        Args:
            ready: number of segments that are complete and not part of a batch yet.
        """
        return self.complete and ready + self._open < self._batch

    @property
    def most_in_flight(self) -> int:
        """Maximum number of segments in flight, by (1) or (3) and the room."""
        if self.discipline != "relaxed":
            return self._rings
        most = max(self._credits, self._batch + (self._rings - 1) * -(-self._credits // self._rings))
        return min(most, self._rings * self._room)

    @property
    def error_samples(self) -> float:
        """Maximum of the cursor: samples of the segments in flight and of a released batch in training."""
        training = 0 if self.discipline == "synchronous" else self._batch
        return self._sigma * (self.most_in_flight + training) * self._steps_of_segment

    def statistics(self) -> Metrics:
        """See `Pace`."""
        return {**super().statistics(), "received_steps": self._received}


def _room(num_rings: int, length: int, num_slots: int, segments_per_batch: int) -> int:
    """Number of segments that one ring can hold."""
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
    """Number of slots of a ring, a power of two.

    Lockstep and synchronous: one segment and the row after it, at least. Relaxed: enough that the credits and not the
    room limit (2), and that (4) holds with one actor missing.
    """
    held = 1
    if discipline == "relaxed":
        credit = max(num_rings, queue_batches * segments_per_batch)
        held = max(2, -(-credit // num_rings), -(-segments_per_batch // max(1, num_rings - 1)))
    return 1 << (held * length).bit_length()
