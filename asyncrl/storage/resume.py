"""Resumption of a run: its options, checked changes of them, and the checkpoint to resume from.

`run/saving.py` describes the content of a checkpoint, and how much continues exactly.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.algorithms import ALGORITHMS
from asyncrl.config import EPISODE_WINDOW, TrainerConfig, with_final_episodes
from asyncrl.errors import CheckpointError, ConfigurationError
from asyncrl.options import near_miss, option_help, parse_count, python_options
from asyncrl.protocols import Algorithm
from asyncrl.storage.checkpoint import (
    CheckpointFolder,
    CheckpointMeta,
    does_not_fit,
    load,
    refused_if_damaged,
)
from asyncrl.storage.checkpoint_meta import PolicyWeights
from asyncrl.storage.config_file import TRAINER, make_record, read_config
from asyncrl.storage.replay_file import read_rows
from asyncrl.storage.resume_rules import FIXED_IN_LOCKSTEP, check_changes, refused_change
from asyncrl.storage.run_directory import advice_without_run
from asyncrl.storage.run_files import functions_of_run, network_of_run

LIMITS = ("total_steps", "max_seconds", "target_training_return")
"""Options that end a run before its final evaluation."""
MORE_STEPS = "more steps: Trainer.resume(run, '+100k'), on the command line --steps +100k"
LACKS_EVALUATION = "it was stopped at its end: the final evaluation follows"


@dataclass(frozen=True)
class Resumption:
    """Checkpoint to resume a run from.

    Attributes:
        path: the checkpoint file.
        meta: its header.
        core: state of network and optimiser.
        run: state of everything else; see `run/saving.py`.
        rows: arrays of its replay file, or None if the rings begin empty.
        states: states of the actors, or None if they begin new episodes.
        best: `evaluations` and `weights` (`PolicyWeights`) of the best checkpoint, which may be newer than this one; or
            empty.
        notes: lines about what does not continue exactly.
        unfinished: limits of the run by name, at which it is still to be evaluated; empty once it was evaluated there.
        another_group: whether another group resumes from this checkpoint of rank 0, with its own random generators.
    """

    path: Path
    meta: CheckpointMeta
    core: dict[str, Any]
    run: Mapping[str, Any]
    rows: dict[str, NDArray[Any]] | None
    states: tuple[bytes, ...] | None
    best: dict[str, Any]
    notes: tuple[str, ...]
    unfinished: Mapping[str, float | None] = field(default_factory=dict)
    another_group: bool = False

    @property
    def other_steps(self) -> int:
        """Environment steps of all groups but rank 0 so far."""
        return _of_others(self.run, "env_steps")

    @property
    def total_steps(self) -> int:
        """Environment steps of all groups so far."""
        return self.env_steps + self.other_steps

    @property
    def other_updates(self) -> int:
        """Updates of all groups but rank 0 so far, as far as they count (see `Group.others`)."""
        return _of_others(self.run, "updates")

    def for_another_group(self) -> Resumption:
        """Make the resumption of another group: the learner's state and counters, without rows and evaluations."""
        run = {name: value for name, value in self.run.items() if name not in ("rows", "why")}
        run["evaluations"] = {name: values[:0] for name, values in self.run["evaluations"].items()}
        run["pending"] = []
        return dataclasses.replace(
            self, run=run, rows=None, states=None, best={}, notes=(), another_group=True
        )

    @property
    def env_steps(self) -> int:
        """Environment steps so far; with rows, including steps that the learner had not yet inserted."""
        return _steps_made(self.run, self.meta) if self.rows is not None else self.meta.env_steps

    def release(self) -> None:
        """Free the rows and weights, once they are restored: the mapped file keeps its space when it is deleted."""
        for part in (self.core, self.rows, self.best):
            if part is not None:
                part.clear()

    def lines(self) -> tuple[str, ...]:
        """Lines for the user: the checkpoint, and `notes`."""
        meta = self.meta
        updates = meta.updates + self.other_updates
        return (f"goes on from {self.path}: {self.total_steps:,} steps, {updates:,} updates", *self.notes)

    def record(self) -> dict[str, Any]:
        """Entry in `meta.json`."""
        return {
            "checkpoint": self.path.name,
            "env_steps": self.total_steps,
            "evaluated": max(self.run["evaluations"]["env_steps"].tolist(), default=0),
            "exact": self.states is not None,
            "notes": list(self.notes),
        }


