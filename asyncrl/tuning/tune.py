"""The search as one call.

found = asyncrl.tune("Acrobot-v1", "ppo", trials=40, total_steps=100_000, run_dir="search")
print(found)                                      # the chosen options, and what they reach on held-out seeds
Trainer("Acrobot-v1", found.algorithm).learn(total_steps=100_000)
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any, Unpack

from asyncrl.algorithms.search_spaces import load_space, read_space
from asyncrl.protocols import Algorithm
from asyncrl.trainer.arguments import RunOptions
from asyncrl.trainer.run_pool import RunPool, runs_at_once
from asyncrl.trainer.trainer import Trainer
from asyncrl.tuning.result import Searched
from asyncrl.tuning.search import Search
from asyncrl.tuning.trial_options import config_of_trials


def tune(  # type: ignore[misc]  # `run_dir` and `max_seconds` are those of the search
    env: Any,
    algorithm: Algorithm | str = "ppo",
    *,
    trials: int,
    run_dir: str | os.PathLike[str],
    space: str | os.PathLike[str] | None = None,
    at_once: int | None = None,
    held_out_seeds: int = 5,
    max_seconds: float | None = None,
    **options: Unpack[RunOptions],
) -> Searched:
    """Search for options of an algorithm that are better than those of the given record; blocks.

    Args:
        env: see `Trainer`.
        algorithm: the record to beat, or an algorithm's name for its preset for the environment, else its defaults.
        trials: number of trials; the same call with a higher number continues the search.
        run_dir: directory of the search and of its runs.
        space: file of the search space, None for the package's of the algorithm.
        at_once: number of runs at a time; None takes as many as the cores allow.
        held_out_seeds: seeds of the comparison at the end.
        max_seconds: seconds after which no further trial is begun; it changes nothing else.
        options: of `Trainer`; `total_steps` of a trial is that of the space if it is not given.

    Raises:
        ConfigurationError: Optuna is missing, the space is wrong, or the directory holds another search (ASYNC017).
        AsyncRLError: the run of the record to beat has failed, or several trials one after the other.
    """
    trainer = Trainer(env, algorithm, **options)
    record: Any = type(trainer.algorithm)
    found = read_space(Path(space), record) if space is not None else load_space(trainer.config.algo, record)
    config = config_of_trials(trainer.config, found, set(options))
    job = dataclasses.replace(trainer.job, config=config)
    with Search(
        Path(run_dir),
        job,
        found,
        trials=trials,
        at_once=runs_at_once(config, at_once),
        held_out_seeds=held_out_seeds,
        max_seconds=max_seconds,
    ) as search:
        with RunPool() as pool:
            for _ in search.run(pool):
                pass
        return search.result()
