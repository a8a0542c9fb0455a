"""Updates/s on a GPU: operations launched one by one against CUDA graphs, and against one core of the CPU.

Prints "no GPU" and ends if there is none. Replay: batches of 256 and two layers of 256 with the spaces of HalfCheetah.
Segments: minibatches of frames, 4 x 42 x 42 with the small convolutional network and 4 x 84 x 84 with the Nature CNN,
in iterations of 1,024 rows with their upload and advantages. The ways take turns in every repeat; a CPU's figure is of
one thread.

    python -m benchmarks.systems.gpu_updates [--repeats 5] [--seconds 1]
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

import asyncrl
from asyncrl.interfaces import DiscreteAction, EnvSpec
from benchmarks.harness.report import Report, by_turns, script_parser
from benchmarks.systems.loss_kernels import iteration, replay_update, specs

WIDE: dict[str, Any] = {"hidden_sizes": (256, 256), "batch_size": 256}
ROWS: dict[str, tuple[str, dict[str, Any], str, int]] = {
    "sac": ("SAC", WIDE, "cheetah", 256),
    "td3": ("TD3", WIDE, "cheetah", 256),
    "tqc": ("TQC", WIDE, "cheetah", 256),
    "crossq": ("CrossQ", WIDE, "cheetah", 256),
    "dqn": ("DQN", WIDE, "lander", 256),
    "ppo_small_frames_32": ("PPO", {"minibatch_size": 32, "epochs": 4}, "small frames", 16),
    "ppo_frames_256": ("PPO", {"minibatch_size": 256, "epochs": 4}, "frames", 16),
    "pqn_frames_256": ("PQN", {"minibatch_size": 256, "epochs": 4}, "frames", 16),
}
"""Class, options, shape of the environment, and batch size (for segments the number of environments)."""
SHAPES = specs() | {
    "small frames": EnvSpec("small frames", (42, 42), "uint8", DiscreteAction(6)),
    "frames": EnvSpec("frames", (84, 84), "uint8", DiscreteAction(6)),
}


def way(name: str, device: str, graph: bool) -> Callable[[], int]:
    """A function that makes some updates and returns their number."""
    algorithm, options, shape, size = ROWS[name]
    spec, own = SHAPES[shape], {"frame_stack": 4} if "frames" in shape else {}
    record = getattr(asyncrl, algorithm)(**options, **own, cuda_graph=graph)
    core, rng = record.make_updater(spec, device, 0), np.random.default_rng(0)
    if record.update_loop == "replay":
        return replay_update(core, spec, size, rng)
    stacked = replace(spec, observation_shape=spec.stacked(record.frame_stack).observation_shape)
    policy = record.make_policy(spec)
    policy.assign_streams(0, size, size)
    return iteration(core, policy, stacked, size, rng)


def rate(function: Callable[[], int], seconds: float) -> float:
    """Updates/s until the device has finished the last one."""
    done, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        done += function()
    torch.cuda.synchronize()
    return done / (time.perf_counter() - start)


def main() -> None:
    """Measure and write results/gpu_updates.json."""
    parser = script_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    parsed = parser.parse_args()
    if not torch.cuda.is_available():
        print("no GPU")
        return
    torch.set_num_threads(1)
    report = Report("gpu_updates")
    report.note("gpu", torch.cuda.get_device_name())
    for name in ROWS:
        ways = {
            "graph": way(name, "cuda", True),
            "single": way(name, "cuda", False),
            "cpu": way(name, "cpu", False),
        }
        for function in ways.values():
            rate(function, 0.2)
        found = by_turns(
            parsed.repeats, {key: partial(rate, value, parsed.seconds) for key, value in ways.items()}
        )
        for key, values in found.items():
            report.add(f"{name}_{key}_updates_per_second", values, "1/s")
        report.add_ratio(f"{name}_graph_to_single", found["graph"], found["single"])
        report.add_ratio(f"{name}_graph_to_cpu", found["graph"], found["cpu"])
        report.write()


if __name__ == "__main__":
    main()
