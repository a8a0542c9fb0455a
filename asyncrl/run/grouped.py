"""A run that is one of several groups: it joins the others and couples learner, stops, errors and snapshots to theirs.

Steps count over all groups, so each of N groups gets 1/N of every limit and schedule; the replay is sharded by group.
Seeds are spawned from the run's seed, and actors are counted over all groups. Rank 0 evaluates, writes the run and
serves the page. Every other group writes to the directory `groups/<rank>` in the run's, and neither evaluates nor
serves a page.

Used on the run's event-loop thread. Without groups nothing of `asyncrl.groups` but `place` is imported.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import math
import os
import pickle
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from asyncrl.config import TrainerConfig, usable_cores
from asyncrl.errors import ConfigurationError, describe_error
from asyncrl.learning.learner import Learner
from asyncrl.options import option_values
from asyncrl.protocols import Algorithm
from asyncrl.run.job import Job
from asyncrl.show.group_statistics import GroupStatistics
from asyncrl.show.metrics import Snapshot, over_groups
from asyncrl.storage.resume import Resumption, prepare_resumption

if TYPE_CHECKING:
    from asyncrl.groups.place import Place
    from asyncrl.groups.session import Session

AlgorithmT = TypeVar("AlgorithmT", bound=Algorithm)

STEP_OPTIONS = ("learning_starts", "replay_capacity", "exploration_steps", "random_steps")
"""Algorithm options that are numbers of environment steps over all actors."""
OWN_OPTIONS = (
    *("run_dir", "http", "host", "on_end", "device", "torch_threads", "num_actors"),
    *("env_file", "eval_env_file", "burst_seconds"),
    *("report_interval_seconds", "report_interval_steps", "checkpoint_interval_seconds", "checkpoints_kept"),
)
"""Run options that may differ between ranks."""
OFTEN_BEFORE_SECONDS = 1.5
"""Time before the end of the job by its steps from which the groups' counters are exchanged more often."""


def own_place(config: TrainerConfig) -> Place | None:
    """Place of this process if torchrun has started it as one of several ranks, else None.

    Raises:
        ConfigurationError: `groups` is neither 1 nor the number of ranks.
    """
    if "RANK" not in os.environ:  # a run of one group imports nothing of groups
        return None
    from asyncrl.groups.place import place_of_process, ranks_of_process

    ranks = ranks_of_process()
    if ranks is not None and config.groups not in (1, ranks):  # a rank starts no groups
        raise ConfigurationError(
            f"groups must be how many ranks torchrun started, {ranks}, got {config.groups}",
            fix="leave --groups out under torchrun: every rank is a group",
        )
    return place_of_process()


class Alone:
    """The only group of a run, which may resume one of several: the methods of `Group`, without connections.

    Attributes:
        whole, job, leads, max_env_steps, among: see `Group`. What the groups of a resumed run had made beside rank 0 is
            not to be made again.
    """

    leads = True
    among = None

    def __init__(self, whole: Job) -> None:
        steps, resumed = whole.config.total_steps, whole.resumed
        self._others = self._begun = 0, 0
        if resumed is not None:
            self._begun = resumed.env_steps, resumed.meta.updates  # until the learner counts them
            if resumed.other_steps:
                self._others = resumed.other_steps, resumed.other_updates
        self.max_env_steps = None if steps is None else max(1, steps - self._others[0])
        config = dataclasses.replace(whole.config, total_steps=self.max_env_steps)
        self.whole, self.job = whole, dataclasses.replace(whole, config=config)

    def share(self, algorithm: AlgorithmT, whole: AlgorithmT) -> AlgorithmT:
        """Return `algorithm`."""
        return algorithm

    async def attach(self, learner: Learner, stop: object, fail: object) -> None:
        """Note that the learner counts from now on."""
        self._begun = 0, 0

    async def learn(self, learner: Learner) -> None:
        """Run the learner to its end."""
        await learner.run()

    def tell_stop(self, reason: str) -> None:
        """Nobody is to be told."""

    def tell_failure(self, error: BaseException) -> None:
        """Nobody is to be told."""

    async def leave(self) -> None:
        """Nothing is to be left."""

    def shown(self, snapshot: Snapshot) -> Snapshot:
        """Return `snapshot` with the totals over the groups of the resumed run."""
        (steps, updates), (begun, made) = self._others, self._begun
        others = {"time/total_timesteps": steps + begun, "train/n_updates": updates + made}
        metrics, total = over_groups(snapshot.metrics, [others]), self.whole.config.total_steps
        return dataclasses.replace(snapshot, total_steps=total, metrics=metrics)

    def others(self) -> dict[str, list[int]]:
        """Steps and updates of the other groups of the resumed run, for checkpoints."""
        steps, updates = self._others
        return {"env_steps": [steps], "updates": [updates]} if steps else {}

    def other_steps(self, env_steps: int) -> int:
        """Environment steps of these."""
        return self._others[0]

    def scheduled_elsewhere(self) -> int:
        """No steps of other groups count towards schedules."""
        return 0


