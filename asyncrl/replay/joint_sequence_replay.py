"""Prioritized replay of joint sequences, stored in the rings: the data of recurrent learners of several agents.

An item is the rows of all N agents of an environment over the rows of one sequence (`SequenceShape`): N neighbouring
streams over the same slots, gathered in place into `[B, N, rows, ...]` by the code that gathers the sequence of one
stream. Each agent begins with the recurrent state that its actor stored, and its returns, masks and starts of episodes
are its own. Where the rings hold the environment's state, that of every row is gathered beside them.

A joint sequence has one priority, at the leaf of its first agent's first row; those of the other agents stay zero. It
can be sampled if at least one agent acts in one of its trained rows. Returns are those of agents of a team; see
`joint_replay.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Unpack

import numpy as np

from asyncrl.interfaces import JointSequenceBatch
from asyncrl.replay import tables as table
from asyncrl.replay.gather import copy_rows
from asyncrl.replay.handles import int64s
from asyncrl.replay.ring_replay import RingReplay, SequenceOptions
from asyncrl.replay.sampling import take_leaves
from asyncrl.replay.sequence_replay import copy_sequence, copy_version, cut_sequence
from asyncrl.replay.tables import (
    AHEAD,
    GAMMA,
    GLOBAL_STATE,
    LEAF,
    NUM_AGENTS,
    NUM_SLOTS,
    STATE_BYTES,
    TO_GLOBAL_ROWS,
    TO_IDS,
    TO_JOINT_STATE,
    BatchTable,
    Numbers,
    Words,
    split_id,
)
from asyncrl.replay.tree_kernels import Leaves, Nodes, descend
from asyncrl.shm import RingReader
from asyncrl.shm.kernel import inlined, kernel


class JointSequenceReplay(RingReplay[JointSequenceBatch]):
    """Replay of joint sequences that begin at every `shape.period`-th row of an environment; see `RingReplay`.

    Each N neighbouring streams of a ring are the agents of one environment.
    """

    WHAT: ClassVar[str] = "joint sequence"

    def __init__(self, rings: Sequence[RingReader], **options: Unpack[SequenceOptions]) -> None:
        super().__init__(rings, **options)
        self._state[table.JOINT] = table.OF_TEAM

    @property
    def stored_steps(self) -> int:
        """Environment steps that may be sampled, times N."""
        return super().stored_steps * int(self._state[NUM_AGENTS])

    def sample(self, batch: JointSequenceBatch, beta: float) -> None:
        """See `RingReplay.sample`."""
        assert isinstance(batch, JointSequenceBatch), "joint sequences are gathered into a JointSequenceBatch"
        super().sample(batch, beta)

    def _draw(self, to: BatchTable, beta: float) -> None:
        sample_joint_sequences(*self._tree, self._numbers, beta, to.addresses, to.uniforms, to.rest, to.work)


@inlined
def copy_global_rows(rings: Words, state: Words, row_id: int, batch: Words, i: int) -> None:
    """Fill `state` of item i, whose first agent's row has this id."""
    ring, position, stream = split_id(state, row_id)
    rows, slots, row_bytes = state[AHEAD] + 1, state[NUM_SLOTS], state[STATE_BYTES]
    environment = (stream // state[NUM_AGENTS]) * slots
    to = batch[TO_GLOBAL_ROWS] + i * rows * row_bytes
    copy_rows(to, rings[np.uintp(ring), GLOBAL_STATE], environment, position, rows, row_bytes, slots)


_TREE = "float32[::1], float64[:,:,::1], int64[::1]"
_TABLES = "int64[:,::1], int64[::1], float64[::1]"
_BATCH = "int64[::1], float64[::1], float64[::1], int64[:,::1]"


@kernel(f"void({_TREE}, {_TABLES}, float64, {_BATCH})")
def sample_joint_sequences(
    leaves: Leaves,
    nodes: Nodes,
    first: Words,
    rings: Words,
    state: Words,
    numbers: Numbers,
    beta: float,
    batch: Words,
    uniforms: Numbers,
    rest: Numbers,
    work: Words,
) -> None:
    """Sample joint sequences and gather them into the batch."""
    descend(leaves, nodes, first, uniforms, rest, work[LEAF])
    take_leaves(leaves, nodes, rings, state, beta, batch, rest, work)
    size, agents = work.shape[1], state[NUM_AGENTS]
    ids = int64s(batch[TO_IDS], size)
    for i in range(size):
        for agent in range(agents):
            copy_sequence(rings, state, ids[i] + agent, batch, i * agents + agent, TO_JOINT_STATE)
            cut_sequence(rings, state, numbers[GAMMA], ids[i] + agent, batch, i * agents + agent)
        copy_version(rings, state, ids[i], batch, i)
        if state[STATE_BYTES] > 0:
            copy_global_rows(rings, state, ids[i], batch, i)
