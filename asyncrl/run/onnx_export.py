"""A policy as an ONNX model, which runs without asyncrl: from observations to the greedy action, scaling included.

The graph is written straight from the policy's layout and weights. (`torch.onnx.export` would need each policy a second
time as a module of torch, and onnxscript; a perceptron and its head are a dozen operators.)

    obs     [batch, *observation_shape]   in the environment's dtype; [batch, k, ...] with a frame stack of k
    action  [batch, *action_shape]        as the environment takes it: int64 choices, float32 within their bounds

Bytes are divided by 255, and normalised observations normalised, within the model.
"""

from __future__ import annotations

import importlib.util
import itertools
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.acting.box import BoxPolicy, DeterministicPolicy, SquashedGaussianPolicy
from asyncrl.acting.network import OBSERVATION_CLIP
from asyncrl.acting.policies import QPolicy, TrainedPolicy, float32_bounds
from asyncrl.acting.stochastic import ActorLayout, StochasticPolicy
from asyncrl.errors import ConfigurationError
from asyncrl.interfaces import BoxAction, DiscreteAction
from asyncrl.run.checkpoint_format import write_atomically
from asyncrl.version import __version__

OPSET = 17
"""Version of the operators: onnxruntime 1.12 of 2022 and all later ones have it."""
IR_VERSION = 8


class Graph:
    """The operators of one model, in order."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, value: Any, dtype: str = "float32") -> str:
        """The name of an array that the model holds."""
        from onnx import numpy_helper

        name = f"constant_{len(self.constants)}"
        self.constants.append(
            numpy_helper.from_array(np.ascontiguousarray(value, dtype).reshape(np.shape(value)), name)
        )
        return name

    def add(self, operator: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        """Append an operator; returns the name of its output."""
        from onnx import helper

        output = name or f"{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [output], **attributes))
        return output

    def reshape(self, value: str, *shape: int) -> str:
        """`value` in another shape; one size may be -1."""
        return self.add("Reshape", value, self.constant(shape, "int64"))

    def clip(self, value: str, low: Any, high: Any) -> str:
        """`value` cut to bounds that broadcast over it."""
        return self.add("Min", self.add("Max", value, self.constant(low)), self.constant(high))


def require_onnx() -> None:
    """Raise ConfigurationError where the package onnx is not installed."""
    if importlib.util.find_spec("onnx") is None:
        raise ConfigurationError(
            "a model needs the package onnx, which is not installed", fix='pip install "asyncrl[onnx]"'
        )


def export_onnx(policy: TrainedPolicy, path: Path, description: str, about: Mapping[str, str]) -> None:
    """Write the greedy policy as an ONNX model; an older file is replaced.

    Args:
        policy: what to write.
        path: the file.
        description: the model's documentation.
        about: texts by name, the model's metadata.

    Raises:
        ConfigurationError: onnx is not installed, or the policy has a network of its own.
        OSError: the file cannot be written.
    """
    require_onnx()
    model = onnx_model(policy)
    model.doc_string = description
    for key, value in about.items():
        model.metadata_props.add(key=key, value=value)
    write_atomically(path, [model.SerializeToString()])


def onnx_model(policy: TrainedPolicy) -> Any:
    """The greedy policy as an `onnx.ModelProto`, checked. Raises `ConfigurationError` unless it is a perceptron."""
    import onnx
    from onnx import helper

    head = _HEADS.get(type(policy.policy))
    if head is None or policy.policy.layout.network is not None:  # type: ignore[attr-defined]
        raise ConfigurationError(
            "the policy is a convolutional network or one of your own, and only perceptrons are exported",
            fix="call torch.onnx.export with the module; its parameters are `policy.weights`, in their order",
        )
    graph, spec, frames = Graph(), policy.spec, policy.policy.frame_stack
    seen = spec.observation_shape if frames == 1 else (frames, *spec.observation_shape)
    head(graph, policy, _layers(graph, policy))

    def info(name: str, dtype: str, shape: tuple[int, ...]) -> Any:
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        return helper.make_tensor_value_info(name, kind, ["batch", *shape])

    made = helper.make_graph(
        graph.nodes,
        "policy",
        [info("obs", spec.observation_dtype, seen)],
        [info("action", spec.action.dtype, spec.action.shape)],
        graph.constants,
    )
    model = helper.make_model(
        made,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="asyncrl",
        producer_version=__version__,
    )
    onnx.checker.check_model(model, full_check=True)
    return model


def _layers(graph: Graph, policy: TrainedPolicy) -> str:
    """Observations, scaled or normalised, through the perceptron; the name of the head's outputs."""
    layout: Any = policy.policy.layout  # type: ignore[attr-defined]
    weights = policy.weights
    x = graph.add("Flatten", "obs", axis=1)
    if policy.spec.observation_dtype != "float32":
        from onnx import TensorProto

        x = graph.add("Cast", x, to=TensorProto.FLOAT)
    if getattr(layout, "normalized", False):
        x = graph.add("Sub", x, graph.constant(weights[layout.obs_mean]))
        x = graph.add("Mul", x, graph.constant(weights[layout.obs_scale]))
        x = graph.clip(x, -OBSERVATION_CLIP, OBSERVATION_CLIP)
    elif policy.spec.observation_dtype == "uint8":
        x = graph.add("Mul", x, graph.constant(np.float32(1 / 255)))
    activation = "Tanh" if getattr(layout, "activation", "relu") == "tanh" else "Relu"
    start, last = 0, len(layout.sizes) - 2
    for i, (inputs, outputs) in enumerate(itertools.pairwise(layout.sizes)):
        stop = start + inputs * outputs
        shape = (outputs, inputs) if i == last else (inputs, outputs)  # see `acting.layouts`
        matrix = graph.constant(weights[start:stop].reshape(shape))
        bias = graph.constant(weights[stop : stop + outputs])
        x = graph.add("Gemm", x, matrix, bias, transB=int(i == last))
        x = x if i == last else graph.add(activation, x)
        start = stop + outputs
    return x


