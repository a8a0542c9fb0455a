"""Prioritized replay of joint transitions, stored in the rings: the data of learners of several agents.

The agents of an environment are neighbouring streams that one cursor moves (`envs/agents.py`), so the rows of all of
them at a step are at the same slot of N streams. A sample is such a joint row: an environment and a step are drawn, and
N rows are gathered from the rings into `[B, N, ...]`, by the code that gathers single transitions. No second store.
Where the rings hold the environment's state, once for all agents, it is gathered beside them: at the row, and at the
row to which the longest of the agents' returns extends, which is that of every agent that goes on.

A joint row has one priority, at the leaf of its first agent; those of the other agents stay zero. It can be sampled if
at least one of its agents acts. The returns of all agents are stored, each cut at the end of the agent's own part in
the episode (see `gather.py`), and an agent that waits has none. All agents end where the actor's life ends.

An agent that is truncated while another goes on bootstraps its own value from its last observation, if it is paid for
itself. To a *team* its end is a step like any other (`of_team`): the next joint row is there, the agent waits in it,
and what the team earns from then on is what the others earn. So its value is not part of the team's, and its discount
is 0. A team is truncated where its last agents end and one of them is truncated: the values of those are bootstrapped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Unpack

import numpy as np

from asyncrl.interfaces import JointBatch
from asyncrl.replay import tables as table
from asyncrl.replay.gather import copy_field, copy_fields
from asyncrl.replay.handles import float32s, int64s, uint8s
from asyncrl.replay.ring_replay import TransitionOptions, TransitionReplay
from asyncrl.replay.sampling import take_leaves
from asyncrl.replay.tables import (
    AFTER,
    AT,
    GLOBAL_STATE,
    LEAF,
    NUM_AGENTS,
    NUM_SLOTS,
    RETURN_BYTES,
    RETURNS,
    RING,
    STATE_BYTES,
    TO_ACTING,
    TO_DISCOUNT,
    TO_GLOBAL,
    TO_IDS,
    TO_JOINT_EXTRA,
    TO_NEXT_GLOBAL,
    TO_REWARD,
    TO_UPDATES,
    TO_VERSION,
    UPDATES,
    VERSION,
    WORK_ROWS,
    BatchTable,
    Numbers,
    Words,
)
from asyncrl.replay.tree_kernels import Leaves, Nodes, descend
from asyncrl.shm import RingReader
from asyncrl.shm.kernel import inlined, kernel

ID = WORK_ROWS
"""Row of the scratch array of an item's agents, after those of `work`: the id of the agent's row."""


class JointReplay(TransitionReplay[JointBatch]):
    """Replay of joint n-step transitions, one per row of an environment; see `RingReplay`."""

    WHAT: ClassVar[str] = "joint row"

    def __init__(
        self, rings: Sequence[RingReader], *, of_team: bool = False, **options: Unpack[TransitionOptions]
    ) -> None:
        """Create a replay of rings in which each N neighbouring streams are the agents of one environment.

        With `of_team` the agents learn the return of their team: an agent that is truncated while another goes on is
        not bootstrapped. The other arguments are those of `TransitionReplay`; frames are joined along axis 2.
        """
        super().__init__(rings, **options)
        self._state[table.JOINT] = table.OF_TEAM if of_team else table.OF_EACH
        self._each = np.zeros((WORK_ROWS + 1, 0), np.int64)

    @property
    def stored_steps(self) -> int:
        """Environment steps that may be sampled, times N."""
        return self.sampleable * int(self._state[NUM_AGENTS])

    def sample(self, batch: JointBatch, beta: float) -> None:
        """See `RingReplay.sample`."""
        assert isinstance(batch, JointBatch), "joint rows are gathered into a JointBatch"
        super().sample(batch, beta)

    def _draw(self, to: BatchTable, beta: float) -> None:
        rows = to.uniforms.size * int(self._state[NUM_AGENTS])
        if self._each.shape[1] != rows:
            self._each = np.zeros((WORK_ROWS + 1, rows), np.int64)
        sample_joint(*self._tree, beta, to.addresses, to.uniforms, to.rest, to.work, self._each)


@inlined
def take_agents(state: Words, ids: Words, work: Words, each: Words) -> None:
    """Fill `each` with the rows of all agents of the items, from the first agents' in `work`."""
    agents, slots = state[NUM_AGENTS], state[NUM_SLOTS]
    for i in range(ids.shape[0]):
        for agent in range(agents):
            j = i * agents + agent
            each[LEAF, j], each[RING, j] = work[LEAF, i] + agent, work[RING, i]
            each[AT, j], each[ID, j] = work[AT, i] + agent * slots, ids[i] + agent


