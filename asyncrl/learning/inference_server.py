"""The inference server: one thread beside the learner's that runs the network for all actors (`inference="server"`).

    actor i                                       server thread (its own copy of the policy's network and weights)
    -------                                       ----------------------------------------------------------------
    next observations stand in the ring
    ask (a word; bell if the server sleeps)  ──>  every request that waits now, of any actor: no barrier
    step the other half meanwhile                 newest published weights, if the mailbox has moved
    sleep on its socket, if nothing is left       one forward pass over their rows, read where they lie
    draw, explore, step               <── wake    outputs, version, updates into the block of each

Who owns what: the request block (`shm/requests.py`) has one part or two for each actor; the network's weights are this
thread's copy of a publication, so they never race with an update, and the version that goes back is that of the row.
Only the network is run here. Random draws, exploration, masks and log-probabilities stay in the actor, with its own
generator, so they do not depend on how rows are batched.

*Exact disciplines* (`lockstep`, `synchronous`): outputs may differ in the last bit with the number of rows in a pass,
so each request is a pass of its own there. Which weights act is exact already: a request is for a granted row, and
weights are published before rows are granted.

*A thread, not the event loop:* a pass takes milliseconds, and the loop is to answer within one. A coroutine that hands
each batch to a thread and waits for it costs two more changes of thread for each batch, each of which may meet a busy
learner thread; so the thread sleeps on the doorbell itself. torch computes without the GIL, with one thread.

*Ends:* an actor that dies has at most one request in flight, which is answered for nobody. Where a pass raises, the
thread ends, and the run with it (ASYNC033). Where the main process ends, so does this thread, and the actors hear of it
by their sockets, also while they wait. While the learner holds, actors are served on until their grants are used up.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from asyncrl.acting.served import ServedPolicy, own_weights
from asyncrl.errors import AsyncRLError, InferenceFailed, describe_error
from asyncrl.shm.doorbell import Doorbell
from asyncrl.shm.requests import Request, ServerRequests
from asyncrl.shm.weights import WeightMailbox

SLEEP_SECONDS = 0.1
"""The longest sleep: what a lost bell costs."""
FIRST_WEIGHTS_SECONDS = 0.001
"""Interval at which the first weights are looked for."""
MOST_ROWS = {"cpu": 32, "cuda": 4096}
"""Rows of a pass from which no further request joins it. A CPU is no faster with more: the Nature CNN took 0.54 ms a
row for 16 rows, 0.52 for 32, 0.59 for 64 and 0.56 for 256."""


@dataclass(frozen=True)
class InferenceStatistics:
    """Work of the server so far.

    Attributes:
        passes: forward passes.
        rows: observations in them.
        wait_seconds: time that the mean actor has slept for want of an answer.
    """

    passes: int
    rows: int
    wait_seconds: float


class InferenceServer:
    """Answers the requests of all actors; see the module's text.

    Args:
        policy: whose network is run, used by the server alone.
        blocks: the server's end of every actor's block, in order.
        doorbell: what actors ring when they have asked.
        mailbox: where weights are published.
        wake: wakes the actor of an index; called on the server's thread.
        most_rows: of a pass, see `MOST_ROWS`; 1 makes every request a pass of its own.
    """

    def __init__(
        self,
        policy: ServedPolicy,
        blocks: Sequence[ServerRequests],
        doorbell: Doorbell,
        mailbox: WeightMailbox,
        wake: Callable[[int], None],
        most_rows: int,
    ) -> None:
        self._policy = policy
        self._blocks = list(blocks)
        self._index = {id(block): index for index, block in enumerate(blocks)}
        self._doorbell = doorbell
        self._mailbox = mailbox
        self._wake = wake
        self._most_rows = most_rows
        self._version = self._updates = self._passes = self._rows = 0
        self._stopping = False
        self._thread: threading.Thread | None = None

    def start(self, on_failure: Callable[[AsyncRLError], None]) -> None:
        """Start the thread; `on_failure` is called on the running loop with the error that ended it."""
        loop = asyncio.get_running_loop()

        def run() -> None:
            try:
                self._run()
            except Exception as error:
                failed = _failure(error)
                with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to be told
                    loop.call_soon_threadsafe(on_failure, failed)

        self._thread = threading.Thread(target=run, name="asyncrl-inference", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread after the pass it is in, and let go of the blocks; idempotent."""
        self._stopping = True
        if self._thread is not None:
            with contextlib.suppress(BlockingIOError):
                os.write(self._doorbell.writer_fds()[1], b"\0")
            self._thread.join()
            self._thread = None
        for block in self._blocks:
            block.close()
        self._blocks.clear()

    def statistics(self) -> InferenceStatistics:
        """A frozen record; any thread."""
        waited = sum(block.wait_seconds() for block in self._blocks) / max(1, len(self._blocks))
        return InferenceStatistics(self._passes, self._rows, waited)

    # --- server thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping:
            if not self.serve():
                self._sleep()

    def serve(self) -> bool:
        """Answer what waits now; False where nothing does."""
        requests = [request for block in self._blocks for request in block.requests()]
        if requests and not self._take_newest_weights():
            time.sleep(FIRST_WEIGHTS_SECONDS)
            return True
        for batch in batches(requests, self._most_rows):
            self._answer(batch)
        return bool(requests)

    def _sleep(self) -> None:
        self._doorbell.arm()
        if not (self._stopping or any(block.pending for block in self._blocks)):
            self._doorbell.wait(SLEEP_SECONDS)
        self._doorbell.disarm()
        self._doorbell.drain()

    def _take_newest_weights(self) -> bool:
        """Load the mailbox's weights where they moved; False where nothing was ever published."""
        version = self._mailbox.refresh(self._policy.weights, self._version)
        if version != self._version:
            self._version, self._updates = version, self._mailbox.updates
            self._policy.network.weights_changed()
        return version > 0

    def _answer(self, batch: Sequence[Request]) -> None:
        outputs = self._policy.network.of_all([request.obs for request in batch])
        parameters = self._policy.weights[own_weights(self._policy)]
        end = 0
        for request in batch:
            start, end = end, end + len(request.obs)
            rows = outputs[start:end]
            if request.block.answer(request, rows, self._version, self._updates, parameters):
                self._wake(self._index[id(request.block)])
        self._passes += 1
        self._rows += end


def batches(requests: Sequence[Request], most_rows: int) -> Iterator[list[Request]]:
    """The requests, in their order, in batches of whole requests: each at least one, and closed by `most_rows` rows."""
    batch: list[Request] = []
    for request in requests:
        batch.append(request)
        if sum(len(joined.obs) for joined in batch) >= most_rows:
            yield batch
            batch = []
    if batch:
        yield batch


def _failure(error: Exception) -> AsyncRLError:
    failed = InferenceFailed(
        f"The inference server failed: {describe_error(error)}",
        fix="mend the network, or lower envs_per_actor where memory ran out; inference actor runs it in the actors",
    )
    failed.__cause__ = error
    return failed
