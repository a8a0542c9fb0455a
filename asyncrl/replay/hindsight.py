"""Hindsight experience replay: goals of sampled transitions replaced by goals that were achieved later.

Andrychowicz et al., "Hindsight Experience Replay", arXiv 1707.01495. A transition of a goal environment is as valid for
any other goal, if the reward is computed for it. So a share of every batch is relabelled after it was gathered, and
nothing is stored: the achieved goals of the same episode are in the ring, in the later rows of the same stream.

    future   the goal achieved at one of the later rows of the episode, each with the same probability
    final    the goal achieved at the last of them

An episode's last row is its RESET row, which has the true final observation. The rows of an episode in progress are
those that are published and ingested, and those of a life of an actor end where `incarnation` changes. A row that is
sampled is not retired, so no later row of its episode is overwritten either.

The rewards of all rows up to the bootstrap are computed for the new goal, so n-step returns are those of this goal. A
return ends where its goal was taken from, because the actions behind it were not made for a goal that is reached: with
three steps and the rows behind included, DQN on `BitFlip` did not learn 8 bits at all. Whether an episode ended in a
row stays what the environment said, as in Stable-Baselines3. A priority
belongs to the row, and its last temporal-difference error may be of any goal.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from asyncrl.envs.goals import GoalRewards
from asyncrl.interfaces import RESET, Batch
from asyncrl.replay.gather import copy_stack, first_of_stack
from asyncrl.replay.handles import address_of, copy_bytes, float32s, int32s, uint8s
from asyncrl.replay.tables import (
    AFTER,
    AT,
    FLAGS,
    INCARNATION,
    NUM_ENVS,
    NUM_SLOTS,
    OBS,
    OBS_BYTES,
    SEEN,
    STACK,
    TO_DISCOUNT,
    TO_NEXT_OBS,
    TO_OBS,
    Numbers,
    Words,
    split_id,
)
from asyncrl.shm.kernel import inlined, kernel


class Hindsight:
    """Relabelling of the goals of gathered batches; learner thread only.

    Args:
        rewards: rewards of batches of goals.
        n_sampled_goal: relabelled transitions per transition with its own goal; above 0.
        strategy: which of the goals achieved later is taken.
        n_step: rewards summed before the bootstrap.
        gamma: discount per step.
    """

    def __init__(
        self,
        rewards: GoalRewards,
        *,
        n_sampled_goal: int,
        strategy: Literal["future", "final"],
        n_step: int,
        gamma: float,
    ) -> None:
        self._goals, self._rewards = rewards.goals, rewards
        self._share, self._final = n_sampled_goal / (n_sampled_goal + 1), strategy == "final"
        self._n_step, self._discounts = n_step, np.array([gamma**k for k in range(n_step + 1)], np.float64)

    def __call__(
        self, rings: Words, state: Words, batch: Batch, to: Words, work: Words, draws: Numbers
    ) -> None:
        """Relabel a gathered batch in place: desired goals, `reward`, and the bootstrap of returns that end earlier.

        Args:
            rings: table of the rings; see `tables.py`.
            state: table of the replay.
            batch: the batch.
            to: table of the batch.
            work: its rows, as `gather` left them.
            draws: `[B]`, uniform in [0, 1): which items are relabelled, and by which rows.
        """
        size, goals, steps = batch.size, self._goals, self._n_step
        items, ahead = np.empty(size, np.int64), np.empty(size, np.int64)
        desired = np.empty((size, goals.row_bytes), np.uint8)
        achieved = np.empty((size, steps, goals.row_bytes), np.uint8)
        words = np.array(
            [goals.achieved, goals.desired, goals.row_bytes, steps, address_of(desired), address_of(achieved)]
        )
        count = relabel(
            rings,
            state,
            batch.ids,
            to,
            work,
            draws,
            self._share,
            self._final,
            self._discounts,
            words,
            items,
            ahead,
        )
        if count == 0:
            return
        wanted = np.repeat(desired[:count], steps, axis=0)
        reached = achieved[:count].reshape(-1, goals.row_bytes)
        rewards = self._rewards(reached, wanted).reshape(count, steps)
        received = np.arange(steps) < ahead[:count, None]
        batch.reward[items[:count]] = np.where(received, rewards * self._discounts[:-1], 0.0).sum(axis=1)


@inlined
def last_of_episode(
    flags: NDArray[np.uint8], incarnation: NDArray[np.int32], stream: int, position: int, seen: int
) -> int:
    """Last row below `seen` of the episode of a trained row: its RESET row, or the last one of an actor's life."""
    mask = incarnation.shape[0] - 1
    life = incarnation[np.uintp(position & mask)]
    last = position + 1
    while last + 1 < seen and not flags[np.uintp(stream + (last & mask))] & RESET:
        if incarnation[np.uintp((last + 1) & mask)] != life:
            break
        last += 1
    return last


