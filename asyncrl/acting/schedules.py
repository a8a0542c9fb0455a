"""Schedules of values over a run: linear ramps, and the exploration rates of many streams. No torch."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.options import FunctionOfProgress, Range

_FALLS_FROM = {"linear": 0.0, "cooldown": 0.8}
"""Progress from which a value falls, by schedule."""


def linear(start: float, end: float, progress: float) -> float:
    """Value at `progress` of a ramp from `start` (progress <= 0) to `end` (progress >= 1)."""
    progress = min(max(progress, 0.0), 1.0)
    return start * (1.0 - progress) + end * progress


def ramp(start: float, end: float, steps: int, at: int) -> float:
    """Value at step `at` of a ramp from `start` to `end` over `steps` steps; `end` if `steps` is 0."""
    return linear(start, end, at / steps if steps > 0 else 1.0)


def falling(schedule: str, start: float, end: float, progress: float) -> float:
    """Value at `progress` by a schedule: constant, linear to `end`, or cooldown, which is linear at the end only."""
    begin = _FALLS_FROM.get(schedule)
    return start if begin is None else linear(start, end, (progress - begin) / (1.0 - begin))


def value_at(number: float | FunctionOfProgress, progress: float) -> float:
    """Return a constant, or the value of a function at `progress` (0 at the start of the run, 1 at its end)."""
    return float(number(min(max(progress, 0.0), 1.0))) if callable(number) else number


@dataclass(frozen=True)
class RateRange:
    """Constraint of an option that is a number above 0 or a function of progress.

    The function's values must be finite and from 0 to `most`; it is called for the start, the middle and the end of the
    run.
    """

    most: float = math.inf

    def __str__(self) -> str:
        return "greater than 0"

    def check(self, name: str, number: float | FunctionOfProgress | None) -> None:
        """Raise ValueError unless `number` is None or in the range."""
        if not callable(number):
            Range(above=0).check(name, number)
            Range(finite=True).check(name, number)
            return
        if "progress_remaining" in parameters_of(number):
            raise ValueError(
                f"{name} must be a function of progress, which rises from 0 to 1, got one of progress_remaining, which "
                "falls; write lambda progress: f(1 - progress)"
            )
        if refused := not_called_with(number, 0.0):
            raise ValueError(
                f"{name} must be a function of progress alone, got one whose call fails: {refused}"
            )
        for progress in (0.0, 0.5, 1.0):
            value = number(progress)
            finite = isinstance(value, int | float | np.number) and math.isfinite(value)
            if not (finite and 0 <= value <= self.most):
                limits = f"at most {self.most:g}" if math.isfinite(self.most) else "finite"
                raise ValueError(
                    f"{name} must be at least 0 and {limits}, got {value!r} at progress {progress}"
                )


Rate = Annotated[float | FunctionOfProgress, RateRange()]
"""Learning rate or clip range: a number above 0 or a function of progress."""


def parameters_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """Names of the parameters of a function; none of a built-in one, which has no signature."""
    try:
        return tuple(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return ()


def not_called_with(function: Callable[..., Any], *values: object) -> str:
    """Why `function(*values)` does not fit the function's parameters; "" if it does, or they are not known."""
    try:
        inspect.signature(function).bind(*values)
    except TypeError as error:
        return str(error)
    except ValueError:
        return ""
    return ""


def places(first: int, count: int, total: int) -> NDArray[np.float64]:
    """Places `[count]` of streams `first .. first + count - 1` between the first of `total` (0) and the last (1).

    Raises:
        ValueError: if these are not streams of `total`.
    """
    if first < 0 or count < 1 or first + count > total:
        raise ValueError(f"streams {first} to {first + count - 1} must lie in the {total} of all actors")
    return np.arange(first, first + count, dtype=np.float64) / max(total - 1, 1)


@dataclass(frozen=True)
class EpsilonSchedule:
    """Epsilon of every stream at every step: annealed over the run, different for each stream.

    The base rate falls linearly from `initial` to `final` over the first `steps` environment steps of all actors.
    Stream i of M explores with `base ** (1 + ladder * i / (M - 1))`, as in Ape-X (Horgan et al. 2018, section 4, with
    epsilon = `final` and alpha = `ladder`). At a base of 1 all streams have rate 1, so they begin at random and
    diverge as it falls. With `ladder` = 0 all streams have the same rate.

    Attributes:
        initial: base rate at step 0, from 0 to 1.
        final: base rate from step `steps` on, from 0 to 1.
        steps: environment steps over all actors.
        ladder: exponent alpha of Ape-X, at least 0.
        repeat: most steps for which a random action is kept, at least 1.
        function: base rate as a function of the share of `steps` that is done, in place of the linear ramp.

    With `repeat` above 1 a random action is kept for 1 to `repeat` steps, uniformly drawn, and epsilon is the rate at
    which such runs begin: temporally extended exploration (Dabney et al. 2021), for environments in which single
    random steps cancel out. The paper's zeta-distributed runs are too short for that: from the start of MountainCar-v0
    random runs of up to 50 steps reach the goal in 13 % of the episodes if uniform, in 1.5 % if drawn as 1 / k^2, and
    single steps never.
    """

    initial: float = 1.0
    final: float = 0.05
    steps: int = 10_000
    ladder: float = 0.0
    repeat: int = 1
    function: FunctionOfProgress | None = None

    def exponents(self, first: int, count: int, total: int) -> NDArray[np.float64]:
        """Exponents `[count]` of these streams, 1 for a single one. Raises ValueError as `places` does."""
        return 1.0 + self.ladder * places(first, count, total)

    def base(self, total_steps: int) -> float:
        """Base rate after `total_steps` environment steps of all actors."""
        if self.function is not None:
            return value_at(self.function, total_steps / self.steps if self.steps > 0 else 1.0)
        return ramp(self.initial, self.final, self.steps, total_steps)
