"""Duration of a batch of 256 stacks of 4 frames of 84 x 84: obs and next_obs, sampled and gathered.

*sample* draws and gathers 256 transitions with both stacks. *mixed* is a learner's turn: 64 steps inserted, 256
sampled, 256 priorities updated. Ours cuts stacks of single frames out of the ring when it samples. cpprb stores single
frames too, by its options `next_of` and `stack_compress` (`cpprb_frames`), or whole stacks (`cpprb_stacks`). torchrl's
storage holds whole stacks. torchrl's buffer is uniform, which is less work, as its prioritized one cannot be imported
with torch 2.13. All buffers are full and hold `--capacity` one-step transitions.

*memcpy* copies as many bytes as *sample* has to write, from one place: the limit of the machine at that moment.
Contenders take turns in every repeat. Times are CPU milliseconds of the process on one thread; a peer that is not
installed is reported as absent.

    python -m benchmarks.systems.stacks [--repeats 15] [--capacity 16384]
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import time
from typing import Any

import numpy as np

from asyncrl.interfaces import Batch, DiscreteAction, EnvSpec
from asyncrl.replay import PrioritizedReplay
from asyncrl.shm import RingLayout, RingReader, RingWriter, Segment
from benchmarks.harness.report import Report, script_parser

BATCH, INSERT, FRAMES, SIDE, ENVS = 256, 64, 4, 84, 16
SPEC = EnvSpec("atari", (SIDE, SIDE), "uint8", DiscreteAction(6))


def noise(count: int, seed: int) -> Any:
    """Random frames `[count, 84, 84]`."""
    return np.random.default_rng(seed).integers(0, 256, (count, SIDE, SIDE), dtype=np.uint8)


class Ours:
    """A ring of 16 streams and its replay, importance weights included."""

    def __init__(self, capacity: int) -> None:
        layout = RingLayout(ENVS, capacity // ENVS, SPEC)
        segment = Segment.create("ring", layout.arrays())
        writer = self.writer = RingWriter(segment, layout)
        rng = np.random.default_rng(0)
        self.replay = PrioritizedReplay(
            [RingReader(segment, layout)], n_step=1, gamma=0.99, frame_stack=FRAMES, rng=rng
        )
        for env in range(ENVS):
            writer.obs[env] = noise(layout.num_slots, env)
        for values in (writer.action, writer.reward, writer.flags):
            values[:] = 0
        writer.version[:] = 1
        self.replay.grant(0, layout.num_slots)
        writer.publish(layout.num_slots - 1)
        self.replay.ingest()
        self.batch = Batch.allocate(BATCH, SPEC.stacked(FRAMES))
        self.errors = rng.random(BATCH, np.float32)
        self.frames = noise(ENVS, 99)
        for _ in range(2 * capacity // BATCH):
            self.sample()
            self.update()

    def insert(self) -> None:
        writer = self.writer
        self.replay.grant(0, writer.published + INSERT // ENVS + 2)
        for _ in range(INSERT // ENVS):  # row by row, like an actor
            slot = writer.published & (writer.num_slots - 1)
            writer.obs[:, (slot + 1) & (writer.num_slots - 1)] = self.frames
            for values in (writer.action, writer.reward, writer.flags):
                values[:, slot] = 0
            writer.publish(1)
        self.replay.ingest()

    def sample(self) -> None:
        self.replay.sample(self.batch, 0.4)

    def update(self) -> None:
        self.replay.update_priorities(self.batch.ids, self.errors)


class Cpprb:
    """cpprb.PrioritizedReplayBuffer, with or without its options for single frames."""

    def __init__(self, capacity: int, compress: bool) -> None:
        import cpprb

        stack: dict[str, Any] = {"shape": (SIDE, SIDE, FRAMES), "dtype": np.uint8}
        fields: dict[str, Any] = {"obs": stack, "act": {"dtype": np.int64}, "rew": {}, "done": {}}
        options: dict[str, Any] = {"next_of": "obs", "stack_compress": "obs"} if compress else {}
        if not compress:
            fields["next_obs"] = stack
        self.buffer = cpprb.PrioritizedReplayBuffer(capacity, fields, alpha=0.6, **options)
        stacks = np.lib.stride_tricks.sliding_window_view(noise(INSERT + FRAMES, 0), FRAMES, axis=0)
        self.steps = {
            "obs": np.ascontiguousarray(stacks[:INSERT]),
            "next_obs": np.ascontiguousarray(stacks[1 : INSERT + 1]),
            "act": np.zeros(INSERT, np.int64),
            "rew": np.zeros(INSERT, np.float32),
            "done": np.zeros(INSERT, np.float32),
        }
        for _ in range(capacity // INSERT):
            self.insert()
        self.errors = np.random.default_rng(0).random(BATCH, np.float32)
        for _ in range(2 * capacity // BATCH):
            self.sample()
            self.update()

    def insert(self) -> None:
        self.buffer.add(**self.steps)

    def sample(self) -> None:
        self.batch = self.buffer.sample(BATCH, beta=0.4)

    def update(self) -> None:
        self.buffer.update_priorities(self.batch["indexes"], self.errors)


class TorchRL:
    """torchrl.data.TensorDictReplayBuffer over LazyTensorStorage, uniform."""

    def __init__(self, capacity: int) -> None:
        import torch
        from tensordict import TensorDict
        from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

        torch.set_num_threads(1)
        self.buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(capacity), batch_size=BATCH)
        stacks = np.lib.stride_tricks.sliding_window_view(noise(512 + FRAMES, 0), FRAMES, axis=0)
        joined = torch.from_numpy(np.ascontiguousarray(np.moveaxis(stacks, 3, 1)))
        size = (512,)
        self.block = TensorDict(
            {
                "obs": joined[:512],
                "act": torch.zeros(size, dtype=torch.int64),
                "next": {"obs": joined[1:513], "rew": torch.zeros(size), "done": torch.zeros(size)},
            },
            batch_size=size,
        )
        for _ in range(capacity // 512):
            self.buffer.extend(self.block)

    def insert(self) -> None:
        self.buffer.extend(self.block[:INSERT])

    def sample(self) -> None:
        self.buffer.sample()

    def update(self) -> None:
        pass


class Memcpy:
    """memcpy of the bytes of a batch, from one place."""

    def __init__(self) -> None:
        self.to = np.zeros((2, BATCH, FRAMES, SIDE, SIDE), np.uint8)
        self.of = np.random.default_rng(0).integers(0, 256, (8, *self.to.shape), dtype=np.uint8)
        self.turn = 0

    def sample(self) -> None:
        self.turn = (self.turn + 1) % 8
        np.copyto(self.to, self.of[self.turn])

    insert = update = None


def by_turns(made: dict[str, Any], what: str, repeats: int) -> dict[str, list[float]]:
    """CPU milliseconds of one sample or turn of every contender."""
    times: dict[str, list[float]] = {name: [] for name in made}
    for _ in range(repeats):
        for name, contender in made.items():
            calls = [contender.sample]
            if what == "mixed":
                calls = [contender.insert, contender.sample, contender.update]
            for call in calls:
                call()
            start = time.process_time()
            for _ in range(10):
                for call in calls:
                    call()
            times[name].append((time.process_time() - start) * 100)
    return times


def main() -> None:
    """Measure and write results/stacks.json."""
    parser = script_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--capacity", type=int, default=1 << 14, help="steps held, a power of two")
    parsed = parser.parse_args()
    report = Report("stacks", ("cpprb", "torchrl"))
    report.note("capacity", parsed.capacity)
    makers = {
        "ours": lambda: Ours(parsed.capacity),
        "cpprb_frames": lambda: Cpprb(parsed.capacity, True),
        "cpprb_stacks": lambda: Cpprb(parsed.capacity, False),
        "torchrl": lambda: TorchRL(parsed.capacity),
        "memcpy": Memcpy,
    }
    made: dict[str, Any] = {}
    for name, make in makers.items():
        try:
            made[name] = make()
        except (ImportError, RuntimeError) as error:
            report.note(f"{name} is absent", str(error))
    for what in ("sample", "mixed"):
        some = {name: one for name, one in made.items() if what == "sample" or one.insert}
        times = by_turns(some, what, parsed.repeats)
        for name, values in times.items():
            report.add(f"{what}_{name}_milliseconds", values, "ms of CPU")
        for name in times:
            if name != "ours":
                goal = None if name == "memcpy" else "at least 4"
                report.add_ratio(f"{what}_{name}_to_ours", times[name], times["ours"], goal)
    report.write()


if __name__ == "__main__":
    main()
