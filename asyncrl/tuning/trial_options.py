"""Options of a trial's run. It imports nothing heavy, as the command line checks them before anything is loaded."""

from __future__ import annotations

import dataclasses
from typing import Any

from asyncrl.algorithms.search_spaces import SearchSpace
from asyncrl.config import TrainerConfig

EVALUATIONS = 10
"""Evaluations of a trial, where `eval_interval_steps` is not given."""
FINAL_EPISODES = 30
"""Episodes of its final evaluation, where `target_eval_episodes` is not given."""


def config_of_trials(config: TrainerConfig, space: SearchSpace, given: set[str]) -> TrainerConfig:
    """Options of a trial: of a fixed number of steps, with a few evaluations and without a page unless `given`.

    Raises:
        ValueError: neither options nor space have a number of steps.
    """
    steps = config.total_steps or space.total_steps
    if steps is None:
        raise ValueError("total_steps must be given where the search space has none, got none")
    chosen: dict[str, Any] = {"total_steps": steps, "max_seconds": None, "run_dir": None}
    chosen |= {"target_return": None, "target_training_return": None}
    if "eval_interval_steps" not in given:
        chosen["eval_interval_steps"] = max(1, steps // EVALUATIONS)
    if "target_eval_episodes" not in given:
        chosen["target_eval_episodes"] = FINAL_EPISODES
    if "http" not in given:
        chosen["http"] = "off"
    return dataclasses.replace(config, **chosen)
