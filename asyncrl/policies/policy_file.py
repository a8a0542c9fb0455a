"""Policy file: a policy and its origin as one safetensors file. Read and written with NumPy, without torch.

    __metadata__    "format"    "asyncrl policy"
                    "version"   "1"
                    "policy"    JSON: "meta" (`CheckpointMeta`), "environment" (its kind: see `EnvSource`)
                    "sha256"    digest of "policy" and of every tensor
    weights         F32 [n]     flat weights of the acting policy, statistics of the observations included
    environment     U8 [k]      unless the environment is a plain id: id, keyword arguments and wrappers as JSON, or a
                                cloudpickled factory or gymnasium spec
    network         U8 [m]      cloudpickled factory of a user-defined network

Any safetensors reader opens the file. It is read as untrusted input: the header length, the tensor sizes and the file
size are compared before anything of that size is read, the type of every key is checked, and every failure is
ASYNC019. The two pickles stay bytes here and are never unpickled by this module.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, get_args

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load as parse_tensors
from safetensors.numpy import save as pack_tensors

from asyncrl.envs.source import EnvKind
from asyncrl.errors import CheckpointError, printable
from asyncrl.storage.checkpoint_format import opened, refused, write_atomically
from asyncrl.storage.checkpoint_meta import CheckpointMeta, meta_from_json, meta_to_json
from asyncrl.version import __version__

FORMAT, VERSION = "asyncrl policy", "1"
MAX_HEADER_BYTES = 32 << 20
"""Maximum header length: the bounds of a box of a hundred thousand actions fit."""
MAX_PICKLE_BYTES = 256 << 20
"""Maximum length of the pickle of an environment or a network."""
_DTYPES = {"weights": "F32", "environment": "U8", "network": "U8"}
_BYTES = {"F32": 4, "U8": 1}
ANOTHER = "choose another file, or save the policy again"


@dataclass(frozen=True)
class PolicyFile:
    """Contents of a policy file.

    Attributes:
        meta: algorithm, options, environment and training progress.
        weights: flat `[weight_count]` float32.
        environment_kind, environment: kind and payload of the `EnvSource`; payload None if `meta.env` is its id.
        network: pickle of the factory of a user-defined network, else None.
    """

    meta: CheckpointMeta
    weights: NDArray[np.float32]
    environment_kind: EnvKind = "id"
    environment: bytes | None = None
    network: bytes | None = None


def write_policy(path: Path, policy: PolicyFile) -> None:
    """Write a policy file atomically: the path always holds the complete old or the complete new file.

    Raises:
        OSError: the file cannot be written.
        ValueError: a pickle is longer than `MAX_PICKLE_BYTES`.
    """
    tensors: dict[str, NDArray[Any]] = {"weights": np.ascontiguousarray(policy.weights, np.float32)}
    for name, pickled in (("environment", policy.environment), ("network", policy.network)):
        if pickled is not None:
            if len(pickled) > MAX_PICKLE_BYTES:
                limit = MAX_PICKLE_BYTES >> 20
                raise ValueError(
                    f"{name} must have a pickle of at most {limit} MiB, got {len(pickled) >> 20}"
                )
            tensors[name] = np.frombuffer(pickled, np.uint8)
    record = {"meta": meta_to_json(policy.meta), "environment": policy.environment_kind}
    text = json.dumps(record)
    header = {"format": FORMAT, "version": VERSION, "policy": text, "sha256": _digest(text, tensors)}
    write_atomically(path, [pack_tensors(tensors, metadata=header)])


def read_policy_file(
    path: Path, check: Callable[[CheckpointMeta, int, bool], None] = lambda *_: None
) -> PolicyFile:
    """Read a policy file without running code from it.

    Args:
        path: the file.
        check: called with the metadata, the number of weights and whether there is a network, before the tensors are
            read; may raise to refuse the file.

    Raises:
        CheckpointError: the file is missing, damaged, no policy file or of another version (ASYNC019; the text names
            the file and the check that failed).
    """
    with opened(path, "the policy") as (file, size):
        return _read(path, file, size, check)


def _read(
    path: Path, file: IO[bytes], size: int, check: Callable[[CheckpointMeta, int, bool], None]
) -> PolicyFile:
    head = _read_header(path, file, size)
    header, sizes = _checked_header(path, head[8:])
    data_bytes = sum(_BYTES[_DTYPES[name]] * size for name, size in sizes.items())
    if len(head) + data_bytes != size:
        how = f"its tensors have {data_bytes:,} bytes, {size - len(head):,} are there"
        raise _damaged(path, "length", how)
    meta, kind = _checked_record(path, header["policy"], "environment" in sizes)
    check(meta, sizes["weights"], "network" in sizes)
    try:
        tensors = parse_tensors(head + file.read(data_bytes))
    except Exception as error:
        raise _damaged(path, "tensors", f"they are not in order: {printable(str(error), 200)}") from None
    if {name: tensor.shape for name, tensor in tensors.items()} != {n: (size,) for n, size in sizes.items()}:
        raise _damaged(path, "tensors", "the header says two things")
    if _digest(header["policy"], tensors) != header["sha256"]:
        raise _damaged(path, "SHA-256", "the bytes are not those that were written")
    weights = tensors["weights"]
    if not np.isfinite(weights).all():
        raise refused(path, "the policy's weights are NaN or infinite", "weights", ANOTHER)
    pickles = {name: tensors[name].tobytes() if name in tensors else None for name in _DTYPES}
    return PolicyFile(meta, weights.copy(), kind, pickles["environment"], pickles["network"])


def _read_header(path: Path, file: IO[bytes], size: int) -> bytes:
    """Read the length field and the header; the length is checked against the file size first."""
    length = file.read(8)
    if len(length) < 8:
        raise _damaged(path, "length", f"{size} bytes are there, the length of a header alone has 8")
    header_bytes = struct.unpack("<Q", length)[0]
    start = file.read(1)
    if start != b"{":
        raise _no_policy(path)
    if header_bytes > min(size - 8, MAX_HEADER_BYTES):
        most = f"{size - 8} are there, at most {MAX_HEADER_BYTES} are read"
        raise _damaged(path, "length", f"its header has {header_bytes} bytes, {most}")
    return length + start + file.read(header_bytes - 1)


def _checked_header(path: Path, text: bytes) -> tuple[dict[str, str], dict[str, int]]:
    """Parse the header: the metadata, all texts, and the number of values of each tensor."""
    try:
        table = json.loads(text)
        header = dict(table.pop("__metadata__"))
        if header["format"] != FORMAT:
            raise ValueError("format")
        version = header["version"]
        if version == VERSION:
            if {type(header[key]) for key in ("policy", "sha256")} != {str}:
                raise TypeError("a text is missing")
            sizes = {str(name): _values_of(name, entry) for name, entry in table.items()}
            return header, {"weights": sizes.pop("weights"), **sizes}
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        raise _no_policy(path) from None
    what = f"the policy has format version {printable(str(version), 20)}, this asyncrl {__version__} reads {VERSION}"
    raise refused(path, what, "format version", "load it with the asyncrl that wrote it")


def _values_of(name: str, entry: Mapping[str, Any]) -> int:
    """Number of values of a tensor. Raises KeyError, TypeError or ValueError if asyncrl writes no such tensor."""
    (size,) = entry["shape"]
    most = MAX_PICKLE_BYTES if _DTYPES[name] == "U8" else 2**40
    if entry["dtype"] != _DTYPES[name] or type(size) is not int or not 0 <= size <= most:
        raise ValueError(name)
    return size


def _checked_record(path: Path, text: str, has_payload: bool) -> tuple[CheckpointMeta, EnvKind]:
    try:
        record = json.loads(text)
        kind = record.pop("environment")
        if kind not in get_args(EnvKind) or (kind != "id") != has_payload:
            raise ValueError(f"environment is {kind!r}")
        return meta_from_json(record.pop("meta")), kind
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        what = (
            f"the policy's header is not one that asyncrl {__version__} writes: {printable(str(error), 200)}"
        )
        raise refused(path, what, "header", "load it with the asyncrl that wrote it") from None


def _digest(text: str, tensors: Mapping[str, NDArray[Any]]) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].tobytes())
    return digest.hexdigest()


def _no_policy(path: Path) -> CheckpointError:
    what = "the file holds no policy: it is no safetensors file, or asyncrl did not write it"
    return refused(path, what, "header", "name a policy file, a checkpoint, or a run's directory")


def _damaged(path: Path, check: str, how: str) -> CheckpointError:
    return refused(path, f"the policy file is damaged: {how}", check, ANOTHER)
