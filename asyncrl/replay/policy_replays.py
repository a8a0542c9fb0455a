"""A replay for each of several policies of the agents, over the same rings; `acting/agent_policies.py` has the design.

The replay of a policy is an ordinary one over *views* of the rings (`StreamsOfRing`) with its agents' streams alone:
neighbouring streams are contiguous in a ring, so a view is a ring to the kernels, which have no part in this. The
agents of one environment are one view if they are neighbours, else a view each.

Positions are read once per ring and copied to words of our own, which its views read in place of its header. So the
replays of all policies are always at the same rows, and a fault is found in one place.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.errors import RingCorrupt
from asyncrl.interfaces import AgentPolicy, Batch, SequenceBatch, environment_steps
from asyncrl.replay.ring_replay import RingReplay
from asyncrl.shm import RingReader
from asyncrl.shm.ring_layout import GRANTED, HEADER_WORDS, PUBLISHED


class StreamsOfRing:
    """View of neighbouring streams of a ring, in place of a `RingReader`; learner thread only.

    Args:
        ring: the ring.
        streams: its streams.
        header: words with the positions of the ring, written by `PolicyReplays`.
    """

    global_state = None
    """A team alone is trained on states, and has one policy."""

    def __init__(self, ring: RingReader, streams: slice, header: NDArray[np.int64]) -> None:
        self.ring, self.header = ring, header
        self.num_slots, self.num_envs = ring.num_slots, streams.stop - streams.start
        spec = dataclasses.replace(ring.layout.spec, agents=(), policies=())
        self.layout = dataclasses.replace(ring.layout, num_envs=self.num_envs, spec=spec)
        self.obs, self.action = ring.obs[streams], ring.action[streams]
        self.reward, self.flags = ring.reward[streams], ring.flags[streams]
        self.version, self.policy_updates = ring.version, ring.policy_updates
        self.incarnation = ring.incarnation
        self.extras = {name: values[streams] for name, values in ring.extras.items()}

    @property
    def fault(self) -> str:
        """Fault of the ring."""
        return self.ring.fault

    def published(self) -> int:
        """Published rows of the ring."""
        return self.ring.published()

    def begin_again(self, published: int, granted: int) -> None:
        """Do nothing: the ring is begun again for all views."""


def views_of(ring: RingReader, policy: AgentPolicy, header: NDArray[np.int64]) -> list[StreamsOfRing]:
    """Views of the streams of a policy's agents, all of one number of streams."""
    members, num_agents = policy.members, ring.layout.spec.num_agents
    first, last = members[0], members[-1]
    runs = [(first, last + 1)] if last - first + 1 == len(members) else [(n, n + 1) for n in members]
    begins = range(0, ring.num_envs, num_agents)
    return [StreamsOfRing(ring, slice(b + start, b + stop), header) for b in begins for start, stop in runs]


class PolicyBatch:
    """Batches of several policies, one of which it stands for at a time: its arrays are those of that batch.

    Args:
        policies: the policies.
        rows: for each a batch of rows as the rings have them, into which its replay gathers.

    Attributes:
        rows: as given.
        policy: index of the present policy.
        progress: see `Batch`; set before a sample, for whatever policy it is of.
    """

    progress: float
    source = None

    def __init__(self, policies: Sequence[AgentPolicy], rows: Sequence[Batch | SequenceBatch]) -> None:
        self.rows = tuple(rows)
        self._own = [_without_padding(batch, policy) for batch, policy in zip(rows, policies, strict=True)]
        self.policy = 0
        self.take(0)

    def take(self, policy: int) -> None:
        """Stand for the batch of this policy from now on."""
        progress = getattr(self, "progress", 0.0)
        self._own[policy].progress = progress
        vars(self).update(vars(self._own[policy]))
        self.policy = policy

    @property
    def own(self) -> Batch | SequenceBatch:
        """Batch of the present policy, as its updater takes it."""
        return self._own[self.policy]

    @property
    def size(self) -> int:
        """B of the present policy."""
        return self.own.size


def _without_padding(batch: Any, policy: AgentPolicy) -> Any:
    """Batch of the same memory, with observations and actions as the policy sees them."""
    seen = {
        name: policy.own_observations(getattr(batch, name))
        for name in ("obs", "next_obs")
        if hasattr(batch, name)
    }
    return dataclasses.replace(batch, **seen, action=policy.own_actions(batch.action))


