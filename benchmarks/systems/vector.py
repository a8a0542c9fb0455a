"""Native vector environments in an actor: rows/s against the same environment and policy in a bare loop, E up to 1024.

CartPole-v1 by its vector entry point, PPO's policy 4-64-64-2 (NumPy and numba, no torch). Three loops take turns on one
core: the vector alone with random actions, the vector with the policy, and an actor, which also writes rows, flags,
episodes and log-probabilities into its ring and publishes. Then a whole run of PPO with one actor and one pass over
each step. The goal is that an actor costs little compared with environment and policy.

    python -m benchmarks.systems.vector
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np

from asyncrl import PPO
from asyncrl.actors.actor import Actor
from asyncrl.actors.streams import VectorStreams
from asyncrl.algorithms.actor_critic import ActorCritic
from asyncrl.envs.checks import spec_of
from asyncrl.learning.ring_sizes import PADDING
from asyncrl.shm import RingLayout, RingReader, RingWriter, Segment, WeightMailbox
from benchmarks.harness import runs
from benchmarks.harness.report import Report, by_turns, script_parser

SIZES = (16, 64, 256, 1024)
SLOTS = 64
ALGORITHM = PPO(segment_length=16, epochs=1, minibatch_size=4096, queue_batches=2)


def vector(envs: int) -> Any:
    """Make a vector environment."""
    return gymnasium.make_vec("CartPole-v1", num_envs=envs, vectorization_mode="vector_entry_point")


class Vector:
    """Factory for a run: each actor builds its vector of `envs` environments."""

    def __init__(self, envs: int) -> None:
        self.envs = envs

    def __call__(self) -> Any:
        return vector(self.envs)


def rate(row: Callable[[], object], envs: int, seconds: float) -> float:
    """Environment steps/s of a loop over `row`, which steps `envs` environments."""
    for _ in range(50):
        row()
    rows, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds:
        for _ in range(10):
            row()
        rows += 10
    return envs * rows / elapsed


def loops(envs: int) -> tuple[dict[str, Callable[[], object]], Callable[[], None]]:
    """Functions that make one row of each loop, and a function that closes their memory."""
    rng = np.random.default_rng(0)
    alone, acted = vector(envs), vector(envs)
    alone.reset(seed=0)
    obs = [acted.reset(seed=0)[0]]
    actions = [rng.integers(0, 2, envs) for _ in range(64)]
    spec = spec_of("CartPole-v1", alone)
    weights = np.zeros(ALGORITHM.make_policy(spec).weight_count, np.float32)
    ActorCritic(ALGORITHM, spec).write_weights(weights)
    policy = ALGORITHM.make_policy(spec)
    policy.load_weights(weights)
    policy.assign_streams(0, envs, envs)
    turn = [0]

    def env_row() -> None:
        turn[0] = (turn[0] + 1) & 63
        alone.step(actions[turn[0]])

    def policy_row() -> None:
        action, _ = policy.act(obs[0], rng, 0)
        obs[0] = acted.step(action)[0]

    layout = RingLayout(envs, SLOTS, spec, ALGORITHM.extra_fields(spec), PADDING)
    segment = Segment.create("ring", layout.arrays())
    reader, mailbox = RingReader(segment, layout), WeightMailbox.create(weights.size)
    mailbox.publish(weights)
    streams = VectorStreams(vector(envs), spec)
    own_policy = ALGORITHM.make_policy(spec)
    writer = RingWriter(segment, layout)
    actor = Actor(streams, own_policy, writer, mailbox, index=0, num_actors=1, seed=0)
    actor.begin()

    def actor_row() -> None:
        if not actor.step():
            reader.grant(reader.published() + SLOTS)
            assert actor.step()

    def close() -> None:
        segment.close()
        mailbox.close()

    return {"env": env_row, "env_and_policy": policy_row, "actor": actor_row}, close


def main() -> None:
    """Measure and write results/vector.json."""
    parser = script_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    arguments = parser.parse_args()
    report = Report("vector")
    for envs in SIZES:
        rows, close = loops(envs)
        measures = {name: partial(rate, row, envs, arguments.seconds) for name, row in rows.items()}
        rates = by_turns(arguments.repeats, measures)
        close()
        for name, values in rates.items():
            report.add(f"{envs}_envs_{name}_steps_per_second", values, "steps/s")
        report.add_ratio(f"{envs}_envs_actor_to_env_and_policy", rates["actor"], rates["env_and_policy"])
        report.add_ratio(f"{envs}_envs_actor_to_env", rates["actor"], rates["env"])
        whole = [
            runs.throughput(Vector(envs), ALGORITHM, seed, arguments.seconds, num_actors=1)
            for seed in range(arguments.repeats)
        ]
        report.add(f"{envs}_envs_run_steps_per_second", whole, "steps/s")
    report.write()


if __name__ == "__main__":
    main()
