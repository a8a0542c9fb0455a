"""On-policy segments: T consecutive rows of a ring, each taken once, in order of arrival, read in place.

Segment j of a ring is its rows `[j T, (j + 1) T)`. It is complete once `published >= (j + 1) T`. Then the observation
after its last row is in the slot of row `(j + 1) T`, because an actor writes the next observation before it publishes a
row; so it needs a grant of `(j + 1) T + 1` to complete the segment. Per ring, in rows:

    released <= taken <= complete <= published <= granted <= released + num_slots

Only rows below `released` may be overwritten: like the replay, retire first, then grant. Segments are copied only if
they wrap around the ring's end, which never happens if `num_slots` is a multiple of T. Frame stacks are copies too,
made when a segment is taken.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.errors import RingCorrupt
from asyncrl.interfaces import RESET, Segment, environment_steps
from asyncrl.shm import RingReader


class SegmentQueue:
    """Queue of the complete segments of a set of rings of one layout; learner thread only.

    Actors continue writing: `poll` reads each ring's `published` once (acquire), and rows at or beyond it are not
    accessed until the next `poll`, except for the observation of row `published`.

    Args:
        rings: at least one; all of one layout.
        length: T, rows of a segment.
        frame_stack: k, observations joined along a new axis 2 of `obs` and 1 of `last_obs`; 1 means no such axis.

    Raises:
        ValueError: no rings, rings of different layouts, a length below 1, or rings of fewer than `length + 1` slots.
    """

    STATE = ("_complete", "_taken", "_released", "_stacks")

    def __init__(self, rings: Sequence[RingReader], *, length: int, frame_stack: int = 1) -> None:
        _check(rings, length)
        self.rings = tuple(rings)
        self.length = length
        layout = self.rings[0].layout
        self._num_slots = layout.num_slots
        spec = layout.spec
        shape = frame_stack, layout.num_envs, spec.observation_shape, spec.observation_dtype
        self._stacks = [SegmentStacks(*shape) for _ in rings] if frame_stack > 1 else []
        self._num_agents = spec.num_agents
        self._seen = np.zeros(len(rings), np.int64)
        # Rows that are complete, taken, released; multiples of T.
        self._complete, self._taken, self._released = (np.zeros(len(rings), np.int64) for _ in range(3))
        self._arrivals: deque[int] = deque()  # ring of each ready segment, in order of arrival

    def poll(self) -> int:
        """Queue the segments completed since the last call; returns their env-steps, RESET rows excluded.

        The order of arrival between two calls is unknown: the first new segment of every ring goes before the second of
        any, in ring order. A ring whose `published` is outside of the granted range or moved back gets a `fault` and is
        ignored until `begin_again`.
        """
        steps = 0
        new: list[tuple[int, int]] = []
        for r, ring in enumerate(self.rings):
            if not self._look(r, ring):
                continue
            nth = 0
            while self._complete[r] + self.length <= self._seen[r]:
                steps += self._complete_one(r)
                new.append((nth, r))
                nth += 1
        self._arrivals.extend(r for _, r in sorted(new))
        return steps

    def _look(self, r: int, ring: RingReader) -> bool:
        """Read the ring's `published`; returns whether it is valid."""
        try:
            seen = ring.published()
        except RingCorrupt:
            return False
        if seen < self._seen[r]:
            ring.set_fault(f"published is {seen}, and {int(self._seen[r])} rows were published")
            return False
        self._seen[r] = seen
        return True

    def begin_again(self, ring: int, granted: int) -> None:
        """Begin an abandoned ring again after its last complete segment; see `RingReader.begin_again`."""
        self._seen[ring] = self._complete[ring]
        self.rings[ring].begin_again(int(self._complete[ring]), granted)

    def complete_rows(self, ring: int) -> int:
        """Number of the ring's rows in complete segments."""
        return int(self._complete[ring])

    def _complete_one(self, ring: int) -> int:
        """Count the next segment of `ring` as complete; returns its env-steps, RESET rows excluded."""
        first = int(self._complete[ring])
        flags = self._rows(self.rings[ring].flags, first)
        self._complete[ring] += self.length
        return environment_steps(flags, self._num_agents)

    @property
    def ready(self) -> int:
        """Number of segments that are complete and not taken."""
        return len(self._arrivals)

    @property
    def each_ready(self) -> bool:
        """Whether every ring has a segment that is complete and not taken."""
        return bool((self._taken < self._complete).all())

    def take(self, count: int) -> list[Segment]:
        """Take the first `count` segments of all rings, in order of arrival.

        Raises:
            ValueError: fewer are ready, or `count` is negative; nothing is taken.
        """
        if not 0 <= count <= len(self._arrivals):
            raise ValueError(f"count must be between 0 and the {len(self._arrivals)} ready, got {count}")
        return [self._take(self._arrivals.popleft()) for _ in range(count)]

    def take_one_of_each(self) -> list[Segment]:
        """Take the next segment of every ring, in ring order.

        Raises:
            ValueError: a ring has none; nothing is taken.
        """
        for r in range(len(self.rings)):
            if self._taken[r] == self._complete[r]:
                raise ValueError(f"every ring must have a complete segment, got none in ring {r}")
        for r in range(len(self.rings)):
            self._arrivals.remove(r)  # the first of this ring: a ring's segments are in order
        return [self._take(r) for r in range(len(self.rings))]

    def _take(self, r: int) -> Segment:
        ring, first = self.rings[r], int(self._taken[r])
        obs = self._rows(ring.obs, first)
        last_obs = ring.obs[:, (first + self.length) & (self._num_slots - 1)]
        flags = self._rows(ring.flags, first)
        if self._stacks:
            obs, last_obs = self._stacks[r].cut(obs, last_obs, flags)
        self._taken[r] += self.length
        states: dict[str, Any] = {}
        if ring.global_state is not None:
            after = (first + self.length) & (self._num_slots - 1)
            states = {
                "state": self._rows(ring.global_state, first),
                "last_state": ring.global_state[:, after],
            }
        return Segment(
            ring=r,
            first=first,
            obs=obs,
            last_obs=last_obs,
            action=self._rows(ring.action, first),
            reward=self._rows(ring.reward, first),
            flags=flags,
            version=self._rows(ring.version[np.newaxis], first)[0],
            policy_updates=self._rows(ring.policy_updates[np.newaxis], first)[0],
            extras={name: self._rows(values, first) for name, values in ring.extras.items()},
            weight=np.ones(self.length, np.float32),
            staleness=np.zeros(self.length, np.int64),
            num_agents=self._num_agents,
            **states,
        )

    def _rows(self, array: NDArray[Any], first: int) -> NDArray[Any]:
        """Rows `[first, first + T)` of `[E, S, ...]`: a view, or a copy if they wrap."""
        start = first & (self._num_slots - 1)
        beyond = start + self.length - self._num_slots
        if beyond <= 0:
            return array[:, start : start + self.length]
        return np.concatenate((array[:, start:], array[:, :beyond]), axis=1)

    def release(self, segment: Segment) -> None:
        """Release the rows of `segment`: a grant may now overwrite them, so the segment must not be read any more.

        Raises:
            ValueError: it was not taken, is released already, or an earlier one of its ring is not released.
        """
        r = segment.ring
        if not 0 <= r < len(self.rings):
            raise ValueError(f"segment must be of one of {len(self.rings)} rings, got ring {r}")
        released = int(self._released[r])
        if released == self._taken[r]:
            raise ValueError(f"segment must be taken and not released, got none of ring {r} in use")
        if segment.first != released:
            raise ValueError(
                f"segments of a ring must be released in order, the next of ring {r} starts at row {released}, "
                f"got {segment.first}"
            )
        self._released[r] += self.length

    @property
    def released(self) -> NDArray[np.int64]:
        """`[N]`, released rows of each ring, multiples of T; a copy."""
        return self._released.copy()

    def grant(self, ring: int, position: int) -> None:
        """Let the actor write rows below `position`, over released rows only.

        Call `RingReader.take_waiting` afterwards.

        Raises:
            ValueError: the position moves back, or would overwrite rows that are not released.
            RingCorrupt: the ring has a fault.
        """
        most = int(self._released[ring]) + self._num_slots
        if position > most:
            raise ValueError(f"position must be at most released + num_slots = {most}, got {position}")
        self.rings[ring].grant(position)

    def published_rows(self) -> NDArray[np.int64]:
        """`[N]`, published rows of each ring at the last `poll`, a copy."""
        return self._seen.copy()

    def next_wake(self) -> NDArray[np.int64]:
        """`[N]`, position of each ring at which its next segment will be complete; for `wake_at`."""
        return self._complete + self.length


