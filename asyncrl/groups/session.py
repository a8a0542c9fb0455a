"""Session of one rank in a job of several groups: joining, fusion of the learners, and messages about stops and losses.

    meet ── attach: share rank 0's state, connect ── learn, fused ── finish: the last fusion ── leave

If a rank is lost, `gradients` and `average` end on every rank, with an error that names it. `async` continues without
it, unless it is rank 0, which owns the fused weights.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch

from asyncrl.config import TrainerConfig
from asyncrl.errors import ConfigurationError, GroupLost
from asyncrl.groups.connecting import (
    OVER,
    Connection,
    Fusion,
    Reception,
    client_fusion,
    collective_fusion,
    serving_fusion,
)
from asyncrl.groups.heartbeat import Heartbeat, Status
from asyncrl.groups.meeting import LOOK_SECONDS, card_of, hand_out, meet, open_store
from asyncrl.groups.peers import PeerLost, Peers, dist, own_address
from asyncrl.groups.place import Place
from asyncrl.groups.state import Core

START_SECONDS = 60.0
"""Time limit of rank 0's wait for the others at the start of `async`."""
SILENCE, NO_STORE = "its heartbeat has stopped", "the store cannot be reached"
EXPLAIN_SECONDS = 5.0
"""Time limit of the wait for the name of the rank that has broken a connection."""
STORE_SECONDS = 2.0
"""Time limit of a message to the store before there is a heartbeat."""
FAREWELL_SECONDS = 2.0
"""Time limit of a farewell message."""
_sessions: Counter[Place] = Counter()
"""Number of earlier sessions of this process by place; the store keeps what they have written."""


