"""Fusion of weights, `average` and `async`, with scripted deltas and random delays, against slow references."""

from __future__ import annotations

import threading
import time
from concurrent.futures import CancelledError
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from group_rig import Meeting, on_ranks, vector_of
from waiting import PATIENCE_SECONDS

from asyncrl.groups import async_fusion
from asyncrl.groups.async_fusion import AsyncClient, AsyncServer, FusedWeights
from asyncrl.groups.messages import ENCODINGS
from asyncrl.groups.peers import Peers
from asyncrl.groups.rounds import Rounds
from asyncrl.groups.shared_statistics import SharedStatistics
from asyncrl.groups.weight_fusion import AverageFuser, BackgroundFusion, fused_parts

SIZE = 11
NOTHING = SharedStatistics(())


def scripted(updates: int, seed: int) -> torch.Tensor:
    return torch.randint(-4, 5, (updates, SIZE), generator=torch.Generator().manual_seed(seed)).float()


def wait_for(fusion: BackgroundFusion) -> None:
    """Wait for the end of the running fusion."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not fusion._fuser.done() and time.monotonic() < deadline:
        time.sleep(1e-5)


def fuse(fuser: Any, snapshot: torch.Tensor, finished: bool = False) -> tuple[torch.Tensor, bool]:
    fuser.begin(snapshot, finished)
    fused, final = fuser.end()
    return fused, final


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
        self.record: list[tuple[torch.Tensor, torch.Tensor]] = []

    def begin(self, snapshot: torch.Tensor, finished: bool) -> None:
        self.snapshot = snapshot.clone()
        super().begin(snapshot, finished)

    def end(self) -> tuple[torch.Tensor, bool]:
        fused, final = super().end()
        self.record.append((self.snapshot, fused.clone()))
        return fused, final


def test_average_is_the_mean_of_the_snapshots_and_loses_nothing() -> None:
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
    for (a, fused), (b, also) in zip(one.record, other.record, strict=True):
        assert torch.equal(fused, (a + b) / 2) and torch.equal(also, fused)
    total = sum(scripted(updates[i], i).sum(dim=0) for i in range(2))
    assert torch.equal(first, start + total / 2) and torch.equal(second, first)


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


class Dyadic(FusedWeights):
    """Fusion with weights that are powers of two, so that every sum is exact; records the deltas taken."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.record: list[tuple[torch.Tensor, int, torch.Tensor, int, int]] = []

    def weight(self, staleness: int) -> float:
        return 2.0**-staleness

    def take(self, delta: torch.Tensor, base: int, out: torch.Tensor) -> tuple[int, int]:
        with self._recording:
            version, staleness = super().take(delta, base, out)
            self.record.append((delta.clone(), base, out.clone(), version, staleness))
            return version, staleness

    _recording = threading.Lock()


def check_against_definition(weights: Dyadic, start: torch.Tensor, max_staleness: int) -> None:
    exact = [Fraction(v) for v in start.tolist()]
    version = 0
    for delta, base, out, at, staleness in weights.record:
        assert staleness == version - base
        if staleness <= max_staleness:
            exact = [f + Fraction(d) / 2**staleness for f, d in zip(exact, delta.tolist(), strict=True)]
            version += 1
        assert at == version
        assert [Fraction(v) for v in out.tolist()] == exact
    assert weights.version == version


def run_async(
    meeting: Meeting, weights: FusedWeights, updates: list[int], *, interval: int = 1, delay: float = 0.0
) -> list[torch.Tensor]:
    encoding = ENCODINGS["float32"](SIZE)

    def connect(rank: int, life: int) -> Peers | None:
        return meeting.pair(rank, 0, life) if life == 0 else None

    def rank(index: int) -> torch.Tensor:
        fuser: AsyncServer | AsyncClient
        if index == 0:
            fuser = AsyncServer(weights, encoding, range(1, meeting.ranks), connect, NOTHING)
            vector = vector_of(torch.zeros(SIZE))
        else:
            fuser = AsyncClient(meeting.pair(index, 1), encoding, NOTHING)
            vector = vector_of(fuser.base)
        fusion = BackgroundFusion(fuser, vector, interval)
        rng = np.random.default_rng(index)
        for delta in scripted(updates[index], index):
            vector.begin_update()
            vector.parameters.add_(delta)
            if rng.random() < (0.3 if index else 0.1) and fusion.running:
                wait_for(fusion)  # else all the updates would be made within a few fusions
            if index and rng.random() < 0.05:
                time.sleep(delay * rng.random())
        fusion.finish()
        fusion.close()
        return vector.parameters

    return on_ranks(meeting.ranks, rank)


