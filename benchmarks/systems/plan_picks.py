"""Whether `asyncrl plan` picks the fastest numbers: its pick against a grid of actors, threads and environments.

    Mao et al. 2023     Spreeze: high-throughput parallel reinforcement learning framework

The environment is a simulator whose step costs a fixed amount of work on the processor, a tenth of it in one thread and
the rest divided among `num_threads`. Three sizes: 0.1, 1 and 10 ms a step with one thread. For each, `plan` chooses in
its own order, then every cell of the grid is measured `--repeats` times, the cells taking turns. Reported:

    <env>_pick_of_best          median steps/s of the pick over those of the best cell
    <env>_predicted_to_run      steps/s that the plan printed over those of a run with its numbers
    <env>_efficiency_<a>x<t>    steps/s over those of one actor with one thread, times actors x threads

    python -m benchmarks.systems.plan_picks [--repeats 3]
"""

from __future__ import annotations

import hashlib
import itertools
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from statistics import median
from typing import Any

import gymnasium
import numpy as np

from asyncrl import PPO
from asyncrl.cli.pilots import fastest, plan, run_pilot, with_threads
from asyncrl.config import TrainerConfig, usable_cores
from benchmarks.harness.report import Report, by_turns, script_parser

ENVIRONMENT = "benchmarks.systems.plan_picks:Simulator"
MILLISECONDS = {"cheap": 0.1, "medium": 1.0, "heavy": 10.0}
SERIAL = 0.1
"""Share of a step's work that one thread does alone (Amdahl)."""
ENVS = (1, 4, 16)
SECONDS = 5.0


def bytes_per_millisecond() -> int:
    """Bytes that SHA-256 takes in a millisecond on this machine now; hashing releases the interpreter's lock."""
    block, best = bytes(1 << 20), float("inf")
    for _ in range(20):
        started = time.perf_counter()
        hashlib.sha256(block)
        best = min(best, time.perf_counter() - started)
    return int(len(block) / best / 1000)


class Simulator(gymnasium.Env[Any, Any]):
    """An environment that costs `work` bytes of hashing a step, most of it divided among its threads."""

    observation_space = gymnasium.spaces.Box(-1, 1, (8,), np.float32)
    action_space = gymnasium.spaces.Discrete(4)

    def __init__(self, work: int, num_threads: int = 1) -> None:
        self._serial, self._part = bytes(int(SERIAL * work)), bytes(int((1 - SERIAL) * work / num_threads))
        self._others = num_threads - 1
        self._pool = ThreadPoolExecutor(self._others) if self._others else None
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._steps = 0
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        hashlib.sha256(self._serial)
        waiting = (
            [self._pool.submit(hashlib.sha256, self._part) for _ in range(self._others)] if self._pool else []
        )
        hashlib.sha256(self._part)
        for other in waiting:
            other.result()
        self._steps += 1
        return self._observation(), 0.0, False, self._steps >= 200, {}

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def _observation(self) -> Any:
        return self.np_random.uniform(-1, 1, 8).astype(np.float32)


def grid(cores: int) -> list[tuple[int, int, int]]:
    """Actors, threads and environments for each actor: powers of 2, actors x threads at most `cores`."""
    powers = [1 << k for k in range(cores.bit_length()) if 1 << k <= cores]
    return [(a, t, e) for a, t, e in itertools.product(powers, powers, ENVS) if a * t <= cores]


def measure(name: str, report: Report, repeats: int) -> None:
    """Plan for one simulator, measure its grid, and report the pick."""
    work = int(MILLISECONDS[name] * bytes_per_millisecond())
    config = TrainerConfig(env=ENVIRONMENT, algo="ppo", env_kwargs={"work": work}, envs_per_actor=ENVS[1])
    algorithm, cores = PPO(), usable_cores()
    pick = fastest(plan(config, algorithm, SECONDS, cores=cores, env_threads="num_threads"))
    chosen = (pick.num_actors, pick.env_threads, pick.envs_per_actor)

    def cell(actors: int, threads: int, envs: int) -> float:
        found = run_pilot(with_threads(config, "num_threads", threads), algorithm, actors, envs, SECONDS)
        return found.env_steps_per_second

    places = {" x ".join(map(str, place)): place for place in [*grid(cores), chosen]}
    speeds = by_turns(repeats, {key: partial(cell, *place) for key, place in places.items()})
    best, own = max(speeds, key=lambda key: median(speeds[key])), " x ".join(map(str, chosen))
    report.note(f"{name}_pick", f"actors x threads x environments: {own}; the best of the grid: {best}")
    report.add_ratio(f"{name}_pick_of_best", speeds[own], speeds[best])
    predicted = [pick.env_steps_per_second / speed for speed in speeds[own]]
    report.add(f"{name}_predicted_to_run", predicted, "x")
    for key, (actors, threads, envs) in places.items():
        if envs == ENVS[1] and actors * threads > 1:
            linear = [actors * threads * speed for speed in speeds[f"1 x 1 x {envs}"]]
            report.add_ratio(f"{name}_efficiency_{actors}x{threads}", speeds[key], linear)


def main() -> None:
    """Measure all simulators and write results/plan_picks.json."""
    parser = script_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parsed = parser.parse_args()
    report = Report("plan_picks")
    for name in MILLISECONDS:
        measure(name, report, parsed.repeats)
    report.write()


if __name__ == "__main__":
    main()
