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
successor writes again; the successor goes on at `published`.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.errors import RingCorrupt
from asyncrl.shm.doorbell import DoorbellWriter
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


class _RingEnd:
    """The arrays that both ends see, as views into the segment.

    Attributes:
        segment: where they lie.
        layout: what was agreed on.
        obs: `[E, S, *obs_shape]` in the environment's dtype.
        action: `[E, S, *act_shape]`.
        reward: `[E, S]` float32.
        flags: `[E, S]` uint8, `TERMINATED | TRUNCATED | RESET`.
        version: `[S]` int64, policy version that acted.
        policy_updates: `[S]` int64, updates that the learner had made when it published that version.
        incarnation: `[S]` int32, life of the actor that wrote the row.
        extras: name to `[E, S, ...]`, one per extra field.
    """

    def __init__(self, segment: Segment, layout: RingLayout) -> None:
        if segment.arrays != layout.arrays():
            raise ValueError("segment must be laid out by layout.arrays(), got another layout")
        self.segment = segment
        self.layout = layout
        self.num_envs = layout.num_envs
        self.num_slots = layout.num_slots
        self.header: NDArray[np.int64] = segment["header"]
        used = (slice(None), slice(layout.num_slots))  # not the padding
        self.obs: NDArray[Any] = segment["obs"][used]
        self.action: NDArray[Any] = segment["action"][used]
        self.reward: NDArray[np.float32] = segment["reward"][used]
        self.flags: NDArray[np.uint8] = segment["flags"][used]
        self.version: NDArray[np.int64] = segment["version"]
        self.policy_updates: NDArray[np.int64] = segment["policy_updates"]
        self.incarnation: NDArray[np.int32] = segment["incarnation"]
        self.extras: dict[str, NDArray[Any]] = {f.name: segment[f.name][used] for f in layout.extra_fields}
        self.episode_return: NDArray[np.float64] = segment["episode_return"]
        self.episode_length: NDArray[np.int64] = segment["episode_length"]

    @property
    def granted(self) -> int:
        """Position up to which the actor may write (acquire)."""
        return load_word(self.header, GRANTED)

    def close(self) -> None:
        """Let go of all views and close the segment; idempotent. This end must not be used afterwards."""
        for name in [name for name, value in vars(self).items() if isinstance(value, np.ndarray)]:
            delattr(self, name)
        self.extras.clear()
        self.segment.close()


class RingWriter(_RingEnd):
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
        """
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


class RingReader(_RingEnd):
    """The learner side's end: its arrays are for reading; one thread (the learner's) grants.

    `grant`, `take_waiting` and `wake_at` belong to that thread, everything else may be called by any.
    """

    def published(self) -> int:
        """Rows published so far (acquire): every row in `[retired, published)` is complete and may be read.

        Raises:
            RingCorrupt: the position lies outside of what was granted; this ring cannot be trusted any more.
        """
        position = published_or_corrupt(self.header, self.num_slots)
        if position < 0:
            raise RingCorrupt(
                "An experience ring was overwritten from outside.",
                facts={
                    "published": int(self.header[PUBLISHED]),
                    "granted": int(self.header[GRANTED]),
                    "num_slots": self.num_slots,
                    "rule": "granted - num_slots <= published <= granted",
                },
                fix="look for native code in the environment that writes outside of its own arrays",
            )
        return position

    @property
    def retired(self) -> int:
        """Rows below this position may be overwritten at any time."""
        return max(0, self.granted - self.num_slots)

    def grant(self, position: int) -> None:
        """Let the actor write rows below `position`; those below `position - num_slots` are retired already.

        Whoever grants calls `take_waiting` afterwards and wakes the actor if it says so.

        Raises:
            ValueError: `position` would move backwards, or would overwrite rows that were never published.
        """
        granted = self.granted
        if position < granted:
            raise ValueError(f"position must not move back from {granted}, got {position}")
        if position > (most := self.published() + self.num_slots):
            raise ValueError(f"position must be at most published + num_slots = {most}, got {position}")
        store_word(self.header, GRANTED, position)

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
        indices = np.arange(max(count, episodes - EPISODE_LOG), episodes)
        slots = indices & (EPISODE_LOG - 1)
        returns, lengths = self.episode_return[slots], self.episode_length[slots]
        # Entry i is overwritten while EPISODES is still i + EPISODE_LOG: hence ">", not ">=".
        intact = indices + EPISODE_LOG > load_word_last(self.header, EPISODES)
        return episodes, returns[intact], lengths[intact]

    def statistics(self) -> RingStatistics:
        """The ring at this moment."""
        published, h = self.published(), self.header
        granted = self.granted
        retired = max(0, granted - self.num_slots)
        return RingStatistics(
            published=published,
            granted=granted,
            retired=retired,
            fill=max(0, published - retired) / self.num_slots,
            env_steps=int(h[STEPS]),
            episodes=int(h[EPISODES]),
            heartbeat_ns=int(h[HEARTBEAT_NS]),
            wait_seconds=int(h[WAIT_NS]) / 1e9,
            state=STATES[int(h[STATE])],
            incarnation=int(h[INCARNATION]),
            exploration_rate=int(h[EXPLORATION]) / 1e6,
        )
