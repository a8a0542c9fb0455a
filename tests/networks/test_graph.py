"""Updates as a CUDA graph, which a recording of their tensor operations stands for on the CPU.

Like a graph, the recording repeats its operations on the same memory: it does not see a tensor that replaced another
one, nor a number that was read on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from labelled_device import LabelledDevice
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from asyncrl import C51, DQN, QRDQN, Rainbow
from asyncrl.interfaces import Batch, DiscreteAction, EnvSpec, Leaf
from asyncrl.networks import graph
from asyncrl.networks.graph import GraphedFunction, Graphs
from asyncrl.networks.hidden_layer import HiddenLayer

IMAGES = EnvSpec("images", (21, 21), "uint8", DiscreteAction(3))
MASKED = EnvSpec(
    "masked",
    (7,),
    "float32",
    DiscreteAction(3),
    leaves=(Leaf(("action_mask",), "values", (3,)), Leaf(("x",), "values", (4,))),
)


class Recording(TorchDispatchMode):
    """Tensor operations of a `with` block, and their repetition."""

    def __init__(self) -> None:
        super().__init__()
        self._operations: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func is not torch.ops.aten._local_scalar_dense.default, "a number was read on the host"
        out = func(*args, **(kwargs or {}))
        self._operations.append((func, args, kwargs or {}, out))
        return out

    @torch.no_grad()
    def replay(self) -> None:
        for func, args, kwargs, out in self._operations:
            again = func(*args, **kwargs)
            for old, new in zip(tree_leaves(out), tree_leaves(again), strict=True):
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


class Recorded:
    """`GraphedFunction` with a recording in place of the graph."""

    def __init__(self, function: Callable[[], None], device: torch.device, stream: Any) -> None:
        self._function, self._calls, self._recording = function, 0, Recording()

    def __call__(self) -> None:
        self._calls += 1
        if self._calls == 3:
            with self._recording:
                self._function()
        elif self._calls < 3:
            self._function()
        else:
            self._recording.replay()


@pytest.fixture(autouse=True)
def operations_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """No compiled kernels and no products of NumPy in perceptrons, which a recording does not see."""
    monkeypatch.setattr("asyncrl.networks.mlp.uses_numpy", lambda device, asked: False)
    plain = HiddenLayer.__init__
    monkeypatch.setattr(
        HiddenLayer, "__init__", lambda self, y, bias, kind, _: plain(self, y, bias, kind, False)
    )
    monkeypatch.setattr(graph, "GraphedFunction", Recorded)


def batches(algorithm: Any, spec: EnvSpec, count: int) -> Iterator[Batch]:
    rng = np.random.default_rng(0)
    for _ in range(count):
        batch = Batch.allocate(8, algorithm.stacked_spec(spec))
        for obs in (batch.obs, batch.next_obs):
            obs[:] = rng.integers(0, 2 if spec is MASKED else 256, obs.shape)
        batch.action[:] = rng.integers(0, 3, 8)
        batch.reward[:], batch.discount[:], batch.weight[:] = rng.normal(size=8), 0.9, rng.random(8)
        yield batch


def updated(algorithm: Any, spec: EnvSpec) -> tuple[np.ndarray, list[np.ndarray], Any]:
    """Weights, priorities and metrics of eight updates on different batches."""
    core = algorithm.make_updater(spec, "cpu", 0)
    core.kernels = False
    priorities = [core.update(batch).priorities.copy() for batch in batches(algorithm, spec, 8)]
    weights = np.empty(core.weight_count, np.float32)
    core.write_weights(weights)
    return weights, priorities, core.metrics()


@pytest.mark.parametrize("spec", [IMAGES, MASKED], ids=lambda spec: spec.name)
@pytest.mark.parametrize(
    ("record", "options"),
    [
        (DQN, {"dueling": True}),
        (DQN, {"normalize_observations": True, "target_update": "hard", "target_update_interval": 3}),
        (DQN, {"learning_rate": lambda progress: 1e-3 * (1 - progress), "max_grad_norm": 0.1}),
        (C51, {}),
        (QRDQN, {"double": False}),
        (Rainbow, {"frame_stack": 2}),
    ],
)
def test_a_graph_gives_the_numbers_of_single_operations(record: Any, options: Any, spec: EnvSpec) -> None:
    options = {"hidden_sizes": (16, 16), "prioritized": True, **options}
    weights, priorities, metrics = updated(record(**options), spec)
    graphed, graphed_priorities, graphed_metrics = updated(record(**options, cuda_graph=True), spec)
    assert np.array_equal(graphed, weights)
    assert all(map(np.array_equal, graphed_priorities, priorities))
    assert graphed_metrics == metrics


def test_warm_up_and_capture_are_on_one_stream(labelled_device: LabelledDevice) -> None:
    """Else the gradients of a module are accumulated on the stream of its first call, which is not captured."""
    streams: list[Any] = []
    function = GraphedFunction(lambda: streams.append(torch.cuda.current_stream()), torch.device("cuda"))
    for _ in range(6):
        function()
    assert len(streams) == 4 and len({id(stream) for stream in streams}) == 1
    assert streams[0] is not torch.cuda.current_stream()


def test_graphs_of_one_owner_share_a_stream(
    labelled_device: LabelledDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parameters that two graphs train accumulate their gradients on the stream of the first one."""
    monkeypatch.setattr(graph, "GraphedFunction", GraphedFunction)
    streams: list[Any] = []
    graphs = Graphs(torch.device("cuda"))
    for number in range(8):
        graphs.run(number % 2, lambda: streams.append(torch.cuda.current_stream()))
    assert len(streams) == 8 and len({id(stream) for stream in streams}) == 1


def test_a_graph_computes_after_what_came_before_it_on_the_callers_stream(
    labelled_device: LabelledDevice,
) -> None:
    x, total = torch.zeros(3, device="cuda"), torch.zeros(3, device="cuda")
    function = GraphedFunction(lambda: total.add_(x), torch.device("cuda"))
    for number in range(6):
        x.fill_(float(number))
        function()
    assert total.tolist() == [15.0] * 3
