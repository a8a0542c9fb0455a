"""Policy networks as ONNX graphs: perceptrons, named convolutional networks, and both in front of a GRU or LSTM."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from asyncrl.acting.convolution_layers import (
    PLAIN,
    SECTIONS,
    WIDTHS,
    Convolution,
    feature_shape,
    section_layer,
)
from asyncrl.acting.images import ConvolutionalNetwork
from asyncrl.acting.layouts import ParameterReader
from asyncrl.acting.network import OBSERVATION_CLIP
from asyncrl.acting.trained_policy import TrainedPolicy


class Graph:
    """Builder of an ONNX graph: the operators and constants of one model, in order."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, value: Any, dtype: str = "float32") -> str:
        """Add a constant array to the model and return its name."""
        from onnx import numpy_helper

        name = f"constant_{len(self.constants)}"
        self.constants.append(
            numpy_helper.from_array(np.ascontiguousarray(value, dtype).reshape(np.shape(value)), name)
        )
        return name

    def add(self, operator: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        """Append an operator and return the name of its output."""
        from onnx import helper

        output = name or f"{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [output], **attributes))
        return output

    def reshape(self, value: str, *shape: int) -> str:
        """Reshape `value`; one size may be -1."""
        return self.add("Reshape", value, self.constant(shape, "int64"))

    def clip(self, value: str, low: Any, high: Any) -> str:
        """Clip `value` to bounds that broadcast over it."""
        return self.add("Min", self.add("Max", value, self.constant(low)), self.constant(high))

    def split(self, value: str, sizes: Sequence[int]) -> list[str]:
        """Split `value` along axis 1 into parts of these sizes."""
        from onnx import helper

        names = [f"part_{len(self.nodes)}_{i}" for i in range(len(sizes))]
        given = [value, self.constant(sizes, "int64")]
        self.nodes.append(helper.make_node("Split", given, names, axis=1))
        return names


def can_export(policy: TrainedPolicy) -> bool:
    """Whether the policy's network is one of asyncrl's."""
    network = getattr(getattr(policy.policy, "layout", None), "network", None)
    return network is None or isinstance(network, ConvolutionalNetwork)


def network_outputs(graph: Graph, policy: TrainedPolicy) -> str:
    """Append input scaling or normalisation and the network; return the name of its output `[batch, outputs]`.

    A recurrent network reads `state` and writes `next_state`.
    """
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
    elif policy.spec.observation_dtype == "uint8" and policy.spec.byte_factor != 1:
        x = graph.add("Mul", x, graph.constant(np.float32(policy.spec.byte_factor)))
    if getattr(layout, "cell", None) is not None:
        return _recurrent(graph, x, ParameterReader(weights), layout)
    if layout.network is not None:
        return _convolutional(graph, x, ParameterReader(weights), layout.network, layout.sizes[-1])
    return _perceptron(graph, x, policy)


def _activation(layout: Any) -> str:
    return "Tanh" if getattr(layout, "activation", "relu") == "tanh" else "Relu"


def _perceptron(graph: Graph, x: str, policy: TrainedPolicy) -> str:
    layout: Any = policy.policy.layout  # type: ignore[attr-defined]
    weights, activation = policy.weights, _activation(layout)
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


def _recurrent(graph: Graph, x: str, left: ParameterReader, layout: Any) -> str:
    """Encoder, cell and head of `acting.recurrent`, in its parameter order."""
    cell, activation = layout.cell, _activation(layout)
    features = cell.size
    if layout.network is not None:
        x = graph.add(activation, _convolutional(graph, x, left, layout.network, features))
    else:
        for inputs, features in itertools.pairwise(layout.sizes[:-1]):
            x = graph.add(activation, _linear(graph, x, left, inputs, features))
    rows = cell.gates * cell.size
    before = graph.split("state", [cell.size] * (cell.state_size // cell.size))
    matrices = left.take(rows, features), left.take(rows, cell.size)
    sums = (
        graph.add("Gemm", value, graph.constant(matrix), graph.constant(left.take(rows)), transB=1)
        for value, matrix in zip((x, before[0]), matrices, strict=True)
    )
    gates, recurrent = (graph.split(total, [cell.size] * cell.gates) for total in sums)
    out = (_gru if cell.kind == "gru" else _lstm)(graph, gates, recurrent, before)
    return _linear(graph, out, left, cell.size, layout.sizes[-1])


def _gru(graph: Graph, gates: list[str], recurrent: list[str], before: list[str]) -> str:
    """Output of a GRU cell, which is also `next_state`; see `acting.recurrent.gru_cell`."""
    reset, update = (graph.add("Sigmoid", graph.add("Add", gates[i], recurrent[i])) for i in range(2))
    new = graph.add("Tanh", graph.add("Add", gates[2], graph.add("Mul", reset, recurrent[2])))
    kept = graph.add("Mul", update, graph.add("Sub", before[0], new))
    return graph.add("Add", new, kept, name="next_state")


def _lstm(graph: Graph, gates: list[str], recurrent: list[str], before: list[str]) -> str:
    """Output of an LSTM cell; `next_state` is the output and the cell state; see `acting.recurrent.lstm_cell`."""
    sums = [graph.add("Add", own, other) for own, other in zip(gates, recurrent, strict=True)]
    enter, forget, show = (graph.add("Sigmoid", sums[i]) for i in (0, 1, 3))
    kept = graph.add("Mul", forget, before[1])
    state = graph.add("Add", kept, graph.add("Mul", enter, graph.add("Tanh", sums[2])))
    out = graph.add("Mul", show, graph.add("Tanh", state))
    graph.add("Concat", out, state, name="next_state", axis=1)
    return out


def _convolutional(
    graph: Graph, x: str, left: ParameterReader, network: ConvolutionalNetwork, outputs: int
) -> str:
    image = network.image
    channels, shape = image.frames * image.channels, (image.height, image.width)
    if image.channels_first or image.channels == 1:
        x = graph.reshape(x, -1, channels, *shape)
    else:
        x = graph.reshape(x, -1, image.frames, *shape, image.channels)
        x = graph.reshape(graph.add("Transpose", x, perm=[0, 1, 4, 2, 3]), -1, channels, *shape)
    if network.name == "impala":
        x = _residual_sections(graph, x, left, channels)
    else:
        for layer in PLAIN[network.name]:
            x, channels = graph.add("Relu", _convolution(graph, x, left, channels, layer)), layer.channels
    features, width = math.prod(feature_shape(network.name, *shape)), WIDTHS[network.name]
    x = graph.add("Flatten", x, axis=1)
    streams = [network.value_outputs, outputs - network.value_outputs] if network.value_outputs else [outputs]
    parts = []
    noisy = network.noisy_sigma > 0
    for count in streams:
        hidden = graph.add("Relu", _linear(graph, x, left, features, width, noisy))
        parts.append(_linear(graph, hidden, left, width, count, noisy))
    return parts[0] if len(parts) == 1 else graph.add("Concat", *parts, axis=1)


def _residual_sections(graph: Graph, x: str, left: ParameterReader, channels: int) -> str:
    for width in SECTIONS:
        layer = section_layer(width)
        x = _convolution(graph, x, left, channels, layer)
        x = graph.add("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
        channels = width
        for _ in range(2):
            inner = _convolution(graph, graph.add("Relu", x), left, width, layer)
            inner = _convolution(graph, graph.add("Relu", inner), left, width, layer)
            x = graph.add("Add", x, inner)
    return graph.add("Relu", x)


def _convolution(graph: Graph, x: str, left: ParameterReader, inputs: int, layer: Convolution) -> str:
    matrix = graph.constant(left.take(layer.channels, inputs, layer.kernel, layer.kernel))
    bias = graph.constant(left.take(layer.channels))
    return graph.add("Conv", x, matrix, bias, strides=[layer.stride, layer.stride], pads=[layer.padding] * 4)


def _linear(
    graph: Graph, x: str, left: ParameterReader, inputs: int, outputs: int, noisy: bool = False
) -> str:
    """Linear layer without noise: the standard deviations of a noisy layer are skipped."""
    matrix, bias = left.take(outputs, inputs), left.take(outputs)
    if noisy:
        left.take(outputs, inputs), left.take(outputs)
    return graph.add("Gemm", x, graph.constant(matrix), graph.constant(bias), transB=1)
