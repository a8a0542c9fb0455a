"""CartPole whose steps take longer, for all actors alike or for one of them more: environments that are the heavy part.

The factory is called in each actor's own process, for each of its environments; also by the process that looks at the
environment before the run and by the one that evaluates, neither of which is slowed. The slow actor is whichever first
creates the claim, a file in a directory of the run's own.
"""

from __future__ import annotations

import inspect
import os
import sys
import time
from dataclasses import dataclass
from typing import Any

import cloudpickle
import gymnasium
import numpy as np

# Actors do not find this folder's modules by name, so this one travels by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Delayed(gymnasium.Wrapper):
    """Every step takes `seconds` more.

    Args:
        env: what is stepped.
        seconds: mean delay of a step.
        busy: keep the core busy meanwhile, in place of sleeping (a simulator that runs elsewhere).
        uneven: draw the delay of an episode's steps from an exponential distribution, anew at every reset: some
            levels of a game, some poses of a robot, cost more than others.
    """

    def __init__(self, env: Any, seconds: float, *, busy: bool, uneven: bool) -> None:
        super().__init__(env)
        self._seconds = seconds
        self._busy = busy
        self._uneven = uneven
        self._random = np.random.default_rng((os.getpid(), id(self)))
        self._own_seconds = seconds

    def reset(self, **options: Any) -> Any:
        """Reset, and draw how long the steps to come take."""
        if self._uneven:
            self._own_seconds = self._random.exponential(self._seconds)
        return self.env.reset(**options)

    def step(self, action: Any) -> Any:
        """Step, then let the time pass."""
        result = self.env.step(action)
        seconds = self._own_seconds
        if self._busy:
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                pass
        elif seconds > 0:
            time.sleep(seconds)
        return result


@dataclass(frozen=True)
class DelayedFactory:
    """Makes environments of one id that are slow in actors.

    Attributes:
        env: gymnasium id.
        seconds: mean delay of a step.
        slow_factor: how many times longer the delay of the actor with the claim is.
        claim: path of the file by which one actor says that it is the slow one; None: all are alike.
        busy, uneven: see `Delayed`.
    """

    env: str
    seconds: float
    slow_factor: float = 1.0
    claim: str | None = None
    busy: bool = False
    uneven: bool = False

    def __call__(self) -> Any:
        """One environment."""
        env = gymnasium.make(self.env, disable_env_checker=True)
        if not _in_actor():
            return env
        factor = self.slow_factor if self.claim is not None and _claimed(self.claim) else 1.0
        return Delayed(env, factor * self.seconds, busy=self.busy, uneven=self.uneven)


def _in_actor() -> bool:
    """Only actors build their environments through `make_streams`."""
    return any(frame.function == "make_streams" for frame in inspect.stack(0))


def _claimed(path: str) -> bool:
    """Whether this process has the claim; it takes it where nobody has."""
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    except FileExistsError:
        with open(path) as file:
            return file.read() == str(os.getpid())
    with os.fdopen(descriptor, "w") as file:
        file.write(str(os.getpid()))
    return True
