"""Result of an evaluation, and the film of one of its episodes."""

from __future__ import annotations

from dataclasses import dataclass, field

BY_NAME = ("agent_returns", "policy_returns", "level_returns")
"""Fields of `EvaluationResult` that are returns by the name of an agent, a policy or a level."""


@dataclass(frozen=True)
class EvaluationResult:
    """Result of the episodes of an evaluation, with one set of weights.

    Attributes:
        return_mean, return_std: mean and population standard deviation of the undiscounted episode returns; of several
            agents of the sum of theirs.
        length_mean: mean episode length in steps.
        episodes: number of episodes.
        policy_version: version of the weights.
        env_steps: environment steps of training when these weights were copied.
        train_seconds: training time when these weights were copied.
        updates: gradient steps when these weights were copied.
        success_rate: fraction of the episodes that ended in success; None where `info` does not say.
        agent_returns: mean return of each of several agents by its name; empty for one agent.
        policy_returns: sum of these over the agents of each of several policies by its name; empty if all share one.
        level_returns: mean return of each level of `eval_levels`; empty without levels. The other numbers are over all.
    """

    return_mean: float
    return_std: float
    length_mean: float
    episodes: int
    policy_version: int
    env_steps: int
    train_seconds: float
    updates: int = 0
    success_rate: float | None = None
    agent_returns: dict[str, float] = field(default_factory=dict)
    policy_returns: dict[str, float] = field(default_factory=dict)
    level_returns: dict[str, float] = field(default_factory=dict)

    def by_level(self) -> dict[str, float]:
        """Mean return of each level by public name."""
        return {f"eval/mean_reward/{name}": value for name, value in self.level_returns.items()}


@dataclass(frozen=True)
class EvaluationFilm:
    """Film of the first episode of an evaluation.

    Attributes:
        env_steps: environment steps of training when its weights were copied.
        return_sum, length: undiscounted return and steps of the episode, of several agents the sum of their returns.
        cut: whether the film ends before the episode does.
    """

    env_steps: int
    return_sum: float
    length: int
    cut: bool
