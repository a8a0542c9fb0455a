"""The request block of an actor: how it asks the learner's side for its network's outputs, and is answered.

With `inference="server"` an actor runs no network. Its observations are in shared memory already, in its ring (or, with
a frame stack, in `stacks` of this block); the block beside the ring carries the rest. It has one part, or two: halves
of the environments, of which one is stepped while the other waits.

    words of a part, written by            meaning
    REQUESTED        actor                 requests of this part so far
    SLOT             actor                 slot of the ring that holds the observations of the newest
    WAIT_NS          actor                 nanoseconds slept for want of an answer
    ANSWERED         server                the newest request that was answered
    VERSION, UPDATES server                policy version behind the answer, and updates behind that version
    WAITING          both                  handshake before the actor sleeps

    outputs    [E, outputs]                the network's outputs; rows of a part are written by its answer
    parameters [parts, n]                  other weights that the policy reads: a Gaussian's log standard deviations
    stacks     [E, k, *obs_shape]          written by the actor

Data before position on both ways: an actor stores SLOT and then REQUESTED (release); the server reads both, runs the
network, writes the outputs and then ANSWERED (release). A part has one request at a time, so neither overwrites what
the other still reads.

Who rings whom: an actor that has asked fences and rings the server's doorbell if that sleeps (`doorbell.py`). An actor
that finds no answer says so in WAITING, fences, looks again, and sleeps on its socket, where it also hears of its end;
the server, after ANSWERED, fences, takes WAITING and sends it a byte.

**Death.** A killed actor leaves at most one request for each part. The server may still answer it; nobody reads that.
The next life counts on from REQUESTED, and takes no answer but that to its own request: answers are written by one
thread, in the order of requests. Where the server ends, the run does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.shm.atomics import compare_exchange, fence, load_acquire, store_release
from asyncrl.shm.doorbell import DoorbellWriter, take_bell
from asyncrl.shm.kernel import kernel
from asyncrl.shm.ring import RingReader
from asyncrl.shm.segment import ArraySpec, Segment

REQUESTED, SLOT, WAIT_NS = 0, 1, 2
ANSWERED, VERSION, UPDATES = 16, 17, 18
WAITING = 32
WORDS = 48
"""Words of a part: three blocks of 128 bytes, one for each writer."""


@dataclass(frozen=True)
class RequestLayout:
    """What both sides must agree on; picklable, and free of torch.

    Attributes:
        num_envs: E.
        outputs: values of the network's head.
        parts: 1, or 2 halves; the first is the larger where E is odd.
        parameters: weights beside the network's that the policy acts with.
        stack: `(k, *obs_shape)` of a frame stack; empty where the network sees single observations, those of the ring.
        dtype: of observations.
    """

    num_envs: int
    outputs: int
    parts: int = 1
    parameters: int = 0
    stack: tuple[int, ...] = ()
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if not 1 <= self.parts <= min(2, self.num_envs):
            raise ValueError(f"parts must be 1, or 2 of at least 2 environments, got {self.parts}")

    @property
    def slices(self) -> tuple[slice, ...]:
        """Environments of each part."""
        middle = -(-self.num_envs // 2) if self.parts == 2 else self.num_envs
        return (slice(0, middle), slice(middle, self.num_envs))[: self.parts]

    def arrays(self) -> tuple[ArraySpec, ...]:
        """Every array of the block's segment."""
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
    """Actor: ask for the outputs of the observations in `slot`; whether it must ring."""
    header[part * WORDS + SLOT] = slot
    store_release(header, part * WORDS + REQUESTED, count)
    fence()
    return take_bell(armed)


@kernel("boolean(int64[::1], int64, int64)", nogil=False)
def is_answered(header: NDArray[np.int64], part: int, count: int) -> bool:
    """Actor: whether request `count` was answered (acquire)."""
    return load_acquire(header, part * WORDS + ANSWERED) == count  # type: ignore[no-any-return]


@kernel("boolean(int64[::1], int64, int64)", nogil=False)
def must_wait(header: NDArray[np.int64], part: int, count: int) -> bool:
    """Actor: say that it sleeps until request `count` is answered, then look once more."""
    store_release(header, part * WORDS + WAITING, 1)
    fence()
    if load_acquire(header, part * WORDS + ANSWERED) != count:
        return True
    store_release(header, part * WORDS + WAITING, 0)
    return False


@kernel("int64(int64[::1], int64)", nogil=False)
def newest_request(header: NDArray[np.int64], part: int) -> int:
    """Server: which request is the newest (acquire)."""
    return load_acquire(header, part * WORDS + REQUESTED)  # type: ignore[no-any-return]