def options_of_run(run: Path, given: Container[str] = ()) -> tuple[TrainerConfig, Algorithm]:
    """Read the options in a run's `config.toml`; `run_dir` is set to the directory.

    Args:
        run: the run directory.
        given: names of options that will get a new value.

    Raises:
        ConfigurationError: there is no run, its file is invalid, or one of its functions was not pickled (ASYNC017).
    """
    file = run / "config.toml"
    if not file.exists():
        raise ConfigurationError(
            f"there is no run in {run}: it has no config.toml",
            facts={"run": run},
            fix=advice_without_run(run, "give the directory of a run, the one after --run-dir"),
        )
    tables = read_config(file, ALGORITHMS)
    values = {**tables.get(TRAINER, {}), "run_dir": str(run)}
    config = make_record(TrainerConfig, values, file=file, path=TRAINER)
    if config.algo not in ALGORITHMS:
        raise ConfigurationError(
            f"no algorithm is called {config.algo!r}", facts={"file": file}, fix="change trainer.algo"
        )
    algorithm = make_record(ALGORITHMS[config.algo], tables.get(config.algo, {}), file=file, path=config.algo)
    network = network_of_run(run)
    own: dict[str, Any] = dict(functions_of_run(run, given))
    if network is not None:
        own["network"] = network
    record: Any = algorithm
    return config, dataclasses.replace(record, **own) if own else record


def changed_options(
    config: TrainerConfig, algorithm: Algorithm, changes: Mapping[str, Any]
) -> tuple[TrainerConfig, Algorithm]:
    """Return both records with `changes` of options of the run or of the algorithm; functions are among these.

    Raises:
        TypeError: an option does not exist.
        ConfigurationError: an option may not change (ASYNC017).
        ValueError: a value is outside its range.
    """
    known = {TrainerConfig: {}, type(algorithm): {}}  # type: dict[type, dict[str, Any]]
    options = {record: (*option_help(record), *python_options(record)) for record in known}
    for name, value in with_final_episodes(changes, vars(config)).items():
        table = next((record for record in known if name in options[record]), None)
        if table is None:
            miss = near_miss(name, [n for record in known for n in options[record]])
            raise TypeError(f"a run has no option {name!r}" + (f"; did you mean {miss}?" if miss else ""))
        known[table][name] = value
    new_config = dataclasses.replace(config, **known[TrainerConfig])
    record: Any = algorithm
    new_algorithm: Algorithm = dataclasses.replace(record, **known[type(algorithm)])
    check_changes(config, algorithm, new_config, new_algorithm)
    return new_config, new_algorithm


def total_of(steps: int | str | None, done: int) -> int | None:
    """Environment steps of the whole run: `"+100k"` adds to `done`, anything else is the total.

    Raises:
        ConfigurationError: `steps` is not a whole number (ASYNC017).
    """
    if steps is None or isinstance(steps, int):
        return steps
    try:
        return parse_count(steps.removeprefix("+")) + (done if steps.startswith("+") else 0)
    except ValueError as error:
        raise ConfigurationError(
            f"total_steps must be a whole number, or +N for so many more, got {steps!r}", fix="write +100k"
        ) from error


def refuse_if_used_up(
    config: TrainerConfig, env_steps: int, train_seconds: float, unfinished: Mapping[str, float | None]
) -> bool:
    """Whether only the final evaluation is left to do, at a limit of a run that was stopped before it.

    Raises `ConfigurationError` (ASYNC017) if the run has reached another `total_steps` or `max_seconds` than those in
    `unfinished` (see `Resumption`).
    """
    used_up = False
    rules = (
        ("total_steps", config.total_steps, env_steps, MORE_STEPS),
        ("max_seconds", config.max_seconds, train_seconds, "a larger max_seconds: it counts from the beginning"),
    )  # fmt: skip
    for name, limit, done, fix in rules:
        if limit is None or done < limit:
            continue
        used_up = True
        if unfinished.get(name) != limit:
            raise ConfigurationError(
                f"the run has used up its {name}: {round(done, 2):,} of {limit:,}",
                facts={"run": config.run_dir},
                fix=f"give {fix}",
            )
    return used_up


