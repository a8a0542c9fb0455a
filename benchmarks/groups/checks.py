"""Checks of the logs of `fusions.py`: each fused vector against its definition, computed from the script."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.groups.scripted import (
    END,
    FUSED,
    GRADIENT,
    MAX_STALENESS,
    RANKS,
    RECORD,
    SAVED,
    SIZE,
    SNAPSHOT,
    START,
    TAKEN,
    Script,
)

Logs = dict[tuple[int, int], NDArray[Any]]
"""Records of one attempt by rank and life."""


class Wrong(AssertionError):
    """A logged vector is not what its definition says."""


def read(path: Path) -> NDArray[Any]:
    """Whole records of a log."""
    data = path.read_bytes()
    return np.frombuffer(data[: len(data) // RECORD.itemsize * RECORD.itemsize], RECORD)


def of(log: NDArray[Any], kind: int) -> NDArray[Any]:
    """Records of one kind."""
    found: NDArray[Any] = log[log["kind"] == kind]
    return found


class Checker:
    """Checks one mode's logs in the order of its attempts.

    Attributes:
        fusions: number of fusions, each counted once.
        vectors: number of vectors compared, all equal to the bit.
        discarded: number of deltas that were too stale.
    """

    def __init__(self, mode: str, folder: Path) -> None:
        self.fusions = self.vectors = self.discarded = 0
        self._mode, self._folder = mode, folder
        self._saved = [np.zeros(SIZE)]

    def check(self) -> None:
        """Check all attempts. Raises `Wrong`."""
        attempts: dict[int, Logs] = {}
        for path in self._folder.glob("*.log"):
            attempt, rank, life = map(int, path.stem.split("-"))
            attempts.setdefault(attempt, {})[rank, life] = read(path)
        for attempt, logs in sorted(attempts.items()):
            starts = of(logs.get((0, 0), np.zeros(0, RECORD)), START)
            if not len(starts):
                continue  # it ended before it began
            start = starts[0]["x"].astype(np.float64)
            if not any(np.array_equal(start, saved) for saved in self._saved):
                raise Wrong(f"attempt {attempt} starts from weights that were never saved")
            scripts = {key: Script(self._mode, attempt, *key) for key in logs}
            check = {"gradients": self._gradients, "average": self._average, "async": self._async}
            check[self._mode](start, logs, scripts)
            self._saved += [record["x"].astype(np.float64) for record in of(logs[0, 0], SAVED)]

    def _same(self, found: NDArray[Any], expected: NDArray[Any], what: str) -> None:
        if not np.array_equal(found.astype(np.float64), expected):
            raise Wrong(f"{self._mode}: {what}: found {found.tolist()}, expected {expected.tolist()}")
        self.vectors += 1

    def _gradients(self, start: NDArray[Any], logs: Logs, scripts: dict[Any, Script]) -> None:
        given = {key: of(log, GRADIENT) for key, log in logs.items()}
        fused = {key: of(log, FUSED) for key, log in logs.items()}
        weights, saved = start.copy(), {int(r["a"]): r["x"] for r in of(logs[0, 0], SAVED)}
        rounds = max(len(records) for records in fused.values())
        for update in range(rounds):
            total, samples = np.zeros(SIZE), 0
            for key, records in given.items():
                if update < len(records):  # otherwise it had finished, with weight 0
                    own = scripts[key].samples(update)
                    self._same(records[update]["x"], scripts[key][update].astype(np.float64), "gradient")
                    total, samples = total + own * scripts[key][update], samples + own
            for records in fused.values():
                if update < len(records):
                    self._same(records[update]["x"], total / samples, f"mean gradient {update}")
            weights += total / samples
            if update + 1 in saved:
                self._same(saved[update + 1], weights, "checkpoint")
        self.fusions += rounds
        for log in logs.values():
            for end in of(log, END):
                self._same(end["x"], weights, "final weights")

    def _average(self, start: NDArray[Any], logs: Logs, scripts: dict[Any, Script]) -> None:
        snapshots = {key: of(log, SNAPSHOT) for key, log in logs.items()}
        fused = {key: of(log, FUSED) for key, log in logs.items()}
        anchors, made, learn = [start], dict.fromkeys(logs, 0), RANKS
        for number in range(max(len(records) for records in fused.values())):
            total, finished = np.zeros(SIZE), 0
            for key, records in snapshots.items():
                upto = int(records[number]["a"])
                learned = scripts[key].sum(made[key], upto)
                self._same(records[number]["x"], anchors[-1] + learned, f"snapshot {number} of {key}")
                total, made[key] = total + learned, upto
                finished += bool(records[number]["c"])
            anchors.append(anchors[-1] + total / learn)
            learn = RANKS - finished  # in the rounds to come
            for records in fused.values():
                if number < len(records):
                    self._same(records[number]["x"], anchors[-1], f"fusion {number}")
        self.fusions += len(anchors) - 1
        self._average_checkpoints(logs[0, 0], anchors, scripts[0, 0])
        for log in logs.values():
            for end in of(log, END):
                self._same(end["x"], anchors[-1], "final weights")
        for key, log in logs.items():
            if any(int(end["a"]) != made[key] for end in of(log, END)):
                raise Wrong(f"average: not all that {key} has learned was fused")

    def _average_checkpoints(self, log: NDArray[Any], anchors: list[NDArray[Any]], script: Script) -> None:
        """Rank 0's weights between fusions: the last fused vector and what it has learned since that snapshot."""
        applied = begun = since = 0
        for record in log:
            if record["kind"] == SNAPSHOT:
                begun = int(record["a"])
            elif record["kind"] == FUSED:
                applied, since = applied + 1, begun
            elif record["kind"] == SAVED:
                expected = anchors[applied] + script.sum(since, int(record["a"]))
                self._same(record["x"], expected, "checkpoint")

    def _async(self, start: NDArray[Any], logs: Logs, scripts: dict[Any, Script]) -> None:
        taken = of(logs[0, 0], TAKEN)
        versions, version = [start], 0
        for record in taken:
            staleness = version - int(record["b"])
            if staleness <= MAX_STALENESS:
                versions.append(versions[-1] + record["x"].astype(np.float64) / 2**staleness)
                version += 1
            else:
                self.discarded += 1
            if (int(record["c"]), int(record["d"])) != (version, staleness):
                raise Wrong(
                    f"async: version {record['c']}, staleness {record['d']}, not {version, staleness}"
                )
            self._same(record["y"], versions[version], f"version {version}")
        self.fusions += len(taken)
        for rank in range(RANKS):
            lives = sorted(key for key in logs if key[0] == rank)
            left = taken[taken["a"] == rank]
            for key in lives:
                left = self._one_life(logs[key], scripts[key], left, versions)
            if len(left):
                raise Wrong(f"async: {len(left)} deltas of rank {rank} were fused that it has not sent")

    def _one_life(
        self, log: NDArray[Any], script: Script, taken: NDArray[Any], versions: list[NDArray[Any]]
    ) -> NDArray[Any]:
        """Check that rank 0 has taken the deltas of one life, each once and in order; returns those of later lives."""
        sent, made = of(log, SNAPSHOT), 0
        for number, record in enumerate(sent):
            upto = int(record["a"])
            delta = script.sum(made, upto)
            self._same(record["x"].astype(np.float64) - record["y"], delta, "delta of a snapshot")
            made = upto
            arrived = number < len(taken) and int(taken[number]["b"]) == int(record["b"])
            if not (arrived and np.array_equal(taken[number]["x"].astype(np.float64), delta)):
                if number < len(sent) - 1 or len(of(log, END)):
                    raise Wrong(f"async: delta {number} of {len(sent)} was lost")
                sent = sent[:-1]  # the process was killed before the message had left
        for record in of(log, FUSED):
            self._same(record["x"], versions[int(record["a"])], "version of a group")
        for end in of(log, END):
            if made != int(end["a"]):
                raise Wrong(f"async: the last {int(end['a']) - made} updates of a group were not sent")
        return taken[len(sent) :]
