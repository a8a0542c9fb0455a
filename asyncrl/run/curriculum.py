"""A curriculum over the levels that a run is evaluated on."""

from __future__ import annotations

from typing import Any

from asyncrl.run.callbacks import Callback
from asyncrl.show.metrics import EvaluationResult


class Curriculum(Callback):
    """Callback that trains on the levels of `eval_levels` one after the other, in their order.

        levels = {"dry": {"is_slippery": False}, "ice": {"is_slippery": True}}
        trainer = Trainer("FrozenLake-v1", "dqn", eval_levels=levels)
        trainer.learn(200_000, callbacks=[Curriculum(target_return=0.7)])

    The first level is set when the run begins. The next one follows after an evaluation whose mean return on the
    present level is at least `target_return`. The present level is told from `trainer.env_kwargs`, so a resumed run
    goes on where it was.

    Args:
        target_return: mean return of an evaluation on a level from which the next level follows.
    """

    def __init__(self, target_return: float) -> None:
        self.target_return = target_return

    def on_start(self, trainer: Any) -> None:
        """Set the first level, unless the environments have one. Raises ValueError without `eval_levels`."""
        levels = trainer.config.eval_levels
        if not levels:
            raise ValueError(
                "Curriculum needs the levels of the run: Trainer(..., eval_levels={name: env_kwargs})"
            )
        if self.level(trainer) is None:
            trainer.set_env_kwargs(**next(iter(levels.values())))

    def on_evaluation(self, trainer: Any, evaluation: EvaluationResult) -> None:
        """Set the next level if the present one is mastered."""
        names, level = list(trainer.config.eval_levels), self.level(trainer)
        if level is None or evaluation.level_returns[level] < self.target_return:
            return
        following = names[names.index(level) + 1 :][:1]
        for name in following:
            trainer.set_env_kwargs(**trainer.config.eval_levels[name])

    def level(self, trainer: Any) -> str | None:
        """Name of the present level: the last one whose keyword arguments the environments have; None if none is."""
        found = None
        for name, kwargs in trainer.config.eval_levels.items():
            if kwargs.items() <= trainer.env_kwargs.items():
                found = name
        return found
