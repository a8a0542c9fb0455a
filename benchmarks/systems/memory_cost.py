"""Cost of a recurrent cell: an actor's step and a gradient step of PPO, against the policy without memory.

Hidden layers of 64 and 64, a cell of 64; 16 environments act; a minibatch is four segments of 64 rows, with episodes of
50 steps. CPU time of one thread; the kinds take turns.

    python -m benchmarks.systems.memory_cost
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import time
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch

from asyncrl import PPO
from asyncrl.interfaces import RESET, TERMINATED, DiscreteAction, EnvSpec, Segment
from benchmarks.harness.report import Report, by_turns, script_parser

SPEC = EnvSpec("eight values", (8,), "float32", DiscreteAction(4))
ENVS, ROWS, EPISODE = 16, 64, 50
KINDS = ("none", "gru", "lstm")


def algorithm(kind: Any) -> PPO:
    """PPO with this cell."""
    return PPO(recurrent=kind, segment_length=ROWS, minibatch_size=4 * ROWS, epochs=1)


def act_microseconds(kind: str, steps: int) -> float:
    """CPU time of one call of `act` for all environments."""
    policy, rng = algorithm(kind).make_policy(SPEC), np.random.default_rng(0)
    policy.load_weights(0.1 * rng.normal(size=policy.weight_count).astype(np.float32))
    policy.assign_streams(0, ENVS, ENVS)
    obs = rng.normal(size=(ENVS, 8)).astype(np.float32)
    policy.act(obs, rng, 0)
    started = time.process_time()
    for _ in range(steps):
        policy.act(obs, rng, 0)
    return 1e6 * (time.process_time() - started) / steps


def segment(made: PPO) -> Segment:
    """Segment of random observations and rewards; episodes begin at random rows."""
    rng = np.random.default_rng(0)
    age = (np.arange(ROWS) + rng.integers(EPISODE + 1, size=(ENVS, 1))) % (EPISODE + 1)
    flags = np.where(age == EPISODE, RESET, np.where(age == EPISODE - 1, TERMINATED, 0)).astype(np.uint8)
    fields = {f.name: np.zeros((ENVS, ROWS, *f.shape), np.float32) for f in made.extra_fields(SPEC)}
    return Segment(
        ring=0, first=0, obs=rng.normal(size=(ENVS, ROWS, 8)).astype(np.float32),
        last_obs=np.zeros((ENVS, 8), np.float32), action=np.zeros((ENVS, ROWS), np.int64),
        reward=rng.normal(size=(ENVS, ROWS)).astype(np.float32), flags=flags, version=np.zeros(ROWS, np.int64),
        policy_updates=np.zeros(ROWS, np.int64), extras=fields, weight=np.ones(ROWS, np.float32),
        staleness=np.zeros(ROWS, np.int64),
    )  # fmt: skip


def step_milliseconds(kind: str, iterations: int) -> float:
    """Median CPU time of a gradient step."""
    made = algorithm(kind)
    core: Any = made.make_updater(SPEC, "cpu", 0)
    own, times = segment(made), []
    for _ in range(iterations):
        core.begin([own], 0.0)
        more = True
        while more:
            started = time.process_time()
            more = core.step()
            times.append(time.process_time() - started)
    return 1e3 * median(times)


def main() -> None:
    """Measure and write results/memory_cost.json."""
    parser = script_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    report = Report("memory_cost")
    for what, unit, measure, count in (
        ("act", "us", act_microseconds, 2000),
        ("gradient_step", "ms", step_milliseconds, 10),
    ):
        times = by_turns(arguments.repeats, {kind: partial(measure, kind, count) for kind in KINDS})
        for kind, values in times.items():
            report.add(f"{what}_{kind}", values, unit)
            if kind != "none":
                report.add_ratio(f"{what}_{kind}_to_none", values, times["none"])
    report.write()


if __name__ == "__main__":
    main()
