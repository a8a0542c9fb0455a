"""Connections of an actor beside its ring: the weight mailbox, the doorbell, a request block."""

from __future__ import annotations

from dataclasses import dataclass

from asyncrl.shm.doorbell import Doorbell
from asyncrl.shm.requests import RequestLayout
from asyncrl.shm.segment import Segment
from asyncrl.shm.weights import WeightMailbox


class RequestBlocks:
    """Request blocks of all actors, and the doorbell that they ring when they ask; owned by the main process.

    Args:
        layout: of every block.
        num_actors: how many.

    Attributes:
        segments: one for each actor.
        doorbell: the server sleeps on it.

    Raises:
        SharedMemoryTooSmall: the blocks do not fit (ASYNC008).
    """

    def __init__(self, layout: RequestLayout, num_actors: int) -> None:
        self.layout = layout
        self.segments: list[Segment] = []
        self.doorbell = Doorbell.create()
        try:
            for i in range(num_actors):
                self.segments.append(Segment.create(f"requests of actor {i}", layout.arrays(), populate=True))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close memory and doorbell; idempotent."""
        self.doorbell.close()
        for segment in self.segments:
            segment.close()


@dataclass(frozen=True)
class Connections:
    """Ways between the actors and the main process, beside the rings; owned by whoever made them.

    Attributes:
        mailbox: where actors find weights.
        doorbell: what they ring when they have published.
        requests: where they ask for their network's outputs; None where they run it themselves.
    """

    mailbox: WeightMailbox
    doorbell: Doorbell
    requests: RequestBlocks | None = None

    def descriptors(self, index: int) -> dict[str, int]:
        """Descriptors to hand to actor `index`, by the names that `worker.py` knows; they stay owned here."""
        bell, bell_pipe = self.doorbell.writer_fds()
        fds = {"weights": self.mailbox.fd, "bell": bell, "bell_pipe": bell_pipe}
        if self.requests is not None:
            bell, bell_pipe = self.requests.doorbell.writer_fds()
            fds |= {"server_bell": bell, "server_bell_pipe": bell_pipe}
            fds["requests"] = self.requests.segments[index].fd
        return fds
