"""A run's `checkpoints/`: which files stand there and under which names."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from asyncrl.storage.checkpoint_format import sync_directory
from asyncrl.storage.checkpoint_meta import CheckpointMeta
from asyncrl.storage.replay_file import SUFFIX


class CheckpointFolder:
    """A run's `checkpoints/`: `latest`, `best`, and the newest few by the step they were taken at.

    `latest` and `best` are second names (hard links) of a numbered file, so they cost nothing and stay when
    that file is dropped. Called from one thread at a time.
    """

    def __init__(self, directory: Path, keep: int = 3) -> None:
        """Use `directory`, made at the first save; `keep` is how many numbered files stay."""
        if keep < 1:
            raise ValueError(f"keep must be at least 1, got {keep}")
        self.directory = directory
        self.keep = keep

    def save(
        self, state: Mapping[str, Any], meta: CheckpointMeta, *, best: bool = False, latest: bool = True
    ) -> Path:
        """Write `<env_steps>`, name it `latest` (and `best`) too, drop the oldest; returns its path.

        A file that names rows (`replay_file.py`) drops the rows of those before it: they are kept once.
        """
        from asyncrl.storage.checkpoint import (
            save,  # imports torch, which whoever looks at a run does without
        )

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
        """Environment steps of the numbered files that are there, ascending."""
        if not self.directory.is_dir():
            return []
        return sorted(int(path.name) for path in self.directory.iterdir() if path.name.isdecimal())

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
