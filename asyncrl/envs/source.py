"""Sources of environments: id, gymnasium spec or factory, built in the process that steps the environment.

`EnvSource` is created in the main process, which builds no environment (and does not import gymnasium unless the user
did), except for the rewards of relabelled goals (`asyncrl.envs.goals`). It is sent as bytes and built in processes
forked for it.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import cloudpickle

from asyncrl.envs import checks as env_checks
from asyncrl.envs.changes import (
    Wrapper,
    missing_arguments,
    name_of_wrapper,
    pack_changes,
    refuse_running_statistics,
    unpack_changes,
    with_arguments,
    wrapped,
)
from asyncrl.envs.factory_pickle import factory_name, pack_factory
from asyncrl.envs.registered import entry_module, extra_for, find, installing, missing_extra, newer_mujoco
from asyncrl.errors import (
    AsyncRLError,
    ConfigurationError,
    EnvironmentNotBuilt,
    UnknownEnvironment,
    describe_error,
    environment_exceptions,
)
from asyncrl.interfaces import EnvSpec

if TYPE_CHECKING:
    import gymnasium
    from gymnasium.envs.registration import EnvSpec as GymnasiumSpec
    from gymnasium.vector import VectorEnv

    from asyncrl.envs.agents import AgentsEnv


EnvKind = Literal["id", "changed", "spec", "factory", "absent"]
"""Kind of source of an environment; see `EnvSource`."""


_EXAMPLES = {"observation_space": "Box(-1.0, 1.0, (4,))", "action_space": "Discrete(2)"}
"""The two spaces of an environment, and one of gymnasium.spaces for each, for an error's text."""
_SPEC, _BEGINNING = b"gymnasium.envs.registration", 64
"""Module that the pickle of a gymnasium spec names among its first bytes."""