class Session:
    """One rank of a job.

    Args:
        place: place of this rank.
        config: options of the run; those of the fusion are read.
        shared: options of the run that must be equal on all ranks.
        cancelled: polled while this rank waits for the others.
        start: bytes that rank 0 gives to all ranks; ignored on the others.
        exact: see `collective_fusion`.

    Attributes:
        start: `start` of rank 0.
        place: as given.
        hosts: host names of all ranks.
        earlier_lives: last statuses of groups that were started again since.
        heartbeat: exchange of statuses with the other ranks; None before `attach`.
        failure: the error of the lost or failed rank that has ended the job, or None.

    Raises:
        GroupLost, ConfigurationError, StoppedWhileStarting: see `meeting.meet`.
    """

    def __init__(
        self,
        place: Place,
        config: TrainerConfig,
        shared: Mapping[str, Any],
        cancelled: Callable[[], bool] = lambda: False,
        start: bytes = b"",
        *,
        exact: bool = False,
    ) -> None:
        self.place = place
        self._config, self._exact = config, exact
        self.earlier_lives: list[Status] = []
        self.failure: GroupLost | None = None
        self._asynchronous = config.fusion == "async"
        every_life = self._asynchronous and place.agents > 1
        store = open_store(place, every_life=every_life, cancelled=cancelled)
        self._store = dist.PrefixStore(f"run/{_sessions[place]}", store)
        _sessions[place] += 1
        self._connection = Connection(self._store, place, own_address(place.host, place.port))
        cards = meet(self._store, place, card_of(place, shared), cancelled=cancelled)
        self.hosts = [card["host"] for card in cards]
        self.start = hand_out(self._store, place, start)
        self._fusion: Fusion | None = None
        self._on_failure: Callable[[GroupLost], None] = lambda _: None  # nobody hears of it before `attach`
        self.heartbeat: Heartbeat | None = None
        self._lifelines: dict[int, Lifeline] = {}
        self._failed, self._lock = threading.Event(), threading.Lock()
        self._reception: Reception | None = None
        self._reason: str | None = None
        self._finished = self._left = False

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which evaluates and writes the run."""
        return self.place.rank == 0

    # --- learner's thread --------------------------------------------------------------------------------------------

    def attach(
        self,
        core: Core,
        *,
        status: Callable[[], Status],
        state: Callable[[], bytes],
        on_stop: Callable[[str], None],
        on_failure: Callable[[GroupLost], None],
        on_beat: Callable[[dict[int, Status]], None],
    ) -> None:
        """Give `core` the state of rank 0, connect it to the others and begin to fuse; collective.

        The functions are called on threads of the session.

        Args:
            core: the learner's updater.
            status: returns this group's status for the others.
            state: returns the learner's current state as bytes; called on rank 0 only.
            on_stop: called with the reason when another rank has stopped the job.
            on_failure: called with the error when a rank is lost or has failed.
            on_beat: called with the statuses of all ranks after every beat.

        Raises:
            ConfigurationError: the algorithm's updater has no flat vector.
            GroupLost: a rank was lost meanwhile.
        """
        if getattr(core, "vector", None) is None:
            raise ConfigurationError(
                "the algorithm's updater cannot be fused with others: it has no attribute `vector`",
                fix="give it a FlatVector of its parameters and its gradient, or train with one group",
            )
        self._on_failure = on_failure
        # From here on, so that a rank that is lost or fails while the others connect is noticed.
        self._start_heartbeat(status, on_stop, on_beat)
        try:
            with torch.no_grad():
                self._fusion = self._connected(core, state)
            if not self._asynchronous:
                for rank in range(1, self.place.size) if self.leads else (0,):
                    self._tie(rank, self.place.life)
        except (PeerLost, dist.DistError) as error:
            raise self.explain(error) from error
        finally:
            if self._left:  # meanwhile
                self.leave()

    def _start_heartbeat(
        self,
        status: Callable[[], Status],
        on_stop: Callable[[str], None],
        on_beat: Callable[[dict[int, Status]], None],
    ) -> None:
        heartbeat = self.heartbeat = Heartbeat(
            self._store,
            self.place,
            status=lambda: {**status(), **self.statistics()},
            on_stop=on_stop,
            on_failure=lambda text: self._fail(_failure_of(text)),
            on_silence=lambda rank: self._gone(max(rank, 0), SILENCE if rank >= 0 else NO_STORE),
            on_beat=on_beat,
        )
        self.earlier_lives = heartbeat.earlier
        if self._reason is not None:
            heartbeat.tell_stop(self._reason)
        heartbeat.start()

    def _connected(self, core: Core, state: Callable[[], bytes]) -> Fusion:
        connection = self._connection
        if not self._asynchronous:
            return collective_fusion(connection, self._config, core, exact=self._exact)
        if self.leads:
            self._reception = Reception(connection, state, self._tie)
            return serving_fusion(self._reception, self._config, core)
        return client_fusion(connection, self._config, core, lambda: self._tie(0, self.place.life))

    def wait_for_others(self) -> None:
        """On rank 0 with `async`, wait until every group has joined once, at most `START_SECONDS`.

        After that no group waits for another. Not on the learner's thread, which must answer requests for the state.
        """
        deadline = time.monotonic() + START_SECONDS
        while self._reception is not None and len(self._reception.lives) < self.place.size - 1:
            if time.monotonic() > deadline or self._left:
                return
            time.sleep(LOOK_SECONDS)

    def finish(self) -> None:
        """Fuse for the last time; learner's thread. Raises `GroupLost`."""
        assert self._fusion is not None and self.heartbeat is not None
        self.heartbeat.beat()  # so that all ranks have all counters after the last fusion
        try:
            self._fusion.finish()
        except PeerLost as error:
            raise self.explain(error) from error
        if self.leads:
            with contextlib.suppress(Exception):  # the store has ended with the launcher
                self._store.set(OVER, "1")
        self.heartbeat.beat()
        self._finished = True  # from here on the loss of a rank does no harm

    def explain(self, error: Exception) -> GroupLost:
        """Make the error of a broken connection; waits up to `EXPLAIN_SECONDS` for the name of the lost rank."""
        if not self._left:
            self._failed.wait(EXPLAIN_SECONDS)
        return self.failure or self._lost(None, str(error))

    # --- any thread --------------------------------------------------------------------------------------------------

    def statistics(self) -> dict[str, float]:
        """Statistics of this group's fusion."""
        return self._fusion.statistics() if self._fusion is not None else {}

    def statuses(self) -> dict[int, Status]:
        """Newest status of every rank that has sent one, as a new dict."""
        return dict(self.heartbeat.statuses) if self.heartbeat is not None else {}

    def tell_stop(self, reason: str) -> None:
        """Stop the job on all ranks, also on those that have not joined yet."""
        self._reason = self._reason or reason
        if self.heartbeat is not None:
            self.heartbeat.tell_stop(reason)
        else:
            _write(self._store, "stop", reason)

    def tell_failure(self, text: str) -> None:
        """Fail the job on the other ranks if they cannot continue without this one."""
        if self.failure is not None or not (self.leads or not self._asynchronous):
            return
        text = f"Rank {self.place.rank} on {self.place.machine} has failed.\n{text}"
        if self.heartbeat is not None:
            self.heartbeat.tell_failure(text)
        else:
            _write(self._store, "failure", text)

    def leave(self) -> None:
        """Send farewells, close all connections and end the threads; idempotent."""
        self._left = True
        for lifeline in list(self._lifelines.values()):
            lifeline.leave()
        if self._fusion is not None:
            self._fusion.close()
        self._connection.close()
        if self.heartbeat is not None:
            self.heartbeat.close()

    # --- losses ------------------------------------------------------------------------------------------------------

    def _tie(self, rank: int, life: int) -> None:
        """Make the lifeline between rank 0 and one `life` of another rank; `rank` is the other side's."""
        side, pair = (0, rank) if self.leads else (1, self.place.rank)
        self._lifelines[rank] = Lifeline(
            self._store,
            f"life/{pair}/{life}",
            side,
            self._connection.address,
            lambda cause: self._gone(rank, cause),
        )

    def _gone(self, rank: int, cause: str) -> None:
        """Handle the loss of a rank: its lifeline has broken, its heartbeat has stopped, or the store is gone."""
        if self._finished or self._left or (self._asynchronous and rank != 0):
            return
        lost = self._lost(rank, cause)
        if self.heartbeat is not None and self.leads:
            self.heartbeat.tell_failure(f"{lost.what}\n{cause}")
        self._fail(lost)

    def _lost(self, rank: int | None, cause: str) -> GroupLost:
        who = "A rank" if rank is None else f"Rank {rank} on {self.hosts[rank]}"
        if rank == self.place.rank:  # which is here
            who = "The store of the job"
        again = "start the job again" + ("" if self._asynchronous else ", or train with --fusion async")
        return GroupLost(
            f"{who} is lost; fusion by {self._config.fusion} cannot go on without it.",
            facts={"cause": cause, "noticed by": f"rank {self.place.rank} on {self.place.machine}"},
            fix=f"look at that rank's output; {again}",
        )

    def _fail(self, error: GroupLost) -> None:
        with self._lock:
            if self.failure is not None or self._finished:
                return
            self.failure = error
        self._failed.set()
        with contextlib.suppress(Exception):
            self._on_failure(error)
        self._connection.close()
        if self._fusion is not None:
            self._fusion.close()


