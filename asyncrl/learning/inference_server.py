"""Inference server: a thread of the main process that runs the network for all actors (`inference="server"`).

    actor i                                       server thread (its own copy of the policy's network and weights)
    -------                                       ----------------------------------------------------------------
    write the next observations to the ring
    request (a word; bell if server sleeps)  ──>  collect all waiting requests, of any actors: no barrier
    step the other half meanwhile                 load the newest published weights
    sleep on its socket, if nothing is left       one forward pass over the rows, read in place
    draw, explore, step               <── wake    write outputs, version, updates into each actor's block

Ownership: each actor has one or two parts in its request block (`shm/requests.py`). The weights are this thread's copy
of a publication, so they never race with an update, and the returned version is the version stored with the row. Only
the network runs here. Random draws, exploration, masks and log-probabilities are computed in the actor, with its own
generator, so they do not depend on the batching of rows.

*Exact disciplines* (`lockstep`, `synchronous`): outputs can differ in the last bit with the number of rows in a pass,
so each request is a pass of its own. The weights are exact anyway, because a request is for a granted row, and weights
are published before rows are granted.

*Thread instead of event loop:* a pass takes milliseconds, and the event loop must respond within one. A coroutine that
passes each batch to a thread and awaits it costs two more thread switches per batch, each of which may wait for a busy
learner thread; so the thread itself sleeps on the doorbell. torch computes without the GIL, with one thread.

*End:* an actor that dies has at most one request in flight, whose answer nobody reads. If a pass raises, the thread
ends, and the run with it (ASYNC033). If the main process ends, so does this thread, and the actors detect it by their
sockets, also while they wait. While the learner holds, actors are served until their grants are used up.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from asyncrl.acting.modules import ModuleActingNetwork
from asyncrl.acting.network_policy import ServedPolicy, own_weights, require_served
from asyncrl.actors.pool import ActorPool
from asyncrl.errors import AsyncRLError, InferenceFailed, describe_error
from asyncrl.interfaces import Metrics
from asyncrl.protocols import Policy
from asyncrl.shm.doorbell import Doorbell
from asyncrl.shm.requests import Request, RequestLayout, ServerRequests
from asyncrl.shm.ring import RingLayout
from asyncrl.shm.weights import WeightMailbox
from asyncrl.timer_slack import set_timer_slack

SLEEP_SECONDS = 0.1
"""Longest sleep, which bounds the delay by a lost doorbell signal."""
FIRST_WEIGHTS_SECONDS = 0.001
"""Polling interval for the first weights."""
MOST_ROWS = {"cpu": 32, "cuda": 4096}
"""Number of rows at which a pass accepts no further request. A CPU is no faster with more: the Nature CNN took 0.54 ms
a row for 16 rows, 0.52 for 32, 0.59 for 64 and 0.56 for 256."""


class InferenceServer:
    """Server for the inference requests of all actors; see the module docstring.

    Args:
        policy: policy whose network is run, used by the server only.
        blocks: the server's end of each actor's request block, in order of the actors.
        doorbell: rung by actors that made a request.
        mailbox: mailbox of published weights.
        wake: wakes the actor with a given index; called on the server's thread.
        most_rows: see `MOST_ROWS`; 1 makes every request a pass of its own.
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
        """Start the thread; `on_failure` is called on the running event loop with an error that ends the thread."""
        loop = asyncio.get_running_loop()

        def run() -> None:
            set_timer_slack(1)  # as the learner's thread
            try:
                self._run()
            except Exception as error:
                failed = _failure(error)
                with contextlib.suppress(RuntimeError):  # the event loop is closed
                    loop.call_soon_threadsafe(on_failure, failed)

        self._thread = threading.Thread(target=run, name="asyncrl-inference", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread after its present pass, and close the blocks; idempotent."""
        self._stopping = True
        if self._thread is not None:
            with contextlib.suppress(BlockingIOError):
                os.write(self._doorbell.writer_fds()[1], b"\0")
            self._thread.join()
            self._thread = None
        for block in self._blocks:
            block.close()
        self._blocks.clear()

    def statistics(self) -> Metrics:
        """Passes and their rows so far, and the mean time over the actors asleep waiting for answers; any thread."""
        waited = sum(block.wait_seconds() for block in self._blocks) / max(1, len(self._blocks))
        return {
            "inference_passes": self._passes,
            "inference_rows": self._rows,
            "inference_wait_seconds": waited,
        }

    # --- server thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping:
            if not self.serve():
                self._sleep()

    def serve(self) -> bool:
        """Answer all waiting requests; return False if there are none."""
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
        """Load newly published weights; return False if nothing was ever published."""
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
    """Divide the requests, in order, into batches of at least one; a batch is closed when it has `most_rows` rows."""
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


def request_layout(policy: Policy, ring: RingLayout) -> RequestLayout:
    """Layout of the request block beside a ring: two halves for several environments that are stepped one by one.

    Raises:
        ConfigurationError: the learner's side cannot run the policy's network (ASYNC017).
    """
    network, parameters = require_served(policy).network, own_weights(policy)
    spec, k = ring.spec, policy.frame_stack
    return RequestLayout(
        ring.num_envs,
        network.outputs,
        parts=1 if ring.environments == 1 or spec.vector_envs is not None else 2,
        parameters=parameters.stop - parameters.start,
        stack=(k, *spec.observation_shape) if k > 1 else (),
        dtype=spec.observation_dtype,
        num_agents=spec.num_agents,
    )


def start_server(
    policy: Policy,
    pool: ActorPool,
    device: str,
    *,
    exact: bool,
    on_failure: Callable[[BaseException], None],
) -> InferenceServer:
    """Start the server over all request blocks; a module runs on the learner's device, the kernels on the CPU.

    Args:
        policy: policy of the server alone.
        pool: the actors, with request blocks.
        device: this rank's device of the learner.
        exact: whether the discipline is exact, so that every request is a pass of its own.
        on_failure: called with the error of a pass.
    """
    served, requests = require_served(policy), pool.connections.requests
    assert requests is not None
    if isinstance(served.network, ModuleActingNetwork):
        served.network.device = device
    blocks = [
        ServerRequests(segment, requests.layout, ring)
        for segment, ring in zip(requests.segments, pool.rings, strict=True)
    ]
    most_rows = 1 if exact else MOST_ROWS[device.partition(":")[0]]
    mailbox = pool.connections.mailbox
    server = InferenceServer(served, blocks, requests.doorbell, mailbox, pool.wake, most_rows)
    server.start(on_failure)
    return server
