"""CartPole with longer steps, in all actors alike or more in one of them: the environment is the bottleneck.

The factory is called in each actor's process for each of its environments; also by the process that probes the
environment before the run and by the evaluator, neither of which is slowed. The slow actor is the first to create the
claim, a file in a directory of the run's own.
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

# Actors cannot import this folder's modules by name, so this module is pickled by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Delayed(gymnasium.Wrapper):
    """Wrapper whose every step takes `seconds` longer.

    Args:
        env: the wrapped environment.
        seconds: mean delay of a step.
        busy: keep the core busy during the delay, instead of sleeping (like a remote simulator).
        uneven: draw the delay of an episode's steps from an exponential distribution at every reset, like levels of a
            game or poses of a robot of different cost.
        variance: variance of a step's delay, in squares of its mean: gamma-distributed, drawn for every step. 0: none.
    """

    def __init__(self, env: Any, seconds: float, *, busy: bool, uneven: bool, variance: float = 0.0) -> None:
        super().__init__(env)
        self._seconds = seconds
        self._busy = busy
        self._uneven = uneven
        self._variance = variance
        self._random = np.random.default_rng((os.getpid(), id(self)))
        self._own_seconds = seconds

    def reset(self, **options: Any) -> Any:
        """Reset, and draw the delay of the next steps."""
        if self._uneven:
            self._own_seconds = self._random.exponential(self._seconds)
        return self.env.reset(**options)

    def step(self, action: Any) -> Any:
        """Step, then wait for the delay."""
        result = self.env.step(action)
        seconds = self._own_seconds
        if self._variance:
            seconds = self._random.gamma(1 / self._variance, seconds * self._variance)
        if self._busy:
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                pass
        elif seconds > 0:
            time.sleep(seconds)
        return result


@dataclass(frozen=True)
class DelayedFactory:
    """Factory of environments of one id that are slow in actors.

    Attributes:
        env: gymnasium id.
        seconds: mean delay of a step.
        slow_factor: factor of the delay in the actor with the claim.
        claim: path of the file by which one actor becomes the slow one; None: all are alike.
        busy, uneven, variance: see `Delayed`.
    """

    env: str
    seconds: float
    slow_factor: float = 1.0
    claim: str | None = None
    busy: bool = False
    uneven: bool = False
    variance: float = 0.0

    def __call__(self) -> Any:
        """Make one environment."""
        env = gymnasium.make(self.env, disable_env_checker=True)
        if not _in_actor():
            return env
        factor = self.slow_factor if self.claim is not None and _claimed(self.claim) else 1.0
        seconds = factor * self.seconds
        return Delayed(env, seconds, busy=self.busy, uneven=self.uneven, variance=self.variance)


def _in_actor() -> bool:
    """Whether this is an actor, by the call stack: only actors build environments through `make_streams`."""
    return any(frame.function == "make_streams" for frame in inspect.stack(0))


def _claimed(path: str) -> bool:
    """Whether this process has the claim; takes it if it is free."""
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    except FileExistsError:
        with open(path) as file:
            return file.read() == str(os.getpid())
    with os.fdopen(descriptor, "w") as file:
        file.write(str(os.getpid()))
    return True