def prepare_resumption(
    run: Path,
    checkpoint: str,
    total_steps: int | str | None,
    changes: Mapping[str, Any],
    restore_episodes: bool,
) -> tuple[TrainerConfig, Algorithm, Resumption]:
    """Return the options of the resumed run, and its checkpoint; see `Trainer.resume`.

    Under torchrun the number of groups is that of its ranks, unless `changes` have another, which the run refuses.
    """
    config, algorithm = options_of_run(run, changes)
    before, groups = config, config.groups
    path = CheckpointFolder(run / "checkpoints").file(checkpoint)
    state, meta = load(path, expect_env=config.env, expect_algo=config.algo)
    if not isinstance(state.get("run"), dict) or "core" not in state:
        raise does_not_fit(path, "it holds no run to go on from, only a policy")
    damage, saved = _damage(path, state["run"], meta), state["run"]
    own = _steps_made(saved, meta) if damage is None and saved.get("rows") else meta.env_steps
    done = own if damage is not None else own + _of_others(saved, "env_steps")
    total = total_of(total_steps, done)
    more = {} if total is None else {"total_steps": total}
    config, algorithm = changed_options(config, algorithm, {**_groups_of_torchrun(), **changes, **more})
    if damage is not None:
        raise damage
    unfinished = {} if saved.get("has_final", True) else {name: getattr(before, name) for name in LIMITS}
    used_up = refuse_if_used_up(config, done, meta.train_seconds, unfinished)
    resumption = _resumption(path, (state, meta), config, algorithm, restore_episodes, groups)
    notes = (LACKS_EVALUATION,) if used_up else resumption.notes
    resumption = dataclasses.replace(resumption, notes=notes, unfinished=unfinished)
    config, resumption = _without_reached_targets(config, resumption, saved, total)
    return config, algorithm, resumption


def _without_reached_targets(
    config: TrainerConfig, resumption: Resumption, saved: Mapping[str, Any], total: int | None
) -> tuple[TrainerConfig, Resumption]:
    """The run without targets that it has reached, and with a note of them; one that lacks its evaluation stays.

    Raises `ConfigurationError` (ASYNC017) if there is one, and no `total` is given.
    """
    for name, reached in (
        ("target_return", _target_reached(config, saved["evaluations"])),
        ("target_training_return", _training_target_reached(config, saved)),
    ):
        if reached and total is None and resumption.unfinished.get(name) == getattr(config, name):
            resumption = dataclasses.replace(resumption, notes=(LACKS_EVALUATION,))
        elif reached:
            target = f"{getattr(config, name):g}"
            if total is None:
                raise ConfigurationError(
                    f"the run has reached its {name}, {target}",
                    facts={"run": config.run_dir},
                    fix=f"give {MORE_STEPS}, or a higher {name}",
                )
            note = f"{name} {target} was reached and no longer ends the run"
            dropped: dict[str, Any] = {name: None}
            config = dataclasses.replace(config, **dropped)
            resumption = dataclasses.replace(resumption, notes=(*resumption.notes, note))
    return config, resumption


def _groups_of_torchrun() -> dict[str, Any]:
    """Number of groups under torchrun, that of its ranks; empty elsewhere."""
    if "RANK" not in os.environ:  # a run of one group imports nothing of groups
        return {}
    from asyncrl.groups.place import ranks_of_process

    ranks = ranks_of_process()
    return {} if ranks is None else {"groups": ranks}


def _damage(path: Path, run: Mapping[str, Any], meta: CheckpointMeta) -> CheckpointError | None:
    """Error (ASYNC019) about a missing or wrong part that is read before the run is built; None if there is none."""
    try:
        with refused_if_damaged(path):
            _steps_made(run, meta)
            int(run["rings"]["num_actors"])
            _ = [_of_others(run, name) for name in ("env_steps", "updates")]
            _ = [
                np.asarray(run["evaluations"][name], np.float64)
                for name in ("return_mean", "episodes", "env_steps")
            ]
            _ = [int(copy["env_steps"]) for copy in run["pending"]]
    except CheckpointError as damage:
        return damage
    return None


