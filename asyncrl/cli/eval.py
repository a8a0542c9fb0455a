"""`asyncrl eval`: play episodes with the policy of a run or a file and print the returns.

It plays what the run's own evaluations play, `eval_env` and `eval_levels`, and as they do (`eval_deterministic`), so
that its figures are theirs; `--env` names another environment.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncrl.cli.flags import Parser, PolicyParser
from asyncrl.cli.interrupts import run_until_signal
from asyncrl.options import Count, NotNegative, check_options
from asyncrl.show.numbers import of_return, with_deviation

if TYPE_CHECKING:
    from asyncrl.actors.forkserver import ForkServer
    from asyncrl.envs.source import EnvSource
    from asyncrl.policies.portable_policy import PortablePolicy


@dataclass(frozen=True, kw_only=True)
class EvalOptions:
    """Options of `asyncrl eval`."""

    run: str
    """Directory of a run, a checkpoint file, a policy file, or hf://user/name."""

    env: str | None = None
    """Environment to play, with the run's wrappers; none means that of the run's own evaluations: its eval_env, or else
    the one it trained in."""

    episodes: Count = 20
    """Episodes to play, of every level of eval_levels."""

    deterministic: bool | None = None
    """Greedy actions, or else actions that are drawn as at the end of training; none means eval_deterministic of the
    run, and greedy of a file."""

    checkpoint: str | None = None
    """Checkpoint of the run: best, latest or a number of steps; none means best, or latest if nothing was evaluated."""

    seed: NotNegative = 0
    """Seed of the episodes."""

    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the environment's constructor, over those of the run; not those that a level of eval_levels
    sets."""

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
    record = evaluate(policy, file, options, server)
    if options.json:
        print(json.dumps(record, allow_nan=False), flush=True)
        return
    greedy = "greedy " if record["deterministic"] else ""
    print(
        f"return       {with_deviation(record['return_mean'], record['return_std'])} "
        f"over {record['episodes']} {greedy}episodes, "
        f"from {of_return(record['return_min'])} to {of_return(record['return_max'])}\n"
        f"{_by_name('levels', record.get('level_returns', {}))}"
        f"{_by_name('agents', record.get('agent_returns', {}))}"
        f"{_by_name('policies', record.get('policy_returns', {}))}"
        f"length       {record['length_mean']:.1f} steps\n"
        f"{_success(record['success_rate'])}"
        f"environment  {record['env']}{_training(record)}\n"
        f"policy       {policy.describe(file)}\n"
        f"file         {file}",
        flush=True,
    )


def evaluate(policy: PortablePolicy, file: str, options: EvalOptions, server: ForkServer) -> dict[str, Any]:
    """Play episodes with the policy in `file`, in a process of `server`; returns the record that `--json` prints."""
    return run_until_signal(_evaluate(policy, file, options, server))


async def _evaluate(
    policy: PortablePolicy, file: str, options: EvalOptions, server: ForkServer
) -> dict[str, Any]:
    from asyncrl.actors.episodes import figures_of, team_returns
    from asyncrl.actors.evaluator import RemoteEvaluator
    from asyncrl.envs.factory_pickle import pack_policy

    source, limit, deterministic = await _played(policy, file, options, server)
    evaluator = RemoteEvaluator(
        server,
        source,
        policy.spec,
        pack_policy(policy.policy),
        seed=options.seed,
        max_episode_steps=limit,
        deterministic=deterministic,
    )
    try:
        played = await evaluator.evaluate(policy.weights, options.episodes)
    finally:
        await evaluator.close()
    figures = figures_of(played, [agent.name for agent in policy.spec.agents], policy.spec.policies)
    figures |= {"level_returns": evaluator.level_returns, "success_rate": evaluator.success_rate}
    returns = team_returns(played[0])
    return {
        "checkpoint": file,
        "env": (source.levels or (("", source),))[0][1].name,
        "trained_env": policy.meta.env,
        "algo": policy.meta.algo,
        "env_steps": policy.meta.env_steps,
        "policy_version": policy.meta.policy_version,
        "seed": options.seed,
        "deterministic": deterministic,
        "episodes": len(returns),
        "return_min": float(returns.min()),
        "return_max": float(returns.max()),
        **{name: value for name, value in figures.items() if value != {}},
    }


async def _played(
    policy: PortablePolicy, file: str, options: EvalOptions, server: ForkServer
) -> tuple[EnvSource, int | None, bool]:
    """The environment to play, or levels of it, the limit of steps if there is one, and whether actions are greedy.

    Raises:
        SpacesDoNotFit: the environment of `--env`, or one changed by `--env-kwargs`, has other spaces than the policy
            (ASYNC005).
        ConfigurationError: a level sets one of `--env-kwargs` to another value (ASYNC017).
    """
    from asyncrl.actors.probe import probe
    from asyncrl.envs.checks import require_same_spaces
    from asyncrl.envs.source import EnvSource
    from asyncrl.storage.run_files import evaluations_of_run

    folder, kwargs = Path(file).parent, options.env_kwargs if options.env is None else {}
    source, limit, greedy = policy.source.with_arguments(kwargs), None, True
    if folder.name == "checkpoints" and (folder.parent / "config.toml").is_file():
        source, limit, greedy = evaluations_of_run(folder.parent, policy.source, kwargs)
    greedy = greedy if options.deterministic is None else options.deterministic
    if options.env is not None:
        other = EnvSource.from_user(options.env).in_place_of(policy.source, policy.spec)
        source = other.with_arguments(options.env_kwargs)
        require_same_spaces(policy.spec, await probe(server, source))
        return source, None, greedy
    if options.env_kwargs:
        for _, level in source.levels or (("", source),):
            require_same_spaces(policy.spec, await probe(server, level))
    return source, limit, greedy


def _success(rate: float | None) -> str:
    """Line with the success rate; "" where the environment does not say."""
    return "" if rate is None else f"success      {rate:.0%} of the episodes\n"


def _training(record: Mapping[str, Any]) -> str:
    """Words about the environment of training, if it is another one."""
    return "" if record["env"] == record["trained_env"] else f", trained in {record['trained_env']}"


def _by_name(label: str, returns: dict[str, float]) -> str:
    """Line with the mean return of each of several levels, agents or policies; "" without any."""
    each = ", ".join(f"{name} {of_return(value)}" for name, value in returns.items())
    return f"{label:<13}{each}\n" if returns else ""
