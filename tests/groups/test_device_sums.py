"""Sums by a process group for the ranks' devices, over gloo on the CPU, and by NCCL where there are two GPUs."""

from __future__ import annotations

import logging
import threading
from datetime import timedelta
from typing import Any

import pytest
import torch
from group_rig import Meeting, on_ranks, vector_of

from asyncrl.groups.device_sums import DeviceSums, Sums, device_sums, gpu_name, nccl_group
from asyncrl.groups.gradient_fusion import GradientFusion
from asyncrl.groups.messages import ENCODINGS
from asyncrl.groups.peers import PeerLost, dist, first_line
from asyncrl.groups.rounds import Rounds

CPU, SIZE, RANKS = torch.device("cpu"), 1_001, 3


def gloo_group(store: Any, rank: int, size: int) -> Any:
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    options._timeout = timedelta(seconds=1)  # of its constructor, which waits for all ranks
    options._threads = 1
    return dist.ProcessGroupGloo(store, rank, size, options)


def test_rounds_on_a_device_are_those_of_the_host() -> None:
    meeting = Meeting(RANKS)
    given = torch.randn((200, RANKS, SIZE), generator=torch.Generator().manual_seed(0))

    def rank(index: int) -> list[list[torch.Tensor]]:
        peers = meeting.peers(index)
        sums = device_sums(peers, meeting.store, CPU, name_of=lambda device: f"gpu {index}", make=gloo_group)
        assert isinstance(sums, DeviceSums)
        both = []
        for chosen in (None, sums):
            rounds, found = Rounds(peers, ENCODINGS["float32"](SIZE), tail=1, sums=chosen), []
            sent = peers.sent_bytes
            for step in range(200):
                absent = step % 5 == index
                vector = None if absent else given[step, index]
                round_ = rounds.exchange(
                    vector, 1.0 + index, finished=step == 199, ends=step % 7 == index, tail=(10.0 * index,)
                )
                assert round_.ends == (step % 7 < RANKS) and round_.finished == (step == 199)
                assert round_.table[:, 0].tolist() == [(1.0 + k) * (step % 5 != k) for k in range(RANKS)]
                assert round_.tails.flatten().tolist() == [0.0, 10.0, 20.0]
                found.append(round_.mean(torch.empty(SIZE)).clone())
            assert peers.sent_bytes - sent == 200 * (2 * 4 * (SIZE + RANKS * 5) * (RANKS - 1) // RANKS)
            both.append(found)
        return both

    for host, device in on_ranks(RANKS, rank):
        assert all(torch.equal(one, other) for one, other in zip(host, device, strict=True))


def test_lossy_encodings_are_summed_on_the_host() -> None:
    meeting = Meeting(2)

    def rank(index: int) -> torch.Tensor:
        peers = meeting.peers(index)
        sums = device_sums(peers, meeting.store, CPU, name_of=lambda device: f"gpu {index}", make=gloo_group)
        rounds = Rounds(peers, ENCODINGS["bfloat16"](SIZE), sums=sums)
        return rounds.exchange(torch.full((SIZE,), float(index))).mean(torch.empty(SIZE))

    assert all(torch.equal(found, torch.full((SIZE,), 0.5)) for found in on_ranks(2, rank))


@pytest.mark.parametrize("names", [("", ""), ("gpu 0", ""), ("gpu 0", "gpu 0")])
def test_without_a_gpu_of_its_own_for_every_rank_gloo_is_used(names: tuple[str, str]) -> None:
    meeting = Meeting(2)

    def rank(index: int) -> bool:
        def make(*_: Any) -> Any:
            raise AssertionError("no group is made")

        peers = meeting.peers(index)
        sums = device_sums(peers, meeting.store, CPU, name_of=lambda device: names[index], make=make)
        return sums is peers

    assert on_ranks(2, rank) == [True, True]


def raises(store: Any, rank: int, size: int) -> Any:
    raise ValueError("no driver")


class Group:
    """A process group of two ranks whose sums of ones end with `total`, or never if it is None."""

    def __init__(self, total: float | None) -> None:
        self.total, self.aborted = total, False

    def allreduce(self, tensors: list[torch.Tensor]) -> Any:
        if self.total is not None:
            tensors[0].fill_(self.total)
        return self

    def is_completed(self) -> bool:
        return self.total is not None or self.aborted

    def wait(self) -> None: ...

    def abort(self) -> None:
        self.aborted = True


class Blocked(Group):
    """A process group whose first sum does not return, as NCCL's where a rank does not come."""

    def allreduce(self, tensors: list[torch.Tensor]) -> Any:
        threading.Event().wait(2.5)
        return self


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (raises, "rank 1: ValueError: no driver"),
        (lambda *_: Group(None), "rank 1: PeerLost: no answer"),
        (lambda *_: Group(1.0), "rank 1: the sum of 2 ones is 1"),
        (lambda *_: Blocked(2.0), "rank 1: no answer"),
    ],
)
def test_a_failure_on_one_rank_makes_all_use_gloo(
    make: Any, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    meeting = Meeting(2)

    def rank(index: int) -> bool:
        peers = meeting.peers(index)
        sums = device_sums(
            peers,
            meeting.store,
            CPU,
            name_of=lambda device: f"gpu {index}",
            make=make if index else lambda *_: Group(2.0),
            seconds=0.5,
        )
        total = torch.ones(3)
        sums.wait(sums.begin_sum(total))
        assert total.tolist() == [2.0] * 3
        return sums is peers

    with caplog.at_level(logging.WARNING, "asyncrl.groups"):
        assert on_ranks(2, rank) == [True, True]
    assert caplog.messages == [f"gloo sums the gradients, because NCCL failed: {text}"] * 2


def test_a_wait_ends_when_the_connection_is_closed() -> None:
    meeting = Meeting(2)

    def rank(index: int) -> str:
        peers = meeting.peers(index)
        group = Group(None)
        sums = DeviceSums(peers, group, CPU)
        work = sums.begin_sum(torch.ones(1))
        peers.close()
        with pytest.raises(PeerLost, match="closed here"):
            sums.wait(work)
        assert group.aborted
        return "ended"

    assert on_ranks(2, rank) == ["ended"] * 2


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("[a.cpp:12] Timed out. This is typically a network problem.\nmore", "Timed out"),
        (
            "NCCL error in: b.cpp:3, unhandled cuda error\nmore",
            "NCCL error in: b.cpp:3, unhandled cuda error",
        ),
    ],
)
def test_an_error_of_torch_is_told_in_a_line(text: str, shown: str) -> None:
    assert first_line(RuntimeError(text)) == shown


def test_without_a_gpu_no_rank_has_a_name() -> None:
    assert gpu_name(CPU) == ""


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_gradients_are_summed_by_nccl() -> None:
    meeting = Meeting(2)
    given = torch.randint(-60, 61, (100, 2, SIZE), generator=torch.Generator().manual_seed(3)).float()

    def rank(index: int) -> torch.Tensor:
        device = torch.device("cuda", index)
        torch.cuda.set_device(device)
        peers = meeting.peers(index)
        sums: Sums = device_sums(peers, meeting.store, device, make=nccl_group)
        assert isinstance(sums, DeviceSums), "NCCL did not work"

        class Core:
            vector = vector_of(torch.zeros(SIZE, device=device))

        core: Any = Core()
        GradientFusion(core, peers, ENCODINGS["float32"](SIZE), sums=sums)
        for step in range(100):
            core.vector.gradient.copy_(given[step, index])
            core.vector.begin_step()
            core.vector.parameters.sub_(core.vector.gradient)
        return core.vector.parameters.cpu()

    for found in on_ranks(2, rank):
        assert torch.equal(found, -given.mean(dim=1).sum(dim=0))
