"""Environments as other libraries write them, by small stand-ins: what is taken, and what the refusal says.

`benchmarks/peers/environments.py` checks the libraries themselves.
"""

from __future__ import annotations

import pickle
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import fakes
import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

import asyncrl
from asyncrl import DQN
from asyncrl.actors.streams import PlainStreams, VectorStreams, make_streams
from asyncrl.envs import checks
from asyncrl.envs.observations import mask_reader
from asyncrl.envs.packing import MaskFromMethod, pack
from asyncrl.envs.registered import MUJOCO_BELOW, newer_mujoco
from asyncrl.envs.source import EnvSource, describe
from asyncrl.envs.trial import try_out
from asyncrl.envs.vectors import Disabled, NextStep, SameStep
from asyncrl.errors import (
    AutoresetUnknown,
    EnvironmentNotBuilt,
    ObservationOffSpace,
    OldGymAPI,
    ParallelAPIBroken,
    SpacesDoNotFit,
    TextLeftOut,
    UnknownEnvironment,
)
from asyncrl.interfaces import RESET, TRUNCATED, MultiDiscreteAction


def described(env: Any, *wrappers: Any, **kwargs: Any) -> Any:
    source = EnvSource.from_user(env).changed(kwargs, wrappers)
    return describe(pickle.loads(pickle.dumps(source)))


# --- text in observations ---------------------------------------------------------------------------------------------


class Mission(spaces.Space[str]):
    """A space of text that is not gymnasium's, as MiniGrid's `MissionSpace`."""

    def __init__(self) -> None:
        super().__init__(dtype=str)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        return "get to the green goal square"

    def contains(self, x: Any) -> bool:
        return isinstance(x, str)


class Grid(gymnasium.Env[Any, Any]):
    """MiniGrid's form of observations: a small image, a direction and a sentence."""

    action_space = spaces.Discrete(3)

    def __init__(self, mission: Any = None) -> None:
        image = spaces.Box(0, 255, (7, 7, 3), np.uint8)
        parts = {"image": image, "direction": spaces.Discrete(4), "mission": mission or Mission()}
        self.observation_space = spaces.Dict({**parts, "robot": spaces.Dict({"name": spaces.Text(9)})})

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self.observation_space.sample(), 1.0, self.steps == 5, False, {}


@pytest.mark.parametrize("mission", [Mission(), spaces.Text(9)])
def test_text_is_left_out_of_a_structured_observation_and_named(mission: Any) -> None:
    spec = described(lambda: Grid(mission))
    assert [leaf.path for leaf in spec.leaves] == [("direction",), ("image",)]
    assert spec.unread == ("mission", "robot.name")
    assert spec.observation_shape == (4 + 7 * 7 * 3,)
    obs, _ = Grid(mission).reset(seed=0)
    row = pack(obs, spec)
    np.testing.assert_array_equal(row[4:], obs["image"].reshape(-1))


def test_check_names_the_text_that_is_left_out() -> None:
    problems = try_out(EnvSource.from_user(Grid), 0.02).problems
    assert problems[0].startswith("the observation's text is left out (mission, robot.name): ")


def test_a_run_warns_once_of_text_that_is_left_out() -> None:
    with pytest.warns(TextLeftOut, match=r"ASYNC047\] Grid: .*left out \(mission, robot.name\)") as warned:
        result = asyncrl.train(Grid, DQN(), total_steps=200, num_actors=1)
    assert result.summary["env_steps"] >= 200
    assert sum(issubclass(w.category, TextLeftOut) for w in warned) == 1


# --- arrays of other libraries and of other widths --------------------------------------------------------------------


class ForeignArray:
    """An array that is none of NumPy's, as JAX's: shape, dtype and a conversion."""

    def __init__(self, values: Any) -> None:
        self._values = np.asarray(values)
        self.shape, self.dtype, self.ndim = self._values.shape, self._values.dtype, self._values.ndim

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.array(self._values, dtype)

    def __bool__(self) -> bool:
        return bool(self._values)

    def __float__(self) -> float:
        return float(self._values)


