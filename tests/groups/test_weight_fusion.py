"""Fusion of weights in the background, and `average`: scripted deltas and random delays, against slow references."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import torch
from group_rig import SIZE, Meeting, fuse, on_ranks, scripted, vector_of, wait_for

from asyncrl.groups.messages import ENCODINGS
from asyncrl.groups.rounds import Rounds
from asyncrl.groups.weight_fusion import AverageFuser, BackgroundFusion, Deltas, fused_parts


def learn(fusion: BackgroundFusion, vector: Any, deltas: torch.Tensor, rng: np.random.Generator) -> None:
    """Make updates that each add their scripted delta, with random delays."""
    for delta in deltas:
        vector.begin_update()
        vector.parameters.add_(delta)
        if rng.random() < 0.2 and fusion.running:
            wait_for(fusion)  # else all the updates would be made within a few fusions
    fusion.finish()


class RecordedAverage(AverageFuser):
    """Average that records the fused snapshots and the results."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.record: list[tuple[torch.Tensor, torch.Tensor, bool]] = []

    def begin(self, snapshot: torch.Tensor, finished: bool) -> None:
        self.snapshot, self.ended = snapshot.clone(), finished
        super().begin(snapshot, finished)

    def end(self) -> tuple[torch.Tensor, bool]:
        fused, final = super().end()
        self.record.append((self.snapshot, fused.clone(), self.ended))
        return fused, final


def test_average_is_the_mean_of_the_snapshots_of_those_that_learn() -> None:
    meeting, updates, start = Meeting(2), (3000, 2000), torch.full((SIZE,), 5.0)

    def rank(index: int) -> tuple[torch.Tensor, RecordedAverage]:
        vector = vector_of(start)
        fuser = RecordedAverage(Rounds(meeting.peers(index), ENCODINGS["float32"](SIZE)), start)
        fusion = BackgroundFusion(fuser, vector, interval=3)
        learn(fusion, vector, scripted(updates[index], index), np.random.default_rng(index))
        fusion.close()
        return vector.parameters, fuser

    (first, one), (second, other) = on_ranks(2, rank)
    assert len(one.record) == len(other.record) > 200
    ended: tuple[bool, bool] = False, False
    for (a, fused, ends), (b, also, too) in zip(one.record, other.record, strict=True):
        mean = (a + b) / 2 if not any(ended) else b if ended[0] else a
        assert torch.equal(fused, mean) and torch.equal(also, fused)
        ended = ends, too
    assert torch.equal(second, first)


def test_the_mean_is_over_the_groups_that_still_learn() -> None:
    """Hand-worked, of three groups: value 0 is learned, value 1 is a running statistic."""
    meeting = Meeting(3)
    changes = [[6.0, 0.0, 0.0], [3.0, 4.0, 0.0], [9.0, 2.0, 8.0]]  # of groups 0 to 2 in each of three rounds
    statistics, ends = [[1.0, 9.0, 9.0], [2.0, 5.0, 9.0], [3.0, 7.0, 8.0]], (0, 1, 2)

    def rank(index: int) -> list[list[float]]:
        rounds = Rounds(meeting.peers(index), ENCODINGS["float32"](2))
        fuser = AverageFuser(rounds, torch.zeros(2), deltas=Deltas(torch.tensor([1])))
        found = []
        for number in range(3):
            if number <= ends[index]:
                change, statistic = changes[index][number], statistics[index][number]
                snapshot = torch.tensor([float(fuser.anchor[0]) + change, statistic])
            else:
                snapshot = fuser.anchor.clone()
            fused, final = fuse(fuser, snapshot, finished=number >= ends[index])
            found.append([*fused.tolist(), final])
        return found

    for found in on_ranks(3, rank):
        assert found == [[6.0, 2.0, False], [6.0 + 3.0, 6.0, False], [9.0 + 8.0, 8.0, True]]


