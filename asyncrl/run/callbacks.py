"""User callbacks at the events of a run, called on the run's thread.

A callback is any object with one or more of the methods of `Callback`. The run waits until a callback returns, so a
slow callback slows it down. A callback ends the run by `return False` or `trainer.stop()`.

A callback that raises ends the run in the normal order: checkpoint, summary, closed processes. `learn`, `run` or `wait`
then raises the exception; StopIteration and CancelledError as the cause of a RuntimeError, since coroutines give them
another meaning. Later events still call the other callbacks; of the failed one only `on_end` is called.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from types import CoroutineType
from typing import TYPE_CHECKING, Any

import numpy as np

from asyncrl.algorithms.other_names import unknown_attribute
from asyncrl.errors import describe_error
from asyncrl.show.metrics import EvaluationResult, Snapshot

HOOKS = ("on_start", "on_report", "on_evaluation", "on_checkpoint", "on_end")
OTHER_HOOKS = ("_on_step", "_on_training_start", "_on_training_end", "_on_rollout_start", "_on_rollout_end")
"""Methods that callbacks of Stable-Baselines3 override."""


class Callback:
    """Base class of callbacks; override the methods you need. `trainer` is the run's `Trainer`."""

    if not TYPE_CHECKING:  # a type checker would take every name

        def __getattr__(self, name: str) -> Any:
            raise unknown_attribute(self, name)

    def on_start(self, trainer: Any) -> bool | None:
        """Called when the actors are ready and the live page is served; training begins when this returns."""

    def on_report(self, trainer: Any, snapshot: Snapshot) -> bool | None:
        """Called with every report: by steps, by seconds, after an evaluation, and a last one at the end of the run."""

    def on_evaluation(self, trainer: Any, evaluation: EvaluationResult) -> bool | None:
        """Called after an evaluation; `evaluation.env_steps` is the step at which its weights were copied."""

    def on_checkpoint(self, trainer: Any, path: str) -> bool | None:
        """Called after a checkpoint was written to `path`. Only runs with a `run_dir` write checkpoints.

        It is called once for a path and its weights; the final evaluation is added to the last one later.
        """

    def on_end(self, trainer: Any, result: Any) -> None:
        """Called after the run has ended and is closed, also after an error, if `on_start` was called.

        `result` is the `TrainResult`, or None if the run has no weights.
        """


