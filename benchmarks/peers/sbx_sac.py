"""SBX's SAC or CrossQ (Stable-Baselines3 in JAX) with the settings and the two modes of `sb3_sac.py`.

`train_seconds` of a run include compilation during its clock; `compile_seconds` is that part, and
`train_seconds_without_compilation` the rest. Acting is compiled before the clock starts. Updates/s are measured after
compilation. One thread on one core: XLA can be limited to one thread only in this way.

    python -m benchmarks.peers.sbx_sac HalfCheetah-v5 --mode updates
    python -m benchmarks.peers.sbx_sac HalfCheetah-v5 --mode updates --crossq-critics 512
"""

# ruff: noqa: E402
from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

import json
import time
from statistics import median
from typing import Any

import torch
from sbx import SAC, CrossQ

from benchmarks.peers.sb3_sac import flags, settings, until, updates
from benchmarks.peers.until_target import means

KEPT = 100


def timed_train(model: Any) -> list[float]:
    """Wrap `model.train`; returns a list that gets the seconds of its next `KEPT` calls, which wait for the result."""
    seconds: list[float] = []
    train = model.train

    def timed(gradient_steps: int, batch_size: int) -> None:
        started = time.perf_counter()
        train(gradient_steps, batch_size)
        if len(seconds) < KEPT:
            seconds.append(time.perf_counter() - started)

    model.train = timed
    return seconds


def compile_acting(model: Any) -> float:
    """Compile exploring and greedy acting for one observation; returns the seconds."""
    started = time.perf_counter()
    for deterministic in (False, True):
        model.predict(model.env.reset(), deterministic=deterministic)
    return time.perf_counter() - started


def main() -> None:
    """Measure once."""
    arguments = flags(__doc__, crossq_critics=True)
    torch.set_num_threads(1)
    started = time.process_time()
    chosen, kind = settings(arguments), SAC
    if arguments.crossq_critics:
        widths = {"pi": [256, 256], "qf": [arguments.crossq_critics] * 2}
        chosen, kind = {**chosen, "policy_kwargs": {"net_arch": widths}}, CrossQ
    model = kind("MlpPolicy", arguments.env, **chosen)
    calls = timed_train(model)
    acting = compile_acting(model)
    result = (until if arguments.mode == "until" else updates)(model, arguments)
    compiled = max(0.0, calls[0] - median(calls[1:])) if len(calls) > 1 else 0.0
    result |= {"compile_seconds": compiled, "acting_compile_seconds": acting}
    if arguments.mode == "until":
        result["train_seconds_without_compilation"] = result["train_seconds"] - compiled
    packages = ("sbx-rl", "jax", "jaxlib")
    result |= {"cpu_seconds": time.process_time() - started, **means(model, *packages)}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