class Foreign(gymnasium.Env[Any, Any]):
    """Every result is a foreign array; observation k of an episode is [k, k / 2]; episodes of 4 steps."""

    observation_space = spaces.Box(-100, 100, (2,), np.float32)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._obs(), {}

    def _obs(self) -> Any:
        return ForeignArray(np.array([self.steps, self.steps / 2], np.float32))

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self.steps += 1
        ended = ForeignArray(self.steps == 4)
        return self._obs(), ForeignArray(np.float32(self.steps)), ended, ForeignArray(False), {}


def test_arrays_of_other_libraries_are_converted() -> None:
    spec = described(Foreign)
    streams = PlainStreams([Foreign(), Foreign()], spec)
    obs, rewards = np.empty((2, 2), np.float32), np.zeros(2)
    streams.reset([0, 1], obs)
    seen, paid = [obs.copy()], []
    for _ in range(5):
        streams.step(np.zeros(2, np.int64), obs, rewards)
        seen.append(obs.copy())
        paid.append(rewards.tolist())
    assert [row[0].tolist() for row in seen] == [[0, 0], [1, 0.5], [2, 1], [3, 1.5], [4, 2], [0, 0]]
    assert paid == [[1, 1], [2, 2], [3, 3], [4, 4], [0, 0]]


def test_a_run_trains_and_evaluates_on_arrays_of_other_libraries() -> None:
    result = asyncrl.train(Foreign, "ppo", total_steps=500, num_actors=1, eval_episodes=2)
    assert result.summary["eval"]["return_mean"] == 10.0


@pytest.mark.parametrize(
    ("got", "space"),
    [("float16", "float32"), ("float32", "float64"), ("uint8", "float32"), ("int32", "int64")],
)
def test_narrower_numbers_are_converted(got: str, space: str) -> None:
    values = np.array([1, 2.5, 3], got)
    taken = checks.check_observation("mine", "step", values, (3,), np.dtype(space))
    assert taken.dtype == space and taken.tolist() == values.tolist()


@pytest.mark.parametrize(
    ("obs", "space", "stored"),
    [
        (np.array([0.5, 0.1]), "float32", [0.5, np.float32(0.1)]),
        (np.array([0.5, 1e-50]), "float32", [0.5, 0.0]),
        (np.array([0.5, np.inf]), "float32", [0.5, np.inf]),  # an actor refuses it, as any that is not finite
        (np.array([0.5, 3.0], np.longdouble), "float32", [0.5, 3.0]),
        (np.array([2**24 + 1, -3]), "float32", [2**24, -3.0]),
        (np.array([70, 3]), "float16", [70.0, 3.0]),
        (np.array([True, False]), "float32", [1.0, 0.0]),
        ([0.5, 0.25], "float32", [0.5, 0.25]),
        ((1, np.float64(2.5)), "float32", [1.0, 2.5]),
        ([0, 255], "uint8", [0, 255]),
        (np.array([-5, 7], np.int64), "int8", [-5, 7]),
        (np.array([5, 7], np.uint64), "int64", [5, 7]),
        (np.array([0, 1], np.int64), "bool", [False, True]),
    ],
)
def test_numbers_of_another_dtype_are_converted(obs: Any, space: str, stored: list[Any]) -> None:
    with np.errstate(all="raise"):  # as an environment may have it
        taken = checks.check_observation("mine", "step", obs, (2,), np.dtype(space))
    assert taken.dtype == space and taken.tolist() == stored


