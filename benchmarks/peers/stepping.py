"""Environment steps/s of actor processes of one kind with random actions; prints one JSON line.

    asyncrl      actors of asyncrl's pool: rows in their rings, which this process reads in place and grants again
    ray_rollout  Ray actors that return `ROWS` rows of all their environments at a time, two calls of each under way
    ray_step     Ray actors that take one action for each environment and return its step: observation out, action in
    bare         the limit: the same environments in a loop in as many processes, whose results nobody sees

All step the same environments, of one version of gymnasium, with the same uniform actions from NumPy. No network acts
and none learns: what differs is how steps travel.

    python -m benchmarks.peers.stepping asyncrl pixels --actors 2
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import asyncio
import json
import multiprocessing
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import Any

import cloudpickle
import gymnasium
import numpy as np
from numpy.typing import NDArray

from benchmarks.harness.report import script_parser, usable_cores

ENVS, ROWS = 8, 128
# Actor processes cannot import this folder's modules by name, so this module is pickled by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Pixels(gymnasium.Env[Any, Any]):
    """Frames of 84x84x4 bytes that cost nothing to make: the step is the transport's, not the environment's."""

    observation_space = gymnasium.spaces.Box(0, 255, (84, 84, 4), np.uint8)
    action_space = gymnasium.spaces.Discrete(4)

    def __init__(self) -> None:
        self._frames = np.random.default_rng(0).integers(0, 255, (16, 84, 84, 4), np.uint8)
        self._step = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode of 1,000 steps."""
        super().reset(seed=seed)
        self._step = 0
        return self._frames[0], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One of sixteen frames, by step and action."""
        self._step += 1
        return self._frames[(self._step + int(action)) & 15], 1.0, self._step == 1_000, False, {}


def cartpole() -> gymnasium.Env[Any, Any]:
    """CartPole-v1 without the checker of its first step."""
    return gymnasium.make("CartPole-v1", disable_env_checker=True)


MAKERS = {"cartpole": cartpole, "pixels": Pixels}


class Environments:
    """`ENVS` environments stepped together, which begin a new episode in the step that ends one."""

    def __init__(self, name: str, seed: int) -> None:
        self.envs = [MAKERS[name]() for _ in range(ENVS)]
        self.num_actions = int(self.envs[0].action_space.n)  # type: ignore[attr-defined]
        self.rng = np.random.default_rng(seed)
        self.obs = np.stack([env.reset(seed=seed + i)[0] for i, env in enumerate(self.envs)])

    def actions(self) -> NDArray[np.int64]:
        """Uniform actions."""
        return self.rng.integers(0, self.num_actions, ENVS)

    def step(self, actions: NDArray[np.int64], obs: Any) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
        """Step; write next observations to `obs`; returns rewards and flags (1 terminated, 2 truncated)."""
        rewards, flags = np.empty(ENVS, np.float32), np.zeros(ENVS, np.uint8)
        for i, env in enumerate(self.envs):
            obs[i], rewards[i], terminated, truncated, _ = env.step(actions[i])
            if terminated or truncated:
                flags[i] = terminated + 2 * truncated
                obs[i] = env.reset()[0]
        return rewards, flags

    def rollout(self) -> dict[str, Any]:
        """`ROWS` rows of random actions, in new arrays."""
        obs = np.empty((ROWS, *self.obs.shape), self.obs.dtype)
        actions, rewards = np.empty((ROWS, ENVS), np.int64), np.empty((ROWS, ENVS), np.float32)
        flags = np.empty((ROWS, ENVS), np.uint8)
        for t in range(ROWS):
            actions[t] = self.actions()
            rewards[t], flags[t] = self.step(actions[t], obs[t])
        return {"obs": obs, "action": actions, "reward": rewards, "flags": flags}


class UniformPolicy:
    """asyncrl's policy of uniform actions; it has one weight, which it ignores."""

    weight_count, frame_stack, exploration_rate = 1, 1, 1.0

    def __init__(self, num_actions: int) -> None:
        self.num_actions = num_actions
        self.weights = np.zeros(1, np.float32)

    def assign_streams(self, first: int, count: int, total: int) -> None:
        """All streams are alike."""

    def weights_changed(self) -> None:
        """The weight is ignored."""

    def act(self, obs: Any, rng: np.random.Generator, total_steps: int) -> tuple[Any, dict[str, Any]]:
        """Uniform actions."""
        return rng.integers(0, self.num_actions, len(obs)), {}


def asyncrl_rate(name: str, actors: int, seconds: float) -> float:
    """Steps/s of asyncrl's actors."""
    return asyncio.run(pool_rate(name, actors, seconds))


