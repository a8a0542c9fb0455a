"""Memory layout of an experience ring: words of its header, arrays, statistics.

The header is three blocks of 128 bytes, so that the writers keep off each other's cache lines, adjacent-line
prefetch included:

    words  0 .. 15   the actor: PUBLISHED and its counters
    words 16 .. 31   the learner side: GRANTED, WAKE_AT
    words 32 .. 47   the handshake before an actor sleeps for a grant: WAITING

What the positions mean stands in `ring.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from asyncrl.interfaces import EnvSpec, FieldSpec
from asyncrl.shm.segment import ArraySpec, bytes_needed

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

_FIXED = ("header", "obs", "action", "reward", "flags", "version", "policy_updates", "incarnation")
_LOG = ("episode_return", "episode_length")


@dataclass(frozen=True)
class RingLayout:
    """What both sides must agree on; picklable, and free of torch.

    Attributes:
        num_envs: E, streams that move together.
        num_slots: S, rows that the ring holds; a power of two, at least 2.
        spec: shapes and dtypes of observations and actions.
        extra_fields: what the algorithm adds to each row.
        padding: slots between two streams that nobody uses. Without it streams lie a power of two apart, and the E
            places that a row is written to fall into few sets of the caches; with hundreds of streams they push each
            other out. Kernels of the replay address streams without it, so only rings of segments have it.
    """

    num_envs: int
    num_slots: int
    spec: EnvSpec
    extra_fields: tuple[FieldSpec, ...] = ()
    padding: int = 0

    def __post_init__(self) -> None:
        if self.num_envs < 1:
            raise ValueError(f"num_envs must be at least 1, got {self.num_envs}")
        if self.num_slots < 2 or self.num_slots & (self.num_slots - 1):
            raise ValueError(f"num_slots must be a power of two, at least 2, got {self.num_slots}")
        if self.padding < 0:
            raise ValueError(f"padding must be at least 0, got {self.padding}")
        names = [f.name for f in self.extra_fields]
        if taken := sorted(set(names) & {*_FIXED, *_LOG}) or sorted({n for n in names if names.count(n) > 1}):
            raise ValueError(f"extra_fields must have names of their own, got {taken[0]} twice")

    def arrays(self) -> tuple[ArraySpec, ...]:
        """Every array of the ring's segment, in the order in which they lie there."""
        streams, spec = (self.num_envs, self.num_slots + self.padding), self.spec
        return (
            ArraySpec("header", (HEADER_WORDS,), "int64", control=True),
            ArraySpec("obs", (*streams, *spec.observation_shape), spec.observation_dtype),
            ArraySpec("action", (*streams, *spec.action.shape), spec.action.dtype),
            ArraySpec("reward", streams, "float32"),
            ArraySpec("flags", streams, "uint8"),
            *(ArraySpec(f.name, (*streams, *f.shape), f.dtype) for f in self.extra_fields),
            ArraySpec("version", (self.num_slots,), "int64"),
            ArraySpec("policy_updates", (self.num_slots,), "int64"),
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
