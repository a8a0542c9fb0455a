"""Directory of a run: its lock, its small files and the record of its machine; docs/watching.md lists all files.

Every file is written atomically (temporary file, rename), so that a reader never sees a partial file. A run without a
directory has a `RunDirectory` that writes nothing.

A directory may be deleted or moved while its run goes on, and another run may begin at its path. So before a write the
lock file at the path is compared with the one that is held open; where they differ, nothing is written
(`DirectoryLost`).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import platform
import re
import shlex
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from asyncrl.errors import ConfigurationError, FilesNotWritten, ResourceError, warn
from asyncrl.storage.atomic_file import DISK_FAILS, write_atomically
from asyncrl.storage.checkpoint import CheckpointFolder

LOCK = ".lock"
"""Name of the lock file; a run that uses the directory holds its lock, and the file holds the process id."""
HOLDER_SECONDS = 2.0
"""Time that a refused run waits for the lock's holder to write its process id."""


class DirectoryLost(OSError):
    """The directory at the path is no longer the run's. One warning of it was given (ASYNC040)."""


class RunDirectory:
    """Owns a run's directory; event-loop thread only, but for `check`, `current` and `actor_log`.

    Args:
        path: the directory, created if it does not exist; or None to write nothing. A relative one is made absolute
            now, so that the run goes on in it when the working directory changes (`%cd` in a notebook).
        checkpoints_kept: number of numbered checkpoints to keep.
        goes_on: whether the directory holds the run that is resumed.

    Raises:
        ConfigurationError: the directory holds another run, is in use by a run, or cannot be created.
    """

    def __init__(self, path: str | Path | None, checkpoints_kept: int = 3, goes_on: bool = False) -> None:
        self.path = Path(path).absolute() if path else None
        self._checkpoints_kept = checkpoints_kept
        self._lock: int | None = None
        self._warned = False
        if not path:
            return
        path = Path(path)
        if "\0" in str(path):
            raise ConfigurationError(
                "run_dir must be a path without a NUL character",
                facts={"run_dir": path},
                fix="give another path",
            )
        if not goes_on:
            _refuse_folder_of_runs(path)
        with refuse_unwritable(path):
            (path / "checkpoints").mkdir(parents=True, exist_ok=True)
            (path / "actors").mkdir(exist_ok=True)
            self._lock = _lock(path)
            _locked.add(self)
            if not goes_on:
                try:
                    refuse_run_at(path)
                except ConfigurationError:
                    self.close()
                    raise

    def close(self) -> None:
        """Release the lock on the directory; idempotent."""
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)

    @property
    def current(self) -> Path | None:
        """The directory, or None if there is none or it is no longer the run's."""
        try:
            self.check()
        except DirectoryLost:
            return None
        return self.path

    def check(self) -> None:
        """Raise `DirectoryLost` if the directory at the path is no longer the run's; warn at the first time."""
        if self.path is None or self._lock is None or _is_at(self._lock, self.path / LOCK):
            return
        what = f"{self.path} was deleted or moved, or is another run's by now"
        if not self._warned:
            self._warned = True
            text = (
                f"[ASYNC040] the run's files cannot be written: {what}; training goes on and writes nothing there; "
                "put the directory back, or save the policy elsewhere when the run has ended"
            )
            warn(FilesNotWritten(text))
        raise DirectoryLost(what)

    def actor_log(self, index: int) -> Path | None:
        """File of an actor's output, or None."""
        path = self.current
        return path / "actors" / f"{index}.log" if path is not None else None

    @property
    def checkpoints(self) -> CheckpointFolder | None:
        """Folder of the checkpoints, or None."""
        if self.path is None:
            return None
        return CheckpointFolder(self.path / "checkpoints", self._checkpoints_kept)

    def write_text(self, name: str, text: str) -> None:
        """Write the file `name` atomically. Raises OSError if it cannot be written; the old file then remains."""
        self.write_bytes(name, text.encode())

    def write_bytes(self, name: str, data: bytes, mode: int = 0o644) -> None:
        """Write the file `name` atomically, like `write_text`, never with other permissions. Raises OSError."""
        if self.path is None:
            return
        self.check()
        write_atomically(self.path / name, [data], mode=mode, durable=False)

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        """Write `value` as strict JSON, atomically; NaN and infinity become null. Raises OSError."""
        self.write_text(name, json.dumps(_finite(value), indent=2, allow_nan=False) + "\n")

    def remove(self, name: str) -> None:
        """Remove a file that is valid only during the run (`http.json`)."""
        if (path := self.current) is not None:
            with contextlib.suppress(OSError):
                (path / name).unlink(missing_ok=True)


def refuse_another_run(path: Path) -> None:
    """Raise `ConfigurationError` if a run has left its files in the directory `path`, or it is a folder of runs."""
    refuse_run_at(path)
    _refuse_folder_of_runs(path)


def _refuse_folder_of_runs(path: Path) -> None:
    """Raise `ConfigurationError` for one: lists of runs look into no run, so that the others would be hidden."""
    if others := _runs_below(path):
        raise ConfigurationError(
            f"run_dir must be a new or empty directory, {path} is a folder of runs: {others[0]}"
            f"{f' and {len(others) - 1} more' if len(others) > 1 else ''}",
            facts={"run_dir": path},
            fix=f"give the run a directory of its own, such as {path / 'NAME'}",
        )


