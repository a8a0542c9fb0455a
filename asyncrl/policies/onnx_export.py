"""Export of a policy as an ONNX model, which runs without asyncrl: observation in, greedy action out, scaling included.

    obs     [batch, *observation_shape]   in the environment's dtype, float64 as float32; [batch, k, ...] with k frames
    action  [batch, *action_shape]        as the environment takes it: choices, real values within their bounds

The model of a structured observation (Dict, Tuple, Discrete, MultiDiscrete) has one input for each array of it, named
`obs.KEY` (`obs.robot.position`; `obs` if the observation itself is the array): uint8 images, int64 choices, float32
values. An `action_mask` forbids actions as in training.

The model of a recurrent policy has another input `state` `[batch, state_size]` float32, zeros at the start of an
episode, and a second output `next_state`, the `state` of the next call. The model divides bytes by 255 and normalises
observations where the policy does.

The policy is written once more as a torch module, which `torch.onnx.export` traces with `dynamo=False`. That exporter
needs no package but onnx and a second or two. torch calls it deprecated in favour of `dynamo=True`, which takes the
same module but needs onnxscript and took 35 s for a perceptron, on a busy machine, of which imports were 7.
"""

from __future__ import annotations

import importlib.util
import io
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from asyncrl.acting.box import BoxPolicy
from asyncrl.acting.policies import QPolicy
from asyncrl.acting.stochastic import StochasticPolicy
from asyncrl.acting.trained_policy import TrainedPolicy
from asyncrl.errors import ConfigurationError, describe_error
from asyncrl.storage.atomic_file import write_atomically
from asyncrl.version import __version__

OPSET = 17
"""Operator set version; onnxruntime 1.12 (2022) and later support it."""


def require_onnx() -> None:
    """Raise ConfigurationError if the package onnx is not installed."""
    if importlib.util.find_spec("onnx") is None:
        raise ConfigurationError(
            "a model needs the package onnx, which is not installed", fix='pip install "asyncrl[onnx]"'
        )


def export_onnx(policy: TrainedPolicy, path: Path, description: str, about: Mapping[str, str]) -> None:
    """Write the greedy policy as an ONNX model. An existing file is replaced.

    Raises:
        ConfigurationError: onnx is not installed, there are several policies, or torch cannot export the user's policy
            or network.
        OSError: the file cannot be written.
    """
    if policy.spec.policies:
        names = ", ".join(own.name for own in policy.spec.policies)
        raise ConfigurationError(
            f"a model holds one policy, and this one is of several: {names}",
            fix="export each in Python: policy.by_policy[name].export_onnx(path)",
        )
    require_onnx()
    model = onnx_model(policy)
    model.doc_string = description
    for key, value in about.items():
        model.metadata_props.add(key=key, value=value)
    write_atomically(path, [model.SerializeToString()])


def onnx_model(policy: TrainedPolicy) -> Any:
    """Convert the greedy policy to an `onnx.ModelProto` and check it.

    Raises:
        ConfigurationError: the policy is of a class of the user's own, or torch cannot export the user's network.
    """
    if not isinstance(policy.policy, QPolicy | BoxPolicy | StochasticPolicy):
        raise ConfigurationError(
            f"only policies of asyncrl are exported, got {type(policy.policy).__name__}",
            fix="call torch.onnx.export with a module of your own; its parameters are `policy.weights`",
        )
    import onnx
    import torch

    from asyncrl.policies.onnx_module import GreedyModule

    module, examples = GreedyModule(policy.policy, policy.spec), _examples(policy)
    outputs = ["action", "next_state"] if policy.recurrent else ["action"]
    file = io.BytesIO()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the exporter's own deprecation
            torch.onnx.export(
                module,
                tuple(torch.from_numpy(example) for example in examples.values()),
                file,  # type: ignore[arg-type]  # a file-like object is accepted with dynamo=False
                input_names=list(examples),
                output_names=outputs,
                dynamic_axes={name: {0: "batch"} for name in (*examples, *outputs)},
                opset_version=OPSET,
                dynamo=False,
            )
    except (torch.onnx.errors.OnnxExporterError, RuntimeError, TypeError) as error:
        raise ConfigurationError(
            f"torch cannot export the policy's network: {describe_error(error)}",
            fix="use operations that torch.onnx exports in the network of your own",
        ) from error
    model = onnx.load_model_from_string(file.getvalue())
    model.producer_name, model.producer_version = "asyncrl", __version__
    onnx.checker.check_model(model, full_check=True)
    return model


def _examples(policy: TrainedPolicy) -> dict[str, np.ndarray[Any, Any]]:
    """A batch of two for every input, by its name, in order."""
    spec = policy.spec
    stack = (2,) if policy.policy.frame_stack == 1 else (2, policy.policy.frame_stack)
    if spec.leaves:
        dtypes = {"image": "uint8", "choices": "int64"}
        examples = {
            ".".join(("obs", *leaf.path)): np.zeros((*stack, *leaf.shape), dtypes.get(leaf.kind, "float32"))
            for leaf in spec.leaves
        }
    else:
        examples = {"obs": np.zeros((*stack, *spec.observation_shape), spec.observation_dtype)}
    if policy.recurrent:
        (size,) = policy.policy.layout.cell.field.shape  # type: ignore[attr-defined]
        examples["state"] = np.zeros((2, size), np.float32)
    return examples
