"""Export of a policy as an ONNX model, which runs without asyncrl: observation in, greedy action out, scaling included.

The graph is written directly from the policy's layout and weights, a few dozen operators. (`torch.onnx.export` would
need every policy as a torch module, and onnxscript.)

    obs     [batch, *observation_shape]   in the environment's dtype; [batch, k, ...] with a frame stack of k
    action  [batch, *action_shape]        as the environment takes it: choices, real values within their bounds

The model of a recurrent policy has a second input `state` `[batch, state_size]` float32, zeros at the start of an
episode, and a second output `next_state`, the `state` of the next call. The model divides bytes by 255 and normalises
observations where the policy does.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.acting.box import BoxPolicy, DeterministicPolicy, SquashedGaussianPolicy
from asyncrl.acting.policies import QPolicy, float32_bounds
from asyncrl.acting.stochastic import ActorLayout, StochasticPolicy
from asyncrl.acting.trained_policy import TrainedPolicy
from asyncrl.errors import ConfigurationError
from asyncrl.interfaces import BoxAction, DiscreteAction, MultiDiscreteAction
from asyncrl.policies.onnx_networks import Graph, can_export, network_outputs
from asyncrl.storage.atomic_file import write_atomically
from asyncrl.version import __version__

OPSET = 17
"""Operator set version; onnxruntime 1.12 (2022) and later support it."""
IR_VERSION = 8


def require_onnx() -> None:
    """Raise ConfigurationError if the package onnx is not installed."""
    if importlib.util.find_spec("onnx") is None:
        raise ConfigurationError(
            "a model needs the package onnx, which is not installed", fix='pip install "asyncrl[onnx]"'
        )


def export_onnx(policy: TrainedPolicy, path: Path, description: str, about: Mapping[str, str]) -> None:
    """Write the greedy policy as an ONNX model. An existing file is replaced.

    Args:
        policy: the policy.
        path: the file.
        description: the model's `doc_string`.
        about: the model's metadata, text by name.

    Raises:
        ConfigurationError: onnx is not installed, or the policy has a user-defined network or structured observations.
        OSError: the file cannot be written.
    """
    require_onnx()
    model = onnx_model(policy)
    model.doc_string = description
    for key, value in about.items():
        model.metadata_props.add(key=key, value=value)
    write_atomically(path, [model.SerializeToString()])


def onnx_model(policy: TrainedPolicy) -> Any:
    """Convert the greedy policy to an `onnx.ModelProto` and check it.

    Raises:
        ConfigurationError: the policy has a user-defined network or structured observations.
    """
    refuse_unexportable(policy)
    import onnx
    from onnx import helper

    graph, spec, frames = Graph(), policy.spec, policy.policy.frame_stack
    seen = spec.observation_shape if frames == 1 else (frames, *spec.observation_shape)
    _HEADS[type(policy.policy)](graph, policy, network_outputs(graph, policy))

    def info(name: str, dtype: str, shape: tuple[int, ...]) -> Any:
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        return helper.make_tensor_value_info(name, kind, ["batch", *shape])

    inputs = [info("obs", spec.observation_dtype, seen)]
    outputs = [
        info("action", spec.action.space_dtype, getattr(spec.action, "space_shape", ()) or spec.action.shape)
    ]
    if policy.recurrent:
        shape = policy.policy.layout.cell.field.shape  # type: ignore[attr-defined]
        inputs.append(info("state", "float32", shape))
        outputs.append(info("next_state", "float32", shape))
    made = helper.make_graph(graph.nodes, "policy", inputs, outputs, graph.constants)
    model = helper.make_model(
        made,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="asyncrl",
        producer_version=__version__,
    )
    onnx.checker.check_model(model, full_check=True)
    return model


def refuse_unexportable(policy: TrainedPolicy) -> None:
    """Raise ConfigurationError for a policy that cannot be exported."""
    if policy.spec.leaves:
        raise ConfigurationError(
            "the policy takes a structured observation (Dict, Tuple, Discrete or MultiDiscrete), which is not exported",
            fix="train on an observation that is a single Box, for example by gymnasium.wrappers.FlattenObservation",
        )
    if type(policy.policy) not in _HEADS or not can_export(policy):
        raise ConfigurationError(
            "the policy has a network of its own, and only networks of asyncrl are exported",
            fix="call torch.onnx.export with your module; its parameters are `policy.weights`, in their order",
        )


def _greedy_values(graph: Graph, policy: TrainedPolicy, out: str) -> None:
    """Argmax of the action values, with or without dueling streams and atoms; see `QPolicy.q_values`."""
    layout = policy.policy.layout  # type: ignore[attr-defined]
    atoms, actions = layout.atoms, layout.num_actions
    if layout.dueling:
        value, advantage = graph.split(out, [atoms, actions * atoms])
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


def _choice(graph: Graph, policy: TrainedPolicy, index: str) -> None:
    action = policy.spec.action
    assert isinstance(action, DiscreteAction)
    _action(graph, policy, graph.add("Add", index, graph.constant(action.start, "int64")))


def _choices(graph: Graph, policy: TrainedPolicy, indices: Sequence[str]) -> None:
    action = policy.spec.action
    assert isinstance(action, MultiDiscreteAction)
    start = graph.constant(action.start or 0, "int64")
    values = graph.add("Add", graph.add("Concat", *indices, axis=1), start)
    _action(graph, policy, graph.reshape(values, -1, *(action.space_shape or action.shape)))


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
    whole = np.dtype(action.space_dtype).kind in "iu"
    _action(graph, policy, graph.add("Round", clipped) if whole else clipped)


def _action(graph: Graph, policy: TrainedPolicy, values: str) -> None:
    """Name the output, in the dtype of the environment's actions."""
    from onnx import helper

    kind = helper.np_dtype_to_tensor_dtype(np.dtype(policy.spec.action.space_dtype))
    graph.add("Cast", values, to=kind, name="action")


def _likeliest(graph: Graph, policy: TrainedPolicy, out: str) -> None:
    """Most likely choices, or the mean of a Gaussian; see `StochasticPolicy.greedy`."""
    layout: ActorLayout = policy.policy.layout  # type: ignore[attr-defined]
    if layout.squashed:
        _squashed(graph, policy, out)
    elif layout.gaussian:
        _box(graph, policy, out)
    else:
        parts = [out]
        if len(layout.choices) > 1:
            parts = graph.split(out, layout.choices)
        best = [graph.add("ArgMax", part, axis=1, keepdims=1) for part in parts]
        if isinstance(policy.spec.action, DiscreteAction):
            _choice(graph, policy, graph.reshape(best[0], -1))
        else:
            _choices(graph, policy, best)


_HEADS: dict[type[Any], Callable[[Graph, Any, str], None]] = {
    QPolicy: _greedy_values,
    BoxPolicy: _squashed,
    DeterministicPolicy: _squashed,
    SquashedGaussianPolicy: _squashed,
    StochasticPolicy: _likeliest,
}