def _greedy_values(graph: Graph, policy: TrainedPolicy, out: str) -> None:
    """The best action value, of a dueling head or not, of atoms or not; see `QPolicy.q_values`."""
    layout = policy.policy.layout  # type: ignore[attr-defined]
    atoms, actions = layout.atoms, layout.num_actions
    if layout.dueling:
        sizes = graph.constant([atoms, actions * atoms], "int64")
        value, advantage = _split(graph, out, sizes, 2)
        value, advantage = graph.reshape(value, -1, 1, atoms), graph.reshape(advantage, -1, actions, atoms)
        mean = graph.add("ReduceMean", advantage, axes=[1], keepdims=1)
        out = graph.add("Sub", graph.add("Add", value, advantage), mean)
    else:
        out = graph.reshape(out, -1, actions, atoms)
    support: NDArray[np.float32] | None = policy.policy.support  # type: ignore[attr-defined]
    if support is None:
        q = graph.add("ReduceMean", out, axes=[2], keepdims=0)
    else:
        q = graph.add("MatMul", graph.add("Softmax", out, axis=2), graph.constant(support))
    _choice(graph, policy, graph.add("ArgMax", q, axis=1, keepdims=0))


def _split(graph: Graph, value: str, sizes: str, parts: int) -> list[str]:
    from onnx import helper

    names = [f"part_{len(graph.nodes)}_{i}" for i in range(parts)]
    graph.nodes.append(helper.make_node("Split", [value, sizes], names, axis=1))
    return names


def _choice(graph: Graph, policy: TrainedPolicy, index: str) -> None:
    action = policy.spec.action
    assert isinstance(action, DiscreteAction)
    graph.add("Add", index, graph.constant(action.start, "int64"), name="action")


def _squashed(graph: Graph, policy: TrainedPolicy, out: str) -> None:
    """Tanh of the first d outputs, scaled to the box; see `ActionBox.squash`."""
    action = policy.spec.action
    assert isinstance(action, BoxAction)
    values = math.prod(action.shape)
    ends = (graph.constant([end], "int64") for end in (0, values, 1))
    unit = graph.add("Tanh", graph.add("Slice", out, *ends))
    half = graph.constant(np.float32(0.5))
    share = graph.add("Mul", graph.add("Add", unit, graph.constant(np.float32(1))), half)
    low, high = np.array(action.low, np.float32), np.array(action.high, np.float32)
    rest = graph.add("Sub", graph.constant(np.float32(1)), share)
    scaled = graph.add(
        "Add", graph.add("Mul", rest, graph.constant(low)), graph.add("Mul", share, graph.constant(high))
    )
    _box(graph, policy, graph.clip(scaled, low, high))


def _box(graph: Graph, policy: TrainedPolicy, values: str) -> None:
    action = policy.spec.action
    assert isinstance(action, BoxAction)
    low, high = float32_bounds(action)
    clipped = graph.clip(graph.reshape(values, -1, *action.shape), low, high)
    graph.add("Identity", clipped, name="action")


def _likeliest(graph: Graph, policy: TrainedPolicy, out: str) -> None:
    """The likeliest choices, or the mean of a Gaussian; see `StochasticPolicy.greedy`."""
    layout: ActorLayout = policy.policy.layout  # type: ignore[attr-defined]
    if layout.squashed:
        _squashed(graph, policy, out)
    elif layout.gaussian:
        _box(graph, policy, out)
    else:
        parts = [out]
        if len(layout.choices) > 1:
            parts = _split(graph, out, graph.constant(layout.choices, "int64"), len(layout.choices))
        best = [graph.add("ArgMax", part, axis=1, keepdims=1) for part in parts]
        if isinstance(policy.spec.action, DiscreteAction):
            _choice(graph, policy, graph.reshape(best[0], -1))
        else:
            graph.add("Concat", *best, name="action", axis=1)


_HEADS: dict[type[Any], Callable[[Graph, Any, str], None]] = {
    QPolicy: _greedy_values,
    BoxPolicy: _squashed,
    DeterministicPolicy: _squashed,
    SquashedGaussianPolicy: _squashed,
    StochasticPolicy: _likeliest,
}
