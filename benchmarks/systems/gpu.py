"""Updates/s on a GPU with the Nature CNN: batches from the CPU or a mirror, eager, as a graph, in bfloat16; copy rates.

Prints "no GPU" and ends if there is none. DQN on stacks of 4 frames of 84 x 84, with a uniform replay of 65,536 steps
in one ring, like `image_updates.py`. The contenders take turns in every repeat.

    cpu             batches gathered on the CPU, copied from pinned memory
    mirror          batches gathered on the GPU from the copy of the ring
    ... graph       the update as one CUDA graph
    ... bfloat16    under autocast

Busy is the fraction of an update's time in which the GPU works, by the time of its kernels (torch.profiler). Copies:
new rows into the mirror, against one copy of the same number of bytes from one pinned block. Steps/s are those of a
whole run of DQN on `asyncrl/Catch-v0` in 20 seconds, with the default number of actors.

    python -m benchmarks.systems.gpu [--repeats 7] [--calls 200]
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import time
from functools import partial
from typing import Any

import numpy as np
import torch

from asyncrl import DQN, train
from asyncrl.interfaces import Batch, DiscreteAction, EnvSpec
from asyncrl.learning.mirror import ObservationMirror
from asyncrl.replay import PrioritizedReplay
from asyncrl.shm import RingLayout, RingReader, RingWriter, Segment
from benchmarks.harness.report import Report, by_turns, script_parser

STEPS, ENVS = 65_536, 8
SPEC = EnvSpec("atari", (84, 84), "uint8", DiscreteAction(6))
CONTENDERS: dict[str, dict[str, Any]] = {
    "cpu": {"cuda_graph": False},
    "mirror": {"cuda_graph": False},
    "mirror_graph": {"cuda_graph": True},
    "mirror_bfloat16": {"cuda_graph": False, "matmul_precision": "bfloat16"},
    "mirror_graph_bfloat16": {"cuda_graph": True, "matmul_precision": "bfloat16"},
}


class Learner:
    """Replay over a full ring, with or without a mirror, and the learner of DQN."""

    def __init__(
        self, segment: Segment, layout: RingLayout, batch: int, mirrored: bool, options: Any
    ) -> None:
        reader = RingReader(segment, layout)
        rng = np.random.default_rng(0)
        self.replay = PrioritizedReplay([reader], n_step=1, gamma=0.99, alpha=None, frame_stack=4, rng=rng)
        self.replay.ingest()
        algorithm = DQN(
            frame_stack=4, batch_size=batch, n_step=1, prioritized=False, double=False,
            target_update="hard", learning_rate=1e-4, **options,
        )  # fmt: skip
        self.core = algorithm.make_updater(SPEC, "cuda", 0)
        self.batch = Batch.allocate(batch, SPEC.stacked(4))
        self.mirror = ObservationMirror(self.replay, "cuda", batch) if mirrored else None
        self.batch.source = self.mirror
        if self.mirror is not None:
            self.mirror.follow(self.replay.published_rows())

    def update(self) -> None:
        """Sample and update once."""
        self.replay.sample(self.batch, 1.0)
        if self.mirror is not None:
            self.mirror.locate(self.batch)
        self.core.update(self.batch)

    def seconds(self, calls: int) -> float:
        """Duration of `calls` updates in seconds, until the GPU has finished the last one."""
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            self.update()
        torch.cuda.synchronize()
        return time.perf_counter() - start

    def busy(self, calls: int) -> float:
        """Fraction of the time in which the GPU works."""
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA]) as found:
            self.seconds(calls)
        used = sum(event.self_device_time_total for event in found.key_averages()) / 1e6
        return float(used / self.seconds(calls))


def full_ring(layout: RingLayout) -> Segment:
    """A ring in which all rows but one are published, with random observations."""
    segment = Segment.create("ring", layout.arrays())
    writer = RingWriter(segment, layout)
    RingReader(segment, layout).grant(layout.num_slots)
    writer.obs[:] = np.random.default_rng(0).integers(0, 256, writer.obs.shape, dtype=np.uint8)
    writer.publish(layout.num_slots - 1)
    return segment


def copy_rates(report: Report, segment: Segment, layout: RingLayout, repeats: int) -> None:
    """Measure copies of rows into the mirror, and of the same bytes from one pinned block."""
    replay = PrioritizedReplay(
        [RingReader(segment, layout)], n_step=1, gamma=0.99, rng=np.random.default_rng(0)
    )
    mirror = ObservationMirror(replay, "cuda", 1)
    rates: dict[str, list[float]] = {"rows_4": [], "rows_256": [], "limit": []}
    block = torch.zeros(256 * ENVS * 84 * 84, dtype=torch.uint8, pin_memory=True)
    there = torch.empty_like(block, device="cuda")
    published = np.zeros(1, np.int64)
    for _ in range(repeats):
        for rows in (4, 256):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(16):
                published += rows
                mirror.follow(published)
            torch.cuda.synchronize()
            size = 16 * rows * ENVS * 84 * 84
            rates[f"rows_{rows}"].append(size / (time.perf_counter() - start) / 1e9)
        start = time.perf_counter()
        for _ in range(16):
            there.copy_(block, non_blocking=True)
        torch.cuda.synchronize()
        rates["limit"].append(16 * block.numel() / (time.perf_counter() - start) / 1e9)
    mirror.close()
    for name, values in rates.items():
        report.add(f"copy_{name}", values, "GB/s")
    report.add_ratio("copy_rows_256_to_limit", rates["rows_256"], rates["limit"])


def main() -> None:
    """Measure and write results/gpu.json."""
    parser = script_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--calls", type=int, default=200)
    parsed = parser.parse_args()
    if not torch.cuda.is_available():
        print("no GPU")
        return
    report = Report("gpu")
    report.note("gpu", torch.cuda.get_device_name())
    layout = RingLayout(ENVS, STEPS // ENVS, SPEC)
    segments = {name: full_ring(layout) for name in CONTENDERS}  # memory can be registered once only
    copy_rates(report, segments["cpu"], layout, parsed.repeats)
    for size in (32, 256):
        learners = {
            name: Learner(segments[name], layout, size, name != "cpu", options)
            for name, options in CONTENDERS.items()
        }
        for learner in learners.values():
            learner.seconds(20)
        seconds = by_turns(
            parsed.repeats, {name: partial(one.seconds, parsed.calls) for name, one in learners.items()}
        )
        rates = {name: [parsed.calls / value for value in values] for name, values in seconds.items()}
        for name, learner in learners.items():
            report.add(f"batch_{size}_{name}_updates_per_second", rates[name], "1/s")
            report.add_ratio(f"batch_{size}_{name}_to_cpu", rates[name], rates["cpu"])
            report.add(f"batch_{size}_{name}_busy", [learner.busy(parsed.calls)], "")
            if learner.mirror is not None:
                learner.mirror.close()
        report.write()
    for choice in ("cpu", "cuda"):
        algorithm = DQN.preset("asyncrl/Catch-v0", frame_stack=2, discipline="relaxed", replay_device=choice)
        run = train(
            "asyncrl/Catch-v0", algorithm, device="cuda", total_steps=10_000_000, max_seconds=20, http="off"
        )
        report.add(f"run_{choice}_steps_per_second", [run.summary["env_steps_per_second"]], "1/s")
        report.add(f"run_{choice}_updates_per_second", [run.summary["updates_per_second"]], "1/s")
    report.write()


if __name__ == "__main__":
    main()
