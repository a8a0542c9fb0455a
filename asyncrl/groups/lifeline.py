"""Lifelines: two idle connections between rank 0 and a group, which break at once when either process dies.

Each side waits for a farewell message of the other. A killed process closes its sockets without one.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import torch

from asyncrl.groups.peers import PeerLost, Peers

FAREWELL_SECONDS = 2.0


class Lifeline:
    """One side of the lifelines between rank 0 (side 0) and a group (side 1).

    Args:
        store: the job's store.
        name: name of this pair and this life of the group.
        side: 0 or 1.
        address: address of this rank.
        on_lost: called with the cause when the other side has died; on the lifeline's own thread.
    """

    def __init__(
        self, store: Any, name: str, side: int, address: str, on_lost: Callable[[str], None]
    ) -> None:
        self._side, self._on_lost, self._left = side, on_lost, False
        self._lines = [Peers(store, f"{name}/{speaker}", side, 2, address) for speaker in (0, 1)]
        self._thread = threading.Thread(target=self._watch, name="asyncrl-lifeline", daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        try:
            self._lines[1 - self._side].broadcast(torch.zeros(1), 1 - self._side)
        except PeerLost as error:
            if not self._left:
                self._on_lost(str(error))

    def leave(self) -> None:
        """Send the farewell message and close; idempotent."""
        if self._left:
            return
        self._left = True
        farewell = threading.Timer(FAREWELL_SECONDS, self._lines[self._side].close)
        farewell.start()
        with contextlib.suppress(PeerLost):
            self._lines[self._side].broadcast(torch.ones(1), self._side)
        farewell.cancel()
        self._lines[1 - self._side].close()
        self._thread.join(timeout=FAREWELL_SECONDS)
