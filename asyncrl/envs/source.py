"""The only door to gymnasium: what may be called an environment, how it is made, what it looks like.

`EnvSource` is made in the main process, which never builds an environment (and never imports gymnasium unless
the user did); it travels as bytes, and is built in the processes forked for it.
"""

from __future__ import annotations

import copy
import difflib
import importlib
import pickle
import re
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import cloudpickle

from asyncrl.envs import checks as env_checks
from asyncrl.envs.factory_pickle import factory_name, pack_factory
from asyncrl.errors import (
    AsyncRLError,
    ConfigurationError,
    EnvironmentNotBuilt,
    UnknownEnvironment,
    error_text,
)
from asyncrl.interfaces import EnvSpec

if TYPE_CHECKING:
    import gymnasium
    from gymnasium.envs.registration import EnvSpec as GymnasiumSpec
    from gymnasium.vector import VectorEnv

_EXTRAS = (
    ("atari", re.compile(r"^ALE/|NoFrameskip-|Deterministic-|\bale[-_]py\b", re.IGNORECASE)),
    ("mujoco", re.compile(r"mujoco", re.IGNORECASE)),
    ("box2d", re.compile(r"box2d", re.IGNORECASE)),
)


@dataclass(frozen=True)
class EnvSource:
    """An environment as the user named it, ready to travel.

    Attributes:
        name: the id, or the factory's qualified name.
        kind: `"id"`, `"spec"` (a gymnasium EnvSpec) or `"factory"`.
        payload: the id as UTF-8, or the cloudpickled spec or factory; unpickled in the process that builds it only.
        main_only: the id is registered here, by the main script itself, where no actor can see it.
    """

    name: str
    kind: Literal["id", "spec", "factory"]
    payload: bytes
    main_only: bool = False

    @classmethod
    def from_user(cls, env: str | GymnasiumSpec | Callable[[], Any] | EnvSource) -> EnvSource:
        """Take what a user gives to `Trainer`; nothing is built.

        An id that this process has registered already is sent as its spec, so that a package which registers
        environments when it is imported need be imported in the user's script only.

        Raises:
            TypeError: it is none of these, or an environment that was built already.
            FactoryNotPicklable: the factory cannot be sent (ASYNC001).
        """
        if isinstance(env, EnvSource):
            return env
        if isinstance(env, str):
            return cls._from_id(env)
        if hasattr(env, "entry_point") and hasattr(env, "id"):
            return cls._from_spec(str(env.id), env)  # type: ignore[arg-type]
        if hasattr(env, "step") and hasattr(env, "reset") and not isinstance(env, type):
            raise TypeError(
                "env must be an id, a gymnasium EnvSpec or a zero-argument factory, got an environment "
                f"({type(env).__name__}); pass a function that builds it: lambda: {type(env).__name__}(...)"
            )
        if not callable(env):
            raise TypeError(
                "env must be an id, a gymnasium EnvSpec or a zero-argument factory, "
                f"got {type(env).__name__}: {env!r}"
            )
        return cls(factory_name(env), "factory", pack_factory(env))

    @classmethod
    def _from_id(cls, env_id: str) -> EnvSource:
        if not env_id:
            raise ValueError("env must be an environment id such as 'CartPole-v1', got an empty string")
        registration = sys.modules.get("gymnasium.envs.registration")
        registered = registration.registry.get(env_id.rpartition(":")[2]) if registration else None
        if registered is None or _entry_module(registered).partition(".")[0] == "gymnasium":
            return cls(env_id, "id", env_id.encode())
        return cls._from_spec(env_id, registered)

    @classmethod
    def _from_spec(cls, env_id: str, spec: GymnasiumSpec) -> EnvSource:
        if _entry_module(spec) == "__main__":
            return cls(env_id, "id", env_id.encode(), main_only=True)
        return cls(env_id, "spec", cloudpickle.dumps(spec))

    @classmethod
    def from_file(cls, name: str, path: Path) -> EnvSource:
        """The environment `name` whose cloudpickled spec or factory is in `path`; nothing is unpickled here.

        Raises:
            ConfigurationError: the file cannot be read (ASYNC017).
        """
        try:
            return cls(name, "factory", path.read_bytes())
        except OSError as error:
            raise ConfigurationError(
                f"the environment {name} cannot be read: {error.strerror}",
                facts={"file": path},
                fix="check the path, or give the environment itself: Trainer(make_env, ...)",
            ) from error

    def build(self) -> gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any]:
        """Build one environment (or the factory's vector of them); called in the process that steps it.

        Gymnasium's passive checker and order enforcement are left out: `describe` has checked once what they
        would look at on every step, and an actor always resets first. The time limit stays.

        Raises:
            UnknownEnvironment: no such id, or a package it needs is not installed (ASYNC006).
            EnvironmentNotBuilt: unpacking or calling the constructor failed (ASYNC004).
            OldGymAPI: it is an environment of the old gym (ASYNC013).
        """
        import gymnasium
        from gymnasium.error import DependencyNotInstalled
        from gymnasium.vector import VectorEnv

        try:
            env = self._maker()()
        except AsyncRLError:
            raise
        except DependencyNotInstalled as error:
            raise self._needs_package(error) from error
        except Exception as error:
            raise self._not_built(
                f"failed: {type(error).__name__}: {error_text(error)}", traceback.format_exc()
            ) from error
        if not isinstance(env, (gymnasium.Env, VectorEnv)):
            raise env_checks.not_an_environment(self.name, env)
        return env

    def build_streams(self, num_envs: int) -> list[gymnasium.Env[Any, Any]] | VectorEnv[Any, Any, Any]:
        """`num_envs` environments, or one vector of `num_envs`.

        Raises:
            ValueError: the factory returns a vector of another size; and as `build`.
        """
        first = self.build()
        count = getattr(first, "num_envs", None)
        if count is None:
            return [first, *(self.build() for _ in range(num_envs - 1))]  # type: ignore[list-item]
        if count != num_envs:
            raise ValueError(
                f"envs_per_actor must be the {count} of the VectorEnv of {self.name}, got {num_envs}"
            )
        return first  # type: ignore[return-value]

    def _maker(self) -> Callable[[], Any]:
        import gymnasium

        named = self._registered() if self.kind == "id" else pickle.loads(self.payload)
        if not isinstance(named, gymnasium.envs.registration.EnvSpec):
            factory: Callable[[], Any] = named
            return factory
        spec = copy.copy(named)
        spec.order_enforce = False
        return lambda: gymnasium.make(spec, disable_env_checker=True)

    def _registered(self) -> GymnasiumSpec:
        """The registered spec of this id; `module:` in front of it is imported first, as gymnasium does."""
        import gymnasium

        module, _, env_id = self.payload.decode().rpartition(":")
        if module:
            try:
                importlib.import_module(module)
            except ModuleNotFoundError as error:
                if error.name is None or not module.startswith(error.name):
                    raise
                raise UnknownEnvironment(
                    f"There is no environment {self.name}: no module named {error.name!r} can be imported.",
                    fix=f"install the package that provides {error.name!r}, or correct the id",
                ) from None
        if env_id not in gymnasium.registry and _EXTRAS[0][1].search(env_id):
            _register_atari()
        try:
            return gymnasium.spec(env_id)
        except gymnasium.error.Error as error:
            raise self._unknown(env_id, str(error)) from None

    def _unknown(self, env_id: str, reason: str) -> UnknownEnvironment:
        import gymnasium

        if self.main_only:
            return UnknownEnvironment(
                f"The environment {self.name} is registered in __main__ only, where actors cannot see it.",
                fix=f"put its class and gymnasium.register() into a module and use 'module:{env_id}', "
                "or give a factory: Trainer(lambda: MyEnv(), ...)",
            )
        near = difflib.get_close_matches(env_id, list(gymnasium.registry), n=4, cutoff=0.6)
        facts: dict[str, object] = {"gymnasium says": reason}
        if near:
            facts["near misses"] = ", ".join(near)
        extra = _extra_for(env_id)
        fix = f'pip install "asyncrl[{extra}]"' if extra else "correct the id"
        fix += "" if extra else ", or import the package that registers it ('package:Env-v0')"
        return UnknownEnvironment(f"There is no environment {self.name}.", facts=facts, fix=fix)

    def _needs_package(self, error: Exception) -> UnknownEnvironment:
        extra = _extra_for(f"{self.name} {error}") or _extra_for(traceback.format_exc())
        return UnknownEnvironment(
            f"The environment {self.name} needs a package that is not installed.",
            facts={"gymnasium says": str(error)},
            fix=f'pip install "asyncrl[{extra}]"' if extra else "install that package",
        )

    def _not_built(self, what: str, trace: str) -> EnvironmentNotBuilt:
        fix = "make it build in a fresh process; it is not tried again"
        if "ModuleNotFoundError" in what or "ImportError" in what:
            fix = "actors import by name what is not defined in the main script: put that module on sys.path"
        return EnvironmentNotBuilt(
            f"The constructor of {self.name} {what}",
            facts={"environment": self.name},
            fix=fix,
            remote_traceback=trace,
        )


def describe(source: EnvSource) -> EnvSpec:
    """Build one environment, look at its spaces, reset and step it once, and say what it looks like.

    Runs in a process of its own (`asyncrl.actors.pool.probe`), because constructors may start threads, open
    windows or die.

    Raises:
        EnvironmentFailed: it does not build, or breaks gymnasium's contract (ASYNC004, 012, 013, 018).
        UserError: unknown (ASYNC006), or of a space that no ring can hold (ASYNC005).
    """
    env: Any = source.build()
    try:
        spec = env_checks.spec_of(source.name, env)
        env_checks.check_calls(source.name, env, spec)
        return spec
    finally:
        env.close()


def _entry_module(spec: GymnasiumSpec) -> str:
    entry = spec.entry_point
    if callable(entry):
        return str(getattr(entry, "__module__", ""))
    return str(entry or "").partition(":")[0]


def _extra_for(text: str) -> str | None:
    return next((extra for extra, pattern in _EXTRAS if pattern.search(text)), None)


def _register_atari() -> None:
    try:
        ale_py: Any = importlib.import_module("ale_py")
    except ImportError:
        return
    import gymnasium

    gymnasium.register_envs(ale_py)
