"""Actor pool with its surroundings in a trainer, on a running loop."""

from __future__ import annotations

import asyncio
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from fakes import RandomPolicy
from numpy.typing import NDArray
from waiting import PATIENCE_SECONDS

from asyncrl.actors.connections import Connections
from asyncrl.actors.episodes import MAX_ENVS, EpisodePlayer
from asyncrl.actors.forkserver import ForkServer
from asyncrl.actors.limits import ProcessLimits
from asyncrl.actors.plans import PoolPlan
from asyncrl.actors.pool import ActorPool
from asyncrl.actors.probe import probe
from asyncrl.envs.source import EnvSource
from asyncrl.errors import AsyncRLError
from asyncrl.interfaces import DiscreteAction, EnvSpec, FieldSpec, SelfPlay
from asyncrl.shm import Doorbell, RingLayout, RingReader, Segment, WeightMailbox
from asyncrl.shm.env_kwargs import EnvKwargsWriter
from asyncrl.shm.past_weights import PastWeights
from asyncrl.shm.segment import POISON


async def until(condition: Callable[[], Any], what: str) -> None:
    """Wait for a condition; the time-out error names it."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited {PATIENCE_SECONDS} s in vain: {what}"
        await asyncio.sleep(0.005)


def poison(pool: ActorPool) -> None:
    """Fill the rings with a pattern that shows unwritten bytes."""
    for ring in pool.rings:
        for array in ring.segment.arrays:
            if not array.control:
                ring.segment[array.name].reshape(-1).view(np.uint8)[:] = POISON


def run_episodes(
    env: Any, policy: Any, episodes: int, seed: int, max_envs: int = MAX_ENVS, deterministic: bool = True
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Play episodes in this process; return their returns and lengths."""
    player = EpisodePlayer(EnvSource.from_user(env), policy, max_envs)
    try:
        return player.play(episodes, seed, deterministic=deterministic)
    finally:
        player.close()


def make_ring() -> RingReader:
    """A small ring by itself, of one actor with two environments."""
    layout = RingLayout(2, 4, EnvSpec("fake", (1,), "float32", DiscreteAction(2)))
    return RingReader(Segment.create("ring", layout.arrays()), layout)


class Rig:
    """A pool and its surroundings in a trainer."""

    def __init__(
        self,
        server: ForkServer,
        env: Any,
        *,
        num_actors: int = 1,
        num_envs: int = 2,
        num_slots: int = 64,
        policy: Any = None,
        extra_fields: tuple[FieldSpec, ...] = (),
        self_play: SelfPlay | None = None,
        states: bool = False,
        **options: Any,
    ) -> None:
        self.server = server
        self.source = EnvSource.from_user(env)
        self.policy = policy or RandomPolicy()
        self.shape = (num_actors, num_envs, num_slots)
        self.extra_fields, self.self_play, self.states = extra_fields, self_play, states
        self.options = options
        self.failures: list[AsyncRLError] = []
        self.deaths: list[int] = []

    async def __aenter__(self) -> Rig:
        num_actors, num_envs, num_slots = self.shape
        self_play, count = self.self_play, self.policy.weight_count
        made = WeightMailbox.create(count) if self_play is None else PastWeights.create_for(count, self_play)
        self.mailbox = made
        self.doorbell = Doorbell.create()
        self.env_kwargs = EnvKwargsWriter()
        try:
            spec = await probe(self.server, self.source)
            frozen = 0 if self_play is None else self_play.environments * (spec.num_agents - 1)
            more = {"frozen_streams": frozen, "state_values": spec.state_values if self.states else 0}
            layout = RingLayout(num_envs, num_slots, spec, self.extra_fields, **more)
            policy = pickle.dumps(self.policy)
            plan = PoolPlan(self.source, policy, layout, num_actors, seed=7, self_play=self_play)
            limits = ProcessLimits(**{k: v for k, v in self.options.items() if k != "log_dir"})
            self.pool = ActorPool(
                self.server,
                plan,
                Connections(self.mailbox, self.doorbell, self.env_kwargs),
                limits=limits,
                log_of=self._log_of,
                on_failure=self.failures.append,
                on_death=self.deaths.append,
            )
            poison(self.pool)
        except BaseException:
            self._close_memory()
            raise
        try:
            await self.pool.start()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    def _log_of(self, index: int) -> Path | None:
        folder = self.options.get("log_dir")
        return None if folder is None else folder / f"{index}.log"

    async def __aexit__(self, *exc: object) -> None:
        await self.pool.close()
        self._close_memory()

    def _close_memory(self) -> None:
        self.mailbox.close()
        self.doorbell.close()
        self.env_kwargs.close()

    def publish_weights(self, first: float = 0.0) -> int:
        return self.mailbox.publish(np.full(self.policy.weight_count, first, np.float32))

    def grant(self, rows: int | None = None) -> None:
        """Grant every actor the capacity of its ring, or `rows` more than it has published."""
        for i, ring in enumerate(self.pool.rings):
            most = ring.published() + ring.num_slots
            ring.grant(max(ring.granted, most if rows is None else min(most, ring.published() + rows)))
            if ring.take_waiting():
                self.pool.wake(i)

    async def rows(self, count: int) -> None:
        """Wait until every ring has published `count` rows."""
        await until(lambda: all(r.published() >= count for r in self.pool.rings), f"{count} rows")

    async def failure(self) -> AsyncRLError:
        await until(lambda: self.failures, "a failure")
        return self.failures[0]