@inlined
def bootstrap_earlier(
    rings: Words, state: Words, to: Words, item: int, ring: int, stream: int, position: int
) -> None:
    """Write the observation of a row, or its stack, into an item's `next_obs`."""
    here, slots, frames, row_bytes = np.uintp(ring), state[NUM_SLOTS], state[STACK], state[OBS_BYTES]
    flags = uint8s(rings[here, FLAGS], slots * state[NUM_ENVS])
    incarnation = int32s(rings[here, INCARNATION], slots)
    oldest = first_of_stack(flags, incarnation, stream, position, frames)
    address = to[TO_NEXT_OBS] + item * frames * row_bytes
    copy_stack(address, rings[here, OBS], stream, position, oldest, frames, row_bytes, slots)


@inlined
def write_goal(state: Words, to: Words, item: int, goal: int, desired: int, width: int) -> None:
    """Copy a goal from the address `goal` into every frame of an item's `obs` and `next_obs`."""
    frames, row_bytes = state[STACK], state[OBS_BYTES]
    for frame in range(item * frames, (item + 1) * frames):
        copy_bytes(to[TO_OBS] + frame * row_bytes + desired, goal, width)
        copy_bytes(to[TO_NEXT_OBS] + frame * row_bytes + desired, goal, width)


@kernel(
    "int64(int64[:,::1], int64[::1], int64[::1], int64[::1], int64[:,::1], float64[::1], float64, boolean, "
    "float64[::1], int64[::1], int64[::1], int64[::1])",
    cold=True,
)
def relabel(
    rings: Words,
    state: Words,
    ids: Words,
    to: Words,
    work: Words,
    draws: Numbers,
    share: float,
    final: bool,
    discounts: Numbers,
    words: Words,
    items: Words,
    ahead: Words,
) -> int:
    """Replace the goals of the items whose draw is below `share`; returns their number n.

    Args:
        rings: table of the rings.
        state: table of the replay.
        ids: `[B]`.
        to: table of the batch.
        work: its rows, as `gather` left them.
        draws: `[B]`; below `share` it is uniform in [0, share), and so chooses the row too.
        share: probability that an item is relabelled.
        final: whether the goal is that of the episode's last row.
        discounts: `[n_step + 1]`, powers of the discount.
        words: `Goals.achieved`, `Goals.desired`, bytes of a goal, n_step, and the addresses of two arrays of bytes,
            filled from the start: `[n, bytes]` with the new goals, and `[n, n_step, bytes]` with the goals that each
            step achieved, of which the last is repeated.
        items: `[n]` filled with the relabelled items.
        ahead: `[n]` filled with their numbers of rewards, 1 to n_step.
    """
    slots, envs, row_bytes = state[NUM_SLOTS], state[NUM_ENVS], state[OBS_BYTES]
    achieved, desired, width, steps = words[0], words[1], words[2], words[3]
    new_goals, reached = words[4], words[5]
    count = 0
    for i in range(ids.shape[0]):
        if draws[i] >= share:
            continue
        ring, position, env = split_id(state, ids[i])
        here, stream = np.uintp(ring), env * slots
        flags, incarnation = uint8s(rings[here, FLAGS], slots * envs), int32s(rings[here, INCARNATION], slots)
        last = last_of_episode(flags, incarnation, stream, position, rings[here, SEEN])
        chosen = last
        if not final:
            chosen = min(position + 1 + int(draws[i] / share * (last - position)), last)
        goal_of = rings[here, OBS] + achieved
        goal = goal_of + (stream + (chosen & (slots - 1))) * row_bytes
        copy_bytes(new_goals + count * width, goal, width)
        items[count], ahead[count] = i, (work[AFTER, i] - work[AT, i]) & (slots - 1)
        if chosen - position < ahead[count]:
            ahead[count] = chosen - position
            bootstrap_earlier(rings, state, to, i, ring, stream, chosen)
            float32s(to[TO_DISCOUNT], ids.shape[0])[i] = discounts[ahead[count]]
        write_goal(state, to, i, goal, desired, width)
        for step in range(steps):
            row = position + min(step + 1, ahead[count])
            of = goal_of + (stream + (row & (slots - 1))) * row_bytes
            copy_bytes(reached + (count * steps + step) * width, of, width)
        count += 1
    return count
