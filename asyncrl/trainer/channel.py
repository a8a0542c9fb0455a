"""Messages between a process and those that it has started to train runs for it, over a stream socket.

The socket belongs to processes of one user, so both sides may unpickle what they receive.
"""

from __future__ import annotations

import contextlib
import pickle
import socket
import threading
from typing import Any

from asyncrl.actors.frames import receive_frame, send_frame
from asyncrl.envs.factory_pickle import pack_policy
from asyncrl.errors import AsyncRLError, describe_error

Message = tuple[Any, ...]


class Channel:
    """One end of a connection; `send` from any thread, `receive` from one.

    Args:
        connection: a stream socket, which this object owns.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket, self._lock = connection, threading.Lock()

    def send(self, *message: Any) -> None:
        """Send a message; functions in it may be lambdas. It is dropped if the other end is closed."""
        with self._lock, contextlib.suppress(OSError):
            send_frame(self._socket, message, pickled=_pickled)

    def receive(self) -> Message | None:
        """Wait for the next message; None if the connection has ended."""
        received = receive_frame(self._socket)
        return None if received is None else received[0]

    def close(self) -> None:
        """Close the connection; a waiting `receive` returns None."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def _pickled(message: Message) -> bytes:
    try:
        return pickle.dumps(message)
    except Exception:  # a policy holds its algorithm's functions and its network's factory
        return pack_policy(message)


def sendable(error: BaseException | None) -> BaseException | None:
    """Return `error`, or an `AsyncRLError` with its text if it cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
        return error
    except Exception:
        return AsyncRLError(describe_error(error)) if error is not None else None
