"""The experience ring: rows that one actor publishes and the learner side reads where they lie.

Stream-major: for each of the E environments a stream of `num_slots` consecutive steps, all moved by one
cursor. Positions count rows since the run began, are int64 and only grow; row p lies in slot
`p & (num_slots - 1)`.

    retired = max(0, granted - num_slots)     rows below it may be overwritten at any time
    published                                 rows [retired, published) may be read
    granted                                   rows [published, granted) may be written by the actor

        0 <= retired <= published <= granted <= retired + num_slots

Each word has one writer: the actor moves `published` (release) after the row's bytes are written, the learner
side moves `granted` (release) after it has retired what will be overwritten. `ring_layout.py` says where the
words and arrays lie, `ring_protocol.py` in which order they are touched.

An actor that is killed anywhere leaves either a published row, complete, or an unpublished one that its
successor writes again; the successor goes on at `published`. What follows where an environment has overwritten
the words themselves stands in `ring_health.py`.
"""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from asyncrl.errors import RingCorrupt
from asyncrl.shm.doorbell import DoorbellWriter
from asyncrl.shm.ring_end import RingEnd
from asyncrl.shm.ring_health import begin_again, fault_of, ring_corrupt
from asyncrl.shm.ring_layout import (
    CURRENT_ENV,
    EPISODE_LOG,
    EPISODES,
    EXPLORATION,
    GRANTED,
    HEARTBEAT_NS,
    INCARNATION,
    PUBLISHED,
    RUNNING,
    STARTING,
    STATE,
    STATES,
    STEPS,
    WAIT_NS,
    WAITING,
    WAITING_FOR_GRANT,
    WAKE_AT,
    RingLayout,
    RingStatistics,
)
from asyncrl.shm.ring_protocol import (
    load_word,
    load_word_last,
    must_sleep,
    publish_rows,
    published_or_corrupt,
    record_episode,
    store_word,
    take_waiting,
)
from asyncrl.shm.segment import Segment

__all__ = [
    "CURRENT_ENV",
    "GRANTED",
    "HEARTBEAT_NS",
    "PUBLISHED",
    "RUNNING",
    "STARTING",
    "STEPS",
    "WAITING_FOR_GRANT",
    "WAIT_NS",
    "RingLayout",
    "RingReader",
    "RingStatistics",
    "RingWriter",
]


class RingWriter(RingEnd):
    """The actor's end; one per ring at any time, used by one thread.

    Per row t = `published` the actor fills action, reward, flags, version, policy_updates, incarnation and extras of
    slot t, writes the *next* observation into slot t + 1, and publishes; so it needs `granted > t + 1` before it
    steps. (The observation of slot t was written by the step before, or by the first reset.) A new writer on
    an old ring goes on at `published`.

    Attributes:
        published: rows published so far.
    """

    def __init__(self, segment: Segment, layout: RingLayout, doorbell: DoorbellWriter | None = None) -> None:
        super().__init__(segment, layout)
        self._doorbell = doorbell
        self._armed = doorbell.armed if doorbell is not None else np.zeros(16, np.int64)
        self.published = load_word(self.header, PUBLISHED)
        store_word(self.header, WAITING, 0)

    def writable(self) -> int:
        """Rows that may be written now: `granted - published`."""
        return load_word(self.header, GRANTED) - self.published

    def publish(self, rows: int = 1, steps: int = 0) -> None:
        """Show the next `rows` rows to the learner side, and ring the bell if it sleeps and waits for them.

        Args:
            rows: how many, all written completely.
            steps: environment steps in them (RESET rows excluded), for the counter.

        Raises:
            ValueError: `rows` is below 1 or passes the grant; nothing is published.
            RingCorrupt: somebody else has moved `published`; nothing is published.
        """
        if (found := int(self.header[PUBLISHED])) != self.published:
            raise ring_corrupt(f"published is {found}, and {self.published} rows were published")
        if outcome := publish_rows(self.header, self._armed, rows, steps):
            if outcome == 2:
                raise ValueError(f"rows must be between 1 and the {self.writable()} granted, got {rows}")
            if self._doorbell is not None:
                self._doorbell.ring()
        self.published += rows

    def must_sleep(self, position: int) -> bool:
        """Say that this actor sleeps until `granted >= position`; False if that holds already.

        After True the actor waits on its socket (100 ms at most: a wake-up can be lost with the process that
        owed it), looks again, and calls `slept`.
        """
        return must_sleep(self.header, position)

    def slept(self, nanoseconds: int) -> None:
        """Say that this actor is awake, and count how long it slept."""
        store_word(self.header, WAITING, 0)
        self.header[WAIT_NS] += nanoseconds

    def record_episode(self, episode_return: float, length: int) -> None:
        """Log a finished episode: its undiscounted return and its length in steps."""
        record_episode(self.header, self.episode_return, self.episode_length, episode_return, length)

    def heartbeat(self, now_ns: int | None = None) -> None:
        """Say that the actor lives (`time.monotonic_ns()` if not given)."""
        self.header[HEARTBEAT_NS] = time.monotonic_ns() if now_ns is None else now_ns

    def set_state(self, state: int) -> None:
        """Show `STARTING`, `RUNNING` or `WAITING_FOR_GRANT`."""
        self.header[STATE] = state

    def set_incarnation(self, incarnation: int) -> None:
        """Show which life of the actor writes; the rows carry it too."""
        self.header[INCARNATION] = incarnation

    def set_exploration(self, rate: float) -> None:
        """Show the mean exploration rate."""
        self.header[EXPLORATION] = round(rate * 1e6)


