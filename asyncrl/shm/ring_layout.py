"""Memory layout of an experience ring: words of its header, arrays, statistics.

The header has three blocks of 128 bytes, so that writers do not share cache lines, even with adjacent-line prefetch:

    words  0 .. 15   the actor: PUBLISHED and its counters
    words 16 .. 31   the learner side: GRANTED, WAKE_AT
    words 32 .. 47   the handshake before an actor sleeps for a grant: WAITING

`ring.py` explains the positions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from asyncrl.interfaces import EnvSpec, FieldSpec
from asyncrl.shm.segment import ArraySpec, bytes_needed

PUBLISHED = 0
STEPS = 1
"""Environment steps taken, RESET rows excluded."""
EPISODES = 2
"""Episodes finished; the newest `EPISODE_LOG` of them are in the log."""
HEARTBEAT_NS = 3
"""`time.monotonic_ns()` of the actor's last heartbeat."""
WAIT_NS = 4
"""Nanoseconds slept while waiting for grants."""
STATE = 5
INCARNATION = 6
EXPLORATION = 7
"""Exploration rate in millionths."""
LOGGING = 8
"""Episodes whose successes or games are in the log, or are written there now; EPISODES counts them afterwards."""
CURRENT_ENV = 9
"""Environment that the actor is resetting or stepping, -1 between rows; shows progress within a row."""
INFERENCE_NS, ENV_NS, WRITE_NS, TIMED_ROWS = 10, 11, 12, 13
"""Nanoseconds in which the actor has chosen actions, stepped environments and written, in the rows that were timed, and
their number."""
GRANTED = 16
WAKE_AT = 17
"""Position from which on the actor rings the doorbell."""
WAITING = 32
HEADER_WORDS = 48

STARTING, RUNNING, WAITING_FOR_GRANT = 0, 1, 2
STATES = ("starting", "running", "waiting")
EPISODE_LOG = 4096
"""Number of entries of the episode log; episode i is at i mod 4096."""

_FIXED = (
    *("header", "obs", "global_state", "action", "reward", "flags"),
    *("version", "policy_updates", "incarnation"),
)
NOT_COUNTED = math.nan
"""Return in the log of an episode that is left out of the statistics, of several agents that of each."""
_LOG = ("episode_return", "episode_length", "episode_success", "episode_game")


@dataclass(frozen=True)
class RingLayout:
    """Layout of a ring, shared by both sides; picklable, without torch.

    Attributes:
        num_envs: E, number of streams: environments times agents.
        num_slots: S, rows that the ring holds; a power of two, at least 2.
        spec: shapes and dtypes of observations and actions.
        extra_fields: extra fields of the algorithm in each row.
        state_values: values of an environment's state, kept once for the streams of its agents; 0 keeps none.
        frozen_streams: streams of a row that act with past versions of the policy (self-play), so that their rows are
            not trained on; which streams these are changes between episodes.
        padding: unused slots after each stream. Without it the distance between streams is a power of two times the
            size of an item, so the E addresses of a row map to few cache sets; with hundreds of streams they evict each
            other. The replay's kernels assume no padding, so only the rings of segments have it.
    """

    num_envs: int
    num_slots: int
    spec: EnvSpec
    extra_fields: tuple[FieldSpec, ...] = ()
    padding: int = 0
    frozen_streams: int = 0
    state_values: int = 0

    def __post_init__(self) -> None:
        if self.num_envs < 1:
            raise ValueError(f"num_envs must be at least 1, got {self.num_envs}")
        if self.num_envs % self.spec.num_agents:
            raise ValueError(
                f"num_envs must be a multiple of {self.spec.num_agents} agents, got {self.num_envs}"
            )
        if self.num_slots < 2 or self.num_slots & (self.num_slots - 1):
            raise ValueError(f"num_slots must be a power of two, at least 2, got {self.num_slots}")
        if self.padding < 0:
            raise ValueError(f"padding must be at least 0, got {self.padding}")
        names = [f.name for f in self.extra_fields]
        if taken := sorted(set(names) & {*_FIXED, *_LOG}) or sorted({n for n in names if names.count(n) > 1}):
            raise ValueError(f"extra_fields must have names of their own, got {taken[0]} twice")

    def arrays(self) -> tuple[ArraySpec, ...]:
        """All arrays of the ring's segment, in memory order."""
        streams, spec = (self.num_envs, self.num_slots + self.padding), self.spec
        states = self.environments, streams[1], self.state_values
        return (
            ArraySpec("header", (HEADER_WORDS,), "int64", control=True),
            ArraySpec("obs", (*streams, *spec.observation_shape), spec.observation_dtype),
            *((ArraySpec("global_state", states, "float32"),) if self.state_values else ()),
            ArraySpec("action", (*streams, *spec.action.shape), spec.action.dtype),
            ArraySpec("reward", streams, "float32"),
            ArraySpec("flags", streams, "uint8"),
            *(ArraySpec(f.name, (*streams, *f.shape), f.dtype) for f in self.extra_fields),
            ArraySpec("version", (self.num_slots,), "int64"),
            ArraySpec("policy_updates", (self.num_slots,), "int64"),
            ArraySpec("incarnation", (self.num_slots,), "int32"),
            ArraySpec(
                "episode_return", (EPISODE_LOG, *((len(spec.agents),) if spec.agents else ())), "float64"
            ),
            ArraySpec("episode_length", (EPISODE_LOG,), "int64"),
            ArraySpec("episode_success", (EPISODE_LOG,), "int8"),
            *((ArraySpec("episode_game", (EPISODE_LOG, 2), "int64"),) if self.frozen_streams else ()),
        )

    @property
    def environments(self) -> int:
        """Number of environments."""
        return self.num_envs // self.spec.num_agents

    @property
    def trained_agents(self) -> float:
        """Mean number of an environment's agents whose rows are trained on: samples that a step inserts."""
        return (self.num_envs - self.frozen_streams) / self.environments

    def bytes_per_row(self) -> int:
        """Bytes of one row (a step of all environments)."""
        rows = [a for a in self.arrays() if a.name != "header" and a.name not in _LOG]
        return sum(a.nbytes for a in rows) // self.num_slots

    def nbytes(self) -> int:
        """Bytes of the segment."""
        return bytes_needed(self.arrays())


@dataclass(frozen=True)
class RingStatistics:
    """Statistics of a ring at one time.

    Attributes:
        published: rows published since the run began.
        fill: fraction of the slots that hold readable rows, 0 to 1.
        env_steps: environment steps taken, RESET rows excluded.
        episodes: episodes finished.
        wait_seconds: time that the actor slept while waiting for grants.
        state: `starting`, `running` or `waiting`.
        incarnation: number of the actor's current life.
        exploration_rate: mean exploration rate over its streams.
    """

    published: int
    fill: float
    env_steps: int
    episodes: int
    wait_seconds: float
    state: str
    incarnation: int
    exploration_rate: float
