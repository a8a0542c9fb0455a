"""Duration of prioritized replay's operations: insert 64 steps, sample 256 transitions, update 256 priorities.

    python -m benchmarks.systems.replay [--repeats 7] [--capacity 1048576]

Capacity 2**20, observations of 4 float32, one int64 action, full buffers that wrap around. *Mixed* is the loop of a
learner: insert 64, sample 256 (transitions gathered into arrays, importance weights included), update 256. Ours and
all installed peers run next to each other in every repeat; ratios are formed within a repeat. A peer that cannot be
imported is reported with the reason. (torchrl 0.14.1 cannot be imported with torch 2.13 until its extension is rebuilt
from the sources in its wheel; that was done for results with its figures.)

Ours inserts like an actor: it writes rows into a shared-memory ring and publishes them, the replay ingests them, and
every row that it overwrites was retired and granted before; the figure includes all of that. Steps of an insert are in
E streams, so there are 64 / E rows in an insert. The headline is E = 16, as for two actors of 16 environments each;
`mixed_envs_*` are other shapes. Ours samples 3-step transitions cut out of the ring; the peers store complete one-step
transitions.

*tree* is the sum tree alone (a capacity of leaves, 256 at once).
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import itertools
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from asyncrl.interfaces import Batch, DiscreteAction, EnvSpec
from asyncrl.replay import PrioritizedReplay, SumTree
from asyncrl.shm import RingLayout, RingReader, RingWriter, Segment
from benchmarks.harness.report import Report

INSERT, SAMPLE = 64, 256
SPEC = EnvSpec("bench", (4,), "float32", DiscreteAction(2))
ALPHA, BETA = 0.6, 0.4
MARGIN = 64
"""Rows granted in addition to the next insert."""


def microseconds(call: Callable[[], Any], seconds: float = 0.25) -> float:
    """Mean duration of a call, over calls that take about `seconds` together."""
    start, calls = time.perf_counter(), 0
    while time.perf_counter() - start < 0.02:
        call()
        calls += 1
    count = max(1, int(calls * seconds / 0.02))
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count * 1e6


class Ours:
    """Rings of `actors` x `envs` streams and the replay over them, in one process."""

    def __init__(
        self, capacity: int, envs: int, actors: int = 1, sample: int = SAMPLE, uniform: bool = False
    ) -> None:
        slots = capacity // (envs * actors)
        layout = RingLayout(envs, slots, SPEC)
        self.segments = [Segment.create("ring", layout.arrays()) for _ in range(actors)]
        readers = [RingReader(segment, layout) for segment in self.segments]
        self.writers = [RingWriter(segment, layout) for segment in self.segments]
        rng = np.random.default_rng(0)
        alpha = None if uniform else ALPHA
        self.replay = PrioritizedReplay(
            readers, n_step=3, gamma=0.99, alpha=alpha, rng=np.random.default_rng(0)
        )
        self.rows = max(1, INSERT // (envs * actors))
        self.obs = rng.random((envs, self.rows, 4), np.float32)
        self.action = rng.integers(0, 2, (envs, self.rows))
        self.reward = rng.random((envs, self.rows), np.float32)
        self.flags = np.zeros((envs, self.rows), np.uint8)
        self.batch = Batch.allocate(sample, SPEC)
        self.errors = [rng.random(sample, np.float32) for _ in range(64)]
        self.turn = 0
        for _ in range(slots // self.rows + 1):
            self.insert()
        for _ in range(2 * capacity // sample):  # give almost every row a different priority
            self.sample()
            self.update()

    def insert(self) -> None:
        for ring, writer in enumerate(self.writers):
            if writer.writable() < self.rows + 1:
                self.replay.grant(ring, max(writer.num_slots, writer.published + self.rows + MARGIN))
            slot = writer.published & (writer.num_slots - 1)
            stop = slot + self.rows
            # Observations are one row ahead of the other fields: obs of row t + 1 is written with row t.
            if stop < writer.num_slots:
                writer.obs[:, slot + 1 : stop + 1] = self.obs
            else:
                writer.obs[:, slot + 1 :] = self.obs[:, :-1]
                writer.obs[:, 0] = self.obs[:, -1]
            writer.action[:, slot:stop] = self.action
            writer.reward[:, slot:stop] = self.reward
            writer.flags[:, slot:stop] = self.flags
            writer.version[slot:stop] = 1
            writer.incarnation[slot:stop] = 0
            writer.publish(self.rows)
        self.replay.ingest()

    def sample(self) -> None:
        self.replay.sample(self.batch, BETA)

    def update(self) -> None:
        self.turn = (self.turn + 1) & 63
        self.replay.update_priorities(self.batch.ids, self.errors[self.turn])

    def close(self) -> None:
        for segment in self.segments:
            segment.close()


class Cpprb:
    """cpprb.PrioritizedReplayBuffer."""

    def __init__(self, capacity: int) -> None:
        import cpprb

        fields = {
            "obs": {"shape": 4},
            "act": {"dtype": np.int64},
            "rew": {},
            "next_obs": {"shape": 4},
            "done": {},
        }
        self.buffer = cpprb.PrioritizedReplayBuffer(capacity, fields, alpha=ALPHA)
        rng = np.random.default_rng(0)
        self.steps = {
            "obs": rng.random((INSERT, 4), np.float32),
            "act": np.zeros(INSERT, np.int64),
            "rew": np.zeros(INSERT, np.float32),
            "next_obs": rng.random((INSERT, 4), np.float32),
            "done": np.zeros(INSERT, np.float32),
        }
        for _ in range(capacity // INSERT):
            self.insert()
        self.errors = rng.random(SAMPLE, np.float32)
        for _ in range(capacity // SAMPLE):
            self.sample()
            self.update()

    def insert(self) -> None:
        self.buffer.add(**self.steps)

    def sample(self) -> None:
        self.batch = self.buffer.sample(SAMPLE, beta=BETA)

    def update(self) -> None:
        self.buffer.update_priorities(self.batch["indexes"], self.errors)

    def close(self) -> None:
        del self.buffer


class TorchRL:
    """torchrl.data.TensorDictPrioritizedReplayBuffer over LazyTensorStorage."""

    def __init__(self, capacity: int) -> None:
        import torch
        from tensordict import TensorDict
        from torchrl.data import LazyTensorStorage, TensorDictPrioritizedReplayBuffer

        torch.set_num_threads(1)
        self.buffer = TensorDictPrioritizedReplayBuffer(
            alpha=ALPHA,
            beta=BETA,
            storage=LazyTensorStorage(capacity),
            batch_size=SAMPLE,
            priority_key="td_error",
        )

        def steps(count: int) -> Any:
            return TensorDict(
                {
                    "obs": torch.rand(count, 4),
                    "act": torch.zeros(count, dtype=torch.int64),
                    "rew": torch.zeros(count),
                    "next_obs": torch.rand(count, 4),
                    "done": torch.zeros(count),
                },
                [count],
            )

        for _ in range(capacity // 8192):
            self.buffer.extend(steps(8192))
        self.steps, self.errors = steps(INSERT), torch.rand(SAMPLE)
        for _ in range(capacity // SAMPLE):
            self.sample()
            self.update()

    def insert(self) -> None:
        self.buffer.extend(self.steps)

    def sample(self) -> None:
        self.batch = self.buffer.sample()

    def update(self) -> None:
        self.buffer.update_priority(self.batch["index"], self.errors)

    def close(self) -> None:
        del self.buffer


class Tianshou:
    """tianshou.data.PrioritizedVectorReplayBuffer of 64 environments."""

    def __init__(self, capacity: int) -> None:
        from tianshou.data import Batch as Steps
        from tianshou.data import PrioritizedVectorReplayBuffer

        self.buffer = PrioritizedVectorReplayBuffer(capacity, INSERT, alpha=ALPHA, beta=BETA)
        rng = np.random.default_rng(0)
        self.steps = Steps(
            obs=rng.random((INSERT, 4), np.float32),
            act=np.zeros(INSERT, np.int64),
            rew=np.zeros(INSERT),
            terminated=np.zeros(INSERT, bool),
            truncated=np.zeros(INSERT, bool),
            obs_next=rng.random((INSERT, 4), np.float32),
            info=Steps(),
        )
        for _ in range(capacity // INSERT):
            self.insert()
        self.errors = rng.random(SAMPLE, np.float32)
        for _ in range(capacity // SAMPLE):
            self.sample()
            self.update()

    def insert(self) -> None:
        self.buffer.add(self.steps)

    def sample(self) -> None:
        self.batch, self.indices = self.buffer.sample(SAMPLE)

    def update(self) -> None:
        self.buffer.update_weight(self.indices, self.errors)

    def close(self) -> None:
        del self.buffer


PEERS = {"cpprb": Cpprb, "torchrl": TorchRL, "tianshou": Tianshou}


def mixed(replay: Any) -> Callable[[], None]:
    def loop() -> None:
        replay.insert()
        replay.sample()
        replay.update()

    return loop


def measure_against_peers(report: Report, repeats: int, capacity: int) -> None:
    contenders: dict[str, Any] = {"ours": Ours(capacity, envs=16)}
    for name, peer in PEERS.items():
        try:
            contenders[name] = peer(capacity)
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            report.note(f"absent_{name}", reason)
            print(f"{name} is absent: {reason}", flush=True)
    times: dict[tuple[str, str], list[float]] = {}
    for _ in range(repeats):
        for name, replay in contenders.items():
            calls = {"insert": replay.insert, "sample": replay.sample, "update": replay.update}
            for what, call in {**calls, "mixed": mixed(replay)}.items():
                times.setdefault((name, what), []).append(microseconds(call))
    for (name, what), values in times.items():
        goal = "goal: 15" if (name, what) == ("ours", "mixed") else None
        report.add(f"{name}_{what}", values, "us", goal)
    for name in list(contenders)[1:]:
        for what in ("insert", "sample", "update", "mixed"):
            goal = "goal: at least 10" if what == "mixed" else None
            report.add_ratio(f"{name}_to_ours_{what}", times[name, what], times["ours", what], goal)
    for replay in contenders.values():
        replay.close()


def measure_shapes(report: Report, repeats: int, capacity: int) -> None:
    """Measure the loop with other numbers of streams, and the cost of a small learner's update of batch 64."""
    shapes = {"1": (1, 1), "64": (64, 1), "2x16": (16, 2), "4x16": (16, 4)}
    for name, (envs, actors) in shapes.items():
        ours = Ours(capacity, envs, actors)
        report.add(f"mixed_envs_{name}", [microseconds(mixed(ours)) for _ in range(repeats)], "us")
        ours.close()
    small = Ours(1 << 16, envs=16, sample=64)

    def one_update() -> None:
        small.replay.ingest()
        small.sample()
        small.update()

    values = [microseconds(one_update) for _ in range(repeats)]
    report.add("learner_side_batch_64_of_65536", values, "us", "goal: about 10")
    small.close()


