"""Heartbeat of an actor, read from its ring's header by its supervisor."""

from __future__ import annotations

import os
import statistics
import time
from collections import deque
from pathlib import Path

import psutil

from asyncrl.actors.exit_errors import actor_hung
from asyncrl.actors.statistics import ActorStatistics
from asyncrl.errors import EnvironmentHung
from asyncrl.shm.ring import CURRENT_ENV, HEARTBEAT_NS, STEPS, WAIT_NS, RingReader

_RATE_SECONDS = 1.0


class Heartbeat:
    """Heartbeat and rates of an actor, from the header of its ring."""

    def __init__(self, index: int, ring: RingReader) -> None:
        self._index = index
        self._ring = ring
        self._pulse = (0, 0)
        self._silent_seconds = 0.0
        self._steps = 0
        self._awake_since_steps = 0.0
        self._step_seconds: deque[float] = deque(maxlen=256)
        self._rate_since = time.monotonic()
        self._rate_steps = 0
        self._rate_wait_ns = 0
        self._steps_per_second = 0.0
        self._wait_fraction = 0.0

    def begin_life(self) -> None:
        """Reset the time without a heartbeat, for a new process."""
        self._silent_seconds = 0.0

    def poll(self, awake_seconds: float) -> float:
        """Read the header; return the awake seconds since its heartbeat or current environment last changed.

        Args:
            awake_seconds: seconds that the supervisor was awake since the last call.
        """
        header = self._ring.header
        pulse = (int(header[HEARTBEAT_NS]), int(header[CURRENT_ENV]))
        self._silent_seconds = 0.0 if pulse != self._pulse else self._silent_seconds + awake_seconds
        self._pulse = pulse
        self._measure(int(header[STEPS]), int(header[WAIT_NS]), awake_seconds)
        return self._silent_seconds

    def hung(self, silent_seconds: float, ready: bool, stack: str) -> EnvironmentHung:
        """Return ASYNC015 for this actor."""
        median = statistics.median(self._step_seconds) if self._step_seconds else None
        env = self._pulse[1] // self._ring.layout.spec.num_agents
        return actor_hung(self._index, env, silent_seconds, ready, median, stack)

    def statistics(self, *, pid: int, state: str, restarts: int, last_error: str) -> ActorStatistics:
        """Return the statistics of this actor; the arguments are those that are not in the header."""
        ring = self._ring.statistics()
        return ActorStatistics(
            index=self._index,
            pid=pid,
            state=state,
            env_steps=ring.env_steps,
            env_steps_per_second=self._steps_per_second,
            heartbeat_age_seconds=self._silent_seconds,
            wait_fraction=self._wait_fraction,
            ring_fill=ring.fill,
            restarts=restarts,
            last_error=last_error,
            private_bytes=private_bytes(pid),
            wait_seconds=ring.wait_seconds,
        )

    def _measure(self, steps: int, wait_ns: int, awake_seconds: float) -> None:
        self._awake_since_steps += awake_seconds
        if steps > self._steps:
            self._step_seconds.append(self._awake_since_steps / (steps - self._steps))
            self._steps, self._awake_since_steps = steps, 0.0
        now = time.monotonic()
        elapsed = now - self._rate_since
        if elapsed >= _RATE_SECONDS:
            self._steps_per_second = (steps - self._rate_steps) / elapsed
            self._wait_fraction = min(1.0, (wait_ns - self._rate_wait_ns) / 1e9 / elapsed)
            self._rate_since, self._rate_steps, self._rate_wait_ns = now, steps, wait_ns


def private_bytes(pid: int) -> int:
    """Resident memory of a process without file and shared memory, in bytes; 0 if unknown.

    Pages still shared with the fork server are included: excluding them would need a walk of the whole page table.
    Without /proc it is all resident memory.
    """
    if pid == 0:
        return 0
    try:
        if Path("/proc/self/statm").exists():
            words = Path(f"/proc/{pid}/statm").read_text().split()
            return (int(words[1]) - int(words[2])) * os.sysconf("SC_PAGE_SIZE")
        return int(psutil.Process(pid).memory_info().rss)
    except (OSError, IndexError, psutil.Error):
        return 0
