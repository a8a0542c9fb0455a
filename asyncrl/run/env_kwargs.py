"""Keyword arguments of the training environments that change while a run goes on, as in a curriculum.

    callback           set_env_kwargs(level=2)
    event loop         builds one such environment in a process of its own; an error ends the run in good order
    learner's thread   publishes the change: relaxed at once, else where the next copy for evaluation is made
    actor              makes every episode that begins afterwards in such an environment (`envs/renewal.py`)

In lockstep and synchronous runs the callbacks of an evaluation have ended before the next copy is made
(`WeightSnapshots.in_turn`), so what they set counts from that copy's step on, in every run of the same seed.

`env_kwargs.jsonl` in the run's directory has a line for every change. A checkpoint holds the change that the actors
have, and the newest one, if they do not have it yet.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any

from asyncrl.actors.descriptors import descriptors_or_error
from asyncrl.actors.forkserver import ForkServer
from asyncrl.actors.probe import probe_renewal
from asyncrl.envs.renewal import Renewal
from asyncrl.interfaces import EnvSpec
from asyncrl.options import texts_of_mapping
from asyncrl.run.job import Job
from asyncrl.shm.env_kwargs import EnvKwargs, EnvKwargsWriter
from asyncrl.storage.disk_space import warn_of_file
from asyncrl.storage.resume import Resumption
from asyncrl.storage.run_directory import DirectoryLost, RunDirectory

FILE = "env_kwargs.jsonl"


class EnvKwargsChanges:
    """Changes of the keyword arguments in one run; event-loop thread only.

    Args:
        job: options and environment of the run.
        server: fork server, for the process that tries a change.
        directory: the run's directory.
        fail: ends the run with an error.

    Attributes:
        writer: shows the changes to the actors.
        newest: the newest change, also if the actors cannot see it yet.
    """

    def __init__(
        self,
        job: Job,
        server: ForkServer,
        directory: RunDirectory,
        fail: Callable[[BaseException], None],
    ) -> None:
        self._config, self._source, self._server = job.config, job.source, server
        self._directory, self._fail = directory, fail
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Lock()
        self._lines: list[str] = []
        self.newest = self._tried = EnvKwargs()
        with descriptors_or_error("The run"):
            self.writer = EnvKwargsWriter(self._published)

    @property
    def values(self) -> dict[str, Any]:
        """All keyword arguments of episodes that begin once the newest change counts."""
        return {**self._config.env_kwargs, **self.newest.values}

    def set(self, kwargs: Mapping[str, Any], spec: EnvSpec) -> None:
        """Change these keyword arguments of the training environments; `spec` is theirs.

        A value of another type is a change, for an environment may tell 1 from 1.0 and True.

        Raises:
            TypeError: a value is not a Python literal.
        """
        for name, value in kwargs.items():
            try:
                texts_of_mapping({name: value})
            except ValueError:
                raise TypeError(
                    f"set_env_kwargs takes numbers, texts, lists and other Python literals, got {name}={value!r}; "
                    "give a name or a number that the environment looks up"
                ) from None
        values = {**self.newest.values, **kwargs}
        before = self.values
        if all(name in before and _same(value, before[name]) for name, value in kwargs.items()):
            return
        self.newest = EnvKwargs(self.newest.number + 1, texts_of_mapping(values))
        task = self._loop.create_task(self._offer(self.newest, spec), name="set_env_kwargs")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def settle(self) -> None:
        """Wait until all changes were tried, and offered to the learner's thread or refused."""
        while self._tasks:
            await asyncio.wait(tuple(self._tasks))

    async def _offer(self, change: EnvKwargs, spec: EnvSpec) -> None:
        async with self._turn:
            if change is not self.newest:
                return
            try:
                renewal = Renewal(self._source, spec, change.values)
                await probe_renewal(self._server, renewal, self._config.ready_timeout_seconds)
            except Exception as error:
                self.newest = self._tried
                self._fail(error)
                return
            self._tried = change
            self.writer.offer(change)

    def _published(self, change: EnvKwargs) -> None:
        """Called on the learner's thread."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._write, change)

    def _write(self, change: EnvKwargs) -> None:
        values = {**self._config.env_kwargs, **change.values}
        line = {"number": change.number, "env_steps": change.env_steps, "env_kwargs": values}
        self._lines.append(json.dumps(line, default=repr) + "\n")
        try:
            self._directory.write_text(FILE, "".join(self._lines))
        except DirectoryLost:
            pass  # a warning was given
        except OSError as error:
            warn_of_file(FILE, error)

    def restore(self, resumed: Resumption) -> None:
        """Go on with the changes of an earlier run; before the actors start.

        Raises:
            TypeError, AttributeError: the checkpoint holds something else.
        """
        published = EnvKwargs(**resumed.run["learner"].get("env_kwargs", {}))
        self.newest = self._tried = EnvKwargs(**resumed.run.get("env_kwargs", {}))
        self.writer.begin_with(published)
        self.writer.offer(self.newest)
        if self._directory.path is not None:
            with contextlib.suppress(OSError):
                text = (self._directory.path / FILE).read_text(encoding="utf-8", errors="replace")
                self._lines = [line for line in text.splitlines(True) if _is_kept(line, published.number)]
                self._directory.write_text(FILE, "".join(self._lines))

    def state(self) -> dict[str, Any]:
        """The newest change, for a checkpoint; the learner's state holds the one that the actors see."""
        return dataclasses.asdict(self.newest)

    async def close(self) -> None:
        """End the processes that try changes, and close the file."""
        for task in self._tasks:
            task.cancel()
        await self.settle()
        self.writer.close()


def _same(value: Any, before: Any) -> bool:
    """Whether two Python literals have one text: 1, 1.0 and True do not."""
    return texts_of_mapping({"_": value}) == texts_of_mapping({"_": before})


def _is_kept(line: str, newest: int) -> bool:
    """Whether a line of the file is that of a change up to the `newest`; a damaged line is left out."""
    try:
        return bool(json.loads(line)["number"] <= newest)
    except (LookupError, TypeError, ValueError):
        return False
