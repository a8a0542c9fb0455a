"""Evaluation of a trained policy in this process."""

from __future__ import annotations

import inspect
import os
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Never

from asyncrl.actors.episodes import EpisodePlayer, figures_of, seed_of_episodes, team_returns
from asyncrl.envs.checks import success_rate
from asyncrl.envs.factory_pickle import pack_policy
from asyncrl.envs.source import EnvSource
from asyncrl.options import near_miss
from asyncrl.policies.load import load
from asyncrl.policies.portable_policy import PortablePolicy
from asyncrl.protocols import Policy

if TYPE_CHECKING:
    from gymnasium.envs.registration import EnvSpec as GymnasiumSpec

OTHER_NAMES = {
    "n_eval_episodes": "asyncrl calls it episodes",
    "model": "asyncrl calls it policy",
    "return_episode_rewards": "the result has returns and lengths of every episode",
    "reward_threshold": "compare return_mean of the result",
    "render": "`asyncrl enjoy RUN` shows episodes",
    "n_envs": "up to a hundred are played side by side",
}
"""Arguments of other libraries, and what to write here."""


@dataclass(frozen=True)
class Evaluated:
    """Episodes that a policy has played.

    Attributes:
        return_mean, return_std: mean and population standard deviation of `returns`.
        length_mean: mean of `lengths`.
        success_rate: fraction of the episodes that ended in success; None where `info` does not say.
        agent_returns: mean return of each of several agents by its name; empty for one agent.
        policy_returns: sum of these over the agents of each of several policies by its name; empty if all share one.
        returns: undiscounted return of each episode, of several agents the sum of theirs.
        lengths: steps of each episode.
    """

    return_mean: float
    return_std: float
    length_mean: float
    success_rate: float | None
    agent_returns: dict[str, float]
    policy_returns: dict[str, float]
    returns: tuple[float, ...] = field(repr=False)
    lengths: tuple[int, ...] = field(repr=False)


def evaluate(
    policy: PortablePolicy | str | os.PathLike[str],
    env: str | GymnasiumSpec | Callable[[], Any] | None = None,
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    episodes: int = 20,
    deterministic: bool = True,
    seed: int = 0,
    **unknown: Never,
) -> Evaluated:
    """Play episodes with a policy and return what they gave; blocks.

    The environments are built in this process, up to a hundred side by side. The episodes are those that `asyncrl eval`
    plays with the same options, unless the environment draws from Python's or NumPy's global generators.

    Args:
        policy: the policy of a result or of `asyncrl.load`, which is not changed; or the path of one that it loads.
        env: another environment, as for `Trainer`, with the wrappers of the training environment that have names; None
            for that of training.
        env_kwargs: keyword arguments of the environment's constructor, over those of training.
        episodes: number of episodes.
        deterministic: greedy actions; if False, they are drawn as at the end of training.
        seed: of the episodes and of draws.
        unknown: refused.

    Raises:
        CheckpointError: there is no policy at the path (ASYNC019).
        SpacesDoNotFit: the environment has other spaces than the policy (ASYNC005).
        EnvironmentFailed: an environment raised, broke its API's contract, or gave NaN or infinity (ASYNC002, 011, 012,
            013, 034).
        TypeError: `policy` is neither policy nor path, `env` is an environment that is already built, or an argument
            does not exist.
        ValueError: `episodes` or `seed` is out of range.
    """
    _refuse(unknown)
    for name, value, least in (("episodes", episodes, 1), ("seed", seed, 0)):
        if value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}")
    if isinstance(policy, str | os.PathLike):
        policy = load(os.fspath(policy))
    if not isinstance(policy, PortablePolicy):
        raise TypeError(f"policy must be result.policy, asyncrl.load(RUN) or a path, got {policy!r}")
    source = (
        policy.source if env is None else EnvSource.from_user(env).in_place_of(policy.source, policy.spec)
    )
    acting: Policy = pickle.loads(pack_policy(policy.policy))
    acting.assign_streams(0, 1, 1)
    acting.load_weights(policy.weights)
    player = EpisodePlayer(source.with_arguments(env_kwargs or {}), acting, trained=policy.spec)
    try:
        returns, lengths = player.play(
            episodes, seed_of_episodes(seed), player.limit, deterministic=deterministic
        )
    finally:
        player.close()
    names = [agent.name for agent in policy.spec.agents]
    return Evaluated(
        **figures_of((returns, lengths), names, policy.spec.policies),
        success_rate=success_rate(player.successes),
        returns=tuple(team_returns(returns).tolist()),
        lengths=tuple(lengths.tolist()),
    )


def _refuse(unknown: Mapping[str, Any]) -> None:
    """Raise TypeError for the first argument that `evaluate` does not have, with what asyncrl calls it."""
    known = [name for name in inspect.signature(evaluate).parameters if name != "unknown"]
    for name in unknown:
        miss = near_miss(name, known)
        hint = OTHER_NAMES.get(name, f"did you mean {miss}?" if miss else f"it has {', '.join(known)}")
        raise TypeError(f"evaluate() has no argument {name!r}; {hint}")