@pytest.mark.parametrize(
    ("obs", "space", "got"),
    [
        (np.zeros(2, np.float32), "int64", "float32 of shape (2,)"),
        (np.zeros(2), "uint8", "float64 of shape (2,)"),
        ([0.0, 1.0], "bool", "float64 of shape (2,)"),
        (np.array([7, 256], np.int16), "uint8", "int16 of shape (2,) with the value 256"),
        (np.array([7, -1]), "uint64", "int64 of shape (2,) with the value -1"),
        (np.array([7, 2**63], np.uint64), "int64", "uint64 of shape (2,) with the value 9223372036854775808"),
        (np.array([2, 1]), "bool", "int64 of shape (2,) with the value 2"),
        (np.array([1.0, 1e300]), "float32", "float64 of shape (2,) with the value 1e+300"),
        (np.array([1, 10**6]), "float16", "int64 of shape (2,) with the value 1000000"),
        (np.zeros(2, np.complex64), "float32", "complex64 of shape (2,)"),
        ([0.0, None], "float32", "object of shape (2,)"),
        (["0.5", "1"], "float32", "of shape (2,)"),
        ([0.5, 0.5, 0.5], "float32", "float64 of shape (3,)"),
        (np.zeros((2, 1)), "float32", "float64 of shape (2, 1)"),
        (0.5, "float32", "float64 of shape ()"),
        ("ab", "float32", "str"),
        ({"a": 1.0}, "float32", "dict"),
    ],
)
def test_numbers_that_the_space_does_not_hold_are_refused(obs: Any, space: str, got: str) -> None:
    says = rf"ASYNC012\].*{re.escape(got)}, expected {space} of shape \(2,\)"
    with np.errstate(all="raise"), pytest.raises(ObservationOffSpace, match=says):
        checks.check_observation("mine", "step", obs, (2,), np.dtype(space))


class HomeMade(gymnasium.Env[Any, Any]):
    """A space of float32, and doubles, whole numbers and a list in turn; episodes of 4 steps."""

    observation_space = spaces.Box(0, 1, (2,), np.float32)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, int), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        value = self.steps / 10
        obs = np.array([value, value]) if self.steps % 2 else [value, 0.5]
        return obs, 1.0, self.steps == 4, False, {}


def test_an_environment_that_computes_in_doubles_is_trained_evaluated_and_checked() -> None:
    streams = PlainStreams([HomeMade()], described(HomeMade))
    obs, rewards = np.empty((1, 2), np.float32), np.zeros(1)
    streams.reset([0], obs)
    seen = [obs[0].tolist()]
    for _ in range(2):
        streams.step(np.zeros(1, np.int64), obs, rewards)
        seen.append(obs[0].tolist())
    assert seen == [[0, 0], [np.float32(0.1)] * 2, [np.float32(0.2), 0.5]]
    result = asyncrl.train(HomeMade, "ppo", total_steps=500, num_actors=1, eval_episodes=2)
    assert result.summary["eval"]["return_mean"] == 4.0
    problems = try_out(EnvSource.from_user(HomeMade), 0.02).problems
    assert not [text for text in problems if "observation" in text]


def test_arrays_of_the_right_dtype_are_not_copied() -> None:
    values = np.zeros(3, np.float32)
    assert checks.check_observation("mine", "step", values, (3,), values.dtype) is values


# --- vector environments of other libraries ---------------------------------------------------------------------------