class SegmentStacks:
    """Frame stacks of the consecutive segments of one ring: k consecutive observations of one episode for every row.

    Segments are taken in order, and the rows before a segment may be overwritten. So the last k - 1 observations of
    each segment are kept for the first rows of the next.

    At the start of an episode its first observation is repeated; no stack holds observations of two episodes. An
    episode begins after a RESET row, which includes the first row of an actor's new life, or at the ring's first row.

    Args:
        frames: k, at least 2.
        num_envs: E.
        shape: shape of one observation.
        dtype: dtype of the observations.
    """

    STATE = ("_tail", "_age")

    def __init__(self, frames: int, num_envs: int, shape: tuple[int, ...], dtype: str) -> None:
        self._frames = frames
        self._tail: NDArray[Any] = np.zeros((num_envs, frames - 1, *shape), dtype)
        # Number of newest observations in the tail that belong to the episode continued by the next segment.
        self._age = np.zeros(num_envs, np.int64)

    def cut(
        self, obs: NDArray[Any], last_obs: NDArray[Any], flags: NDArray[np.uint8]
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Stacks of the next segment, as new arrays.

        To be called once per segment: a second call would put the segment's own tail before its first row.

        Args:
            obs: `[E, T, *shape]`.
            last_obs: `[E, *shape]`, observation after the last row.
            flags: `[E, T]`.

        Returns:
            `[E, T, k, *shape]` and `[E, k, *shape]`, oldest observation first.
        """
        before, (envs, length) = self._frames - 1, flags.shape
        known = np.concatenate((self._tail, obs, last_obs[:, None]), axis=1)
        row = np.arange(length + 1)
        begins = np.zeros((envs, length + 1), np.bool_)
        begins[:, 1:] = (flags & RESET) != 0
        # First row of each row's episode, relative to the segment's first row; negative in the tail.
        first = np.maximum.accumulate(np.where(begins, row, -self._age[:, None]), axis=1)
        wanted = row[:, None] - np.arange(before, -1, -1)
        at = np.maximum(wanted[None], first[:, :, None]) + before
        stacks = known[np.arange(envs)[:, None, None], at]
        self._age = np.minimum(before, length - first[:, -1])
        self._tail = known[:, length : length + before].copy()
        return stacks[:, :-1], stacks[:, -1]


def _check(rings: Sequence[RingReader], length: int) -> None:
    if not rings:
        raise ValueError("rings must hold at least one ring, got none")
    for i, ring in enumerate(rings):
        if ring.layout != rings[0].layout:
            raise ValueError(f"rings must have one layout, got another in ring {i}")
    if length < 1:
        raise ValueError(f"length must be at least 1 row, got {length}")
    if (slots := rings[0].num_slots) < length + 1:
        raise ValueError(
            f"num_slots must be at least length + 1 = {length + 1} (the observation after a segment), got {slots}"
        )