def measure_tree(report: Report, repeats: int, capacity: int) -> None:
    """Measure the tree alone: 256 priorities set in ascending order and 256 leaves drawn."""
    rng = np.random.default_rng(0)
    batches = [np.sort(rng.integers(0, capacity, SAMPLE)) for _ in range(500)]
    values, uniforms = rng.random(SAMPLE), rng.random((500, SAMPLE))
    out = np.empty(SAMPLE, np.int64)
    tree = SumTree(capacity)
    tree.set(np.arange(capacity), rng.random(capacity))
    turns = itertools.cycle(range(500))
    calls: dict[str, Callable[[], Any]] = {
        "tree_update": lambda: tree.set(batches[next(turns)], values),
        "tree_sample": lambda: tree.sample(uniforms[next(turns)], out),
    }
    for name, call in calls.items():
        report.add(name, [microseconds(call, 0.1) for _ in range(repeats)], "us")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--repeats", type=int, default=7, help="repeats of each measurement; medians are reported"
    )
    parser.add_argument("--capacity", type=int, default=1 << 20, help="steps held, a power of two")
    options = parser.parse_args()
    report = Report("replay", ("cpprb", "torchrl", "tianshou"))
    report.note("repeats", options.repeats)
    report.note("capacity", options.capacity)
    measure_against_peers(report, options.repeats, options.capacity)
    measure_shapes(report, options.repeats, options.capacity)
    measure_tree(report, options.repeats, options.capacity)
    print(report.write())


if __name__ == "__main__":
    main()
