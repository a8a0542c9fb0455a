"""The experience ring: rows that one actor publishes and the learner side reads where they lie.

Stream-major: for each of the E environments a stream of `num_slots` consecutive steps, all moved by one
cursor. Positions count rows since the run began, are int64 and only grow; row p lies in slot
`p & (num_slots - 1)`.

    retired = max(0, granted - num_slots)     rows below it may be overwritten at any time
    published                                 rows [retired, published) may be read
    granted                                   rows [published, granted) may be written by the actor

        0 <= retired <= published <= granted <= retired + num_slots

Each word has one writer: the actor moves `published` (release) after the row's bytes are written, the learner
side moves `granted` (release) after it has retired what will be overwritten. Three blocks of 128 bytes keep
the writers off each other's cache lines, adjacent-line prefetch included:

    words  0 .. 15   the actor: PUBLISHED and its counters
    words 16 .. 31   the learner side: GRANTED, WAKE_AT
    words 32 .. 47   the handshake before an actor sleeps for a grant: WAITING

An actor that is killed anywhere leaves either a published row, complete, or an unpublished one that its
successor writes again; the successor goes on at `published`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.core import EnvSpec, FieldSpec
from asyncrl.errors import RingCorrupt
from asyncrl.shm.atomics import compare_exchange, fence, kernel, load_acquire, store_release
from asyncrl.shm.doorbell import DoorbellWriter, take_bell
from asyncrl.shm.segment import ArraySpec, Segment, bytes_needed

PUBLISHED = 0
STEPS = 1
"""Environment steps taken, RESET rows excluded."""
EPISODES = 2
"""Episodes finished; the newest `EPISODE_LOG` of them stand in the log."""
HEARTBEAT_NS = 3
"""`time.monotonic_ns()` when the actor last said that it lives."""
WAIT_NS = 4
"""Nanoseconds spent asleep for want of a grant."""
STATE = 5
INCARNATION = 6
EXPLORATION = 7
"""Exploration rate in millionths."""
EPISODE_STEP = 8
"""Steps into the episode of the actor's first environment."""
CURRENT_ENV = 9
"""Environment that the actor is resetting or stepping, -1 between rows: a sign of life within a row."""
GRANTED = 16
WAKE_AT = 17
"""Position from which on the consumer wants the bell to be rung."""
WAITING = 32
HEADER_WORDS = 48

STARTING, RUNNING, WAITING_FOR_GRANT = 0, 1, 2
STATES = ("starting", "running", "waiting")
EPISODE_LOG = 4096
"""Entries of the episode log; episode i stands at i mod 4096."""

_FIXED = ("header", "obs", "action", "reward", "flags", "version", "incarnation")
_LOG = ("episode_return", "episode_length")


@dataclass(frozen=True)
class RingLayout:
    """What both sides must agree on; picklable, and free of torch.

    Attributes:
        num_envs: E, streams that move together.
        num_slots: S, rows that the ring holds; a power of two, at least 2.
        spec: shapes and dtypes of observations and actions.
        extra_fields: what the algorithm adds to each row.
    """

    num_envs: int
    num_slots: int
    spec: EnvSpec
    extra_fields: tuple[FieldSpec, ...] = ()

    def __post_init__(self) -> None:
        if self.num_envs < 1:
            raise ValueError(f"num_envs must be at least 1, got {self.num_envs}")
        if self.num_slots < 2 or self.num_slots & (self.num_slots - 1):
            raise ValueError(f"num_slots must be a power of two, at least 2, got {self.num_slots}")
        names = [f.name for f in self.extra_fields]
        if taken := sorted(set(names) & {*_FIXED, *_LOG}) or sorted({n for n in names if names.count(n) > 1}):
            raise ValueError(f"extra_fields must have names of their own, got {taken[0]} twice")

    def arrays(self) -> tuple[ArraySpec, ...]:
        """Every array of the ring's segment, in the order in which they lie there."""
        streams, spec = (self.num_envs, self.num_slots), self.spec
        return (
            ArraySpec("header", (HEADER_WORDS,), "int64", control=True),
            ArraySpec("obs", (*streams, *spec.observation_shape), spec.observation_dtype),
            ArraySpec("action", (*streams, *spec.action.shape), spec.action.dtype),
            ArraySpec("reward", streams, "float32"),
            ArraySpec("flags", streams, "uint8"),
            *(ArraySpec(f.name, (*streams, *f.shape), f.dtype) for f in self.extra_fields),
            ArraySpec("version", (self.num_slots,), "int64"),
            ArraySpec("incarnation", (self.num_slots,), "int32"),
            ArraySpec("episode_return", (EPISODE_LOG,), "float64"),
            ArraySpec("episode_length", (EPISODE_LOG,), "int64"),
        )

    def bytes_per_row(self) -> int:
        """Bytes one row (a step of all E environments) takes."""
        rows = [a for a in self.arrays() if a.name != "header" and a.name not in _LOG]
        return sum(a.nbytes for a in rows) // self.num_slots

    def nbytes(self) -> int:
        """Bytes of the whole segment."""
        return bytes_needed(self.arrays())


