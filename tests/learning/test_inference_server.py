"""Inference server alone: batching of requests, acting weights, sleep and end of its thread."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from waiting import PATIENCE_SECONDS

from asyncrl.acting.policies import QLayout, QPolicy
from asyncrl.interfaces import DiscreteAction, EnvSpec
from asyncrl.learning.inference_server import InferenceServer, batches
from asyncrl.shm import Doorbell, RingLayout, RingReader, Segment, WeightMailbox
from asyncrl.shm.requests import ActorRequests, Request, RequestLayout, ServerRequests

SPEC = EnvSpec("test", (4,), "float32", DiscreteAction(3))
RING = RingLayout(3, 8, SPEC)
REQUESTS = RequestLayout(3, 3, parts=2)


def make_policy() -> QPolicy:
    return QPolicy(SPEC, QLayout(4, (5,), 3))


class World:
    """A server of two actors whose requests the test sends."""

    def __init__(self, most_rows: int) -> None:
        self.rings = [Segment.create("ring", RING.arrays()) for _ in range(2)]
        self.blocks = [Segment.create("requests", REQUESTS.arrays()) for _ in range(2)]
        self.bell, self.woken = Doorbell.create(), []  # type: ignore[var-annotated]
        self.mailbox = WeightMailbox.create(make_policy().weight_count)
        for ring in self.rings:
            ring["obs"][...] = np.random.default_rng(1).normal(size=ring["obs"].shape)
        ends = [
            ServerRequests(block, REQUESTS, RingReader(ring, RING))
            for block, ring in zip(self.blocks, self.rings, strict=True)
        ]
        self.actors = [ActorRequests(block, REQUESTS) for block in self.blocks]
        self.server = InferenceServer(
            make_policy(), ends, self.bell, self.mailbox, self.woken.append, most_rows
        )

    def publish(self, seed: int, updates: int = 0) -> np.ndarray[Any, Any]:
        weights = np.random.default_rng(seed).normal(size=self.mailbox.weight_count).astype(np.float32)
        self.mailbox.publish(weights, updates)
        return weights

    def close(self) -> None:
        self.server.close()
        self.actors.clear()
        for each in (*self.rings, *self.blocks, self.bell, self.mailbox):
            each.close()


@pytest.fixture(params=[1, 4, 100])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    world = World(request.param)
    yield world
    world.close()


def test_whatever_is_ready_is_answered_by_the_newest_weights(world: World) -> None:
    policy, (first, second) = make_policy(), world.actors
    for seed in (1, 2):
        weights = world.publish(seed, updates=10 * seed)
        policy.load_weights(weights)
        first.ask(0, 2)
        second.ask(1, 5)
        second.ask(0, 5)
        assert world.server.serve() and not world.server.serve()
        expected = policy.q_values(world.rings[0]["obs"][:2, 2])
        np.testing.assert_allclose(first.outputs(0), expected, rtol=1e-5)
        expected = policy.q_values(world.rings[1]["obs"][:, 5])
        np.testing.assert_allclose(second.outputs(0), expected[:2], rtol=1e-5)
        np.testing.assert_allclose(second.outputs(1), expected[2:], rtol=1e-5)
        assert first.version(0) == second.version(1) == (seed, 10 * seed)
    passes = {1: 6, 4: 4, 100: 2}[world.server._most_rows]
    expected = {"inference_passes": passes, "inference_rows": 10, "inference_wait_seconds": 0.0}
    assert world.server.statistics() == expected
    assert world.woken == [], "nobody slept"


def test_thread_sleeps_until_it_is_rung_wakes_who_sleeps_and_ends(world: World) -> None:
    async def story() -> None:
        world.server.start(lambda error: pytest.fail(str(error)))

    asyncio.run(story())
    bell = world.bell.writer_fds()
    actor = world.actors[1]
    actor.ask(0, 0)
    assert actor.must_sleep(0), "before there are weights"
    world.publish(1)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (actor.answered(0) and world.woken):
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert world.woken == [1]
    actor.slept(0, 0)
    # The actor has no doorbell here: every bell is lost, and what that costs is a tenth of a second.
    actor.ask(0, 1)
    while not actor.answered(0):
        assert time.monotonic() < deadline
        time.sleep(0.001)
    thread = world.server._thread
    world.server.close()
    assert thread is not None and not thread.is_alive() and world.bell.writer_fds() == bell
    world.server.close()


def test_what_a_pass_raises_is_told_on_the_loop() -> None:
    world = World(1)
    told: list[tuple[BaseException, str]] = []

    async def story() -> None:
        done = asyncio.Event()

        def failed(error: BaseException) -> None:
            told.append((error, threading.current_thread().name))
            done.set()

        world.server._policy.network.of_all = lambda observations: 1 / 0  # type: ignore
        world.publish(1)
        world.server.start(failed)
        world.actors[0].ask(0, 0)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await done.wait()

    asyncio.run(story())
    world.close()
    ((error, thread),) = told
    assert "[ASYNC033] The inference server failed: ZeroDivisionError" in str(error)
    assert isinstance(error.__cause__, ZeroDivisionError) and thread == "MainThread"


def test_batches_are_of_whole_requests_in_their_order() -> None:
    requests: list[Any] = [Request(None, 0, i, np.zeros((rows, 1))) for i, rows in enumerate((3, 2, 9, 1))]  # type: ignore

    def counts(most_rows: int) -> list[list[int]]:
        return [[request.count for request in batch] for batch in batches(requests, most_rows)]

    assert counts(1) == [[0], [1], [2], [3]]
    assert counts(5) == [[0, 1], [2], [3]]
    assert counts(6) == [[0, 1, 2], [3]]
    assert counts(100) == [[0, 1, 2, 3]]
    assert list(batches([], 5)) == []
