"""Keyword arguments and wrappers of an environment: given as text by name, or as values by pickle."""

from __future__ import annotations

import functools
import json
import pickle
import textwrap
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from gymnasium.wrappers import NormalizeObservation, NormalizeReward, TimeLimit, vector

import asyncrl
from asyncrl.config import TrainerConfig
from asyncrl.envs.source import EnvSource, describe
from asyncrl.errors import ConfigurationError, EnvironmentNotBuilt, UnknownEnvironment
from asyncrl.options import coerce, mapping_from_texts, texts_of_mapping
from asyncrl.storage.config_file import dump_config, read_config, read_trainer
from asyncrl.storage.run_directory import RunDirectory
from asyncrl.storage.run_files import environment_of_run, write_run_files
from asyncrl.trainer.trainer import Trainer

FLAT = "gymnasium.wrappers:FlattenObservation"


class Slow(gymnasium.ActionWrapper[Any, Any, Any]):
    """Wrapper defined in a test module."""

    def action(self, action: Any) -> Any:
        return action


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the module search path, with one module."""
    module = """
        import gymnasium
        import numpy as np

        class Tiny(gymnasium.Env):
            observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
            action_space = gymnasium.spaces.Discrete(2)

            def __init__(self, size=1):
                self.size = size

            def reset(self, *, seed=None, options=None):
                super().reset(seed=seed)
                return np.zeros(3, np.float32), {}

            def step(self, action):
                return np.zeros(3, np.float32), 1.0, False, False, {}

        gymnasium.register("Tiny-v0", entry_point=Tiny)
        not_callable = 3
    """
    (tmp_path / "module_in_folder.py").write_text(textwrap.dedent(module))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("texts", "values"),
    [
        (["gravity:9"], {"gravity": 9}),
        (["a:-1.5", "b:True", "c:None"], {"a": -1.5, "b": True, "c": None}),
        (["mode:human", "range:(0.2, 1.0)"], {"mode": "human", "range": (0.2, 1.0)}),
        (["path:a:b", "names:['x', 'y']"], {"path": "a:b", "names": ["x", "y"]}),
        (
            ["easy.size:4", "hard.size:9", "easy.mode:a.b"],
            {"easy": {"size": 4, "mode": "a.b"}, "hard": {"size": 9}},
        ),
    ],
)
def test_texts_and_mappings(texts: list[str], values: dict[str, Any]) -> None:
    assert mapping_from_texts(texts) == values
    assert mapping_from_texts(texts_of_mapping(values)) == values
    config = TrainerConfig(env="x", algo="dqn", env_kwargs=texts)  # type: ignore[arg-type]
    assert config.env_kwargs == values == TrainerConfig(env="x", algo="dqn", env_kwargs=values).env_kwargs


def test_numbers_of_numpy_are_those_of_python() -> None:
    """As of a curriculum by `np.linspace`."""
    values = {"a": np.float64(0.5), "b": (np.int64(2), [np.bool_(True)]), "c": {"d": np.float32(0.25)}}
    config = TrainerConfig(env="x", algo="dqn", env_kwargs=values)
    assert repr(config.env_kwargs) == "{'a': 0.5, 'b': (2, [True]), 'c': {'d': 0.25}}"
    with pytest.raises(ValueError, match="env_kwargs must be"):
        TrainerConfig(env="x", algo="dqn", env_kwargs={"a": np.arange(3)})


@pytest.mark.parametrize(
    "wrong",
    [
        ["gravity"],
        ["gravity:9", "gravity:8"],
        ["easy.size:4", "easy.size:5"],
        [":9"],
        ["gravity:"],
        ["9:gravity"],
        ["a.:1"],
        [".b:1"],
        ["a.b.c:1"],
        ["a:1", "a.b:2"],
        {"f": max},
        3,
        {"a": float("nan")},
    ],
)
def test_what_is_no_mapping_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="env_kwargs must be key:value pairs of Python literals, got"):
        TrainerConfig(env="x", algo="dqn", env_kwargs=wrong)


def test_the_file_keeps_them(tmp_path: Path) -> None:
    from asyncrl.algorithms import ALGORITHMS, DQN

    kwargs = {"gravity": 9, "range": (0.2, 1.0), "mode": "human", "nothing": None}
    config = TrainerConfig(env="x", algo="dqn", env_kwargs=kwargs, wrappers=(FLAT, "a:B"))
    file = tmp_path / "config.toml"
    file.write_text(dump_config(config, DQN()))
    assert TrainerConfig(**read_config(file, ALGORITHMS)["trainer"]) == config
    assert TrainerConfig(**read_trainer(file)) == config
    assert coerce("wrappers", tuple[str, ...], []) == ()


def test_an_id_takes_them_without_a_pickle() -> None:
    source = EnvSource.from_user("Blackjack-v1").changed({"natural": True}, [])
    assert (source.name, source.kind) == ("Blackjack-v1", "changed")
    assert json.loads(source.payload) == ["Blackjack-v1", ["natural:True"], []]
    env: Any = source.build()
    assert env.unwrapped.natural is True
    flat: Any = EnvSource.from_user("Blackjack-v1").changed({}, [FLAT]).build()
    assert isinstance(flat.observation_space, gymnasium.spaces.Box | gymnasium.spaces.MultiDiscrete)
    source = EnvSource.from_user("Blackjack-v1")
    assert source.changed({}, []) is source


def test_the_first_wrapper_is_the_innermost() -> None:
    env: Any = EnvSource.from_user("CartPole-v1").changed({}, [Slow, FLAT]).build()
    assert isinstance(env, gymnasium.wrappers.FlattenObservation)
    assert isinstance(env.env, Slow)


def test_a_local_wrapper_and_a_factory_travel_as_a_pickle() -> None:
    class Local(Slow):
        pass

    source = EnvSource.from_user("CartPole-v1").changed({}, [Local])
    assert source.kind == "factory"
    assert type(source.build()).__name__ == "Local"

    def make(length: float) -> Any:
        env = gymnasium.make("CartPole-v1")
        env.unwrapped.length = length  # type: ignore[attr-defined]
        return env

    made: Any = EnvSource.from_user(make).changed({"length": 0.25}, []).build()
    assert made.unwrapped.length == 0.25


def test_classes_of_modules_are_environments(in_folder: Path) -> None:
    for name in ("module_in_folder:Tiny", "module_in_folder:Tiny-v0"):
        env: Any = EnvSource.from_user(name).changed({"size": 5}, []).build()
        assert env.unwrapped.size == 5 and env.reset()[0].dtype == np.float32
    with pytest.raises(UnknownEnvironment, match=r"There is no environment module_in_folder:Tinny"):
        EnvSource.from_user("module_in_folder:Tinny").build()
    with pytest.raises(UnknownEnvironment):
        EnvSource.from_user("module_in_folder:not_callable").build()


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("./module_in_folder.py:Tiny", "write module_in_folder:Tiny"),
        ("module_in_folder.py:Tiny", "write module_in_folder:Tiny"),
        ("some/where.py:Tiny", "write some.where:Tiny"),
        ("/some/where.py:Tiny", "write where:Tiny, in the folder of that file"),
        ("module_in_folder", "name a class or a function of the module: module_in_folder:NAME"),
        ("module_in_folder.Tiny", "name a class or a function of the module: module_in_folder:Tiny"),
        ("gymnasium.envs.Tiny", "name a class or a function of the module: gymnasium.envs:Tiny"),
        ("gymnasium.envs", "name a class or a function of the module: gymnasium.envs:NAME"),
        ("mpe2.simple_spread_v3", "name a class or a function of the module: mpe2:simple_spread_v3"),
    ],
)
def test_files_and_modules_in_place_of_an_id_are_answered(in_folder: Path, name: str, fix: str) -> None:
    with pytest.raises(UnknownEnvironment) as unknown:
        EnvSource.from_user(name).build()
    assert unknown.value.fix == fix


def test_a_package_that_raises_hides_no_unknown_name(in_folder: Path) -> None:
    (in_folder / "raising").mkdir()
    (in_folder / "raising" / "__init__.py").write_text("raise RuntimeError('here')")
    with pytest.raises(UnknownEnvironment):
        EnvSource.from_user("raising.inner.Tiny").build()


def test_a_missing_package_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "ale_py", None)
    monkeypatch.delitem(gymnasium.registry, "ALE/Pong-v5", raising=False)  # if another test imported ale_py
    with pytest.raises(UnknownEnvironment) as error:
        EnvSource.from_user("ale_py:ALE/Pong-v5").build()
    assert error.value.fix == 'pip install "asyncrl[atari]"'


def test_mistakes_name_what_to_mend() -> None:
    source = EnvSource.from_user("CartPole-v1")
    with pytest.raises(EnvironmentNotBuilt, match="unexpected keyword argument 'gravty'") as refused:
        source.changed({"gravty": 1}, []).build()
    assert refused.value.fix.startswith("correct env_kwargs (--env-kwargs)")
    with pytest.raises(EnvironmentNotBuilt, match="KeyError") as refused:
        EnvSource.from_user("FrozenLake-v1").changed({"map_name": "5x5"}, []).build()
    assert refused.value.fix.startswith("correct a value of env_kwargs (--env-kwargs)")
    with pytest.raises(UnknownEnvironment) as unknown:
        EnvSource.from_user("envs/mine.py").build()
    assert unknown.value.fix == "name a class or a function of the file: envs.mine:NAME"
    for name, reason in (
        ("gymnasium.wrappers:Flat", "has no attribute 'Flat'"),
        ("no_such_module_at_all:X", "No module named"),
        ("FlattenObservation", "not of the form module:Name"),
        ("", "not of the form module:Name"),
        ("gymnasium:__version__", "cannot be called"),
    ):
        with pytest.raises(ConfigurationError, match=reason):
            source.changed({}, [name]).build()
    with pytest.raises(TypeError, match="wrappers must be 'module:Name' or callable, got 3"):
        source.changed({}, [3])  # type: ignore[list-item]


def broken_inside(env: Any) -> Any:
    return gymnasium.wrappers.TimeLimit(env)  # type: ignore[call-arg]


@pytest.mark.parametrize("env", ["CartPole-v1", CartPoleEnv])
@pytest.mark.parametrize(
    "wrapper", ["gymnasium.wrappers:TimeLimit", gymnasium.wrappers.TimeLimit, functools.partial(TimeLimit)]
)
def test_a_wrapper_that_wants_more_is_told_what_to_write(env: Any, wrapper: Any) -> None:
    with pytest.raises(EnvironmentNotBuilt, match=r"The wrapper .* with an environment alone") as refused:
        EnvSource.from_user(env).changed({}, [wrapper]).build()
    assert "missing 1 required positional argument: 'max_episode_steps'" in refused.value.what
    given = "(env, max_episode_steps=...)"
    assert f"def wrap(env): return TimeLimit{given}" in refused.value.fix.replace("partial", "TimeLimit")
    assert "wrappers=[lambda env:" in refused.value.fix and "--env-kwargs" not in refused.value.fix


def test_an_error_inside_of_a_wrapper_keeps_its_words() -> None:
    with pytest.raises(
        EnvironmentNotBuilt, match="The constructor of CartPole-v1 failed: TypeError"
    ) as refused:
        EnvSource.from_user("CartPole-v1").changed({}, [broken_inside]).build()
    assert "in broken_inside" in str(refused.value.remote_traceback)


# --- normalisation by running statistics --------------------------------------------------------------------------


class Mine(NormalizeReward[Any, Any]):
    """A user's class."""


