"""Training on a dataset alone: update after update on batches of its rows. A step of such a run is an update.

There are no actors, so nothing is received, granted or published to anybody; weights are copied for evaluations only.
All that counts steps (`total_steps`, `eval_interval_steps`, schedules, reports) counts updates, and all numbers of a
run depend on dataset, options and seed only.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from asyncrl.interfaces import Batch, Metrics
from asyncrl.learning.divergence import DeviceFull, out_of_gpu_memory
from asyncrl.learning.histogram import Histogram
from asyncrl.learning.pace import Pace
from asyncrl.learning.staleness import StalenessMeter
from asyncrl.learning.update_loop import TICK_SECONDS, LoopOptions, Priorities, UpdateLoop
from asyncrl.protocols import DatasetUpdater
from asyncrl.replay.dataset_replay import DatasetReplay
from asyncrl.saved_state import restore, saved
from asyncrl.shm.weights import WeightMailbox


class UpdatePace(Pace):
    """Count of the updates made, in place of steps."""

    discipline = "dataset"

    def statistics(self) -> Metrics:
        """Present numbers by public name; a step of the run is an update."""
        return {
            "time/total_timesteps": self._inserted,
            "received_steps": self._inserted,
            "consumed_samples": self._sampled,
        }


class DatasetLoop(UpdateLoop):
    """Update loop on a dataset.

    Only the first weights are published to the mailbox. The steps of `run`, see `LoopOptions`, are updates.
    """

    core: DatasetUpdater

    def __init__(
        self,
        replay: DatasetReplay,
        batch: Batch,
        core: DatasetUpdater,
        mailbox: WeightMailbox,
        **run: Unpack[LoopOptions],
    ) -> None:
        self._replay, self._batch = replay, batch
        super().__init__(
            core,
            replay,
            mailbox,
            staleness=StalenessMeter(),
            policy_lag=Histogram("async/policy_lag"),
            interval=None,
            **run,
        )

    def prepare(self) -> None:
        """Let the algorithm see the whole dataset, then see `UpdateLoop`."""
        ring, rows = self.rings[0], int(self._replay.cursors[0, 0])
        self.core.observe_dataset(ring.obs[0, :rows], ring.reward[0, :rows], ring.flags[0, :rows])
        super().prepare()

    def _make_pace(self, max_env_steps: int | None) -> UpdatePace:
        return UpdatePace(None, 0, max_env_steps)

    def tick(self) -> bool:
        """Update for `TICK_SECONDS`; return False if all updates are made, or if the evaluator must catch up."""
        end, made = time.perf_counter() + TICK_SECONDS, 0
        while not self.pace.complete and self._copied(self.inserted_steps):
            self._update()
            made += 1
            if time.perf_counter() >= end:
                break
        return made > 0

    def _update(self) -> None:
        started, batch = time.perf_counter(), self._batch
        batch.progress = self._progress_at(self.inserted_steps)
        self._replay.sample(batch, 0.0)
        try:
            self.core.update(batch)
        except DeviceFull as error:
            raise out_of_gpu_memory(error, batch_size=batch.size) from error
        self.inserted_steps += 1
        self.pace.inserted(1)
        self.pace.sampled(batch.size)
        self.publisher.updated(time.perf_counter() - started)

    def finished(self) -> bool:
        """Whether the run's updates are made, and no copy of weights is due."""
        return self.pace.complete and self._copied(self.inserted_steps)

    def wake_positions(self) -> list[int]:
        """A row that never comes: only an evaluation that has ended wakes the learner."""
        return [int(position) + 1 for position in self._replay.published_rows()]

    @property
    def stored_steps(self) -> int:
        """Steps of the dataset."""
        return self._replay.stored_steps

    @property
    def discarded_steps(self) -> int:
        """No step of a dataset is discarded."""
        return 0

    def _give_up(self, index: int) -> None:
        raise AssertionError("nobody writes to the ring of a dataset")

    def _batch_arrays(self) -> Mapping[str, NDArray[Any]]:
        return {name: value for name, value in vars(self._batch).items() if isinstance(value, np.ndarray)}

    # --- checkpoints -------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """See `UpdateLoop`; the rows are in the dataset, so that every checkpoint is exact."""
        return {**super().state_dict(), "replay": saved(self._replay)}

    def restore(self, state: Mapping[str, Any], priorities: Priorities | None) -> None:
        """See `UpdateLoop`; always exact, as if the rings held their rows."""
        super().restore(state, ())

    def _restore_rows(self, state: Mapping[str, Any], priorities: Priorities | None) -> None:
        restore(self, state["loop"])
        restore(self.policy_lag, state["policy_lag"])
        restore(self._replay, state["replay"])
