"""Experience ring: rows that one actor publishes and the learner side reads in place.

Stream-major: each of the E environments has a stream of `num_slots` consecutive steps, and one position applies to all
streams. Positions are int64, count rows since the run began, and only grow. Row p is in slot `p & (num_slots - 1)`.

    retired = max(0, granted - num_slots)     rows below it may be overwritten at any time
    published                                 rows [retired, published) may be read
    granted                                   rows [published, granted) may be written by the actor

        0 <= retired <= published <= granted <= retired + num_slots

Each of the two words has one writer. The actor stores `published` (release) after writing the row. The learner side
stores `granted` (release) after retiring the rows that will be overwritten. `ring_layout.py` has the layout of words
and arrays, `ring_protocol.py` the order of accesses.

If an actor is killed, every row is either published and complete, or unpublished. Its successor continues at
`published` and writes unpublished rows again. `ring_health.py` handles words overwritten by an environment.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.errors import RingCorrupt
from asyncrl.shm.atomics import load_word, load_word_last, store_word
from asyncrl.shm.doorbell import DoorbellWriter
from asyncrl.shm.ring_health import begin_again, fault_of, ring_corrupt
from asyncrl.shm.ring_layout import (
    CURRENT_ENV,
    ENV_NS,
    EPISODE_LOG,
    EPISODES,
    EXPLORATION,
    GRANTED,
    HEARTBEAT_NS,
    INCARNATION,
    INFERENCE_NS,
    LOGGING,
    PUBLISHED,
    RUNNING,
    STARTING,
    STATE,
    STATES,
    STEPS,
    TIMED_ROWS,
    WAIT_NS,
    WAITING,
    WAITING_FOR_GRANT,
    WAKE_AT,
    WRITE_NS,
    RingLayout,
    RingStatistics,
)
from asyncrl.shm.ring_protocol import (
    must_sleep,
    publish_rows,
    published_or_corrupt,
    take_waiting,
)
from asyncrl.shm.segment import Segment, drop_views

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


class RingEnd:
    """Base of both ends of a ring: its arrays, as views of its segment.

    Attributes:
        segment: shared memory of the ring.
        layout: layout of the ring.
        obs: `[E, S, *obs_shape]` in the environment's dtype.
        global_state: `[environments, S, state_values]` float32, state of each environment, written beside the
            observations; None if the ring keeps none.
        action: `[E, S, *act_shape]`.
        reward: `[E, S]` float32.
        flags: `[E, S]` uint8, `TERMINATED | TRUNCATED | RESET | FROZEN`.
        version: `[S]` int64, policy version that acted.
        policy_updates: `[S]` int64, updates that the learner had made when it published that version.
        incarnation: `[S]` int32, life of the actor that wrote the row.
        extras: name to `[E, S, ...]`, one per extra field.
        episode_game: `[entries, 2]`, updates of the opponents' version in each logged episode, or -1 without, and
            points of the learning agent (2 won, 1 drawn, 0 lost); None without frozen streams.
        num_envs: E, number of streams.
        environments: number of environments; their agents are neighbouring streams.
    """

    def __init__(self, segment: Segment, layout: RingLayout) -> None:
        if segment.arrays != layout.arrays():
            raise ValueError("segment must be laid out by layout.arrays(), got another layout")
        self.segment = segment
        self.layout = layout
        self.num_envs, self.environments = layout.num_envs, layout.environments
        self.num_slots = layout.num_slots
        self.header: NDArray[np.int64] = segment["header"]
        used = (slice(None), slice(layout.num_slots))  # not the padding
        self.obs: NDArray[Any] = segment["obs"][used]
        self.global_state: NDArray[np.float32] | None = None
        if layout.state_values:
            self.global_state = segment["global_state"][used]
        self.action: NDArray[Any] = segment["action"][used]
        self.reward: NDArray[np.float32] = segment["reward"][used]
        self.flags: NDArray[np.uint8] = segment["flags"][used]
        self.version: NDArray[np.int64] = segment["version"]
        self.policy_updates: NDArray[np.int64] = segment["policy_updates"]
        self.incarnation: NDArray[np.int32] = segment["incarnation"]
        self.extras: dict[str, NDArray[Any]] = {f.name: segment[f.name][used] for f in layout.extra_fields}
        self.episode_return: NDArray[np.float64] = segment["episode_return"]
        self.episode_length: NDArray[np.int64] = segment["episode_length"]
        self.episode_success: NDArray[np.int8] = segment["episode_success"]
        self.episode_game: NDArray[np.int64] | None = None
        if layout.frozen_streams:
            self.episode_game = segment["episode_game"]

    @property
    def granted(self) -> int:
        """Position up to which the actor may write (acquire)."""
        return load_word(self.header, GRANTED)

    def close(self) -> None:
        """Drop all views and close the segment; idempotent. The object must not be used afterwards."""
        drop_views(self)
        self.extras.clear()
        self.segment.close()


class RingWriter(RingEnd):
    """Actor's end of a ring; one per ring at any time, used by one thread.

    For row t = `published` the actor writes action, reward, flags, version, policy_updates, incarnation and extras into
    slot t, the *next* observation, and state, into slot t + 1, and publishes. So it needs `granted > t + 1` before a
    step. (The observation of slot t was written by the previous step, or by the first reset.) A new writer on an old
    ring continues at `published`.

    Attributes:
        published: number of rows published so far.
    """

    def __init__(self, segment: Segment, layout: RingLayout, doorbell: DoorbellWriter | None = None) -> None:
        super().__init__(segment, layout)
        self._doorbell = doorbell
        self._armed = doorbell.armed if doorbell is not None else np.zeros(16, np.int64)
        self.published = load_word(self.header, PUBLISHED)
        store_word(self.header, WAITING, 0)

    def writable(self) -> int:
        """Number of rows that may be written now: `granted - published`."""
        return load_word(self.header, GRANTED) - self.published

    def publish(self, rows: int = 1, steps: int = 0) -> None:
        """Publish the next `rows` rows, and ring the doorbell if the learner side sleeps and waits for them.

        Args:
            rows: number of rows, all written completely.
            steps: environment steps in them (RESET rows excluded), for the counter.

        Raises:
            ValueError: `rows` is below 1 or exceeds the grant; nothing is published.
            RingCorrupt: the shared word `published` was changed from outside; nothing is published.
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
        """Set WAITING unless `granted >= position`; returns whether it was set.

        After True the actor waits on its socket (100 ms at most: a wake-up is lost if the sending process dies), checks
        again, and calls `slept`.
        """
        return must_sleep(self.header, position)

    def slept(self, nanoseconds: int) -> None:
        """Clear WAITING, and add the time slept to WAIT_NS."""
        store_word(self.header, WAITING, 0)
        self.header[WAIT_NS] += nanoseconds

    def log_successes(self, successes: NDArray[np.int8]) -> None:
        """Log whether the episodes succeeded that `record_episode` logs next, in order."""
        self.episode_success[self._next_entries(len(successes))] = successes

    def log_games(self, games: NDArray[np.int64]) -> None:
        """Log the games `[n, 2]` of the episodes that `record_agents_episode` logs next, in order."""
        assert self.episode_game is not None, "the ring has frozen streams"
        self.episode_game[self._next_entries(len(games))] = games

    def _next_entries(self, count: int) -> NDArray[np.int64]:
        """Entries of the log of the next `count` episodes; readers learn before that they are overwritten."""
        store_word(self.header, LOGGING, int(self.header[EPISODES]) + count)
        first = load_word_last(self.header, EPISODES)  # its fence orders the store before the entries
        return np.arange(first, first + count) & (EPISODE_LOG - 1)

    def heartbeat(self, now_ns: int | None = None) -> None:
        """Store the time of a heartbeat, `time.monotonic_ns()` if not given."""
        self.header[HEARTBEAT_NS] = time.monotonic_ns() if now_ns is None else now_ns

    def add_times(self, inference_ns: int, env_ns: int, write_ns: int, rows: int = 1) -> None:
        """Add the times of a row, or with `rows` 0 of a part of one."""
        header = self.header
        header[INFERENCE_NS] += inference_ns
        header[ENV_NS] += env_ns
        header[WRITE_NS] += write_ns
        header[TIMED_ROWS] += rows

    def set_state(self, state: int) -> None:
        """Store the actor's state: `STARTING`, `RUNNING` or `WAITING_FOR_GRANT`."""
        self.header[STATE] = state

    def set_incarnation(self, incarnation: int) -> None:
        """Store the number of the actor's life; rows carry it too."""
        self.header[INCARNATION] = incarnation

    def set_exploration(self, rate: float) -> None:
        """Store the mean exploration rate, in millionths."""
        self.header[EXPLORATION] = round(rate * 1e6)


