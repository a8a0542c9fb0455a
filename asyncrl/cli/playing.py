"""Greedy episodes of a policy from a run or a file, for `asyncrl eval`. Reading checkpoints imports torch."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from asyncrl.actors.episodes import Episodes
from asyncrl.actors.evaluator import RemoteEvaluator
from asyncrl.actors.forkserver import ForkServer
from asyncrl.cli.eval_options import EvalOptions
from asyncrl.cli.plain_warnings import show_warnings_plainly
from asyncrl.envs.factory_pickle import pack_policy
from asyncrl.policies.load import checkpoint_file, load
from asyncrl.policies.portable_policy import PortablePolicy


def evaluate(options: EvalOptions, server: ForkServer) -> int:
    """Play greedy episodes with a policy's weights and print the returns; returns the exit code."""
    show_warnings_plainly()
    path = checkpoint_file(Path(options.run).expanduser(), options.checkpoint)
    policy = load(options.run, checkpoint=options.checkpoint, trusted=True)
    returns, lengths = asyncio.run(_play(policy, options, server))
    record = _evaluation_record(options, path, policy, returns, lengths)
    if options.json:
        print(json.dumps(record, allow_nan=False), flush=True)
    else:
        print(
            f"return       {record['return_mean']:.1f} +/- {record['return_std']:.1f} "
            f"over {options.episodes} greedy episodes, "
            f"from {record['return_min']:.1f} to {record['return_max']:.1f}\n"
            f"length       {record['length_mean']:.1f} steps\n"
            f"policy       {policy.describe(path)}\n"
            f"file         {path}",
            flush=True,
        )
    return 0


async def _play(policy: PortablePolicy, options: EvalOptions, server: ForkServer) -> Episodes:
    packed = pack_policy(policy.policy)
    evaluator = RemoteEvaluator(server, policy.source, policy.spec, packed, seed=options.seed)
    try:
        return await evaluator.evaluate(policy.weights, options.episodes)
    finally:
        await evaluator.close()


def _evaluation_record(
    options: EvalOptions, path: Path, policy: PortablePolicy, returns: Any, lengths: Any
) -> dict[str, Any]:
    return {
        "checkpoint": str(path),
        "env": policy.meta.env,
        "algo": policy.meta.algo,
        "env_steps": policy.meta.env_steps,
        "policy_version": policy.meta.policy_version,
        "seed": options.seed,
        "episodes": int(returns.shape[0]),
        "return_mean": float(returns.mean()),
        "return_std": float(returns.std()),
        "return_min": float(returns.min()),
        "return_max": float(returns.max()),
        "length_mean": float(lengths.mean()),
    }
