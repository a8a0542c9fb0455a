"""Options and counters of one group, derived from those of the run.

Steps count over all groups, so each of N groups gets 1/N of every limit and schedule; the replay is sharded by group.
Seeds are spawned from the run's seed, and actors are counted over all groups. Rank 0 evaluates, writes the run and
serves the page. Every other group writes to the directory `groups/<rank>` in the run's, and neither evaluates nor
serves a page.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from asyncrl.config import TrainerConfig, usable_cores
from asyncrl.options import option_values
from asyncrl.protocols import Algorithm
from asyncrl.storage.resume import Resumption, prepare_resumption

AlgorithmT = TypeVar("AlgorithmT", bound=Algorithm)

STEP_OPTIONS = ("learning_starts", "replay_capacity", "exploration_steps", "random_steps")
"""Algorithm options that are numbers of environment steps over all actors."""
OWN_OPTIONS = (
    *("run_dir", "http", "host", "device", "torch_threads", "num_actors", "env_file", "burst_seconds"),
    *("report_interval_seconds", "report_interval_steps", "checkpoint_interval_seconds", "checkpoints_kept"),
)
"""Run options that may differ between ranks."""


def share_of(
    config: TrainerConfig, rank: int, groups: int, *, on_machine: int = 1, done: int = 0, counted: int = 0
) -> TrainerConfig:
    """Options of one group; `on_machine` groups share the cores of this machine.

    When a run is resumed after `done` steps of all groups, each group counts on from `counted` and takes its share of
    the remaining steps. Only rank 0 has the stopping rules other than `total_steps`; it sends its stop to the others.
    """
    left = None if config.total_steps is None else max(0, config.total_steps - done)
    changed: dict[str, Any] = {
        "total_steps": None if left is None else max(1, counted + math.ceil(left / groups)),
        "report_interval_steps": _part(config.report_interval_steps, groups),
        "eval_interval_steps": _part(config.eval_interval_steps, groups),
        "num_actors": config.num_actors or max(1, usable_cores() // on_machine - 1),
    }
    if rank:
        rules = ("max_seconds", "target_return", "target_training_return", "eval_interval_steps")
        changed |= dict.fromkeys(rules)
        changed |= {"http": "off", "seed": seed_of(config.seed, rank)}
        if config.run_dir is not None:
            changed["run_dir"] = str(_free(Path(config.run_dir) / "groups", str(rank)))
    return dataclasses.replace(config, **changed)


def _free(folder: Path, name: str) -> Path:
    """First unused path of `name`, `name-2` and so on in `folder`; a group that is restarted gets the next one."""
    names = itertools.chain((name,), (f"{name}-{life}" for life in itertools.count(2)))
    return next(folder / own for own in names if not (folder / own).exists())


def share_of_algorithm(algorithm: AlgorithmT, groups: int) -> AlgorithmT:
    """Return the algorithm's record with a group's share of every option in `STEP_OPTIONS`."""
    given = {name: getattr(algorithm, name, None) for name in STEP_OPTIONS}
    changed: dict[str, Any] = {name: _part(value, groups) for name, value in given.items() if value}
    record: Any = algorithm
    made: AlgorithmT = dataclasses.replace(record, **changed)
    return made


def seed_of(seed: int, rank: int) -> int:
    """Seed of a group; rank 0 has the run's seed."""
    return seed if rank == 0 else int(np.random.SeedSequence((seed, rank)).generate_state(1)[0])


def actor_indices(rank: int, groups: int, num_actors: int) -> tuple[int, int]:
    """Index of a group's first actor among those of all groups, and their number, as if each had `num_actors`.

    Exploration rates and noise scales differ along these indices. A group with another number of actors than the others
    covers its part of that range in other steps.
    """
    return rank * num_actors, groups * num_actors


def shared_options(config: TrainerConfig, algorithm: Algorithm) -> dict[str, Any]:
    """Options that must be equal on all ranks, by name."""
    run = {name: value for name, value in option_values(config).items() if name not in OWN_OPTIONS}
    return {**run, **{f"{algorithm.name}.{k}": v for k, v in option_values(algorithm).items()}}


def _part(steps: int | None, groups: int) -> int | None:
    return None if steps is None else math.ceil(steps / groups)


def last_checkpoint(config: TrainerConfig) -> Resumption | None:
    """Latest checkpoint of a run that torchrun has restarted; None if there is none."""
    latest = Path(config.run_dir or "") / "checkpoints" / "latest"
    if config.run_dir is None or not latest.exists():
        return None
    return prepare_resumption(Path(config.run_dir), "latest", None, {}, restore_episodes=True)[2]


def made_before(resumed: Resumption, groups: int, fusion: str) -> tuple[int, int]:
    """Steps and updates of the earlier run that are not in the counters from which `groups` groups count on."""
    others, meta = groups - 1, resumed.meta  # the others have no rows
    again = others * meta.updates if fusion != "gradients" else 0
    return resumed.other_steps - others * meta.env_steps, resumed.other_updates - again


def made_by_others(resumed: Resumption | None, groups: int) -> tuple[int, int]:
    """Steps and updates that the other groups of the resumed run had made, for a run of one group."""
    if resumed is None or groups > 1:
        return 0, 0
    steps = resumed.other_steps
    return (steps, resumed.other_updates) if steps else (0, 0)


def without_others(config: TrainerConfig, resumed: Resumption | None) -> TrainerConfig:
    """Options of a run of one group, whose steps are those that the groups of the resumed run have left."""
    steps, _ = made_by_others(resumed, config.groups)
    if not steps or config.total_steps is None:
        return config
    return dataclasses.replace(config, total_steps=max(1, config.total_steps - steps))
