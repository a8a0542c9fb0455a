"""The learner: a coroutine that decides when, and one long-lived thread that does.

    loop thread                                 learner thread (owns sum tree, grants, network, mailbox)
    -----------                                 ------------------------------------------------------
    wait for data and pace  ── run a burst ──>  beat:  ingest new rows, retire, grant, wake actors
    look at the loop again  <── updates done ──        update, update, ... for about a millisecond
                                                       publish weights
                                                next beat, until the burst's time is over or the balance stops it

A burst is long against the hand-over between the threads and short against a human; the loop
stays responsive meanwhile because torch and the kernels release the GIL and the switch interval is half a millisecond
(see `trainer`). Torch keeps its thread count per thread, so the learner's thread sets its own: left alone it ran a tiny
network four times slower.

Waiting is moderated: while data comes in denser than a millisecond the coroutine sleeps for one and looks again;
otherwise it arms the doorbell with the position at which each ring is worth looking at, looks once more and sleeps.
Whatever is lost on the way is found after 100 ms.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from asyncrl.balance import Balance, BalanceStatistics
from asyncrl.core import Batch, LearnerCore
from asyncrl.errors import GPUOutOfMemory, TrainingDiverged
from asyncrl.replay.replay import PrioritizedReplay, ReplayStatistics
from asyncrl.shm.doorbell import Doorbell
from asyncrl.shm.weights import WeightMailbox
from asyncrl.staleness import StalenessMeter, StalenessStatistics

T = TypeVar("T")

BEAT_SECONDS = 0.001
"""How long updates run before new rows are looked at and weights are published."""
DENSE_SECONDS = 0.001
"""A wait shorter than this means that traffic is dense: poll at this interval instead of using the doorbell."""
DRAIN_SECONDS = 0.1
"""The longest sleep: what a lost bell costs."""


class LearnerThread:
    """The one thread that touches the network; created by the trainer, shut down by it.

    Args:
        torch_threads: intra-operation threads of torch on this thread.
    """

    def __init__(self, torch_threads: int = 1) -> None:
        self._executor = ThreadPoolExecutor(
            max_workers=1,
            thread_name_prefix="asyncrl-learner",
            initializer=_prepare_thread,
            initargs=(torch_threads,),
        )

    async def call(self, function: Callable[[], T]) -> T:
        """Run `function` on the thread, after whatever runs there now; its exception is raised here."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, function)

    def close(self) -> None:
        """Let the thread end after what it does now."""
        self._executor.shutdown(wait=True, cancel_futures=True)


@dataclass(frozen=True)
class LearnerReport:
    """What the learner says of itself; made on its thread, between two bursts.

    Attributes:
        updates: gradient steps so far.
        policy_version: publications of weights so far.
        wait_seconds: time since `run` in which it could not learn (held time excluded).
        train_metrics: scalars of the core, by metric name.
        staleness, staleness_overall: since the last report, and since the start.
        balance, replay: their statistics.
    """

    updates: int
    policy_version: int
    wait_seconds: float
    train_metrics: dict[str, float]
    staleness: StalenessStatistics
    staleness_overall: StalenessStatistics
    balance: BalanceStatistics
    replay: ReplayStatistics


@dataclass(frozen=True)
class LearnerOptions:
    """How the learner consumes.

    Attributes:
        batch_size: items of an update.
        beta_start, beta_end: importance exponent, linear over `total_steps` (constant `beta_start` without).
        total_steps: steps over which schedules run, or None.
        burst_seconds: how long the thread works before the loop is asked again.
        publish_interval_seconds: least time between two publications of weights.
        dump_dir: where the batch of a diverged update is saved, or None.
    """

    batch_size: int
    beta_start: float
    beta_end: float
    total_steps: int | None
    burst_seconds: float
    publish_interval_seconds: float
    dump_dir: Path | None = None


