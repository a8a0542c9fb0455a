"""Setup of an algorithm's option `inference`: the network runs in every actor, or in a server beside the learner."""

from __future__ import annotations

from collections.abc import Callable

from asyncrl.acting.modules import ModuleActingNetwork
from asyncrl.acting.network_policy import own_weights, require_served
from asyncrl.actors.connections import RequestBlocks
from asyncrl.actors.pool import ActorPool
from asyncrl.learning.inference_server import MOST_ROWS, InferenceServer
from asyncrl.protocols import Policy
from asyncrl.run.machine import take_own_gpu
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


def start_server(
    policy: Policy,
    exact: bool,
    device: str,
    requests: RequestBlocks,
    pool: ActorPool,
    mailbox: WeightMailbox,
    on_failure: Callable[[BaseException], None],
) -> InferenceServer:
    """Start the server over all request blocks; a module runs on the learner's device, the kernels on the CPU.

    Args:
        policy: policy of the server alone.
        exact: whether the discipline is exact, so that every request is a pass of its own.
        device: device of the learner.
        requests: the actors' request blocks.
        pool: the actors.
        mailbox: mailbox of published weights.
        on_failure: called with the error of a pass.
    """
    served = require_served(policy)
    if isinstance(served.network, ModuleActingNetwork):
        served.network.device = take_own_gpu(device)
    blocks = [
        ServerRequests(segment, requests.layout, ring)
        for segment, ring in zip(requests.segments, pool.rings, strict=True)
    ]
    most_rows = 1 if exact else MOST_ROWS[device]
    server = InferenceServer(served, blocks, requests.doorbell, mailbox, pool.wake, most_rows)
    server.start(on_failure)
    return server
