"""Small messages between processes over stream sockets: a length, a pickle, and descriptors where needed.

    8 bytes     length of the pickle, little-endian
    n bytes     the pickle; descriptors travel with the first byte of the frame

Both ends are processes of one run, forked from one program, so that pickle's trust in its peer is in place.
"""

from __future__ import annotations

import array
import os
import pickle
import socket
import struct
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

_LENGTH = struct.Struct("<Q")
_MAX_FDS = 64


def send_frame(sock: socket.socket, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
    """Send one frame, blocking until the peer's buffer holds it. Raises OSError where the peer is gone."""
    data = _pack(message)
    sent = sock.sendmsg([data], _ancillary(fds))
    if sent < len(data):
        sock.sendall(data[sent:])


def _pack(message: dict[str, Any]) -> memoryview:
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return memoryview(_LENGTH.pack(len(body)) + body)


def _ancillary(fds: Sequence[int]) -> list[tuple[int, int, array.array[int]]]:
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []


def receive_frame(sock: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Read one frame, blocking: message and descriptors (not inheritable); None where the peer is gone."""
    header, fds = b"", list[int]()
    while len(header) < _LENGTH.size:
        try:
            data, received, _, _ = socket.recv_fds(sock, _LENGTH.size - len(header), _MAX_FDS)
        except ConnectionError:
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
        data = sock.recv(min(missing, 1 << 20))
        if not data:
            return None
        body += data
        missing -= len(data)
    return pickle.loads(body), fds


class FrameWriter:
    """Puts frames into a socket without ever blocking; what its peer has no room for yet waits here."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._queue: deque[tuple[memoryview, list[int]]] = deque()

    def send(self, message: dict[str, Any], fds: Sequence[int] = ()) -> bool:
        """Send a frame, or as much as there is room for; whether all is out. The descriptors may be closed then.

        Raises OSError where a descriptor must be kept for later and there is none left.
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
        """Send what waits, as far as there is room; whether all is out. Of a peer that is gone nothing waits."""
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
        """Send as much as there is room for; returns what is left. Descriptors go with the first byte."""
        try:
            while data:
                data, fds = data[self._sock.sendmsg([data], _ancillary(fds), socket.MSG_DONTWAIT) :], ()
        except BlockingIOError:
            return data, fds
        except OSError:
            return data[:0], ()  # the peer is gone, which its end of the socket tells
        return data, fds

    def clear(self) -> None:
        """Forget what waits."""
        while self._queue:
            _close(self._queue.popleft()[1])


def _close(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)


class FrameReader:
    """Takes frames out of a non-blocking socket as they arrive; for `loop.add_reader` callbacks.

    Attributes:
        eof: the peer is gone, and every complete frame of it was handed out.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._buffer = bytearray()
        self.eof = False

    def frames(self) -> Iterator[dict[str, Any]]:
        """Every frame that is complete now. Never blocks."""
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
