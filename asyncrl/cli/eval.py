"""`asyncrl eval`: play episodes with the policy of a run or a file and print the returns."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from asyncrl.cli.flags import Parser, PolicyParser
from asyncrl.options import Count, NotNegative, check_options
from asyncrl.show.numbers import of_return, with_deviation

if TYPE_CHECKING:
    from asyncrl.actors.episodes import Episodes
    from asyncrl.actors.forkserver import ForkServer
    from asyncrl.envs.source import EnvSource
    from asyncrl.policies.portable_policy import PortablePolicy


@dataclass(frozen=True, kw_only=True)
class EvalOptions:
    """Options of `asyncrl eval`."""

    run: str
    """Directory of a run, a checkpoint file, a policy file, or hf://user/name."""

    episodes: Count = 20
    """Episodes to play."""

    deterministic: bool = True
    """Greedy actions; without, actions are drawn as at the end of training."""

    checkpoint: str | None = None
    """Checkpoint of the run: best, latest or a number of steps; none means best, or latest if nothing was evaluated."""

    seed: NotNegative = 0
    """Seed of the episodes."""

    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the environment's constructor, over those of the run."""

    json: bool = False
    """Print one JSON object instead of text."""

    def __post_init__(self) -> None:
        check_options(self)


def make_parser() -> Parser:
    """Flags of `asyncrl eval`."""
    return PolicyParser("eval RUN [options]", "Play episodes with the policy of a run.", EvalOptions)


def run(options: EvalOptions, server: ForkServer) -> None:
    """Play the episodes and print their returns. Reading a checkpoint imports torch."""
    from asyncrl.policies.load import load_named

    policy, file = load_named(options.run, options.checkpoint)
    record = evaluate(
        policy,
        file,
        options.episodes,
        options.seed,
        server,
        options.env_kwargs,
        deterministic=options.deterministic,
    )
    if options.json:
        print(json.dumps(record, allow_nan=False), flush=True)
    else:
        print(
            f"return       {with_deviation(record['return_mean'], record['return_std'])} "
            f"over {options.episodes} {'greedy ' if options.deterministic else ''}episodes, "
            f"from {of_return(record['return_min'])} to {of_return(record['return_max'])}\n"
            f"{_by_name('agents', record.get('agent_returns', {}))}"
            f"{_by_name('policies', record.get('policy_returns', {}))}"
            f"length       {record['length_mean']:.1f} steps\n"
            f"policy       {policy.describe(file)}\n"
            f"file         {file}",
            flush=True,
        )


def evaluate(
    policy: PortablePolicy,
    file: str,
    episodes: int,
    seed: int,
    server: ForkServer,
    env_kwargs: Mapping[str, Any] = MappingProxyType({}),
    *,
    deterministic: bool = True,
) -> dict[str, Any]:
    """Play episodes in a process of `server` and return the record that `--json` prints.

    Args:
        policy: the policy.
        file: name of its file.
        episodes: number of episodes.
        seed: seed of the episodes.
        server: the fork server.
        env_kwargs: keyword arguments of the environment's constructor, over those of the run.
        deterministic: whether actions are greedy, or drawn.
    """
    from asyncrl.interfaces import policy_returns

    source = policy.source.changed(env_kwargs, ())
    each, lengths = asyncio.run(_play(policy, source, episodes, seed, server, deterministic))
    returns = each if each.ndim == 1 else each.sum(axis=1)
    names = [agent.name for agent in policy.spec.agents]
    means = each.mean(axis=0).tolist() if names else []
    of_policies = policy_returns(means, policy.spec.policies)
    return {
        "checkpoint": file,
        "env": policy.meta.env,
        "algo": policy.meta.algo,
        "env_steps": policy.meta.env_steps,
        "policy_version": policy.meta.policy_version,
        "seed": seed,
        "episodes": int(returns.shape[0]),
        "deterministic": deterministic,
        "return_mean": float(returns.mean()),
        "return_std": float(returns.std()),
        "return_min": float(returns.min()),
        "return_max": float(returns.max()),
        "length_mean": float(lengths.mean()),
        **({"agent_returns": dict(zip(names, means, strict=True))} if names else {}),
        **({"policy_returns": of_policies} if of_policies else {}),
    }


async def _play(
    policy: PortablePolicy,
    source: EnvSource,
    episodes: int,
    seed: int,
    server: ForkServer,
    deterministic: bool,
) -> Episodes:
    from asyncrl.actors.evaluator import RemoteEvaluator
    from asyncrl.envs.factory_pickle import pack_policy

    packed = pack_policy(policy.policy)
    evaluator = RemoteEvaluator(server, source, policy.spec, packed, seed=seed, deterministic=deterministic)
    try:
        return await evaluator.evaluate(policy.weights, episodes)
    finally:
        await evaluator.close()


def _by_name(label: str, returns: dict[str, float]) -> str:
    """Line with the mean return of each of several agents or policies; "" without any."""
    each = ", ".join(f"{name} {of_return(value)}" for name, value in returns.items())
    return f"{label:<13}{each}\n" if returns else ""
