"""Environment steps/s of `inference="actor"` against `"server"`, for actors with convolutional networks.

Acting only: actors, rings and the server as in a run, with a main process that grants rows and does not learn. Images
of 84 x 84 with a stack of four frames and the Nature CNN, from an environment whose step takes as long as an Atari
game's; and Catch (21 x 21, two frames, the small network). One torch thread everywhere.

Three ways with the same number of environments: `actor`, `server` (an actor steps one half while the other waits) and
`whole` (the server, without halves). Their actors exist at the same time and are granted rows in turn, so the ways of a
figure are measured next to each other; ratios are formed repeat by repeat. `cpu_` figures are CPU milliseconds of all
processes per 1,000 steps, the cost of a way if other work shares the cores.

    python -m benchmarks.systems.inference
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import asyncio
import contextlib
import pickle
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import psutil
from gymnasium.spaces import Box, Discrete

from asyncrl import DQN
from asyncrl.acting.network_policy import require_served
from asyncrl.actors.connections import Connections, RequestBlocks
from asyncrl.actors.forkserver import ForkServer
from asyncrl.actors.plans import PoolPlan
from asyncrl.actors.pool import ActorPool
from asyncrl.envs.catch import Catch
from asyncrl.envs.checks import spec_of
from asyncrl.envs.source import EnvSource
from asyncrl.interfaces import EnvSpec
from asyncrl.learning.inference_server import MOST_ROWS, InferenceServer, request_layout
from asyncrl.shm import Doorbell, RingLayout, WeightMailbox
from asyncrl.shm.env_kwargs import EnvKwargsWriter
from asyncrl.shm.requests import ServerRequests
from benchmarks.harness.report import Report, script_parser

SIZES = (1, 4, 16, 64)
SLOTS = 16
STEP_SECONDS = 240e-6
"""CPU time of a step of an Atari game with 4 skipped frames (4,200 steps/s through ale-py)."""


class Images(gymnasium.Env[Any, Any]):
    """Random image of 84 x 84 bytes; a step takes `STEP_SECONDS` of CPU time."""

    observation_space = Box(0, 255, (84, 84), np.uint8)
    action_space = Discrete(6)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Begin an episode with a fixed image."""
        super().reset(seed=seed)
        self.image = np.random.default_rng(seed).integers(0, 256, (84, 84), np.uint8)
        return self.image, {}

    def step(self, action: Any) -> Any:
        """Return the same image again."""
        end = time.thread_time() + STEP_SECONDS
        while time.thread_time() < end:
            pass
        return self.image, 0.0, False, False, {}


WORLDS: dict[str, tuple[Callable[[], Any], DQN]] = {
    "images": (Images, DQN(network="nature", frame_stack=4)),
    "catch": (Catch, DQN(network="small", frame_stack=2)),
}
WAYS = ("actor", "server", "whole")


