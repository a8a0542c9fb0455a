"""Policy file: a policy and its origin (`storage/tensor_file.py`). Read and written with NumPy, without torch.

    header          "meta"      `CheckpointMeta`
                    "environment"   its kind: see `EnvSource`
    weights         F32 [n]     flat weights of the acting policy, statistics of the observations included
    environment     U8 [k]      unless the environment is a plain id, or absent: id, keyword arguments and wrappers
                                as JSON, or a cloudpickled factory or gymnasium spec
    network         U8 [m]      cloudpickled factory of a user-defined network
    critics         F32 [C, P]  weights of the critics, if they were wanted; see `acting.critics`

The two pickles stay bytes here and are never unpickled by this module.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from asyncrl.envs.source import EnvKind
from asyncrl.storage.checkpoint_meta import CheckpointMeta, meta_from_json, meta_to_json
from asyncrl.storage.tensor_file import FileKind, Shapes, read_tensors, refused, stored, write_tensors

MAX_PICKLE_BYTES = 256 << 20
"""Maximum length of the pickle of an environment or a network."""
WITHOUT_PAYLOAD = ("id", "absent")
"""Kinds of environments of which a file holds no more than the name."""
_DTYPES = {"weights": "float32", "environment": "uint8", "network": "uint8", "critics": "float32"}
ANOTHER = "choose another policy file, a checkpoint or a run's directory, or save the policy again"
POLICY = FileKind("policy", "the policy", lambda path: ANOTHER)


@dataclass(frozen=True)
class PolicyFile:
    """Contents of a policy file.

    Attributes:
        meta: algorithm, options, environment and training progress.
        weights: flat `[weight_count]` float32.
        environment_kind, environment: kind and payload of the `EnvSource`; payload None if `meta.env` is its id, or
            all that is known of it.
        network: pickle of the factory of a user-defined network, else None.
        critics: `[C, P]` float32, or None.
    """

    meta: CheckpointMeta
    weights: NDArray[np.float32]
    environment_kind: EnvKind = "id"
    environment: bytes | None = None
    network: bytes | None = None
    critics: NDArray[np.float32] | None = None


def write_policy(path: Path, policy: PolicyFile) -> None:
    """Write a policy file atomically: the path always holds the complete old or the complete new file.

    Raises:
        OSError: the file cannot be written.
        ValueError: a pickle is longer than `MAX_PICKLE_BYTES`.
    """
    arrays: dict[str, NDArray[Any]] = {"weights": np.asarray(policy.weights, np.float32)}
    for name, pickled in (("environment", policy.environment), ("network", policy.network)):
        if pickled is not None:
            if len(pickled) > MAX_PICKLE_BYTES:
                limit = MAX_PICKLE_BYTES >> 20
                raise ValueError(
                    f"{name} must have a pickle of at most {limit} MiB, got {len(pickled) >> 20}"
                )
            arrays[name] = np.frombuffer(pickled, np.uint8)
    if policy.critics is not None:
        arrays["critics"] = np.asarray(policy.critics, np.float32)
    header = {"meta": meta_to_json(policy.meta), "environment": policy.environment_kind}
    write_tensors(path, POLICY, header, stored(arrays))


def read_policy_file(
    path: Path, check: Callable[[CheckpointMeta, int, bool], None] = lambda *_: None
) -> PolicyFile:
    """Read a policy file without running code from it.

    Args:
        path: the file.
        check: called with the metadata, the number of weights and whether there is a network, before the arrays are
            read; may raise to refuse the file.

    Raises:
        CheckpointError: the file is missing, damaged, no policy file or of another version (ASYNC019; the text names
            the file and the check that failed).
    """

    def parse(header: Any, shapes: Shapes) -> tuple[CheckpointMeta, EnvKind]:
        (weight_count,) = shapes["weights"]
        if unknown := sorted(shapes.keys() - _DTYPES):
            raise ValueError(f"a policy has no array {unknown[0]!r}")
        pickles = [shape for name, shape in shapes.items() if _DTYPES[name] == "uint8"]
        if any(len(shape) != 1 or shape[0] > MAX_PICKLE_BYTES for shape in pickles):
            raise ValueError("a pickle is too long")
        if len(shapes.get("critics", (0, 0))) != 2:
            raise ValueError(f"critics have shape {shapes['critics']}")
        kind = header["environment"]
        if kind not in get_args(EnvKind) or (kind in WITHOUT_PAYLOAD) == ("environment" in shapes):
            raise ValueError(f"environment is {kind!r}")
        meta = meta_from_json(header["meta"])
        check(meta, weight_count, "network" in shapes)
        return meta, kind

    (meta, kind), arrays = read_tensors(path, POLICY, parse)
    for name, array in arrays.items():
        if array.dtype != _DTYPES[name]:
            raise refused(
                path, f"{name} of the policy is {array.dtype}, not {_DTYPES[name]}", "header", ANOTHER
            )
    if not np.isfinite(arrays["weights"]).all():
        raise refused(path, "the policy's weights are NaN or infinite", "weights", ANOTHER)
    environment, network = (
        arrays[name].tobytes() if name in arrays else None for name in ("environment", "network")
    )
    return PolicyFile(meta, arrays["weights"], kind, environment, network, arrays.get("critics"))