def test_where_numbers_are_exact_average_is_applied_at_fixed_updates() -> None:
    updates, interval = (60, 40), 4

    def run(delay: float) -> list[torch.Tensor]:
        meeting = Meeting(2)

        def rank(index: int) -> torch.Tensor:
            vector = vector_of(torch.ones(SIZE))
            fuser = AverageFuser(Rounds(meeting.peers(index), ENCODINGS["float32"](SIZE)), vector.parameters)
            fusion = BackgroundFusion(fuser, vector, interval, exact=True)
            rng = np.random.default_rng()  # the delays differ from run to run
            for _ in range(updates[index]):
                vector.begin_update()
                vector.parameters.mul_(0.9 + 0.05 * index)
                time.sleep(delay * rng.random() * (1 - index))
            fusion.finish()
            fusion.close()
            return vector.parameters

        found: list[torch.Tensor] = on_ranks(2, rank)
        return found

    (first, second), (again, also) = run(0.0), run(1e-3)
    assert torch.equal(first, second) and torch.equal(first, again) and torch.equal(first, also)


@pytest.mark.parametrize(("exact", "delay"), [(True, 0), (False, 0), (False, 16), (False, 40)])
def test_a_late_correction_does_not_keep_the_difference_alive(exact: bool, delay: int) -> None:
    """Two learners approach the same solution from both sides, nine tenths of the distance in 32 updates."""

    class Mean:
        now = begun = 0

        def begin(self, snapshot: torch.Tensor, finished: bool) -> None:
            self.begun = self.now

        def done(self) -> bool:
            return self.now >= self.begun + delay

        def end(self) -> tuple[torch.Tensor, bool]:
            return torch.zeros(SIZE), False  # the other learner's weights are the negative ones

    fuser, vector = Mean(), vector_of(torch.ones(SIZE))
    BackgroundFusion(fuser, vector, interval=32, exact=exact)  # type: ignore[arg-type]
    for fuser.now in range(400):
        vector.begin_update()
        vector.parameters.mul_(0.1 ** (1 / 32))
    assert vector.parameters.abs().max() < 1e-3


def test_an_outer_step_goes_on_with_its_velocity() -> None:
    meetings, start = (Meeting(2), Meeting(2)), torch.zeros(SIZE)
    snapshots = [torch.randn(2, SIZE, generator=torch.Generator().manual_seed(s)) for s in range(4)]
    outer: dict[str, Any] = {"learning_rate": 0.7, "momentum": 0.9}

    def rank(index: int) -> tuple[torch.Tensor, torch.Tensor]:
        rounds, again = (Rounds(one.peers(index), ENCODINGS["float32"](SIZE)) for one in meetings)
        fuser = AverageFuser(rounds, start, **outer)
        for both in snapshots[:2]:
            fuse(fuser, both[index])
        resumed = AverageFuser(again, fuser.anchor, velocity=fuser.velocity.numpy(), **outer)
        return tuple(
            [fuse(one, both[index])[0].clone() for both in snapshots[2:]][-1] for one in (fuser, resumed)
        )

    for whole, resumed in on_ranks(2, rank):
        assert torch.equal(whole, resumed)


def test_the_outer_step_is_nesterovs() -> None:
    meeting, start = Meeting(2), torch.zeros(SIZE)
    snapshots = [torch.randn(2, SIZE, generator=torch.Generator().manual_seed(s)) for s in range(5)]

    def rank(index: int) -> list[torch.Tensor]:
        rounds = Rounds(meeting.peers(index), ENCODINGS["float32"](SIZE))
        fuser = AverageFuser(rounds, start, learning_rate=0.7, momentum=0.9)
        return [fuse(fuser, both[index])[0].clone() for both in snapshots]

    found = on_ranks(2, rank)
    # As torch.optim.SGD defines it; the outer gradient is the anchor minus the mean of the weights.
    anchor, buffer = start.double(), start.double()
    for step, both in enumerate(snapshots):
        gradient = anchor - both.double().mean(dim=0)
        buffer = 0.9 * buffer + gradient
        anchor = anchor - 0.7 * (gradient + 0.9 * buffer)
        for own in found:
            assert torch.allclose(own[step].double(), anchor, atol=1e-6)