async def pool_rate(name: str, actors: int, seconds: float) -> float:
    """Steps/s of a pool, whose rows are granted again every millisecond."""
    from asyncrl.actors.connections import Connections
    from asyncrl.actors.forkserver import ForkServer
    from asyncrl.actors.plans import PoolPlan
    from asyncrl.actors.pool import ActorPool
    from asyncrl.actors.probe import probe
    from asyncrl.envs.source import EnvSource
    from asyncrl.shm import Doorbell, RingLayout, WeightMailbox
    from asyncrl.shm.env_kwargs import EnvKwargsWriter

    server, source = ForkServer(), EnvSource.from_user(MAKERS[name])
    server.start()
    mailbox, doorbell = WeightMailbox.create(1), Doorbell.create()
    spec = await probe(server, source)
    policy = cloudpickle.dumps(UniformPolicy(MAKERS[name]().action_space.n))  # type: ignore[attr-defined]
    plan = PoolPlan(source, policy, RingLayout(ENVS, 4 * ROWS, spec), actors, seed=0)
    env_kwargs = EnvKwargsWriter()
    pool = ActorPool(server, plan, Connections(mailbox, doorbell, env_kwargs), on_failure=_fail)
    mailbox.publish(np.zeros(1, np.float32))
    await pool.start()
    try:
        rate, began = 0.0, time.perf_counter()
        for span in (0.5, seconds):  # the first one warms up
            first, began = sum(ring.statistics().env_steps for ring in pool.rings), time.perf_counter()
            while time.perf_counter() < began + span:
                for i, ring in enumerate(pool.rings):
                    ring.grant(ring.published() + ring.num_slots)
                    if ring.take_waiting():
                        pool.wake(i)
                await asyncio.sleep(0.001)
            steps = sum(ring.statistics().env_steps for ring in pool.rings) - first
            rate = steps / (time.perf_counter() - began)
        return rate
    finally:
        await pool.close()
        server.close()


def _fail(error: Exception) -> None:
    raise error


def ray_rate(name: str, actors: int, seconds: float, rollout: bool) -> float:
    """Steps/s of Ray actors, of which each has two rollouts, or one step, under way."""
    from benchmarks.peers.ray_start import start_ray

    start_ray()
    import ray

    class RayActor(Environments):
        def one(self, actions: NDArray[np.int64]) -> tuple[Any, Any, Any]:
            obs = np.empty_like(self.obs)
            return obs, *self.step(actions, obs)

    made = [ray.remote(RayActor).remote(name, 1_000 * i) for i in range(actors)]
    num_actions, rng = int(MAKERS[name]().action_space.n), np.random.default_rng(0)  # type: ignore[attr-defined]

    def call(actor: Any) -> Any:
        if rollout:
            return actor.rollout.remote()
        return actor.one.remote(rng.integers(0, num_actions, ENVS))

    calls = {call(actor): actor for actor in made for _ in range(1 + rollout)}
    rate = 0.0
    for span in (1.0, seconds):  # the first one warms up
        done, began = 0, time.perf_counter()
        while time.perf_counter() < began + span:
            (ready,), _ = ray.wait(list(calls))
            actor = calls.pop(ready)
            calls[call(actor)] = actor
            ray.get(ready)
            done += 1
        rate = done * ENVS * (ROWS if rollout else 1) / (time.perf_counter() - began)
    ray.shutdown()
    return rate


def bare_rate(name: str, actors: int, seconds: float) -> float:
    """Steps/s of loops in processes of their own."""
    context: Any = multiprocessing.get_context("fork")
    ready, rates = context.Barrier(actors), context.Queue()

    def loop(seed: int) -> None:
        environments = Environments(name, seed)
        obs, done = np.empty_like(environments.obs), 0
        ready.wait()
        began = time.perf_counter()
        while time.perf_counter() < began + seconds:
            for _ in range(16):
                environments.step(environments.actions(), obs)
            done += 16 * ENVS
        rates.put(done / (time.perf_counter() - began))

    processes = [context.Process(target=loop, args=(1_000 * i,), daemon=True) for i in range(actors)]
    for process in processes:
        process.start()
    total = sum(rates.get() for _ in processes)
    for process in processes:
        process.join()
    return float(total)


WAYS: dict[str, Callable[[str, int, float], float]] = {
    "asyncrl": asyncrl_rate,
    "ray_rollout": partial(ray_rate, rollout=True),
    "ray_step": partial(ray_rate, rollout=False),
    "bare": bare_rate,
}


def main() -> None:
    """Measure once."""
    parser = script_parser(__doc__)
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("env", choices=MAKERS)
    parser.add_argument("--actors", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2.0)
    given = parser.parse_args()
    rate = WAYS[given.way](given.env, given.actors, given.seconds)
    versions = {name: version(name) for name in ("numpy", "gymnasium", *["ray"] * ("ray" in given.way))}
    sides = {"versions": versions, "cores": usable_cores(), "environments": given.actors * ENVS}
    print(json.dumps({"steps_per_second": rate, **sides}))


if __name__ == "__main__":
    main()