class PolicyReplays:
    """Replays of several policies as one, which take turns; has the methods of `RingReplay` that an update loop uses.

    The next sample is of the policy that is farthest behind its share, the share of its agents; a policy without a row
    to sample is left out, and does not catch up.

    Args:
        rings: the actors' rings.
        policies: the policies.
        make: makes the replay of a policy over views of the rings.
        rng: the generator that all replays draw from.

    Attributes:
        rings: as given.
        replays: the replay of each policy.
        behind: `[P]`, how far each policy is behind its share, in updates times N.
        discarded: `[1]`, see `discarded_steps`.
    """

    STATE = ("cursors", "replays", "behind", "discarded")

    def __init__(
        self,
        rings: Sequence[RingReader],
        policies: Sequence[AgentPolicy],
        make: Callable[[tuple[Any, ...], AgentPolicy], RingReplay[Any]],
        rng: np.random.Generator,
    ) -> None:
        self.rings, self._rng, self._policies = tuple(rings), rng, tuple(policies)
        self._words = [np.zeros(HEADER_WORDS, np.int64) for _ in rings]
        self._seen = np.zeros(len(rings), np.int64)
        self._agents = rings[0].layout.spec.num_agents
        self._views = [len(views_of(rings[0], policy, self._words[0])) for policy in policies]
        self.replays = [
            make(
                tuple(
                    view
                    for ring, words in zip(rings, self._words, strict=True)
                    for view in views_of(ring, policy, words)
                ),
                policy,
            )
            for policy in policies
        ]
        self._shares = np.array([len(policy.members) for policy in policies], np.int64)
        self.behind = np.zeros(len(policies), np.int64)
        self.discarded = np.zeros(1, np.int64)
        self._turn = 0

    @property
    def cursors(self) -> NDArray[np.int64]:
        """`[R, 1]`, rows of each ring that are ingested, a view."""
        return self._seen[:, None]

    def views_of_ring(self, policy: int, ring: int) -> range:
        """Indices of a ring's views in the replay of a policy."""
        return range(ring * self._views[policy], (ring + 1) * self._views[policy])

    def ingest(self) -> int:
        """See `RingReplay.ingest`."""
        inserted, closed = self.look(), self._closed()
        for replay in self.replays:
            replay.ingest()
        self._count_discarded(closed)
        return inserted

    def _closed(self) -> NDArray[np.int64]:
        """`[R]`, position of each ring below which no row may be sampled, in every replay; a copy."""
        return self.replays[0].cursors[:: self._views[0], -1].copy()

    def _count_discarded(self, before: NDArray[np.int64]) -> int:
        """Count the env-steps of the rows closed since `before`, which were too old; returns their number."""
        steps = 0
        for reader, start, stop in zip(self.rings, before.tolist(), self._closed().tolist(), strict=True):
            if stop > start:
                slots = np.arange(start, stop) & (reader.num_slots - 1)
                steps += environment_steps(reader.flags[:, slots], self._agents)
        self.discarded += steps
        return steps

    def look(self) -> int:
        """Take over the positions of all rings; returns the env-steps of their new rows."""
        return sum(self._look_at(ring, reader) for ring, reader in enumerate(self.rings))

    def _look_at(self, ring: int, reader: RingReader) -> int:
        """Take over the positions of a ring; returns the env-steps of its new rows."""
        try:
            published, before = reader.published(), int(self._seen[ring])
        except RingCorrupt:
            return 0
        if published < before:
            reader.set_fault(f"published is {published}, and {before} rows were published")
            return 0
        words = self._words[ring]
        words[GRANTED], words[PUBLISHED] = reader.granted, published
        self._seen[ring] = published
        if published == before:
            return 0
        slots = np.arange(max(before, published - reader.num_slots), published) & (reader.num_slots - 1)
        return environment_steps(reader.flags[:, slots], self._agents)

    def published_rows(self) -> NDArray[np.int64]:
        """See `RingReplay`."""
        return self._seen.copy()

    def give_up(self, ring: int) -> int:
        """See `RingReplay.give_up`."""
        each = enumerate(self.replays)
        return sum(replay.give_up(view) for p, replay in each for view in self.views_of_ring(p, ring))

    def begin_again(self, ring: int, granted: int) -> None:
        """See `RingReplay.begin_again`."""
        self.rings[ring].begin_again(int(self._seen[ring]), granted)
        for p, replay in enumerate(self.replays):
            for view in self.views_of_ring(p, ring):
                replay.begin_again(view, granted)

    def grant(self, ring: int, position: int) -> None:
        """See `RingReplay.grant`."""
        most = int(self._seen[ring]) + self.rings[ring].num_slots
        if position > most:
            raise ValueError(f"position must be at most ingested + num_slots = {most}, got {position}")
        self.retire(ring, position)
        self.rings[ring].grant(position)

    def retire(self, ring: int, position: int) -> None:
        """See `RingReplay.retire`; rows of all policies."""
        for p, replay in enumerate(self.replays):
            for view in self.views_of_ring(p, ring):
                replay.retire(view, position)

    def retire_older_than(self, min_updates: int) -> int:
        """See `RingReplay.retire_older_than`; a step is one of all agents of an environment."""
        closed = self._closed()
        for replay in self.replays:
            replay.retire_older_than(min_updates)
        return self._count_discarded(closed)

    @property
    def sampleable(self) -> int:
        """See `RingReplay`; over all policies."""
        return sum(replay.sampleable for replay in self.replays)

    @property
    def stored_steps(self) -> int:
        """Steps of agents that may be sampled."""
        return sum(replay.stored_steps for replay in self.replays)

    @property
    def discarded_steps(self) -> int:
        """See `RingReplay`; a step is one of all agents of an environment."""
        return int(self.discarded[0])

    def sample(self, batch: PolicyBatch, beta: float) -> None:
        """Sample rows of the policy whose turn it is, for which `batch` stands afterwards; see `RingReplay.sample`."""
        can = np.array([replay.sampleable > 0 for replay in self.replays])
        self.behind += np.where(can, self._shares, 0)
        self._turn = turn = int(np.where(can, self.behind, np.iinfo(np.int64).min).argmax())
        self.behind[turn] -= self._shares[can].sum()
        self.replays[turn].sample(batch.rows[turn], beta)
        batch.take(turn)

    def acted(self, batch: PolicyBatch) -> PolicyBatch:
        """See `RingReplay.acted`."""
        return batch

    def update_priorities(self, ids: NDArray[np.int64], td_abs: NDArray[np.float32]) -> int:
        """See `RingReplay.update_priorities`; of the last sample."""
        return self.replays[self._turn].update_priorities(ids, td_abs)
