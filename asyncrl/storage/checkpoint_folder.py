"""Folder `checkpoints/` of a run: its files and their names."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from asyncrl.storage.atomic_file import sync_directory
from asyncrl.storage.checkpoint import save
from asyncrl.storage.checkpoint_meta import CheckpointMeta
from asyncrl.storage.replay_file import SUFFIX
from asyncrl.storage.tensor_file import refused


class CheckpointFolder:
    """Folder `checkpoints/` of a run: `latest`, `best`, and the newest few files named by their environment steps.

    `latest` and `best` are hard links to a numbered file: they need no space, and remain when that file is removed. On
    a file system without hard links they are copies. Called from one thread at a time.
    """

    def __init__(self, directory: Path, keep: int = 3) -> None:
        """Use `directory`, created at the first save; `keep` is the number of numbered files to keep."""
        if keep < 1:
            raise ValueError(f"keep must be at least 1, got {keep}")
        self.directory = directory
        self.keep = keep

    def save(
        self, state: Mapping[str, Any], meta: CheckpointMeta, *, best: bool = False, latest: bool = True
    ) -> Path:
        """Write `<env_steps>`, link it as `latest` and `best` if so set, remove the oldest; returns the path.

        A checkpoint with rows (`replay_file.py`) removes the rows of those before it: only one rows file is kept.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        for left_by_a_kill in self.directory.glob(".*.tmp"):
            left_by_a_kill.unlink(missing_ok=True)
        path = self.directory / str(meta.env_steps)
        save(path, state, meta)
        for name in ("latest",) * latest + ("best",) * best:
            self._name(path, name)
        rows = state["run"].get("rows") if "run" in state else None
        for before in self.directory.glob(f"*{SUFFIX}") if rows is not None else ():
            if before.name != rows:
                before.unlink(missing_ok=True)
        for old in self.steps()[: -self.keep]:
            (self.directory / str(old)).unlink(missing_ok=True)
        return path

    def steps(self) -> list[int]:
        """Environment steps of the existing numbered files, ascending."""
        if not self.directory.is_dir():
            return []
        return sorted(int(path.name) for path in self.directory.iterdir() if path.name.isdecimal())

    def file(self, name: str) -> Path:
        """Path of the checkpoint `name`. Raises `CheckpointError`, which names those that exist, if there is none."""
        file = self.directory / name
        if file.exists():
            return file
        there = sorted(found.name for found in self.directory.glob("[!.]*") if found.suffix != SUFFIX)
        run = self.directory.parent
        if not there and (run / "config.toml").exists():
            what = f"the run in {run} has no checkpoint: it ended before it saved one"
            raise refused(file, what, "open", "train again, in another directory")
        if not there:
            what = f"{run} is no run's directory, or its run has saved nothing: there are no checkpoints"
            raise refused(file, what, "open", "name the directory of a run, or a policy file")
        what = f"the run has no checkpoint {name!r}; it has {', '.join(there)}"
        raise refused(file, what, "open", "choose one of these")

    def _name(self, path: Path, name: str) -> None:
        temporary = self.directory / f".{name}.{os.getpid()}.tmp"
        temporary.unlink(missing_ok=True)
        try:
            os.link(path, temporary)
        except OSError:  # a file system without hard links
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            shutil.copyfile(path, temporary)
        temporary.replace(self.directory / name)
        sync_directory(self.directory)
