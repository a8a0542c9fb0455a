"""Files that say what a run is, written before it trains: options, machine, and the code that only pickles can keep.

    config.toml       every option
    meta.json         versions, command, seed, machine; `resumed` has the same of every time that the run went on
    environment.pkl   the cloudpickled factory or gymnasium spec, where the environment is no plain id; `env_file` in
                      `config.toml` names it
    network.pkl       the cloudpickled factory `network` of the algorithm's record, where it has one
    functions.pkl     its other functions by name (a learning rate of progress), None for one that does not pickle

A pickle is a program: whoever unpickles it runs it. These are unpickled only where the run's environment, network or
functions are used again, by a command or a call that names the run directory, so use a directory that somebody else has
made only if you would run that person's scripts too. The environment is unpickled in the processes that step it.
"""

from __future__ import annotations

import dataclasses
import json
import pickle
import warnings
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any, Protocol

from asyncrl.acting.modules import NetworkFactory
from asyncrl.config import TrainerConfig
from asyncrl.envs.factory_pickle import pack_functions, pack_network
from asyncrl.envs.source import EnvSource
from asyncrl.errors import ConfigurationError, FactoryNotPicklable, OptionNotKept, error_text
from asyncrl.options import FunctionOfProgress, functions_of
from asyncrl.protocols import Algorithm
from asyncrl.storage.config_file import dump_config, read_trainer
from asyncrl.storage.metric_files import cut_metrics
from asyncrl.storage.run_directory import RunDirectory, describe_run

ENVIRONMENT = "environment.pkl"
NETWORK = "network.pkl"
FUNCTIONS = "functions.pkl"


class Origin(Protocol):
    """What a run goes on from."""

    def record(self) -> dict[str, Any]:
        """What `meta.json` says of it: `checkpoint`, its `env_steps`, and more."""
        ...


def write_run_files(
    directory: RunDirectory,
    config: TrainerConfig,
    algorithm: Algorithm,
    source: EnvSource,
    resumed: Origin | None = None,
) -> None:
    """Write all of them; of a run that goes on, `resumed` says from where. Raises OSError where one cannot be written.

    The metric files of a run that goes on keep the entries up to its checkpoint.
    """
    network = getattr(algorithm, "own_network", None)
    if network is not None:
        directory.write_bytes(NETWORK, pack_network(network))
    functions = {name: made for name, made in functions_of(algorithm).items() if name != "network"}
    if functions and directory.path is not None:
        directory.write_bytes(FUNCTIONS, pack_functions(_that_pickle(functions)))
    pickled = source.kind in ("spec", "factory")
    if pickled:
        directory.write_bytes(ENVIRONMENT, source.payload)
    # The file may be copied, and be trained from again: where it lies is not one of the run's options.
    config = dataclasses.replace(config, env_file=ENVIRONMENT if pickled else None, run_dir=None)
    directory.write_text("config.toml", dump_config(config, algorithm))
    described = describe_run(config.seed)
    if resumed is not None and directory.path is not None:
        origin = resumed.record()
        described = _described_again(directory.path / "meta.json", {**described, **origin})
        cut_metrics(directory.path, origin["env_steps"], origin["pending"])
    directory.write_json("meta.json", described)


def _that_pickle(functions: Mapping[str, FunctionOfProgress]) -> dict[str, FunctionOfProgress | None]:
    """The same with None, and a warning, for each that does not pickle: training does not need that, resuming does."""
    kept: dict[str, FunctionOfProgress | None] = dict(functions)
    for name, function in functions.items():
        try:
            pack_functions({name: function})
        except FactoryNotPicklable as error:
            kept[name] = None
            text = f"[ASYNC046] {name} is a function that cannot be kept: {error.facts['object']} does not pickle"
            where = str(error.facts["captured"]).partition(" -> ")[2]
            again = f"the run trains with it, and is resumed only with {name} given again"
            warnings.warn(OptionNotKept(f"{text} ({where}); {again}"), stacklevel=2)
    return kept


def _described_again(file: Path, resumed: dict[str, Any]) -> dict[str, Any]:
    """The content of `meta.json` with another entry of `resumed`, which says when, where and from what."""
    try:
        before = json.loads(file.read_text(encoding="utf-8"))
        return {**before, "resumed": [*before.get("resumed", []), resumed]}
    except (OSError, ValueError, AttributeError, TypeError):  # written by nobody, or by somebody else
        return {**resumed, "resumed": [resumed]}


def environment_of_run(run: Path, name: str) -> EnvSource:
    """The environment `name` of a run: its pickle where the directory has one, else the id. Unpickles nothing.

    The pickle has the run's keyword arguments and wrappers within it; an id takes them from `config.toml`.

    Raises:
        ConfigurationError: `config.toml` cannot be read (ASYNC017).
    """
    file, config = run / ENVIRONMENT, run / "config.toml"
    if file.exists():
        return EnvSource.from_file(name, file)
    options = read_trainer(config) if config.exists() else {}
    return EnvSource.from_user(name).changed(options.get("env_kwargs", {}), options.get("wrappers", ()))


def network_of_run(run: Path) -> NetworkFactory | None:
    """The network factory of a run, None where its networks are perceptrons. Unpickles it, which runs its code.

    Raises:
        ConfigurationError: the file cannot be read or unpickled (ASYNC017).
    """
    file = run / NETWORK
    if not file.exists():
        return None
    try:
        return unpickled_network(file.read_bytes())
    except Exception as error:
        raise ConfigurationError(
            f"the network of the run cannot be unpickled: {type(error).__name__}: {error_text(error)}",
            facts={"file": file},
            fix="put the modules that it was defined with on sys.path",
        ) from error


def functions_of_run(run: Path, given: Container[str] = ()) -> dict[str, FunctionOfProgress]:
    """Options of a run's algorithm that are functions of progress, by name. Unpickles them, which runs their code.

    Args:
        run: directory of the run.
        given: names of options that are given anew, and left out.

    Raises:
        ConfigurationError: the file cannot be read or unpickled, or one did not pickle (ASYNC017).
    """
    file = run / FUNCTIONS
    if not file.exists():
        return {}
    try:
        functions: dict[str, FunctionOfProgress | None] = pickle.loads(file.read_bytes())
    except Exception as error:
        raise ConfigurationError(
            f"the functions of the run cannot be unpickled: {type(error).__name__}: {error_text(error)}",
            facts={"file": file},
            fix="put the modules that they were defined with on sys.path",
        ) from error
    kept = {name: function for name, function in functions.items() if name not in given}
    for name, function in kept.items():
        if function is None:
            raise ConfigurationError(
                f"{name} of the run was a function that did not pickle, so it is not kept",
                facts={"run": run},
                fix=f"give it again: Trainer.resume(run, {name}=...); on the command line a number",
            )
    return {name: function for name, function in kept.items() if function is not None}


def unpickled_network(data: bytes) -> NetworkFactory:
    """The factory in a pickle, whose code this runs. Raises whatever the pickle raises."""
    network: Any = pickle.loads(data)
    if not callable(network):
        raise TypeError(f"it holds {type(network).__name__}, not a function of inputs and outputs")
    made: NetworkFactory = network
    return made
