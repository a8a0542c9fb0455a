"""Keyword arguments that the training environments get while a run goes on, from the main process to the actors.

A file in memory that only grows:

    8 bytes     number of bytes of the complete lines, int64
    a line      a change as JSON, for every change

    main process, learner's thread    append a line, then store the number
    actor, before a row               compare the number; read the lines that are new

A change counts from a row on: an episode that begins in that row or later gets its keyword arguments. Relaxed runs
write row 0, so a change holds at once. In lockstep the row is one that no actor was granted yet, and the line is
written before the grant, so that equal runs change their environments at equal rows. The successor of an actor that
died reads the file from its beginning, and so begins with the newest change.
"""

from __future__ import annotations

import dataclasses
import json
import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from asyncrl.options import mapping_from_texts
from asyncrl.shm.atomics import load_word, store_word
from asyncrl.shm.unnamed_file import unnamed_file

WORD_BYTES = 8


@dataclass(frozen=True)
class EnvKwargs:
    """One change of the keyword arguments.

    Attributes:
        number: index of the change in the run, from 1; 0 stands for none.
        texts: all changed keyword arguments as texts (`texts_of_mapping`), over those that the run began with.
        first_row: row of every ring from which it counts.
        env_steps: environment steps that the learner had received at that time.
    """

    number: int = 0
    texts: list[str] = field(default_factory=list)
    first_row: int = 0
    env_steps: int = 0

    @property
    def values(self) -> dict[str, Any]:
        """The keyword arguments by name."""
        return mapping_from_texts(self.texts)


class EnvKwargsWriter:
    """The main process's end.

    Args:
        published: called with every change on the learner's thread, after the actors can see it.

    Attributes:
        newest: the newest change that the actors can see. Written by the learner's thread.

    Raises:
        OSError: the file cannot be made.
    """

    def __init__(self, published: Callable[[EnvKwargs], None] = lambda _: None) -> None:
        self._on_published = published
        self._file = unnamed_file("env_kwargs")
        self._file.truncate(WORD_BYTES)
        self._map = mmap.mmap(self._file.fileno(), WORD_BYTES)
        self._word: Any = np.frombuffer(self._map, np.int64)
        self._offered: EnvKwargs | None = None
        self.newest = EnvKwargs()

    @property
    def fd(self) -> int:
        """File descriptor for the actors; it stays owned here."""
        return self._file.fileno()

    def offer(self, change: EnvKwargs) -> None:
        """Have the learner's thread publish this change, in place of one that was not published yet. Loop thread."""
        self._offered = change

    def begin_with(self, change: EnvKwargs) -> None:
        """Show the change of the run that is resumed, whose actors have it; before the actors start."""
        if change.number:
            self._append(dataclasses.replace(change, first_row=0))

    def publish(self, first_row: int = 0, env_steps: int = 0) -> None:
        """Let the actors see the change that was offered, if there is one. Learner's thread, or before it works."""
        offered = self._offered
        if offered is None or offered.number <= self.newest.number:
            return
        self._append(dataclasses.replace(offered, first_row=first_row, env_steps=env_steps))
        self._on_published(self.newest)

    def _append(self, change: EnvKwargs) -> None:
        line, end = json.dumps(dataclasses.asdict(change)).encode() + b"\n", int(self._word[0])
        os.pwrite(self.fd, line, WORD_BYTES + end)
        store_word(self._word, 0, end + len(line))
        self.newest = change

    def close(self) -> None:
        """Close the file; idempotent."""
        self._word = None
        self._map.close()
        self._file.close()


class EnvKwargsReader:
    """An actor's end of the file `fd`."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._map = mmap.mmap(fd, WORD_BYTES)
        self._word = np.frombuffer(self._map, np.int64)
        self._view = memoryview(self._map).cast("q")  # reading a number takes 30 ns, of an array 80
        self._read = 0
        self._waiting: list[EnvKwargs] = []

    def at(self, row: int) -> EnvKwargs | None:
        """Return the newest change that counts at `row`, unless it was returned before; rows only grow."""
        if self._view[0] != self._read:
            self._read_lines()
        if not self._waiting or self._waiting[0].first_row > row:
            return None
        found = [change for change in self._waiting if change.first_row <= row]
        self._waiting = self._waiting[len(found) :]
        return found[-1]

    def _read_lines(self) -> None:
        end = load_word(self._word, 0)
        lines = os.pread(self._fd, end - self._read, WORD_BYTES + self._read)
        self._read = end
        self._waiting += [EnvKwargs(**json.loads(line)) for line in lines.splitlines()]
