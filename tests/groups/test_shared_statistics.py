"""Statistics shared by groups: all groups have those of all observations, by every path of messages."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from group_rig import Meeting, all_joined, on_ranks, vector_of

from asyncrl.algorithms.normalization import RunningMoments
from asyncrl.algorithms.value_bounds import ValueBounds
from asyncrl.groups.async_fusion import AsyncClient, AsyncServer, FusedWeights
from asyncrl.groups.gradient_fusion import GradientFusion
from asyncrl.groups.messages import ENCODINGS
from asyncrl.groups.rounds import Rounds
from asyncrl.groups.shared_statistics import SharedStatistics
from asyncrl.groups.weight_fusion import AverageFuser, BackgroundFusion

SIZE, RANKS, UPDATES = 7, 3, 60


class Core:
    """A learner that sees rows and does not train."""

    def __init__(self) -> None:
        self.vector = vector_of(torch.zeros(SIZE))
        self.moments, self.bounds = RunningMoments(2), ValueBounds()
        self.vector.shared = (self.moments, self.bounds)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Any) -> None:
        pass


def fusion_of(mode: str, meeting: Meeting, rank: int, core: Core) -> Any:
    shared, encoding = SharedStatistics(core.vector.shared), ENCODINGS["bfloat16"](SIZE)
    if mode == "async":
        if rank:
            return BackgroundFusion(AsyncClient(meeting.pair(rank, 1), encoding, shared), core.vector, 2)
        weights = FusedWeights(core.vector.parameters, 8)
        server = AsyncServer(
            weights,
            encoding,
            range(1, RANKS),
            lambda other: meeting.pair(other, 0),
            shared,
        )
        return BackgroundFusion(all_joined(server, RANKS - 1), core.vector, 2)
    if mode == "gradients":
        return GradientFusion(core, meeting.peers(rank), encoding, shared)
    rounds = Rounds(meeting.peers(rank), encoding, shared=shared)
    return BackgroundFusion(AverageFuser(rounds, core.vector.parameters), core.vector, 2)


@pytest.mark.parametrize("mode", ["gradients", "average", "async"])
def test_every_group_has_the_statistics_of_what_all_have_seen(mode: str) -> None:
    meeting = Meeting(RANKS)
    generator = np.random.default_rng(0)
    seen = 1000.0 + generator.normal(size=(RANKS, UPDATES, 5, 2)) * (1.0, 1e-3)
    seen[1] += 0.5  # no group alone has seen what the others have

    def rank(index: int) -> Core:
        core = Core()
        fusion = fusion_of(mode, meeting, index, core)
        for update in range(UPDATES):
            core.vector.begin_update()
            core.moments.add(seen[index, update])
            core.bounds.merge(np.array((-index, index * update), float))
            core.vector.begin_step()
        fusion.finish()
        if mode == "async" and index:
            meeting.store.wait(["heard"])
        if mode == "async" and not index:  # its last delta came before those of the others
            fusion._fuser.begin(core.vector.parameters.clone(), False)
            meeting.store.set("heard", "1")
        fusion.close()
        return core

    cores = on_ranks(RANKS, rank)
    rows = seen.reshape(-1, 2)
    complete = (
        cores if mode != "async" else cores[:1]
    )  # the others miss last words, or have ended before anybody came
    for core in complete:
        assert core.moments.count == rows.shape[0]
        np.testing.assert_allclose(core.moments.mean, rows.mean(axis=0), rtol=1e-12)
        np.testing.assert_allclose(core.moments.variance, rows.var(axis=0), rtol=1e-6)
        assert core.bounds.values.tolist() == [-2.0, 2.0 * (UPDATES - 1)]


def test_values_travel_with_twice_the_digits_of_float32() -> None:
    first, second = RunningMoments(1), RunningMoments(1)
    one, other = SharedStatistics((first,)), SharedStatistics((second,))
    rows = 12_345_678.0 + np.array([[0.25], [0.5], [0.75]])
    first.add(rows)
    other.merge(one.take_message())
    assert second.mean[0] == rows.mean() and second.square[0] == pytest.approx(0.125)
    other.merge(one.take_message())
    assert second.count == 3, "nothing is told twice"


def test_bounds_may_be_infinite() -> None:
    first, second = ValueBounds(), ValueBounds()
    one, other = SharedStatistics((first,)), SharedStatistics((second,))
    first.values[:] = -1.5, math.inf
    other.merge(one.merged(one.take_message(), np.zeros(one.size, np.float32)))
    assert second.values.tolist() == [-1.5, math.inf]
