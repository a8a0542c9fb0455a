"""Prioritized replay of transitions over rings, in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from asyncrl.interfaces import Batch
from asyncrl.replay import sampling
from asyncrl.replay import tables as table
from asyncrl.replay.handles import address_of
from asyncrl.replay.ring_replay import ReplayStatistics as ReplayStatistics
from asyncrl.replay.ring_replay import RingReplay
from asyncrl.replay.sum_tree import on_pages
from asyncrl.replay.tables import BatchTable
from asyncrl.sequences import SequenceShape
from asyncrl.shm import RingReader


class PrioritizedReplay(RingReplay[Batch]):
    """Replay of n-step transitions, each of which begins at a row of its own; see `RingReplay`."""

    WHAT: ClassVar[str] = "row"

    def __init__(
        self,
        rings: Sequence[RingReader],
        *,
        n_step: int,
        gamma: float,
        alpha: float = 0.6,
        uniform: bool = False,
        frame_stack: int = 1,
        priority_eps: float = 1e-6,
        priority_window_updates: int = 1_000,
        rng: np.random.Generator,
    ) -> None:
        """Begin with nothing sampleable.

        Args:
            rings: at least one; all of one layout.
            n_step: rewards summed before the bootstrap.
            gamma: discount per step, 0 to 1.
            alpha: exponent of the priorities, 0 (uniform) to 1 (proportional).
            uniform: sample all rows alike and ignore `update_priorities`.
            frame_stack: observations joined along a new axis 1 of `obs` and `next_obs`; 1 means no such axis.
            priority_eps: added to |TD error|, so that every row keeps a chance.
            priority_window_updates: calls of `update_priorities` in a window; a new row gets the largest priority of
                the present and the previous window.
            rng: draws the strata.

        Raises:
            ValueError: an argument outside its range, rings of different layouts, or rings too small to
                hold one transition.
        """
        super().__init__(
            rings,
            shape=SequenceShape(burn_in=0, length=1, period=1, n_step=n_step, gamma=gamma),
            alpha=alpha,
            uniform=uniform,
            frame_stack=frame_stack,
            priority_eps=priority_eps,
            priority_window_updates=priority_window_updates,
            rng=rng,
        )
        self._cards = on_pages(np.uint8, self.tree.leaves.size * table.CARD_BYTES)
        self._state[table.CARDS] = address_of(self._cards)

    def _describe(self, batch: Batch) -> BatchTable:
        return BatchTable(batch, self.rings[0], int(self._state[table.STACK]))

    def _draw(self, to: BatchTable, beta: float) -> None:
        sampling.sample(*self._tree, beta, to.addresses, to.uniforms, to.rest, to.work)
