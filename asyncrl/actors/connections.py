"""Connections of an actor beside its ring: weight mailbox, doorbell, changed keyword arguments, a request block."""

from __future__ import annotations

from dataclasses import dataclass

from asyncrl.shm.doorbell import Doorbell
from asyncrl.shm.env_kwargs import EnvKwargsWriter
from asyncrl.shm.requests import RequestLayout
from asyncrl.shm.segment import Segment
from asyncrl.shm.weights import WeightMailbox


class RequestBlocks:
    """Request blocks of all actors, and the doorbell that they ring after a request; owned by the main process.

    Attributes:
        segments: one for each actor.
        doorbell: doorbell on which the inference server sleeps.

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
    """Connections between the actors and the main process, beside the rings; owned by their creator.

    Attributes:
        mailbox: the weight mailbox.
        doorbell: doorbell that actors ring after publishing.
        env_kwargs: keyword arguments that the environments get while the run goes on.
        requests: request blocks for their network's outputs; None if they run the network themselves.
    """

    mailbox: WeightMailbox
    doorbell: Doorbell
    env_kwargs: EnvKwargsWriter
    requests: RequestBlocks | None = None

    def descriptors(self, index: int) -> dict[str, int]:
        """File descriptors for actor `index`, by the names that `worker.py` uses; they stay owned here."""
        bell, bell_pipe = self.doorbell.writer_fds()
        fds = {"weights": self.mailbox.fd, "bell": bell, "bell_pipe": bell_pipe}
        fds["env_kwargs"] = self.env_kwargs.fd
        if self.requests is not None:
            bell, bell_pipe = self.requests.doorbell.writer_fds()
            fds |= {"server_bell": bell, "server_bell_pipe": bell_pipe}
            fds["requests"] = self.requests.segments[index].fd
        return fds