def _target_reached(config: TrainerConfig, evaluations: Mapping[str, NDArray[Any]]) -> bool:
    """Whether an evaluation of the run has confirmed its target."""
    if config.target_return is None or not len(evaluations["return_mean"]):
        return False
    long_enough = np.asarray(evaluations["episodes"]) >= config.confirming_episodes
    return bool((np.asarray(evaluations["return_mean"])[long_enough] >= config.target_return).any())


def _training_target_reached(config: TrainerConfig, run: Mapping[str, Any]) -> bool:
    """Whether the window of training episodes has reached the target, so that the run would end at once."""
    try:
        returns = run["episodes"]["returns"].tolist()
    except (AttributeError, LookupError, TypeError):  # damaged; refused when the run is built
        return False
    target = config.target_training_return
    return target is not None and len(returns) == EPISODE_WINDOW and sum(returns) / len(returns) >= target


def _steps_of(copy: Mapping[str, Any]) -> int:
    """Environment steps of all groups when these weights were copied for an evaluation."""
    return int(copy["env_steps"]) + int(copy.get("other_steps", 0))


def _without_repeated(run: Mapping[str, Any]) -> dict[str, Any]:
    """State of the run without the last evaluation if its copy is evaluated again.

    The checkpoint of the best weights is written before the callbacks of their evaluation are called.
    """
    evaluations, pending = run["evaluations"], run["pending"]
    again = pending and evaluations["env_steps"].tolist()[-1:] == [_steps_of(pending[0])]
    kept = {name: column[:-1] for name, column in evaluations.items()} if again else evaluations
    return {**run, "evaluations": kept}


def _of_others(run: Mapping[str, Any], name: str) -> int:
    return int(sum(run.get("groups", {}).get(name, ())))


def _steps_made(run: Mapping[str, Any], meta: CheckpointMeta) -> int:
    return max(int(run["rings"]["steps"].sum()), meta.env_steps)


def _resumption(
    path: Path,
    checkpoint: tuple[Mapping[str, Any], CheckpointMeta],
    config: TrainerConfig,
    algorithm: Algorithm,
    restore_episodes: bool,
    groups: int,
) -> Resumption:
    """Make the resumption of a run of `groups` groups so far; a rows file that is missing is a note.

    Raises `CheckpointError` if the rows file is damaged (ASYNC019).
    """
    state, meta = checkpoint
    run = _without_repeated(state["run"])
    rows, states, why = None, None, str(run.get("why", ""))
    name = run.get("rows")
    actors = int(run["rings"]["num_actors"])
    if actors != config.actors and algorithm.exact:
        raise refused_change("num_actors", actors, config.actors, FIXED_IN_LOCKSTEP["num_actors"])
    if name is not None and actors != config.actors:
        why = f"num_actors was {actors}"
    elif name is not None and config.groups > groups and algorithm.update_loop != "segments":
        why = f"groups was {groups}, and each has its part of the replay"
    elif name is not None and not (path.parent / str(name)).exists():
        why = "rows are kept of the last checkpoint only"
    elif name is not None:
        arrays = read_rows(path.parent / str(name))
        rows = arrays
        found = tuple(arrays[f"actor{i}"].tobytes() for i in range(config.actors) if f"actor{i}" in arrays)
        states = found if restore_episodes and len(found) == config.actors else None
    notes = _notes(algorithm, rows is not None, states is not None, why)
    return Resumption(path, meta, state["core"], run, rows, states, _best_state(path.parent), notes)


def _best_state(folder: Path) -> dict[str, Any]:
    """Evaluations and weights in the best checkpoint; empty if there is none that can be read."""
    try:
        state, meta = load(folder / "best")
        kept = PolicyWeights(state["weights"], state.get("critics"), meta.reward_scale)
        return {"evaluations": state["run"]["evaluations"], "weights": kept}
    except (CheckpointError, KeyError, TypeError):
        return {}


def _notes(algorithm: Any, rows: bool, states: bool, why: str) -> tuple[str, ...]:
    because = f" ({why})" if why else ""
    notes = []
    if algorithm.update_loop == "dataset":
        return ()
    if not states:
        notes.append(f"the actors begin new episodes{because}")
    if not rows and algorithm.update_loop != "segments":
        notes.append(
            f"the replay is filled again: {algorithm.learning_starts:,} steps before the next update "
            "(save_replay_buffer keeps it)"
        )
    return tuple(notes)
