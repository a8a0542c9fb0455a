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
from collections.abc import Iterator, Sequence
from typing import Any

_LENGTH = struct.Struct("<Q")
_MAX_FDS = 64


def send_frame(sock: socket.socket, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
    """Send one frame, blocking until the peer's buffer holds it. Raises OSError where the peer is gone."""
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    data = memoryview(_LENGTH.pack(len(body)) + body)
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    sent = sock.sendmsg([data], ancillary)
    if sent < len(data):
        sock.sendall(data[sent:])


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
