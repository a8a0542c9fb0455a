"""`asyncrl train`: flags, and the option records made from flags, a file and presets.

An option's value comes from its flag, else from the file of `--config`, else from the preset for the environment, else
from the record's default.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import time
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncrl.algorithms import ALGORITHMS, over_preset
from asyncrl.algorithms.registry import algorithm_name, imported_algorithm
from asyncrl.cli.flags import Parser, flag_of, given_flags, merged
from asyncrl.cli.interrupts import Interrupts
from asyncrl.cli.run_name import claim, new_run_dir, remove_if_empty, remove_if_never_trained
from asyncrl.cli.train_flags import (
    above_preset,
    algorithms_named,
    check_algorithm,
    last_value,
    make_parser,
    reported_as_usage,
)
from asyncrl.config import OF_AGENTS, TrainerConfig, with_final_episodes
from asyncrl.errors import StoppedWhileStarting, UserError
from asyncrl.options import option_values, parse_count
from asyncrl.protocols import Algorithm
from asyncrl.storage.config_file import TRAINER, make_record, read_config
from asyncrl.storage.run_directory import refuse_another_run
from asyncrl.trainer.arguments import folders_of, seeds_from

if TYPE_CHECKING:
    from asyncrl.actors.forkserver import ForkServer

Given = tuple[argparse.Namespace, TrainerConfig, Algorithm, bool]
"""Values of all flags, the two records, and whether flags or file say where the run is kept, or that it is not."""


@dataclass(frozen=True)
class SeedOptions:
    """A run for each of several seeds.

    Attributes:
        config, algorithm: all options, but the seed and the directory of each run.
        folders: directory of each seed's run, None to keep nothing.
        at_once: runs at a time, None for as many as there are cores for.
    """

    config: TrainerConfig
    algorithm: Algorithm
    folders: Mapping[int, Path | None]
    at_once: int | None


def parse(arguments: Sequence[str]) -> tuple[TrainerConfig, Algorithm] | SeedOptions:
    """Make the records of a run, or of several, from the arguments of `asyncrl train`.

    Raises:
        SystemExit: with code 2, for a wrong flag or value.
        ConfigurationError: the file of `--config` is wrong, or the directory holds another run (ASYNC017).
    """
    parsed, config, algorithm, names_folder = parse_run(arguments, make_parser)
    env, algo = config.env, config.algo
    if parsed.seeds is None:
        if parsed.jobs is not None:
            make_parser([]).error("--jobs needs --seeds: it is the number of runs at a time")
        folder = None if names_folder else new_run_dir(env, algo, config.seed)
        if config.run_dir is not None and os.environ.get("RANK", "0") == "0":
            # Before torch is imported; the run checks again, with the directory's lock held. Under torchrun rank 0 may
            # have begun the run meanwhile.
            refuse_another_run(Path(config.run_dir))
        return (config if folder is None else dataclasses.replace(config, run_dir=str(folder))), algorithm
    seeds = _seeds(parsed.seeds, config)
    if names_folder:
        folders = folders_of(seeds, config.run_dir)
    else:
        now = time.localtime()
        folders = {seed: new_run_dir(env, algo, seed, now) for seed in seeds}
    return SeedOptions(config, algorithm, folders, parsed.jobs)


def _seeds(text: str, config: TrainerConfig) -> tuple[int, ...]:
    """Seeds of `--seeds`: `5` are that many from `--seed`, `3,7` are these. Exits with code 2 for another text."""
    try:
        numbers = [parse_count(part) for part in text.split(",")]
        seeds = seeds_from(config.seed, numbers if "," in text else numbers[0])
    except ValueError:
        make_parser([]).error(
            f"argument --seeds: must be a number of seeds, or different seeds as 0,1,2, got {text!r}"
        )
    if isinstance(config.http, int):
        make_parser([]).error("argument --http: must be auto or off with --seeds, as one run takes the port")
    return seeds


def parse_run(arguments: Sequence[str], make_parser: Callable[[list[str]], Parser]) -> Given:
    """Make the records of a run from the arguments of a command.

    Args:
        arguments: those of the command.
        make_parser: makes its parser with the flags of named algorithms.

    Raises:
        SystemExit, ConfigurationError: see `parse`.
    """
    given_algorithm = imported_algorithm(last_value(arguments, "--algo") or "")
    if {"-h", "--help"} & set(arguments):
        make_parser(algorithms_named([*arguments, given_algorithm])).print_help()
        raise SystemExit(0)
    given_file = last_value(arguments, "--config")
    file = None if given_file is None else Path(given_file).expanduser()
    tables = read_config(file, ALGORITHMS) if file is not None else {}
    in_file = with_final_episodes(tables.get(TRAINER, {}), {})
    algo = algorithm_name(given_algorithm or in_file.get("algo", ""))
    parser = make_parser([algo] if algo in ALGORITHMS else [])
    parsed = parser.parse_exactly(arguments)
    flags = with_final_episodes(given_flags(parsed, TrainerConfig), in_file)
    if parsed.ENV is not None:
        flags |= {"env": parsed.ENV, "env_file": flags.get("env_file")}  # the file's belongs to its own env
    env = flags.get("env", in_file.get("env"))
    if env is None:
        parser.error(_env_missing(flags, parser.prog))
    if "algo" in flags:
        flags["algo"] = algo
    check_algorithm(parser, algo)
    tuned = {"env": env, **over_preset(algo, env, in_file), "algo": algo}
    if "env_kwargs" in flags:
        flags["env_kwargs"] = above_preset(algo, env, flags["env_kwargs"])
    if file is not None and _is_own_file(in_file.get("run_dir"), file):
        del tuned["run_dir"]
    pickled = flags.get("env_file", in_file.get("env_file")) is not None
    if pickled and {"env_kwargs", "wrappers", *OF_AGENTS} & set(flags):
        parser.error(
            "--env-kwargs, --wrapper, --agent-id, --pad-spaces and --policy cannot change the pickled environment of "
            "--config"
        )
    config = _record(parser, TrainerConfig, flags, tuned, file, TRAINER)
    record: Any = ALGORITHMS[algo]
    given = given_flags(parsed, record, f"{algo}.")
    rest = {**option_values(record.preset(env)), **tables.get(algo, {})}
    algorithm = _record(parser, record, given, rest, file, algo)
    if file is not None and algo == in_file.get("algo"):
        algorithm = _with_own_functions(parser, algorithm, file.parent, given)
    return parsed, config, algorithm, "run_dir" in flags or "run_dir" in tuned


def _env_missing(flags: Mapping[str, Any], command: str) -> str:
    """Message for a command line without an environment, which a flag of several values may have taken as one."""
    for name, value in flags.items():
        if isinstance(value, list) and any(":" not in text for text in value):
            return f"ENV is missing, write it before {flag_of(name)}"
    return f"ENV is missing, for example: {command} CartPole-v1 --algo dqn"


def _with_own_functions(parser: Parser, algorithm: Any, run: Path, given: Container[str]) -> Any:
    """Add the network and schedules that a run was given in Python, except those in `given`.

    Unpickles them. Raises `ConfigurationError` if one was not kept (ASYNC017); exits with code 2 if the record refuses
    one beside its other options.
    """
    if not any((run / name).exists() for name in ("network.pkl", "functions.pkl")):
        return algorithm
    from asyncrl.storage.run_files import functions_of_run, network_of_run

    own: dict[str, Any] = dict(functions_of_run(run, given))
    if "network" not in given and (network := network_of_run(run)) is not None:
        own["network"] = network
    try:
        return dataclasses.replace(algorithm, **own)
    except ValueError as error:
        parser.error(str(error))


def _is_own_file(run_dir: str | None, file: Path) -> bool:
    """Whether `file` is the `config.toml` of the run in `run_dir`. Training again needs another directory then."""
    return run_dir is not None and Path(run_dir).expanduser().resolve() == file.resolve().parent


def _record(
    parser: Parser, record: type, flags: dict[str, Any], rest: dict[str, Any], file: Path | None, table: str
) -> Any:
    # First check the file alone, so that an error in it names the file and not a flag.
    if file is not None:
        make_record(record, rest, file=file, path=table)
    return merged(parser, record, flags, rest, prefix="" if table == TRAINER else f"{table}.")


def run(options: tuple[TrainerConfig, Algorithm] | SeedOptions, server: ForkServer) -> int:
    """Train; returns the exit code. Raises the error that ended the run."""
    if isinstance(options, SeedOptions):
        server.close()  # every run has its own
        return _run_seeds(options)
    config, algorithm = options
    if config.run_dir is not None and os.environ.get("RANK", "0") == "0":
        config = dataclasses.replace(config, run_dir=str(claim(Path(config.run_dir))))
    with Interrupts() as interrupts:  # before the imports, the longest part of the start
        try:
            from asyncrl.cli.training import train

            return train(config, algorithm, server, interrupts)
        except (UserError, StoppedWhileStarting):
            if config.run_dir is not None:
                remove_if_never_trained(Path(config.run_dir))
            raise
        except ValueError as error:  # a rule that is checked when the run is built: a pace that deadlocks
            return reported_as_usage(error, "train", algorithm.name)
        finally:
            if config.run_dir is not None:
                remove_if_empty(Path(config.run_dir))


def _run_seeds(options: SeedOptions) -> int:
    folders = {seed: None if folder is None else claim(folder) for seed, folder in options.folders.items()}
    options = dataclasses.replace(options, folders=folders)
    with Interrupts() as interrupts:
        try:
            from asyncrl.cli.seeds import train_seeds

            return train_seeds(
                options.config, options.algorithm, options.folders, options.at_once, interrupts
            )
        except (UserError, ValueError) as error:
            for folder in options.folders.values():
                if folder is not None:
                    remove_if_never_trained(folder)
            if isinstance(error, UserError):
                raise
            return reported_as_usage(error, "train", options.algorithm.name)
        finally:
            for folder in filter(None, options.folders.values()):
                remove_if_empty(folder)
