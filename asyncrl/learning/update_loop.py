"""Base of the update loops, which turn rows into updates: publication, evaluation copies, grants and saved state."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, NotRequired, TypedDict

import numpy as np
from numpy.typing import NDArray

from asyncrl.errors import RingCorrupt
from asyncrl.interfaces import Bins, Distribution, Metrics, ValuePairs
from asyncrl.learning.divergence import Divergence
from asyncrl.learning.histogram import Histogram
from asyncrl.learning.pace import Pace
from asyncrl.learning.publication import Publisher
from asyncrl.learning.staleness import StalenessMeter
from asyncrl.learning.weight_snapshots import WeightSnapshot, WeightSnapshots
from asyncrl.learning.what_is_shown import UpdateTimes, action_bins
from asyncrl.networks.flat_vector import FlatVector
from asyncrl.protocols import Updater
from asyncrl.replay.policy_replays import PolicyReplays
from asyncrl.replay.ring_replay import RingReplay
from asyncrl.replay.segments import SegmentQueue
from asyncrl.saved_state import restore, saved
from asyncrl.shm.env_kwargs import EnvKwargsWriter
from asyncrl.shm.weights import WeightMailbox

TICK_SECONDS = 0.001
"""Duration of the updates of a tick, after which new rows are received."""

Priorities = Sequence[tuple[int, NDArray[np.float32]]]
"""Per ring, the index of the first kept row, and the priorities `[rows, leaves of a row]` of the kept rows."""


class LoopOptions(TypedDict):
    """Arguments of every update loop that concern the run, not the algorithm."""

    wake: Callable[[int], None]
    """Called with the index of a waiting actor that was granted rows."""
    snapshots: WeightSnapshots
    """Queue of weights to evaluate."""
    total_steps: NotRequired[int | None]
    """Environment steps over which schedules run, or None."""
    max_env_steps: NotRequired[int | None]
    """Environment steps at which the run ends, or None."""
    other_steps: NotRequired[Callable[[], int]]
    """Returns the steps of other groups that count towards `total_steps`; learner's thread."""
    dump_dir: NotRequired[Callable[[], Path | None]]
    """Returns the directory for the batch of a diverged update, or None."""
    env_kwargs: NotRequired[EnvKwargsWriter | None]
    """Keyword arguments that the environments get while the run goes on; None if they keep theirs."""


