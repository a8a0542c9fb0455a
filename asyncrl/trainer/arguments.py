"""Arguments of `Trainer`: options with their types, the algorithm, and the errors about them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

from asyncrl.algorithms import ALGORITHMS, over_preset
from asyncrl.algorithms.action_spaces import why_together
from asyncrl.algorithms.other_names import closest_algorithm, unknown_option
from asyncrl.algorithms.policy_options import require_policy_options
from asyncrl.algorithms.registry import algorithm_name, imported_algorithm
from asyncrl.config import TrainerConfig
from asyncrl.errors import ConfigurationError, ScheduleWithoutSteps
from asyncrl.options import near_miss, option_help
from asyncrl.protocols import Algorithm
from asyncrl.run.job import Job
from asyncrl.storage.run_directory import refuse_run_at


class RunOptions(TypedDict, total=False):
    """Options of a run for type checkers: the fields of `TrainerConfig`, which documents them."""

    env_kwargs: Mapping[str, Any]
    wrappers: Sequence[Any]
    agent_id: bool
    pad_spaces: bool
    policies: Mapping[str, str]
    policy_options: Mapping[str, Mapping[str, Any]]
    self_play: Literal["none", "newest", "uniform", "prioritized"]
    self_play_fraction: float
    self_play_interval: int
    self_play_versions: int
    seed: int
    num_actors: int | None
    envs_per_actor: int | None
    dataset: str | os.PathLike[str] | None
    demonstrations: str | os.PathLike[str] | None
    demonstration_fraction: float
    total_steps: int | None
    max_seconds: float | None
    target_return: float | None
    target_training_return: float | None
    eval_interval_steps: int | None
    eval_episodes: int
    target_eval_episodes: int | None
    eval_env: Any
    eval_env_kwargs: Mapping[str, Any]
    eval_levels: Mapping[str, Mapping[str, Any]]
    eval_deterministic: bool
    eval_film: bool
    eval_max_episode_steps: int | None
    groups: int
    fusion: Literal["gradients", "average", "async"]
    fusion_interval: int
    max_fusion_staleness: int
    fusion_dtype: Literal["float32", "bfloat16", "int8", "topk"]
    fusion_learning_rate: float
    fusion_momentum: float
    fusion_moments: bool
    device: Literal["auto", "cpu", "cuda"]
    torch_threads: int
    burst_seconds: float
    step_timeout_seconds: float
    ready_timeout_seconds: float
    max_restarts: int
    max_actor_bytes: int | None
    run_dir: str | os.PathLike[str] | None
    init_from: str | os.PathLike[str] | None
    report_interval_seconds: float
    report_interval_steps: int | None
    checkpoint_interval_seconds: float
    checkpoints_kept: int
    save_replay_buffer: bool
    http: int | Literal["auto", "off"]
    host: str
    on_end: str | None


def refuse_swapped(env: Any, algorithm: Any) -> None:
    """Raise TypeError if `env` is an algorithm, a name or a record, and so perhaps `algorithm` the environment."""
    named = isinstance(env, str) and algorithm_name(env) in ALGORITHMS
    if named or hasattr(env, "update_loop"):
        kind = env if isinstance(env, type) else type(env)
        record = repr(env) if named else f"{kind.__name__}(...)"
        other = isinstance(algorithm, str) and algorithm_name(algorithm) not in ALGORITHMS
        first = repr(algorithm) if other else "'CartPole-v1'"
        raise TypeError(f"the environment comes first, then the algorithm: write Trainer({first}, {record})")


def algorithm_and_options(
    algorithm: Algorithm | str, env: str, options: dict[str, Any]
) -> tuple[Algorithm, dict[str, Any]]:
    """Return the algorithm's record and the run's options; an algorithm's name adds the options of its preset.

    Raises:
        TypeError: the algorithm is neither a record nor a name, or an option does not exist.
        ConfigurationError: no algorithm has that name (ASYNC017).
    """
    if isinstance(algorithm, str):
        algorithm, options = with_preset(algorithm, env, options)
    elif isinstance(algorithm, type):
        raise TypeError(
            f"algorithm must be a record or a name, got the class {algorithm.__name__}; "
            f"write {algorithm.__name__}()"
        )
    elif not hasattr(algorithm, "update_loop"):
        raise TypeError(f"algorithm must be a record or a name, got {algorithm!r}")
    check_options(options, algorithm)
    return algorithm, options


def with_preset(name: str, env: str, options: dict[str, Any]) -> tuple[Algorithm, dict[str, Any]]:
    """Return the named algorithm's record and the run's options from the presets for `env`; `options` override them."""
    name = algorithm_name(name)
    name = imported_algorithm(name)
    if name not in ALGORITHMS:
        miss = closest_algorithm(name)[0] or near_miss(name, ALGORITHMS)
        raise ConfigurationError(
            closest_algorithm(name)[1] or f"no algorithm is called {name!r}",
            facts={"algorithms": ", ".join(ALGORITHMS)},
            fix=f"write {miss!r}" if miss else "choose one of these",
        )
    return ALGORITHMS[name].preset(env), over_preset(name, env, options)


def require_steps(job: Job) -> None:
    """Check the number of steps of a run before it starts; warn of a schedule that needs one (ASYNC048).

    Raises:
        ValueError: an option is a function of progress, and the run has no `total_steps` to define progress.
        ConfigurationError: a resumed run has made all its steps already (ASYNC017).
    """
    algorithm, config, resumed = job.algorithm, job.config, job.resumed
    if resumed is not None:
        from asyncrl.storage.resume import refuse_if_used_up  # imports torch, as has what made `resumed`

        refuse_if_used_up(config, resumed.total_steps, resumed.meta.train_seconds, resumed.unfinished)
    for name in option_help(type(algorithm)):
        # `network` may be a function too, of shapes.
        if name != "network" and callable(getattr(algorithm, name)) and config.total_steps is None:
            raise ValueError(f"total_steps must be given where {name} is a function of progress, got None")
    if config.total_steps is None:
        _warn_of_schedules(algorithm, config.policy_options)


def _warn_of_schedules(algorithm: Algorithm, policy_options: Mapping[str, Mapping[str, Any]]) -> None:
    """Warn of every learning rate that falls over the steps of the run, which has no number of steps (ASYNC048)."""
    for name in ("learning_rate_schedule", "actor_learning_rate_schedule"):
        kinds = set()
        for own in ({}, *policy_options.values()):
            if own.get("learning_rate_updates", getattr(algorithm, "learning_rate_updates", None)) is None:
                kinds.add(own.get(name, getattr(algorithm, name, None)))
        for kind in kinds - {None, "constant"}:
            text = (
                f"[ASYNC048] {name} is {kind} over total_steps, which this run has not: "
                f"{name.removesuffix('_schedule')} stays as it begins; give total_steps, or {name}='constant'"
            )
            warnings.warn(ScheduleWithoutSteps(text), stacklevel=5)


def require_data(algorithm: Algorithm, config: TrainerConfig) -> None:
    """Check that the algorithm learns from the data that the run has.

    Raises:
        ValueError: it needs a dataset, or cannot use the one that is given.
    """
    name, alone = algorithm.name, [n for n, r in ALGORITHMS.items() if r.update_loop == "dataset"]
    if algorithm.update_loop == "dataset" and config.dataset is None:
        raise ValueError(
            f"dataset must be given for {name}, which learns from one alone, got none: Trainer(env, {name!r}, "
            "dataset=DIR), --dataset DIR; `asyncrl record` writes one"
        )
    if algorithm.update_loop != "dataset" and config.dataset is not None:
        raise ValueError(
            f"dataset must be none for {name}, which learns from the steps of its actors, got {config.dataset!r}; take "
            f"one of {', '.join(alone)}, or give demonstrations"
        )
    if config.demonstrations is None:
        return
    if algorithm.update_loop != "replay":
        fit = ", ".join(n for n, r in ALGORITHMS.items() if r.update_loop == "replay")
        raise ValueError(
            f"demonstrations must be none for {name}, which has no replay of transitions, got "
            f"{config.demonstrations!r}; those that have: {fit}"
        )
    record: Any = algorithm
    if record.batch_size < 2:
        raise ValueError(f"batch_size must be at least 2 with demonstrations, got {record.batch_size}")
    if record.replay_device != "cpu":
        raise ValueError(f"replay_device must be cpu with demonstrations, got {record.replay_device}")


OF_SEVERAL_POLICIES = ("segments", "replay", "sequences")
"""Update loops that train several policies of the agents."""


def require_policies(algorithm: Algorithm, config: TrainerConfig) -> None:
    """Check that a run with several policies of its agents can have its other options.

    Raises:
        ValueError: it cannot.
    """
    require_policy_options(algorithm, config)
    if not config.policies:
        return
    name = algorithm.name
    together = getattr(algorithm, "needs_agents", False)
    if together or algorithm.update_loop not in OF_SEVERAL_POLICIES:
        why = why_together(algorithm) if together else "which has no agents"
        raise ValueError(f"policies must be none for {name}, {why}, got {_shown(config)}; take ppo or dqn")
    refused = {
        "groups": (config.groups, 1),
        "self_play": (config.self_play, "none"),
        "demonstrations": (config.demonstrations, None),
        "inference": (getattr(algorithm, "inference", "actor"), "actor"),
        "replay_device": (getattr(algorithm, "replay_device", "cpu"), "cpu"),
    }
    for option, (value, only) in refused.items():
        if value != only:
            wanted = "none" if only is None else only
            raise ValueError(
                f"{option} must be {wanted} with policies, got {value}; leave {option} or policies out"
            )


def _shown(config: TrainerConfig) -> str:
    return ", ".join(f"{name}:{pattern}" for name, pattern in config.policies.items())


def seeds_from(first: int, seeds: int | Sequence[int]) -> tuple[int, ...]:
    """The given seeds, or so many from `first`. Raises ValueError without any, or for one that is given twice."""
    chosen = tuple(range(first, first + seeds)) if isinstance(seeds, int) else tuple(map(int, seeds))
    if not chosen or len(set(chosen)) < len(chosen) or min(chosen) < 0:
        raise ValueError(
            f"seeds must be a number of at least 1, or different seeds of at least 0, got {seeds}"
        )
    return chosen


def folders_of(seeds: Sequence[int], run_dir: str | os.PathLike[str] | None) -> dict[int, Path | None]:
    """Folder of every seed's run: `s3` in `run_dir` for seed 3; None without `run_dir`.

    Raises:
        ConfigurationError: one of them, or `run_dir` itself, holds a run.
    """
    if run_dir is None:
        return dict.fromkeys(seeds)
    parent = Path(run_dir)
    folders = {seed: parent / f"s{seed}" for seed in seeds}
    for path in (parent, *folders.values()):
        refuse_run_at(path)
    return {**folders}


LEARN_ARGUMENTS = ("total_steps", "max_seconds", "target_return", "callbacks")
"""Keyword arguments of `learn`, `run` and `start`; `learn` has `on_snapshot` and `progress` too."""


def check_learn_arguments(method: str, unknown: Mapping[str, Any]) -> None:
    """Raise TypeError for the first argument that `method` does not have, with what asyncrl calls it."""
    for name in unknown:
        if name == "callback":
            raise TypeError(f"{method}() has no argument 'callback'; write callbacks=[...]")
        if name in option_help(TrainerConfig):
            raise TypeError(
                f"{method}() has no argument {name!r}; it is an option of Trainer: Trainer(env, {name}=...)"
            )
        text = unknown_option(name, {*option_help(TrainerConfig), *LEARN_ARGUMENTS}, f"{method}()")
        raise TypeError(text.replace("option", "argument", 1))


def check_options(options: dict[str, Any], algorithm: Algorithm) -> None:
    """Raise TypeError for a name that is not an option of the run."""
    given_themselves = {"env", "env_file", "eval_env_file", "algo"}
    known = option_help(TrainerConfig).keys() - given_themselves
    for name in options:
        if name not in known:
            if name in option_help(type(algorithm)):
                record = type(algorithm).__name__
                raise TypeError(
                    f"Trainer has no option {name!r}; it is an option of {record}: write {record}({name}=...)"
                )
            raise TypeError(unknown_option(name, known, "Trainer"))


def working_directory() -> Path | None:
    """The working directory, None if it was deleted."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        return None


def paths_from(folder: Path, config: TrainerConfig) -> dict[str, str]:
    """The relative paths among a run's options as absolute ones below `folder`.

    Of what is read only those that are there: `dataset` may be a name, `init_from` an address.
    """
    read = {name: getattr(config, name) for name in ("init_from", "dataset", "demonstrations")}
    found = {name: str(folder / path) for name, path in read.items() if path and (folder / path).exists()}
    return found | ({"run_dir": str(folder / config.run_dir)} if config.run_dir else {})
