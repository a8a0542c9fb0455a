"""Gain of every fused loss kernel: a whole update by the kernel against the same update by the formula and autograd.

A kernel stays where it gains at least 10 % of an update. Both ways take turns on one core, on the same weights and
batch; figures are medians of thread CPU time. SAC's draw and its losses have kernels of their own and are measured
apart.

    python -m benchmarks.systems.loss_kernels
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import torch

import asyncrl
from asyncrl.algorithms import maximum_entropy_update as entropy
from asyncrl.algorithms.rollout import Minibatch
from asyncrl.interfaces import Batch, BoxAction, DiscreteAction, EnvSpec, Segment
from asyncrl.networks.gradients import vector_jacobian_product
from benchmarks.harness.report import Report, by_turns, script_parser

ROWS: dict[str, tuple[str, dict[str, Any], str, int]] = {
    "dqn_64": ("DQN", {"hidden_sizes": (64, 64)}, "cart", 64),
    "dqn_256": ("DQN", {"hidden_sizes": (256, 256)}, "lander", 128),
    "c51_64": ("C51", {"hidden_sizes": (64, 64)}, "cart", 64),
    "c51_128": ("C51", {"hidden_sizes": (128, 128)}, "lander", 128),
    "qrdqn_64": ("QRDQN", {"hidden_sizes": (64, 64)}, "cart", 64),
    "qrdqn_128": ("QRDQN", {"hidden_sizes": (128, 128)}, "lander", 128),
    "rainbow_128": ("Rainbow", {"hidden_sizes": (128, 128)}, "cart", 64),
    "ddpg_64": ("DDPG", {"hidden_sizes": (64, 64)}, "cheetah", 128),
    "td3_64": ("TD3", {"hidden_sizes": (64, 64)}, "cheetah", 128),
    "td3_256": ("TD3", {"hidden_sizes": (256, 256)}, "cheetah", 256),
    "sac_64": ("SAC", {"hidden_sizes": (64, 64)}, "cheetah", 128),
    "sac_256": ("SAC", {"hidden_sizes": (256, 256)}, "cheetah", 256),
    "tqc_128": ("TQC", {"hidden_sizes": (128, 128)}, "cheetah", 256),
    "tqc_256": ("TQC", {"hidden_sizes": (256, 256)}, "cheetah", 256),
    "ppo_discrete": ("PPO", {"minibatch_size": 64, "epochs": 4}, "cart", 16),
    "ppo_continuous": ("PPO", {"minibatch_size": 256, "epochs": 4}, "cheetah", 16),
    "impala": ("IMPALA", {}, "cart", 16),
}
"""Class, options, shape of the environment, and batch size (for segments the number of environments)."""
SEGMENT_ROWS = 64
CASES = tuple(ROWS)
GOAL = ">= 1.1"


def specs() -> dict[str, EnvSpec]:
    """Shapes of CartPole, LunarLander and HalfCheetah."""
    box = BoxAction((-1.0,) * 6, (1.0,) * 6, (6,))
    return {
        "cart": EnvSpec("cart", (4,), "float32", DiscreteAction(2)),
        "lander": EnvSpec("lander", (8,), "float32", DiscreteAction(4)),
        "cheetah": EnvSpec("cheetah", (17,), "float32", box),
    }


def timed(function: Callable[[], int], seconds: float = 0.05) -> float:
    """Thread CPU time in microseconds per unit returned by `function`."""
    units, start = 0, time.thread_time()
    while time.thread_time() - start < seconds:
        units += function()
    return (time.thread_time() - start) / units * 1e6


def replay_update(core: Any, spec: EnvSpec, size: int, rng: np.random.Generator) -> Callable[[], int]:
    batch = Batch.allocate(size, spec)
    for name in ("obs", "next_obs"):
        getattr(batch, name)[:] = rng.normal(size=batch.obs.shape)
    batch.reward[:], batch.discount[:], batch.weight[:] = rng.normal(size=size), 0.97, 1.0
    shape = batch.action.shape
    if isinstance(spec.action, DiscreteAction):
        batch.action[:] = rng.integers(0, spec.action.n, shape)
    else:
        batch.action[:] = rng.uniform(-1, 1, shape)

    def once() -> int:
        for _ in range(20):
            core.update(batch)
        return 20

    return once


def iteration(
    core: Any, policy: Any, spec: EnvSpec, envs: int, rng: np.random.Generator
) -> Callable[[], int]:
    rows = SEGMENT_ROWS
    obs = (100 * rng.normal(size=(envs, rows, *spec.observation_shape)) % 256).astype(spec.observation_dtype)
    if spec.observation_dtype == "float32":
        obs = rng.normal(size=obs.shape).astype(np.float32)
    out = np.zeros(core.weight_count, np.float32)
    core.write_weights(out)
    policy.load_weights(out)
    acted = [policy.act(obs[:, t], rng, 0) for t in range(rows)]
    segment = Segment(
        ring=0,
        first=0,
        obs=obs,
        last_obs=obs[:, 0],
        action=np.stack([a for a, _ in acted], axis=1),
        reward=rng.normal(size=(envs, rows)).astype(np.float32),
        flags=np.zeros((envs, rows), np.uint8),
        version=np.zeros(rows, np.int64),
        policy_updates=np.zeros(rows, np.int64),
        extras={name: np.stack([e[name] for _, e in acted], axis=1) for name in acted[0][1]},
        weight=np.ones(rows, np.float32),
        staleness=np.zeros(rows, np.int64),
    )

    def once() -> int:
        core.begin([segment], 0.0)
        steps = 1
        while core.step():
            steps += 1
        return steps

    return once


@contextmanager
def _minibatches_without_kernel() -> Iterator[None]:
    """Minibatches made meanwhile use the formula."""
    make = Minibatch.__init__

    def without(self: Any, *arguments: Any) -> None:
        make(self, *arguments)
        self.kernel = None

    with mock.patch.object(Minibatch, "__init__", without):
        yield


@contextmanager
def _draw_by_formula(draw: Callable[..., Any]) -> Iterator[None]:
    """Updates of SAC made meanwhile draw by the formula, without inference mode."""
    with (
        mock.patch.object(entropy, "DrawKernel", lambda *_: draw),
        mock.patch.object(torch, "inference_mode", torch.no_grad),
    ):
        yield


def ways(name: str) -> dict[str, Callable[[], int]]:
    """The update of one row of `ROWS` by each way to compute its losses."""
    algorithm, options, shape, size = ROWS[name]
    spec = specs()[shape]
    record = getattr(asyncrl, algorithm)(**options)

    def once(core: Any) -> Callable[[], int]:
        rng = np.random.default_rng(0)
        if hasattr(core, "update"):
            return replay_update(core, spec, size, rng)
        return iteration(core, record.make_policy(spec), spec, size, rng)

    def measured_later(core: Any, context: Callable[[], Any]) -> Callable[[], int]:
        """Its buffers are made at the first call, within the context."""
        call = once(core)
        with context():
            call()
        return call

    make = partial(record.make_updater, spec, "cpu", 0)
    found = {"kernel": once(make())}
    plain = make()
    if hasattr(plain, "update"):
        plain.kernels = False
        found["formula"] = once(plain)
    else:
        found["formula"] = measured_later(plain, _minibatches_without_kernel)
    if algorithm == "SAC":
        draw = partial(vector_jacobian_product, entropy.squashed_draw)
        losses_only = make()
        found["formula of the draw"] = measured_later(losses_only, partial(_draw_by_formula, draw))
        losses_only.kernels = (
            False  # those of the losses are made; autograd cannot use tensors of inference mode
        )
    return found


def main() -> None:
    """Measure every case and write results/loss_kernels.json."""
    parser = script_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=CASES, default=CASES, metavar="CASE")
    arguments = parser.parse_args()
    report, rows = Report("loss_kernels"), []
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    for name in arguments.only:
        found = ways(name)
        taken = by_turns(arguments.rounds, {way: partial(timed, call, 0.2) for way, call in found.items()})
        for way, values in taken.items():
            report.add(f"{name} {way}", values, "us")
        for way in found:
            if way != "kernel":
                ratio = report.add_ratio(f"{name} {way} to kernel", taken[way], taken["kernel"], GOAL)
                rows.append([name, way, f"{np.median(taken['kernel']):,.0f}", f"{ratio:.2f}"])
    report.add_table(["update", "instead of the kernel", "us by kernels", "times as long"], rows)
    report.write()


if __name__ == "__main__":
    main()