@dataclass(frozen=True)
class EnvSource:
    """Picklable description of an environment, from which it is built.

    Attributes:
        name: the id, or the factory's qualified name.
        kind: `"id"`, `"changed"` (an id with keyword arguments or wrappers), `"spec"` (gymnasium's), `"factory"`, or
            `"absent"`, a factory that was left out of a file.
        payload: the id as UTF-8, the id and its changes as JSON, or the cloudpickled spec or factory, which is
            unpickled only in the process that builds it; empty where it is absent.
        main_only: the id is registered only by the main script, in this process, so actors cannot make it.
        levels: environments of evaluations with their names, "" for a single one; empty for this environment.
        evaluated: the environment of evaluations as it was given, without the keyword arguments of evaluations and
            levels; None for this one.
    """

    name: str
    kind: EnvKind
    payload: bytes
    main_only: bool = False
    levels: tuple[tuple[str, EnvSource], ...] = ()
    evaluated: EnvSource | None = None

    @classmethod
    def from_user(cls, env: str | GymnasiumSpec | Callable[[], Any] | EnvSource) -> EnvSource:
        """Make a source from the `env` argument of `Trainer`; builds nothing.

        An id registered in this process by another package than gymnasium and asyncrl, whose ids every process knows,
        is sent as its spec, so a package that registers environments at import needs to be imported in the user's
        script only.

        Raises:
            TypeError: `env` is none of these, or an environment that is already built.
            ValueError: the id is empty.
            FactoryNotPicklable: the factory does not pickle (ASYNC001).
        """
        if isinstance(env, EnvSource):
            return env
        if isinstance(env, str):
            return cls._from_id(env)
        if hasattr(env, "entry_point") and hasattr(env, "id"):
            return cls._from_spec(str(env.id), env)  # type: ignore[arg-type]
        if hasattr(env, "step") and hasattr(env, "reset") and not isinstance(env, type):
            made = type(getattr(env, "unwrapped", env)).__name__
            env_id = getattr(getattr(env, "spec", None), "id", None)
            what = f"its id, {env_id!r}, or " if env_id else ""
            raise TypeError(
                "env must be an id, a gymnasium EnvSpec or a zero-argument factory, got an environment "
                f"({made}); every use of it makes its own: give {what}a function that makes it: lambda: {made}(...)"
            )
        if isinstance(env, list | tuple):
            raise TypeError(
                f"env must be one function that makes one environment, got {len(env)} things: num_actors and "
                "envs_per_actor say how many are made of it"
            )
        if not callable(env):
            raise TypeError(
                "env must be an id, a gymnasium EnvSpec or a zero-argument factory, "
                f"got {type(env).__name__}: {env!r}"
            )
        return cls(factory_name(env), "factory", pack_factory(env))

    def changed(
        self,
        kwargs: Mapping[str, Any],
        wrappers: Sequence[Wrapper],
        *,
        agent_id: bool = False,
        pad_spaces: bool = False,
        policies: Mapping[str, str] = MappingProxyType({}),
    ) -> EnvSource:
        """Return a source with keyword arguments for the constructor, and with wrappers, innermost first.

        `agent_id`, `pad_spaces` and `policies` are wrappers too (`asyncrl.envs.agents`), so that all who build the
        source see them.

        Raises:
            TypeError: a wrapper is neither a name nor callable.
            FactoryNotPicklable: a wrapper does not pickle (ASYNC001).
        """
        chosen = {"PadSpaces": pad_spaces, "AgentId": agent_id}
        wrappers = (*wrappers, *(f"asyncrl.envs.agents:{name}" for name, wanted in chosen.items() if wanted))
        if policies:
            wrappers += (with_arguments("asyncrl.envs.agents:ByPolicy", patterns=dict(policies)),)
        if not kwargs and not wrappers:
            return self
        names = [name_of_wrapper(wrapper) for wrapper in wrappers]
        if self.kind == "id" and None not in names:
            payload = pack_changes(
                self.payload.decode(), kwargs, [name for name in names if name is not None]
            )
            return EnvSource(self.name, "changed", payload, self.main_only)
        return EnvSource(self.name, "factory", pack_factory(ChangedFactory(self, kwargs, wrappers)))

    def evaluated_in(
        self, env: EnvSource | None, kwargs: Mapping[str, Any], levels: Mapping[str, Mapping[str, Any]]
    ) -> EnvSource:
        """Return this source with other environments for evaluations.

        Args:
            env: the environment of evaluations, None for this one.
            kwargs: keyword arguments of its constructor, over those that it has.
            levels: further ones of each level, by name; empty for a single environment.
        """
        if env is None and not kwargs and not levels:
            return self
        base = (self if env is None else env).changed(kwargs, ())
        found = {name: base.changed(own, ()) for name, own in levels.items()} or {"": base}
        return dataclasses.replace(self, levels=tuple(found.items()), evaluated=env)

    def with_arguments(self, kwargs: Mapping[str, Any]) -> EnvSource:
        """Return this source with keyword arguments over its own, and over those of its evaluations' environments."""
        levels = tuple((name, level.changed(kwargs, ())) for name, level in self.levels)
        return dataclasses.replace(self.changed(kwargs, ()), levels=levels)

    def in_place_of(self, other: EnvSource, spec: EnvSpec) -> EnvSource:
        """Return this source with the wrappers of `other`, if these have names; those in a pickle are left out.

        What makes its agents those of `spec`, the one of `other`, is not left out.
        """
        if other.kind == "changed":
            return self.changed({}, unpack_changes(other.payload)[2])
        several = [spec] if spec.agents else []
        parts = [policy.spec for policy in spec.policies] or several
        return self.changed(
            {},
            (),
            agent_id=any(agent.index is not None for part in parts for agent in part.agents),
            pad_spaces=any(agent.values or agent.choices for part in parts for agent in part.agents),
            policies={policy.name: policy.pattern for policy in spec.policies},
        )

    @classmethod
    def _from_id(cls, env_id: str) -> EnvSource:
        if not env_id:
            raise ValueError("env must be an environment id such as 'CartPole-v1', got an empty string")
        registration = sys.modules.get("gymnasium.envs.registration")
        registered = registration.registry.get(env_id.rpartition(":")[2]) if registration else None
        if registered is None or entry_module(registered).partition(".")[0] in ("gymnasium", "asyncrl"):
            return cls(env_id, "id", env_id.encode())
        return cls._from_spec(env_id, registered)

    @classmethod
    def _from_spec(cls, env_id: str, spec: GymnasiumSpec) -> EnvSource:
        if entry_module(spec) == "__main__":
            return cls(env_id, "id", env_id.encode(), main_only=True)
        return cls(env_id, "spec", cloudpickle.dumps(spec))

    @classmethod
    def from_file(cls, name: str, path: Path) -> EnvSource:
        """Return the source `name` whose cloudpickled spec or factory is in the file `path`; unpickles nothing.

        Raises:
            ConfigurationError: the file cannot be read (ASYNC017).
        """
        try:
            pickled = path.read_bytes()
            return cls(name, "spec" if _SPEC in pickled[:_BEGINNING] else "factory", pickled)
        except OSError as error:
            raise ConfigurationError(
                f"the environment {name} cannot be read: {error.strerror}",
                facts={"file": path},
                fix="check the path, or give the environment itself: Trainer(make_env, ...)",
            ) from error

    def build(
        self, render_mode: str | None = None, training: bool = False
    ) -> gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any] | AgentsEnv:
        """Build one environment (or the factory's vector of them); called in the process that steps it.

        Structured observations become rows (`asyncrl.envs.packing`), several agents arrays (`asyncrl.envs.agents`).

        Gymnasium's passive checker and order enforcement are disabled: `describe` has made their checks once, and an
        actor always resets first. The time limit remains.

        Args:
            render_mode: render mode, ignored if the constructor has no such parameter (see `asyncrl.envs.rendering`).
            training: whether it is for an actor; passed to Atari games and to a factory with such a parameter.

        Raises:
            UnknownEnvironment: the id is unknown, or a package it needs is not installed (ASYNC006).
            EnvironmentNotBuilt: unpickling or the constructor failed, or its result is no environment (ASYNC004).
            OldGymAPI: it is an environment of the old gym (ASYNC013).
            SpacesDoNotFit: it has several agents with different spaces (ASYNC005).
            ConfigurationError: it is absent, or normalises by running statistics (ASYNC017).
        """
        import gymnasium
        from gymnasium.error import DependencyNotInstalled, UnregisteredEnv
        from gymnasium.vector import VectorEnv

        from asyncrl.envs.agents import agents_of
        from asyncrl.envs.packing import packed

        try:
            env = _made(self._maker(training), render_mode, {})
            if isinstance(env, gymnasium.Env):
                self._require_spaces(env)
            refuse_running_statistics(self.name, env)
            agents = agents_of(self.name, env)
        except AsyncRLError:
            raise
        except DependencyNotInstalled as error:
            raise self._needs_package(error) from error
        except UnregisteredEnv as error:
            raise self._not_registered(error) from error
        except environment_exceptions() as error:  # one that reads the command line by argparse exits
            if isinstance(error, ModuleNotFoundError) and missing_extra(error.name or ""):
                raise self._needs_package(error) from error
            raise self._not_built(f"failed: {describe_error(error)}", traceback.format_exc()) from error
        if agents is not None:
            return agents
        if not isinstance(env, (gymnasium.Env, VectorEnv)):
            raise env_checks.not_an_environment(self.name, env)
        return packed(env)  # type: ignore[no-any-return]

    def build_streams(self, num_envs: int) -> list[Any] | VectorEnv[Any, Any, Any]:
        """Build `num_envs` environments, or one vector of `num_envs`, for an actor.

        Raises:
            ValueError: the factory returns a vector of another size.
            AsyncRLError: see `build`.
        """
        first = self.build(training=True)
        count = getattr(first, "num_envs", None)
        if count is None:
            return [first, *(self.build(training=True) for _ in range(num_envs - 1))]
        if count != num_envs:
            raise ValueError(
                f"envs_per_actor must be the {count} of the VectorEnv of {self.name}, got {num_envs}"
            )
        return first  # type: ignore[return-value]

    def _maker(self, training: bool = False) -> Callable[..., Any]:
        """Return a function that makes the environment; its keyword arguments are those of the constructor."""
        if self.kind == "changed":
            env_id, kwargs, wrappers = unpack_changes(self.payload)
            inner = EnvSource(self.name, "id", env_id.encode(), self.main_only)._maker(training)
            return lambda **more: wrapped(inner(**kwargs | more), wrappers)
        self.require_present()
        import gymnasium

        by_id = self.kind == "id"
        named = find(self.payload.decode(), self.main_only) if by_id else pickle.loads(self.payload)
        if not isinstance(named, gymnasium.envs.registration.EnvSpec):
            factory: Callable[..., Any] = named
            return partial(factory, training=training) if "training" in _arguments(factory) else factory
        spec = copy.copy(named)
        spec.order_enforce = False
        if spec.id.startswith("ALE/"):
            from asyncrl.envs.atari import is_atari, make_atari

            if is_atari(spec):
                return partial(make_atari, spec, training)
        return partial(gymnasium.make, spec, disable_env_checker=True)

    def require_present(self) -> None:
        """Raise `ConfigurationError` (ASYNC017) if the environment is absent."""
        if self.kind == "absent":
            raise ConfigurationError(
                f"the environment {self.name} is a function of the author's, which is not in the policy's file",
                fix="make it yourself: asyncrl eval POLICY --env my_module:MyEnv, or in Python env = MyEnv() and "
                "policy.predict(obs)",
            )

    def _require_spaces(self, env: gymnasium.Env[Any, Any]) -> None:
        """Raise `EnvironmentNotBuilt` (ASYNC004) unless the environment has both spaces."""
        lacking = [name for name in _EXAMPLES if getattr(env, name, None) is None]
        if lacking:
            names = " and ".join(lacking)
            raise EnvironmentNotBuilt(
                f"The environment {self.name} has no {names}.",
                facts={"class": type(env.unwrapped).__qualname__},
                fix=f"set it in __init__, for example self.{lacking[0]} = gymnasium.spaces.{_EXAMPLES[lacking[0]]}",
            )

    def _needs_package(self, error: Exception) -> UnknownEnvironment:
        extra = extra_for(f"{self.name} {error}") or extra_for(traceback.format_exc())
        named = [
            name.partition(".")[0] for e in (error, error.__cause__) if (name := getattr(e, "name", None))
        ]
        what = f"{named[0]}, which" if named else "a package that"
        return UnknownEnvironment(
            f"The environment {self.name} needs {what} is not installed.",
            facts={"reason": str(error)},
            fix=installing(extra) if extra else "install that package",
        )

    def _not_registered(self, error: Exception) -> UnknownEnvironment:
        """Return the error for code of the user that makes an environment by an id which is unknown in this process."""
        return UnknownEnvironment(
            f"{self.name} makes an environment of an id that is not registered in the actors, which do not run the "
            "main script.",
            facts={"gymnasium says": str(error)},
            fix="correct the id; call gymnasium.register(), or import the package that does, inside the function that "
            "makes it; or give the environment's class: Trainer(MyEnv, ...)",
            remote_traceback=traceback.format_exc(),
        )

    def _not_built(self, what: str, trace: str) -> EnvironmentNotBuilt:
        fix = "make it build in a fresh process; it is not tried again"
        if self.kind == "changed" and unpack_changes(self.payload)[1]:
            fix = (
                "correct a value of env_kwargs (--env-kwargs), or make it build with them in a fresh process"
            )
        if "ModuleNotFoundError" in what or "ImportError" in what:
            fix = "install the package; if the module is yours, put its directory on sys.path: actors import it by name"
        if "mujoco v2 and v3 based environments" in what:
            fix = 'write the newest version of its id, Name-v5, with pip install "asyncrl[mujoco]"'
        if "unexpected keyword argument" in what:
            fix = (
                "correct env_kwargs (--env-kwargs), or those of evaluations (eval_env_kwargs, eval_levels): "
                "the names are those of the constructor's arguments"
            )
        if missing := missing_arguments(what):
            given = ", ".join(f"{name!r}: ..." for name in missing)
            fix = (
                f"give it: --env-kwargs {' '.join(f'{name}:...' for name in missing)}, env_kwargs={{{given}}}"
            )
        if newer := newer_mujoco(trace):
            fix = newer
        return EnvironmentNotBuilt(
            f"The constructor of {self.name} {what}",
            facts={"environment": self.name},
            fix=fix,
            remote_traceback=trace,
        )