class UpdateLoop(ABC):
    """Loop that turns rows into updates. Created on any thread; used on the learner's only, except for both counters.

    Args:
        core: network, optimiser and loss.
        source: reads and grants the rows.
        mailbox: mailbox for published weights.
        staleness: meter and correction of the staleness of the samples used.
        policy_lag: histogram of the policy lag of the steps received.
        interval: updates between two publications, see `Publisher`.
        wake, snapshots, total_steps, max_env_steps, other_steps, dump_dir, env_kwargs: see `LoopOptions`.

    Attributes:
        core, staleness, policy_lag: see above.
        pace: balance of production and consumption.
        divergence: checks the loss.
        rings: source of the rows.
        publisher: publishes the weights.
        times: times of the parts of an update.
        polls_while_dense: whether the learner polls every millisecond in place of arming the doorbell while traffic is
            dense: True if any row can be used, False if only whole segments or quanta can.
        inserted_steps: environment steps received so far, RESET rows excluded.
    """

    polls_while_dense: ClassVar[bool] = False
    STATE: ClassVar[tuple[str, ...]] = ("inserted_steps", "_granted")

    def __init__(
        self,
        core: Updater,
        source: RingReplay[Any] | PolicyReplays | SegmentQueue,
        mailbox: WeightMailbox,
        *,
        staleness: StalenessMeter,
        policy_lag: Histogram,
        interval: int | Literal["auto"] | None,
        wake: Callable[[int], None],
        snapshots: WeightSnapshots,
        total_steps: int | None = None,
        max_env_steps: int | None = None,
        other_steps: Callable[[], int] = lambda: 0,
        dump_dir: Callable[[], Path | None] = lambda: None,
        env_kwargs: EnvKwargsWriter | None = None,
    ) -> None:
        self.core = core
        self._vector: FlatVector | None = getattr(core, "vector", None)
        self._env_kwargs = env_kwargs
        self.rings = source.rings
        self.pace = self._make_pace(max_env_steps)
        self.staleness, self.policy_lag = staleness, policy_lag
        self.divergence = divergence = Divergence(dump_dir, self._batch_arrays)
        self.publisher = Publisher(core, mailbox, lambda what: divergence.error(what, self.updates), interval)
        self.times = UpdateTimes()
        self.inserted_steps = 0
        self._source, self._wake, self._snapshots = source, wake, snapshots
        self._total_steps, self._other_steps = total_steps, other_steps
        self._granted = np.zeros(len(self.rings), np.int64)
        self._bins: dict[str, Bins] = {}
        self._given_up = [False] * len(self.rings)

    @abstractmethod
    def _make_pace(self, max_env_steps: int | None) -> Pace:
        """Balance for the algorithm's options and the rings; called by the constructor."""

    @abstractmethod
    def _batch_arrays(self) -> Mapping[str, NDArray[Any]]:
        """Arrays of the present batch, which are saved after a divergence."""

    @property
    def updates(self) -> int:
        """Gradient steps so far."""
        return self.publisher.updates

    def _progress_at(self, env_steps: int) -> float:
        """Fraction of the run's steps done after `env_steps` of this group; 0 if the run has no limit."""
        total = self._total_steps
        return min(1.0, (env_steps + self._other_steps()) / total) if total else 0.0

    def prepare(self) -> None:
        """Publish the first weights, for which the actors wait; called once, before the first tick."""
        if self.publisher.version == 0:
            self._publish_env_kwargs(0, 0)
            self.publisher.publish()

    def close(self) -> None:  # noqa: B027
        """Give back what the loop holds outside of its own memory; called once, after the last tick."""

    @abstractmethod
    def tick(self) -> bool:
        """Receive new rows, grant rows, train for `TICK_SECONDS`; return False if there was nothing to do."""

    @abstractmethod
    def finished(self) -> bool:
        """Whether the run's steps are used up and no copy of weights is due; called after a tick without work."""

    @abstractmethod
    def wake_positions(self) -> list[int]:
        """Position per ring at which the actor should wake the learner. Loop thread, while no burst runs."""

    @property
    @abstractmethod
    def stored_steps(self) -> int:
        """Environment steps that can be trained on at present."""

    @property
    @abstractmethod
    def discarded_steps(self) -> int:
        """Environment steps discarded as too stale so far (segments also by a faulty ring)."""

    def priorities(self) -> NDArray[np.float32] | None:
        """Priorities of a replay `[rings, slots, leaves of a row]`, a view; None for segments."""
        return None

    def statistics(self) -> Metrics:
        """Present numbers of the loop and its parts by public name; begins a new interval of the distributions."""
        return {
            **self.publisher.statistics(),
            **self.pace.statistics(),
            **self.times.statistics(),
            **self.staleness.statistics(),
            **self.policy_lag.statistics(reset=True),
            "replay_steps": self.stored_steps,
            "replay_capacity": sum(ring.num_slots * ring.environments for ring in self.rings),
            "discarded_steps": self.discarded_steps,
            "discarded_fraction": self.discarded_steps / max(1, self.inserted_steps),
        }

    def distributions(self) -> dict[str, Distribution]:
        """Distributions over the whole run, by public name."""
        meters = self.staleness.in_updates, self.staleness.in_versions, self.policy_lag
        return {meter.name: meter.overall() for meter in meters}

    def bins(self) -> dict[str, Bins]:
        """Histograms of the newest actions in the rings, by public name; the last known ones while there are none."""
        self._bins = action_bins(self.rings) or self._bins
        return self._bins

    def value_pairs(self) -> ValuePairs | None:
        """Predicted values and realised returns of some steps of the last update, None if they are unknown."""
        pairs = getattr(self.core, "value_pairs", None)
        return None if pairs is None else pairs()

    # --- rings -------------------------------------------------------------------------------------------------------

    @abstractmethod
    def _give_up(self, index: int) -> None:
        """Use no row of this ring any more; called once per fault."""

    def _check_rings(self) -> None:
        """Give up rings with a new fault, and restart abandoned ones; `shm/ring_health.py` defines the quarantine."""
        for index, ring in enumerate(self.rings):
            if not ring.fault:
                continue
            if not self._given_up[index]:
                self._given_up[index] = True
                self._give_up(index)
            if ring.abandoned:
                self._source.begin_again(index, int(self._granted[index]))
                self._given_up[index] = False

    def _grant_ring(self, index: int) -> None:
        """Grant rows up to `_granted` to a ring without a fault, and wake its actor if it waits."""
        with contextlib.suppress(RingCorrupt):
            self._source.grant(index, int(self._granted[index]))
        if self.rings[index].take_waiting():
            self._wake(index)

    def _publish_env_kwargs(self, first_row: int, env_steps: int) -> None:
        """Let episodes that begin in `first_row` of a ring or later have the newest keyword arguments.

        Relaxed loops call it in every tick, with row 0. The others call it where a copy of the weights is due, after
        the last evaluation has ended, with the first row that is not granted.
        """
        if self._env_kwargs is not None:
            self._env_kwargs.publish(first_row, env_steps)

    # --- copies of the weights for evaluation ------------------------------------------------------------------------

    def _copy_due(self, env_steps: int) -> bool:
        """Whether a copy of the weights is due at `env_steps`; never before the first update."""
        return self.updates > 0 and self._snapshots.due(env_steps)

    def _copied(self, env_steps: int) -> bool:
        """Copy the weights if a copy is due; return False if the queue is full and the learner must wait."""
        if not self._copy_due(env_steps):
            return True
        if self._snapshots.full:
            return False
        if self._snapshots.in_turn:
            first_row = max(0, int(self._granted.max()) - 1)  # a grant includes one next observation
            self._publish_env_kwargs(first_row, env_steps)
        weights, version = self.publisher.current()
        self._snapshots.put(WeightSnapshot(weights, version, self.updates, env_steps))
        return True

    # --- checkpoints -------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """State as copies, between two ticks: counters and positions, and of which policy the acting weights are.

        There are three cases, depending on what the caller has restored before:

            rows and actors     exact: all later numbers equal those of an uninterrupted run (lockstep, synchronous)
            rows                the learner continues exactly; the actors begin new lives, which cut the trajectories
            neither             replay is filled again before the first update; segments in flight are lost
        """
        return {
            "core": self.core.state_dict(),
            "velocity": None if self._vector is None else copy.copy(self._vector.velocity),
            "loop": saved(self),
            "pace": saved(self.pace),
            "publisher": saved(self.publisher),
            "published": self.publisher.published(),
            "staleness": saved(self.staleness),
            "policy_lag": saved(self.policy_lag),
            "env_kwargs": {} if self._env_kwargs is None else dataclasses.asdict(self._env_kwargs.newest),
        }

    def restore(self, state: Mapping[str, Any], priorities: Priorities | None) -> None:
        """Restore a result of `state_dict` into a new loop before its first tick.

        Args:
            state: result of `state_dict`. The rings are at their restored positions, and contain their rows unless
                `priorities` is None.
            priorities: priorities of the rows of a replay (an empty sequence for segments); None if the rings are
                empty.

        Raises:
            ValueError, KeyError: the state belongs to another kind of loop.
        """
        self.core.load_state_dict(state["core"])
        if self._vector is not None:
            self._vector.velocity = state.get("velocity")
        restore(self.pace, state["pace"])
        if priorities is None:
            self.pace.refill()
        restore(self.publisher, state["publisher"])
        restore(self.staleness, state["staleness"])
        self._restore_rows(state, priorities)
        self.publisher.republish(state["published"], exactly=priorities is not None)

    @abstractmethod
    def _restore_rows(self, state: Mapping[str, Any], priorities: Priorities | None) -> None:
        """Restore the loop's own state, its policy lag, and the state of its replay or queue."""
