"""What an environment looks like, found out in a process of its own."""

from __future__ import annotations

import pickle

from asyncrl.actors.child import Child, ChildDied
from asyncrl.actors.deaths import actor_killed
from asyncrl.actors.forkserver import ForkServer
from asyncrl.core import EnvSpec
from asyncrl.envs import EnvSource


async def probe(server: ForkServer, source: EnvSource) -> EnvSpec:
    """Build and check one environment in a process of its own; what it looks like.

    Raises:
        EnvironmentFailed: it does not build or breaks gymnasium's contract (ASYNC002, 004, 012, 013, 018).
        UserError: it is unknown (ASYNC006) or has spaces that cannot be stored (ASYNC005).
        ActorKilled: building it killed the process (ASYNC003).
    """
    child = Child(server, "probe")
    try:
        await child.start(pickle.dumps(source), {})
        spec: EnvSpec = (await child.receive())["spec"]
        return spec
    except ChildDied as died:
        raise actor_killed(f"The process that built {source.name}", died.exit, 0) from died
    finally:
        await child.end()
