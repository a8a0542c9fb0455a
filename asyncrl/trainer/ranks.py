"""Launcher of a run of several groups on this machine; it replaces `Run` in the process that starts them.

launcher (this process) ── torch's elastic agent ── rank 0, rank 1, ...   each a whole run (`rank.py`)
snapshots, result   <── a socket ──  rank 0
stop                ── the sockets ──>  every rank

Messages are length-prefixed pickles over a Unix socket:

    rank -> launcher    ("hello", rank, pid), ("url", url, page_url), ("snapshot", Snapshot), ("checkpoint", path),
                        ("result", rank, TrainResult or None, error or None)
    launcher -> rank    ("stop", reason), and to rank 0 ("log", numbers by name)

The socket is in a directory that only this user can enter, so both sides may unpickle what they receive.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import platform
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncrl.envs.factory_pickle import pack_policy
from asyncrl.errors import GroupLost, ResourceError, StoppedWhileStarting
from asyncrl.run.callbacks import Callbacks
from asyncrl.run.job import Job
from asyncrl.run.logged import LoggedMetrics
from asyncrl.shm.free_memory import available_bytes
from asyncrl.show.metrics import Snapshot
from asyncrl.trainer.channel import Channel, Message

if TYPE_CHECKING:
    from asyncrl.groups.launch import Failure, Launch
    from asyncrl.run.result import TrainResult

SOCKET, JOB = "ranks.sock", "job.pkl"
"""Files of the launcher's directory."""

STOPPED = "The run was stopped while its groups started; it leaves no policy."

END_SECONDS = 15.0
"""Time limit for the other ranks to end after rank 0, before they are killed."""
LOST_SECONDS = 20.0
"""Time limit for all ranks to end after one has reported a lost rank, before they are killed; it may be suspended."""
LAST_MESSAGES_SECONDS = 10.0
"""Time limit for the last messages of a rank that has ended."""

RANK_BYTES = 128 << 20
"""Memory that a rank's process has at least to itself: 179 MiB were measured once torch is imported, without actors."""
MOST_PATH_BYTES = 64
"""Longest temporary folder (`TMPDIR`) for the ranks' socket, whose whole path may have about 100 bytes; else `/tmp`."""