class Acting:
    """Actors that run their network in one of the ways; they sleep until `rate` grants them rows."""

    def __init__(self, way: str, world: str, spec: EnvSpec, actors: int, envs: int) -> None:
        make_env, algorithm = WORLDS[world]
        policy = algorithm.make_policy(spec)
        layout = RingLayout(envs, SLOTS, spec)
        self.doorbell, self.mailbox = Doorbell.create(), WeightMailbox.create(policy.weight_count)
        self.requests = None
        if way != "actor":
            wanted = request_layout(policy, layout)
            self.requests = RequestBlocks(replace(wanted, parts=1) if way == "whole" else wanted, actors)
        self.plan = PoolPlan(
            EnvSource.from_user(make_env),
            pickle.dumps(policy),
            layout,
            actors,
            seed=0,
            requests=None if self.requests is None else self.requests.layout,
        )
        self.policy = algorithm.make_policy(spec)
        self.server: InferenceServer | None = None

    async def start(self, processes: ForkServer) -> None:
        """Start the actors, and the server if there is one."""
        connections = Connections(self.mailbox, self.doorbell, EnvKwargsWriter(), self.requests)
        self.pool = ActorPool(processes, self.plan, connections, on_failure=print)
        await self.pool.start()
        if self.requests is not None:
            blocks = [
                ServerRequests(segment, self.requests.layout, ring)
                for segment, ring in zip(self.requests.segments, self.pool.rings, strict=True)
            ]
            policy, rows = require_served(self.policy), MOST_ROWS["cpu"]
            self.server = InferenceServer(
                policy, blocks, self.requests.doorbell, self.mailbox, self.pool.wake, rows
            )
            self.server.start(print)
        rng = np.random.default_rng(0)
        self.mailbox.publish(rng.normal(0, 0.01, self.mailbox.weight_count).astype(np.float32))

    def _grant(self, rows: int) -> None:
        for i, ring in enumerate(self.pool.rings):
            ring.grant(max(ring.granted, ring.published() + rows))
            if ring.take_waiting():
                self.pool.wake(i)

    def _steps(self) -> int:
        return sum(ring.statistics().env_steps for ring in self.pool.rings)

    def _cpu_seconds(self) -> float:
        processes = [psutil.Process(actor.pid) for actor in self.pool.statistics()]
        return time.process_time() + sum(sum(process.cpu_times()[:2]) for process in processes)

    async def rate(self, seconds: float) -> tuple[float, float]:
        """Environment steps/s during `seconds`, and CPU milliseconds per 1,000 steps."""
        begun = self._steps()
        while self._steps() < begun + 2 * self.plan.num_actors * self.plan.layout.num_envs:  # under way
            self._grant(SLOTS // 2)
            await asyncio.sleep(0.002)
        steps, cpu, started = self._steps(), self._cpu_seconds(), time.perf_counter()
        while (elapsed := time.perf_counter() - started) < seconds:
            self._grant(SLOTS // 2)
            await asyncio.sleep(0.002)
        made, spent = self._steps() - steps, self._cpu_seconds() - cpu
        while any(ring.published() < ring.granted - 1 for ring in self.pool.rings):
            await asyncio.sleep(0.002)
        return made / elapsed, 1e6 * spent / max(1, made)

    async def close(self) -> None:
        """Close everything."""
        if self.server is not None:
            self.server.close()
        await self.pool.close()
        if self.requests is not None:
            self.requests.close()
        self.doorbell.close()
        self.mailbox.close()


async def compare(
    report: Report, processes: ForkServer, world: str, actors: int, envs: int, repeats: int, seconds: float
) -> None:
    """Measure all ways with one number of environments."""
    env = WORLDS[world][0]()
    spec = spec_of(world, env)
    async with contextlib.AsyncExitStack() as stack:
        all_ways = {way: Acting(way, world, spec, actors, envs) for way in WAYS if envs > 1 or way != "whole"}
        for acting in all_ways.values():
            await acting.start(processes)
            stack.push_async_callback(acting.close)
        found: dict[str, list[tuple[float, float]]] = {way: [] for way in all_ways}
        for _ in range(repeats):
            for way, acting in all_ways.items():
                found[way].append(await acting.rate(seconds))
    where = f"{world}_{actors}x{envs}"
    rates = {way: [rate for rate, _ in pairs] for way, pairs in found.items()}
    for way, values in rates.items():
        report.add(f"{where}_{way}_steps_per_second", values, "steps/s")
        report.add(f"cpu_{where}_{way}", [cpu for _, cpu in found[way]], "ms")
    for way in list(rates)[1:]:
        report.add_ratio(f"{where}_{way}_to_actor", rates[way], rates["actor"])


async def measure(arguments: argparse.Namespace) -> None:
    """Measure all figures and write results/inference.json."""
    report = Report("inference")
    report.note("step_seconds_of_images", STEP_SECONDS)
    processes = ForkServer()
    processes.start()
    try:
        for world, actors in (("images", 1), ("images", 2), ("catch", 1), ("catch", 2)):
            for envs in SIZES:
                await compare(report, processes, world, actors, envs, arguments.repeats, arguments.seconds)
    finally:
        processes.close()
    report.write()


if __name__ == "__main__":
    parser = script_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0)
    asyncio.run(measure(parser.parse_args()))
