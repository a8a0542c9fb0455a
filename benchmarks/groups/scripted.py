"""One rank of `fusions.py`: a session whose learner adds scripted integers, and a log of every fused vector.

A record is written before its message is sent, by one unbuffered call, so a killed process leaves all that it has sent.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.config import TrainerConfig
from asyncrl.groups import connecting
from asyncrl.groups.async_fusion import FusedWeights
from asyncrl.groups.peers import PeerLost
from asyncrl.groups.place import Place
from asyncrl.groups.session import Session
from asyncrl.networks.flat_vector import FlatVector

RANKS, SIZE, MAX_STALENESS, LOST_EXIT = 3, 16, 4, 3
MULTIPLE = {"gradients": 60, "average": 60, "async": 1}
"""Every scripted value is a multiple of this, so that every mean of up to three, weighted or not, is an integer."""
START, SNAPSHOT, FUSED, TAKEN, GRADIENT, SAVED, END = range(7)
RECORD = np.dtype(
    [("kind", "i8"), ("a", "i8"), ("b", "i8"), ("c", "i8"), ("d", "i8"), ("x", "f4", SIZE), ("y", "f4", SIZE)]
)
_CHUNK = 4096


class Script:
    """Scripted deltas `[updates, SIZE]` of one life of a rank; its own column counts its updates."""

    def __init__(self, mode: str, attempt: int, rank: int, life: int) -> None:
        self._mode, self._rank, self._seed = mode, rank, (attempt, rank, life)
        self._chunks: dict[int, NDArray[np.float32]] = {}

    def __getitem__(self, update: int) -> NDArray[np.float32]:
        number, at = divmod(update, _CHUNK)
        if number not in self._chunks:
            chunk = np.random.default_rng((*self._seed, number)).integers(-4, 5, (_CHUNK, SIZE))
            chunk[:, :RANKS] = 0
            chunk[:, self._rank] = 1
            self._chunks[number] = (chunk * MULTIPLE[self._mode]).astype(np.float32)
        row: NDArray[np.float32] = self._chunks[number][at]
        return row

    def samples(self, update: int) -> int:
        """Number of samples of the gradient of an update, 1 or 2."""
        return 1 + (update + self._rank) % 3 % 2

    def sum(self, start: int, end: int) -> NDArray[np.float64]:
        """Sum of the deltas from `start` up to `end`."""
        return np.sum([self[u] for u in range(start, end)], axis=0, dtype=np.float64) + np.zeros(SIZE)


class Log:
    """Records of one process; any thread."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def add(self, kind: int, *numbers: int, x: Any = 0.0, y: Any = 0.0) -> None:
        record = np.zeros(1, RECORD)
        record["kind"], record["x"], record["y"] = kind, x, y
        for name, number in zip("abcd", numbers, strict=False):
            record[name] = number
        os.write(self._file, record.tobytes())


class DyadicWeights(FusedWeights):
    """Fused weights of `async` whose deltas count 2^-s, so that every sum is exact; logs every delta."""

    log: Log
    _turn = threading.Lock()

    def weight(self, staleness: int) -> float:
        return 2.0**-staleness

    def take(self, delta: Tensor, base: int, out: Tensor) -> tuple[int, int]:
        with self._turn:
            version, staleness = super().take(delta, base, out)
            name = threading.current_thread().name
            rank = int(name.rpartition("-")[2]) if name.startswith("asyncrl-group-") else 0
            self.log.add(TAKEN, rank, base, version, staleness, x=delta.numpy(), y=out.numpy())
            return version, staleness


class Recorder:
    """A fuser of a rank that logs what goes in and what comes out."""

    def __init__(self, fuser: Any, log: Log) -> None:
        self._fuser, self._log, self.updates = fuser, log, 0

    def _base(self) -> Any:
        for name in ("base", "_base", "anchor"):
            if hasattr(self._fuser, name):
                return getattr(self._fuser, name).numpy()
        raise AssertionError("a fuser has the last fused vector")

    def begin(self, snapshot: Tensor, finished: bool) -> None:
        version = getattr(self._fuser, "_version", 0)
        self._log.add(SNAPSHOT, self.updates, version, finished, x=snapshot.numpy(), y=self._base())
        self._fuser.begin(snapshot, finished)

    def end(self) -> tuple[Tensor, bool]:
        fused, final = self._fuser.end()
        self._log.add(FUSED, getattr(self._fuser, "_version", 0), final, x=fused.numpy())
        return fused, final

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fuser, name)