class Learner:
    """Consumes rows of any actor, as they come; see the module's text for who runs where.

    Args:
        core: network, optimiser and loss; used on `thread` only.
        replay: rows and priorities; used on `thread` only.
        balance: pace; used on `thread` only (the loop thread reads it while no burst runs).
        mailbox: where weights are published.
        doorbell: what actors ring while the learner sleeps; its read end is watched by the running loop.
        staleness: meter and correction.
        batch: the arrays that batches are gathered into.
        thread: the learner's thread.
        wake: called on the learner's thread with the index of an actor that waits and was granted rows.
        options: how to consume.
    """

    def __init__(
        self,
        *,
        core: LearnerCore,
        replay: PrioritizedReplay,
        balance: Balance,
        mailbox: WeightMailbox,
        doorbell: Doorbell,
        staleness: StalenessMeter,
        batch: Batch,
        thread: LearnerThread,
        wake: Callable[[int], None],
        max_staleness: int | None,
        options: LearnerOptions,
    ) -> None:
        self._core = core
        self._replay = replay
        self._balance = balance
        self._mailbox = mailbox
        self._doorbell = doorbell
        self._staleness = staleness
        self._batch = batch
        self._thread = thread
        self._wake = wake
        self._max_staleness = max_staleness
        self._options = options
        self._rings = replay.rings
        self._granted = np.zeros(len(self._rings), np.int64)
        self._positions = np.zeros(len(self._rings), np.int64)
        self._weights = np.zeros(core.weight_count, np.float32)
        self._last_publish = -math.inf
        self._publish_seconds = 0.0
        self._unpublished = True
        self._finite_loss = math.nan
        self._wait_seconds = 0.0
        self._last_wait = math.inf
        self._stopping = False
        self._held = False
        self._data = asyncio.Event()
        self._resumed = asyncio.Event()
        self._quiet = asyncio.Event()
        self.updates = 0
        self.inserted_steps = 0

    # --- loop thread ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Learn until `stop`, or until the balance's `max_env_steps` are inserted and learned from.

        Raises:
            TrainingDiverged: a loss, priority or weight is NaN or infinite; nothing of it is published.
            GPUOutOfMemory: the device ran out of memory.
        """
        loop = asyncio.get_running_loop()
        loop.add_reader(self._doorbell.fileno(), self._on_bell)
        try:
            while not self._stopping:
                if self._held:
                    self._quiet.set()
                    await self._resumed.wait()
                    continue
                starved = await self._thread.call(self._burst)
                if starved and self._balance.exhausted():
                    return
                if starved:
                    await self._wait_for_data()
        finally:
            loop.remove_reader(self._doorbell.fileno())
            self._quiet.set()

    def stop(self) -> None:
        """End `run` after the running burst. Loop thread only."""
        self._stopping = True
        self._data.set()
        self._resumed.set()

    async def hold(self) -> None:
        """Stop learning after the running burst; returns when the thread is quiet. Actors run on until ungranted."""
        self._held = True
        self._resumed.clear()
        self._quiet.clear()
        self._data.set()
        await self._quiet.wait()

    def resume(self) -> None:
        """Go on after `hold`."""
        self._held = False
        self._resumed.set()

    async def report(self) -> LearnerReport:
        """Statistics since the last report, taken on the learner's thread between two bursts."""
        return await self._thread.call(self._report)

    async def state_dict(self) -> Mapping[str, Any]:
        """The core's state, copied between two bursts."""
        return await self._thread.call(self._core.state_dict)

    async def current_weights(self) -> tuple[NDArray[np.float32], int]:
        """A copy of the acting weights and the policy version they will have been published under."""

        def copy() -> tuple[NDArray[np.float32], int]:
            if self._unpublished:
                self._publish()
            return self._weights.copy(), self._mailbox.version

        return await self._thread.call(copy)

    def _on_bell(self) -> None:
        self._doorbell.drain()
        self._data.set()

    def data_arrived(self) -> None:
        """Look at the rings now; called on the loop thread when an actor died (its bell may be lost)."""
        self._data.set()

    async def _wait_for_data(self) -> None:
        """Sleep until a burst is worth while; moderated as the module's text says."""
        started = time.perf_counter()
        if self._last_wait < DENSE_SECONDS:
            await asyncio.sleep(DENSE_SECONDS)
            self._last_wait = DENSE_SECONDS
        else:
            await self._sleep_until_bell()
            self._last_wait = time.perf_counter() - started
        self._wait_seconds += time.perf_counter() - started

    async def _sleep_until_bell(self) -> None:
        self._data.clear()
        steps = self._balance.steps_wanted(self._balance.updates_worth_waking)
        wanted = math.ceil(steps / (self._rings[0].num_envs * len(self._rings)))
        targets = []
        for ring, published, granted in zip(self._rings, self._positions, self._granted, strict=True):
            # No further than half of what it is granted: an actor that runs out of grants would never ring.
            ahead = min(wanted, (int(granted) - int(published)) // 2)
            targets.append(int(published) + max(1, ahead))
            ring.wake_at(targets[-1])
        self._doorbell.arm()
        arrived = any(ring.published() >= target for ring, target in zip(self._rings, targets, strict=True))
        if arrived or self._stopping or self._held:
            self._doorbell.disarm()
            return
        try:
            await asyncio.wait_for(self._data.wait(), DRAIN_SECONDS)
        except TimeoutError:
            pass
        finally:
            self._doorbell.disarm()

    # --- learner thread ---------------------------------------------------------------------------------------------

    def _burst(self) -> bool:
        """Beats until the burst's time is over, or nothing may be done any more: then True is returned."""
        if self._mailbox.version == 0:
            self._publish()
        starved = False
        end = time.perf_counter() + self._options.burst_seconds
        while not (starved or self._stopping or self._held) and time.perf_counter() < end:
            starved = not self._beat()
        self._publish_when_due()
        return starved

    def _beat(self) -> bool:
        """New rows in, grants out, then updates for `BEAT_SECONDS`. Returns whether an update was made."""
        self._take_in()
        allowed = self._balance.updates_allowed()
        if allowed and not self._replay.sampleable:
            self._balance.forgive()
            return False
        if allowed == 0:
            return False
        beta = self._beta()
        end = time.perf_counter() + BEAT_SECONDS
        while True:
            self._update(beta)
            allowed -= 1
            if allowed == 0 or time.perf_counter() >= end:
                break
        self._publish_when_due()
        return True

    def _take_in(self) -> None:
        """Ingest, drop what is too stale, grant what the balance allows, wake who waits for it."""
        inserted = self._replay.ingest()
        self.inserted_steps += inserted
        self._positions = self._replay.published_rows()
        self._balance.inserted(inserted)
        if self._max_staleness is not None:
            self._replay.retire_older_than(self._mailbox.version - self._max_staleness)
        before = self._granted.copy()
        if self._balance.grant(self._positions, self._granted):
            for index in np.flatnonzero(self._granted != before):
                self._replay.grant(int(index), int(self._granted[index]))
                if self._rings[index].take_waiting():
                    self._wake(int(index))

    def _beta(self) -> float:
        options = self._options
        done = min(1.0, self.inserted_steps / options.total_steps) if options.total_steps else 0.0
        return options.beta_start + done * (options.beta_end - options.beta_start)

    def _update(self, beta: float) -> None:
        batch = self._batch
        self._replay.sample(batch, beta)
        self._staleness.measure(self._mailbox.version, batch.version, batch.staleness, batch.weight)
        try:
            result = self._core.update(batch)
        except torch.cuda.OutOfMemoryError as error:
            raise _out_of_memory(batch.size) from error
        self.updates += 1
        self._unpublished = True
        self._balance.sampled(batch.size)
        if result.priorities is not None:
            try:
                self._replay.update_priorities(batch.ids, result.priorities)
            except ValueError as error:  # refused whole, so that the tree stays sound
                raise self._diverged("the temporal-difference errors") from error

    def _publish_when_due(self) -> None:
        """Publish, unless the last time is too near or more than a hundredth of the time would go into it."""
        interval = max(self._options.publish_interval_seconds, 100 * self._publish_seconds)
        if self._unpublished and time.perf_counter() - self._last_publish >= interval:
            self._publish()

    def _publish(self) -> None:
        started = time.perf_counter()
        self._core.write_weights(self._weights)
        if not math.isfinite(float(self._weights.sum())):
            raise self._diverged("the weights")
        self._mailbox.publish(self._weights)
        self._last_publish = time.perf_counter()
        self._publish_seconds = self._last_publish - started
        self._unpublished = False

    def _diverged(self, what: str) -> TrainingDiverged:
        where = "not saved (the run has no directory)"
        if self._options.dump_dir is not None:
            path = self._options.dump_dir / f"diverged_batch_{self.updates}.npz"
            batch = self._batch
            np.savez(
                path,
                obs=batch.obs,
                action=batch.action,
                reward=batch.reward,
                discount=batch.discount,
                next_obs=batch.next_obs,
                weight=batch.weight,
            )
            where = str(path)
        return TrainingDiverged(
            f"{what} became NaN or infinite at update {self.updates}",
            facts={"update": self.updates, "last finite loss": self._finite_loss, "batch saved": where},
            fix="lower learning_rate, set max_grad_norm, or look at the rewards in the saved batch",
        )

    def _report(self) -> LearnerReport:
        metrics = {name: float(value) for name, value in self._core.metrics().items()} if self.updates else {}
        loss = metrics.get("train/loss", math.nan)
        if math.isfinite(loss):
            self._finite_loss = loss
        elif self.updates and "train/loss" in metrics:
            raise self._diverged("the loss")
        overall = self._staleness.overall()
        return LearnerReport(
            updates=self.updates,
            policy_version=self._mailbox.version,
            wait_seconds=self._wait_seconds,
            train_metrics=metrics,
            staleness=self._staleness.statistics(reset=True),
            staleness_overall=overall,
            balance=self._balance.statistics(),
            replay=self._replay.statistics(),
        )


def _prepare_thread(torch_threads: int) -> None:
    """Both settings are per thread. Denormal moments of dead units would cost Adam up to a twentieth."""
    torch.set_num_threads(torch_threads)
    torch.set_flush_denormal(True)


def _out_of_memory(batch_size: int) -> GPUOutOfMemory:
    free, total = torch.cuda.mem_get_info()
    return GPUOutOfMemory(
        "the GPU ran out of memory in an update",
        facts={
            "batch_size": batch_size,
            "held by this process": f"{torch.cuda.memory_allocated():,} bytes",
            "free": f"{free:,} of {total:,} bytes",
        },
        fix="lower batch_size or hidden_sizes, or end other programs that use the GPU",
    )
