"""Publishing weights: from the core into the mailbox, checked, counted, and not more often than it is worth."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from asyncrl.core import Core
from asyncrl.errors import TrainingDiverged
from asyncrl.shm.weights import WeightMailbox

SHARE = 0.01
"""Most of the learner's time that publications may take, where they are made when they are due."""


class Publisher:
    """Writes the core's acting weights into the mailbox; learner thread only.

    Args:
        core: whose weights.
        mailbox: where actors find them.
        interval_seconds: least time between two publications that are made when due.
        diverged: makes the error to raise where weights are not finite; gets what was not.

    Attributes:
        unpublished: whether the core has learned something that no actor can see; set by whoever lets it learn.
    """

    def __init__(
        self,
        core: Core,
        mailbox: WeightMailbox,
        interval_seconds: float,
        diverged: Callable[[str], TrainingDiverged],
    ) -> None:
        self._core = core
        self._mailbox = mailbox
        self._interval = interval_seconds
        self._diverged = diverged
        self._weights = np.zeros(core.weight_count, np.float32)
        self._last = -math.inf
        self._cost_seconds = 0.0
        self.unpublished = True

    @property
    def version(self) -> int:
        """Publications so far."""
        return self._mailbox.version

    def publish(self) -> None:
        """Publish now. Raises `TrainingDiverged` where a weight is NaN or infinite; nothing is published then."""
        started = time.perf_counter()
        self._read()
        self._mailbox.publish(self._weights)
        self._last = time.perf_counter()
        self._cost_seconds = self._last - started
        self.unpublished = False

    def publish_when_due(self) -> None:
        """Publish what is new, unless the last time is too near or more than `SHARE` of the time would go into it."""
        interval = max(self._interval, self._cost_seconds / SHARE)
        if self.unpublished and time.perf_counter() - self._last >= interval:
            self.publish()

    def current(self) -> tuple[NDArray[np.float32], int]:
        """A copy of the core's weights, and the version they have or will be published under; publishes nothing."""
        self._read()
        return self._weights.copy(), self.version + int(self.unpublished)

    def _read(self) -> None:
        self._core.write_weights(self._weights)
        if not math.isfinite(float(self._weights.sum())):
            raise self._diverged("the weights")
