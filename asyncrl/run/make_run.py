"""What runs a run: a coordinator, one of several groups', or what starts the processes of the groups."""

from __future__ import annotations

import os
from collections.abc import Callable

from asyncrl.actors.forkserver import ForkServer
from asyncrl.envs.source import EnvSource
from asyncrl.protocols import Algorithm
from asyncrl.run.callbacks import Callbacks
from asyncrl.run.config import TrainerConfig
from asyncrl.run.coordinator import Coordinator
from asyncrl.run.grouped import Group, own_place
from asyncrl.run.ranks import Ranks
from asyncrl.run.resume import Resumption
from asyncrl.show.metrics import Snapshot


async def make_run(
    config: TrainerConfig,
    algorithm: Algorithm,
    source: EnvSource,
    server: ForkServer,
    receive: Callable[[Snapshot], None],
    *,
    started: float | None,
    callbacks: Callbacks,
    resumed: Resumption | None,
    cancelled: Callable[[], bool],
) -> Coordinator | Ranks:
    """Make the run, on the loop that it is to run on; one of several groups waits for the others first.

    Args:
        config: options of the run.
        algorithm: its record.
        source: the environment.
        server: a fork server, which the run closes.
        receive: called with every snapshot.
        started: see `Coordinator`.
        callbacks: the user's.
        resumed: the checkpoint to go on from; of several groups rank 0 goes on from it, and gives it to the others.
        cancelled: asked while other groups are waited for.

    Raises:
        ConfigurationError: the groups do not fit together, or a run directory cannot be used.
        GroupLost: a group did not come.
    """
    parts = (config, algorithm, source, server, receive)
    place = own_place(config)
    if place is not None:
        done = resumed.meta.env_steps if resumed is not None else 0
        group = await Group.join(place, config, algorithm, done, cancelled)
        resumed = resumed if group.leads else None
        parts = (group.config, group.algorithm, source, server, receive)
        return Coordinator(*parts, started=started, callbacks=callbacks, resumed=resumed, group=group)
    if config.groups > 1 and "RANK" not in os.environ:
        return Ranks(*parts, callbacks=callbacks, resumed=resumed)
    return Coordinator(*parts, started=started, callbacks=callbacks, resumed=resumed)