@kernel("boolean(int64[::1], int64, int64, int64, int64)", nogil=False)
def post_answer(header: NDArray[np.int64], part: int, count: int, version: int, updates: int) -> bool:
    """Server: say that request `count` is answered; whether the actor sleeps and must be woken."""
    base = part * WORDS
    header[base + VERSION], header[base + UPDATES] = version, updates
    store_release(header, base + ANSWERED, count)
    fence()
    waiting: bool = load_acquire(header, base + WAITING) == 1 and compare_exchange(
        header, base + WAITING, 1, 0
    )
    return waiting


class ActorRequests:
    """The actor's end; one per block at any time, used by one thread.

    A new life on an old block forgets what the last one asked.

    Attributes:
        layout: what was agreed on.
        stacks: `[E, k, *obs_shape]`, to be written; None without a frame stack.
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
        self._counts = [newest_request(self._header, part) for part in range(layout.parts)]
        self._header.reshape(-1, WORDS)[:, WAITING] = 0

    def ask(self, part: int, slot: int) -> None:
        """Ask for the outputs of the part's observations in `slot`, and ring the bell if the server sleeps."""
        self._counts[part] += 1
        if (
            post_request(self._header, part, self._counts[part], slot, self._armed)
            and self._doorbell is not None
        ):
            self._doorbell.ring()

    def answered(self, part: int) -> bool:
        """Whether the part's last request was answered."""
        return is_answered(self._header, part, self._counts[part])

    def must_sleep(self, part: int) -> bool:
        """Say that the actor sleeps until the part is answered; False if it is. After True it calls `slept`."""
        return must_wait(self._header, part, self._counts[part])

    def slept(self, part: int, nanoseconds: int) -> None:
        """Say that the actor is awake, and count how long it slept."""
        self._header[part * WORDS + WAITING] = 0
        self._header[part * WORDS + WAIT_NS] += nanoseconds

    def outputs(self, part: int) -> NDArray[np.float32]:
        """The answer, `[environments of the part, outputs]`, a copy; before the part asks again."""
        return self._outputs[self.layout.slices[part]].copy()

    def parameters(self, part: int) -> NDArray[np.float32]:
        """Weights `[parameters]` of the answer's version beside the network's, a view."""
        return self._parameters[part, : self.layout.parameters]

    def version(self, part: int) -> tuple[int, int]:
        """Policy version of the answer, and updates that the learner had made when it published that version."""
        base = part * WORDS
        return int(self._header[base + VERSION]), int(self._header[base + UPDATES])

    def close(self) -> None:
        """Let go of the memory; idempotent."""
        _drop_arrays(self)
        self._segment.close()


@dataclass(frozen=True)
class Request:
    """A request as the server took it.

    Attributes:
        block: whose.
        part: which of its parts.
        count: which request of that part.
        obs: `[rows, *obs_shape]`, a view of shared memory, stacked where the network sees stacks.
    """

    block: ServerRequests
    part: int
    count: int
    obs: NDArray[Any]


class ServerRequests:
    """The server's end of one actor's block; used by one thread.

    Args:
        segment: the block.
        layout: what was agreed on.
        ring: the actor's, which holds its observations.
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
        """Whether a request waits."""
        return any(newest_request(self._header, part) != count for part, count in enumerate(self._answered))

    def requests(self) -> Iterator[Request]:
        """The requests that wait."""
        for part, rows in enumerate(self.layout.slices):
            count = newest_request(self._header, part)
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
        """Write an answer; whether the actor sleeps and the caller must wake it.

        Args:
            request: what is answered.
            outputs: `[rows, outputs]`.
            version: policy version of the weights.
            updates: that the learner had made when it published them.
            parameters: `[layout.parameters]` of the same version.
        """
        part = request.part
        self._outputs[self.layout.slices[part]] = outputs
        self._parameters[part, : self.layout.parameters] = parameters
        self._answered[part] = request.count
        return post_answer(self._header, part, request.count, version, updates)

    def wait_seconds(self) -> float:
        """Time that the actor has slept for want of answers, by all its lives."""
        return float(self._header.reshape(-1, WORDS)[:, WAIT_NS].sum()) / 1e9

    def close(self) -> None:
        """Let go of the memory; idempotent."""
        _drop_arrays(self)
        self._segment.close()


def _drop_arrays(end: ActorRequests | ServerRequests) -> None:
    for name in [name for name, value in vars(end).items() if isinstance(value, np.ndarray)]:
        delattr(end, name)
