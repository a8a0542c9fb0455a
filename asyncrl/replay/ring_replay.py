"""Base class of both replays: rows of rings that stay where actors wrote them, and a tree of their priorities.

Schaul et al., "Prioritized Experience Replay", arXiv 1511.05952 (proportional variant); retire-before-grant is
the lazy writing of Zhang et al., arXiv 2110.01101.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from asyncrl.interfaces import Batch
from asyncrl.replay import rows, sampling
from asyncrl.replay import tables as table
from asyncrl.replay.priority_rules import PriorityRules
from asyncrl.replay.sum_tree import SumTree
from asyncrl.replay.tables import BatchTable, SequenceTable, ring_table, state_table
from asyncrl.sequences import SequenceBatch, SequenceShape
from asyncrl.shm import RingReader
from asyncrl.shm.ring import PUBLISHED

_BATCHES_KNOWN = 8  # a learner has one or two; whoever makes a new one each time shall not fill the memory
B = TypeVar("B", Batch, SequenceBatch)


@dataclass(frozen=True)
class ReplayStatistics:
    """The replay at one moment; all counts in env-steps, and since the start where not said otherwise.

    Attributes:
        sampleable: that may be sampled now.
        capacity: that the rings hold at most.
        inserted: seen by `ingest`, RESET rows excluded.
        sampled: drawn, repetitions included.
        retired: that could still be sampled when they were granted away.
        discarded_stale: given up because the policy that acted was too old, before they were granted away.
        stale_updates_ignored: new priorities for rows that were given up meanwhile.
        largest_priority: of the recent ones, which new rows get (after the exponent alpha).
    """

    sampleable: int
    capacity: int
    inserted: int
    sampled: int
    retired: int
    discarded_stale: int
    stale_updates_ignored: int
    largest_priority: float


class RingReplay(ABC, Generic[B]):
    """What may be sampled from a set of rings of one layout; every method belongs to the learner's thread.

    Actors go on writing meanwhile: `ingest` reads each ring's `published` once (acquire) and nothing at or
    beyond it is touched until the next `ingest`.

    Uniform sampling is the same code: all priorities are one, updates are ignored, weights are one.

    Attributes:
        rings: the rings, in the order of their indices.
        capacity: env-steps that the rings hold at most.
        shape: of what is sampled.
        tree: the priorities, of a sequence at its first row; for tests.
    """

    WHAT: ClassVar[str]
    """What is sampled, in the words of error messages."""

    def __init__(
        self,
        rings: Sequence[RingReader],
        *,
        shape: SequenceShape,
        priorities: PriorityRules | None = None,
        frame_stack: int = 1,
        rng: np.random.Generator,
    ) -> None:
        """Begin with nothing sampleable.

        Args:
            rings: at least one; all of one layout.
            shape: of what is sampled.
            priorities: how priorities are made; None takes the defaults of `PriorityRules`.
            frame_stack: observations joined along a new axis of `obs` (and `next_obs`), the first behind those of the
                batch; 1 means no such axis.
            rng: draws the strata.

        Raises:
            ValueError: an argument outside its range, rings of different layouts, or rings too small to hold one of
                what is sampled.
        """
        _check(rings, shape, frame_stack)
        rules = priorities or PriorityRules()
        self.rings = tuple(rings)
        self.shape = shape
        self._uniform = rules.uniform
        self._rng = rng
        layout = self.rings[0].layout
        env_bits = (layout.num_envs - 1).bit_length()
        self.capacity = len(rings) * layout.num_slots * layout.num_envs
        self.tree = SumTree((len(rings) * layout.num_slots) << env_bits)
        self._table = ring_table(self.rings)
        self._state = state_table(
            self.rings[0], self.tree.bits, env_bits, shape, frame_stack, rules.priority_window_updates
        )
        self._numbers = np.array([shape.gamma, rules.alpha, rules.priority_eps, 1.0, 0.0, 0.0])
        self._batches: dict[int, tuple[B, Any]] = {}
        self._dirty, self._priorities = np.zeros(256, np.int64), np.zeros(256, np.float32)
        self._tree = (self.tree.leaves, self.tree.nodes, self.tree.first, self._table, self._state)

    @abstractmethod
    def _describe(self, batch: B) -> BatchTable | SequenceTable:
        """Check the batch's arrays and write down where they lie. Raises ValueError where they do not fit."""

    @abstractmethod
    def _draw(self, to: Any, beta: float) -> None:
        """Draw and gather into the described batch."""

    def ingest(self) -> int:
        """Take note of what was published since the last call; returns its env-steps, RESET rows excluded.

        A sequence becomes sampleable once all its rows are published, with the largest of the recent priorities. A
        ring whose `published` left what was granted, or moved back, gets a `fault` and is left alone; see `give_up`.
        """
        inserted: int = rows.ingest(*self._tree, self._numbers)
        if self._table[:, table.DISTRUSTED].any():
            for i in np.flatnonzero(self._table[:, table.DISTRUSTED]):
                ring, seen = self.rings[i], int(self._table[i, table.SEEN])
                if not ring.fault:
                    ring.distrust(
                        f"published is {int(ring.header[PUBLISHED])}, and {seen} rows were published"
                    )
        return inserted

    def give_up(self, ring: int) -> int:
        """Give up all rows of a ring that cannot be trusted, and leave it alone until `begin_again`.

        Returns:
            Env-steps that could be sampled until now.
        """
        return rows.give_up(*self._tree, ring)

    def begin_again(self, ring: int, granted: int) -> None:
        """Begin an abandoned ring again after the rows that were ingested of it; see `RingReader.begin_again`."""
        self.rings[ring].begin_again(int(self._table[ring, table.SEEN]), granted)
        self._table[ring, table.DISTRUSTED] = 0

    def sample(self, batch: B, beta: float) -> None:
        """Fill every field of `batch` but `staleness`, without copying anything twice.

        Stratified: item i falls into the i-th of B equal parts of the total priority, so items stand in the
        order of their leaves. `weight` is `(N p_i / total) ** -beta`, divided by the batch's largest.

        Args:
            batch: arrays as `allocate` of its class makes them (with `frame_stack > 1` of the stacked observations).
                They are checked at first use and remembered.
            beta: exponent of the importance weights, 0 (none) to 1 (unbiased).

        Raises:
            ValueError: nothing is sampleable yet, beta is out of range, or the arrays do not fit the rings.
        """
        known = self._batches.get(id(batch))
        if known is None or not known[1].is_of(batch):
            if len(self._batches) >= _BATCHES_KNOWN:
                self._batches.clear()
            known = self._batches[id(batch)] = (batch, self._describe(batch))
        if not 0.0 <= beta <= 1.0:
            raise ValueError(f"beta must be between 0 and 1, got {beta}")
        if self._state[table.SAMPLEABLE] == 0:
            raise ValueError(
                f"replay must hold a sampleable {self.WHAT}, got none: ingest until `sampleable` is positive"
            )
        to = known[1]
        self._rng.random(out=to.uniforms)
        self._draw(to, 0.0 if self._uniform else beta)

    def drawn(self, batch: B, beta: float) -> tuple[float, float]:
        """Total priority, and the largest importance weight of the last `sample` before it was divided by it.

        Called right after it. The weight is p^-beta of the smallest priority p drawn; so replays can be compared.
        """
        total = self.tree.total
        smallest = self._batches[id(batch)][1].rest.min() * total / self.sampleable
        return total, 1.0 if self._uniform else float(smallest**-beta)

    def update_priorities(self, ids: NDArray[np.int64], td_abs: NDArray[np.float32]) -> int:
        """Set the priorities of sampled rows to `(td_abs + priority_eps) ** alpha`.

        Of a repeated id the last value holds. Rows that were retired since they were sampled are left alone.

        Args:
            ids: `[B]` from `Batch.ids`.
            td_abs: `[B]` absolute TD errors.

        Returns:
            How many ids were ignored because their rows were retired meanwhile.

        Raises:
            ValueError: an error is negative, infinite or NaN, or an id is of no ring; nothing is changed.
        """
        if ids.ndim != 1 or ids.shape != td_abs.shape:
            raise ValueError(f"ids and td_abs must be [B] alike, got shapes {ids.shape} and {td_abs.shape}")
        if self._uniform:
            return 0
        if ids.size > self._dirty.size:
            self._dirty, self._priorities = np.zeros(ids.size, np.int64), np.zeros(ids.size, np.float32)
        if td_abs.dtype != np.float32 or not td_abs.flags.c_contiguous:
            td_abs = np.ascontiguousarray(td_abs, np.float32)
        ignored: int = sampling.update(*self._tree, self._numbers, ids, td_abs, self._dirty, self._priorities)
        if ignored < 0:
            i = -1 - ignored
            raise ValueError(
                f"td_abs must be finite and at least 0 and ids from a batch, got {td_abs[i]} for id {ids[i]}"
            )
        return ignored

    def grant(self, ring: int, position: int) -> None:
        """Retire the rows of `ring` that lie below `position - num_slots`, then let the actor overwrite them.

        Priorities are zeroed before the actor may write. With frame stacks the `frame_stack - 1` rows after
        them are given up as well. Call `RingReader.take_waiting` afterwards.

        Raises:
            ValueError: the position moves back, or would overwrite rows that were not ingested.
            RingCorrupt: the ring cannot be trusted.
        """
        reader = self.rings[ring]
        most = int(self._table[ring, table.SEEN]) + reader.num_slots
        if position > most:
            raise ValueError(f"position must be at most ingested + num_slots = {most}, got {position}")
        self.retire(ring, position)
        reader.grant(position)

    def retire(self, ring: int, position: int) -> None:
        """Give up the rows of `ring` that a grant of `position` would let the actor overwrite."""
        rows.retire(*self._tree, ring, position - self.rings[ring].num_slots)

    def retire_older_than(self, min_updates: int) -> int:
        """Give up all rows whose `policy_updates` are below `min_updates`, now and at every later `ingest`.

        They never decrease along a ring, so such rows are a prefix of each. The bound itself never decreases.

        Returns:
            Env-steps (RESET rows excluded) given up by this call, sampled before or not.
        """
        return rows.retire_stale(*self._tree, min_updates)

    @property
    def sampleable(self) -> int:
        """Rows with a priority above zero: env-steps that may be sampled, or sequences."""
        return int(self._state[table.SAMPLEABLE])

    @property
    def inserted(self) -> int:
        """Env-steps ingested since the start, RESET rows excluded."""
        return int(self._state[table.INSERTED])

    def published(self) -> int:
        """Env-steps in all rows that were published at the last `ingest`, RESET rows included."""
        return int(self._table[:, table.SEEN].sum()) * self.rings[0].num_envs

    def published_rows(self) -> NDArray[np.int64]:
        """`[R]` rows of each ring that were published at the last `ingest`, a copy."""
        return self._table[:, table.SEEN].copy()

    def statistics(self) -> ReplayStatistics:
        """The replay at this moment."""
        state = self._state
        return ReplayStatistics(
            sampleable=self.sampleable,
            capacity=self.capacity,
            inserted=self.inserted,
            sampled=int(state[table.SAMPLED]),
            retired=int(state[table.RETIRED]),
            discarded_stale=int(state[table.DISCARDED]),
            stale_updates_ignored=int(state[table.IGNORED]),
            largest_priority=float(self._numbers[table.FIRST]),
        )


def _check(rings: Sequence[RingReader], shape: SequenceShape, frame_stack: int) -> None:
    if not rings:
        raise ValueError("rings must hold at least one ring, got none")
    for i, ring in enumerate(rings):
        if ring.layout != rings[0].layout:
            raise ValueError(f"rings must have one layout, got another in ring {i}")
    if rings[0].layout.padding:
        raise ValueError(f"rings of a replay must have no padding, got {rings[0].layout.padding}")
    if frame_stack < 1:
        raise ValueError(f"frame_stack must be at least 1, got {frame_stack}")
    if (slots := rings[0].num_slots) < (needed := shape.rows + shape.period + frame_stack - 2):
        what = f"burn_in {shape.burn_in}, length {shape.length}, period {shape.period}, n_step {shape.n_step}"
        raise ValueError(
            f"num_slots must be at least {needed} for {what} and frame_stack {frame_stack}, got {slots}"
        )
