"""Counterpart of `grouped.Group` for a run with one group."""

from __future__ import annotations

import dataclasses
from typing import Any

from asyncrl.config import TrainerConfig
from asyncrl.learning.learner import Learner
from asyncrl.protocols import Algorithm
from asyncrl.show.metrics import Snapshot
from asyncrl.storage.resume import Resumption


class Alone:
    """A run with one group, or with groups that are still to be started; it has no other group to message or wait for.

    Args:
        config: options of the run.
        algorithm: its record.
        resumed: the checkpoint to resume from, or None.

    Attributes: see `Group`.
    """

    leads = True
    share: tuple[int | None, int, int] = (None, 0, 1)

    def __init__(
        self, config: TrainerConfig, algorithm: Algorithm, resumed: Resumption | None = None
    ) -> None:
        self.whole, self.config, self.algorithm = (config, algorithm), config, algorithm
        self.resumed = resumed
        self._before = (0, 0)
        if resumed is not None and config.groups == 1 and (before := resumed.other_steps):
            self._before = before, resumed.other_updates  # of the earlier run's other groups
            if config.total_steps is not None:
                self.config = dataclasses.replace(config, total_steps=max(1, config.total_steps - before))

    async def attach(self, learner: Learner, stop: Any, fail: Any) -> None:
        """See `Group`."""

    async def learn(self, learner: Learner) -> None:
        """See `Group`."""
        await learner.run()

    def tell_stop(self, reason: str) -> None:
        """See `Group`."""

    def tell_failure(self, error: BaseException) -> None:
        """See `Group`."""

    def others(self) -> dict[str, list[int]]:
        """See `Group`."""
        steps, updates = self._before
        return {"env_steps": [steps], "updates": [updates]} if steps else {}

    def scheduled_elsewhere(self) -> int:
        """See `Group`."""
        return 0

    def other_steps(self, env_steps: int) -> int:
        """See `Group`."""
        return self._before[0]

    def shown(self, snapshot: Snapshot) -> Snapshot:
        """See `Group`."""
        steps, updates = self._before
        if not steps:
            return snapshot
        return dataclasses.replace(
            snapshot,
            total_steps=self.whole[0].total_steps,
            env_steps=snapshot.env_steps + steps,
            updates=snapshot.updates + updates,
        )

    async def leave(self) -> None:
        """See `Group`."""
