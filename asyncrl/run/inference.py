"""Setup of an algorithm's option `inference`: the network runs in every actor, or in a server beside the learner."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from asyncrl.acting.modules import ModuleActingNetwork
from asyncrl.acting.network_policy import is_served, own_weights, require_served
from asyncrl.actors.connections import RequestBlocks
from asyncrl.actors.pool import ActorPool
from asyncrl.learning.inference_server import MOST_ROWS, InferenceServer
from asyncrl.learning.segment_balance import is_exact
from asyncrl.protocols import Policy
from asyncrl.run.machine import take_own_gpu
from asyncrl.run.parts import Setup
from asyncrl.shm.requests import RequestLayout, ServerRequests
from asyncrl.shm.ring import RingLayout
from asyncrl.shm.weights import WeightMailbox


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
        parts=1 if ring.num_envs == 1 or spec.vector_envs is not None else 2,
        parameters=parameters.stop - parameters.start,
        stack=(k, *spec.observation_shape) if k > 1 else (),
        dtype=spec.observation_dtype,
    )


def make_requests(
    setup: Setup, policy: Policy, ring: RingLayout, stack: contextlib.AsyncExitStack
) -> RequestBlocks | None:
    """Create the actors' request blocks, closed by `stack`; None where actors run the network themselves.

    Raises:
        ConfigurationError: see `request_layout`.
        SharedMemoryTooSmall: the blocks do not fit (ASYNC008).
    """
    if not is_served(setup.algorithm):
        return None
    requests = RequestBlocks(request_layout(policy, ring), setup.config.actors)
    stack.callback(requests.close)
    return requests


def start_server(
    setup: Setup,
    requests: RequestBlocks,
    pool: ActorPool,
    mailbox: WeightMailbox,
    device: str,
    on_failure: Callable[[BaseException], None],
) -> InferenceServer:
    """Start the server over all request blocks; a module runs on the learner's device, the kernels on the CPU."""
    algorithm = setup.algorithm
    policy = require_served(algorithm.make_policy(setup.spec))
    if isinstance(policy.network, ModuleActingNetwork):
        policy.network.device = take_own_gpu(device)
    blocks = [
        ServerRequests(segment, requests.layout, ring)
        for segment, ring in zip(requests.segments, pool.rings, strict=True)
    ]
    most_rows = 1 if is_exact(algorithm) else MOST_ROWS[device]
    server = InferenceServer(policy, blocks, requests.doorbell, mailbox, pool.wake, most_rows)
    server.start(on_failure)
    return server
