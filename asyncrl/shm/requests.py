"""Request block of an actor: shared memory for its inference requests and the server's answers.

With `inference="server"` an actor runs no network. Its observations are in shared memory already, in its ring (or, with
a frame stack, in `stacks` of this block). The block has one part, or two parts, the halves of the environments: one
half is stepped while the other waits.

    words of a part, written by            meaning
    REQUESTED        actor                 number of the newest request
    SLOT             actor                 slot of the ring with its observations
    WAIT_NS          actor                 nanoseconds slept while waiting for answers
    ANSWERED         server                number of the newest answered request
    VERSION, UPDATES server                policy version of the answer, and learner updates of that version
    WAITING          both                  handshake before the actor sleeps

    outputs    [E, outputs]                network outputs; an answer writes the rows of its part
    parameters [parts, n]                  other weights that the policy reads: a Gaussian's log standard deviations
    stacks     [E, k, *obs_shape]          written by the actor

Order: an actor stores SLOT and then REQUESTED (release). The server reads both, runs the network, writes the outputs
and then ANSWERED (release). A part has one request at a time, so neither side overwrites data that the other still
reads.

Wake-ups: after a request the actor fences and rings the server's doorbell if the server sleeps (`doorbell.py`). An
actor without an answer sets WAITING, fences, checks again, and sleeps on its socket, which also reports the end of the
run. After ANSWERED the server fences, clears WAITING and sends the actor a byte.

**Death.** A killed actor leaves at most one request per part. The server may still answer it; the answer is not read.
The next life of the actor continues counting from REQUESTED and accepts only the answers to its own requests: one
thread writes the answers, in the order of requests. If the server ends, the run ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.shm.atomics import compare_exchange, fence, load_acquire, load_word, store_release
from asyncrl.shm.doorbell import DoorbellWriter, take_bell
from asyncrl.shm.kernel import kernel
from asyncrl.shm.ring import RingReader
from asyncrl.shm.segment import ArraySpec, Segment, drop_views

REQUESTED, SLOT, WAIT_NS = 0, 1, 2
ANSWERED, VERSION, UPDATES = 16, 17, 18
WAITING = 32
WORDS = 48
"""Words of a part: three blocks of 128 bytes, for the actor, the server, and the handshake."""


@dataclass(frozen=True)
class RequestLayout:
    """Layout of a request block, shared by both sides; picklable, without torch.

    Attributes:
        num_envs: E.
        outputs: number of network outputs.
        parts: 1, or 2 halves of the environments; of an odd number the first has one more.
        parameters: number of other weights that the policy acts with.
        stack: `(k, *obs_shape)` of a frame stack; empty if the network takes single observations, those of the ring.
        dtype: of observations.
        num_agents: N, streams of one environment, which all are in one part.
    """

    num_envs: int
    outputs: int
    parts: int = 1
    parameters: int = 0
    stack: tuple[int, ...] = ()
    dtype: str = "float32"
    num_agents: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.parts <= min(2, self.num_envs // self.num_agents):
            raise ValueError(f"parts must be 1, or 2 of at least 2 environments, got {self.parts}")

    @property
    def slices(self) -> tuple[slice, ...]:
        """Streams of each part."""
        environments = self.num_envs // self.num_agents
        middle = -(-environments // self.parts) * self.num_agents
        return (slice(0, middle), slice(middle, self.num_envs))[: self.parts]

    def arrays(self) -> tuple[ArraySpec, ...]:
        """All arrays of the block's segment."""
        stacks = (ArraySpec("stacks", (self.num_envs, *self.stack), self.dtype),) if self.stack else ()
        return (
            ArraySpec("header", (WORDS * self.parts,), "int64", control=True),
            ArraySpec("outputs", (self.num_envs, self.outputs), "float32"),
            ArraySpec("parameters", (self.parts, max(1, self.parameters)), "float32"),
            *stacks,
        )


@kernel("boolean(int64[::1], int64, int64, int64, int64[::1])", nogil=False)
def post_request(
    header: NDArray[np.int64], part: int, count: int, slot: int, armed: NDArray[np.int64]
) -> bool:
    """Actor: request the outputs of the observations in `slot`; returns whether it must ring."""
    header[part * WORDS + SLOT] = slot
    store_release(header, part * WORDS + REQUESTED, count)
    fence()
    return take_bell(armed)


@kernel("boolean(int64[::1], int64, int64)", nogil=False)
def must_wait(header: NDArray[np.int64], part: int, count: int) -> bool:
    """Actor: set WAITING, then check again; returns whether request `count` is still unanswered."""
    store_release(header, part * WORDS + WAITING, 1)
    fence()
    if load_acquire(header, part * WORDS + ANSWERED) != count:
        return True
    store_release(header, part * WORDS + WAITING, 0)
    return False


@kernel("boolean(int64[::1], int64, int64, int64, int64)", nogil=False)
def post_answer(header: NDArray[np.int64], part: int, count: int, version: int, updates: int) -> bool:
    """Server: mark request `count` as answered; returns whether the actor sleeps and must be woken."""
    base = part * WORDS
    header[base + VERSION], header[base + UPDATES] = version, updates
    store_release(header, base + ANSWERED, count)
    fence()
    waiting: bool = load_acquire(header, base + WAITING) == 1 and compare_exchange(
        header, base + WAITING, 1, 0
    )
    return waiting


def newest_requests(header: NDArray[np.int64], layout: RequestLayout) -> list[int]:
    """Number of the newest request of each part (acquire)."""
    return [load_word(header, part * WORDS + REQUESTED) for part in range(layout.parts)]