class Group:
    """One group of a run. Made by `join`.

    Args:
        session: the session with the other ranks.
        whole: the whole run, with the checkpoint of rank 0.

    Attributes:
        session, whole: as given.
        job: this group's share, with its own checkpoint. With `async` fusion `total_steps` is that of the whole run.
        max_env_steps: limit of this group's environment steps. With `async` fusion it is that of the whole run, so that
            a fast group takes over the steps of a slow one.
        among: index of this group's first actor among those of all groups, and their number, as if each had as many.
            Exploration rates and noise scales differ along these indices; a group with another number of actors than
            the others covers its part of that range in other steps.
    """

    def __init__(self, session: Session, whole: Job) -> None:
        place, config, resumed = session.place, whole.config, whole.resumed
        self.session, self.whole = session, whole
        machine = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        counted, done = 0, 0
        self._before = self._begun = 0, 0
        self._last_count: tuple[int, float] | None = None
        if resumed is not None:
            counted, done = resumed.env_steps, resumed.total_steps
            self._before = made_before(resumed, place.size, config.fusion)
            self._begun = resumed.meta.env_steps, resumed.meta.updates
        share = share_of(config, place.rank, place.size, on_machine=machine, done=done, counted=counted)
        self.max_env_steps = share.total_steps
        if config.fusion == "async" and config.total_steps is not None:
            self.max_env_steps = counted + max(1, config.total_steps - done)
            share = dataclasses.replace(share, total_steps=config.total_steps)
        own = resumed if session.leads or resumed is None else resumed.for_another_group()
        self.job = Job(share, share_of_algorithm(whole.algorithm, place.size), whole.source, own)
        self._elsewhere = self._before[0] + (place.size - 1) * self._begun[0]
        self.among = place.rank * share.actors, place.size * share.actors
        self._learner: Learner | None = None
        self._stop: Callable[[str], None] = lambda _: None
        self._latest: Snapshot | None = None
        self._state = "starting"

    @classmethod
    async def join(cls, place: Place, job: Job, cancelled: Callable[[], bool]) -> Group:
        """Join the other ranks from `place`; `cancelled` is polled meanwhile. Raises what `Session` raises."""
        from asyncrl.groups.session import Session

        config = dataclasses.replace(job.config, groups=place.size)
        shared, resumed = shared_options(config, job.algorithm), job.resumed
        if place.life and resumed is None and (config.fusion != "async" or place.agents == 1):
            resumed = await asyncio.to_thread(last_checkpoint, config)
        start = pickle.dumps(resumed.for_another_group()) if resumed is not None else b""
        session = await asyncio.to_thread(
            Session, place, config, shared, cancelled, start, exact=job.algorithm.exact
        )
        if not session.leads:
            resumed = pickle.loads(session.start) if session.start else None
        return cls(session, dataclasses.replace(job, config=config, resumed=resumed))

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which evaluates and writes the run."""
        return self.session.leads

    def share(self, algorithm: AlgorithmT, whole: AlgorithmT) -> AlgorithmT:
        """Return `algorithm` with this group's shares of what the run has chosen for `whole`."""
        return share_of_algorithm(algorithm, self.session.place.size, whole)

    async def attach(
        self, learner: Learner, stop: Callable[[str], None], fail: Callable[[BaseException], None]
    ) -> None:
        """Connect the learner to the learners of the other groups.

        Args:
            learner: the learner, ready and not started.
            stop: ends the run on this loop; called when another group has stopped.
            fail: ends the run with an error; called when a group is lost or has failed.

        Raises:
            GroupLost, ConfigurationError: see `Session.attach`.
        """
        from asyncrl.groups.state import state_of

        self._learner, self._stop = learner, stop
        loop = asyncio.get_running_loop()

        def on_loop(function: Callable[[Any], None]) -> Callable[[Any], None]:
            def call(value: Any) -> None:
                with contextlib.suppress(RuntimeError):  # the loop has ended
                    loop.call_soon_threadsafe(function, value)

            return call

        attach = partial(
            self.session.attach,
            learner.core,
            status=self._status,
            state=lambda: state_of(learner, loop),
            on_stop=on_loop(stop),
            on_failure=on_loop(fail),
            on_beat=on_loop(self._beat),
        )
        await learner.thread.call(attach)
        await asyncio.to_thread(self.session.wait_for_others)
        self._state = "training"

    async def learn(self, learner: Learner) -> None:
        """Run the learner to its end, then fuse for the last time. Raises `GroupLost` if a rank is lost."""
        from asyncrl.groups.peers import PeerLost

        try:
            await learner.run()
            self._state = "finishing"
            await learner.thread.call(self.session.finish)
        except PeerLost as error:
            raise await asyncio.to_thread(self.session.explain, error) from error
        self._state = "finished"

    def tell_stop(self, reason: str) -> None:
        """Stop the other groups for the same reason, unless this group has only used up its own share of the steps."""
        if reason != "total_steps" or self.whole.config.fusion == "async":
            self.session.tell_stop(reason)

    def tell_failure(self, error: BaseException) -> None:
        """Fail the other groups with `error` if they cannot continue without this one."""
        self.session.tell_failure(describe_error(error))

    async def leave(self) -> None:
        """Leave the session with the other groups."""
        self._state = "ended"
        await asyncio.to_thread(self.session.leave)

    def _status(self) -> dict[str, Any]:
        """Status of this group for the others: entries of `GroupStatistics`, and its own metrics."""
        learner, latest = self._learner, self._latest
        lag = latest.policy_lag_sum / max(1, sum(latest.policy_lag_counts)) if latest else 0.0
        return {
            "state": self._state,
            "host": self.session.place.machine,
            "fusion": self.whole.config.fusion,
            "env_steps": learner.inserted_steps if learner else 0,
            "updates": learner.updates if learner else 0,
            "env_steps_per_second": latest.env_steps_per_second if latest else 0.0,
            "updates_per_second": latest.updates_per_second if latest else 0.0,
            "policy_lag_mean": lag,
            "metrics": latest.metrics if latest else {},
        }

    def _beat(self, statuses: dict[int, dict[str, Any]]) -> None:
        """With `async` fusion, end the job on rank 0 once all groups together have taken its steps.

        All ranks exchange their counters more often shortly before that.
        """
        total = self.whole.config.total_steps
        if self.whole.config.fusion != "async" or total is None:
            return
        done, now = sum(status["env_steps"] for status in statuses.values()), time.monotonic()
        done += self._made_before()[0]
        place, unknown = self.session.place, {"env_steps": self._begun[0]}
        others = (statuses.get(rank, unknown) for rank in range(place.size) if rank != place.rank)
        self._elsewhere = self._made_before()[0] + sum(status["env_steps"] for status in others)
        if self.leads and done >= total:
            self._stop("total_steps")
        before, then = self._last_count or (done, now)
        self._last_count = done, now
        near = (total - done) * (now - then) < OFTEN_BEFORE_SECONDS * (done - before)
        if near and self.session.heartbeat is not None:
            self.session.heartbeat.beat_often()

    # --- snapshots ---------------------------------------------------------------------------------------------------

    def shown(self, snapshot: Snapshot) -> Snapshot:
        """Return `snapshot` with totals over all groups and one record per group; on other ranks than 0, unchanged."""
        self._latest = snapshot
        if not self.leads:
            return snapshot
        counted, rank = self.others(), self.session.place.rank
        begun, made = self._begun if self._learner is None else (0, 0)  # until the learner counts them
        others = [status.get("metrics", {}) for r, status in self.session.statuses().items() if r != rank]
        metrics = over_groups(snapshot.metrics, others) | {
            "time/total_timesteps": snapshot.env_steps + begun + sum(counted["env_steps"]),
            "train/n_updates": snapshot.updates + made + sum(counted["updates"]),
        }
        if self.whole.config.fusion == "gradients":  # all groups make the same updates
            metrics["updates_per_second"] = snapshot.updates_per_second
        total = self.whole.config.total_steps
        return dataclasses.replace(snapshot, metrics=metrics, groups=self.groups(), total_steps=total)

    def others(self) -> dict[str, list[int]]:
        """Steps and updates of the other groups, to be added to rank 0's; for its checkpoints.

        With fused gradients all groups make the same updates, which count once.
        """
        heard = {group.rank: (group.env_steps, group.updates) for group in self.groups()}
        others = [heard.get(rank, self._begun) for rank in range(1, self.session.place.size)]
        together = self.whole.config.fusion != "gradients"
        steps, updates = self._made_before()
        return {
            "env_steps": [steps, *(steps for steps, _ in others)],
            "updates": [updates, *(updates for _, updates in others)] if together else [updates],
        }

    def scheduled_elsewhere(self) -> int:
        """Steps of the other groups that count towards this group's schedules; any thread.

        With `async` fusion schedules run over the steps of all groups, as of the last heartbeat, because a fast group
        takes more steps than its share. Otherwise they run over the share.
        """
        return self._elsewhere if self.whole.config.fusion == "async" else 0

    def other_steps(self, env_steps: int) -> int:
        """Environment steps of the other groups when this one has taken `env_steps`; as of their last heartbeat.

        Groups that wait for each other at fixed updates take the same numbers of steps, each up to its share. The
        counters are exact after the last fusion.
        """
        fusion, together = self.whole.config.fusion, self.job.algorithm.exact
        waits = fusion == "gradients" or (fusion == "average" and together)
        if not waits or self._state == "finished":
            return sum(self.others()["env_steps"])
        each = env_steps if self.max_env_steps is None else min(env_steps, self.max_env_steps)
        return self._before[0] + each * (self.session.place.size - 1)

    def _made_before(self) -> tuple[int, int]:
        """Steps and updates that no group counts: of the earlier run, and of groups that were started again."""
        (steps, updates), begun = self._before, self._begun
        for status in self.session.earlier_lives:  # a new life counts from `begun`
            steps += max(0, status["env_steps"] - begun[0])
            updates += max(0, status["updates"] - begun[1])
        return steps, updates

    def groups(self) -> tuple[GroupStatistics, ...]:
        """Latest statistics of every group, in the order of ranks; one that has sent none is starting."""
        unknown: dict[str, Any] = {"fusion": self.whole.config.fusion}
        statuses = dict.fromkeys(range(self.session.place.size), unknown) | self.session.statuses()
        statuses[self.session.place.rank] = {**self._status(), **self.session.statistics()}
        names = [field.name for field in dataclasses.fields(GroupStatistics) if field.name != "rank"]
        return tuple(
            GroupStatistics(rank=rank, **{name: status[name] for name in names if name in status})
            for rank, status in sorted(statuses.items())
        )