class Lifeline:
    """One side of the lifelines between rank 0 (side 0) and a group (side 1).

    These are two idle connections, which break at once when either process dies. Each side waits for a farewell message
    of the other. A killed process closes its sockets without one.

    Args:
        store: the job's store.
        name: name of this pair and this life of the group.
        side: 0 or 1.
        address: address of this rank.
        on_lost: called with the cause when the other side has died; on the lifeline's own thread.
    """

    def __init__(
        self, store: Any, name: str, side: int, address: str, on_lost: Callable[[str], None]
    ) -> None:
        self._side, self._on_lost, self._left = side, on_lost, False
        self._lines = [Peers(store, f"{name}/{speaker}", side, 2, address) for speaker in (0, 1)]
        self._thread = threading.Thread(target=self._watch, name="asyncrl-lifeline", daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        try:
            self._lines[1 - self._side].broadcast(torch.zeros(1), 1 - self._side)
        except PeerLost as error:
            if not self._left:
                self._on_lost(str(error))

    def leave(self) -> None:
        """Send the farewell message and close; idempotent."""
        if self._left:
            return
        self._left = True
        farewell = threading.Timer(FAREWELL_SECONDS, self._lines[self._side].close)
        farewell.start()
        with contextlib.suppress(PeerLost):
            self._lines[self._side].broadcast(torch.ones(1), self._side)
        farewell.cancel()
        self._lines[1 - self._side].close()
        self._thread.join(timeout=FAREWELL_SECONDS)


def _failure_of(text: str) -> GroupLost:
    """Make the error from another rank's failure text: its first line, then the cause."""
    what, _, cause = text.partition("\n")
    return GroupLost(what, facts={"cause": cause} if cause else None, fix="look at that rank's output")


def _write(store: Any, name: str, text: str) -> None:
    """Write a message for the others' heartbeats, on a thread, as the store may not answer."""

    def write() -> None:
        with contextlib.suppress(Exception):  # the store has ended
            store.compare_set(name, "", text)

    thread = threading.Thread(target=write, name="asyncrl-store", daemon=True)
    thread.start()
    thread.join(STORE_SECONDS)
