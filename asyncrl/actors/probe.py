"""Probe, trial, changed keyword arguments and film of an environment, each in a separate process."""

from __future__ import annotations

import pickle
from typing import Any

from asyncrl.actors.child import Child, ChildDied, ChildSilent
from asyncrl.actors.exit_errors import actor_killed, build_hung
from asyncrl.actors.forkserver import ForkServer
from asyncrl.actors.limits import READY_SECONDS
from asyncrl.actors.plans import FilmPlan
from asyncrl.envs.renewal import Renewal
from asyncrl.envs.source import EnvSource
from asyncrl.envs.trial import Trial
from asyncrl.interfaces import EnvSpec


async def probe(
    server: ForkServer, source: EnvSource, ready_timeout_seconds: float = READY_SECONDS
) -> EnvSpec:
    """Build and check one environment in a separate process; return its spec.

    Args:
        server: fork server; if it dies meanwhile, the probe is repeated with its replacement.
        source: the environment.
        ready_timeout_seconds: time limit for building, resetting and checking the environment.

    Raises:
        EnvironmentFailed: it does not build, hangs, or breaks gymnasium's contract (ASYNC002, 004, 012, 013, 015, 018).
        UserError: it is unknown (ASYNC006) or has spaces that cannot be stored (ASYNC005).
        ActorKilled: building it killed the process (ASYNC003).
    """
    spec: EnvSpec = (await _played(server, "probe", source, source, ready_timeout_seconds))["spec"]
    return spec


async def probe_renewal(server: ForkServer, renewal: Renewal, ready_timeout_seconds: float) -> None:
    """Change the keyword arguments of one environment in a separate process; raises as `try_renewal` and `probe` do."""
    await _played(server, "renewal", renewal, renewal.source, ready_timeout_seconds)


async def trial(
    server: ForkServer, source: EnvSource, seconds: float, ready_timeout_seconds: float = READY_SECONDS
) -> Trial:
    """Probe one environment, and step it with random actions for `seconds`; raises as `probe` does."""
    frame = await _played(server, "trial", (source, seconds), source, ready_timeout_seconds + seconds)
    found: Trial = frame["trial"]
    return found


async def film_episode(server: ForkServer, plan: FilmPlan, timeout_seconds: float) -> dict[str, Any]:
    """Film one greedy episode in a separate process; return its return, its length, and whether it was cut.

    Raises:
        ConfigurationError: the environment cannot be rendered (ASYNC017).
        ResourceError: the file cannot be written.
        AsyncRLError: the environment failed, or took longer than the limit (ASYNC015).
    """
    return await _played(server, "film", plan, plan.source, timeout_seconds)


async def _played(
    server: ForkServer, role: str, plan: object, source: EnvSource, timeout_seconds: float
) -> dict[str, Any]:
    """Run a process of this role and return its only frame."""
    while True:
        child = Child(server, role)
        try:
            await child.start(pickle.dumps(plan), {})
            return await child.receive_within(timeout_seconds)
        except ChildDied as died:
            if not died.exit.server_lost:
                who = f"The process that built {source.name}"
                raise actor_killed(who, died.exit, 0, crash=died.crash) from died
        except ChildSilent as silent:
            child.kill()
            raise build_hung(f"The environment {source.name}", silent.seconds, silent.stack) from None
        finally:
            await child.end()
