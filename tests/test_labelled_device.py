"""The labelled GPU itself: planted mistakes are seen, and what torch allows is not."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from labelled_device import CaptureFailed, LabelledDevice, LaunchFailed, StreamRace, WrongDevice
from torch import Tensor, nn

DEVICE = torch.device("cuda:0")

MIXED: dict[str, Callable[[Tensor], Any]] = {
    "a vector of the host": lambda x: x + torch.ones(4),
    "a scalar of the host as the result": lambda x: torch.zeros(()).add_(x.sum()),
    "an index of the host": lambda x: x.index_select(0, torch.tensor([0])),
    "a gather by an index of the host": lambda x: x.gather(1, torch.zeros(3, 1, dtype=torch.int64)),
    "a module that was left on the host": nn.Linear(4, 2),
    "rows of two devices": lambda x: torch.cat((x, torch.ones(1, 4))),
    "another GPU": lambda x: x + torch.ones(4, device="cuda:1"),
    "a generator of the host": lambda x: x.normal_(generator=torch.Generator()),
    "a forgotten cpu()": lambda x: x.numpy(),
    "an array of it": np.asarray,
    "a view of it": lambda x: x[0].detach().numpy(),
    "lengths on the device": lambda x: torch._pack_padded_sequence(
        x[:, None], torch.ones(1, dtype=torch.int64, device="cuda"), False
    ),
}


@pytest.mark.parametrize("mistake", MIXED)
def test_what_a_gpu_refuses_is_refused(mistake: str, labelled_device: LabelledDevice) -> None:
    x = torch.ones(3, 4, device="cuda")
    with pytest.raises(WrongDevice):
        MIXED[mistake](x)


def test_a_mistake_in_a_backward_pass_is_seen(labelled_device: LabelledDevice) -> None:
    class Planted(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad * torch.full((4,), 2.0)

    x = torch.ones(3, 4, device="cuda", requires_grad=True)
    with pytest.raises(WrongDevice, match=r"aten::mul got tensors of cpu and cuda:0"):
        Planted.apply(x).sum().backward()


def test_what_torch_allows_is_allowed_and_keeps_its_device(labelled_device: LabelledDevice) -> None:
    x = torch.ones(3, 4, device="cuda")
    made = [x * 2, x + torch.tensor(1.0), x[0], x.T, torch.zeros_like(x), x.new_zeros(2), x.clone(), x.cuda()]
    made += [torch.empty(2).to("cuda"), nn.Linear(4, 2).to("cuda")(x), torch.where(x > 0, x, 0.0), x.double()]
    assert {tensor.device for tensor in made} == {DEVICE}
    assert all(tensor.is_cuda for tensor in made)
    on_host = [
        torch.zeros(2),
        x.cpu(),
        x.to("cpu"),
        torch.zeros_like(x, device="cpu"),
        x.new_zeros(2, device="cpu"),
    ]
    assert {tensor.device.type for tensor in on_host} == {"cpu"}
    assert x.cpu().numpy().sum() == 12
    torch.cuda.set_device(1)
    assert torch.ones(2, device="cuda").device == torch.device("cuda:1")


WAITS: dict[str, Callable[[Tensor], Any]] = {
    "item": lambda x: x.sum().item(),
    "float": lambda x: float(x[0, 0]),
    "branch": lambda x: 1 if x.sum() > 0 else 0,
    "cpu": lambda x: x.cpu(),
    "list": lambda x: x.tolist(),
    "mask": lambda x: x[x > 0],
    "index of the host": lambda x: x[torch.tensor([0])],
    "nonzero": lambda x: x.nonzero(),
    "upload of pageable memory": lambda x: x.copy_(torch.zeros(3, 4), non_blocking=True),
    "upload that blocks": lambda x: x.copy_(torch.zeros(3, 4, pin_memory=True)),
    "upload of a number": lambda x: torch.tensor(1.0, device="cuda"),
    "download": lambda x: torch.zeros(3, 4, pin_memory=True).copy_(x),
    "synchronize": lambda x: torch.cuda.synchronize(),
}


@pytest.mark.parametrize("wait", WAITS)
def test_waits_of_the_host_are_listed(wait: str, labelled_device: LabelledDevice) -> None:
    x = torch.ones(3, 4, device="cuda")
    (listed,) = labelled_device.waits_of(lambda: WAITS[wait](x))
    assert "test_labelled_device.py" in listed


def test_launches_and_copies_from_pinned_memory_are_no_waits(labelled_device: LabelledDevice) -> None:
    x, pinned = torch.ones(3, 4, device="cuda"), torch.zeros(3, 4, pin_memory=True)

    def launch() -> None:
        x.copy_(pinned, non_blocking=True)
        x.mul_(2.0).add_(torch.zeros((), device="cuda"))
        x.fill_(1.0).normal_()
        nn.Linear(4, 2, device="cuda")(x).sum().backward()

    assert labelled_device.waits_of(launch) == []


def test_accesses_from_two_streams_need_an_event(labelled_device: LabelledDevice) -> None:
    x, side = torch.ones(4, device="cuda"), torch.cuda.Stream()
    with torch.cuda.stream(side), pytest.raises(StreamRace, match="may still write"):
        x.sum()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x.sum()
    with pytest.raises(StreamRace, match="may still read"):
        x.zero_()
    event = torch.cuda.Event()
    event.record(side)
    event.synchronize()
    x.zero_()


def test_memory_of_the_host_must_not_change_under_a_copy(labelled_device: LabelledDevice) -> None:
    x, pinned, event = torch.ones(4, device="cuda"), torch.zeros(4, pin_memory=True), torch.cuda.Event()
    x.copy_(pinned, non_blocking=True)
    event.record()
    event.synchronize()
    pinned.numpy()[0] = 3.0
    x.copy_(pinned, non_blocking=True)
    pinned.numpy()[0] = 4.0
    event.record()
    with pytest.raises(
        StreamRace, match=r"overwritten while a copy read it, begun at test_labelled_device\.py"
    ):
        event.synchronize()


def test_a_copy_to_the_host_must_be_waited_for(labelled_device: LabelledDevice) -> None:
    x, pinned = torch.ones(4, device="cuda"), torch.zeros(4, pin_memory=True)
    with pytest.raises(WrongDevice, match="that nobody waits for"):
        pinned.copy_(x, non_blocking=True)


def test_threads_share_it(labelled_device: LabelledDevice) -> None:
    failures: list[BaseException] = []

    def make() -> None:
        try:
            for _ in range(3000):
                torch.ones(1).to("cuda").add_(1)
        except BaseException as error:
            failures.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=make) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert not failures


def captured(function: Callable[[], Any]) -> Any:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return graph


def test_a_graph_repeats_its_operations_on_the_same_memory(labelled_device: LabelledDevice) -> None:
    x, total = torch.ones(4, device="cuda"), torch.zeros((), device="cuda")
    made: list[Tensor] = []
    graph = captured(lambda: made.append(total.add_(x.sum()).mul(2)))
    assert float(total) == 0, "a capture computes nothing"
    for expected in (4, 8):
        graph.replay()
        assert (float(total), float(made[0])) == (expected, 2 * expected)
    x.fill_(2.0)
    graph.replay()
    assert float(total) == 16


def test_a_graph_keeps_a_number_of_the_host(labelled_device: LabelledDevice) -> None:
    x, rate = torch.zeros((), device="cuda"), [1.0]
    graph = captured(lambda: x.add_(rate[0]))
    rate[0] = 5.0
    graph.replay()
    assert float(x) == 1.0


@pytest.mark.parametrize("wait", sorted(WAITS))
def test_a_wait_in_a_capture_is_an_error(wait: str, labelled_device: LabelledDevice) -> None:
    x = torch.ones(3, 4, device="cuda")
    with pytest.raises(CaptureFailed):
        captured(lambda: WAITS[wait](x))


def test_an_error_of_the_runtime_stays_for_the_next_launch(labelled_device: LabelledDevice) -> None:
    labelled_device.refuses_pinning = 0
    assert torch.cuda.cudart().cudaHostRegister(4096, 4096, 0) != 0  # type: ignore[no-untyped-call]
    with pytest.raises(LaunchFailed, match="operation not supported"):
        torch.ones(1, device="cuda")
    torch.ones(1, device="cuda")
