"""`asyncrl eval`: play greedy episodes with the policy of a run or a file and print the returns."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncrl.cli.flags import Parser, PolicyParser
from asyncrl.options import Count, NotNegative, check_options

if TYPE_CHECKING:
    from asyncrl.actors.episodes import Episodes
    from asyncrl.actors.forkserver import ForkServer
    from asyncrl.policies.portable_policy import PortablePolicy


@dataclass(frozen=True, kw_only=True)
class EvalOptions:
    """Options of `asyncrl eval`."""

    run: str
    """Directory of a run, a checkpoint file, or a policy file."""

    episodes: Count = 20
    """Greedy episodes to play."""

    checkpoint: str | None = None
    """Checkpoint of the run: best, latest or a number of steps; none means best, or latest if nothing was evaluated."""

    seed: NotNegative = 0
    """Seed of the episodes."""

    json: bool = False
    """Print one JSON object instead of text."""

    def __post_init__(self) -> None:
        check_options(self)


def make_parser() -> Parser:
    """Flags of `asyncrl eval`."""
    return PolicyParser("eval RUN [options]", "Play greedy episodes with the policy of a run.", EvalOptions)


def run(options: EvalOptions, server: ForkServer) -> None:
    """Play the episodes and print their returns. Reading a checkpoint imports torch."""
    from asyncrl.policies.load import checkpoint_file, load

    path = checkpoint_file(Path(options.run).expanduser(), options.checkpoint)
    policy = load(options.run, checkpoint=options.checkpoint, trusted=True)
    record = _evaluation_record(options, path, policy, asyncio.run(_play(policy, options, server)))
    if options.json:
        print(json.dumps(record, allow_nan=False), flush=True)
    else:
        print(
            f"return       {record['return_mean']:.1f} +/- {record['return_std']:.1f} "
            f"over {options.episodes} greedy episodes, "
            f"from {record['return_min']:.1f} to {record['return_max']:.1f}\n"
            f"{_agents(record['agent_returns'])}"
            f"length       {record['length_mean']:.1f} steps\n"
            f"policy       {policy.describe(path)}\n"
            f"file         {path}",
            flush=True,
        )


async def _play(policy: PortablePolicy, options: EvalOptions, server: ForkServer) -> Episodes:
    from asyncrl.actors.evaluator import RemoteEvaluator
    from asyncrl.envs.factory_pickle import pack_policy

    packed = pack_policy(policy.policy)
    evaluator = RemoteEvaluator(server, policy.source, policy.spec, packed, seed=options.seed)
    try:
        return await evaluator.evaluate(policy.weights, options.episodes)
    finally:
        await evaluator.close()


def _agents(returns: dict[str, float]) -> str:
    """Line with the mean return of each of several agents; "" for one agent."""
    return (
        f"agents       {', '.join(f'{name} {value:.1f}' for name, value in returns.items())}\n"
        if returns
        else ""
    )


def _evaluation_record(
    options: EvalOptions, path: Path, policy: PortablePolicy, episodes: Episodes
) -> dict[str, Any]:
    each, lengths = episodes
    returns = each if each.ndim == 1 else each.sum(axis=1)
    means = each.mean(axis=0).tolist() if each.ndim > 1 else []
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
        "agent_returns": dict(zip((agent.name for agent in policy.spec.agents), means, strict=True)),
    }
