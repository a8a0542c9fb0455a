"""Cost of an Atari game in an actor, against ale-py's `AtariVectorEnv` in a bare loop; memory of a million steps.

Every contender steps the same number of Pong games with sticky actions and up to 30 no-ops, with random actions, on
one thread. Times are CPU seconds of the process, threads of ale-py included, which other load on the machine affects
little. Contenders take turns in every repeat. The actor is that of training: environments, stacks of 4 frames, a
policy, the ring, and a consumer that grants its rows. *cheap* is a policy of random actions; *nature* is DQN's with its
Nature CNN.

    python -m benchmarks.systems.atari_rate [--repeats 7] [--memory-steps 1048576]
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import ale_py
import gymnasium
import numpy as np
import psutil
from gymnasium.wrappers import AtariPreprocessing, TransformReward

from asyncrl import DQN
from asyncrl.actors.actor import Actor
from asyncrl.actors.streams import make_streams
from asyncrl.envs.atari import EpisodicLife, sign
from asyncrl.envs.atari_vector import AtariVector
from asyncrl.envs.source import EnvSource, describe
from asyncrl.interfaces import DiscreteAction, EnvSpec
from asyncrl.replay import PrioritizedReplay
from asyncrl.shm import RingLayout, RingReader, RingWriter, Segment, WeightMailbox
from benchmarks.harness.report import Report, script_parser

ENVS, SLOTS, ROWS = 8, 256, 150
NAME = "ALE/Pong-v5"


class Bare:
    """`AtariVectorEnv` in a loop with random actions."""

    def __init__(self, stack: int) -> None:
        self.env = ale_py.AtariVectorEnv(
            "pong", ENVS, num_threads=1, stack_num=stack, repeat_action_probability=0.25
        )
        self.env.reset(seed=0)
        self.rng = np.random.default_rng(0)

    def step(self) -> None:
        self.env.step(self.rng.integers(0, 6, ENVS))


class Wrappers:
    """gymnasium's wrappers in a loop."""

    def __init__(self) -> None:
        games = [gymnasium.make(NAME, frameskip=1, disable_env_checker=True) for _ in range(ENVS)]
        self.envs = [TransformReward(EpisodicLife(AtariPreprocessing(game)), sign) for game in games]
        for i, env in enumerate(self.envs):
            env.reset(seed=i)
        self.rng = np.random.default_rng(0)

    def step(self) -> None:
        for env, action in zip(self.envs, self.rng.integers(0, 6, ENVS), strict=True):
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()


class Cheap:
    """Policy of random actions on stacks of 4."""

    weight_count, exploration_rate, frame_stack = 1, 1.0, 4

    def __init__(self) -> None:
        self.weights = np.zeros(1, np.float32)

    def assign_streams(self, first: int, count: int, total: int) -> None: ...

    def weights_changed(self) -> None: ...

    def act(self, obs: Any, rng: np.random.Generator, total_steps: int) -> tuple[Any, dict[str, Any]]:
        return rng.integers(0, 6, len(obs)), {}


