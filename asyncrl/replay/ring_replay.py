"""Base class of the replays: rows that stay in the rings, and a sum tree of their priorities.

Schaul et al., "Prioritized Experience Replay", arXiv 1511.05952 (proportional variant). Retiring rows before granting
them is the lazy writing of Zhang et al., arXiv 2110.01101.

Priorities do not fall with staleness or with the policy's change. DistRL (arXiv 2410.14803) puts a factor for the ratio
rho of the two policies' probabilities and one for the age on |error|^alpha: min(1, rho)^b (1 + s)^-c, s updates since
the acting weights. DQN on CartPole-v1, one of eight actors ten times slower, replay of 4,096 steps
(`benchmarks/learning/priority_decay.py`, 10 seeds, median steps to a greedy 475):

    uniform             35,000 (7 of 10 within 40,000)
    prioritized         27,000 (8 of 10)
    c = 0.25            31,800 (7 of 10)
    c = 1               24,300 (10 of 10), by seed 20,500 more to 15,500 fewer than prioritized, 1,200 fewer in the mean
    b = 0.25            26,000 (8 of 10)
    b = 1               30,500 (8 of 10)
    b = c = 0.25        31,500 (8 of 10)

c makes samples younger (95th percentile of s 1,150, 704, 320 updates), but no difference to `prioritized` is beyond
the spread of the seeds (five earlier seeds: 29,000, 25,000 and 24,500; c = 1 solved 4 of them). So there is no option.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, Required, TypedDict, TypeVar, Unpack

import numpy as np
from numpy.typing import NDArray

from asyncrl.interfaces import Batch, JointBatch, JointSequenceBatch, SequenceBatch, SequenceShape
from asyncrl.replay import rows, sampling
from asyncrl.replay import tables as table
from asyncrl.replay.handles import address_of
from asyncrl.replay.sum_tree import SumTree, on_pages
from asyncrl.replay.tables import BatchTable, ring_table, state_table
from asyncrl.shm import RingReader
from asyncrl.shm.ring import PUBLISHED

_BATCHES_KNOWN = 8  # a learner has one or two; the limit bounds the memory if new ones are made each time
B = TypeVar("B", Batch, JointBatch, SequenceBatch, JointSequenceBatch)


class RingReplayOptions(TypedDict, total=False):
    """Options of every replay; see `RingReplay`."""

    alpha: float | None
    priority_eps: float
    priority_window_updates: int
    frame_stack: int
    rng: Required[np.random.Generator]


class SequenceOptions(RingReplayOptions):
    """Options of replays of sequences; see `RingReplay`."""

    shape: Required[SequenceShape]


class TransitionOptions(RingReplayOptions):
    """Options of replays of transitions; see `TransitionReplay`."""

    n_step: Required[int]
    gamma: Required[float]


class RingReplay(ABC, Generic[B]):
    """Replay over a set of rings of one layout; learner thread only.

    Actors continue writing: `ingest` reads each ring's `published` once (acquire); rows from it on are not read until
    the next `ingest`. Uniform sampling uses the same code: priorities and weights are one, updates are ignored.

    Attributes:
        rings: the rings, in the order of their indices.
        shape: shape of the sampled sequences.
        tree: sum tree of the priorities, a sequence's at its first row; for tests.
    """

    STATE: ClassVar[tuple[str, ...]] = ("cursors", "counters", "numbers")
    WHAT: ClassVar[str]
    """Name of a sampled item in error messages."""

    def __init__(
        self,
        rings: Sequence[RingReader],
        *,
        shape: SequenceShape,
        alpha: float | None = 0.6,
        priority_eps: float = 1e-6,
        priority_window_updates: int = 1_000,
        frame_stack: int = 1,
        rng: np.random.Generator,
    ) -> None:
        """Create a replay without sampleable rows.

        Args:
            rings: at least one; all of one layout, without padding.
            shape: shape of the sampled sequences.
            alpha: exponent of the priorities, 0 to 1 (proportional); None samples uniformly and ignores
                `update_priorities`.
            priority_eps: added to |TD error|, so that every priority is above zero; from 1e-30 to 1e30.
            priority_window_updates: calls of `update_priorities` in a window, at least 1; new rows get the largest
                priority of the current and the previous window.
            frame_stack: observations joined along a new axis of `obs` (and `next_obs`), the first after those of the
                batch; 1 means no such axis.
            rng: generator of the draws within the strata.

        Raises:
            ValueError: an argument is out of range, the rings have different layouts or padding, or are too small for a
                sequence.
        """
        _check(rings, shape, frame_stack)
        _check_priorities(alpha, priority_eps, priority_window_updates)
        self.rings, self.shape = tuple(rings), shape
        self._uniform = alpha is None
        self._rng = rng
        layout = self.rings[0].layout
        env_bits = (layout.num_envs - 1).bit_length()
        self.tree = SumTree((len(rings) * layout.num_slots) << env_bits)
        self._table = ring_table(self.rings)
        self._faulty = self._table[:, table.FAULTY]
        self._state = state_table(self.rings[0], env_bits, shape, frame_stack, priority_window_updates)
        self._numbers = np.array([shape.gamma, alpha or 0.0, priority_eps, 1.0, 0.0, 0.0])
        self._batches: dict[int, tuple[B, BatchTable]] = {}
        self._dirty, self._priorities = np.zeros(256, np.int64), np.zeros(256, np.float32)
        self._tree = (self.tree.leaves, self.tree.nodes, self.tree.first, self._table, self._state)

    @property
    def cursors(self) -> NDArray[np.int64]:
        """Positions of each ring up to which rows are ingested, sampleable and so on, a view."""
        return self._table[:, table.SEEN : table.CLOSED + 1]

    @property
    def counters(self) -> NDArray[np.int64]:
        """Counters since the start, a view."""
        return self._state[table.MIN_UPDATES : table.CALLS + 1]

    @property
    def numbers(self) -> NDArray[np.float64]:
        """Recent largest priorities, a view."""
        return self._numbers[table.FIRST :]

    @abstractmethod
    def _draw(self, to: BatchTable, beta: float) -> None:
        """Draw items and gather them into the described batch."""

    def ingest(self) -> int:
        """Ingest the rows published since the last call; returns their env-steps, RESET rows excluded.

        A sequence becomes sampleable once all its rows are published, with the largest of the recent priorities. A ring
        whose `published` is outside of the granted range or moved back gets a `fault` and is ignored; see `give_up`.
        """
        inserted: int = rows.ingest(*self._tree, self._numbers)
        if np.count_nonzero(self._faulty):  # a quarter of the time of `any`
            for i in np.flatnonzero(self._faulty):
                ring, seen = self.rings[i], int(self._table[i, table.SEEN])
                if not ring.fault:
                    ring.set_fault(
                        f"published is {int(ring.header[PUBLISHED])}, and {seen} rows were published"
                    )
        return inserted

    def give_up(self, ring: int) -> int:
        """Retire all rows of a ring with a fault, and ignore the ring until `begin_again`.

        Returns:
            Number of transitions or sequences that were sampleable.
        """
        return rows.give_up(*self._tree, ring)

    def begin_again(self, ring: int, granted: int) -> None:
        """Begin an abandoned ring again after its last ingested row; see `RingReader.begin_again`."""
        self.rings[ring].begin_again(int(self._table[ring, table.SEEN]), granted)
        self._table[ring, table.FAULTY] = 0

    def sample(self, batch: B, beta: float) -> None:
        """Sample into every array of `batch` but `staleness`; data are copied once, from the rings to the batch.

        Stratified: item i is drawn from the i-th of B equal parts of the total priority, so items are in the order of
        their leaves. `weight` is `(N p_i / total) ** -beta`, divided by the batch's largest.

        Args:
            batch: arrays as created by `allocate` of its class (with `frame_stack > 1` for the stacked observations).
                They are checked at first use and remembered.
            beta: exponent of the importance weights, 0 (none) to 1 (unbiased).

        Raises:
            ValueError: nothing is sampleable yet, beta is out of range, or the arrays do not fit the rings.
        """
        known = self._batches.get(id(batch))
        if known is None or not known[1].is_of(batch):
            if len(self._batches) >= _BATCHES_KNOWN:
                self._batches.clear()
            to = BatchTable(batch, self.rings[0], self.shape, int(self._state[table.STACK]))
            known = self._batches[id(batch)] = (batch, to)
        if not 0.0 <= beta <= 1.0:
            raise ValueError(f"beta must be between 0 and 1, got {beta}")
        if self._state[table.SAMPLEABLE] == 0:
            raise ValueError(
                f"replay must hold a sampleable {self.WHAT}, got none: ingest until `sampleable` is positive"
            )
        to = known[1]
        self._rng.random(out=to.uniforms)
        self._draw(to, 0.0 if self._uniform else beta)

    def acted(self, batch: B) -> B:
        """Items of a sampled batch that come from the actors' rings: all; a view, the same object for one batch."""
        return batch

    def drawn(self, batch: B, beta: float) -> tuple[float, float]:
        """Total priority, and `p ** -beta` of the smallest priority p of the last `sample`; called right after it.

        The second is the batch's largest importance weight, without the factor `(N / total) ** -beta` and not
        normalised; 1 for uniform sampling. With both, the weights of several replays can be put on one scale.
        """
        total = self.tree.total
        smallest = self._batches[id(batch)][1].rest.min() * total / self.sampleable
        return total, 1.0 if self._uniform else float(smallest**-beta)

    def place_of(self, row_id: int) -> tuple[int, int, int]:
        """Ring, position and stream of the row with this id."""
        inlined: Any = table.split_id  # a call from Python would have numba compile it
        place: tuple[int, int, int] = inlined.py_func(self._state, row_id)
        return place

    def update_priorities(self, ids: NDArray[np.int64], td_abs: NDArray[np.float32]) -> int:
        """Set the priorities of sampled rows to `(td_abs + priority_eps) ** alpha`.

        The last value of a repeated id is used. Rows that were retired since the sample are ignored.

        Args:
            ids: `[B]` from `Batch.ids`.
            td_abs: `[B]` absolute TD errors.

        Returns:
            Number of ids ignored because their rows were retired; 0 for uniform sampling.

        Raises:
            ValueError: the shapes differ, an error is negative, infinite or NaN, or an id has an invalid ring; nothing
                is changed.
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
        """Retire the rows of `ring` below `position - num_slots`, then let the actor overwrite them.

        Priorities are zeroed before the actor may write. With frame stacks the next `frame_stack - 1` rows are retired
        too. Call `RingReader.take_waiting` afterwards.

        Raises:
            ValueError: the position moves back, or would overwrite rows that were not ingested.
            RingCorrupt: the ring has a fault.
        """
        reader = self.rings[ring]
        most = int(self._table[ring, table.SEEN]) + reader.num_slots
        if position > most:
            raise ValueError(f"position must be at most ingested + num_slots = {most}, got {position}")
        self.retire(ring, position)
        reader.grant(position)

    def retire(self, ring: int, position: int) -> None:
        """Retire the rows of `ring` that a grant of `position` would let the actor overwrite."""
        rows.retire(*self._tree, ring, position - self.rings[ring].num_slots)

    def retire_older_than(self, min_updates: int) -> int:
        """Retire all rows with `policy_updates` below `min_updates`, now and at every later `ingest`.

        `policy_updates` never decreases along a ring, so these rows are a prefix of it. The bound never decreases.

        Returns:
            Env-steps (RESET rows excluded) retired by this call, sampled before or not.
        """
        return rows.retire_stale(*self._tree, min_updates)

    @property
    def sampleable(self) -> int:
        """Number of transitions or sequences that may be sampled: leaves with a priority above zero."""
        return int(self._state[table.SAMPLEABLE])

    @property
    def inserted(self) -> int:
        """Env-steps ingested since the start, RESET rows excluded."""
        return int(self._state[table.INSERTED])

    def published_rows(self) -> NDArray[np.int64]:
        """`[R]`, published rows of each ring at the last `ingest`, a copy."""
        return self._table[:, table.SEEN].copy()

    @property
    def stored_steps(self) -> int:
        """Environment steps that may be sampled: `period` for each transition or sequence."""
        return self.sampleable * self.shape.period

    @property
    def discarded_steps(self) -> int:
        """Environment steps retired before a grant since the start, because their policy was too old."""
        return int(self._state[table.DISCARDED])


class TransitionReplay(RingReplay[B]):
    """Base of the replays of n-step transitions, whose returns are stored once a row is sampleable (`gather.py`)."""

    def __init__(
        self, rings: Sequence[RingReader], *, n_step: int, gamma: float, **options: Unpack[RingReplayOptions]
    ) -> None:
        """Create a replay without sampleable rows.

        Args:
            rings: see `RingReplay`.
            n_step: rewards summed before the bootstrap.
            gamma: discount per step, 0 to 1.
            options: those of `RingReplay`.

        Raises:
            ValueError: as `RingReplay`, or `n_step` or `gamma` is out of range.
        """
        shape = SequenceShape(burn_in=0, length=1, period=1, n_step=n_step, gamma=gamma)
        super().__init__(rings, shape=shape, **options)
        self._returns = on_pages(np.uint8, self.tree.leaves.size * table.RETURN_BYTES)
        self._state[table.RETURNS] = address_of(self._returns)


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


def _check_priorities(alpha: float | None, eps: float, window: int) -> None:
    if alpha is not None and not 0.0 <= alpha <= 1.0:
        raise ValueError(f"alpha must be between 0 and 1, or None, got {alpha}")
    if not 1e-30 <= eps <= 1e30:
        raise ValueError(f"priority_eps must be between 1e-30 and 1e30, got {eps}")
    if window < 1:
        raise ValueError(f"priority_window_updates must be at least 1, got {window}")