class SingleSpaces(VectorEnv[Any, Any, Any]):
    """EnvPool's form: the spaces of all environments are those of one, and only arrays are taken as actions."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012
    num_envs = 3

    def __init__(self, action_space: Any) -> None:
        self.observation_space = self.single_observation_space = spaces.Box(-9, 9, (2,), np.float32)
        self.action_space = self.single_action_space = action_space

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return np.zeros((3, 2), np.float32), {}

    def step(self, actions: Any) -> Any:
        assert type(actions) is np.ndarray and actions.shape == (3, *self.action_space.shape)
        assert actions.dtype == self.action_space.dtype
        ended = np.zeros(3, bool)
        return np.ones((3, 2), np.float32), np.ones(3, np.float32), ended, ended, {}


@pytest.mark.parametrize(
    "action_space",
    [spaces.Discrete(2), spaces.Discrete(2, dtype=np.int32), spaces.Box(-1, 1, (1,), np.float32)],
)
def test_a_vector_with_the_spaces_of_one_environment(action_space: Any) -> None:
    source = EnvSource.from_user(lambda: SingleSpaces(action_space))
    trial = try_out(source, 0.02)
    assert trial.spec.vector_envs == 3 and trial.steps > 0
    assert "an observation lies outside of observation_space" not in trial.problems
    streams = make_streams(source, trial.spec, 3)
    obs, rewards = np.empty((3, 2), np.float32), np.zeros(3)
    streams.reset([0], obs)
    streams.step(np.zeros((3, *action_space.shape), trial.spec.action.dtype), obs, rewards)
    assert rewards.tolist() == [1, 1, 1]


class Agents:
    """SuperSuit's form of a vector: no declared mode, no spaces of one, infos in a list, `uint8` ends.

    Observation of agent i at step k of episode e: [e, k, i]; all agents end after `length` steps and are reset in the
    same step, unless one of them ends `early`.
    """

    metadata: dict[str, Any] = {"name": "agents"}  # noqa: RUF012
    num_envs = 2

    def __init__(self, length: int = 3, early: bool = False, last: bool = True) -> None:
        self.observation_space = spaces.Box(-100, 100, (3,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.length, self.early, self.last, self.episode, self.steps = length, early, last, -1, 0

    def _obs(self) -> Any:
        return np.array([[self.episode, self.steps, i] for i in range(2)], np.float32)

    def reset(self, seed: Any = None, options: Any = None) -> Any:
        self.episode, self.steps = self.episode + 1, 0
        return self._obs(), [{}, {}]

    def step(self, actions: Any) -> Any:
        assert np.shape(actions) == (2,)
        self.steps += 1
        rewards = np.full(2, self.steps, np.float32)
        ended = np.full(2, self.steps == self.length, np.uint8)
        infos: list[dict[str, Any]] = [{}, {}]
        obs = self._obs()
        if ended.all():
            infos = [{"terminal_observation": one} if self.last else {} for one in obs]
            obs, _ = self.reset()
        elif self.early:
            ended[0] = 1
        return obs, rewards, np.zeros(2, np.uint8), ended, infos

    def close(self) -> None:
        pass


class VectorAgents(Agents, VectorEnv[Any, Any, Any]):  # type: ignore[misc]
    """`Agents`, derived from gymnasium's class as SuperSuit's are."""


def test_a_vector_that_resets_in_the_same_step_is_exact_where_all_end_together() -> None:
    source = EnvSource.from_user(VectorAgents).changed({}, ["asyncrl.envs.vectors:SameStep"])
    spec = describe(source)
    assert (spec.vector_envs, spec.observation_shape) == (2, (3,))
    streams = VectorStreams(source.build(), spec)
    obs, rewards = np.empty((2, 3), np.float32), np.zeros(2)
    streams.reset([0], obs)
    rows = []
    for _ in range(7):
        events = streams.step(np.zeros(2, np.int64), obs, rewards)
        rows.append((obs[1].tolist(), rewards.tolist(), events.tolist()))
    end, begin = [[0, TRUNCATED], [1, TRUNCATED]], [[0, RESET], [1, RESET]]
    assert rows == [
        ([0, 1, 1], [1, 1], []),
        ([0, 2, 1], [2, 2], []),
        ([0, 3, 1], [3, 3], end),
        ([1, 0, 1], [0, 0], begin),
        ([1, 1, 1], [1, 1], []),
        ([1, 2, 1], [2, 2], []),
        ([1, 3, 1], [3, 3], end),
    ]


def test_a_vector_that_resets_in_the_same_step_one_by_one_is_refused() -> None:
    source = EnvSource.from_user(lambda: VectorAgents(early=True)).changed({}, [SameStep])
    with pytest.raises(AutoresetUnknown, match=r"ASYNC018\] 1 of the 2 environments .* have ended"):
        describe(source)
    with pytest.raises(AutoresetUnknown, match=r"(?s)last observations .* in its info.*add 'final_obs'"):
        describe(EnvSource.from_user(lambda: VectorAgents(length=1, last=False)).changed({}, [SameStep]))


def test_gymnasiums_vectors_in_the_same_step_mode_are_read_too() -> None:
    made = lambda: SyncVectorEnv([Foreign] * 2, autoreset_mode=AutoresetMode.SAME_STEP)  # noqa: E731
    env = SameStep(made())
    env.reset(seed=0)
    seen = [env.step(np.zeros(2, np.int64))[0][0].tolist() for _ in range(5)]
    assert seen == [[1, 0.5], [2, 1], [3, 1.5], [4, 2], [0, 0]]


@pytest.mark.parametrize(("wrapper", "mode"), [(NextStep, "NextStep"), (Disabled, "Disabled")])
def test_a_wrapper_declares_the_mode(wrapper: Any, mode: str) -> None:
    with pytest.raises(
        AutoresetUnknown, match=r"(?s)does not declare.*--wrapper asyncrl.envs.vectors:NextStep"
    ):
        described(VectorAgents)
    trial = try_out(EnvSource.from_user(VectorAgents).changed({}, [wrapper]), 0.01)
    assert trial.autoreset == mode


# --- environments that are none of gymnasium's ------------------------------------------------------------------------


class Parallel:
    """PettingZoo's parallel form."""

    possible_agents = ("red", "blue")

    def reset(self, seed: Any = None, options: Any = None) -> Any: ...

    def step(self, actions: Any) -> Any: ...