@dataclass(frozen=True)
class RingStatistics:
    """A ring at one moment.

    Attributes:
        published: rows published since the run began.
        granted: position up to which the actor may write.
        retired: rows given up for overwriting.
        fill: share of the slots that hold readable rows, 0 to 1.
        env_steps: environment steps taken, RESET rows excluded.
        episodes: episodes finished.
        heartbeat_ns: `time.monotonic_ns()` of the last sign of life, 0 before the first.
        wait_seconds: time the actor slept for want of a grant.
        state: `starting`, `running` or `waiting`.
        incarnation: which life of the actor writes now.
        exploration_rate: mean exploration rate over its streams.
        episode_step: steps into the episode of its first environment.
    """

    published: int
    granted: int
    retired: int
    fill: float
    env_steps: int
    episodes: int
    heartbeat_ns: int
    wait_seconds: float
    state: str
    incarnation: int
    exploration_rate: float
    episode_step: int


@kernel("int64(int64[::1], int64)", nogil=False)
def _load(header: NDArray[np.int64], word: int) -> int:
    return load_acquire(header, word)  # type: ignore[no-any-return]


@kernel("void(int64[::1], int64, int64)", nogil=False)
def _store(header: NDArray[np.int64], word: int, value: int) -> None:
    store_release(header, word, value)


@kernel("int64(int64[::1], int64[::1], int64, int64)", nogil=False)
def publish_rows(header: NDArray[np.int64], armed: NDArray[np.int64], rows: int, steps: int) -> int:
    """Publish `rows` rows: 0 done, 1 done and the caller must ring, 2 refused. For kernels that write rows.

    The caller owns the ring's actor side and has written every byte of the rows.
    """
    position = header[PUBLISHED] + rows
    if rows < 1 or position > load_acquire(header, GRANTED):
        return 2
    header[STEPS] += steps
    store_release(header, PUBLISHED, position)
    fence()
    if load_acquire(armed, 0) == 0 or position < load_acquire(header, WAKE_AT):
        return 0
    return 1 if take_bell(armed) else 0


@kernel("void(int64[::1], float64[::1], int64[::1], float64, int64)", nogil=False)
def _record_episode(
    header: NDArray[np.int64],
    returns: NDArray[np.float64],
    lengths: NDArray[np.int64],
    episode_return: float,
    length: int,
) -> None:
    episodes = header[EPISODES]
    returns[episodes & (EPISODE_LOG - 1)] = episode_return
    lengths[episodes & (EPISODE_LOG - 1)] = length
    store_release(header, EPISODES, episodes + 1)


@kernel("boolean(int64[::1], int64)", nogil=False)
def _must_sleep(header: NDArray[np.int64], position: int) -> bool:
    """Actor: say that it sleeps, then look once more. The other half is `_take_waiting`."""
    store_release(header, WAITING, 1)
    fence()
    if load_acquire(header, GRANTED) < position:
        return True
    store_release(header, WAITING, 0)
    return False


@kernel("boolean(int64[::1])", nogil=False)
def _take_waiting(header: NDArray[np.int64]) -> bool:
    fence()
    waiting: bool = load_acquire(header, WAITING) == 1 and compare_exchange(header, WAITING, 1, 0)
    return waiting


@kernel("int64(int64[::1], int64)", nogil=False)
def _published_or_corrupt(header: NDArray[np.int64], num_slots: int) -> int:
    """`published`, or -1 where it lies outside of what was granted.

    `granted` is read before and after, so that a look while another thread grants raises no false alarm.
    """
    before = load_acquire(header, GRANTED)
    published = load_acquire(header, PUBLISHED)
    after = load_acquire(header, GRANTED)
    if published < max(0, before - num_slots) or published > after:
        return -1
    return published  # type: ignore[no-any-return]


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
        self.obs: NDArray[Any] = segment["obs"]
        self.action: NDArray[Any] = segment["action"]
        self.reward: NDArray[np.float32] = segment["reward"]
        self.flags: NDArray[np.uint8] = segment["flags"]
        self.version: NDArray[np.int64] = segment["version"]
        self.incarnation: NDArray[np.int32] = segment["incarnation"]
        self.extras: dict[str, NDArray[Any]] = {f.name: segment[f.name] for f in layout.extra_fields}
        self.episode_return: NDArray[np.float64] = segment["episode_return"]
        self.episode_length: NDArray[np.int64] = segment["episode_length"]

    @property
    def granted(self) -> int:
        """Position up to which the actor may write (acquire)."""
        return _load(self.header, GRANTED)


