"""Shared code of all benchmarks: repeats, medians, and a result file that describes the machine and the versions.

report = Report("transport")
report.add("ring_rows_per_second", values, "rows/s")        # one value per repeat
report.add_ratio("ring_to_memcpy", ours, theirs)            # repeat by repeat, measured in one run
report.add("sb3_seconds", values, "s", sides={"sb3": Side.of(results)})     # whose figure, with which resources
report.write()                                              # prints, and writes results/transport.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

FOLDER = Path(__file__).resolve().parents[1]
"""The folder of the benchmarks."""
PACKAGES = ("numpy", "numba", "torch", "gymnasium")


def usable_cores() -> int:
    """Cores that this process and its children may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class Side:
    """Resources of one side of a comparison.

    Attributes:
        cores: cores that its processes may use.
        environments: environments that it stepped in parallel.
        versions: its packages, if it ran in another Python environment than this script.
    """

    cores: int
    environments: int
    versions: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, results: Sequence[Mapping[str, Any]]) -> Side:
        """Make the side of these results from their `cores`, `environments` and, for a peer, `versions`.

        Raises:
            ValueError: the results differ, so that they cannot be one figure.
        """
        first, *others = [cls(r["cores"], r["environments"], r.get("versions", {})) for r in results]
        if unlike := [side for side in others if side != first]:
            raise ValueError(f"results of one figure must have one side, got {first} and {unlike[0]}")
        return first


class Report:
    """Figures of one run of one script.

    Args:
        name: name of the result file without suffix.
        packages: distributions whose versions are recorded, in addition to `PACKAGES`.
    """

    def __init__(self, name: str, packages: Sequence[str] = ()) -> None:
        self.name = name
        self.figures: dict[str, dict[str, Any]] = {}
        self.notes: dict[str, Any] = {}
        self._peers: dict[str, Mapping[str, str]] = {}
        self._packages = (*PACKAGES, *packages)
        self._started = time.perf_counter()
        self._load = os.getloadavg()

    def add(
        self,
        key: str,
        values: Sequence[float],
        unit: str,
        goal: str | None = None,
        sides: Mapping[str, Side] | None = None,
    ) -> float:
        """Record one value per repeat, and its side or the two sides of a ratio. Returns the median."""
        figure: dict[str, Any] = {"median": median(values), "unit": unit, "values": list(values)}
        if goal is not None:
            figure["goal"] = goal
        if sides:
            figure["sides"] = {
                name: {"cores": side.cores, "environments": side.environments} for name, side in sides.items()
            }
            self._peers |= {name: side.versions for name, side in sides.items() if side.versions}
        self.figures[key] = figure
        of = f"   ({goal})" if goal else ""
        print(
            f"{key:58} {figure['median']:16,.4g} {unit:10} {min(values):,.4g} .. {max(values):,.4g}{of}",
            flush=True,
        )
        return float(figure["median"])

    def add_ratio(
        self,
        key: str,
        numerators: Sequence[float],
        denominators: Sequence[float],
        goal: str | None = None,
        sides: Mapping[str, Side] | None = None,
    ) -> float:
        """Record the ratios of values that were measured next to each other; returns their median."""
        ratios = [n / d for n, d in zip(numerators, denominators, strict=True)]
        return self.add(key, ratios, "x", goal, sides)

    def note(self, key: str, value: Any) -> None:
        """Record something that is not a figure, such as settings, or the reason why a peer is absent."""
        self.notes[key] = value

    def add_table(self, headings: Sequence[str], rows: Sequence[Sequence[Any]], key: str = "table") -> str:
        """Print a table, and note its lines; returns its Markdown."""
        table = markdown(headings, rows)
        print(table)
        self.note(key, table.splitlines())
        return table

    def write(self, folder: Path = FOLDER / "results") -> Path:
        """Write figures, machine, versions, commit, command and its duration as JSON; returns the path.

        `load_average_before` is from the creation of this report: the load of other work. `versions` are those of this
        interpreter, or a peer's if this one lacks the package; `peers` has all versions of each peer.
        """
        seconds = time.perf_counter() - self._started
        record = {
            "name": self.name,
            "command": shlex.join(["python", "-m", _module(), *_portable(sys.argv[1:])]),
            "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "commit": commit(),
            "script_seconds": round(seconds, 1),
            "machine": {**machine(), "load_average_before": [round(load, 2) for load in self._load]},
            "versions": self._versions(),
            "peers": {name: dict(versions) for name, versions in self._peers.items()},
            "notes": self.notes,
            "figures": self.figures,
        }
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.name}.json"
        path.write_text(json.dumps(record, indent=1) + "\n")
        print(f"{path} after {seconds / 60:.1f} min", flush=True)
        return path

    def _versions(self) -> dict[str, str | None]:
        theirs = {name: v for versions in self._peers.values() for name, v in versions.items()}
        return {name: _version(name) or theirs.get(name) for name in self._packages}


def script_parser(description: str | None) -> argparse.ArgumentParser:
    """Parser of a script's flags; `--help` shows its docstring as it is written."""
    return argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def by_turns(repeats: int, measures: Mapping[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Values of every measure, one per repeat; the measures take turns, so that other load meets all alike."""
    values: dict[str, list[float]] = {name: [] for name in measures}
    for _ in range(repeats):
        for name, measure in measures.items():
            values[name].append(measure())
    return values


def markdown(headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table in Markdown; floats with three digits, None as a dash."""

    def word(cell: Any) -> str:
        return "-" if cell is None else f"{cell:.3g}" if isinstance(cell, float) else str(cell)

    lines = [headings, ["---"] * len(headings), *([word(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _module() -> str:
    """Name of the script that runs, as `python -m` takes it."""
    path = Path(os.path.relpath(sys.argv[0], FOLDER.parent)).with_suffix("")
    return ".".join(path.parts).removesuffix(".__main__")


def _portable(arguments: Sequence[str]) -> list[str]:
    """Arguments without this machine's folders: an absolute path is reduced to its last part."""
    return [os.path.basename(a) if os.path.isabs(a) else a for a in arguments]


def machine() -> dict[str, Any]:
    """Processor, cores, memory, system, and the present load."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if "model name" in line
        ]
        cpu = names[0] if names else cpu
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "usable_cores": usable_cores(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
    }


def commit(checkout: Path = FOLDER) -> str | None:
    """The git commit of a checkout, this one by default, with `-dirty` if tracked files differ; None without git."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        return subprocess.run(
            command, cwd=checkout, capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
