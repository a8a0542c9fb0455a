"""Greedy episodes with the policy of a checkpoint, for `asyncrl eval`. Imports torch."""

from __future__ import annotations

import asyncio
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.actors.evaluator import RemoteEvaluator
from asyncrl.actors.forkserver import ForkServer
from asyncrl.algorithms import ALGORITHMS
from asyncrl.cli.eval_options import EvalOptions
from asyncrl.cli.plain_warnings import show_warnings_plainly
from asyncrl.envs.source import EnvSource
from asyncrl.errors import AsyncRLError, ConfigurationError, error_text
from asyncrl.protocols import Algorithm
from asyncrl.run.checkpoint import SavedPolicy, does_not_fit, read_policy
from asyncrl.run.config_file import make_record


def evaluate(options: EvalOptions, server: ForkServer | None) -> int:
    """Play greedy episodes with a checkpoint's weights and print the returns; returns the exit code."""
    show_warnings_plainly()
    saved = read_policy(options.path)
    returns, lengths = asyncio.run(_play(saved, options, server or ForkServer()))
    record = _evaluation_record(options, saved, returns, lengths)
    if options.json:
        print(json.dumps(record, allow_nan=False), flush=True)
    else:
        print(
            f"return       {record['return_mean']:.1f} +/- {record['return_std']:.1f} "
            f"over {options.episodes} greedy episodes, "
            f"from {record['return_min']:.1f} to {record['return_max']:.1f}\n"
            f"length       {record['length_mean']:.1f} steps\n"
            f"policy       {saved.meta.algo} on {saved.meta.env} after {saved.meta.env_steps:,} steps\n"
            f"file         {options.path}",
            flush=True,
        )
    return 0


async def _play(
    saved: SavedPolicy, options: EvalOptions, server: ForkServer
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    meta = saved.meta
    policy = _policy_bytes(saved, options.path)
    source = EnvSource.from_user(meta.env)
    evaluator = RemoteEvaluator(server, source, meta.spec, policy, seed=options.seed)
    try:
        return await evaluator.evaluate(saved.weights, options.episodes)
    finally:
        await evaluator.close()


def _policy_bytes(saved: SavedPolicy, path: Path) -> bytes:
    """The pickled policy of a checkpoint. Raises `CheckpointError` where options and weights do not fit."""
    meta = saved.meta
    try:
        algorithm = algorithm_of(meta.algo, dict(meta.options), path)
        policy = algorithm.make_policy(meta.spec)
    except AsyncRLError as error:
        raise does_not_fit(path, error.what) from None
    except (ArithmeticError, AttributeError, LookupError, MemoryError, TypeError, ValueError) as error:
        raise does_not_fit(path, error_text(error) or type(error).__name__) from None
    if policy.weight_count != saved.weights.shape[0]:
        what = f"its options make a policy of {policy.weight_count:,} weights, it holds {saved.weights.shape[0]:,}"
        raise does_not_fit(path, what)
    return pickle.dumps(policy)


def _evaluation_record(
    options: EvalOptions, saved: SavedPolicy, returns: NDArray[np.float64], lengths: NDArray[np.int64]
) -> dict[str, Any]:
    return {
        "checkpoint": str(options.path),
        "env": saved.meta.env,
        "algo": saved.meta.algo,
        "env_steps": saved.meta.env_steps,
        "policy_version": saved.meta.policy_version,
        "seed": options.seed,
        "episodes": int(returns.shape[0]),
        "return_mean": float(returns.mean()),
        "return_std": float(returns.std()),
        "return_min": float(returns.min()),
        "return_max": float(returns.max()),
        "length_mean": float(lengths.mean()),
    }


def algorithm_of(name: str, options: dict[str, Any], checkpoint: Path) -> Algorithm:
    """Make the algorithm's record from a checkpoint's header.

    Raises:
        ConfigurationError: this version has no such algorithm or options.
    """
    record = ALGORITHMS.get(name)
    if record is None:
        raise ConfigurationError(
            f"the checkpoint was written by algorithm {name!r}, which this version does not have",
            facts={"file": checkpoint, "algorithms": ", ".join(ALGORITHMS)},
            fix="evaluate it with the asyncrl that wrote it",
        )
    return make_record(record, options, file=checkpoint, path=name)