class RingWriter(_RingEnd):
    """The actor's end; one per ring at any time, used by one thread.

    Per row t = `published` the actor fills action, reward, flags, version, incarnation and extras of slot t,
    writes the *next* observation into slot t + 1, and publishes; so it needs `granted > t + 1` before it
    steps. (The observation of slot t was written by the step before, or by the first reset.) A new writer on
    an old ring goes on at `published`.

    Attributes:
        published: rows published so far.
    """

    def __init__(self, segment: Segment, layout: RingLayout, doorbell: DoorbellWriter | None = None) -> None:
        super().__init__(segment, layout)
        self._doorbell = doorbell
        self._armed = doorbell.armed if doorbell is not None else np.zeros(16, np.int64)
        self.published = _load(self.header, PUBLISHED)
        _store(self.header, WAITING, 0)

    def writable(self) -> int:
        """Rows that may be written now: `granted - published`."""
        return _load(self.header, GRANTED) - self.published

    def publish(self, rows: int = 1, steps: int = 0) -> None:
        """Show the next `rows` rows to the learner side, and ring the bell if it sleeps and waits for them.

        Args:
            rows: how many, all written completely.
            steps: environment steps in them (RESET rows excluded), for the counter.

        Raises:
            ValueError: `rows` is below 1 or passes the grant; nothing is published.
        """
        outcome = publish_rows(self.header, self._armed, rows, steps)
        if outcome == 2:
            raise ValueError(f"rows must be between 1 and the {self.writable()} granted, got {rows}")
        self.published += rows
        if outcome == 1 and self._doorbell is not None:
            self._doorbell.ring()

    def must_sleep(self, position: int) -> bool:
        """Say that this actor sleeps until `granted >= position`; False if that holds already.

        After True the actor waits on its socket (100 ms at most: a wake-up can be lost with the process that
        owed it), looks again, and calls `slept`.
        """
        return _must_sleep(self.header, position)

    def slept(self, nanoseconds: int) -> None:
        """Say that this actor is awake, and count how long it slept."""
        _store(self.header, WAITING, 0)
        self.header[WAIT_NS] += nanoseconds

    def record_episode(self, episode_return: float, length: int) -> None:
        """Log a finished episode: its undiscounted return and its length in steps."""
        _record_episode(self.header, self.episode_return, self.episode_length, episode_return, length)

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

    def set_episode_step(self, step: int) -> None:
        """Show how far into its episode the first environment is."""
        self.header[EPISODE_STEP] = step


class RingReader(_RingEnd):
    """The learner side's end: its arrays are for reading; one thread (the learner's) grants.

    `grant`, `take_waiting` and `wake_at` belong to that thread, everything else may be called by any.
    """

    def published(self) -> int:
        """Rows published so far (acquire): every row in `[retired, published)` is complete and may be read.

        Raises:
            RingCorrupt: the position lies outside of what was granted; this ring cannot be trusted any more.
        """
        position = _published_or_corrupt(self.header, self.num_slots)
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
        _store(self.header, GRANTED, position)

    def take_waiting(self) -> bool:
        """Whether the actor sleeps for want of a grant, and the caller must wake it now; True once per sleep.

        To be called after `grant`, by the same thread (fenced on both sides, so that no sleep is missed).
        """
        return _take_waiting(self.header)

    def wake_at(self, position: int) -> None:
        """Ask for the bell only once `published >= position`; set before `Doorbell.arm`. 0: at every row."""
        _store(self.header, WAKE_AT, position)

    def episodes_since(self, count: int) -> tuple[int, NDArray[np.float64], NDArray[np.int64]]:
        """Episodes finished since the first `count`: (new count, their returns, their lengths), as copies.

        At most the newest `EPISODE_LOG` are still there; older ones, and those overwritten while they were
        read, are left out.
        """
        episodes = _load(self.header, EPISODES)
        indices = np.arange(max(count, episodes - EPISODE_LOG), episodes)
        slots = indices & (EPISODE_LOG - 1)
        returns, lengths = self.episode_return[slots], self.episode_length[slots]
        # Entry i is overwritten while EPISODES is still i + EPISODE_LOG: hence ">", not ">=".
        intact = indices + EPISODE_LOG > _load(self.header, EPISODES)
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
            episode_step=int(h[EPISODE_STEP]),
        )