def test_moments_are_averaged_with_the_weights_and_second_ones_stay_above_zero() -> None:
    meeting, start, updates = Meeting(2), torch.full((SIZE,), 5.0), 12

    def rank(index: int) -> list[torch.Tensor]:
        vector = vector_of(start)
        first, second = torch.zeros(SIZE), torch.full((SIZE,), 16.0 * index)
        vector.moments = ((first, second),)
        parts = [part.clone() for part in fused_parts(vector, moments=True)]
        rounds = Rounds(meeting.peers(index), ENCODINGS["float32"](3 * SIZE))
        fuser = AverageFuser(rounds, torch.zeros(3 * SIZE), learning_rate=0.5, weights=SIZE)
        fusion = BackgroundFusion(fuser, vector, interval=4, exact=True, moments=True)
        assert [part.tolist() for part in fused_parts(vector, moments=True)] == [p.tolist() for p in parts]
        for update in range(updates):
            vector.begin_update()
            assert second.min() >= 0.0
            if update == 4:
                second.fill_(0.0)  # rank 1's snapshot has told of 16
            first.add_(2.0 * index)
        fusion.finish()
        fusion.close()
        return [vector.parameters, first, second]

    (weights, first, second), other = on_ranks(2, rank)
    assert all(torch.equal(a, b) for a, b in zip((weights, first, second), other, strict=True))
    assert torch.equal(first, torch.full((SIZE,), 1.0 * updates)), "the outer rate is for the weights alone"
    assert (weights < start).all() and (second >= 0.0).all()


def test_a_fusion_that_is_under_way_is_not_looked_at_in_every_update() -> None:
    class Slow:
        looks = 0

        def begin(self, snapshot: torch.Tensor, finished: bool) -> None:
            self.snapshot = snapshot

        def done(self) -> bool:
            self.looks += 1
            return self.looks > 20

        def end(self) -> tuple[torch.Tensor, bool]:
            return self.snapshot + 1.0, False

    fuser, vector = Slow(), vector_of(torch.zeros(SIZE))
    fusion = BackgroundFusion(fuser, vector, interval=32)  # type: ignore[arg-type]
    for _ in range(33 + 20 * 4):
        vector.begin_update()
    assert fusion.running and fuser.looks == 20
    for _ in range(4):
        vector.begin_update()
    assert fuser.looks == 21 and torch.equal(vector.parameters, torch.ones(SIZE))


@pytest.mark.parametrize("name", ["bfloat16", "int8", "topk"])
def test_short_messages_lead_to_the_same_weights_everywhere_and_near_the_mean(name: str) -> None:
    meeting, size = Meeting(2), 640
    targets = torch.randn(2, size, generator=torch.Generator().manual_seed(7))

    def rank(index: int) -> torch.Tensor:
        vector = vector_of(torch.zeros(size))
        fuser = AverageFuser(Rounds(meeting.peers(index), ENCODINGS[name](size)), vector.parameters)
        fusion = BackgroundFusion(fuser, vector, interval=2)
        for _ in range(500):  # gradient descent on a quadratic of its own: together they go to the mean
            vector.begin_update()
            vector.parameters.sub_(vector.parameters - targets[index], alpha=0.01)
            if fusion.running:
                wait_for(fusion)
        fusion.finish()
        fusion.close()
        return vector.parameters

    first, second = on_ranks(2, rank)
    assert torch.equal(first, second)
    apart = (targets[0] - targets[1]).abs().mean()
    assert (first - targets.mean(dim=0)).abs().mean() < 0.25 * apart
