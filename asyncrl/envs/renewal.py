"""New keyword arguments for an environment between two of its episodes.

An environment with a method `set_env_kwargs(**kwargs)`, or a wrapper with one, gets them by it and lives on. Any other
is closed and built again. A vector environment steps all its episodes at once, so it needs the method, and decides
itself that they hold from each of its next episodes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from asyncrl.envs import checks as env_checks
from asyncrl.envs.changes import INSIDE, held_by
from asyncrl.envs.source import EnvSource
from asyncrl.errors import ConfigurationError, EnvironmentNotBuilt, SpacesDoNotFit, environment_calls
from asyncrl.interfaces import EnvSpec

METHOD = "set_env_kwargs"


def method_of(env: Any) -> Callable[..., None] | None:
    """Return the method of the outermost layer of `env` that has it; None if none has."""
    while env is not None:
        if callable(getattr(type(env), METHOD, None)):
            method: Callable[..., None] = getattr(env, METHOD)
            return method
        held = held_by(env)
        env = next((held[name] for name in INSIDE if name in held), None)
    return None


@dataclass(frozen=True)
class Renewal:
    """Change of the keyword arguments of an actor's environments.

    Attributes:
        source: the environment as the run began.
        spec: its spec, which no change may alter.
        kwargs: the keyword arguments, over those of `source`.
        number: index of the change in the run, from 1.
        seeds: seed for each stream's first reset of an environment that is built again.
    """

    source: EnvSource
    spec: EnvSpec
    kwargs: Mapping[str, Any]
    number: int = 0
    seeds: tuple[int, ...] = ()

    def renewed(self, env: Any) -> tuple[Any, bool]:
        """Return the environment with these keyword arguments, and whether it was built again; `env` is then closed.

        Raises:
            ConfigurationError: it is a vector environment without the method (ASYNC017).
            EnvironmentNotBuilt: its constructor does not take them (ASYNC004).
            EnvironmentRaised: its method does not take them (ASYNC002).
            SpacesDoNotFit: its spaces are others with them (ASYNC005).
        """
        method = method_of(env)
        if method is None and hasattr(env, "num_envs"):
            raise ConfigurationError(
                f"set_env_kwargs needs a method of that name of the vector environment {self.source.name}: it cannot "
                "be built again at the end of one of its episodes",
                facts={"env_kwargs": dict(self.kwargs)},
                fix=f"give it {METHOD}(self, **kwargs), which changes the episodes that begin afterwards",
            )
        if method is not None:
            with environment_calls(
                f"{METHOD} of {self.source.name}",
                "",
                "let it take these keyword arguments, or give others",
                lambda: {"env_kwargs": dict(self.kwargs)},
            ):
                method(**self.kwargs)
        else:
            env_checks.close_env(env)
            try:
                env = self.source.changed(self.kwargs, ()).build(training=True)
            except EnvironmentNotBuilt as error:
                error.facts["env_kwargs"] = dict(self.kwargs)
                raise
        try:
            env_checks.require_spaces(self.spec, env)
        except SpacesDoNotFit as error:
            if method is None:
                env_checks.close_env(env)
            run, here = error.facts.values()
            what = "agents" if run == env_checks.agents_text(self.spec) else "spaces"
            raise SpacesDoNotFit(
                f"The {what} of {self.source.name} are others with these env_kwargs; a run's {what} cannot change.",
                facts={"of the run": run, "with these": here, "env_kwargs": dict(self.kwargs)},
                fix=f"give all of its variants the same {what}, those of the largest"
                + ("; some of them may take no part in an episode" if what == "agents" else ""),
            ) from error
        return env, method is None


def try_renewal(renewal: Renewal) -> None:
    """Build an environment, change its keyword arguments, reset it and step it once, all in a process of its own.

    Raises:
        AsyncRLError: see `Renewal.renewed` and `asyncrl.envs.source.describe`.
    """
    env: Any = renewal.source.build(training=True)
    try:
        env, _ = renewal.renewed(env)
        env_checks.check_calls(renewal.source.name, env, renewal.spec)
    finally:
        env_checks.close_env(env)
