"""Relaxed training on replay: updates whenever the balance allows, on all available rows.

A tick of the loop:

    ingest new rows, retire, grant, wake actors
    update, update, ... for about a millisecond; publish every `publish_interval` updates

`lockstep_replay.py` does the same in fixed quanta.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from asyncrl.learning.balance import Balance
from asyncrl.learning.replay_loop import ReplayLoop
from asyncrl.learning.update_loop import TICK_SECONDS, Priorities


class RelaxedReplayLoop(ReplayLoop):
    """Relaxed update loop on replay."""

    polls_while_dense = True
    pace: Balance

    def _make_pace(self, max_env_steps: int | None) -> Balance:
        algorithm, ring = self._algorithm, self._replay.rings[0]
        return Balance(
            samples_per_insert=algorithm.samples_per_insert,
            batch_size=self._batch.reward.size,
            learning_starts=algorithm.learning_starts,
            num_actors=len(self._replay.rings),
            envs_per_actor=ring.environments,
            num_agents=ring.layout.trained_agents,
            num_slots=ring.num_slots,
            error_samples=algorithm.samples_per_insert_error,
            max_env_steps=max_env_steps,
        )

    def tick(self) -> bool:
        """Ingest new rows, grant rows, then update for `TICK_SECONDS`; return whether an update was made."""
        self._publish_env_kwargs(0, self.inserted_steps)
        self._ingest()
        self._grant_held()
        before = self._granted.copy()
        if self.pace.grant(self._positions, self._granted, unpaced=not self._ever_sampleable):
            self._grant(before)
        if not self._copied(self.inserted_steps):
            return False
        allowed, made = self.pace.updates_allowed(), 0
        beta = self._beta()
        end = time.perf_counter() + TICK_SECONDS
        while made < allowed:
            if not self._trainable():
                self._starve()
                break
            self._update(beta)
            made += 1
            if time.perf_counter() >= end:
                break
        return made > 0

    def _restore_rows(self, state: Mapping[str, Any], priorities: Priorities | None) -> None:
        super()._restore_rows(state, priorities)
        # The new actors have no grant: what those before them had not used is granted anew, by the present pace.
        self._granted[:] = [ring.granted for ring in self.rings]
        self._held[:] = False

    def finished(self) -> bool:
        """Whether the run's steps are inserted, their updates made, and no copy of weights is due."""
        return self.pace.exhausted() and not self._copy_due(self.inserted_steps)

    def wake_positions(self) -> list[int]:
        """Position per ring at which the actor should wake the learner.

        It is at most half of the ring's grant ahead, because an actor without a grant writes no row and sends no wake.
        """
        steps = self.pace.steps_wanted(self.pace.updates_worth_waking)
        wanted = math.ceil(steps / (self.rings[0].environments * len(self.rings)))
        ahead = np.minimum(wanted, (self._granted - self._positions) // 2)
        return [int(p) for p in self._positions + np.maximum(1, ahead)]

    def _starve(self) -> None:
        """Write off the due updates and publish if all rows are too stale, so that actors produce newer rows.

        Before any row was sampleable (had n successors) nothing is written off, because the updates can be made later,
        unless no further steps will come.
        """
        if self._ever_sampleable or self.pace.complete:
            self.pace.write_off()
            if self.publisher.unpublished:
                self.publisher.publish()