class OurActor:
    """An actor of training, its ring, and a replay that grants rows."""

    def __init__(self, source: EnvSource, policy: Any = None) -> None:
        spec = describe(source)
        self.policy = Cheap() if policy is None else policy(spec)
        layout = RingLayout(ENVS, SLOTS, spec)
        segment = Segment.create("ring", layout.arrays())
        self.reader = RingReader(segment, layout)
        mailbox = WeightMailbox.create(self.policy.weight_count)
        mailbox.publish(np.zeros(self.policy.weight_count, np.float32))
        writer = RingWriter(segment, layout)
        streams = make_streams(source, spec, ENVS)
        self.actor = Actor(streams, self.policy, writer, mailbox, index=0, num_actors=1, seed=0)  # type: ignore[arg-type]
        self.actor.begin()
        rng = np.random.default_rng(0)
        self.replay = PrioritizedReplay([self.reader], n_step=3, gamma=0.99, frame_stack=4, rng=rng)
        self.replay.grant(0, SLOTS)

    def step(self) -> None:
        while not self.actor.step():
            self.replay.ingest()
            self.replay.grant(0, self.reader.published() + SLOTS // 2)


def contenders() -> dict[str, Callable[[], Any]]:
    """Factories of the contenders, by name."""
    vector = EnvSource.from_user(partial(AtariVector, "pong", ENVS))
    return {
        "ale_vector_stack_4": partial(Bare, 4),
        "ale_vector_stack_1": partial(Bare, 1),
        "gymnasium_wrappers": Wrappers,
        "actor_cheap": partial(OurActor, EnvSource.from_user(NAME)),
        "actor_cheap_by_ale_vector": partial(OurActor, vector),
        "actor_nature": partial(
            OurActor, EnvSource.from_user(NAME), lambda spec: DQN(frame_stack=4).make_policy(spec)
        ),
    }


def measure_rates(report: Report, repeats: int) -> None:
    """Measure steps per CPU second of every contender, in turn."""
    gymnasium.register_envs(ale_py)
    made = {name: make() for name, make in contenders().items()}
    rates: dict[str, list[float]] = {name: [] for name in made}
    for contender in made.values():
        for _ in range(5):
            contender.step()
    for _ in range(repeats):
        for name, contender in made.items():
            rows = ROWS // 5 if name == "actor_nature" else ROWS
            start = time.process_time()
            for _ in range(rows):
                contender.step()
            rates[name].append(rows * ENVS / (time.process_time() - start))
    for name, values in rates.items():
        report.add(f"{name}_steps_per_cpu_second", values, "steps/s")
    for name in ("actor_cheap", "actor_cheap_by_ale_vector", "gymnasium_wrappers"):
        for peer in ("ale_vector_stack_4", "ale_vector_stack_1"):
            goal = "at least 0.85" if name == "actor_cheap" else None
            report.add_ratio(f"{name}_to_{peer}", rates[name], rates[peer], goal)


def measure_memory(report: Report, steps: int) -> None:
    """Measure resident bytes of a fully written ring of `steps` steps and of the replay over it."""
    process = psutil.Process()
    before = process.memory_info().rss
    spec = EnvSpec("atari", (84, 84), "uint8", DiscreteAction(6))
    layout = RingLayout(16, steps // 16, spec)
    segment = Segment.create("ring", layout.arrays())
    reader, writer = RingReader(segment, layout), RingWriter(segment, layout)
    replay = PrioritizedReplay([reader], n_step=3, gamma=0.99, frame_stack=4, rng=np.random.default_rng(0))
    block = 1024
    frames = np.random.default_rng(0).integers(0, 256, (16, block, 84, 84), dtype=np.uint8)
    while writer.published < layout.num_slots - block:
        slot = writer.published
        replay.grant(0, layout.num_slots)
        writer.obs[:, slot : slot + block] = frames
        for values in (writer.action, writer.reward, writer.flags):
            values[:, slot : slot + block] = 0
        writer.version[slot : slot + block] = 1
        writer.publish(block)
        replay.ingest()
    writer.obs[:, slot + block :] = 1
    used = process.memory_info().rss - before - frames.nbytes
    report.add("memory_bytes", [float(used)], "bytes", f"of {steps} steps of 84 x 84, any frame stack")
    report.add("memory_bytes_per_step", [used / steps], "bytes", f"{84 * 84} are the frame")
    del replay, reader, writer
    segment.close()


def main() -> None:
    """Measure and write results/atari_rate.json."""
    parser = script_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--memory-steps", type=int, default=1 << 20, help="a power of two; 0: not measured")
    parsed = parser.parse_args()
    report = Report("atari_rate", ("ale-py", "opencv-python-headless"))
    report.note("settings", f"{ENVS} games of Pong, {ROWS * ENVS} steps a repeat, one thread")
    measure_rates(report, parsed.repeats)
    if parsed.memory_steps:
        measure_memory(report, parsed.memory_steps)
    report.write()


if __name__ == "__main__":
    main()
