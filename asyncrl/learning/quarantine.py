"""Treatment of faulty rings by the learner's thread: given up immediately, restarted once abandoned.

`shm/ring_health.py` defines the quarantine. Training continues with the rows of the other rings meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from asyncrl.shm.ring import RingReader


class Quarantine:
    """Removal of faulty rings from use, and their restart; learner thread only.

    Args:
        rings: all rings.
        give_up: called once per fault with the index of the ring, whose rows must not be used any more.
        begin_again: called with the index of a faulty ring that has no writer any more; calls `RingReader.begin_again`.
    """

    def __init__(
        self,
        rings: Sequence[RingReader],
        give_up: Callable[[int], object],
        begin_again: Callable[[int], None],
    ) -> None:
        self._rings = tuple(rings)
        self._give_up = give_up
        self._begin_again = begin_again
        self._given_up = [False] * len(self._rings)

    def check(self) -> None:
        """Give up rings with a new fault, and restart abandoned ones."""
        for index, ring in enumerate(self._rings):
            if not ring.fault:
                continue
            if not self._given_up[index]:
                self._given_up[index] = True
                self._give_up(index)
            if ring.abandoned:
                self._begin_again(index)
                self._given_up[index] = False
