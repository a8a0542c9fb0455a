"""Metric files of a run: `metrics.jsonl`, `progress.csv` and TensorBoard events.

An entry is `metrics.flat` of a report (a `Snapshot`) or of an evaluation (its step is the one at which the evaluated
weights were copied). One thread calls the writers. They write immediately, each entry in one
system call: a written entry survives the process, and a failed one leaves nothing.

Writing may fail, for example if the disk is full or the directory is gone. `RunWriters` then warns once (ASYNC040) and
tries again with the next entry. Entries that could not be written are missing; the others are complete.
"""

from __future__ import annotations

import contextlib
import csv
import errno
import io
import itertools
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from asyncrl.errors import FilesNotWritten, warn
from asyncrl.show.kept_run import STEPS, is_logged
from asyncrl.show.metrics import METRIC_NAMES, EvaluationResult, Snapshot, flat
from asyncrl.storage.atomic_file import write_atomically
from asyncrl.storage.disk_space import reason_of


class AppendedFile:
    """File to which records are appended, each in one system call; a failed record leaves nothing.

    If the file or its directory was deleted, the next append creates it again.

    Args:
        path: the file; created if it does not exist.
        begin: first bytes of a new file.

    Raises:
        OSError: the file cannot be created.
    """

    def __init__(self, path: str | os.PathLike[str], begin: bytes = b"") -> None:
        self._path = Path(path)
        self._begin = begin
        self._descriptor: int | None = None
        self.append(b"")

    def append(self, record: bytes) -> None:
        """Append `record`, completely or not at all. Raises OSError if it cannot be written."""
        descriptor = self._open()
        size = os.fstat(descriptor).st_size
        if size == 0:
            record = self._begin + record
        try:
            if os.write(descriptor, record) < len(record):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, size)
            raise

    def close(self) -> None:
        """Close the file; may be called twice."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _open(self) -> int:
        """Descriptor of the file at the path, opened again if the file was deleted."""
        if self._descriptor is not None and os.fstat(self._descriptor).st_nlink == 0:
            self.close()
        if self._descriptor is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._descriptor = os.open(self._path, flags, 0o644)
        return self._descriptor


class JsonlWriter(AppendedFile):
    """One strict JSON object per entry; NaN and infinity are written as null."""

    def write(self, values: Mapping[str, float], env_steps: int) -> None:
        """Append one line."""
        self.append(msgspec.json.encode(values) + b"\n")


class CsvWriter(AppendedFile):
    """One row per entry, with the columns `METRIC_NAMES`, or those of the existing file, which another version wrote.

    Another number of the run, such as the algorithm's `train/*`, which no table has, gets a column behind them when it
    first has a value. The file is then replaced by one in which earlier rows have an empty cell there. Numbers that the
    user logs are only in the other files. An unknown value, or one that is not part of the entry, is an empty cell. An
    evaluation has its environment steps also in `time/total_timesteps`, the axis of a report.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._columns = tuple(_csv_columns(Path(path)) or METRIC_NAMES)
        super().__init__(path, _csv_row(self._columns))

    def write(self, values: Mapping[str, float], env_steps: int) -> None:
        """Append one row."""
        new = [name for name in values if name not in self._columns and not is_logged(name)]
        if new:
            self._widen((*self._columns, *new))
        cells = {STEPS: env_steps, **values}
        self.append(_csv_row([cells.get(column, "") for column in self._columns]))

    def _widen(self, columns: tuple[str, ...]) -> None:
        """Give the file these columns, of which the first ones are its own. Raises OSError; nothing is changed then."""
        begin = _csv_row(columns)
        if self._path.exists():
            empty = b"," * (len(columns) - len(self._columns)) + b"\n"
            with self._path.open("rb") as file:
                next(file, b"")  # the header
                rows = (row.rstrip(b"\n") + empty for row in file)
                write_atomically(self._path, itertools.chain((begin,), rows), mode=0o644, durable=False)
        self._columns, self._begin = columns, begin


def _csv_columns(path: Path) -> Sequence[str]:
    try:
        with path.open(encoding="utf-8", errors="replace", newline="") as file:
            return next(csv.reader(file), [])
    except FileNotFoundError:
        return []


def _csv_row(cells: Sequence[object]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue().encode()


_FILES = itertools.count()
"""Number of the next event file of this process: two runs within a second have the same time."""


class TensorBoardWriter(AppendedFile):
    """TensorBoard scalars over environment steps. Raises ImportError if the extra is not installed."""

    def __init__(self, directory: str | os.PathLike[str], *, clock: Callable[[], float] = time.time) -> None:
        # tensorboard's record writer, not torch's `SummaryWriter`, imports neither torch nor tensorflow. The thread of
        # tensorboard's `EventFileWriter` ends at the first failed write, so that all later writes fail.
        self._records: Any = import_module("tensorboard.summary.writer.record_writer")
        self._events: Any = import_module("tensorboard.compat.proto.event_pb2")
        self._summaries: Any = import_module("tensorboard.compat.proto.summary_pb2")
        self._clock = clock
        name = f"events.out.tfevents.{int(clock()):010d}.{socket.gethostname()}.{os.getpid()}.{next(_FILES)}"
        first = self._events.Event(wall_time=clock(), file_version="brain.Event:2")
        super().__init__(Path(directory) / name, self._record(first))

    def write(self, values: Mapping[str, float], env_steps: int) -> None:
        """Add one event with all values at step `env_steps`."""
        value = self._summaries.Summary.Value
        summary = self._summaries.Summary(
            value=[value(tag=name, simple_value=number) for name, number in values.items()]
        )
        event = self._events.Event(wall_time=self._clock(), step=env_steps, summary=summary)
        self.append(self._record(event))

    def _record(self, event: Any) -> bytes:
        record = io.BytesIO()
        self._records.RecordWriter(record).write(event.SerializeToString())
        return record.getvalue()


class RunWriters:
    """All writers of one run directory.

    Args:
        directory: the run directory; it must exist. TensorBoard's `tb/` is written if the extra is installed.
        check: called before every entry; raises, after a warning, if the directory is no longer the run's.

    Raises:
        OSError: a file cannot be created.
    """

    def __init__(self, directory: str | os.PathLike[str], check: Callable[[], None] = lambda: None) -> None:
        root = Path(directory)
        self._check = check
        self._warned = False
        self._writers: list[JsonlWriter | CsvWriter | TensorBoardWriter] = []
        try:
            self._writers.append(JsonlWriter(root / "metrics.jsonl"))
            self._writers.append(CsvWriter(root / "progress.csv"))
            with contextlib.suppress(ImportError):
                self._writers.append(TensorBoardWriter(root / "tb"))
        except BaseException:
            self.close()
            raise

    def write(self, entry: Snapshot | EvaluationResult) -> None:
        """Write one report or evaluation to all files.

        A writer that fails warns (ASYNC040) and is tried again with the next entry.
        """
        try:
            self._check()
        except OSError:
            return
        for writer in self._writers:
            try:
                writer.write(flat(entry), entry.env_steps)
            except Exception as error:
                self._warn(error)

    def _warn(self, error: Exception) -> None:
        if self._warned:
            return
        self._warned = True
        text = (
            f"[ASYNC040] the run's numbers cannot be written: {reason_of(error)}; training goes on and the next "
            "report is tried again, those that fail are missing in the files; make space, or restore the directory"
        )
        warn(FilesNotWritten(text))

    def close(self) -> None:
        """Close every writer; may be called twice."""
        for writer in self._writers:
            with contextlib.suppress(OSError):
                writer.close()
