"""Files that describe a run, written before it trains: options, machine, and pickles of its code.

    config.toml       every option
    meta.json         versions, command, seed, machine; `resumed` has the same for every time the run was resumed
    environment.pkl   the cloudpickled factory or gymnasium spec, if the environment is not a plain id; `env_file` in
                      `config.toml` names it
    network.pkl       the cloudpickled factory `network` of the algorithm's record, if it has one
    functions.pkl     its other functions by name (a learning rate of progress), None for one that does not pickle

Unpickling a file runs its code. These files are unpickled only to use the run's environment, network or functions
again, by a command or a call that names the run directory. Use a directory made by somebody else only if you would also
run that person's scripts. The environment is unpickled in the processes that step it.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import io
import json
import math
import os
import pickle
from collections.abc import Callable, Container, Iterator, Mapping
from pathlib import Path
from typing import Any

from asyncrl.acting.modules import NetworkFactory
from asyncrl.config import OF_AGENTS, TrainerConfig
from asyncrl.envs.factory_pickle import pack_functions, pack_network
from asyncrl.envs.source import EnvSource
from asyncrl.errors import ConfigurationError, FactoryNotPicklable, OptionNotKept, describe_error, warn
from asyncrl.options import FunctionOfProgress, functions_of
from asyncrl.protocols import Algorithm
from asyncrl.storage.atomic_file import write_atomically
from asyncrl.storage.config_file import dump_config, read_trainer
from asyncrl.storage.run_directory import RunDirectory, describe_run

ENVIRONMENT = "environment.pkl"
EVALUATION_ENVIRONMENT = "evaluation_environment.pkl"
NETWORK = "network.pkl"
FUNCTIONS = "functions.pkl"
JSONL, CSV, LOST = "metrics.jsonl", "progress.csv", "metrics_lost.jsonl"
STEPS = ("time/total_timesteps", "eval/total_timesteps")
"""Names of the environment steps in a report and in an evaluation."""


def write_run_files(
    directory: RunDirectory,
    config: TrainerConfig,
    algorithm: Algorithm,
    source: EnvSource,
    resumed: Mapping[str, Any] | None = None,
) -> None:
    """Write all of these files. Raises OSError if one cannot be written.

    With `resumed`, the `Resumption.record` of a resumed run, the metric files keep only entries up to its checkpoint,
    and the summary of its last end is removed: last, as both stay on a full disk. Without it a killed run is known as
    killed.
    """
    made = option_files(config, algorithm, source) if directory.path is not None else {}
    for name, data in made.items():
        directory.write_bytes(name, data)
    if FUNCTIONS not in made:
        directory.remove(FUNCTIONS)  # a number may have replaced a function of the run that is resumed
    described = describe_run(config.seed)
    if resumed is None or directory.path is None:
        directory.write_json("meta.json", described)
        return
    again = _described_again(directory.path / "meta.json", {**described, **resumed})
    directory.write_json("meta.json", again)
    directory.remove("summary.json")
    cut_metrics(directory.path, resumed["env_steps"], resumed["evaluated"])


def option_files(
    config: TrainerConfig, algorithm: Algorithm, source: EnvSource, name: str = "config.toml"
) -> dict[str, bytes]:
    """All that says what a run trains, by the names of its files: the pickles, and every option in file `name`.

    Options do not hold the run's own directory, so that the files may be copied and used for another run. A resumed run
    reads its data again, maybe from another working directory.
    """
    made: dict[str, bytes] = {}
    if (network := getattr(algorithm, "own_network", None)) is not None:
        made[NETWORK] = pack_network(network)
    if functions := {own: function for own, function in functions_of(algorithm).items() if own != "network"}:
        made[FUNCTIONS] = pack_functions(_that_pickle(functions))
    for file, own in ((ENVIRONMENT, source), (EVALUATION_ENVIRONMENT, source.evaluated)):
        if own is not None and own.kind in ("spec", "factory"):
            made[file] = own.payload
    changed: dict[str, Any] = {
        option: os.path.abspath(path)
        for option in ("dataset", "demonstrations")
        if (path := getattr(config, option))
    }
    changed |= {
        option: file if file in made else None
        for option, file in (("env_file", ENVIRONMENT), ("eval_env_file", EVALUATION_ENVIRONMENT))
    }
    config = dataclasses.replace(config, run_dir=None, **changed)
    return made | {name: dump_config(config, algorithm).encode()}


def _that_pickle(functions: Mapping[str, FunctionOfProgress]) -> dict[str, FunctionOfProgress | None]:
    """Replace each function that does not pickle by None, with a warning: only a resumed run needs the pickle."""
    kept: dict[str, FunctionOfProgress | None] = dict(functions)
    for name, function in functions.items():
        try:
            pack_functions({name: function})
        except FactoryNotPicklable as error:
            kept[name] = None
            text = f"[ASYNC046] {name} is a function that cannot be kept: {error.facts['object']} does not pickle"
            where = str(error.facts["captured"]).partition(" -> ")[2]
            again = f"the run trains with it, and is resumed only with {name} given again"
            warn(OptionNotKept(f"{text} ({where}); {again}"))
    return kept


def _described_again(file: Path, resumed: dict[str, Any]) -> dict[str, Any]:
    """Content of `meta.json` with another entry in `resumed`: time, machine and checkpoint."""
    try:
        before = json.loads(file.read_text(encoding="utf-8"))
        return {**before, "resumed": [*before.get("resumed", []), resumed]}
    except (OSError, ValueError, AttributeError, TypeError):  # missing, or not written by asyncrl
        return {**resumed, "resumed": [resumed]}


def cut_metrics(directory: Path, env_steps: int, evaluated: int) -> None:
    """Keep the entries of the metric files up to the checkpoint of a resumed run. Raises OSError.

    These are reports up to `env_steps`, and evaluations up to the checkpoint's last one, of the weights at `evaluated`.

    A killed run has reported steps after its last checkpoint, which the resumed run makes and reports again. The
    removed lines of `metrics.jsonl` are appended to `metrics_lost.jsonl`; TensorBoard gets another event file. Also
    removes lines that a kill has truncated.
    """
    kept, lost = _split_at_checkpoint(_lines_of(directory / JSONL), _of_json, env_steps, evaluated)
    if lost:
        with (directory / LOST).open("a", encoding="utf-8") as file:
            file.writelines(lost)
        _replace_lines(directory / JSONL, kept)
    lines = _lines_of(directory / CSV)
    header = next(csv.reader(lines[:1]), [])
    kept, lost = _split_at_checkpoint(lines[1:], lambda line: _of_csv(header, line), env_steps, evaluated)
    if lost:
        _replace_lines(directory / CSV, lines[:1] + kept)


def _split_at_checkpoint(
    lines: list[str], parse: Callable[[str], dict[str, Any] | None], env_steps: int, evaluated: int
) -> tuple[list[str], list[str]]:
    """Split lines into those up to the checkpoint and the others."""
    kept: list[str] = []
    lost: list[str] = []
    for line in lines:
        entry = parse(line)
        report, copied = (entry.get(name) for name in STEPS) if entry is not None else (math.inf, None)
        belongs = (report or 0) <= env_steps and (copied or 0) <= evaluated
        (kept if belongs else lost).append(line if line.endswith("\n") else line + "\n")
    return kept, lost


def _of_json(line: str) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    damaged = not isinstance(entry, dict) or any(
        not isinstance(entry.get(name) or 0, int | float) for name in STEPS
    )
    return None if damaged else entry


def _of_csv(header: list[str], line: str) -> dict[str, Any] | None:
    cells = next(csv.reader(io.StringIO(line)), [])
    if len(cells) != len(header) or not line.endswith("\n"):
        return None
    try:
        return {name: float(cell) for name, cell in zip(header, cells, strict=True) if cell}
    except ValueError:
        return None


def _lines_of(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    except FileNotFoundError:
        return []


def _replace_lines(file: Path, lines: list[str]) -> None:
    write_atomically(file, (line.encode() for line in lines), durable=False)


def environment_of_run(run: Path, name: str) -> EnvSource:
    """Environment `name` of a run: its pickle if the directory has one, else the id. Unpickles nothing.

    The pickle includes the run's keyword arguments and wrappers; for an id they are read from `config.toml`.

    Raises:
        ConfigurationError: `config.toml` cannot be read (ASYNC017).
    """
    file, config = run / ENVIRONMENT, run / "config.toml"
    if file.exists():
        return EnvSource.from_file(name, file)
    options = read_trainer(config) if config.exists() else {}
    chosen = {option: options[option] for option in OF_AGENTS if option in options}
    source = EnvSource.from_user(name)
    return source.changed(options.get("env_kwargs", {}), options.get("wrappers", ()), **chosen)


def evaluations_of_run(
    run: Path, source: EnvSource, env_kwargs: Mapping[str, Any]
) -> tuple[EnvSource, int | None, bool]:
    """Return `source`, the environment of a run, with those that its evaluations play, and how they are played.

    That is `eval_max_episode_steps` and `eval_deterministic`. Unpickles nothing.

    Args:
        run: its directory.
        source: its environment.
        env_kwargs: keyword arguments over those of the run, in all these environments.

    Raises:
        ConfigurationError: `config.toml` cannot be read, or a level sets one of `env_kwargs` to another value
            (ASYNC017): with one value for all, levels would no longer differ.
    """
    options = read_trainer(run / "config.toml")
    name, evaluation = options.get("eval_env"), None
    if name is not None and options.get("eval_env_file") is not None:
        evaluation = EnvSource.from_file(name, run / EVALUATION_ENVIRONMENT)
    elif name is not None:
        chosen = {option: options[option] for option in OF_AGENTS if option in options}
        evaluation = EnvSource.from_user(name).changed({}, options.get("wrappers", ()), **chosen)
    kwargs, levels = options.get("eval_env_kwargs", {}), options.get("eval_levels", {})
    _refuse_other_values(levels, env_kwargs)
    source = source.evaluated_in(evaluation, kwargs, levels).with_arguments(env_kwargs)
    return source, options.get("eval_max_episode_steps"), options.get("eval_deterministic", True)


def _refuse_other_values(levels: Mapping[str, Mapping[str, Any]], env_kwargs: Mapping[str, Any]) -> None:
    for level, own in levels.items():
        for name, value in env_kwargs.items():
            if name in own and own[name] != value:
                raise ConfigurationError(
                    f"env_kwargs must leave {name} to the levels of the run's evaluations: "
                    f"level {level} sets it to {own[name]!r}, got {value!r}",
                    fix=f"leave it out, or play an environment without levels: --env NAME --env-kwargs {name}:{value}",
                )


def network_of_run(run: Path) -> NetworkFactory | None:
    """Network factory of a run, None if it has none of its own. Unpickles it, which runs its code.

    Raises:
        ConfigurationError: the file cannot be read or unpickled (ASYNC017).
    """
    file = run / NETWORK
    if not file.exists():
        return None
    with _error_of_pickle(file, "the network of the run", "it was"):
        return unpickled_network(file.read_bytes())


def functions_of_run(run: Path, given: Container[str] = ()) -> dict[str, FunctionOfProgress]:
    """Options of a run's algorithm that are functions of progress, by name. Unpickles them, which runs their code.

    Args:
        run: directory of the run.
        given: names of options with a new value, which are left out.

    Raises:
        ConfigurationError: the file cannot be read or unpickled, or a function did not pickle (ASYNC017).
    """
    file = run / FUNCTIONS
    if not file.exists():
        return {}
    with _error_of_pickle(file, "the functions of the run", "they were"):
        functions: dict[str, FunctionOfProgress | None] = pickle.loads(file.read_bytes())
        functions = {name: function for name, function in functions.items() if name not in given}
    for name, function in functions.items():
        if function is None:
            raise ConfigurationError(
                f"{name} of the run was a function that did not pickle, so it is not kept",
                facts={"run": run},
                fix=f"give it again: Trainer.resume(run, {name}=...); a command line takes numbers alone",
            )
    return {name: function for name, function in functions.items() if function is not None}


@contextlib.contextmanager
def _error_of_pickle(file: Path, what: str, they_were: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise ConfigurationError(
            f"{what} cannot be unpickled: {describe_error(error)}",
            facts={"file": file},
            fix=f"put the modules that {they_were} defined with on sys.path",
        ) from error


def unpickled_network(data: bytes) -> NetworkFactory:
    """Unpickle a network factory, which runs its code. Raises whatever the pickle raises; TypeError if not callable."""
    network: Any = pickle.loads(data)
    if not callable(network):
        raise TypeError(f"it holds {type(network).__name__}, not a function of inputs and outputs")
    made: NetworkFactory = network
    return made
