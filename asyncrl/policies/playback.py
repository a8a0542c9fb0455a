"""Greedy episodes of one policy in one rendered environment, in this process."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from asyncrl.actors.episodes import EPISODE_STEPS
from asyncrl.errors import AsyncRLError, EnvironmentRaised, error_text
from asyncrl.policies.portable_policy import PortablePolicy

T = TypeVar("T")


@dataclass(frozen=True)
class PlayedEpisode:
    """One episode: undiscounted return, steps, and whether the step limit `EPISODE_STEPS` cut it."""

    return_sum: float
    length: int
    cut: bool


def play(
    policy: PortablePolicy, env: Any, episodes: int, seed: int, on_frame: Callable[[], None] = lambda: None
) -> Iterator[PlayedEpisode]:
    """Play greedy episodes one after the other and yield each at its end.

    Args:
        policy: acts.
        env: one gymnasium environment; not closed.
        episodes: number of episodes.
        seed: seed of the first reset; later resets have none.
        on_frame: called after every reset and step.

    Raises:
        EnvironmentRaised: the environment raised an exception (ASYNC002).
    """
    for episode in range(episodes):
        obs, _ = _asked(policy, "reset", partial(env.reset, seed=None if episode else seed))
        on_frame()
        total, length, over, state = 0.0, 0, False, None
        while not over and length < EPISODE_STEPS:
            action, state = policy.predict(obs, state if policy.recurrent else None)
            obs, reward, terminated, truncated, _ = _asked(policy, "step", partial(env.step, action))
            on_frame()
            total, length, over = total + float(reward), length + 1, terminated or truncated
        yield PlayedEpisode(total, length, not over)


def show(policy: PortablePolicy, env: Any, put: Callable[[Any], None]) -> None:
    """Call `put(env.render())`. Raises `EnvironmentRaised` if either call raises."""
    _asked(policy, "render", lambda: put(env.render()))


def _asked(policy: PortablePolicy, call: str, ask: Callable[[], T]) -> T:
    try:
        return ask()
    except AsyncRLError:
        raise
    except Exception as error:
        raise EnvironmentRaised(
            f"{policy.source.name} raised {type(error).__name__} in {call}: {error_text(error)}",
            facts={"environment": policy.source.name},
            fix="mend the environment; training does not render it",
            remote_traceback=traceback.format_exc(),
        ) from error
