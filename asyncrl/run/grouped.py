"""A run that is one of several groups: joins the others, and ties its learner, stops, errors and snapshots to theirs.

Used on the run's event-loop thread. Without groups nothing of `asyncrl.groups` is imported but `place`.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from asyncrl.config import TrainerConfig
from asyncrl.errors import ConfigurationError, describe_error
from asyncrl.learning.learner import Learner
from asyncrl.learning.segment_balance import is_exact
from asyncrl.protocols import Algorithm
from asyncrl.run.group_counters import last_checkpoint, made_before
from asyncrl.run.group_shares import share_of, share_of_algorithm, shared_options
from asyncrl.show.group_statistics import GroupStatistics
from asyncrl.show.metrics import Snapshot
from asyncrl.storage.resume import Resumption

if TYPE_CHECKING:
    from asyncrl.groups.place import Place
    from asyncrl.groups.session import Session


def own_place(config: TrainerConfig) -> Place | None:
    """This process's place where torchrun has started it as one of several ranks, else None.

    Raises:
        ConfigurationError: `groups` is not how many ranks there are.
    """
    if "WORLD_SIZE" not in os.environ:
        return None
    from asyncrl.groups.place import place_of_process

    place = place_of_process()
    if place is not None and config.groups not in (1, place.size):
        raise ConfigurationError(
            f"groups must be how many ranks torchrun started, {place.size}, got {config.groups}",
            fix="leave --groups out under torchrun: every rank is a group",
        )
    return place


class Group:
    """One group of a run. Made by `join`.

    Args:
        session: with the other ranks.
        config, algorithm: of the whole run.
        resumed: the checkpoint of rank 0 that the run goes on from.

    Attributes:
        session: as given.
        whole: options of the whole run and of its algorithm.
        config, algorithm: this group's shares.
        resumed: the checkpoint that this group goes on from, or None.
        step_limit: environment steps that this group may take at most. Where fusion is `async` it is all of the run's,
            so that a fast group takes over what a slow one leaves.
    """

    def __init__(
        self, session: Session, config: TrainerConfig, algorithm: Algorithm, resumed: Resumption | None
    ) -> None:
        place = session.place
        self.resumed = resumed if session.leads or resumed is None else resumed.for_another_group()
        self.session, self.whole = session, (config, algorithm)
        machine = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        counted, done = 0, 0
        self._before = 0, 0
        if resumed is not None:
            counted, done = resumed.env_steps, resumed.env_steps + resumed.other_steps
            self._before = made_before(resumed, place.size, config.fusion)
        shares = {"on_machine": machine, "done": done, "counted": counted}
        self.config = share_of(config, place.rank, place.size, **shares)
        self.algorithm = share_of_algorithm(algorithm, place.size)
        self.step_limit = self.config.total_steps
        if config.fusion == "async" and config.total_steps is not None:
            self.step_limit = counted + max(1, config.total_steps - done)
        self._learner: Learner | None = None
        self._stop: Callable[[str], None] = lambda _: None
        self._rates: tuple[float, float] = 0.0, 0.0
        self._state = "starting"

    @classmethod
    async def join(
        cls,
        place: Place,
        config: TrainerConfig,
        algorithm: Algorithm,
        resumed: Resumption | None,
        cancelled: Callable[[], bool],
    ) -> Group:
        """Meet the other ranks at `place`; `cancelled` is asked meanwhile. Raises what `Session` raises."""
        from asyncrl.groups.fusing import FusionOptions
        from asyncrl.groups.session import Session

        config = dataclasses.replace(config, groups=place.size)
        options = FusionOptions(
            mode=config.fusion,
            interval=config.fusion_interval,
            max_staleness=config.max_fusion_staleness,
            dtype=config.fusion_dtype,
            learning_rate=config.fusion_learning_rate,
            momentum=config.fusion_momentum,
            moments=config.fusion_moments,
            exact=is_exact(algorithm),
        )
        shared = shared_options(config, algorithm)
        if place.life and resumed is None and (config.fusion != "async" or place.agents == 1):
            resumed = await asyncio.to_thread(last_checkpoint, config)
        start = pickle.dumps(resumed.for_another_group()) if resumed is not None else b""
        session = await asyncio.to_thread(Session, place, options, shared, cancelled, start)
        if not session.leads:
            resumed = pickle.loads(session.start) if session.start else None
        return cls(session, config, algorithm, resumed)

    @property
    def leads(self) -> bool:
        """Whether this group evaluates and writes the run."""
        return self.session.leads

    async def attach(
        self, learner: Learner, stop: Callable[[str], None], fail: Callable[[BaseException], None]
    ) -> None:
        """Tie the learner to those of the other groups.

        Args:
            learner: ready, and not started.
            stop: ends the run on this loop, as another group has.
            fail: the same with an error.

        Raises:
            GroupLost, ConfigurationError: see `Session.attach`.
        """
        from asyncrl.groups.fusing import Listeners

        self._learner, self._stop = learner, stop
        loop = asyncio.get_running_loop()

        def on_loop(function: Callable[[Any], None]) -> Callable[[Any], None]:
            def call(value: Any) -> None:
                with contextlib.suppress(RuntimeError):  # the loop has ended
                    loop.call_soon_threadsafe(function, value)

            return call

        def state() -> bytes:
            from asyncrl.groups.state import packed

            pack = learner.thread.call(lambda: packed(learner.core.state_dict()))
            return asyncio.run_coroutine_threadsafe(pack, loop).result()

        listeners = Listeners(
            status=self._status, stop=on_loop(stop), fail=on_loop(fail), beat=on_loop(self._beat), state=state
        )
        await learner.thread.call(lambda: self.session.attach(learner.core, listeners))
        await asyncio.to_thread(self.session.wait_for_others)
        self._state = "training"

    async def learn(self, learner: Learner) -> None:
        """Run the learner to its end, then fuse for the last time. Raises `GroupLost` where a rank is lost."""
        from asyncrl.groups.peers import PeerLost

        try:
            await learner.run()
            self._state = "finishing"
            await learner.thread.call(self.session.finish)
        except PeerLost as error:
            raise await asyncio.to_thread(self.session.explain, error) from error
        self._state = "finished"

    def tell_stop(self, reason: str) -> None:
        """Stop the other groups for the same reason; one that has used up its own steps stops nobody."""
        if reason != "total_steps" or self.whole[0].fusion == "async":
            self.session.tell_stop(reason)

    def tell_failure(self, error: BaseException) -> None:
        """Fail the other groups, where they cannot go on without this one."""
        self.session.tell_failure(describe_error(error))

    async def leave(self) -> None:
        """Let go of the other groups."""
        self._state = "ended"
        await asyncio.to_thread(self.session.leave)

    def _status(self) -> dict[str, Any]:
        learner, (steps, updates) = self._learner, self._rates
        return {
            "state": self._state,
            "host": self.session.place.machine,
            "fusion": self.whole[0].fusion,
            "env_steps": learner.inserted_steps if learner else 0,
            "updates": learner.updates if learner else 0,
            "env_steps_per_second": steps,
            "updates_per_second": updates,
        }

    def _beat(self, statuses: dict[int, dict[str, Any]]) -> None:
        """On rank 0 with `async`, end the job where all groups together have taken its steps."""
        total = self.whole[0].total_steps
        counts = self.leads and self.whole[0].fusion == "async" and total is not None
        done = self._before[0] + sum(status["env_steps"] for status in statuses.values())
        if counts and done >= (total or 0):
            self._stop("total_steps")

    # --- snapshots ---------------------------------------------------------------------------------------------------

    def shown(self, snapshot: Snapshot) -> Snapshot:
        """`snapshot` with its totals over all groups, and one record per group; that of rank 0 is the run's."""
        self._rates = snapshot.env_steps_per_second, snapshot.updates_per_second
        if not self.leads:
            return snapshot
        groups, counted = self.groups(), self.others()
        others = [group for group in groups if group.rank]
        together = self.whole[0].fusion != "gradients"  # otherwise all groups make the same updates
        return dataclasses.replace(
            snapshot,
            groups=groups,
            total_steps=self.whole[0].total_steps,
            env_steps=snapshot.env_steps + sum(counted["env_steps"]),
            env_steps_per_second=snapshot.env_steps_per_second
            + sum(group.env_steps_per_second for group in others),
            updates=snapshot.updates + sum(counted["updates"]),
            updates_per_second=snapshot.updates_per_second
            + together * sum(group.updates_per_second for group in others),
        )

    def others(self) -> dict[str, list[int]]:
        """Steps and updates of the other groups so far, as they count beside rank 0's; for its checkpoints.

        Fused gradients are the same updates in all groups, which count once.
        """
        others = [group for group in self.groups() if group.rank]
        together = self.whole[0].fusion != "gradients"
        steps, updates = self._before
        return {
            "env_steps": [steps, *(group.env_steps for group in others)],
            "updates": [updates, *(group.updates for group in others)] if together else [updates],
        }

    def groups(self) -> tuple[GroupStatistics, ...]:
        """What every group has told last, in the order of ranks."""
        heard = self.session.statuses()
        heard[self.session.place.rank] = {**self._status(), **dataclasses.asdict(self.session.statistics())}
        names = [field.name for field in dataclasses.fields(GroupStatistics) if field.name != "rank"]
        return tuple(
            GroupStatistics(rank=rank, **{name: status[name] for name in names if name in status})
            for rank, status in sorted(heard.items())
        )
