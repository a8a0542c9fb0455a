"""Forms in which an environment can be given, and the error of each mistake."""

from __future__ import annotations

import functools
import importlib
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import fakes
import gymnasium
import numpy as np
import pytest
from gymnasium.error import DependencyNotInstalled
from gymnasium.spaces import (
    Box,
    Dict,
    Discrete,
    Graph,
    MultiBinary,
    MultiDiscrete,
    OneOf,
    Sequence,
    Text,
    Tuple,
)
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import TimeLimit
from portable_policies import portable
from waiting import PATIENCE_SECONDS

import asyncrl
from asyncrl.envs import registered
from asyncrl.envs.checks import close_env, require_same_spaces
from asyncrl.envs.registered import installing
from asyncrl.envs.rendering import build_rendering, with_frame_stack
from asyncrl.envs.source import EnvSource, describe
from asyncrl.errors import (
    AutoresetUnknown,
    EnvironmentNotBuilt,
    EnvironmentRaised,
    FactoryNotPicklable,
    ObservationOffSpace,
    OldGymAPI,
    SpacesDoNotFit,
    UnknownEnvironment,
    environment_calls,
)
from asyncrl.interfaces import BoxAction, DiscreteAction, MultiDiscreteAction


def described(env: Any) -> Any:
    """Describe a source as a probe does, which gets it as bytes."""
    return describe(pickle.loads(pickle.dumps(EnvSource.from_user(env))))


class NoObservation(fakes.SimpleEnv):
    def observe(self) -> Any:
        return None


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module, not yet imported, that registers an environment on import, as packages do."""
    (tmp_path / "island_pack.py").write_text(
        "import fakes, gymnasium\n"
        "gymnasium.register('Island-v0', entry_point='fakes:SimpleEnv', max_episode_steps=9)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield "island_pack"
    gymnasium.registry.pop("Island-v0", None)
    sys.modules.pop("island_pack", None)


# --- what is taken -------------------------------------------------------------------------------------------------


def test_id() -> None:
    spec = described("CartPole-v1")
    assert (spec.name, spec.observation_shape, spec.observation_dtype) == ("CartPole-v1", (4,), "float32")
    assert spec.action == DiscreteAction(2)
    assert (spec.max_episode_steps, spec.reward_threshold, spec.vector_envs) == (500, 475.0, None)


def test_id_is_made_without_checkers_but_with_its_time_limit() -> None:
    env = EnvSource.from_user("CartPole-v1").build()
    assert str(env) == "<TimeLimit<CartPoleEnv<CartPole-v1>>>"
    assert gymnasium.spec("CartPole-v1").order_enforce, "the registry is not touched"


class LimitOfMission(fakes.SimpleEnv):
    """Environment whose limit is known after a reset, as BabyAI's."""

    limit: Any = 64

    def __init__(self) -> None:
        super().__init__()
        self.max_steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self.max_steps = self.limit
        return super().reset(seed=seed, options=options)


class LimitOfPopgym(fakes.SimpleEnv):
    max_episode_length: int

    def __init__(self) -> None:
        super().__init__()
        self.max_episode_length = 200


class EndlessMission(LimitOfMission):
    limit = float("inf")


