"""Queue of weights to evaluate, copied by the learner at fixed environment steps.

The learner's thread copies its acting weights whenever training has passed another multiple of `eval_interval_steps`.
The event loop takes the copies in this order and passes them to the evaluator. So the weights evaluated depend on steps
only, not on the speed of the evaluator or the machine. If `CAPACITY` copies wait, the learner waits; none is skipped.

Where a callback may change training after an evaluation (keyword arguments of the environments), and the run is to be
repeatable, copies are made in turn: the next one waits until the last one was evaluated, and the change holds from the
next one's step on.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CAPACITY = 8
"""Maximum number of copies that wait for the evaluator."""


@dataclass(frozen=True)
class WeightSnapshot:
    """Acting weights at one moment of training.

    Attributes:
        weights: flat float32 `[weight_count]`, a copy.
        version: policy version that they have or will be published under.
        updates: gradient steps made so far.
        env_steps: environment steps received so far.
    """

    weights: NDArray[np.float32]
    version: int
    updates: int
    env_steps: int


class WeightSnapshots:
    """Queue of weights to evaluate, from the learner's thread to the event loop.

    Args:
        interval_steps: environment steps between two copies; None disables copies.
        capacity: maximum number of waiting copies.
        arrived: called on the learner's thread after a copy was added.
        in_turn: whether a copy waits until the one before was evaluated.
    """

    def __init__(
        self,
        interval_steps: int | None,
        capacity: int = CAPACITY,
        arrived: Callable[[], None] | None = None,
        in_turn: bool = False,
    ) -> None:
        self.in_turn = in_turn
        self._put = self._evaluated = 0
        self._interval = interval_steps
        self._next = interval_steps
        self._capacity = capacity
        self._waiting: deque[WeightSnapshot] = deque()
        self._lock = threading.Lock()
        self._arrived = arrived

    def due(self, env_steps: int) -> bool:
        """Whether a copy is due at `env_steps`. Learner thread."""
        return self._next is not None and env_steps >= self._next

    @property
    def full(self) -> bool:
        """Whether the learner must wait before it copies again. Any thread."""
        return len(self._waiting) >= self._capacity or (self.in_turn and self._put > self._evaluated)

    def put(self, snapshot: WeightSnapshot) -> None:
        """Add a copy that was due. Learner thread."""
        assert self._interval is not None
        with self._lock:
            self._waiting.append(snapshot)
        self._put += 1
        self._next = (snapshot.env_steps // self._interval + 1) * self._interval
        if self._arrived is not None:
            self._arrived()

    @property
    def next_steps(self) -> int | None:
        """Environment steps at which the next copy is due."""
        return self._next

    def waiting(self) -> tuple[WeightSnapshot, ...]:
        """Waiting copies, oldest first. Any thread."""
        with self._lock:
            return tuple(self._waiting)

    def go_on_from(self, waiting: Iterable[WeightSnapshot], next_steps: int | None) -> None:
        """Restore the waiting copies and the next due step of an earlier run; before the first burst.

        The due step is rounded up to a multiple of the present interval, which may have changed. Without an interval
        the copies are dropped: the run is evaluated at its end only.
        """
        if self._interval is None:
            return
        for snapshot in waiting:
            self.put(snapshot)
        if next_steps is not None:
            self._next = -(-next_steps // self._interval) * self._interval

    def evaluated(self) -> None:
        """Count a copy as evaluated, with or without a result. Event-loop thread."""
        self._evaluated += 1

    def take(self) -> WeightSnapshot | None:
        """Remove and return the oldest copy; None if there is none. Event-loop thread."""
        with self._lock:
            return self._waiting.popleft() if self._waiting else None