class Ranks:
    """One run of several groups; made and used on the run's event-loop thread, like `Run`.

    Args:
        job: the whole run.
        on_snapshot: called on the loop thread with every snapshot of rank 0.
        trainer, callbacks: see `Run`; the callbacks are called on the launcher's loop at the messages of rank 0.
        logged: the numbers that the user logs, which rank 0 gets after every snapshot.

    Attributes:
        url, page_url, result, callbacks: see `Run`; those of rank 0.
    """

    def __init__(
        self,
        job: Job,
        on_snapshot: Callable[[Snapshot], None],
        trainer: Any = None,
        callbacks: Sequence[Any] = (),
        logged: LoggedMetrics | None = None,
    ) -> None:
        self.url: str | None = None
        self.page_url: str | None = None
        self.result: TrainResult | None = None
        self.callbacks = Callbacks(trainer, callbacks, self.stop, lambda error: self.stop("stopped"))
        self._config, self._job = job.config, job
        self._on_snapshot, self._logged = on_snapshot, logged or LoggedMetrics()
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[list[Failure]] = self._loop.create_future()
        self._channels: dict[int, Channel] = {}
        self._pids: dict[int, int] = {}
        self._errors: dict[int, BaseException] = {}
        self._reason: str | None = None
        self._killed = False
        self._directory: Path | None = None
        self._evaluations = 0 if job.resumed is None else len(job.resumed.run["evaluations"]["return_mean"])
        self._receivers: list[threading.Thread] = []
        self._accepting = threading.Lock()

    def stop(self, reason: str = "stopped") -> None:
        """End the run in the normal order; the first reason counts. Loop thread only."""
        if self._reason is None:
            self._reason = reason
            for channel in list(self._channels.values()):
                channel.send("stop", reason)

    def write_logged(self) -> None:
        """Nothing: rank 0, which writes the files, has ended before `on_end`."""

    def kill(self) -> None:
        """Kill every rank at once and remove their directory; any thread. Their actors end with them.

        The process may end right after it.
        """
        self._killed = True  # also the ranks that are still to come
        if self._ended.done():  # the numbers of these processes may be those of others by now
            return
        for pid in list(self._pids.values()):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if self._directory is not None:
            remove(self._directory)

    async def run(self) -> TrainResult:
        """Start the ranks, relay their messages and wait for their end. Raises the error that ended the run."""
        from asyncrl.groups.launch import Launch

        if self._reason is not None:
            raise StoppedWhileStarting(STOPPED)
        _require_memory(self._config.groups)
        with _folder() as folder:
            directory = self._directory = Path(folder)
            (directory / JOB).write_bytes(pickle.dumps(sys.path) + pack_policy(self._job))
            if self._job.resumed is not None:
                self._job.resumed.release()
            with self._listening(directory):
                launch = Launch(
                    (sys.executable, "-m", "asyncrl.trainer.rank", folder),
                    self._config.groups,
                    alone=self._config.fusion == "async",
                    max_restarts=self._config.max_restarts if self._config.fusion == "async" else 0,
                    on_end=lambda failures: self._on_loop(self._ranks_ended, failures),
                )
                try:
                    failures = await asyncio.shield(self._ended)
                finally:
                    await self._close(launch)
        error = self._error(failures)
        if error is not None:
            raise error
        if self.result is None:
            raise StoppedWhileStarting(STOPPED)
        return self.result

    @contextlib.contextmanager
    def _listening(self, directory: Path) -> Iterator[None]:
        """Accept the ranks' connections at the socket in `directory`; at the end close it and them."""
        listener = socket.socket(socket.AF_UNIX)
        try:
            listener.bind(str(directory / SOCKET))
            listener.listen()
            threading.Thread(target=self._accept, args=(listener,), name="asyncrl-ranks", daemon=True).start()
            yield
        finally:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
            listener.close()
            for channel in self._channels.values():
                channel.close()

    async def _close(self, launch: Launch) -> None:
        """End the remaining ranks, and receive their last messages."""
        if not self._ended.done():  # this task was cancelled
            self.stop("interrupted")
            await asyncio.wait((self._ended,), timeout=END_SECONDS)
            self.kill()
        await asyncio.to_thread(launch.join, END_SECONDS)
        with self._accepting:
            receivers = list(self._receivers)
        for thread in receivers:  # they may still read, or wait for the interpreter
            await asyncio.to_thread(thread.join, LAST_MESSAGES_SECONDS)

    def _error(self, failures: list[Failure]) -> BaseException | None:
        """Error that ended the run, None without one: rank 0's own, else that of the first rank that failed.

        An error of rank 0 that another rank has failed is not shown in place of that rank's error. Where a rank has
        died while all started, the agent has stopped the others, whose errors say only that.
        """
        from asyncrl.groups.launch import describe_failure

        if self.result is not None and 0 not in self._errors:
            return None
        known = [self._errors[rank] for rank in sorted(self._errors)]
        if known and (0 not in self._errors or isinstance(known[0], GroupLost | StoppedWhileStarting)):
            known.sort(key=lambda error: isinstance(error, GroupLost | StoppedWhileStarting))
        only_stopped = not self._killed and all(isinstance(error, StoppedWhileStarting) for error in known)
        if not failures or (known and not only_stopped):
            return known[0] if known else None
        texts = [describe_failure(failure, platform.node()) for failure in failures]
        return GroupLost(
            f"The run ended: {texts[0]}.",
            facts={"ranks": "; ".join(texts)},
            fix="look at the output of that rank above; `dmesg` tells of a process that the kernel has killed",
        )

    def _ranks_ended(self, failures: list[Failure]) -> None:
        if not self._ended.done():
            self._ended.set_result(failures)

    # --- messages ----------------------------------------------------------------------------------------------------

    def _on_loop(self, function: Callable[..., None], *args: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(function, *args)

    def _accept(self, listener: socket.socket) -> None:
        """Accept the ranks' connections; each gets a thread that receives its messages."""
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            receiver = threading.Thread(
                target=self._receive_all, args=(Channel(connection),), name="asyncrl-rank", daemon=True
            )
            with self._accepting:  # `_close` can join a thread only once it has started
                receiver.start()
                self._receivers.append(receiver)

    def _receive_all(self, channel: Channel) -> None:
        try:
            while (message := channel.receive()) is not None:
                self._on_loop(self._receive, channel, message)
        except Exception as error:  # the result holds something that only the rank can import
            self._on_loop(self._note_error, 0, error)
        channel.close()

    def _receive(self, channel: Channel, message: Message) -> None:
        kind, *values = message
        if kind == "hello":
            rank, self._pids[rank] = values[0], values[1]
            self._channels[rank] = channel
            self._errors.pop(rank, None)  # of a process that was started again
            if self._killed:
                self.kill()
            if self._reason is not None:
                channel.send("stop", self._reason)
        elif kind == "url":
            self.url, self.page_url = values
        elif kind == "snapshot":
            self._show(values[0])
        elif kind == "checkpoint":
            self.callbacks.checkpoint(values[0])
        elif kind == "result":
            rank, result, error = values
            if error is not None:
                self._note_error(rank, error)
            if rank == 0:  # the run has ended, whatever the other ranks do
                self.result = result
                self.stop("stopped")
                self._loop.call_later(END_SECONDS, self.kill)
            elif isinstance(error, GroupLost):  # rank 0 may be the lost one, and never report
                self._loop.call_later(LOST_SECONDS, self.kill)

    def _note_error(self, rank: int, error: BaseException) -> None:
        self._errors[rank] = error

    def _show(self, snapshot: Snapshot) -> None:
        if snapshot.state == "training" and not self.callbacks.started:
            with contextlib.suppress(Exception):  # kept in `Callbacks.error` and raised at the end
                self.callbacks.start()
        self._on_snapshot(snapshot)
        known, evaluations = self._evaluations, snapshot.evaluations
        thinned = known > len(evaluations)
        for evaluation in evaluations[-1:] if thinned else evaluations[known:]:
            self.callbacks.evaluation(evaluation)
        self._evaluations = len(evaluations) or known
        self.callbacks.report(snapshot)
        if 0 in self._channels and (values := self._logged.take()):
            self._channels[0].send("log", values)


def _require_memory(groups: int) -> None:
    """Raise ResourceError if the processes of the ranks alone need more memory than there is."""
    needed, there = groups * RANK_BYTES, available_bytes()
    if needed > there:
        raise ResourceError(
            f"The memory is too small for {groups:,} groups.",
            facts={
                "needed": f"{needed:,} bytes for their learners' processes alone",
                "there": f"{there:,} bytes",
            },
            fix="lower groups",
        )


def remove(directory: Path) -> None:
    """Remove the files of a launcher, and its directory if it is empty then; nothing happens if they are gone."""
    for gone in (directory / SOCKET, directory / JOB):
        with contextlib.suppress(OSError):
            gone.unlink()
    with contextlib.suppress(OSError):
        directory.rmdir()


def _folder() -> tempfile.TemporaryDirectory[str]:
    """Temporary folder of the job and the socket, whose path must be short. Raises `ResourceError` without one."""
    try:
        long = len(os.fsencode(tempfile.gettempdir())) > MOST_PATH_BYTES
        return tempfile.TemporaryDirectory(prefix="asyncrl-ranks-", dir="/tmp" if long else None)
    except OSError as error:
        raise ResourceError(
            f"Several groups need a temporary directory that can be written: {error.strerror or error}.",
            fix="set TMPDIR to a directory that can be written, or train with groups=1",
        ) from error
