"""Agent steps/s of environments with several agents in one process; prints one JSON line.

    asyncrl     one actor of a run of DQN, whose learner makes an update in 1,280 steps
    supersuit   SuperSuit's vector in the form of Stable-Baselines3, stepped with random actions
    bare        the limit: the environments in a loop with random actions, whose results nobody sees

All step `ENVS` copies of the same environment of PettingZoo's parallel API; a step of an environment is one of every
agent in it.

    python -m benchmarks.peers.agent_steps bare spread --seconds 3
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import importlib
import json
import time
import warnings
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import gymnasium
import numpy as np

from benchmarks.harness.report import script_parser, usable_cores
from benchmarks.harness.runs import when_updated

ENVS = 8
NAMES = {"spread": "mpe2:simple_spread_v3", "foraging": "lbforaging:Foraging-8x8-2p-2f-coop-v3"}
UPDATE_STEPS = 1_280
"""Environment steps for an update of the run's learner, so that the actor is the bottleneck."""


def spread() -> Any:
    """Simple spread in PettingZoo's parallel API, with defaults: three agents, episodes of 25 steps."""
    return importlib.import_module("mpe2.simple_spread_v3").parallel_env()


def foraging() -> Any:
    """Level-based foraging: gymnasium's API with tuples, two agents; without the checker of its steps."""
    importlib.import_module("lbforaging")
    return gymnasium.make(NAMES["foraging"].partition(":")[2], disable_env_checker=True)


def bare_rate(name: str, seconds: float) -> float:
    """Agent steps/s of a loop over the environments, with random actions."""
    envs = [MAKERS[name]() for _ in range(ENVS)]
    for seed, env in enumerate(envs):
        env.reset(seed=seed)
    agents = list(envs[0].possible_agents) if name == "spread" else ()
    space = envs[0].action_space(agents[0]) if agents else envs[0].action_space[0]
    count = len(agents) or len(envs[0].action_space)
    drawn = np.random.default_rng(0).integers(0, space.n, (4096, count)).tolist()
    actions = [dict(zip(agents, row, strict=True)) if agents else tuple(row) for row in drawn]
    steps, end = 0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        for env in envs:
            _, _, terminated, truncated, _ = env.step(actions[steps & 4095])
            steps += 1
            if (not env.agents) if agents else (terminated or truncated):
                env.reset()
    return steps * count / seconds


def supersuit_rate(name: str, seconds: float) -> float:
    """Agent steps/s of SuperSuit's vector for Stable-Baselines3, in this process, with random actions."""
    import supersuit

    vector = supersuit.pettingzoo_env_to_vec_env_v1(MAKERS[name]())
    vector = supersuit.concat_vec_envs_v1(vector, ENVS, num_cpus=1, base_class="stable_baselines3")
    vector.reset()
    drawn = np.random.default_rng(0).integers(0, vector.action_space.n, (4096, vector.num_envs))
    steps, end = 0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        vector.step(drawn[steps & 4095])
        steps += 1
    return float(steps * vector.num_envs / seconds)


def asyncrl_rate(name: str, seconds: float) -> float:
    """Agent steps/s of the only actor of a run, between two snapshots of its counters."""
    from asyncrl import DQN, Trainer

    env = MAKERS[name]()
    count = len(env.possible_agents) if name == "spread" else len(env.action_space)
    algorithm = DQN(samples_per_insert=64 / UPDATE_STEPS, learning_starts=1_000, replay_capacity=1 << 17)
    with Trainer(
        NAMES[name], algorithm, num_actors=1, envs_per_actor=ENVS, http="off", eval_interval_steps=None
    ) as trainer:
        trainer.start()
        first = when_updated(trainer, 2)
        time.sleep(seconds)
        last = trainer.snapshot()
        assert last is not None
        return float(count * (last.env_steps - first.env_steps) / (last.wall_seconds - first.wall_seconds))


MAKERS: dict[str, Callable[[], Any]] = {"spread": spread, "foraging": foraging}
WAYS: dict[str, Callable[[str, float], float]] = {
    "asyncrl": asyncrl_rate,
    "supersuit": supersuit_rate,
    "bare": bare_rate,
}


def main() -> None:
    """Measure one way and print it."""
    parser = script_parser(__doc__)
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("env", choices=MAKERS)
    parser.add_argument("--seconds", type=float, default=3.0)
    parsed = parser.parse_args()
    warnings.simplefilter("ignore")
    names = ["gymnasium", "pettingzoo", "mpe2", "lbforaging"]
    names += ["supersuit", "stable_baselines3"] if parsed.way == "supersuit" else []
    rate = WAYS[parsed.way](parsed.env, parsed.seconds)
    versions = {name: version(name) for name in names}
    print(
        json.dumps(
            {
                "agent_steps_per_second": rate,
                "versions": versions,
                "cores": usable_cores(),
                "environments": ENVS,
            }
        )
    )


if __name__ == "__main__":
    main()
