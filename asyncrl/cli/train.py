"""`asyncrl train`: flags, and the option records made from flags, a file and presets.

An option's value comes from its flag, else from the file of `--config`, else from the preset for the environment, else
from the record's default.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncrl.algorithms import ALGORITHMS, preset_options
from asyncrl.algorithms.registry import algorithm_name, imported_algorithm
from asyncrl.cli.flags import Parser, given_flags, merged
from asyncrl.cli.interrupts import Interrupts
from asyncrl.cli.run_name import new_run_dir, remove_if_never_trained
from asyncrl.cli.train_flags import (
    algorithms_named,
    check_algorithm,
    last_value,
    make_parser,
    reported_as_usage,
)
from asyncrl.config import TrainerConfig
from asyncrl.errors import UserError
from asyncrl.options import option_values
from asyncrl.protocols import Algorithm
from asyncrl.storage.config_file import TRAINER, make_record, read_config

if TYPE_CHECKING:
    from asyncrl.actors.forkserver import ForkServer


def parse(arguments: Sequence[str]) -> tuple[TrainerConfig, Algorithm]:
    """Make the records of a run from the arguments of `asyncrl train`.

    Raises:
        SystemExit: with code 2, for a wrong flag or value.
        ConfigurationError: the file of `--config` is wrong (ASYNC017).
    """
    given_algorithm = imported_algorithm(last_value(arguments, "--algo") or "")
    if {"-h", "--help"} & set(arguments):
        make_parser(algorithms_named([*arguments, given_algorithm])).print_help()
        raise SystemExit(0)
    given_file = last_value(arguments, "--config")
    file = Path(given_file).expanduser() if given_file else None
    tables = read_config(file, ALGORITHMS) if file is not None else {}
    in_file = tables.get(TRAINER, {})
    algo = algorithm_name(given_algorithm or in_file.get("algo", ""))
    parser = make_parser([algo] if algo in ALGORITHMS else [])
    parsed = parser.parse_exactly(arguments)
    flags = given_flags(parsed, TrainerConfig)
    if parsed.ENV is not None:
        flags |= {"env": parsed.ENV, "env_file": flags.get("env_file")}  # the file's belongs to its own env
    env = flags.get("env", in_file.get("env"))
    if env is None:
        parser.error(_env_missing(flags.get("env_kwargs", ())))
    if "algo" in flags:
        flags["algo"] = algo
    check_algorithm(parser, algo)
    tuned = {"env": env, **preset_options(algo, env), **in_file, "algo": algo}
    if file is not None and _is_own_file(in_file.get("run_dir"), file):
        del tuned["run_dir"]
    pickled = flags.get("env_file", in_file.get("env_file")) is not None
    if pickled and {"env_kwargs", "wrappers", "agent_id", "pad_spaces"} & set(flags):
        parser.error(
            "--env-kwargs, --wrapper, --agent-id and --pad-spaces cannot change the pickled environment of --config"
        )
    config = _record(parser, TrainerConfig, flags, tuned, file, TRAINER)
    if "run_dir" not in flags and "run_dir" not in tuned:
        config = dataclasses.replace(config, run_dir=new_run_dir(env, algo, config.seed))
    record: Any = ALGORITHMS[algo]
    given = given_flags(parsed, record, f"{algo}.")
    rest = {**option_values(record.preset(env)), **tables.get(algo, {})}
    algorithm = _record(parser, record, given, rest, file, algo)
    if file is not None and algo == in_file.get("algo"):
        algorithm = _with_own_functions(algorithm, file.parent, given)
    return config, algorithm


def _env_missing(env_kwargs: Iterable[str]) -> str:
    """Message for a command line without an environment, which `--env-kwargs` may have taken as a value."""
    if any(":" not in text for text in env_kwargs):
        return "ENV is missing, write it before --env-kwargs"
    return "ENV is missing, for example: asyncrl train CartPole-v1 --algo dqn"


def _with_own_functions(algorithm: Any, run: Path, given: Container[str]) -> Any:
    """Add the network and schedules that a run was given in Python, except those in `given`.

    Unpickles them. Raises `ConfigurationError` if one was not kept (ASYNC017).
    """
    if not any((run / name).exists() for name in ("network.pkl", "functions.pkl")):
        return algorithm
    from asyncrl.storage.run_files import functions_of_run, network_of_run

    own: dict[str, Any] = dict(functions_of_run(run, given))
    if "network" not in given and (network := network_of_run(run)) is not None:
        own["network"] = network
    return dataclasses.replace(algorithm, **own)


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


def run(options: tuple[TrainerConfig, Algorithm], server: ForkServer) -> int:
    """Train; returns the exit code. Raises the error that ended the run."""
    config, algorithm = options
    with Interrupts() as interrupts:  # before the imports, the longest part of the start
        from asyncrl.cli.training import train

        try:
            return train(config, algorithm, server, interrupts)
        except UserError:
            if config.run_dir is not None:
                remove_if_never_trained(Path(config.run_dir))
            raise
        except ValueError as error:  # a rule that is checked when the run is built: a pace that deadlocks
            return reported_as_usage(error, "train", algorithm.name)
