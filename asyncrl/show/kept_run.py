"""Reader of a run directory, after the run or while it goes on: options, outcome and metrics.

It uses the standard library only, so that listing runs imports nothing else. A file that is missing, incomplete or of
another version is read as far as possible: unknown values are None or empty.
"""

from __future__ import annotations

import fcntl
import functools
import json
import math
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LOCK = ".lock"
"""Lock file that a run holds while it uses its directory; it contains the process id."""
EVALUATION, STEPS = "eval/mean_reward", "time/total_timesteps"
LOCATION = ("trainer.run_dir", "trainer.env_file")
"""Options that name a run's location, in which any two runs differ."""
DEPTH = 3
"""Depth of subfolders that are searched for runs."""


@dataclass(frozen=True)
class KeptRun:
    """One run's directory.

    Attributes:
        path: the directory.
    """

    path: Path

    @functools.cached_property
    def options(self) -> dict[str, dict[str, Any]]:
        """Tables of `config.toml`."""
        try:
            read = tomllib.loads((self.path / "config.toml").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return {name: table for name, table in read.items() if isinstance(table, dict)}

    @functools.cached_property
    def summary(self) -> dict[str, Any]:
        """`summary.json`; empty before the run's end."""
        return _json(self.path / "summary.json")

    @functools.cached_property
    def meta(self) -> dict[str, Any]:
        """`meta.json`."""
        return _json(self.path / "meta.json")

    @functools.cached_property
    def pid(self) -> int | None:
        """Process that holds the directory's lock; 0 if its id is unknown, None if no process holds it."""
        try:
            descriptor = os.open(self.path / LOCK, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            found = re.match(rb"pid (\d+)", os.pread(descriptor, 100, 0))
            return int(found[1]) if found else 0
        except OSError:
            return None
        finally:
            os.close(descriptor)
        return None

    @property
    def state(self) -> str:
        """`running`, `finished`, `stopped`, `interrupted`, `failed`, or `killed` if no summary says how it ended."""
        if self.pid is not None:
            return "running"
        return str(self.summary.get("state") or "killed")

    @property
    def env(self) -> str:
        """The environment's id, "" if unknown."""
        return str(self._option("env") or "")

    @property
    def algo(self) -> str:
        """The algorithm's name, "" if unknown."""
        return str(self._option("algo") or "")

    @property
    def seed(self) -> int | None:
        """Seed of the run."""
        return integer(self._option("seed"))

    def _option(self, name: str) -> Any:
        return self.options.get("trainer", {}).get(name, self.summary.get(name))

    def lines(self, containing: str = "") -> Iterator[dict[str, Any]]:
        """Entries of `metrics.jsonl` in order; only lines that contain the text `containing`."""
        try:
            with (self.path / "metrics.jsonl").open(encoding="utf-8") as file:
                for line in file:
                    if containing in line and (entry := _object(line)):
                        yield entry
        except (OSError, UnicodeDecodeError):
            return

    @functools.cached_property
    def evaluations(self) -> list[tuple[int, float]]:
        """Environment steps and mean return of every greedy evaluation."""
        entries = self.lines(f'"{EVALUATION}"')
        return [
            (integer(entry.get("eval/total_timesteps")) or integer(entry.get(STEPS)) or 0, mean)
            for entry in entries
            if (mean := number(entry.get(EVALUATION))) is not None
        ]

    @property
    def best(self) -> float | None:
        """Highest mean return of a greedy evaluation."""
        return max((value for _, value in self.evaluations), default=None)

    @property
    def final(self) -> float | None:
        """Mean return of the final evaluation, or of the last one."""
        final = number(table(self.summary, "eval").get("return_mean"))
        return final if final is not None else next((value for _, value in self.evaluations[::-1]), None)

    @property
    def env_steps(self) -> int:
        """Environment steps so far."""
        final = integer(self.summary.get("env_steps"))
        if self.pid is None and final is not None:
            return final
        return max((integer(entry.get(STEPS)) or 0 for entry in self.lines()), default=0)

    @property
    def changed(self) -> float:
        """Time of the last write to the run's summary, metrics or options, in seconds since 1970; 0.0 without files."""
        times = [
            (self.path / name).stat().st_mtime
            for name in ("summary.json", "metrics.jsonl", "config.toml")
            if (self.path / name).exists()
        ]
        return max(times, default=0.0)


def is_run(path: Path) -> bool:
    """Whether the directory is a run directory."""
    return (path / "config.toml").is_file() and ((path / LOCK).exists() or (path / "checkpoints").is_dir())


def find_runs(folder: Path) -> list[KeptRun]:
    """Runs in a folder and its subfolders, or the folder itself if it is a run; the last written is the last."""
    found = [KeptRun(path) for path in _run_paths(folder, DEPTH)]
    return sorted(found, key=lambda run: (run.changed, run.path))


def _run_paths(folder: Path, depth: int) -> Iterator[Path]:
    if is_run(folder):
        yield folder
    elif depth > 0 and folder.is_dir():
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink() and not path.name.startswith("."):
                yield from _run_paths(path, depth - 1)


def differing_options(runs: list[KeptRun]) -> dict[str, list[Any]]:
    """Options that differ between runs, without `LOCATION`: by `table.option` each run's value, None if it has none."""
    tables = [
        {
            f"{name}.{option}": value
            for name, options in run.options.items()
            for option, value in options.items()
        }
        for run in runs
    ]
    names = dict.fromkeys(name for table in tables for name in table if name not in LOCATION)
    rows = {name: [table.get(name) for table in tables] for name in names}
    return {name: values for name, values in rows.items() if any(value != values[0] for value in values)}


def table(record: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The table `name` of a file's record, empty if it is missing or no table."""
    found = record.get(name)
    return found if isinstance(found, dict) else {}


def number(value: Any) -> float | None:
    """A number of a file, None for anything else."""
    return value if isinstance(value, int | float) else None


def integer(value: Any) -> int | None:
    """A whole number of a file, None for anything else."""
    found = number(value)
    return int(found) if found is not None and math.isfinite(found) else None


def _json(path: Path) -> dict[str, Any]:
    try:
        return _object(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return {}


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:  # the incomplete last line of a killed run
        return {}
    return value if isinstance(value, dict) else {}
