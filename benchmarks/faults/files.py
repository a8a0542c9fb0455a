"""Mutated checkpoints, and saves interrupted at any of their calls, for the section `checkpoints`."""

from __future__ import annotations

import errno
import hashlib
import os
import random
import resource
import signal
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from asyncrl import DQN
from asyncrl.errors import CheckpointError
from asyncrl.interfaces import DiscreteAction, EnvSpec
from asyncrl.options import option_values
from asyncrl.policies.load import load as load_policy
from asyncrl.storage.checkpoint import CheckpointFolder, CheckpointMeta, load, read_policy
from benchmarks.faults.syscalls import Interruption, trace_me

SPEC = EnvSpec("CartPole-v1", (4,), "float32", DiscreteAction(2))
ALGORITHM = DQN(hidden_sizes=(16,))
DIGEST = slice(35, 99)
"""Place of the digest, which covers all other bytes and zeros in its own place."""
CALLS = (
    ("io", "open"),
    ("os", "open"),
    ("os", "fsync"),
    ("os", "link"),
    ("os", "replace"),
    ("os", "rename"),
    ("os", "unlink"),
)


def meta(env_steps: int) -> CheckpointMeta:
    """Metadata of a checkpoint."""
    options = option_values(ALGORITHM)
    return CheckpointMeta(env="CartPole-v1", algo="dqn", spec=SPEC, options=options, env_steps=env_steps)


def save_one(folder: CheckpointFolder, env_steps: int) -> Path:
    """Save a checkpoint whose weights all equal `env_steps`."""
    weights = np.full(ALGORITHM.make_policy(SPEC).weight_count, env_steps, np.float32)
    return folder.save({"weights": weights, "core": {"step": env_steps}}, meta(env_steps), best=True)


def mutate(data: bytes, rng: random.Random) -> bytes:
    """The bytes after random damage or a forgery."""
    changed = bytearray(data)
    kind = rng.randrange(6)
    if kind == 0:
        return bytes(changed[: rng.randrange(len(changed))])
    if kind == 1:
        return bytes(changed) + rng.randbytes(rng.randrange(1, 100))
    if kind == 2:
        start = rng.randrange(len(changed))
        end = min(len(changed), start + rng.randrange(1, 4096))
        changed[start:end] = bytes(end - start)
        return bytes(changed)
    for _ in range(rng.randrange(1, 9)):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    if kind == 5:  # a forgery: with a correct digest
        changed[DIGEST] = digest_of(bytes(changed))
    return bytes(changed)


def digest_of(data: bytes) -> bytes:
    """Right digest of a file."""
    return hashlib.sha256(data[: DIGEST.start] + b"0" * 64 + data[DIGEST.stop :]).hexdigest().encode()


def mutations(count: int, seed: int) -> dict[str, int]:
    """Read `count` mutated files, as `eval` does, and count the outcomes."""
    rng = random.Random(seed)
    result = dict.fromkeys(
        ("refused", "unchanged", "forged_and_read", "tracebacks", "garbage_accepted", "previous_lost"), 0
    )
    with tempfile.TemporaryDirectory() as place:
        folder = CheckpointFolder(Path(place))
        save_one(folder, 100)
        path = save_one(folder, 200)
        good = path.read_bytes()
        for _ in range(count):
            data = mutate(good, rng)
            path.write_bytes(data)
            forged = data[DIGEST] == digest_of(data)
            try:
                load_policy(path)
                what = "forged_and_read" if forged else "garbage_accepted"
                result["unchanged" if data == good else what] += 1
            except CheckpointError as refused:
                result["refused"] += 1
                offered = refused.fix.rpartition(" ")[2]
                if "the one before it" in refused.fix and Path(offered).name != "100":
                    result["previous_lost"] += 1
            except Exception as error:
                print(f"{type(error).__name__}: {error}", file=sys.stderr)
                result["tracebacks"] += 1
        result["previous_lost"] += int(load(path.parent / "100")[1].env_steps != 100)
    return result


def broken_saves() -> dict[str, int]:
    """Kill the second save of a folder, or refuse it space, at each of its calls and at many lengths of a file."""
    kinds = (
        "saves_killed",
        "saves_killed_at_system_calls",
        "saves_without_space",
        "saves_refused_by_system_calls",
    )
    result = dict.fromkeys((*kinds, "saves_cut", "checkpoints_lost", "temporary_files_left"), 0)
    for refuse, kind in ((False, kinds[1]), (True, kinds[3])):
        interruption = Interruption(0, refuse)
        while True:
            broken_save(trace_me, result, kind, interruption.watch)
            if interruption.call is None:
                break
            interruption = Interruption(interruption.number + 1, refuse)
    number = 0
    while broken_save(partial(end_at_call, number, kill), result, "saves_killed"):
        number += 1
    number = 0
    while broken_save(partial(end_at_call, number, no_space), result, "saves_without_space"):
        number += 1
    for most_bytes in range(0, 20_000, 500):
        broken_save(partial(limit_files, most_bytes), result, "saves_cut")
    return result


def wait_for(pid: int) -> int:
    """Wait status of a child."""
    return os.waitpid(pid, 0)[1]


def broken_save(
    prepare: Callable[[], None], result: dict[str, int], kind: str, watch: Callable[[int], int] = wait_for
) -> bool:
    """Save once in a child process after calling `prepare` there; returns whether the save failed.

    `watch` gets the child's id and returns its wait status.
    """
    with tempfile.TemporaryDirectory() as place:
        folder = CheckpointFolder(Path(place))
        save_one(folder, 100)
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                prepare()
                save_one(folder, 200)
                status = 0
            finally:
                os._exit(status)
        failed = os.waitstatus_to_exitcode(watch(pid)) != 0
        result[kind] += failed
        for name in ("latest", "best"):
            try:
                saved = read_policy(Path(place) / name)
                wrong = saved.weights[0] != saved.meta.env_steps
            except CheckpointError:
                wrong = True
            result["checkpoints_lost"] += int(wrong)
        save_one(folder, 300)
        left = [p for p in Path(place).iterdir() if p.name.startswith(".")]
        result["temporary_files_left"] += len(left)
        result["checkpoints_lost"] += int(read_policy(Path(place) / "latest").meta.env_steps != 300)
        return failed


def end_at_call(number: int, end: Callable[[], None]) -> None:
    """Patch the file-system calls so that `end` is called at call number `number`."""
    left = [number]
    for module, name in CALLS:
        setattr(sys.modules[module], name, _counted(getattr(sys.modules[module], name), left, end))


def _counted(call: Callable[..., Any], left: list[int], end: Callable[[], None]) -> Callable[..., Any]:
    def counted(*arguments: Any, **options: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            left[0] = 1 << 60
            end()
        return call(*arguments, **options)

    return counted


def kill() -> None:
    """Kill this process by SIGKILL."""
    os.kill(os.getpid(), signal.SIGKILL)


def no_space() -> None:
    """Raise the error of a full disk."""
    raise OSError(errno.ENOSPC, "No space left on device")


def limit_files(most_bytes: int) -> None:
    """Limit the size of files to `most_bytes`."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