class AgentsWithLimit(LimitOfMission):
    """Two agents by a Tuple, as of level-based foraging."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = Tuple((self.observation_space,) * 2)
        self.action_space = Tuple((self.action_space,) * 2)

    def observe(self) -> Any:
        return (super().observe(),) * 2

    def step(self, action: Any) -> Any:
        return self.observe(), (1.0, 1.0), False, False, {}


@pytest.mark.parametrize(
    ("env", "limit"),
    [
        (LimitOfMission, 64),
        (lambda: gymnasium.wrappers.TransformReward(LimitOfMission(), float), 64),
        (lambda: TimeLimit(LimitOfMission(), 9), 9),
        (AgentsWithLimit, 64),
        (LimitOfPopgym, 200),
        (EndlessMission, None),
        (fakes.SimpleEnv, None),
    ],
)
def test_a_limit_by_an_attribute_is_no_limit_of_the_registration(env: Any, limit: int | None) -> None:
    spec = described(env)
    assert (spec.own_limit, spec.max_episode_steps) == (limit, None)


def test_id_of_a_module_that_registers_it(module: str) -> None:
    assert described(f"{module}:Island-v0").max_episode_steps == 9


def test_an_id_of_the_package_stays_one_once_it_is_registered() -> None:
    """With arguments it became a function in a pickle, and a pushed policy did not know its environment."""
    EnvSource.from_user("asyncrl/BitFlip-v0").build().close()
    source = EnvSource.from_user("asyncrl/BitFlip-v0")
    assert source.kind == "id" and source.changed({"bits": 4}, ()).kind == "changed"


def test_id_that_an_imported_package_registered_travels_as_its_spec(module: str) -> None:
    importlib.import_module(module)
    source = EnvSource.from_user("Island-v0")
    gymnasium.registry.pop("Island-v0")  # as in an actor, which has not imported the package
    assert source.kind == "spec"
    assert describe(source).name == "Island-v0"


def test_gymnasium_spec() -> None:
    spec = gymnasium.spec("Pendulum-v1")
    assert described(spec).action == BoxAction((-2.0,), (2.0,), (1,))


def test_factories_of_every_kind() -> None:
    def nested() -> Any:
        return fakes.SimpleEnv()

    class Local(fakes.SimpleEnv):
        pass

    for factory in (fakes.SimpleEnv, lambda: fakes.SimpleEnv(), nested, Local, functools.partial(Local)):
        assert described(factory).action == DiscreteAction(5)
    assert (
        "lambda" in EnvSource.from_user(lambda: None).name
        and "test_envs.py" in EnvSource.from_user(lambda: 0).name
    )
    assert EnvSource.from_user(functools.partial(Local)).name.endswith("Local")
    name = EnvSource.from_user(functools.partial(gymnasium.make, "x" * 99, size=5, guard=[1], rule=len)).name
    assert name == f"make('{'x' * 36}..., size=5, guard=<list>, rule=len)"
    source = EnvSource.from_user(nested)
    assert EnvSource.from_user(source) is source


def test_vector_factory_tells_its_size() -> None:
    spec = described(lambda: SyncVectorEnv([fakes.SimpleEnv] * 3))
    assert spec.vector_envs == 3 and spec.observation_shape == (2,)
    assert described(lambda: gymnasium.make_vec("CartPole-v1", 4)).vector_envs == 4


def test_spaces_are_translated() -> None:
    assert described(fakes.CountingEnv).action == DiscreteAction(5, start=1)
    assert described(fakes.DoubleSpace).observation_dtype == "float32"

    class Bits(fakes.SimpleEnv):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = MultiBinary(3)
            self.action_space = MultiBinary((2, 2))

        def observe(self) -> Any:
            return np.ones(3, np.int8)

    spec = described(Bits)
    assert spec.observation_dtype == "int8"
    assert spec.action == MultiDiscreteAction((2, 2, 2, 2), space_shape=(2, 2))


class Pixels(Box):
    """A space of a class of its own."""


class Moves(Discrete):
    """Another."""


def test_spaces_of_classes_of_their_own_are_those_they_derive_from() -> None:
    class Own(fakes.SimpleEnv):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = Pixels(0, 255, (40, 40), np.uint8)
            self.action_space = Moves(3)

        def observe(self) -> Any:
            return np.zeros((40, 40), np.uint8)

    spec = described(Own)
    assert (spec.observation_shape, spec.observation_kind) == ((40, 40), "image")
    assert spec.action == DiscreteAction(3)


def test_environments_that_raise_in_close_say_so_once(capsys: pytest.CaptureFixture[str]) -> None:
    class Broken(fakes.SimpleEnv):
        def close(self) -> None:
            raise ZeroDivisionError("nothing to close")

    for _ in range(3):
        close_env(Broken())
    assert capsys.readouterr().err.count("raised in close()") == 1


@pytest.mark.parametrize("space", [MultiBinary(3), MultiBinary((2, 3)), MultiDiscrete([2, 2])], ids=str)
def test_a_changed_action_space_is_named_as_it_is(space: Any) -> None:
    class Several(fakes.SimpleEnv):
        def __init__(self, space: Any) -> None:
            super().__init__()
            self.action_space = space

    trained, other = (described(functools.partial(Several, own)) for own in (space, MultiBinary(4)))
    assert str(trained.action).replace("MultiDiscrete([2, 2])", "MultiDiscrete([2 2])") == str(space)
    with pytest.raises(SpacesDoNotFit) as caught:
        require_same_spaces(trained, other)
    assert f"trained in: {trained.action}\n  this one: MultiBinary(4)\n" in str(caught.value)


@pytest.mark.parametrize(
    "space",
    [
        MultiDiscrete([2, 3, 4]),
        MultiDiscrete([2, 3, 4], start=[0, 5, -3]),
        MultiDiscrete([[2, 3], [4, 5]], start=[[7, 0], [0, -9]]),
        MultiBinary(3),
        MultiBinary((2, 2)),
    ],
    ids=str,
)
def test_predicted_actions_are_of_the_environments_space(space: Any) -> None:
    class Several(fakes.SimpleEnv):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = space

    spec = described(Several)
    policy = portable(asyncrl.PPO(hidden_sizes=(4,)), spec)
    rng, seen = np.random.default_rng(0), set()
    for _ in range(200):
        obs = rng.normal(0, 100, spec.observation_shape).astype(spec.observation_dtype)
        action, _ = policy.predict(obs, deterministic=False)
        assert action.shape == space.shape and space.contains(action.astype(space.dtype)), action
        seen.add(action.tobytes())
    assert len(seen) >= 8, "some of all choices"


# --- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env", [3, None, {"id": "CartPole-v1"}])
def test_other_things_are_refused(env: Any) -> None:
    with pytest.raises(
        TypeError, match=r"env must be an id, a gymnasium EnvSpec or a zero-argument factory, got"
    ):
        EnvSource.from_user(env)


def test_a_list_of_functions_is_refused() -> None:
    with pytest.raises(
        TypeError, match="one function that makes one environment, got 2 things: num_actors and"
    ):
        EnvSource.from_user([fakes.SimpleEnv] * 2)  # type: ignore[arg-type]


def test_built_environment_and_empty_id_are_refused() -> None:
    with pytest.raises(TypeError, match=r"give a function that makes it: lambda: SimpleEnv\(...\)"):
        EnvSource.from_user(fakes.SimpleEnv())  # type: ignore[arg-type]
    with pytest.raises(
        TypeError, match=r"an environment \(CartPoleEnv\); .*: give its id, 'CartPole-v1', or a"
    ):
        EnvSource.from_user(gymnasium.make("CartPole-v1"))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="env must be an environment id such as 'CartPole-v1'"):
        EnvSource.from_user("")


def test_asyncrl_004_names_a_missing_space() -> None:
    class WithoutAction(gymnasium.Env[Any, Any]):
        observation_space = gymnasium.spaces.Box(0.0, 1.0, (2,))

    with pytest.raises(EnvironmentNotBuilt, match="has no action_space") as error:
        EnvSource.from_user(WithoutAction).build()
    assert (
        error.value.fix == "set it in __init__, for example self.action_space = gymnasium.spaces.Discrete(2)"
    )

    class WithoutObservation(gymnasium.Env[Any, Any]):
        action_space = Discrete(2)

    with pytest.raises(EnvironmentNotBuilt, match=r"self\.observation_space = gymnasium\.spaces\.Box"):
        EnvSource.from_user(WithoutObservation).build()


def test_asyncrl_004_an_id_of_an_old_mujoco_names_the_new_one() -> None:
    with pytest.raises(EnvironmentNotBuilt, match="HalfCheetah-v2") as error:
        EnvSource.from_user("HalfCheetah-v2").build()
    assert (
        error.value.fix == 'write the newest version of its id, Name-v5, with pip install "asyncrl[mujoco]"'
    )


class Configured:
    """Factory object with an attribute that cannot be pickled."""

    def __init__(self) -> None:
        self.settings = {"size": 3, "guard": [threading.Lock()]}

    def __call__(self) -> Any:
        return fakes.SimpleEnv()


def test_asyncrl_001_names_the_object_and_who_captured_it() -> None:
    guard = threading.Lock()

    def make() -> Any:
        with guard:
            return fakes.SimpleEnv()

    with pytest.raises(
        FactoryNotPicklable, match=r"ASYNC001\] .*make cannot be sent.*<unlocked _thread.lock"
    ) as e:
        EnvSource.from_user(make)
    line = make.__code__.co_firstlineno
    assert str(e.value.facts["captured"]).endswith(f"make -> closure variable 'guard' (test_envs.py:{line})")
    with pytest.raises(FactoryNotPicklable) as e:
        EnvSource.from_user(lambda: make())
    assert "closure variable 'make'" in str(e.value.facts["captured"])
    assert "-> closure variable 'guard'" in str(e.value.facts["captured"])
    with pytest.raises(FactoryNotPicklable, match=r"_thread\.lock") as e:
        EnvSource.from_user(Configured())
    assert str(e.value.facts["captured"]).endswith("attribute 'settings' -> ['guard'] -> [0]")
    with pytest.raises(FactoryNotPicklable, match=r"_thread\.lock") as e:
        EnvSource.from_user(functools.partial(fakes.SimpleEnv, guard))
    assert "argument 0" in str(e.value.facts["captured"])


def test_asyncrl_004_constructor_fails() -> None:
    with pytest.raises(
        EnvironmentNotBuilt, match=r"ASYNC004\] The constructor of FailingConstructor failed: OSError"
    ) as e:
        described(fakes.FailingConstructor)
    assert "display :0 is missing" in str(e.value) and "not tried again" in e.value.fix
    assert e.value.remote_traceback is not None and "fakes.py" in e.value.remote_traceback
    with pytest.raises(
        EnvironmentNotBuilt, match=r"ASYNC004\] The factory .* returned int, not an environment"
    ):
        described(lambda: 3)
    with pytest.raises(EnvironmentNotBuilt, match="got an unexpected keyword argument 'frobnicate'"):
        described(functools.partial(gymnasium.make, "CartPole-v1", frobnicate=True))


def test_asyncrl_004_module_that_actors_cannot_import(module: str) -> None:
    source = EnvSource("lost", "factory", pickle.dumps(fakes.SimpleEnv).replace(b"fakes", b"fakez"))
    with pytest.raises(
        EnvironmentNotBuilt, match=r"(?s)No module named 'fakez'.*put its directory on sys.path"
    ):
        describe(source)


def test_asyncrl_006_a_missing_package_is_named_beside_the_environment() -> None:
    def make(env_id: str, cause: str | None) -> Any:
        try:
            raise ModuleNotFoundError(f"No module named {cause!r}", name=cause)
        except ModuleNotFoundError as error:
            raise DependencyNotInstalled("run pip install") from error if cause else None

    for cause, needs in (("mujoco.glfw", "mujoco, which"), (None, "a package that")):
        with pytest.raises(UnknownEnvironment) as e:
            described(functools.partial(make, "Hopper-v5", cause))
        assert f"make('Hopper-v5', {cause!r}) needs {needs} is not installed" in str(e.value)


def test_asyncrl_006_near_misses() -> None:
    with pytest.raises(
        UnknownEnvironment, match=r"(?s)ASYNC006\] There is no environment CartPol-v1.*near misses: CartPole"
    ):
        described("CartPol-v1")
    with pytest.raises(UnknownEnvironment, match=r"(?s)no environment LunarLander-v2.*LunarLander-v3"):
        described("LunarLander-v2")
    with pytest.raises(UnknownEnvironment, match=r"no module named 'no_such_package' can be imported"):
        described("no_such_package:Thing-v0")
    with pytest.raises(UnknownEnvironment, match=r"import the package that registers it"):
        described("Qwzxv-v0")


@pytest.mark.parametrize(
    ("env_id", "missing", "extra", "registered"),
    [
        ("ALE/Pong-v5", "ale_py", "atari", True),
        ("ALE/Pong-v5", "ale_py", "atari", False),
        ("HalfCheetah-v5", "mujoco", "mujoco", True),
        ("LunarLander-v3", "Box2D", "box2d", True),
    ],
)
def test_asyncrl_006_names_the_extra_to_install(
    env_id: str, missing: str, extra: str, registered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if registered and env_id not in gymnasium.registry:
        pytest.importorskip(missing)  # its import registers the games
    if not registered:
        monkeypatch.delitem(gymnasium.registry, env_id, raising=False)
    for name in list(sys.modules):
        if name.startswith((missing, f"gymnasium.envs.{extra}")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(UnknownEnvironment, match=rf'(?s)ASYNC006\].*pip install "asyncrl\[{extra}\]"'):
        described(env_id)


def test_asyncrl_006_says_what_builds_box2d_where_there_is_no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registered, "BUILDS_BOX2D", (3, 11))
    assert "box2d" in installing("box2d") and "apt install swig g++" in installing("box2d")
    assert installing("atari") == 'pip install "asyncrl[atari]"'
    monkeypatch.setattr(registered, "BUILDS_BOX2D", (99, 0))
    assert installing("box2d") == 'pip install "asyncrl[box2d]"'


@pytest.mark.parametrize(
    ("env_id", "package", "fix"),
    [
        ("ALE/Pong-v9", "ale_py", "correct the id, or import the package that registers it"),
        ("PongNoFrameskip-v9", "ale_py", "correct the id, or import the package that registers it"),
        ("no_such_package:ALE/Pong-v9", "ale_py", "install the package that provides 'no_such_package'"),
    ],
)
def test_asyncrl_006_offers_no_extra_that_is_installed(env_id: str, package: str, fix: str) -> None:
    pytest.importorskip(package)
    with pytest.raises(UnknownEnvironment) as raised:
        described(env_id)
    assert fix in str(raised.value) and "pip install" not in str(raised.value)


def test_asyncrl_006_registered_in_main_only(monkeypatch: pytest.MonkeyPatch) -> None:
    Mine = type("Mine", (fakes.SimpleEnv,), {"__module__": "__main__"})
    gymnasium.register("Mine-v0", entry_point=Mine)
    try:
        source = EnvSource.from_user("Mine-v0")
        gymnasium.registry.pop("Mine-v0")
        with pytest.raises(
            UnknownEnvironment, match=r"ASYNC006\].*registered in __main__ only.*\n.*module:Mine-v0"
        ):
            describe(source)
    finally:
        gymnasium.registry.pop("Mine-v0", None)


@pytest.mark.parametrize("env_id", ["Mine-v0", "mine/Mine-v0"])
def test_asyncrl_006_registered_in_main_only_and_made_by_a_factory(env_id: str) -> None:
    with pytest.raises(
        UnknownEnvironment, match=r"ASYNC006\] .*id that is not registered in the actors"
    ) as e:
        described(lambda: gymnasium.make(env_id))
    assert "call gymnasium.register()" in e.value.fix and "Trainer(MyEnv, ...)" in e.value.fix
    assert "gymnasium says" in e.value.facts and "NotFound" in str(e.value.remote_traceback)


@pytest.mark.parametrize(
    ("env", "text"),
    [
        (
            fakes.FloatForByte,
            r"got float32 of shape \(2,\), expected uint8 of shape \(2,\).*rint\(obs\).astype\(np.uint8\)",
        ),
        (
            fakes.FlatObservation,
            r"got float32 of shape \(6,\), expected float32 of shape \(2, 3\).*obs.reshape\(\(2, 3\)\)",
        ),
        (fakes.RaggedObservation, r"got list, expected float32.*return an observation of observation_space"),
        (NoObservation, r"got NoneType, expected float32.*return an observation of observation_space"),
    ],
)
def test_asyncrl_012(env: Any, text: str) -> None:
    with pytest.raises(ObservationOffSpace, match=rf"(?s)ASYNC012\].*{text}"):
        described(env)


@pytest.mark.parametrize(
    ("env", "text"),
    [
        (
            fakes.FourValues,
            r"step returned a tuple of 4 values .*; it must return \(observation, reward, terminated",
        ),
        (fakes.BareReset, r"reset returned ndarray; it must return \(observation, info\)"),
        (
            fakes.SeedlessReset,
            r"reset\(seed=0\) raised .*; it must take the keyword arguments seed and options",
        ),
        (
            fakes.ArrayReward,
            r"step returned reward array\(\[1.\]\) of shape \(1,\); it must return a number there",
        ),
        (fakes.OldGymEnv, r"the constructor returned fakes.OldGymEnv, not a gymnasium.Env"),
    ],
)
def test_asyncrl_013(env: Any, text: str) -> None:
    with pytest.raises(OldGymAPI, match=rf"ASYNC013\].*{text}"):
        described(env)


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
def test_a_vector_is_made_with_the_stacks_that_its_policy_sees(mode: AutoresetMode) -> None:
    """Three observations of three environments are no stack of three frames."""

    def make() -> VectorEnv[Any, Any, Any]:
        limited = functools.partial(gymnasium.make, "CartPole-v1", max_episode_steps=4)
        return SyncVectorEnv([limited] * 3, autoreset_mode=mode)

    vector = with_frame_stack(make(), 3)
    assert vector.observation_space.shape == (3, 3, 4)
    singles = [with_frame_stack(gymnasium.make("CartPole-v1", max_episode_steps=4), 3) for _ in range(3)]
    obs, ended = vector.reset(seed=5)[0], np.zeros(3, bool)
    wanted = [env.reset(seed=5 + i)[0] for i, env in enumerate(singles)]
    for step in range(20):
        np.testing.assert_array_equal(obs, np.stack(wanted))
        resets = ended.copy()
        if resets.any() and mode == AutoresetMode.DISABLED:
            obs = vector.reset(options={"reset_mask": resets})[0]
            wanted = [env.reset()[0] if resets[i] else wanted[i] for i, env in enumerate(singles)]
            np.testing.assert_array_equal(obs, np.stack(wanted))
            resets[:] = False
        obs, _, terminated, truncated, _ = vector.step(np.full(3, step % 2))
        wanted = [env.reset()[0] if resets[i] else env.step(step % 2)[0] for i, env in enumerate(singles)]
        ended = terminated | truncated
    for env in (vector, *singles):
        env.close()


class UndeclaredVector(VectorEnv[Any, Any, Any]):
    num_envs = 2


def test_asyncrl_018() -> None:
    with pytest.raises(
        AutoresetUnknown,
        match=r"(?s)ASYNC018\].*declares autoreset mode AutoresetMode.SAME_STEP.*fix: make it with autoreset_mode=",
    ):
        described(lambda: SyncVectorEnv([fakes.SimpleEnv] * 2, autoreset_mode=AutoresetMode.SAME_STEP))
    with pytest.raises(
        AutoresetUnknown, match=r"(?s)does not declare its autoreset mode.*AutoresetMode.NEXT_STEP"
    ):
        described(UndeclaredVector)


class Exits(fakes.SimpleEnv):
    """As one that reads the command line by argparse, or ends the program on a fault."""

    def __init__(self, call: str) -> None:
        super().__init__()
        self.call = call
        self._exit("constructor")

    def _exit(self, call: str) -> None:
        if call == self.call:
            sys.exit(2)

    def reset(self, **options: Any) -> Any:
        self._exit("reset")
        return super().reset(**options)

    def step(self, action: Any) -> Any:
        self._exit("step")
        return super().step(action)


def test_an_environment_that_exits_is_named() -> None:
    with pytest.raises(
        EnvironmentNotBuilt, match=r"ASYNC004\].* of Exits\('constructor'\) failed: SystemExit: 2"
    ):
        described(functools.partial(Exits, "constructor"))
    for call in ("reset", "step"):
        with pytest.raises(EnvironmentRaised, match=rf"ASYNC002\].*raised SystemExit in {call}.*: 2"):
            described(functools.partial(Exits, call))


@pytest.fixture
def ignored_interrupts() -> Iterator[None]:
    """SIGINT as it is in the processes of actors."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ignored_interrupts")
