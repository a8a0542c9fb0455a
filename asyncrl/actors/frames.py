"""Frames, small messages between processes over stream sockets: a length, a pickle, and optional file descriptors.

    8 bytes     length of the pickle, little-endian
    n bytes     the pickle; descriptors are sent with the first byte of the frame

Both ends are processes of one run, so unpickling is safe.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import os
import pickle
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

_LENGTH = struct.Struct("<Q")
_MAX_FDS = 64


def _pickled(message: Any) -> bytes:
    return pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)


def send_frame(
    sock: socket.socket,
    message: Any,
    fds: Sequence[int] = (),
    pickled: Callable[[Any], bytes] = _pickled,
) -> None:
    """Send one frame; block until it is in the socket's buffer. Raises OSError if the peer has closed."""
    data = _pack(message, pickled)
    sent = sock.sendmsg([data], _ancillary(fds))
    if sent < len(data):
        sock.sendall(data[sent:])


def _pack(message: Any, pickled: Callable[[Any], bytes] = _pickled) -> memoryview:
    body = pickled(message)
    return memoryview(_LENGTH.pack(len(body)) + body)


def _ancillary(fds: Sequence[int]) -> list[tuple[int, int, array.array[int]]]:
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []


def receive_frame(sock: socket.socket) -> tuple[Any, list[int]] | None:
    """Read one frame, blocking; return message and descriptors (not inheritable), or None when the connection ends."""
    header, fds = b"", list[int]()
    while len(header) < _LENGTH.size:
        try:
            data, received, _, _ = socket.recv_fds(sock, _LENGTH.size - len(header), _MAX_FDS)
        except OSError:
            return None
        for fd in received:
            os.set_inheritable(fd, False)
        fds += received
        if not data:
            return None
        header += data
    body = bytearray()
    missing = _LENGTH.unpack(header)[0]
    while missing:
        try:
            data = sock.recv(min(missing, 1 << 20))
        except OSError:
            data = b""
        if not data:
            return None
        body += data
        missing -= len(data)
    return pickle.loads(body), fds


class FrameWriter:
    """Writer of frames to a socket that never blocks; it queues what does not fit into the socket's buffer."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._queue: deque[tuple[memoryview, list[int]]] = deque()

    def send(self, message: dict[str, Any], fds: Sequence[int] = ()) -> bool:
        """Send a frame, or as much of it as fits, and queue the rest; return whether all is sent.

        The caller may close the descriptors afterwards. Raises OSError if one cannot be duplicated for the queue.
        """
        data = _pack(message)
        if not self._queue:
            data, fds = self._put(data, fds)
            if not data:
                return True
        kept: list[int] = []
        self._queue.append((data, kept))
        try:
            for fd in fds:
                kept.append(os.dup(fd))
        except OSError:
            self._queue.pop()
            _close(kept)
            raise
        return False

    def flush(self) -> bool:
        """Send as much of the queue as fits; return whether it is empty. It is dropped if the peer has closed."""
        while self._queue:
            data, fds = self._queue.popleft()
            data, left = self._put(data, fds)
            if len(left) < len(fds):
                _close(fds)
            if data:
                self._queue.appendleft((data, list(left)))
                return False
        return True

    def _put(self, data: memoryview, fds: Sequence[int]) -> tuple[memoryview, Sequence[int]]:
        """Send as much as fits; return the rest. Descriptors are sent with the first byte."""
        try:
            while data:
                data, fds = data[self._sock.sendmsg([data], _ancillary(fds), socket.MSG_DONTWAIT) :], ()
        except BlockingIOError:
            return data, fds
        except OSError:
            return data[:0], ()  # the peer has closed; the reader reports it as eof
        return data, fds

    def clear(self) -> None:
        """Drop the queue."""
        while self._queue:
            _close(self._queue.popleft()[1])


def _close(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)


class FrameReader:
    """Reader of frames from a socket that never blocks; for `loop.add_reader` callbacks.

    Attributes:
        eof: the peer has closed, and all its data was read.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._buffer = bytearray()
        self.eof = False

    def frames(self) -> Iterator[dict[str, Any]]:
        """Yield the frames that are complete now; never blocks."""
        self._fill()
        while len(self._buffer) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._buffer)[0]
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[_LENGTH.size : end])
            del self._buffer[:end]
            yield pickle.loads(body)

    def _fill(self) -> None:
        while not self.eof:
            try:
                data = self._sock.recv(1 << 16, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            self._buffer += data
            self.eof = not data


class Wire:
    """One end of a socket that carries frames in both directions.

    Attributes:
        loop: event loop that it is attached to, or None.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._reader, self._writer = FrameReader(sock), FrameWriter(sock)
        self.loop: asyncio.AbstractEventLoop | None = None

    @property
    def eof(self) -> bool:
        """Whether the other end is closed."""
        return self._reader.eof

    def attach(self, loop: asyncio.AbstractEventLoop, on_readable: Callable[[], None]) -> None:
        """Register `on_readable` as the callback for incoming data, and send queued frames."""
        self.loop = loop
        loop.add_reader(self._socket.fileno(), on_readable)
        self._send_rest()

    def detach(self) -> None:
        """Remove the callbacks from the loop; idempotent."""
        if self.loop is not None and not self.loop.is_closed() and self._socket.fileno() >= 0:
            self.loop.remove_reader(self._socket.fileno())
            self.loop.remove_writer(self._socket.fileno())
        self.loop = None

    def frames(self) -> Iterator[dict[str, Any]]:
        """Yield the complete frames that have arrived."""
        return self._reader.frames()

    def send(self, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
        """Send a frame with descriptors, at once or as soon as the socket's buffer has room."""
        if not self._writer.send(message, fds):
            self._send_rest()

    def shut_down(self) -> None:
        """Shut both directions down; any thread or signal handler, never blocks."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Detach and close the socket; frames not yet sent are dropped."""
        self.detach()
        self._socket.close()
        self._writer.clear()

    def _send_rest(self) -> None:
        if self.loop is None:
            return
        if self._writer.flush():
            self.loop.remove_writer(self._socket.fileno())
        else:
            self.loop.add_writer(self._socket.fileno(), self._send_rest)
