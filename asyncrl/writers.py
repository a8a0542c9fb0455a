"""Files that keep a run's numbers: `metrics.jsonl`, `progress.csv` and TensorBoard events.

Each writer takes a whole `Snapshot` and writes `asyncrl.metrics.flat` of it. They are called by one thread and write
at once: a report that was written survives the process. A run that goes on after a crash appends to what is there; an
incomplete last line is cut off first.
"""

from __future__ import annotations

import csv
import os
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Protocol

import msgspec

from asyncrl.metrics import METRIC_NAMES, Snapshot, flat


class MetricWriter(Protocol):
    """Where reports go."""

    def write(self, snapshot: Snapshot) -> None:
        """Keep one report. Raises OSError where the file cannot be written."""
        ...

    def close(self) -> None:
        """Flush and close; may be called twice."""
        ...


class JsonlWriter:
    """One strict JSON object per report; NaN and infinity are written as null."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        _cut_torn_line(Path(path))
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115

    def write(self, snapshot: Snapshot) -> None:
        """Append one line in one system call."""
        self._file.write(msgspec.json.encode(flat(snapshot)) + b"\n")

    def close(self) -> None:
        """Close the file; may be called twice."""
        self._file.close()


class CsvWriter:
    """A row per report under a header that never changes.

    The columns are `METRIC_NAMES` and the names in `extra`; where the file exists already its own header
    holds. A value that is not known yet is an empty cell; a metric that has no column is left to the JSONL
    file.
    """

    def __init__(self, path: str | os.PathLike[str], *, extra: Sequence[str] = ()) -> None:
        _cut_torn_line(Path(path))
        self._file: IO[str] = open(path, "a+", newline="", encoding="utf-8", buffering=1)  # noqa: SIM115
        self._file.seek(0)
        header = next(csv.reader(self._file), None)
        self.columns: tuple[str, ...] = tuple(header or (*METRIC_NAMES, *extra))
        self._rows = csv.writer(self._file, lineterminator="\n")
        if header is None:
            self._rows.writerow(self.columns)

    def write(self, snapshot: Snapshot) -> None:
        """Append one row."""
        values = flat(snapshot)
        self._rows.writerow([values.get(column, "") for column in self.columns])

    def close(self) -> None:
        """Close the file; may be called twice."""
        self._file.close()


class TensorBoardWriter:
    """Scalars as TensorBoard events over environment steps. Raises ImportError without the extra."""

    def __init__(self, directory: str | os.PathLike[str], *, clock: Callable[[], float] = time.time) -> None:
        # tensorboard's own writer, not torch's wrapper around it: no torch and no tensorflow is imported.
        files = import_module("tensorboard.summary.writer.event_file_writer")
        self._events: Any = import_module("tensorboard.compat.proto.event_pb2")
        self._summaries: Any = import_module("tensorboard.compat.proto.summary_pb2")
        self._writer: Any = files.EventFileWriter(os.fspath(directory), flush_secs=10)
        self._clock = clock
        self._closed = False

    def write(self, snapshot: Snapshot) -> None:
        """Add one event with every known metric at `snapshot.env_steps`."""
        value = self._summaries.Summary.Value
        summary = self._summaries.Summary(
            value=[value(tag=name, simple_value=number) for name, number in flat(snapshot).items()]
        )
        event = self._events.Event(wall_time=self._clock(), step=snapshot.env_steps, summary=summary)
        self._writer.add_event(event)

    def close(self) -> None:
        """Flush and close; may be called twice."""
        if not self._closed:
            self._closed = True
            self._writer.close()


class RunWriters:
    """All writers of one run directory behind one `write`.

    Args:
        directory: the run's directory; it must exist.
        tensorboard: True writes `tb/` and raises ImportError where the extra is missing, None writes it
            where the extra is installed, False never does.
    """

    def __init__(self, directory: str | os.PathLike[str], *, tensorboard: bool | None = None) -> None:
        root = Path(directory)
        self._writers: list[MetricWriter] = [
            JsonlWriter(root / "metrics.jsonl"),
            CsvWriter(root / "progress.csv"),
        ]
        if tensorboard is False:
            return
        try:
            self._writers.append(TensorBoardWriter(root / "tb"))
        except ImportError:
            if tensorboard:
                self.close()
                raise ImportError(
                    "TensorBoard was asked for and is not installed: pip install 'asyncrl[tensorboard]'"
                ) from None

    def write(self, snapshot: Snapshot) -> None:
        """Give one report to every writer."""
        for writer in self._writers:
            writer.write(snapshot)

    def close(self) -> None:
        """Close every writer; may be called twice."""
        for writer in self._writers:
            writer.close()


def _cut_torn_line(path: Path) -> None:
    """Truncate `path` after its last newline: a killed process may leave half a line."""
    if not path.exists() or path.stat().st_size == 0:
        return
    with open(path, "rb+") as file:
        content = file.read()
        if not content.endswith(b"\n"):
            file.truncate(content.rfind(b"\n") + 1)