# --- shares of options and counters -----------------------------------------------------------------------------------


def share_of(
    config: TrainerConfig, rank: int, groups: int, *, on_machine: int = 1, done: int = 0, counted: int = 0
) -> TrainerConfig:
    """Options of one group; `on_machine` groups share the cores of this machine.

    When a run is resumed after `done` steps of all groups, each group counts on from `counted` and takes its share of
    the remaining steps. Only rank 0 has the stopping rules other than `total_steps`; it sends its stop to the others.
    """
    left = None if config.total_steps is None else max(0, config.total_steps - done)
    changed: dict[str, Any] = {
        "total_steps": None if left is None else max(1, counted + math.ceil(left / groups)),
        "report_interval_steps": _part(config.report_interval_steps, groups),
        "eval_interval_steps": _part(config.eval_interval_steps, groups),
        "num_actors": config.num_actors or max(1, usable_cores() // on_machine - 1),
    }
    if rank:
        rules = ("max_seconds", "target_return", "target_training_return", "eval_interval_steps")
        changed |= dict.fromkeys(rules)
        changed |= {"http": "off", "seed": seed_of(config.seed, rank)}
        if config.run_dir is not None:
            changed["run_dir"] = str(_free(Path(config.run_dir) / "groups", str(rank)))
    return dataclasses.replace(config, **changed)


def _free(folder: Path, name: str) -> Path:
    """First unused path of `name`, `name-2` and so on in `folder`; a group that is restarted gets the next one."""
    names = itertools.chain((name,), (f"{name}-{life}" for life in itertools.count(2)))
    return next(folder / own for own in names if not (folder / own).exists())


def share_of_algorithm(algorithm: AlgorithmT, groups: int, whole: AlgorithmT | None = None) -> AlgorithmT:
    """Return the algorithm's record with a group's share of every option in `STEP_OPTIONS`.

    Args:
        algorithm: the record.
        groups: number of groups.
        whole: record whose options are divided, where the run has chosen some that `algorithm` leaves to it; None is
            `algorithm`.
    """
    given = {name: getattr(algorithm if whole is None else whole, name, None) for name in STEP_OPTIONS}
    changed: dict[str, Any] = {name: _part(value, groups) for name, value in given.items() if value}
    record: Any = algorithm
    made: AlgorithmT = dataclasses.replace(record, **changed)
    return made


def seed_of(seed: int, rank: int) -> int:
    """Seed of a group; rank 0 has the run's seed."""
    return seed if rank == 0 else int(np.random.SeedSequence((seed, rank)).generate_state(1)[0])


def shared_options(config: TrainerConfig, algorithm: Algorithm) -> dict[str, Any]:
    """Options that must be equal on all ranks, by name."""
    run = {name: value for name, value in option_values(config).items() if name not in OWN_OPTIONS}
    return {**run, **{f"{algorithm.name}.{k}": v for k, v in option_values(algorithm).items()}}


def _part(steps: int | None, groups: int) -> int | None:
    return None if steps is None else math.ceil(steps / groups)


def last_checkpoint(config: TrainerConfig) -> Resumption | None:
    """Latest checkpoint of a run that torchrun has restarted; None if there is none."""
    latest = Path(config.run_dir or "") / "checkpoints" / "latest"
    if config.run_dir is None or not latest.exists():
        return None
    return prepare_resumption(Path(config.run_dir), "latest", None, {}, restore_episodes=True)[2]


def made_before(resumed: Resumption, groups: int, fusion: str) -> tuple[int, int]:
    """Steps and updates of the earlier run that are not in the counters from which `groups` groups count on."""
    others, meta = groups - 1, resumed.meta  # the others have no rows
    again = others * meta.updates if fusion != "gradients" else 0
    return resumed.other_steps - others * meta.env_steps, resumed.other_updates - again
