"""What people give a trainer, and what a run gives back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncrl.acting.policies import TrainedPolicy
from asyncrl.algorithms import ALGORITHMS, preset_options
from asyncrl.errors import ConfigurationError
from asyncrl.interfaces import Algorithm
from asyncrl.options import near_miss, option_help
from asyncrl.run.config import TrainerConfig
from asyncrl.show.metrics import EvaluationResult


@dataclass(frozen=True)
class TrainResult:
    """What training returns.

    Attributes:
        policy: acts with the run's final weights, or those that reached `target_return`.
        evaluation: greedy evaluation of those weights, or None where none was made (the run was stopped).
        stop_reason: `"total_steps"`, `"max_seconds"`, `"target_return"`, `"target_training_return"`, `"stopped"`,
            `"interrupted"`, or `"failed"` (in `Trainer.result` of a run that raised).
        summary: the content of `summary.json`.
        run_dir: where the files are, or None.
    """

    policy: TrainedPolicy
    evaluation: EvaluationResult | None
    stop_reason: str
    summary: dict[str, Any]
    run_dir: Path | None


def with_preset(name: str, env: str, options: dict[str, Any]) -> tuple[Algorithm, dict[str, Any]]:
    """The named algorithm's record and the run's options, tuned for `env` where nothing else was given."""
    if name not in ALGORITHMS:
        miss = near_miss(name, ALGORITHMS)
        raise ConfigurationError(
            f"no algorithm is called {name!r}",
            facts={"algorithms": ", ".join(ALGORITHMS)},
            fix=f"write {miss!r}" if miss else "choose one of these",
        )
    return ALGORITHMS[name].preset(env), {**preset_options(name, env), **options}


def check_options(options: dict[str, Any]) -> None:
    """Raise TypeError for a name that is no option of the run."""
    known = option_help(TrainerConfig)
    for name in options:
        if name not in known:
            miss = near_miss(name, known)
            hint = f"; did you mean {miss}?" if miss else ""
            raise TypeError(f"Trainer has no option {name!r}{hint}")