class Core:
    """Updater that is a vector alone."""

    def __init__(self, start: NDArray[np.float32]) -> None:
        self.vector = FlatVector(torch.from_numpy(start.copy()), torch.zeros(SIZE))

    def state_dict(self) -> Mapping[str, Any]:
        return {"weights": self.vector.parameters.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.vector.parameters.copy_(state["weights"])


class Learner:
    """Learner of one rank, with random delays."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options, self._folder = options, Path(options.folder)
        name = f"{options.attempt}-{options.rank}-{options.life}"
        self._log = DyadicWeights.log = Log(self._folder / f"{name}.log")
        saved = self._folder / "checkpoint.npy"
        self.core = Core(np.load(saved) if saved.exists() else np.zeros(SIZE, np.float32))
        self._script = Script(options.mode, options.attempt, options.rank, options.life)
        self._lost, self._random = threading.Event(), random.Random()
        self._saves = options.rank == 0
        self._recorder: Recorder | None = None
        self._fusions = 0

    def run(self, session: Session) -> None:
        from asyncrl.groups.state import packed

        session.attach(
            self.core,
            status=lambda: {"env_steps": 0},
            state=lambda: packed(self.core.state_dict()),
            on_stop=lambda _: None,
            on_failure=lambda _: self._lost.set(),
            on_beat=lambda _: None,
        )
        fusion: Any = session._fusion
        if self._options.mode != "gradients":
            self._recorder = fusion._fuser = Recorder(fusion._fuser, self._log)
        vector = self.core.vector
        self._log.add(START, getattr(self._recorder, "_version", 0), x=vector.parameters.numpy())
        session.wait_for_others()
        update = self._learn(fusion)
        session.finish()
        self._log.add(END, update, x=vector.parameters.numpy())

    def _learn(self, fusion: Any) -> int:
        """Make updates until the file `stop` is there; returns their number."""
        vector, stop = self.core.vector, self._folder / "stop"
        for update in itertools.count():
            if update % 16 == 0 and stop.exists():
                return update
            if self._lost.is_set():
                raise PeerLost("told")
            vector.begin_update()
            if self._options.mode == "gradients":
                self._step(update)
            else:
                vector.parameters.add_(torch.from_numpy(self._script[update]))
                assert self._recorder is not None
                self._recorder.updates = update + 1
                self._wait(fusion)
            if self._saves and update % 97 == 96:
                self._save(update + 1)
        raise AssertionError

    def _step(self, update: int) -> None:
        vector, samples = self.core.vector, self._script.samples(update)
        vector.gradient.copy_(torch.from_numpy(self._script[update]))
        self._log.add(GRADIENT, update, samples, x=vector.gradient.numpy())
        vector.begin_step(samples)
        self._log.add(FUSED, update, x=vector.gradient.numpy())
        vector.parameters.add_(vector.gradient)
        if self._random.random() < 0.01:
            time.sleep(0.02 * self._random.random())

    def _wait(self, fusion: Any) -> None:
        """Wait for the running fusion sometimes, else a few fusions would hold all updates; sleep sometimes."""
        if self._random.random() < (0.3 if self._options.rank < 2 else 0.1):
            while fusion.running and not fusion._fuser.done() and not self._lost.is_set():
                time.sleep(1e-5)
        elif self._random.random() < 0.02:
            time.sleep(0.01 * self._random.random())

    def _save(self, updates: int) -> None:
        weights = self.core.vector.parameters.numpy()
        self._log.add(SAVED, updates, x=weights)
        temporary = self._folder / "checkpoint.tmp.npy"
        np.save(temporary, weights)
        os.replace(temporary, self._folder / "checkpoint.npy")


def main_of_rank(arguments: list[str], output: Path) -> None:
    """Run a rank in a process of its own whose standard streams are appended to the file `output`."""
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    sys.exit(main(arguments))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("mode", "folder"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("rank", "port", "attempt", "life"):
        parser.add_argument(f"--{name}", type=int, required=True)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    vars(connecting)["FusedWeights"] = DyadicWeights
    agents = RANKS if options.mode == "async" else 1
    place = Place(options.rank, RANKS, "127.0.0.1", options.port, options.life, agents)
    fusion = {"fusion": options.mode, "fusion_interval": 1, "max_fusion_staleness": MAX_STALENESS}
    session = Session(place, TrainerConfig(env="any", algo="any", **fusion), {})
    try:
        Learner(options).run(session)
    except PeerLost as error:
        print(session.explain(error), flush=True)
        return LOST_EXIT
    finally:
        session.leave()
    return 0
