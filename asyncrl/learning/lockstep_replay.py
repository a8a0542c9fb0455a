"""Lockstep training on replay, which is reproducible although actors and learner overlap.

Rows are granted in quanta of Q rows per ring. The weights that act in a quantum, the rows available to each update and
the number of updates depend on counts only:

    learner   | ingest quantum k, n_k - L updates | publish, grant quantum k + 1, L updates | ingest quantum k + 1 ...
    actors    | (wait)                            | produce quantum k + 1 by these weights  | (wait)

n_k is the number of updates due for quantum k (`LockstepBalance`), and L the smaller of `lag` and n_k. So the rows of a
quantum are received exactly L updates after publication of their acting weights: L is the policy lag. For a given seed
and number of actors all numbers of the run are the same, regardless of how slow, preempted or suspended any process is:
batches are sampled at fixed updates from fixed rows by the learner's own generator, actors use fixed weights and their
own generators, and weights are copied for evaluation at fixed updates.

The learner never waits if the actors produce a quantum within the time of L updates; the actors hardly wait if
n_k <= L. HTS-RL (Liu et al., arXiv 2012.09849) applies the idea to on-policy segments (`segment_loop.py`). For replay
the lag can be much shorter than the age of the rows.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

from asyncrl.learning.pace import Pace
from asyncrl.learning.replay_loop import ReplayLoop
from asyncrl.learning.update_loop import TICK_SECONDS

MOST_ROWS = 64
"""Maximum of `quantum_rows`."""


def quantum_rows(
    *, samples_per_insert: float, batch_size: int, streams: int, num_slots: int, lag: int
) -> int:
    """Rows of a quantum: the fewest that allow `lag` updates, at most `MOST_ROWS` and a sixteenth of the ring."""
    paying = math.ceil(lag * batch_size / (samples_per_insert * streams))
    return max(1, min(paying, MOST_ROWS, num_slots // 16))


class LockstepBalance(Pace):
    """Balance that schedules the updates of each quantum. Pure arithmetic; learner thread only.

    With I inserted steps, U updates scheduled so far, sigma samples per insert, batches of B and I0 steps before the
    first update, the number of updates due for a quantum is

        n = floor(sigma (I - I0) / B) - U

    Args:
        samples_per_insert: sigma.
        batch_size: B.
        learning_starts: I0.
        num_actors, envs_per_actor: N and E.
        rows: Q.
        num_agents: samples that one step inserts.
        max_env_steps: number of steps at which no further quantum is begun, or None. A quantum that was begun is
            completed, so that a resumed run has the same quanta as an uninterrupted one.
    """

    STATE = (*Pace.STATE, "_scheduled", "_start")
    discipline = "lockstep"
    _sigma: float

    def __init__(
        self,
        *,
        samples_per_insert: float,
        batch_size: int,
        learning_starts: int,
        num_actors: int,
        envs_per_actor: int,
        rows: int,
        num_agents: float = 1,
        max_env_steps: int | None = None,
    ) -> None:
        super().__init__(samples_per_insert, learning_starts, max_env_steps, num_agents)
        self._batch_size = batch_size
        self._streams = num_actors * envs_per_actor
        self.rows = rows
        self._scheduled = 0

    def schedule(self) -> int:
        """Number of updates due for the steps inserted since the last call."""
        due = max(0, self._paid - self._scheduled)
        self._scheduled += due
        return due

    @property
    def _paid(self) -> int:
        return math.floor(self._sigma * max(0, self._inserted - self._start) / self._batch_size)

    def _restored(self) -> None:
        """Count the new steps of a resumed run by its `samples_per_insert` and `batch_size`, which may have changed.

        Updates that are scheduled beyond the steps are at most those of one refill of the replay.
        """
        ahead = math.ceil(self._sigma * self._learning_starts / self._batch_size)
        self._scheduled = min(max(self._scheduled, self._paid), self._paid + ahead)

    def next_rows(self) -> int:
        """Rows of the next quantum; 0 if `max_env_steps` are inserted."""
        return 0 if self.complete else self.rows


class LockstepReplayLoop(ReplayLoop):
    """Update loop on quanta of rows; `algorithm.lockstep_lag` is the maximum of L."""

    STATE = (*ReplayLoop.STATE, "_boundary", "_due", "_next_granted")
    pace: LockstepBalance
    _boundary = 0
    """Rows of each ring in the quanta granted so far."""
    _due = 0
    """Remaining updates of those scheduled for the received quanta."""
    _next_granted = True
    """Whether the quantum after the received ones was granted."""

    def _make_pace(self, max_env_steps: int | None) -> LockstepBalance:
        algorithm, ring, actors = self._algorithm, self._replay.rings[0], len(self._replay.rings)
        samples_per_insert, batch_size = algorithm.samples_per_insert, self._batch.reward.size
        assert samples_per_insert is not None, "the record refuses lockstep without samples_per_insert"
        return LockstepBalance(
            samples_per_insert=samples_per_insert,
            batch_size=batch_size,
            learning_starts=algorithm.learning_starts,
            num_actors=actors,
            envs_per_actor=ring.environments,
            num_agents=ring.layout.trained_agents,
            rows=quantum_rows(
                samples_per_insert=samples_per_insert,
                batch_size=batch_size,
                streams=actors * (ring.num_envs - ring.layout.frozen_streams),
                num_slots=ring.num_slots,
                lag=algorithm.lockstep_lag,
            ),
            max_env_steps=max_env_steps,
        )

    def prepare(self) -> None:
        """Publish the first weights and grant the first quantum, unless a resumed run had done so."""
        super().prepare()
        if self._next_granted and (self._positions == self._boundary).all():
            self._grant_quantum()

    def tick(self) -> bool:
        """Ingest a complete quantum or continue its updates for `TICK_SECONDS`; return False while waiting for rows."""
        self._check_rings()
        self._grant_held()
        if self._due == 0 or not self._replay.sampleable:
            return self._begin()
        beta = self._beta()
        end = time.perf_counter() + TICK_SECONDS
        while self._due:
            if not self._next_granted and self._due <= self._algorithm.lockstep_lag:
                self._publish_and_grant()
            if not self._trainable():
                self._skip_updates()
                break
            self._update(beta)
            self._due -= 1
            if time.perf_counter() >= end:
                break
        return True

    def finished(self) -> bool:
        """Whether the run's steps are inserted, their updates made, and no copy of weights is due."""
        received = bool((self._positions == self._boundary).all())
        return self.pace.next_rows() == 0 and received and not self._copy_due(self.inserted_steps)

    def wake_positions(self) -> list[int]:
        """End of the quantum per ring; for a ring that is done a row out of its reach, unless all are done."""
        reached = [ring.reached(self._boundary) for ring in self.rings]
        if all(reached) and not self._copy_due(self.inserted_steps):
            return [self._boundary] * len(reached)
        return [self._boundary + int(done) for done in reached]

    def _begin(self) -> bool:
        """Ingest the granted quantum if it is complete; return False if not, or if the evaluator must catch up."""
        if not self._copied(self.inserted_steps):
            return False
        if self._boundary == self._positions.min() or not all(
            ring.reached(self._boundary) and not ring.fault for ring in self.rings
        ):
            return False
        self._ingest()
        self._next_granted = False
        self._due += self.pace.schedule()
        if not self._replay.sampleable:
            self._skip_updates()
        elif self._due <= self._algorithm.lockstep_lag:
            self._publish_and_grant()
        return True

    def _skip_updates(self) -> None:
        """Grant the next quantum because no row can be trained on.

        If all rows are too stale, the remaining updates are dropped. If no row has n successors yet, they are made
        later.
        """
        if self._algorithm.max_staleness is not None and self._ever_sampleable:
            self._due = 0
        if not self._next_granted:
            self._publish_and_grant()

    def _publish_and_grant(self) -> None:
        if self.publisher.unpublished:
            self.publisher.publish()
        self._grant_quantum()

    def _grant_quantum(self) -> None:
        """Grant the next quantum to all actors, with one more row for the last next observation."""
        self._next_granted = True
        rows = self.pace.next_rows()
        if rows == 0:
            # The last updates sample from the same rows, whether the run ends here or is resumed.
            for index in range(len(self.rings)):
                self._replay.retire(index, self._boundary + self.pace.rows + 1)
            return
        self._boundary += rows
        before = self._granted.copy()
        self._granted[:] = self._boundary + 1
        self._grant(before)

    def _restore_without_rows(self, state: Mapping[str, Any]) -> None:
        super()._restore_without_rows(state)
        self._boundary = int(self._positions.max())
