"""A socket with frames in both directions, on an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from asyncrl.actors.frames import FrameReader, FrameWriter


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
