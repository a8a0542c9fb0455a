"""Reader of a run directory, after the run or while it goes on: options, outcome and metrics.

It uses the standard library only, so that listing runs imports nothing else. A file that is missing, incomplete or of
another version is read as far as possible: unknown values are None or empty. One odd directory must not keep a folder's
other runs from being listed: what is no regular file is not opened, and neither sizes nor nesting are trusted.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import json
import math
import os
import re
import stat
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from asyncrl.show.pickle_digest import pickle_digest

LOCK = ".lock"
"""Lock file that a run holds while it uses its directory; it contains the process id."""
GROUPS = "groups"
"""Folder of the directories of a run's groups but the first."""
LABELS = "labels.json"
"""File of the tags and the note that `asyncrl ui` writes."""
SECTIONS = ("rollout", "time", "train", "eval", "async", "system")
"""Sections of the public names of the run's metrics, in the order of the columns of `progress.csv`.

Any other name in `metrics.jsonl` is one that the user has logged.
"""
EVALUATION, STEPS = "eval/mean_reward", "time/total_timesteps"
DEPTH = 3
"""Depth of subfolders that are searched for runs."""
MOST_BYTES = 16 << 20
"""Largest file of options, summary or machine that is read."""
MOST_METRICS_BYTES = 1 << 30
"""Largest `metrics.jsonl` that is read."""
MOST_LINE = 1 << 20
"""Most characters of a line of `metrics.jsonl`."""
PICKLES = {
    "environment.pkl": "environment",
    "evaluation_environment.pkl": "evaluation_environment",
    "network.pkl": "network_function",
    "functions.pkl": "functions",
}
"""Files of options that are functions, with the name by which runs are compared."""
LARGEST = 1e300
"""Numbers from here on are not read."""


@dataclass(frozen=True)
class KeptRun:
    """One run's directory."""

    path: Path

    @functools.cached_property
    def options(self) -> dict[str, dict[str, Any]]:
        """Tables of `config.toml`."""
        try:
            read = tomllib.loads(read_text(self.path / "config.toml"))
        except (OSError, ValueError, RecursionError):
            return {}
        return {name: table for name, table in read.items() if isinstance(table, dict)}

    @functools.cached_property
    def functions(self) -> dict[str, str]:
        """Digest of every file of options that are functions, by a name of `PICKLES`; nothing is unpickled."""
        found = {}
        for file, name in PICKLES.items():
            with (
                contextlib.suppress(OSError, ValueError),
                opened(self.path / file, MOST_BYTES) as opened_file,
            ):
                found[name] = pickle_digest(opened_file.buffer.read(), self.seed)
        return found

    @functools.cached_property
    def summary(self) -> dict[str, Any]:
        """`summary.json`; empty before the run's end."""
        return _json(self.path / "summary.json")

    @functools.cached_property
    def meta(self) -> dict[str, Any]:
        """`meta.json`."""
        return _json(self.path / "meta.json")

    @functools.cached_property
    def labels(self) -> dict[str, Any]:
        """`labels.json`: `tags` and `note` that somebody has given the run, each may be missing."""
        return _json(self.path / LABELS)

    @property
    def tags(self) -> list[str]:
        """Tags of the run."""
        tags = self.labels.get("tags")
        return [tag for tag in tags if isinstance(tag, str)] if isinstance(tags, list) else []

    @property
    def note(self) -> str:
        """Note on the run, "" if there is none."""
        return str(self.labels.get("note") or "")

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
    def page(self) -> tuple[str, str] | None:
        """Address and token of its live page, by `http.json`; None without that file, which a killed run leaves."""
        held = _json(self.path / "http.json")
        if not {"url", "token"} <= held.keys():
            return None
        return str(held["url"]).partition("#")[0].rstrip("/"), str(held["token"])

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
            with opened(self.path / "metrics.jsonl", MOST_METRICS_BYTES, errors="replace") as file:
                while line := file.readline(MOST_LINE):  # a longer line comes in parts, which are no JSON
                    if containing in line and (entry := _object(line)):
                        yield entry
        except OSError:
            return

    @functools.cached_property
    def evaluations(self) -> list[tuple[int, float]]:
        """Environment steps and mean return of every evaluation."""
        entries = self.lines(f'"{EVALUATION}"')
        return [
            (integer(entry.get("eval/total_timesteps")) or integer(entry.get(STEPS)) or 0, mean)
            for entry in entries
            if (mean := number(entry.get(EVALUATION))) is not None
        ]

    def last_values(self) -> dict[str, float]:
        """The last finite value of every number in `metrics.jsonl`, in the order of their first values."""
        found: dict[str, float] = {}
        for entry in self.lines():
            for name, value in entry.items():
                if (last := finite(value)) is not None:
                    found[name] = float(last)
        return found

    @property
    def best(self) -> float | None:
        """Highest mean return of an evaluation."""
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
        times = [0.0]
        for name in ("summary.json", "metrics.jsonl", "config.toml"):
            with contextlib.suppress(OSError):
                times.append((self.path / name).stat().st_mtime)
        return max(times)