def test_several_agents_without_spaces_are_refused() -> None:
    with pytest.raises(ParallelAPIBroken, match="observation_space is missing, and must be a method"):
        described(Parallel)


class Objectives(fakes.SimpleEnv):
    """MO-Gymnasium's form: a reward for each objective."""

    def step(self, action: Any) -> Any:
        obs, _, terminated, truncated, info = super().step(action)
        return obs, np.array([0.5, -1.0], np.float32), terminated, truncated, info


def test_a_vector_of_rewards_is_refused_with_the_way_to_weigh_them() -> None:
    with pytest.raises(OldGymAPI, match=r"(?s)reward array.*shape \(2,\).*wrappers:LinearReward") as raised:
        described(Objectives)
    assert "GymV21" not in str(raised.value)


def test_only_environments_of_gym_itself_are_sent_to_shimmy(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OldGymAPI, match=r"write a gymnasium.Env of a dozen lines") as raised:
        described(fakes.OldGymEnv)  # as crafter.Env
    assert "shimmy" not in str(raised.value)
    gym: Any = ModuleType("gym")
    gym.Env = type("Env", (), {})
    monkeypatch.setitem(sys.modules, "gym", gym)
    mine = type("Mine", (gym.Env,), {"reset": lambda self: None, "step": lambda self, action: None})()
    assert "shimmy.GymV21CompatibilityV0" in str(checks.not_an_environment("mine", mine))


