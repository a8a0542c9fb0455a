"""Updates/s of DQN with the Nature CNN on stacks of 4 frames of 84 x 84, against Stable-Baselines3's, one thread each.

Both sample their batch uniformly from a replay of 4,096 steps and make one update: Huber loss, no double Q-learning,
gradients clipped to 10, Adam, hard target updates. Ours cuts stacks out of a ring; Stable-Baselines3's buffer holds
complete stacks. Rates are updates per CPU second of the process, which other load on the machine affects little. The
contenders take turns in every repeat. *medium* is our `matmul_precision="medium"`: factors of bfloat16.

    python -m benchmarks.systems.image_updates [--repeats 7]
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import time
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch

from asyncrl import DQN
from asyncrl.interfaces import Batch, DiscreteAction, EnvSpec
from asyncrl.replay import PrioritizedReplay
from asyncrl.shm import RingLayout, RingReader, RingWriter, Segment
from benchmarks.harness.report import Report, by_turns, script_parser

STEPS, ENVS, ACTIONS = 4_096, 8, 6
SPEC = EnvSpec("atari", (84, 84), "uint8", DiscreteAction(ACTIONS))


class Ours:
    """Replay over a ring, and the learner of DQN."""

    def __init__(self, batch: int, precision: Any = "highest") -> None:
        layout = RingLayout(ENVS, STEPS // ENVS, SPEC)
        segment = Segment.create("ring", layout.arrays())
        writer = RingWriter(segment, layout)
        rng = np.random.default_rng(0)
        reader = RingReader(segment, layout)
        self.replay = PrioritizedReplay([reader], n_step=1, gamma=0.99, alpha=None, frame_stack=4, rng=rng)
        writer.obs[:] = rng.integers(0, 256, writer.obs.shape, dtype=np.uint8)
        for values in (writer.action, writer.reward, writer.flags):
            values[:] = 0
        self.replay.grant(0, layout.num_slots)
        writer.publish(layout.num_slots - 1)
        self.replay.ingest()
        algorithm = DQN(
            frame_stack=4, batch_size=batch, n_step=1, prioritized=False, double=False,
            target_update="hard", learning_rate=1e-4, matmul_precision=precision,
        )  # fmt: skip
        self.core = algorithm.make_updater(SPEC, "cpu", 0)
        self.batch = Batch.allocate(batch, SPEC.stacked(4))

    def update(self) -> None:
        self.replay.sample(self.batch, 1.0)
        self.core.update(self.batch)


class Game(gymnasium.Env[Any, Any]):
    """Environment with the spaces of an Atari game."""

    observation_space = gymnasium.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    action_space = gymnasium.spaces.Discrete(ACTIONS)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros((4, 84, 84), np.uint8), {}


class StableBaselines3:
    """`DQN("CnnPolicy")` with a filled buffer; `train(1)`."""

    def __init__(self, batch: int) -> None:
        from stable_baselines3 import DQN as PeerDQN
        from stable_baselines3.common.logger import Logger

        self.model = PeerDQN(
            "CnnPolicy", Game(), buffer_size=STEPS, batch_size=batch, learning_rate=1e-4, device="cpu"
        )
        self.model.set_logger(Logger(None, []))
        buffer, rng = self.model.replay_buffer, np.random.default_rng(0)
        buffer.observations[:] = rng.integers(0, 256, buffer.observations.shape, dtype=np.uint8)
        buffer.next_observations[:] = rng.integers(0, 256, buffer.observations.shape, dtype=np.uint8)
        buffer.full, self.size = True, batch

    def update(self) -> None:
        self.model.train(1, self.size)


def rate(contender: Any, calls: int) -> float:
    """Updates per CPU second."""
    start = time.process_time()
    for _ in range(calls):
        contender.update()
    return calls / (time.process_time() - start)


def main() -> None:
    """Measure and write results/image_updates.json."""
    parser = script_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parsed = parser.parse_args()
    torch.set_num_threads(1)
    report = Report("image_updates", ("stable-baselines3",))
    for size, calls in ((32, 8), (256, 2)):
        made: dict[str, Any] = {"ours": Ours(size), "medium": Ours(size, "medium")}
        made["sb3"] = StableBaselines3(size)
        for contender in made.values():
            contender.update()
        rates = by_turns(parsed.repeats, {name: partial(rate, one, calls) for name, one in made.items()})
        for name, values in rates.items():
            report.add(f"batch_{size}_{name}_updates_per_cpu_second", values, "1/s")
        for name in ("ours", "medium"):
            report.add_ratio(f"batch_{size}_{name}_to_sb3", rates[name], rates["sb3"])
    report.write()


if __name__ == "__main__":
    main()