class ActorRequests:
    """Actor's end of a request block; one per block at any time, used by one thread.

    A new life of the actor on an old block ignores the requests of the previous one.

    Attributes:
        layout: layout of the block.
        stacks: `[E, k, *obs_shape]`, written by the actor; None without a frame stack.
    """

    def __init__(
        self, segment: Segment, layout: RequestLayout, doorbell: DoorbellWriter | None = None
    ) -> None:
        self.layout = layout
        self._segment = segment
        self._header: NDArray[np.int64] = segment["header"]
        self._outputs: NDArray[np.float32] = segment["outputs"]
        self._parameters: NDArray[np.float32] = segment["parameters"]
        self.stacks: NDArray[Any] | None = segment["stacks"] if layout.stack else None
        self._doorbell = doorbell
        self._armed = doorbell.armed if doorbell is not None else np.zeros(16, np.int64)
        self._counts = newest_requests(self._header, layout)
        self._header.reshape(-1, WORDS)[:, WAITING] = 0

    def ask(self, part: int, slot: int) -> None:
        """Request the outputs of the part's observations in `slot`, and ring the doorbell if the server sleeps."""
        self._counts[part] += 1
        if (
            post_request(self._header, part, self._counts[part], slot, self._armed)
            and self._doorbell is not None
        ):
            self._doorbell.ring()

    def answered(self, part: int) -> bool:
        """Whether the part's last request is answered."""
        return load_word(self._header, part * WORDS + ANSWERED) == self._counts[part]

    def must_sleep(self, part: int) -> bool:
        """Set WAITING unless the part is answered; returns whether it was set. After True the actor calls `slept`."""
        return must_wait(self._header, part, self._counts[part])

    def slept(self, part: int, nanoseconds: int) -> None:
        """Clear WAITING, and add the time slept to WAIT_NS."""
        self._header[part * WORDS + WAITING] = 0
        self._header[part * WORDS + WAIT_NS] += nanoseconds

    def outputs(self, part: int) -> NDArray[np.float32]:
        """The answer, `[environments of the part, outputs]`, a copy; to be read before the part's next request."""
        return self._outputs[self.layout.slices[part]].copy()

    def parameters(self, part: int) -> NDArray[np.float32]:
        """Other weights of the answer's version, `[parameters]`, a view."""
        return self._parameters[part, : self.layout.parameters]

    def version(self, part: int) -> tuple[int, int]:
        """Policy version of the answer, and updates that the learner had made when it published that version."""
        base = part * WORDS
        return int(self._header[base + VERSION]), int(self._header[base + UPDATES])

    def close(self) -> None:
        """Drop the views and close the segment; idempotent."""
        drop_views(self)
        self._segment.close()


@dataclass(frozen=True)
class Request:
    """A request on the server's side.

    Attributes:
        block: request block of the actor.
        part: part of the block.
        count: number of the request within the part.
        obs: `[rows, *obs_shape]`, a view of shared memory; frame stacks if the network takes stacks.
    """

    block: ServerRequests
    part: int
    count: int
    obs: NDArray[Any]


class ServerRequests:
    """Server's end of one actor's request block; used by one thread.

    Args:
        segment: the block's segment.
        layout: layout of the block.
        ring: the actor's ring, which holds its observations.
    """

    def __init__(self, segment: Segment, layout: RequestLayout, ring: RingReader) -> None:
        self.layout = layout
        self._segment = segment
        self._header: NDArray[np.int64] = segment["header"]
        self._outputs: NDArray[np.float32] = segment["outputs"]
        self._parameters: NDArray[np.float32] = segment["parameters"]
        self._stacks: NDArray[Any] | None = segment["stacks"] if layout.stack else None
        self._obs: NDArray[Any] = ring.obs
        self._mask = ring.num_slots - 1
        self._answered = [0] * layout.parts

    @property
    def pending(self) -> bool:
        """Whether a request is unanswered."""
        return newest_requests(self._header, self.layout) != self._answered

    def requests(self) -> Iterator[Request]:
        """Unanswered requests."""
        newest = newest_requests(self._header, self.layout)
        for part, (rows, count) in enumerate(zip(self.layout.slices, newest, strict=True)):
            if count != self._answered[part]:
                if self._stacks is None:
                    slot = int(self._header[part * WORDS + SLOT]) & self._mask
                    yield Request(self, part, count, self._obs[rows, slot])
                else:
                    yield Request(self, part, count, self._stacks[rows])

    def answer(
        self,
        request: Request,
        outputs: NDArray[np.float32],
        version: int,
        updates: int,
        parameters: NDArray[np.float32],
    ) -> bool:
        """Write an answer; returns whether the actor sleeps and the caller must wake it.

        Args:
            request: the request.
            outputs: `[rows, outputs]`.
            version: policy version of the weights.
            updates: updates that the learner had made when it published them.
            parameters: `[layout.parameters]` of the same version.
        """
        part = request.part
        self._outputs[self.layout.slices[part]] = outputs
        self._parameters[part, : self.layout.parameters] = parameters
        self._answered[part] = request.count
        return post_answer(self._header, part, request.count, version, updates)

    def wait_seconds(self) -> float:
        """Total time that the actor slept while waiting for answers, in seconds, over all its lives."""
        return float(self._header.reshape(-1, WORDS)[:, WAIT_NS].sum()) / 1e9

    def close(self) -> None:
        """Drop the views and close the segment; idempotent."""
        drop_views(self)
        self._segment.close()
