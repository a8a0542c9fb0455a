"""Episodes of one policy in one rendered environment, in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from asyncrl.acting.frames import FrameStacks
from asyncrl.actors.episodes import EPISODE_STEPS
from asyncrl.envs.checks import refuse_non_finite
from asyncrl.errors import environment_calls
from asyncrl.policies.portable_policy import PortablePolicy


@dataclass(frozen=True)
class PlayedEpisode:
    """One episode: undiscounted return, steps, whether the step limit `EPISODE_STEPS` cut it, and the agents' returns.

    The return of several agents is the sum of theirs, which `agent_returns` has by name; it is empty for one agent.
    """

    return_sum: float
    length: int
    cut: bool
    agent_returns: dict[str, float] = field(default_factory=dict)


def play(
    policy: PortablePolicy,
    env: Any,
    episodes: int,
    seed: int,
    on_frame: Callable[[], None] = lambda: None,
    *,
    deterministic: bool = True,
) -> Iterator[PlayedEpisode]:
    """Play episodes one after the other and yield each at its end.

    Args:
        policy: acts.
        env: one environment of `PortablePolicy.built_env`; not closed.
        episodes: number of episodes.
        seed: seed of the first reset; later resets have none.
        on_frame: called after every reset and step.
        deterministic: take greedy actions; if False, draw them from `seed` as at the end of training, with noise that
            is correlated over the steps where that of training is.

    Raises:
        EnvironmentRaised: the environment raised an exception (ASYNC002).
        NonFiniteStep: an observation is NaN or infinite (ASYNC011).
    """
    if not deterministic:
        policy.rng, policy.keeps_exploring = np.random.default_rng(seed), True
    if policy.spec.agents:
        for episode in range(episodes):
            yield _agents_episode(policy, env, None if episode else seed, on_frame, deterministic)
        return
    for episode in range(episodes):
        with _calls(policy, "reset"):
            obs, _ = env.reset(seed=None if episode else seed)
        on_frame()
        total, length, over = 0.0, 0, False
        state: Any = None
        while not over and length < EPISODE_STEPS:
            kept = state if policy.recurrent else None
            refuse_non_finite(policy.source.name, "observation", np.asarray(obs), "an episode", step=length)
            action, state = policy.predict(obs, kept, deterministic=deterministic)
            with _calls(policy, "step"):
                obs, reward, terminated, truncated, _ = env.step(action)
            on_frame()
            total, length, over = total + float(reward), length + 1, terminated or truncated
        yield PlayedEpisode(total, length, not over)


def _agents_episode(
    policy: PortablePolicy, env: Any, seed: int | None, on_frame: Callable[[], None], deterministic: bool
) -> PlayedEpisode:
    """Play one episode of several agents; see `play`."""
    spec = policy.spec
    names = [agent.name for agent in spec.agents]
    with _calls(policy, "reset"):
        obs, _ = env.reset(seed=seed)
    on_frame()
    stacks = FrameStacks(
        spec.num_agents, policy.policy.frame_stack, spec.observation_shape, spec.observation_dtype
    )
    stacks.begin(slice(None), obs)
    returns, length = np.zeros(spec.num_agents), 0
    state: Any = None
    while env.live.any() and length < EPISODE_STEPS:
        kept = state if policy.recurrent else None
        actions, state = policy.predict(stacks.array, kept, deterministic=deterministic)
        with _calls(policy, "step"):
            obs, rewards, *_ = env.step(actions)
        on_frame()
        stacks.push(slice(None), obs)
        returns, length = returns + rewards, length + 1
    cut = bool(env.live.any())
    return PlayedEpisode(float(returns.sum()), length, cut, dict(zip(names, returns.tolist(), strict=True)))


def show(policy: PortablePolicy, env: Any, put: Callable[[Any], None]) -> None:
    """Call `put(env.render())`. Raises `EnvironmentRaised` if either call raises."""
    with _calls(policy, "render"):
        put(env.render())


def _calls(policy: PortablePolicy, call: str) -> AbstractContextManager[None]:
    name, fix = policy.source.name, "mend the environment; training does not render it"
    return environment_calls(name, f"in {call}", fix, lambda: {"environment": name})