def describe(source: EnvSource, report: Callable[[EnvSpec], None] = lambda spec: None) -> EnvSpec:
    """Build one environment, check its spaces, reset and step it once, and return its `EnvSpec`.

    Runs in a separate process (`asyncrl.actors.probe`), because constructors may start threads, open windows or
    crash. `report` is called with the spec before the environment is closed, because `close` may hang.

    Raises:
        EnvironmentFailed: it does not build, raises, or breaks gymnasium's contract (ASYNC002, 004, 012, 013, 018).
        UserError: it is unknown (ASYNC006), or has a space that no ring can store (ASYNC005).
    """
    env: Any = source.build()
    try:
        spec = env_checks.checked_spec(source.name, env)
        report(spec)
        return spec
    finally:
        env_checks.close_env(env)


def _made(maker: Callable[..., Any], render_mode: str | None, kwargs: Mapping[str, Any]) -> Any:
    """Call `maker`, with the render mode if it has that parameter."""
    if render_mode is not None and _takes_render_mode(maker):
        kwargs = {**kwargs, "render_mode": render_mode}
    return maker(**kwargs)


def _takes_render_mode(factory: Callable[..., Any]) -> bool:
    parameters = _arguments(factory)
    return "render_mode" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _arguments(factory: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Parameters of a factory by name; empty if it has no signature."""
    try:
        return inspect.signature(factory).parameters
    except (TypeError, ValueError):
        return {}


@dataclass(frozen=True)
class ChangedFactory:
    """Factory of a source with changes that have no text form."""

    source: EnvSource
    kwargs: Mapping[str, Any]
    wrappers: tuple[Wrapper, ...]

    def __call__(self, render_mode: str | None = None, training: bool = False, **more: Any) -> Any:
        """Build the environment; `more` are keyword arguments over its own."""
        kwargs = {**self.kwargs, **more}
        return wrapped(_made(self.source._maker(training), render_mode, kwargs), self.wrappers)