def clipped(env: Any) -> Any:
    return gymnasium.wrappers.ClipReward(env, -10, 10)


def frozen(env: Any) -> Any:
    env.update_running_mean = False
    return env


def of_vector(kind: Any, *around: Any) -> Any:
    def make() -> Any:
        env: Any = CartPoleEnv()
        for wrapper in around:
            env = wrapper(env)
        return env

    return kind([make] * 2)


OPTION = {
    "NormalizeObservation": "normalize_observations=True (--ppo.normalize-observations)",
    "NormalizeReward": "normalize_rewards=True of PPO",
}
CASES: dict[str, tuple[Any, list[str]]] = {
    "in another": (lambda: clipped(NormalizeReward(CartPoleEnv())), ["NormalizeReward"]),
    "both": (
        lambda: NormalizeReward(NormalizeObservation(CartPoleEnv())),
        ["NormalizeReward", "NormalizeObservation"],
    ),
    "structured": (
        lambda: gymnasium.wrappers.FlattenObservation(NormalizeReward(gymnasium.make("FrozenLake-v1"))),
        ["NormalizeReward"],
    ),
    "derived": (lambda: Mine(CartPoleEnv()), ["NormalizeReward"]),
    "in a vector": (lambda: of_vector(SyncVectorEnv, NormalizeReward), ["NormalizeReward"]),
    "in a vector of processes": (
        lambda: of_vector(AsyncVectorEnv, NormalizeObservation),
        ["NormalizeObservation"],
    ),
    "around a vector": (
        lambda: vector.ClipReward(vector.NormalizeReward(of_vector(SyncVectorEnv)), -1, 1),
        ["NormalizeReward"],
    ),
    "observations of a vector": (
        lambda: vector.NormalizeObservation(of_vector(SyncVectorEnv)),
        ["NormalizeObservation"],
    ),
}