class Callbacks:
    """The callbacks of one run; used on the run's thread once it has begun.

    Args:
        trainer: first argument of every callback.
        callbacks: objects with methods of `Callback`, which `checked` has accepted.
        stop, fail: end the run in the normal order, or with an error.

    Attributes:
        error: the first exception that a callback has raised, or None.
        event: name of the method that is being called, "" between two events.
        started: whether `start` was called, and `end` was not.
    """

    def __init__(
        self,
        trainer: Any,
        callbacks: Sequence[Any],
        stop: Callable[[], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self.error: BaseException | None = None
        self.event = ""
        self._trainer = trainer
        self._callbacks = tuple(callbacks)
        self._failed: list[Any] = []
        self.started = False
        self._stop, self._fail = stop, fail

    @property
    def hear_evaluations(self) -> bool:
        """Whether a callback has a method `on_evaluation` of its own."""
        methods = (getattr(callback, "on_evaluation", None) for callback in self._callbacks)
        functions = (getattr(method, "__func__", method) for method in methods)
        return any(function not in (None, Callback.on_evaluation) for function in functions)

    def start(self) -> None:
        """Call `on_start`. Raises the first exception of a callback."""
        self.started = True
        self._call("on_start")
        if self.error is not None:
            raise self.error

    def report(self, snapshot: Snapshot) -> None:
        """Call `on_report`."""
        self._call("on_report", snapshot)

    def evaluation(self, evaluation: EvaluationResult) -> None:
        """Call `on_evaluation`."""
        self._call("on_evaluation", evaluation)

    def checkpoint(self, path: str) -> None:
        """Call `on_checkpoint`."""
        self._call("on_checkpoint", path)

    def end(self, result: Any) -> None:
        """Call `on_end`, once, if `on_start` was called."""
        self._failed = []
        self._call("on_end", result)
        self.started = False

    def _call(self, hook: str, *event: Any) -> None:
        if not self.started:
            return
        self.event = hook
        for callback in self._callbacks:
            method = getattr(callback, hook, None)
            if method is None or any(callback is failed for failed in self._failed):
                continue
            try:
                answer = method(self._trainer, *map(own_event, event))
                if inspect.iscoroutine(answer):
                    raise _never_awaited(answer, f"{type(callback).__name__}.{hook}")
                if isinstance(answer, bool | np.bool_) and not answer and hook != "on_end":
                    self._stop()
            except BaseException as raised:  # the caller raises it at the end of the run
                error = _raisable(raised, f"{type(callback).__name__}.{hook}")
                self._failed.append(callback)
                if self.error is None:
                    self.error = error
                with contextlib.suppress(RuntimeError):  # the run's loop has ended
                    self._fail(error)
        self.event = ""


def own_event(event: Any) -> Any:
    """The event; of a snapshot a copy, whose numbers a callback may change."""
    return replace(event, metrics=dict(event.metrics)) if isinstance(event, Snapshot) else event


def _never_awaited(coroutine: CoroutineType[Any, Any, Any], callback: str) -> TypeError:
    """The error for a callback that has returned a coroutine, which is closed, so that Python does not warn of it."""
    coroutine.close()
    return TypeError(
        f"{callback} must not return a coroutine, got {coroutine.__qualname__}(): callbacks are not awaited; give it "
        "to asyncio.run_coroutine_threadsafe with an event loop of your own"
    )


def _raisable(error: BaseException, callback: str) -> BaseException:
    """The error, or a RuntimeError caused by it where coroutines and futures give its type another meaning."""
    if not isinstance(error, StopIteration | asyncio.CancelledError | GeneratorExit):
        return error
    stand_in = RuntimeError(f"{callback} raised {describe_error(error)}")
    stand_in.__cause__ = error
    return stand_in


def checked(callbacks: Sequence[Any]) -> tuple[Any, ...]:
    """Return these callbacks as a tuple.

    Raises:
        TypeError: an object has none of the methods, is a class, has a method that is a coroutine function, or one for
            an event that does not exist.
    """
    if not isinstance(callbacks, Iterable):
        raise TypeError(f"callbacks must be a list, got {type(callbacks).__name__}; write callbacks=[...]")
    callbacks = tuple(callbacks)
    for index, callback in enumerate(callbacks):
        _check(index, callback)
    return callbacks


def _check(index: int, callback: Any) -> None:
    if isinstance(callback, type):
        raise TypeError(f"callbacks[{index}] must be an object, got the class; write {callback.__name__}()")
    for name in dir(type(callback)):
        is_hook = (name.startswith("on_") and name not in HOOKS) or name in OTHER_HOOKS
        if is_hook and callable(getattr(callback, name, None)):
            raise TypeError(
                f"callbacks[{index}].{name} is called by no event; the methods are {', '.join(HOOKS)}, "
                "and on_report comes with every report; rename it"
            )
    if not any(callable(getattr(callback, hook, None)) for hook in HOOKS):
        raise TypeError(
            f"callbacks[{index}] must have one of the methods {', '.join(HOOKS)}, "
            f"got {type(callback).__name__}"
        )
    for hook in HOOKS:
        if inspect.iscoroutinefunction(getattr(callback, hook, None)):
            raise TypeError(
                f"callbacks[{index}].{hook} must not be a coroutine function; write def, not async def"
            )


class Curriculum(Callback):
    """Callback that trains on the levels of `eval_levels` one after the other, in their order.

        levels = {"dry": {"is_slippery": False}, "ice": {"is_slippery": True}}
        trainer = Trainer("FrozenLake-v1", "dqn", eval_levels=levels)
        trainer.learn(200_000, callbacks=[Curriculum(target_return=0.7)])

    The first level is set when the run begins. The next one follows after an evaluation whose mean return on the
    present level is at least `target_return`. The present level is told from `trainer.env_kwargs`, so a resumed run
    goes on where it was. What an earlier level names and a later one does not is then as in `env_kwargs` again.

    Args:
        target_return: mean return of an evaluation on a level from which the next level follows.
    """

    def __init__(self, target_return: float) -> None:
        self.target_return = target_return

    def on_start(self, trainer: Any) -> None:
        """Set the first level, unless a resumed run has one.

        Raises ValueError without `eval_levels`, and for a level that is evaluated with a keyword argument's default and
        would be trained with the value of the level before.
        """
        levels = _levels(trainer.config)
        if not levels:
            raise ValueError(
                "Curriculum needs the levels of the run: Trainer(..., eval_levels={name: env_kwargs})"
            )
        if not trainer.resumed_from or self.level(trainer) is None:
            trainer.set_env_kwargs(**next(iter(levels.values())))

    def on_evaluation(self, trainer: Any, evaluation: EvaluationResult) -> None:
        """Set the next level if the present one is mastered."""
        levels, level = _levels(trainer.config), self.level(trainer)
        if level is None or evaluation.level_returns[level] < self.target_return:
            return
        following = list(levels)[list(levels).index(level) + 1 :][:1]
        for name in following:
            trainer.set_env_kwargs(**levels[name])

    def level(self, trainer: Any) -> str | None:
        """Name of the present level: the last one whose keyword arguments the environments have; None if none is."""
        found = None
        for name, kwargs in _levels(trainer.config).items():
            if kwargs.items() <= trainer.env_kwargs.items():
                found = name
        return found


def _levels(config: Any) -> dict[str, dict[str, Any]]:
    """Keyword arguments of each level, with those of the run that an earlier level has changed. Raises ValueError."""
    levels: dict[str, dict[str, Any]] = {}
    changed: dict[str, str] = {}
    for name, kwargs in config.eval_levels.items():
        kept = [key for key in changed if key not in kwargs]
        for key in kept:
            if key not in config.env_kwargs:
                raise ValueError(
                    f"level {name!r} of a Curriculum must name {key}, as level {changed[key]!r} before it does, or "
                    f"env_kwargs must: it would be trained with the {key} of the level before it"
                )
        levels[name] = {**{key: config.env_kwargs[key] for key in kept}, **kwargs}
        changed |= {key: name for key in kwargs if key not in changed}
    return levels
