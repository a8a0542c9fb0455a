"""The files of a run: what it was told, what it measured, what it learned. See README, "A run's directory".

Everything is written whole (temporary file, rename), so that who reads a directory while the run goes on never sees
half a file. A run without a directory has a `RunDirectory` too, one that writes nothing.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from asyncrl.checkpoint_folder import CheckpointFolder
from asyncrl.errors import ConfigurationError


class RunDirectory:
    """Owns a run's directory; event-loop thread only.

    Args:
        path: the directory, made where it does not exist; or None to write nothing.

    Raises:
        ConfigurationError: the directory holds another run already, or cannot be made.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        if path is None:
            return
        if (path / "summary.json").exists() or (path / "metrics.jsonl").exists():
            raise ConfigurationError(
                f"run_dir must be a new or empty directory, {path} holds a run",
                facts={"run_dir": path},
                fix="give another directory, or remove this one",
            )
        try:
            (path / "checkpoints").mkdir(parents=True, exist_ok=True)
            (path / "actors").mkdir(exist_ok=True)
        except OSError as error:
            raise ConfigurationError(
                f"run_dir cannot be made: {error.strerror}",
                facts={"run_dir": path},
                fix="give a writable path",
            ) from error

    @property
    def actor_logs(self) -> Path | None:
        """Where actors write their output, or None."""
        return self.path / "actors" if self.path is not None else None

    @property
    def checkpoints(self) -> CheckpointFolder | None:
        """Where checkpoints are kept, or None."""
        return CheckpointFolder(self.path / "checkpoints") if self.path is not None else None

    def write_text(self, name: str, text: str, mode: int = 0o644) -> None:
        """Write `name` whole."""
        if self.path is None:
            return
        temporary = self.path / f".{name}.tmp"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, self.path / name)

    def write_json(self, name: str, value: Mapping[str, Any], mode: int = 0o644) -> None:
        """Write `value` as strict JSON, whole."""
        self.write_text(name, json.dumps(value, indent=2, allow_nan=False) + "\n", mode)

    def remove(self, name: str) -> None:
        """Remove a file that is true only while the run lives (`http.json`)."""
        if self.path is not None:
            (self.path / name).unlink(missing_ok=True)


def describe_run(seed: int) -> dict[str, Any]:
    """What `meta.json` holds: versions, command, seed, machine and git commit."""
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
            "processor": platform.processor() or platform.machine(),
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


def _git_commit() -> str | None:
    """Commit of the directory the command was given in, with `-dirty`; None where there is no repository."""
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
