"""Fusion by `async`, with scripted deltas and random delays, against slow references."""

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
from group_rig import SIZE, Meeting, all_joined, fuse, on_ranks, scripted, vector_of, wait_for
from waiting import PATIENCE_SECONDS, wait_until

from asyncrl.groups import async_fusion
from asyncrl.groups.async_fusion import AsyncClient, AsyncServer, FusedWeights
from asyncrl.groups.messages import ENCODINGS
from asyncrl.groups.peers import Peers
from asyncrl.groups.shared_statistics import SharedStatistics
from asyncrl.groups.weight_fusion import BackgroundFusion

NOTHING = SharedStatistics(())


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

    def connect(rank: int) -> Peers:
        return meeting.pair(rank, 0)

    def rank(index: int) -> torch.Tensor:
        fuser: AsyncServer | AsyncClient
        if index == 0:
            groups = range(1, meeting.ranks)
            fuser = all_joined(AsyncServer(weights, encoding, groups, connect, NOTHING), len(groups))
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

    def connect(rank: int) -> Peers:
        raise error

    weights = Dyadic(torch.zeros(SIZE), 8)
    server = AsyncServer(weights, ENCODINGS["float32"](SIZE), [1], connect, NOTHING)
    wait_until(lambda: server.lost == {1: str(error) or type(error).__name__}, "a try")
    server.begin(torch.ones(SIZE), finished=True)
    assert server.end()[1]
    server.close()


def test_a_group_that_has_not_come_yet_holds_up_the_end_of_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """It still builds its environments when the others have made all steps, and has learned nothing."""
    monkeypatch.setattr(async_fusion, "FINISH_SECONDS", 600.0)  # longer than the test may take
    weights = Dyadic(torch.zeros(SIZE), 8)
    server = AsyncServer(weights, ENCODINGS["float32"](SIZE), [1, 2], lambda rank: None, NOTHING)
    server.begin(torch.ones(SIZE), finished=True)
    ending = threading.Thread(target=server.end)
    ending.start()
    ending.join(PATIENCE_SECONDS)
    ended = not ending.is_alive()
    server.close()
    ending.join()
    assert ended and len(weights.record) == 1


def test_a_group_that_is_lost_holds_up_nobody_and_may_come_back() -> None:
    meeting, encoding = Meeting(2), ENCODINGS["float32"](SIZE)
    weights = Dyadic(torch.zeros(SIZE), 8)
    came_back, lives = threading.Event(), list[int]()

    def connect(rank: int) -> Peers | None:
        if lives and not came_back.is_set():
            return None
        lives.append(len(lives))
        return meeting.pair(rank, 0, lives[-1])

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
