"""Request blocks: every request is answered once by the right server, and no wake-up is lost; also under kills."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from shm_processes import ASKING, REQUESTS, answer_to
from waiting import PATIENCE_SECONDS as LONGEST_SECONDS

from asyncrl.shm import Doorbell, RingReader, Segment
from asyncrl.shm.requests import WORDS, ActorRequests, RequestLayout, ServerRequests


class Server:
    """Answers the requests of one block by arithmetic, and sleeps on the doorbell if there are none."""

    def __init__(self) -> None:
        self.ring = Segment.create("ring", ASKING.arrays())
        self.block = Segment.create("requests", REQUESTS.arrays())
        self.bell = Doorbell.create()
        self.end = ServerRequests(self.block, REQUESTS, RingReader(self.ring, ASKING))
        self.ours, self.theirs = socket.socketpair()
        self.answered = 0

    def fds(self) -> tuple[int, ...]:
        return (self.ring.fd, self.block.fd, *self.bell.writer_fds(), self.theirs.fileno())

    def serve(self) -> bool:
        requests = list(self.end.requests())
        for request in requests:
            outputs, parameters, version = answer_to(request.obs)
            if self.end.answer(request, outputs, version, 2 * version, parameters):
                self.ours.send(b"S")
            self.answered += 1
        return bool(requests)

    def sleep(self, seconds: float) -> None:
        self.bell.arm()
        if not self.end.pending:
            self.bell.wait(seconds)
        self.bell.disarm()
        self.bell.drain()

    def close(self) -> None:
        self.end.close()
        for each in (self.bell, self.ring, self.ours, self.theirs):
            each.close()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


def test_no_wake_up_is_lost_and_every_answer_is_that_to_the_question(nursery: Any, server: Server) -> None:
    """Neither side sleeps with a time limit, so that a lost wake-up cannot be hidden."""
    rounds = 3_000
    pid = nursery.fork("ask_in_turn", rounds, LONGEST_SECONDS, fds=server.fds())
    deadline = time.monotonic() + 2 * LONGEST_SECONDS
    while server.answered < 2 * rounds:
        assert time.monotonic() < deadline, f"{server.answered} of {2 * rounds} questions came"
        if not server.serve():
            before = time.monotonic()
            server.sleep(LONGEST_SECONDS)
            assert time.monotonic() - before < LONGEST_SECONDS, "the bell was lost"
    assert nursery.join(pid) == "all answered"
    assert server.end.wait_seconds() > 0.0


def test_lives_that_are_killed_while_they_wait_take_each_others_answers_never(
    nursery: Any, server: Server
) -> None:
    rng = np.random.default_rng(0)
    for _ in range(60):
        pid = nursery.fork("ask_in_turn", 1 << 40, LONGEST_SECONDS, fds=server.fds())
        until = server.answered + int(rng.integers(1, 40))
        while server.answered < until:
            if not server.serve():
                server.sleep(0.1)
        nursery.kill(pid)  # it would have ended by itself at a wrong answer
        server.ours.setblocking(False)
        while rng.integers(2) and server.serve():
            pass


def test_a_part_waits_for_its_own_request_alone(server: Server) -> None:
    actor = ActorRequests(server.block, REQUESTS)
    obs = server.ring["obs"]
    obs[:, 5] = np.arange(3, dtype=np.float32)[:, None]
    actor.ask(1, 5)
    assert server.end.pending and not actor.answered(1) and actor.must_sleep(1)
    (request,) = server.end.requests()
    assert (request.part, request.count, request.obs.shape) == (1, 1, (1, 2))
    assert np.shares_memory(request.obs, obs), "read where it lies"
    outputs, parameters, _ = answer_to(request.obs)
    assert server.end.answer(request, outputs, 7, 70, parameters), "it sleeps and must be woken"
    assert not server.end.pending and actor.answered(1) and not actor.must_sleep(1)
    actor.slept(1, 1_500_000_000)
    assert server.end.wait_seconds() == 1.5
    np.testing.assert_array_equal(actor.outputs(1), outputs)
    np.testing.assert_array_equal(actor.parameters(1), parameters)
    assert actor.version(1) == (7, 70) and actor.version(0) == (0, 0)
    taken = actor.outputs(1)
    server.block["outputs"][...] = -1
    assert (taken == outputs).all(), "a copy"
    actor.ask(0, 3)
    assert [(r.part, r.count) for r in server.end.requests()] == [(0, 1)]


def test_slots_beyond_the_ring_are_never_read(server: Server) -> None:
    """An environment may write anywhere in its actor's memory; the server reads only inside the ring."""
    header = server.block["header"]
    header[0], header[1] = 12345, 1 << 40
    (request,) = server.end.requests()
    assert request.obs.shape == (2, 2)


def test_layout() -> None:
    assert RequestLayout(5, 3, parts=2).slices == (slice(0, 3), slice(3, 5))
    assert RequestLayout(5, 3).slices == (slice(0, 5),)
    stacked = RequestLayout(4, 3, parts=2, stack=(2, 8, 8), dtype="uint8")
    shapes = {array.name: array.shape for array in stacked.arrays()}
    assert shapes == {
        "header": (2 * WORDS,),
        "outputs": (4, 3),
        "parameters": (2, 1),
        "stacks": (4, 2, 8, 8),
    }
    for parts, num_envs in ((2, 1), (3, 4), (0, 1)):
        with pytest.raises(ValueError, match=f"parts must be 1, or 2 .* got {parts}"):
            RequestLayout(num_envs, 3, parts=parts)
