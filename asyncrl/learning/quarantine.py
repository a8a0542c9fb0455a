"""Rings that cannot be trusted, as the learner's thread treats them: given up at once, begun again once abandoned.

What a quarantine is stands in `shm/ring_health.py`. Training goes on with the rows of the other rings meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from asyncrl.shm.ring import RingReader


class Quarantine:
    """Takes rings out of use and back; learner thread only.

    Args:
        rings: all of them.
        give_up: called once with the index of a ring that cannot be trusted: none of its rows is to be used any more.
        begin_again: called with the index of a ring that nobody writes to any more: calls `RingReader.begin_again`.
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

    def look(self) -> None:
        """Treat every ring with a fault."""
        for index, ring in enumerate(self._rings):
            if not ring.fault:
                continue
            if not self._given_up[index]:
                self._given_up[index] = True
                self._give_up(index)
            if ring.abandoned:
                self._begin_again(index)
                self._given_up[index] = False