def test_an_environment_that_interrupts_is_named() -> None:
    with pytest.raises(EnvironmentRaised, match=r"ASYNC002\].*raised KeyboardInterrupt in step"):
        described(fakes.Interrupts)

    def interrupted() -> Any:
        raise KeyboardInterrupt

    with pytest.raises(EnvironmentNotBuilt, match=r"ASYNC004\].*failed: KeyboardInterrupt"):
        described(interrupted)


def test_an_interrupt_of_the_user_is_not_the_environments() -> None:
    with pytest.raises(KeyboardInterrupt):
        described(fakes.Interrupts)
    with pytest.raises(KeyboardInterrupt), environment_calls("It", "", "mend it", dict):
        raise KeyboardInterrupt


def test_asyncrl_002_in_the_probe() -> None:
    with pytest.raises(
        EnvironmentRaised, match=r"(?s)ASYNC002\].*raised RuntimeError in reset.*no map for this level"
    ):
        described(fakes.RaisesInReset)


@pytest.mark.parametrize(
    ("space", "fix"),
    [
        (
            Dict({"a": Discrete(2), "b": Dict({"c": Sequence(Discrete(2))})}),
            "its part 'b.c' is Sequence.*turn it",
        ),
        (
            Tuple((Discrete(2), Graph(Discrete(2), None), Text(3))),
            "its part '1' is Graph.*turn it into a Box",
        ),
        (Dict({"a": Text(3)}), "without a part that is an array"),
        (OneOf((Discrete(2), Discrete(3))), "FlattenObservation"),
        (Text(3), "ObservationWrapper"),
        (Dict({}), "without parts.*such as a constant"),
    ],
)
def test_observation_spaces_that_are_not_one_array(space: Any, fix: str) -> None:
    class Odd(fakes.SimpleEnv):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = space

    with pytest.raises(SpacesDoNotFit, match=rf"(?s)ASYNC005\].*is {type(space).__name__}.*{fix}"):
        described(Odd)