def require_refusal(source: EnvSource, named: list[str]) -> ConfigurationError:
    """Probe an environment, which must be refused for these wrappers; return the error."""
    says = rf"ASYNC017\].* has gymnasium's {' and '.join(named)}: running"
    with pytest.raises(ConfigurationError, match=says) as refused:
        describe(pickle.loads(pickle.dumps(source)))
    assert all(OPTION[name] in refused.value.fix for name in named)
    return refused.value


@pytest.mark.parametrize("case", CASES)
def test_running_statistics_of_one_process_are_refused(case: str) -> None:
    make, named = CASES[case]
    error = require_refusal(EnvSource.from_user(make), named)
    assert error.facts == {"wrapper": "Mine" if case == "derived" else ", ".join(named)}


@pytest.mark.parametrize("named", OPTION)
def test_running_statistics_by_the_option_wrappers_are_refused(named: str) -> None:
    source = EnvSource.from_user("CartPole-v1")
    for wrapper in (f"gymnasium.wrappers:{named}", getattr(gymnasium.wrappers, named)):
        require_refusal(source.changed({}, [wrapper]), [named])
        require_refusal(source.changed({}, [wrapper, clipped]), [named])


def test_wrappers_without_running_statistics_are_taken() -> None:
    changes: list[Any] = [
        lambda env: gymnasium.wrappers.TransformReward(env, float),
        clipped,
        lambda env: gymnasium.wrappers.RescaleObservation(env, np.float32(-1), np.float32(1)),
    ]
    pendulum = EnvSource.from_user("Pendulum-v1").changed({}, changes)
    assert describe(pickle.loads(pickle.dumps(pendulum))).observation_shape == (3,)
    for kind in (SyncVectorEnv, AsyncVectorEnv):
        make = functools.partial(of_vector, kind, NormalizeReward, frozen)
        assert describe(EnvSource.from_user(make)).vector_envs == 2
    assert describe(EnvSource.from_user(lambda: frozen(NormalizeObservation(CartPoleEnv())))).leaves == ()


