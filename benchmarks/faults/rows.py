"""Checks of rows, batches and segments against `counting.py`, which defines their contents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.interfaces import RESET, TERMINATED, TRUNCATED
from benchmarks.faults.counting import PERIOD, SCALE, flags_of, reward_of

GAMMA = 0.5


@dataclass
class Findings:
    """Counts of checks and of errors.

    Attributes:
        rows: recomputed published rows, counted per stream.
        samples: recomputed transitions and steps of segments that were trained on.
        torn: sampled transitions or rows whose parts do not belong together.
        disorder: rows that do not follow from the row before: lost, repeated or out of order.
    """

    rows: int = 0
    samples: int = 0
    torn: int = 0
    disorder: int = 0


@dataclass
class RowCheck:
    """Check of every row of one ring in order, over all lives of its actor; learner thread only."""

    ring: Any
    findings: Findings
    position: int = 0
    life: int = -1
    episode: NDArray[np.int64] = field(init=False)
    expected: NDArray[np.float32] = field(init=False)
    ended: NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        self._begin_life()

    def _begin_life(self) -> None:
        envs = self.ring.num_envs
        self.episode = np.zeros(envs, np.int64)
        self.expected = np.stack([np.arange(envs), np.zeros(envs), np.zeros(envs), np.full(envs, -1)], axis=1)
        self.ended = np.zeros(envs, bool)

    def up_to(self, published: int) -> None:
        """Check the new rows."""
        while self.position < published:
            self._row(self.position & (self.ring.num_slots - 1))
            self.position += 1

    def _row(self, slot: int) -> None:
        ring, findings = self.ring, self.findings
        obs = np.rint(ring.obs[:, slot] * SCALE)
        flags, reward, action = ring.flags[:, slot], ring.reward[:, slot], ring.action[:, slot]
        findings.rows += ring.num_envs
        findings.disorder += int((obs != self.expected).any(axis=1).sum())
        life = int(ring.incarnation[slot])
        if life != self.life:
            first, self.life = self.life < 0, life
            if not first:
                findings.disorder += int((flags != RESET).sum())
                self._begin_life()
                return
        stream, step = np.arange(ring.num_envs), obs[:, 2].astype(np.int64) + 1
        resets = self.ended
        told = np.where(resets, RESET, flags_of(stream, self.episode % PERIOD, step))
        paid = np.where(resets, 0, reward_of(stream, self.episode % PERIOD, step))
        findings.torn += int(((flags != told) | (reward != paid)).sum())
        self.episode = self.episode + resets
        after = np.stack([stream, self.episode % PERIOD, step, action], axis=1)
        fresh = np.stack([stream, self.episode % PERIOD, 0 * stream, 0 * stream - 1], axis=1)
        self.expected = np.where(resets[:, np.newaxis], fresh, after)
        self.ended = (told & (TERMINATED | TRUNCATED)) != 0


def check_batch(batch: Any, findings: Findings) -> None:
    """Recompute every transition (n = 1) of a batch that is trained on."""
    obs, after = np.rint(batch.obs * SCALE).astype(np.int64), np.rint(batch.next_obs * SCALE)
    stream, episode, step = obs[:, 0], obs[:, 1], obs[:, 2] + 1
    flags = flags_of(stream, episode, step)
    expected = np.stack([stream, episode, step, batch.action], axis=1)
    discount = np.where(flags & TERMINATED, 0, GAMMA)
    wrong = (after != expected).any(axis=1) | (batch.reward != reward_of(stream, episode, step))
    findings.samples += len(obs)
    findings.torn += int((wrong | (batch.discount != discount)).sum())


def check_segments(segments: Sequence[Any], findings: Findings) -> None:
    """Recompute every step of the segments that are trained on."""
    for segment in segments:
        obs = np.rint(segment.obs * SCALE).astype(np.int64)
        after = np.rint(np.concatenate([segment.obs[:, 1:], segment.last_obs[:, np.newaxis]], axis=1) * SCALE)
        stream, episode, step = obs[..., 0], obs[..., 1], obs[..., 2] + 1
        taken = (segment.flags & RESET) == 0
        expected = np.stack([stream, episode, step, segment.action], axis=-1)
        wrong = (after != expected).any(axis=-1) | (segment.reward != reward_of(stream, episode, step))
        wrong |= segment.flags != flags_of(stream, episode, step)
        findings.samples += int(taken.sum())
        findings.torn += int((wrong & taken).sum())
