"""Files that say what a run is, written before it trains: options, machine, and the code that only pickles can keep.

    config.toml       every option
    meta.json         versions, command, seed, machine
    environment.pkl   the cloudpickled factory or gymnasium spec, where the environment is no plain id; `env_file` in
                      `config.toml` names it
    network.pkl       the cloudpickled factory `network` of the algorithm's record, where it has one

A pickle is a program: whoever unpickles it runs it. The last two are unpickled only where the run's environment or
network is used again, by a command or a call that names the run directory, so use a directory that somebody else has
made only if you would run that person's scripts too. The environment is unpickled in the processes that step it.
"""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path
from typing import Any

from asyncrl.acting.modules import NetworkFactory
from asyncrl.envs.factory_pickle import pack_network
from asyncrl.envs.source import EnvSource
from asyncrl.errors import ConfigurationError, error_text
from asyncrl.protocols import Algorithm
from asyncrl.run.config import TrainerConfig
from asyncrl.run.config_file import dump_config, read_trainer
from asyncrl.run.run_directory import RunDirectory, describe_run

ENVIRONMENT = "environment.pkl"
NETWORK = "network.pkl"


def write_run_files(
    directory: RunDirectory, config: TrainerConfig, algorithm: Algorithm, source: EnvSource
) -> None:
    """Write all of them. Raises OSError where one cannot be written."""
    network = getattr(algorithm, "own_network", None)
    if network is not None:
        directory.write_bytes(NETWORK, pack_network(network))
    pickled = source.kind in ("spec", "factory")
    if pickled:
        directory.write_bytes(ENVIRONMENT, source.payload)
    config = dataclasses.replace(config, env_file=ENVIRONMENT if pickled else None)
    directory.write_text("config.toml", dump_config(config, algorithm))
    directory.write_json("meta.json", describe_run(config.seed))


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


def unpickled_network(data: bytes) -> NetworkFactory:
    """The factory in a pickle, whose code this runs. Raises whatever the pickle raises."""
    network: Any = pickle.loads(data)
    if not callable(network):
        raise TypeError(f"it holds {type(network).__name__}, not a function of inputs and outputs")
    made: NetworkFactory = network
    return made