def test_an_environment_of_evaluations_is_refused_too() -> None:
    result = asyncrl.train("CartPole-v1", "ppo", total_steps=300, num_actors=1, eval_episodes=1)
    changed = EnvSource.from_user("CartPole-v1").changed({}, [NormalizeReward])
    with pytest.raises(ConfigurationError, match="NormalizeReward"):
        asyncrl.evaluate(result.policy, changed, episodes=1)
    with pytest.raises(ConfigurationError, match="NormalizeReward"):
        asyncrl.train("CartPole-v1", "ppo", total_steps=300, num_actors=1, eval_env=lambda: changed.build())


def test_a_trainer_takes_and_keeps_them(tmp_path: Path) -> None:
    trainer = Trainer("CartPole-v1", "dqn", env_kwargs={"sutton_barto_reward": True}, wrappers=[FLAT, Slow])
    assert trainer.config.env_kwargs == {"sutton_barto_reward": True}
    assert trainer.config.wrappers == (FLAT, f"{__name__}:Slow")
    source = trainer.job.source
    env: Any = source.build()
    assert isinstance(env, Slow) and env.unwrapped._sutton_barto_reward is True
    directory = RunDirectory(tmp_path / "run")
    try:
        write_run_files(directory, trainer.config, trainer.algorithm, source)
    finally:
        directory.close()
    assert environment_of_run(tmp_path / "run", "CartPole-v1") == source
    again = Trainer.from_config(trainer.config, trainer.algorithm)
    assert again.job.source == source
