"""Publication of weights: checked and copied from the network into the mailbox, at intervals counted in updates.

The interval is a number of updates and not of seconds. An earlier rule waited 100 times the duration of the last
publication before the next one: after the slow first publication, version 1 lasted for thousands of updates, and
results depended on the machine. With `publish_interval="auto"` the interval is the smallest number for which

    median cost of a publication  <=  COST_SHARE * number * median cost of an update

over the last `WINDOW` of each, without the first `COLD`; until there are enough it is 1. A GPU may still run updates
when the weights are to be copied. The wait for them counts as a cost of these updates, not of the publication.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from asyncrl.errors import TrainingDiverged
from asyncrl.interfaces import Metrics
from asyncrl.networks.flat_vector import FlatVector
from asyncrl.protocols import Updater
from asyncrl.shm.weights import WeightMailbox

COST_SHARE = 0.05
"""Maximum cost of publications, as a share of the cost of updates."""
WINDOW = 64
"""Number of publications, and of updates, in the medians of costs."""
COLD = 8
"""Number of first publications and updates excluded from the medians."""
LONGEST_INTERVAL = 64
"""Maximum interval chosen by `auto`."""


class Publisher:
    """Publisher of the core's acting weights to the mailbox; learner thread only.

    Args:
        core: source of the weights.
        mailbox: mailbox read by the actors.
        diverged: makes the error for nonfinite weights; its argument names the nonfinite values.
        interval: updates between two publications, `auto`, or None if only `publish` publishes.

    Attributes:
        updates: gradient steps of the core so far.
    """

    STATE = ("updates", "_published_updates", "_interval")

    def __init__(
        self,
        core: Updater,
        mailbox: WeightMailbox,
        diverged: Callable[[str], TrainingDiverged],
        interval: int | Literal["auto"] | None = None,
    ) -> None:
        self._core = core
        self._mailbox = mailbox
        self._diverged = diverged
        self._option = interval
        self._interval = 1  # chosen by `auto`; the only part of the interval that a checkpoint restores
        self.updates = 0
        self._published_updates = -1
        self._publication_costs, self._update_costs = CostWindow(), CostWindow()
        vector: FlatVector | None = getattr(core, "vector", None)
        self._wait = None if vector is None else vector.wait
        self._launched: list[float] = []  # seconds of each update since the last publication

    @property
    def version(self) -> int:
        """Publications so far."""
        return self._mailbox.version

    @property
    def unpublished(self) -> bool:
        """Whether the core's present weights are not published yet."""
        return self._published_updates != self.updates

    @property
    def interval(self) -> float:
        """Present number of updates between two publications; the mean so far if the discipline decides."""
        if self._option is None:
            return self.updates / max(1, self.version - 1)
        return float(self._interval if self._option == "auto" else self._option)

    def statistics(self) -> Metrics:
        """Present numbers by public name; the cost is 0 until `COLD` + `WINDOW` publications were made."""
        return {
            "train/n_updates": self.updates,
            "async/policy_version": self.version,
            "async/publish_interval": self.interval,
            "publish_seconds": self._publication_costs.median,
        }

    def updated(self, seconds: float) -> None:
        """Count an update that took `seconds`, and publish if `interval` updates are unpublished.

        On a GPU `seconds` are those of its launch, at least.
        """
        self.updates += 1
        self._launched.append(seconds)
        if self._option is not None and self.updates - self._published_updates >= self.interval:
            self.publish()

    def publish(self) -> None:
        """Publish now. Raises `TrainingDiverged` if a weight is NaN or infinite, without publishing."""
        self._finish_updates()
        started = time.perf_counter()
        if self._mailbox.publish_with(self._core.write_weights, self.updates) == 0:
            raise self._diverged("the weights")
        self._published_updates = self.updates
        self._publication_costs.add(time.perf_counter() - started)
        if self._option == "auto" and self._publication_costs.renewed and self._update_costs.median > 0:
            needed = self._publication_costs.median / (COST_SHARE * self._update_costs.median)
            self._interval = min(max(1, math.ceil(needed)), LONGEST_INTERVAL)

    def _finish_updates(self) -> None:
        """Wait for the updates that the device still runs, and count the costs of those since the last publication."""
        started, launched = time.perf_counter(), self._launched
        if self._wait is not None:
            self._wait()
        waited = (time.perf_counter() - started) / max(1, len(launched))
        for seconds in launched:
            self._update_costs.add(seconds + waited)
        launched.clear()

    def current(self) -> tuple[NDArray[np.float32], int]:
        """Copy of the core's weights, and the version that they have or will be published under; publishes nothing.

        Raises `TrainingDiverged` if a weight is NaN or infinite.
        """
        weights = np.empty(self._core.weight_count, np.float32)
        self._core.write_weights(weights)
        if not np.isfinite(weights).all():
            raise self._diverged("the weights")
        return weights, self.version + int(self.unpublished)

    def published(self) -> dict[str, Any]:
        """State of the mailbox: version, updates and values of the acting weights, and past versions."""
        # Another reader than the inference server's, on whose thread `updates` is that of its own last `refresh`.
        mailbox = WeightMailbox(self._mailbox.segment, self._mailbox.weight_count)
        weights = np.zeros(mailbox.weight_count, np.float32)
        version = mailbox.refresh(weights, 0)
        return {
            "version": version,
            "updates": mailbox.updates,
            "weights": weights,
            **self._mailbox.past(),
        }

    def republish(self, published: Mapping[str, Any], *, exactly: bool) -> None:
        """Publish the former acting weights under their version if `exactly`, else the newest under the next one."""
        version = int(published["version"])
        if version == 0:
            return
        self._mailbox.count_from(version - int(exactly))
        self._mailbox.restore_past(published)
        if exactly:
            self._mailbox.publish(published["weights"], int(published["updates"]))
        else:
            self.publish()


class CostWindow:
    """Median of the newest `WINDOW` costs, without the first `COLD`; updated after every `WINDOW` costs.

    Attributes:
        median: median of the window in seconds, 0 before the window is full for the first time.
        renewed: whether the last `add` updated the median.
    """

    def __init__(self) -> None:
        self._costs: deque[float] = deque(maxlen=WINDOW)
        self._seen = 0
        self.median = 0.0
        self.renewed = False

    def add(self, seconds: float) -> None:
        """Count one cost."""
        self._seen += 1
        self.renewed = False
        if self._seen <= COLD:
            return
        self._costs.append(seconds)
        if (self._seen - COLD) % WINDOW == 0:
            self.median, self.renewed = median(self._costs), True