@inlined
def read_joint_returns(rings: Words, state: Words, batch: Words, work: Words, each: Words) -> None:
    """Fill the batch's `reward`, `discount`, `trained`, `version` and `policy_updates`, and `each[AFTER]`."""
    size, rows, slots = work.shape[1], each.shape[1], state[NUM_SLOTS]
    reward, discount = float32s(batch[TO_REWARD], rows), float32s(batch[TO_DISCOUNT], rows)
    acting = uint8s(batch[TO_ACTING], rows)
    version, updates = int64s(batch[TO_VERSION], size), int64s(batch[TO_UPDATES], size)
    for j in range(rows):
        stored = state[RETURNS] + each[LEAF, j] * RETURN_BYTES
        reward[j], discount[j] = float32s(stored, 2)[0], float32s(stored, 2)[1]
        ahead = int64s(stored, 2)[1] & 255
        acting[j] = int(ahead > 0)
        at = each[AT, j]
        each[AFTER, j] = (at & -slots) + ((at + ahead) & (slots - 1))
    for i in range(size):
        ring, slot = np.uintp(work[RING, i]), np.uintp(work[AT, i] & (slots - 1))
        version[i] = int64s(rings[ring, VERSION], slots)[slot]
        updates[i] = int64s(rings[ring, UPDATES], slots)[slot]


@inlined
def copy_states(rings: Words, state: Words, batch: Words, work: Words, each: Words) -> None:
    """Fill `state` and `next_state`; `work[AT]` and `work[AFTER]` become rows of environments in `[E / N * S]`."""
    agents, slots = state[NUM_AGENTS], state[NUM_SLOTS]
    for i in range(work.shape[1]):
        slot, ahead = work[AT, i] & (slots - 1), 0
        for j in range(i * agents, (i + 1) * agents):
            ahead = max(ahead, (each[AFTER, j] - each[AT, j]) & (slots - 1))
        environment = (work[AT, i] - slot) // agents
        work[AT, i] = environment + slot
        work[AFTER, i] = environment + ((slot + ahead) & (slots - 1))
    copy_field(rings, GLOBAL_STATE, state[STATE_BYTES], batch[TO_GLOBAL], work, AT)
    copy_field(rings, GLOBAL_STATE, state[STATE_BYTES], batch[TO_NEXT_GLOBAL], work, AFTER)


@kernel(
    "void(float32[::1], float64[:,:,::1], int64[::1], int64[:,::1], int64[::1], float64, int64[::1], float64[::1],"
    "float64[::1], int64[:,::1], int64[:,::1])"
)
def sample_joint(
    leaves: Leaves,
    nodes: Nodes,
    first: Words,
    rings: Words,
    state: Words,
    beta: float,
    batch: Words,
    uniforms: Numbers,
    rest: Numbers,
    work: Words,
    each: Words,
) -> None:
    """Sample joint rows and gather them into the batch."""
    descend(leaves, nodes, first, uniforms, rest, work[LEAF])
    take_leaves(leaves, nodes, rings, state, beta, batch, rest, work)
    take_agents(state, int64s(batch[TO_IDS], work.shape[1]), work, each)
    read_joint_returns(rings, state, batch, work, each)
    copy_fields(rings, state, each[ID], batch, each, TO_JOINT_EXTRA)
    if state[STATE_BYTES] > 0:
        copy_states(rings, state, batch, work, each)
