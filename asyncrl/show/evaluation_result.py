"""Result of an evaluation."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class EvaluationResult:
    """Result of greedy episodes with one set of weights.

    Attributes:
        return_mean, return_std: mean and population standard deviation of the undiscounted episode returns; of several
            agents of the sum of theirs.
        length_mean: mean episode length in steps.
        episodes: number of episodes.
        policy_version: version of the weights.
        env_steps: environment steps of training when these weights were copied.
        train_seconds: training time when these weights were copied.
        updates: gradient steps when these weights were copied.
        agent_returns: mean return of each of several agents by its name; empty for one agent.
    """

    return_mean: float
    return_std: float
    length_mean: float
    episodes: int
    policy_version: int
    env_steps: int
    train_seconds: float
    updates: int = 0
    agent_returns: dict[str, float] = field(default_factory=dict)
