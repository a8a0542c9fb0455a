"""Files of a run made with a factory, and loading it from them."""

from __future__ import annotations

import copy
import errno
import os
import pickle
import shutil
import stat
import tomllib
from pathlib import Path

import gymnasium
import pytest

from asyncrl import DQN, Trainer
from asyncrl.algorithms import ALGORITHMS
from asyncrl.config import TrainerConfig
from asyncrl.envs.source import EnvSource, describe
from asyncrl.errors import ConfigurationError, FilesNotWritten
from asyncrl.storage.config_file import TRAINER, make_record, read_config
from asyncrl.storage.run_directory import RunDirectory, refuse_unwritable
from asyncrl.storage.run_files import (
    cut_metrics,
    environment_of_run,
    functions_of_run,
    network_of_run,
    write_run_files,
)


class Marker:
    """Object whose unpickling makes a directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> object:
        return os.mkdir, (str(self.path),)


def keep(path: Path, env: object, algorithm: DQN | None = None) -> TrainerConfig:
    """Write the files of a run; returns the options in its config.toml."""
    source = EnvSource.from_user(env)  # type: ignore[arg-type]
    directory = RunDirectory(path)
    try:
        config = TrainerConfig(env=source.name, algo="dqn")
        write_run_files(directory, config, algorithm or DQN(), source)
    finally:
        directory.close()
    tables = read_config(path / "config.toml", ALGORITHMS)
    return make_record(TrainerConfig, tables[TRAINER], file=path / "config.toml", path=TRAINER)


def test_a_directory_that_is_deleted_before_training_is_told_of(tmp_path: Path) -> None:
    """The error had no more to say than `run_dir cannot be written: None`."""
    directory = RunDirectory(tmp_path / "run")
    shutil.rmtree(tmp_path / "run")
    with (
        pytest.warns(FilesNotWritten),
        pytest.raises(ConfigurationError, match=r"run_dir cannot be written: .* was deleted or moved"),
        refuse_unwritable(tmp_path / "run"),
    ):
        directory.write_text("config.toml", "")
    directory.close()


def test_a_factory_is_kept_named_and_built_again(tmp_path: Path) -> None:
    length = 0.25
    config = keep(tmp_path, lambda: gymnasium.make("Pendulum-v1", g=length))
    text = tomllib.loads((tmp_path / "config.toml").read_text())
    assert text["trainer"]["env_file"] == "environment.pkl"
    assert config.env_file == str(tmp_path / "environment.pkl")
    env = environment_of_run(tmp_path, config.env).build()
    assert env.unwrapped.g == length  # type: ignore[union-attr]
    trainer = Trainer.from_config(config, DQN())
    assert describe(trainer.job.source).observation_shape == (3,)
    trainer.close()


def test_a_registered_spec_is_kept_too(tmp_path: Path) -> None:
    spec = copy.copy(gymnasium.spec("CartPole-v1"))  # that of the registry stays as it is
    spec.kwargs = {"sutton_barto_reward": True}
    config = keep(tmp_path, spec)
    env = environment_of_run(tmp_path, config.env).build()
    assert env.unwrapped._sutton_barto_reward is True  # type: ignore[union-attr]


def test_a_plain_id_needs_no_pickle(tmp_path: Path) -> None:
    config = keep(tmp_path, "CartPole-v1")
    assert config.env_file is None
    assert not list(tmp_path.glob("*.pkl"))
    assert environment_of_run(tmp_path, "CartPole-v1").kind == "id"
    assert network_of_run(tmp_path) is None


def test_a_network_is_kept(tmp_path: Path) -> None:
    keep(tmp_path, "CartPole-v1", DQN(network=lambda inputs, outputs: (inputs, outputs)))
    network = network_of_run(tmp_path)
    assert network is not None
    assert network(4, 2) == (4, 2)


def test_a_function_that_a_number_replaces_in_a_resumed_run_is_not_kept(tmp_path: Path) -> None:
    keep(tmp_path, "CartPole-v1", DQN(learning_rate=lambda left: 1e-3 * left))
    assert functions_of_run(tmp_path)["learning_rate"](0.5) == 5e-4
    keep(tmp_path, "CartPole-v1", DQN(learning_rate=1e-4))
    assert functions_of_run(tmp_path) == {}, (
        "the run that goes on once more would get it in place of the number"
    )


def test_nothing_is_unpickled_before_the_environment_is_built(tmp_path: Path) -> None:
    keep(tmp_path, lambda: gymnasium.make("CartPole-v1"))
    made = tmp_path / "made"
    (tmp_path / "environment.pkl").write_bytes(pickle.dumps(Marker(made)))
    config = read_config(tmp_path / "config.toml", ALGORITHMS)
    source = environment_of_run(tmp_path, config[TRAINER]["env"])
    assert not made.exists()
    with pytest.raises(Exception, match="is not callable"):
        source.build()
    assert made.exists()


def test_a_missing_or_wrong_file_is_named(tmp_path: Path) -> None:
    config = keep(tmp_path, lambda: gymnasium.make("CartPole-v1"))
    (tmp_path / "environment.pkl").unlink()
    with pytest.raises(ConfigurationError, match=r"environment\.pkl"):
        Trainer.from_config(config, DQN())
    (tmp_path / "network.pkl").write_bytes(b"no pickle")
    with pytest.raises(ConfigurationError, match=r"network\.pkl"):
        network_of_run(tmp_path)


def test_a_trainer_takes_the_environment_and_not_its_file() -> None:
    with pytest.raises(TypeError, match="env_file"):
        Trainer("CartPole-v1", DQN(), env_file="x")


def test_a_file_with_a_secret_is_the_owners_alone_from_the_beginning(tmp_path: Path) -> None:
    directory, path = RunDirectory(tmp_path), tmp_path / "http.json"
    path.write_text("older, and readable by all")
    path.chmod(0o666)
    before = os.umask(0)
    try:
        directory.write_bytes(path.name, b"secret", mode=0o600)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and path.read_bytes() == b"secret"
    directory.close()


@pytest.mark.parametrize(
    "damaged", ['{"time/total_timesteps":"x"}', '{"eval/total_timesteps":[1]}', "[" * 9999, "3"]
)
def test_a_damaged_line_of_the_metrics_is_set_aside_when_a_run_goes_on(tmp_path: Path, damaged: str) -> None:
    kept = ['{"time/total_timesteps":100}\n', '{"eval/total_timesteps":null,"mine":1}\n']
    (tmp_path / "metrics.jsonl").write_text(f"{kept[0]}{damaged}\n{kept[1]}")
    cut_metrics(tmp_path, 100, 0)
    assert (tmp_path / "metrics.jsonl").read_text() == "".join(kept)
    assert (tmp_path / "metrics_lost.jsonl").read_text() == f"{damaged}\n"


def test_a_full_disk_removes_nothing_of_a_run_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = keep(tmp_path, "CartPole-v1")
    (tmp_path / "summary.json").write_text("{}")

    def full(directory: RunDirectory, name: str, value: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(RunDirectory, "write_json", full)
    directory = RunDirectory(tmp_path, goes_on=True)
    with pytest.raises(OSError, match="No space left"):
        write_run_files(
            directory, config, DQN(), EnvSource.from_user("CartPole-v1"), {"env_steps": 0, "evaluated": 0}
        )
    directory.close()
    assert (tmp_path / "summary.json").exists()


def test_a_full_disk_does_not_keep_the_directory_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    directory = RunDirectory(tmp_path)
    with pytest.raises(ConfigurationError, match="run_dir is in use by a run that goes on"):
        RunDirectory(tmp_path)
    directory.close()
    RunDirectory(tmp_path).close()