def test_action_spaces_that_no_policy_has() -> None:
    class Odd(fakes.SimpleEnv):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = Dict({"a": Discrete(2)})

    with pytest.raises(
        SpacesDoNotFit, match=r"must be Discrete, MultiDiscrete, MultiBinary or Box, got Dict"
    ):
        described(Odd)


def test_structured_environment_of_a_factory_is_made_again_to_render() -> None:
    source = EnvSource.from_user(lambda: gymnasium.make("FrozenLake-v1"))
    env: Any = build_rendering(source, "rgb_array")
    obs, _ = env.reset(seed=0)
    assert obs.shape == (16,) and env.render().ndim == 3
    env.close()


def test_an_environment_with_a_method_of_masks_is_made_again_to_render() -> None:
    class Masked(gymnasium.Env[Any, Any]):
        metadata: ClassVar = {"render_modes": ["rgb_array"]}

        def __init__(self, render_mode: str | None = None) -> None:
            self.render_mode, self.action_space = render_mode, Discrete(3)
            self.observation_space = Box(0, 1, (2,), np.float32)

        def action_masks(self) -> Any:
            return np.array([True, False, True])

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return np.zeros(2, np.float32), {}

    spec = gymnasium.envs.registration.EnvSpec("Masked-v0", Masked, disable_env_checker=True)
    env: Any = build_rendering(EnvSource.from_user(lambda: gymnasium.make(spec)), "rgb_array")
    assert env.render_mode == "rgb_array" and env.reset()[0].tolist() == [1, 0, 1, 0, 0]
    env.close()


def test_wrapped_observation_is_taken() -> None:
    spec = described(lambda: gymnasium.wrappers.FlattenObservation(gymnasium.make("FrozenLake-v1")))
    assert spec.observation_shape == (16,) and spec.observation_dtype == "int64"


def test_actors_do_not_print_the_greeting_of_pygame() -> None:
    """They take over the environment variables of the main process, which does not import gymnasium."""
    shown = "os.environ['PYGAME_HIDE_SUPPORT_PROMPT'], 'gymnasium' in sys.modules"
    script = f"import os, sys, asyncrl.envs.source; print({shown})"
    unset = {name: value for name, value in os.environ.items() if not name.startswith("PYGAME")}
    done = subprocess.run(
        [sys.executable, "-c", script], env=unset, capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )
    assert done.stdout == "hide False\n", done.stderr


def test_atari_games_do_not_print_a_greeting() -> None:
    pytest.importorskip("ale_py")
    script = "from asyncrl.envs import registered; registered.find('ALE/Pong-v5').make()"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
