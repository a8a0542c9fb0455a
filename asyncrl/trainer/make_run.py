"""Choice of a run's implementation: the coordinator of one group, or the launcher of several groups' processes."""

from __future__ import annotations

import os
from collections.abc import Callable

from asyncrl.actors.forkserver import ForkServer
from asyncrl.config import TrainerConfig
from asyncrl.envs.source import EnvSource
from asyncrl.protocols import Algorithm
from asyncrl.run.alone import Alone
from asyncrl.run.callbacks import Callbacks
from asyncrl.run.coordinator import Coordinator
from asyncrl.run.grouped import Group, own_place
from asyncrl.show.metrics import Snapshot
from asyncrl.storage.resume import Resumption
from asyncrl.trainer.ranks import Ranks


async def join_groups(
    config: TrainerConfig,
    algorithm: Algorithm,
    resumed: Resumption | None,
    cancelled: Callable[[], bool],
) -> Group | Alone:
    """Join the other groups and return this process's group; `Alone` if the process is not one of several ranks.

    Raises:
        ConfigurationError: the groups' options do not match.
        GroupLost: a group did not join.
        StoppedWhileStarting: `cancelled` returned True meanwhile.
    """
    place = own_place(config)
    if place is None:
        return Alone(config, algorithm, resumed)
    return await Group.join(place, config, algorithm, resumed, cancelled)


def make_run(
    group: Group | Alone,
    source: EnvSource,
    server: ForkServer,
    receive: Callable[[Snapshot], None],
    started: float | None,
    callbacks: Callbacks,
) -> Coordinator | Ranks:
    """Make the run of `group`, on its event loop; the arguments are those of `Coordinator`.

    Raises:
        ConfigurationError: the run directory cannot be used.
    """
    starts_groups = isinstance(group, Alone) and group.config.groups > 1 and "RANK" not in os.environ
    rest = (source, server, receive, started, callbacks)
    try:
        return (
            Ranks(group.config, group.algorithm, *rest, group) if starts_groups else Coordinator(group, *rest)
        )
    except BaseException as error:
        group.tell_failure(error)  # the other groups would wait for this one
        raise