def is_logged(name: str) -> bool:
    """Whether a name in `metrics.jsonl` is one that the user has logged, not one of the run's metrics."""
    section, slash, _ = name.partition("/")
    return not (slash and section in SECTIONS)


def is_run(path: Path) -> bool:
    """Whether the directory is a run directory; a run that fails before its options are written has a summary only."""
    try:
        return any((path / name).is_file() for name in ("config.toml", "summary.json")) and (
            (path / LOCK).exists() or (path / "checkpoints").is_dir()
        )
    except OSError:  # not readable for this user
        return False


def find_runs(folder: Path) -> list[KeptRun]:
    """Runs in a folder and its subfolders, or the folder itself if it is a run; the last written is the last."""
    found = [KeptRun(path) for path in _run_paths(folder, DEPTH)]
    return sorted(found, key=lambda run: (run.changed, run.path))


def runs_within(run: Path) -> list[KeptRun]:
    """Other runs in the subfolders of a run's directory, into which `find_runs` does not look."""
    folders = [folder for folder in _subfolders(run) if folder.name != GROUPS]
    return [KeptRun(path) for folder in folders for path in _run_paths(folder, DEPTH - 1)]


def _run_paths(folder: Path, depth: int) -> Iterator[Path]:
    if is_run(folder):
        yield folder
    elif depth > 0:
        for path in _subfolders(folder):
            yield from _run_paths(path, depth - 1)


def _subfolders(folder: Path) -> list[Path]:
    """Folders in a folder without links and hidden ones; none if it cannot be read or vanishes."""
    try:
        with os.scandir(folder) as entries:
            names = [
                e.name for e in entries if e.is_dir(follow_symlinks=False) and not e.name.startswith(".")
            ]
    except OSError:
        return []
    return [folder / name for name in names]


def table(record: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The table `name` of a file's record, empty if it is missing or no table."""
    found = record.get(name)
    return found if isinstance(found, dict) else {}


def number(value: Any) -> float | None:
    """A number of a file, None for anything else, also for one that no float holds."""
    return value if isinstance(value, int | float) and not abs(value) >= LARGEST else None


def finite(value: Any) -> float | None:
    """A finite number of a file, None for anything else."""
    found = number(value)
    return found if found is not None and math.isfinite(found) else None


def integer(value: Any) -> int | None:
    """A whole number of a file, None for anything else."""
    found = finite(value)
    return None if found is None else int(found)


@contextlib.contextmanager
def opened(path: Path, most_bytes: int, errors: str = "strict") -> Iterator[TextIO]:
    """Open a text file that anybody may have made. Raises OSError, also if it is no regular file or too large."""
    # O_NONBLOCK: opening a pipe without a writer would block.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, encoding="utf-8", errors=errors) as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        if os.fstat(descriptor).st_size > most_bytes:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
        yield file


def read_text(path: Path) -> str:
    """Content of a small text file. Raises OSError as `opened` does, or UnicodeDecodeError."""
    with opened(path, MOST_BYTES) as file:
        return file.read()


def _json(path: Path) -> dict[str, Any]:
    try:
        return _object(read_text(path))
    except (OSError, UnicodeDecodeError):
        return {}


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):  # an incomplete line of a killed run; a file of another program
        return {}
    return value if isinstance(value, dict) else {}
