"""Messages between the launcher of a run's groups and the ranks: length-prefixed pickles over a Unix socket.

    rank -> launcher    ("hello", rank, pid), ("url", url, page_url), ("snapshot", Snapshot), ("checkpoint", path),
                        ("outcome", Outcome or None, error or None)
    launcher -> rank    ("stop", reason)

The socket is in a directory that only this user can enter, so both sides may unpickle what they receive.
"""

from __future__ import annotations

import contextlib
import pickle
import socket
import struct
import threading
from dataclasses import dataclass
from typing import Any

from asyncrl.config import TrainerConfig
from asyncrl.envs.factory_pickle import pack_policy
from asyncrl.errors import AsyncRLError
from asyncrl.printable import describe_error
from asyncrl.protocols import Algorithm

SOCKET, JOB = "ranks.sock", "job.pkl"
"""Files of the launcher's directory."""
_LENGTH = struct.Struct("!Q")

Message = tuple[Any, ...]


@dataclass(frozen=True)
class Job:
    """Job of a rank: all options of the run, the environment, and the checkpoint to resume from."""

    config: TrainerConfig
    algorithm: Algorithm
    source: Any
    resumed: Any = None


class Channel:
    """One end of a connection; `send` from any thread, `receive` from one.

    Args:
        connection: a stream socket, which this object owns.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket, self._lock = connection, threading.Lock()

    def send(self, *message: Any) -> None:
        """Send a message; functions in it may be lambdas. Raises OSError if the other end is closed."""
        try:
            data = pickle.dumps(message)
        except Exception:  # a policy holds its algorithm's functions and its network's factory
            data = pack_policy(message)
        with self._lock:
            self._socket.sendall(_LENGTH.pack(len(data)) + data)

    def receive(self) -> Message | None:
        """Wait for the next message; None if the connection has ended."""
        head = self._read(_LENGTH.size)
        body = self._read(_LENGTH.unpack(head)[0]) if head is not None else None
        return None if body is None else pickle.loads(body)

    def _read(self, count: int) -> bytes | None:
        parts = bytearray()
        while len(parts) < count:
            try:
                part = self._socket.recv(min(1 << 20, count - len(parts)))
            except OSError:
                return None
            if not part:
                return None
            parts += part
        return bytes(parts)

    def close(self) -> None:
        """Close the connection; a waiting `receive` returns None."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def sendable(error: BaseException | None) -> BaseException | None:
    """Return `error`, or an `AsyncRLError` with its text if it cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
        return error
    except Exception:
        return AsyncRLError(describe_error(error)) if error is not None else None