# --- names and constructors -------------------------------------------------------------------------------------------


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module that registers nothing before its `register_envs()` is called, as MinAtar's does."""
    (tmp_path / "mini_games.py").write_text(
        "import fakes, gymnasium\n"
        "class Paddle(fakes.SimpleEnv):\n"
        "    def __init__(self, size, speed):\n"
        "        super().__init__()\n"
        "class Silent(fakes.SimpleEnv):\n"
        "    def __init__(self):\n"
        "        raise AssertionError\n"
        "def make_paddle():\n"
        "    return Paddle(1, 2)\n"
        "def register_envs():\n"
        "    gymnasium.register('Mini/Paddle-v0', entry_point='mini_games:make_paddle')\n"
        "_private = make_paddle\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield "mini_games"
    gymnasium.registry.pop("Mini/Paddle-v0", None)
    sys.modules.pop("mini_games", None)


def test_register_envs_of_a_module_is_called(library: str) -> None:
    assert described(f"{library}:Mini/Paddle-v0").name == f"{library}:Mini/Paddle-v0"


def test_a_name_that_a_module_lacks_is_answered_with_those_it_has(library: str) -> None:
    with pytest.raises(
        UnknownEnvironment, match=rf"(?s)ASYNC006\].*the module {library} has no Nope\."
    ) as raised:
        described(f"{library}:Nope")
    assert raised.value.fix == "it has Paddle, Silent, make_paddle, Mini/Paddle-v0"
    with pytest.raises(UnknownEnvironment) as raised:
        described(f"{library}:make_padle")
    assert raised.value.fix.startswith("it has make_paddle")
    with pytest.raises(UnknownEnvironment, match="name a class or function that makes an environment"):
        described("keyword:nope")


@pytest.mark.parametrize(
    ("env_id", "fix"),
    [
        ("MinAtar/Breakout-v1", "write minatar.gym:MinAtar/Breakout-v1"),
        ("BabyAI-GoToLocal-v0", "write minigrid:BabyAI-GoToLocal-v0"),
        ("dm_control/cartpole-balance-v0", "write shimmy:dm_control/cartpole-balance-v0"),
    ],
)
def test_an_id_of_a_known_library_is_answered_with_its_module(
    env_id: str, fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    with pytest.raises(UnknownEnvironment) as raised:
        described(env_id)
    assert raised.value.fix == fix
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UnknownEnvironment, match=rf'pip install ".*", then {fix}'):
        described(env_id)


def test_a_missing_argument_of_the_constructor_is_named_with_its_flag(library: str) -> None:
    with pytest.raises(EnvironmentNotBuilt) as raised:
        described(f"{library}:Paddle")
    assert (
        raised.value.fix == "give it: --env-kwargs size:... speed:..., env_kwargs={'size': ..., 'speed': ...}"
    )
    assert described(f"{library}:Paddle", size=1, speed=2).name == f"{library}:Paddle"


def test_an_exception_without_a_text_is_named_by_its_class(library: str) -> None:
    with pytest.raises(EnvironmentNotBuilt, match=r"failed: AssertionError\n"):
        described(f"{library}:Silent")


@pytest.mark.parametrize(
    ("version", "trace", "told"),
    [
        ("4.0.0", "/x/gymnasium_robotics/envs/fetch/reach.py", True),
        ("3.12.0", "/x/dm_control/suite/cartpole.py", True),
        ("3.11.0", "/x/dm_control/suite/cartpole.py", False),
        ("4.0.0", "/x/mine/cartpole.py", False),
    ],
)
def test_a_mujoco_that_is_too_new_is_named(
    version: str, trace: str, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mujoco", SimpleNamespace(__version__=version))  # type: ignore[arg-type]
    assert (f'MuJoCo {version} yet: pip install "mujoco<3.12"' in newer_mujoco(trace)) == told


def test_the_extra_has_the_bound_that_the_error_names() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    assert f"mujoco<{MUJOCO_BELOW}" in project["project"]["optional-dependencies"]["mujoco"]


# --- masks in sb3-contrib's form --------------------------------------------------------------------------------------


class Masked(gymnasium.Env[Any, Any]):
    """`action_masks()` allows one choice of each component; others raise."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, action_space: Any) -> None:
        self.action_space = action_space

    def action_masks(self) -> Any:
        counts = np.ravel(getattr(self.action_space, "nvec", getattr(self.action_space, "n", 0)))
        return np.concatenate([np.arange(n) == self.steps % n for n in counts])

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        counts = np.ravel(getattr(self.action_space, "nvec", getattr(self.action_space, "n", 0)))
        assert (np.ravel(action) == self.steps % counts).all(), "a forbidden action"
        self.steps += 1
        return np.zeros(2, np.float32), 1.0, self.steps == 7, False, {}


@pytest.mark.parametrize("action_space", [spaces.Discrete(3), spaces.MultiDiscrete([3, 2])])
def test_masks_of_a_method_are_obeyed(action_space: Any) -> None:
    source = EnvSource.from_user(lambda: gymnasium.wrappers.TimeLimit(Masked(action_space), 100))
    trial = try_out(source, 0.02)
    assert trial.steps > 0 and {leaf.path for leaf in trial.spec.leaves} == {
        ("observation",),
        ("action_mask",),
    }
    read = mask_reader(trial.spec)
    obs, _ = source.build().reset(seed=0)  # type: ignore[call-arg]
    assert read is not None
    wanted = [1, 0, 0, 1, 0] if isinstance(trial.spec.action, MultiDiscreteAction) else [1, 0, 0]
    assert read(obs[None])[0].tolist() == wanted


def test_a_run_obeys_the_masks_of_a_method() -> None:
    made = lambda: Masked(spaces.Discrete(3))  # noqa: E731
    result = asyncrl.train(made, "ppo", total_steps=500, num_actors=1, eval_episodes=1)
    assert result.summary["eval"]["return_mean"] == 7.0


def test_masks_of_a_method_are_left_alone_where_there_is_nothing_to_mask() -> None:
    class Continuous(Masked):
        pass

    env: Any = EnvSource.from_user(lambda: Continuous(spaces.Box(-1, 1, (2,), np.float32))).build()
    assert not isinstance(env, MaskFromMethod) and env.observation_space.shape == (2,)
    with pytest.raises(SpacesDoNotFit, match="MaskFromMethod needs Discrete"):
        MaskFromMethod(Continuous(spaces.Box(-1, 1, (2,), np.float32)))