def refuse_run_at(path: Path) -> None:
    """Raise `ConfigurationError` if a run has left its files in the directory `path`."""
    if path.is_dir() and (held := _holds_a_run(path)):
        raise ConfigurationError(
            f"run_dir must be a new or empty directory, {path} holds a run: {held}",
            facts={"run_dir": path},
            fix=f"give another directory, or go on with that run: asyncrl resume {shlex.quote(str(path))}",
        )


@contextlib.contextmanager
def refuse_unwritable(path: Path) -> Iterator[None]:
    """Turn an OSError into `ResourceError` if the disk is full or fails, else into `ConfigurationError`.

    It is for files that are written before training, when an error loses nothing.
    """
    try:
        yield
    except OSError as error:
        kind = ResourceError if error.errno in DISK_FAILS else ConfigurationError
        raise kind(
            f"run_dir cannot be written: {error.strerror or error}",
            facts={"run_dir": path, "file": error.filename or "-"},
            fix="give a writable path with free space",
        ) from error


_locked: weakref.WeakSet[RunDirectory] = weakref.WeakSet()


def _leave_to_parent() -> None:
    """Close a forked child's copies of the descriptors, which would hold the locks beyond the ends of the runs."""
    for directory in tuple(_locked):
        directory.close()


os.register_at_fork(after_in_child=_leave_to_parent)


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether the open file is the one at `path`. Its inode is not given to another file while it is open."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False))
    except OSError:
        return False


def _lock(path: Path) -> int:
    """Lock the directory until the returned file descriptor is closed, if the file system supports locks.

    Raises `ConfigurationError` if another run holds the lock, and OSError if the lock file cannot be opened, or is a
    symbolic link. The kernel releases the lock of a dead process.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path / LOCK, flags, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = _holder(descriptor)
        os.close(descriptor)
        raise ConfigurationError(
            f"run_dir is in use by a run that goes on: {holder}",
            facts={"run_dir": path, "held by": holder},
            fix="give another directory, or end that run",
        ) from None
    except OSError:  # a network file system without locks
        return descriptor
    with contextlib.suppress(
        OSError
    ):  # a full disk: the directory is locked, and only the holder's name is missing
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"pid {os.getpid()} on {platform.node()}".encode(), 0)
    return descriptor


def _holder(descriptor: int) -> str:
    """Read the lock's holder, which writes its id just after locking; until then the file has none or a dead one's."""
    for _ in range(100):
        holder = os.pread(descriptor, 200, 0).decode(errors="replace")
        found = re.fullmatch(r"pid (\d+) on (.*)", holder)
        if found and (found[2] != platform.node() or psutil.pid_exists(int(found[1]))):
            break
        time.sleep(HOLDER_SECONDS / 100)
    return holder or "another process"


def _holds_a_run(path: Path) -> str:
    """Name of a file that a run has left here, or "".

    The directory of a run that failed before its first step has only a summary, and may be used again.
    """
    for found in sorted((path / "checkpoints").glob("[!.]*")):
        return f"checkpoints/{found.name}"
    if (path / "summary.json").exists():
        try:
            steps = json.loads((path / "summary.json").read_text(encoding="utf-8"))["env_steps"]
        except Exception:  # an unknown file is not overwritten
            steps = None
        return "" if steps == 0 else "summary.json"
    metrics = path / "metrics.jsonl"
    return "metrics.jsonl" if metrics.exists() and metrics.stat().st_size else ""


def _runs_below(path: Path) -> list[str]:
    """Names of the runs in a folder, sorted."""
    locks = path.glob(f"*/{LOCK}")
    return sorted(lock.parent.name for lock in locks if (lock.parent / "config.toml").is_file())


def advice_without_run(path: Path, otherwise: str) -> str:
    """Fix to give where `path` is no run's directory: a folder of runs, or an address of the hub, which has none."""
    if runs := _runs_below(path):
        return f"it is a folder of runs: name one of them, such as {shlex.quote(str(path / runs[0]))}"
    if path.parts[:1] != ("hf:",):
        return otherwise
    address = "hf://" + "/".join(path.parts[1:])
    return (
        f"{address} has a policy and no run: `asyncrl eval {address}` plays it, "
        f"`asyncrl train ENV --init-from {address}` begins a run with it"
    )


def _finite(value: Any) -> Any:
    """`value` with NaN and infinity as None, for strict JSON."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def describe_run(seed: int) -> dict[str, Any]:
    """Content of `meta.json`: versions, command, seed, machine and git commit."""
    from asyncrl.networks.products import product_library  # not at the top: it loads torch

    return {
        "asyncrl": _version("asyncrl"),
        "python": platform.python_version(),
        "packages": {
            name: _version(name) for name in ("torch", "numpy", "gymnasium", "numba", "uvloop", "aiohttp")
        },
        "command": sys.argv,
        "seed": seed,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "machine": {
            "system": platform.platform(),
            "processor": _processor(),
            "matrix_products": product_library(),
            "cores": os.cpu_count(),
            "memory_bytes": psutil.virtual_memory().total,
        },
        "git_commit": _git_commit(),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    """Name of the processor, as the system knows it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _git_commit() -> str | None:
    """Git commit of the working directory, with `-dirty` if it is; None without a repository."""
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            capture_output=True,
            text=True,
            timeout=2,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