def test_async_fuses_every_delta_once_with_the_weight_of_its_staleness() -> None:
    start, updates = torch.zeros(SIZE), [3000, 2000, 2000]
    weights = Dyadic(start, 6)
    found = run_async(Meeting(3), weights, updates, delay=1e-3)
    assert len(weights.record) > 500
    check_against_definition(weights, start, 6)
    taken = sum(delta.sum() for delta, *_ in weights.record)
    given = sum(scripted(count, index).sum() for index, count in enumerate(updates))
    assert weights.discarded == 0 or taken != 0
    # A delta that is too stale is dropped with what it holds, so deltas add up to what was learned, fused or not.
    assert taken == given
    assert torch.equal(found[0], weights.record[-1][2])


def test_a_delta_counts_by_the_formula_of_xie_and_too_stale_ones_do_not() -> None:
    weights, out = FusedWeights(torch.zeros(2), max_staleness=3), torch.empty(2)
    expected = 0.0
    for staleness in (0, 1, 2, 3, 4):
        while weights.version < staleness:
            weights.take(torch.zeros(2), weights.version, out)
        before = weights.version
        version, found = weights.take(torch.tensor([8.0, -8.0]), before - staleness, out)
        assert found == staleness
        expected += 8.0 * (1 + staleness) ** -0.5 if staleness <= 3 else 0.0
        assert out.tolist() == pytest.approx([expected, -expected])
        assert version == before + (staleness <= 3)
    assert weights.discarded == 1


def test_ten_thousand_scripted_deltas_equal_the_twin() -> None:
    rng, weights, out = np.random.default_rng(5), Dyadic(torch.zeros(SIZE), 4), torch.empty(SIZE)
    bases = [0] * 5  # of groups that come in any order, some of them rarely
    for delta in scripted(10_000, 9):
        group = int(rng.choice(5, p=[0.5, 0.3, 0.15, 0.04, 0.01]))
        bases[group], _ = weights.take(delta, bases[group], out)
    assert weights.discarded > 100
    check_against_definition(weights, torch.zeros(SIZE), 4)


@pytest.mark.parametrize("error", [dist.DistStoreError("no answer"), CancelledError(), TimeoutError()])
def test_a_store_or_learner_that_does_not_answer_holds_up_the_end_of_nobody(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(async_fusion, "FINISH_SECONDS", 600.0)  # longer than the test may take
    tried = threading.Event()

    def connect(rank: int, life: int) -> Peers | None:
        tried.set()
        raise error

    weights = Dyadic(torch.zeros(SIZE), 8)
    server = AsyncServer(weights, ENCODINGS["float32"](SIZE), [1], connect, NOTHING)
    assert tried.wait(PATIENCE_SECONDS)
    server.begin(torch.ones(SIZE), finished=True)
    assert server.end()[1]
    assert server.lost == {1: str(error) or type(error).__name__}
    server.close()


def test_a_group_that_is_lost_holds_up_nobody_and_may_come_back() -> None:
    meeting, encoding = Meeting(2), ENCODINGS["float32"](SIZE)
    weights = Dyadic(torch.zeros(SIZE), 8)
    came_back = threading.Event()

    def connect(rank: int, life: int) -> Peers | None:
        if life == 0 or came_back.is_set():
            return meeting.pair(rank, 0, life)
        return None

    def rank(index: int) -> None:
        if index == 1:
            for life in range(2):
                client = AsyncClient(meeting.pair(1, 1, life), encoding, NOTHING)
                fuse(client, client.base + 16.0, finished=life == 1)
                if life == 0:
                    del client  # closes its sockets, as a killed process does
                    came_back.set()
            return
        server = AsyncServer(weights, encoding, [1], connect, NOTHING)
        vector = vector_of(torch.zeros(SIZE))
        fusion = BackgroundFusion(server, vector, 1)
        while 1 not in server._finished:
            vector.begin_update()
            vector.parameters.add_(1.0)
            time.sleep(1e-4)
        fusion.finish()
        fusion.close()
        assert server.lost == {}

    on_ranks(2, rank)
    check_against_definition(weights, torch.zeros(SIZE), 8)
    assert sum(bool((delta == 16.0).all()) for delta, *_ in weights.record) == 2