class RingReader(RingEnd):
    """The learner side's end: its arrays are for reading; one thread (the learner's) grants.

    `grant`, `take_waiting`, `wake_at` and `begin_again` belong to that thread, everything else may be called by any.

    Attributes:
        fault: what of the header cannot be true, or "". A ring with a fault is neither read nor granted.
        abandoned: nobody writes to a ring with a fault any more; set by whoever has ended its actor.
    """

    def __init__(self, segment: Segment, layout: RingLayout) -> None:
        super().__init__(segment, layout)
        self.fault = ""
        self.abandoned = False
        # Written before and after the word itself, which must lie between the two.
        self._granted_before = self._granted_to = self.granted
        self._episodes_read = 0

    def distrust(self, fault: str) -> None:
        """Say what of the header cannot be true; the first to say so counts."""
        self.fault = self.fault or fault

    def look_over(self) -> bool:
        """Check every word of the header; whether the ring is trusted."""
        if not self.fault:
            before, granted, after = self._granted_before, self.granted, self._granted_to
            self.distrust(fault_of(self.header, granted, (before, after), self.num_envs, self.num_slots))
        return not self.fault

    def begin_again(self, published: int, granted: int) -> None:
        """Trust an abandoned ring again, as if its actor had died after `published` rows.

        `published` is where the next life goes on, and what is below it is not to be read any more; `granted` is its
        limit.
        """
        if not (self.fault and self.abandoned):
            raise ValueError(f"ring must be abandoned, got fault={self.fault!r}, abandoned={self.abandoned}")
        self._granted_before = self._granted_to = granted
        begin_again(self.header, published, granted, self._episodes_read, self.num_envs)
        self.abandoned = False
        self.fault = ""

    def published(self) -> int:
        """Rows published so far (acquire): every row in `[retired, published)` is complete and may be read.

        Raises:
            RingCorrupt: the ring cannot be trusted: its position lies outside of what was granted, or see `fault`.
        """
        position = published_or_corrupt(self.header, self.num_slots)
        if position < 0:
            published, granted = int(self.header[PUBLISHED]), int(self.header[GRANTED])
            self.distrust(f"published is {published}, granted {granted}, of {self.num_slots} slots")
        if self.fault:
            raise ring_corrupt(self.fault)
        return position

    def reached(self, position: int) -> bool:
        """Whether looking at the ring is worth while: `published >= position`, or a fault calls for `begin_again`."""
        try:
            return self.abandoned if self.fault else self.published() >= position
        except RingCorrupt:
            return True  # found just now

    @property
    def retired(self) -> int:
        """Rows below this position may be overwritten at any time."""
        return max(0, self.granted - self.num_slots)

    def grant(self, position: int) -> None:
        """Let the actor write rows below `position`; those below `position - num_slots` are retired already.

        Whoever grants calls `take_waiting` afterwards and wakes the actor if it says so.

        Raises:
            ValueError: `position` would move backwards, or would overwrite rows that were never published.
            RingCorrupt: the ring cannot be trusted.
        """
        if (granted := self.granted) != self._granted_to:
            self.distrust(f"granted is {granted}, and {self._granted_to} rows were granted")
        if position < self._granted_to:
            raise ValueError(f"position must not move back from {self._granted_to}, got {position}")
        if position > (most := self.published() + self.num_slots):
            raise ValueError(f"position must be at most published + num_slots = {most}, got {position}")
        self._granted_to = position
        store_word(self.header, GRANTED, position)
        self._granted_before = position

    def take_waiting(self) -> bool:
        """Whether the actor sleeps for want of a grant, and the caller must wake it now; True once per sleep.

        To be called after `grant`, by the same thread (fenced on both sides, so that no sleep is missed).
        """
        return take_waiting(self.header)

    def wake_at(self, position: int) -> None:
        """Ask for the bell only once `published >= position`; set before `Doorbell.arm`. 0: at every row."""
        store_word(self.header, WAKE_AT, position)

    def episodes_since(self, count: int) -> tuple[int, NDArray[np.float64], NDArray[np.int64]]:
        """Episodes finished since the first `count`: (new count, their returns, their lengths), as copies.

        At most the newest `EPISODE_LOG` are still there; older ones, and those overwritten while they were
        read, are left out.
        """
        episodes = load_word(self.header, EPISODES)
        if not count <= episodes <= self.granted * self.num_envs:
            self.distrust(f"{episodes} episodes are counted, and {count} were before")
        if self.fault:
            return count, np.empty(0), np.empty(0, np.int64)
        self._episodes_read = episodes
        indices = np.arange(max(count, episodes - EPISODE_LOG), episodes)
        slots = indices & (EPISODE_LOG - 1)
        returns, lengths = self.episode_return[slots], self.episode_length[slots]
        # Entry i is overwritten while EPISODES is still i + EPISODE_LOG: hence ">", not ">=".
        intact = indices + EPISODE_LOG > load_word_last(self.header, EPISODES)
        return episodes, returns[intact], lengths[intact]

    def statistics(self) -> RingStatistics:
        """The ring at this moment; of a ring with a fault what its header says, forced into range."""
        h, granted = self.header, self.granted
        retired = max(0, granted - self.num_slots)
        published = min(max(load_word(h, PUBLISHED), retired), max(granted, retired))
        state = int(h[STATE])
        return RingStatistics(
            published=published,
            granted=granted,
            retired=retired,
            fill=(published - retired) / self.num_slots,
            env_steps=int(h[STEPS]),
            episodes=int(h[EPISODES]),
            heartbeat_ns=int(h[HEARTBEAT_NS]),
            wait_seconds=int(h[WAIT_NS]) / 1e9,
            state=STATES[state] if 0 <= state < len(STATES) else STATES[STARTING],
            incarnation=int(h[INCARNATION]),
            exploration_rate=int(h[EXPLORATION]) / 1e6,
        )