class RingReader(RingEnd):
    """Learner side's end of a ring; its arrays must not be written.

    `grant`, `take_waiting`, `wake_at` and `begin_again` are called by the learner's thread only, everything else by any
    thread.

    Attributes:
        fault: description of the invalid word of the header, or "". A ring with a fault is neither read nor granted.
        abandoned: whether the actor of a ring with a fault has ended, set by the code that ended it.
    """

    def __init__(self, segment: Segment, layout: RingLayout) -> None:
        super().__init__(segment, layout)
        self.fault = ""
        self.abandoned = False
        # Stored before and after the word GRANTED, which must lie between the two.
        self._granted_before = self._granted_to = self.granted
        self._episodes_read = 0

    def set_fault(self, fault: str) -> None:
        """Set `fault` unless one is set already."""
        self.fault = self.fault or fault

    def check_header(self) -> bool:
        """Check every word of the header; returns whether the ring has no fault."""
        if not self.fault:
            before, granted, after = self._granted_before, self.granted, self._granted_to
            self.set_fault(fault_of(self.header, granted, (before, after), self.num_envs, self.num_slots))
        return not self.fault

    def begin_again(self, published: int, granted: int) -> None:
        """Reset the header of an abandoned ring, as if its actor had been killed after `published` rows.

        The next life of the actor continues at `published` and may write up to `granted`. The caller must not read the
        rows below `published` any more. Raises ValueError if the ring is not abandoned.
        """
        if not (self.fault and self.abandoned):
            raise ValueError(f"ring must be abandoned, got fault={self.fault!r}, abandoned={self.abandoned}")
        self._granted_before = self._granted_to = granted
        begin_again(self.header, published, granted, self._episodes_read, self.num_envs)
        self.abandoned = False
        self.fault = ""

    def published(self) -> int:
        """Rows published so far (acquire). Every row in `[retired, published)` is complete and may be read.

        Raises:
            RingCorrupt: `published` is outside of [retired, granted], or the ring has a `fault`.
        """
        position = published_or_corrupt(self.header, self.num_slots)
        if position < 0:
            published, granted = int(self.header[PUBLISHED]), int(self.header[GRANTED])
            self.set_fault(f"published is {published}, granted {granted}, of {self.num_slots} slots")
        if self.fault:
            raise ring_corrupt(self.fault)
        return position

    def reached(self, position: int) -> bool:
        """Whether the ring needs attention: `published >= position`, a new fault, or an abandoned ring."""
        try:
            return self.abandoned if self.fault else self.published() >= position
        except RingCorrupt:
            return True  # a new fault

    @property
    def retired(self) -> int:
        """Rows below this position may be overwritten at any time."""
        return max(0, self.granted - self.num_slots)

    def grant(self, position: int) -> None:
        """Let the actor write rows below `position`; the caller has retired those below `position - num_slots`.

        The caller calls `take_waiting` afterwards, and wakes the actor if that returns True.

        Raises:
            ValueError: `position` moves backwards, or would retire rows that were never published.
            RingCorrupt: the ring has a `fault`.
        """
        if (granted := self.granted) != self._granted_to:
            self.set_fault(f"granted is {granted}, and {self._granted_to} rows were granted")
        if position < self._granted_to:
            raise ValueError(f"position must not move back from {self._granted_to}, got {position}")
        if position > (most := self.published() + self.num_slots):
            raise ValueError(f"position must be at most published + num_slots = {most}, got {position}")
        self._granted_to = position
        store_word(self.header, GRANTED, position)
        self._granted_before = position

    def take_waiting(self) -> bool:
        """Whether the actor sleeps until it gets a grant and the caller must wake it; True once per sleep.

        Called after `grant`, by the same thread. Both sides fence, so that no sleep is missed.
        """
        return take_waiting(self.header)

    def wake_at(self, position: int) -> None:
        """Let the actor ring only if `published >= position`; set before `Doorbell.arm`. 0: at every row."""
        store_word(self.header, WAKE_AT, position)

    def episodes_since(self, count: int) -> tuple[int, *tuple[NDArray[Any], ...]]:
        """Episodes finished after the first `count`: (new count, returns, lengths, successes), as copies.

        Of successes see `envs.checks.SUCCEEDED`. The returns of environments of several agents are
        `[episodes, N]`. With frozen streams the games `[episodes, 2]` follow, see `RingEnd.episode_game`.

        Only the newest `EPISODE_LOG` are in the log; older ones, those overwritten during the read, and those whose
        return is `NOT_COUNTED` are left out.
        """
        if not self.fault:  # else the learner's thread may be resetting the header
            episodes = load_word(self.header, EPISODES)
            if not count <= episodes <= self.granted * self.num_envs:
                self.set_fault(f"{episodes} episodes are counted, and {count} were before")
        logs: list[NDArray[Any]] = [self.episode_return, self.episode_length, self.episode_success]
        if self.episode_game is not None:
            logs.append(self.episode_game)
        if self.fault:
            return count, *(log[:0].copy() for log in logs)
        self._episodes_read = episodes
        indices = np.arange(max(count, episodes - EPISODE_LOG), episodes)
        slots = indices & (EPISODE_LOG - 1)
        read = [log[slots] for log in logs]
        # Entry i is overwritten while EPISODES is still i + EPISODE_LOG, by successes and games even before.
        begun = max(load_word_last(self.header, EPISODES) + 1, load_word(self.header, LOGGING))
        left_out = np.isnan(read[0]).any(axis=tuple(range(1, read[0].ndim)))
        kept = (indices + EPISODE_LOG >= begun) & ~left_out
        return episodes, *(values[kept] for values in read)

    def statistics(self) -> RingStatistics:
        """Statistics of the ring now; `published` is clipped to its range, an invalid state reads as `starting`."""
        h, granted = self.header, self.granted
        retired = max(0, granted - self.num_slots)
        published = min(max(load_word(h, PUBLISHED), retired), max(granted, retired))
        state = int(h[STATE])
        return RingStatistics(
            published=published,
            fill=(published - retired) / self.num_slots,
            env_steps=int(h[STEPS]),
            episodes=int(h[EPISODES]),
            wait_seconds=int(h[WAIT_NS]) / 1e9,
            state=STATES[state] if 0 <= state < len(STATES) else STATES[STARTING],
            incarnation=int(h[INCARNATION]),
            exploration_rate=int(h[EXPLORATION]) / 1e6,
        )
