"""The learner: a coroutine that schedules bursts of work, and one long-lived thread that runs them.

    loop thread                                 learner thread (owns tree or queue, grants, network, mailbox)
    -----------                                 -------------------------------------------------------------
    wait for data           ── run a burst ──>  tick:  receive new rows, grant, wake actors,
    serve other coroutines  <── ticks done ───         train for about a millisecond
                                                next tick, until the burst's time is over or there is nothing to do

Ticks are those of an `UpdateLoop`: `relaxed_replay.py` and `lockstep_replay.py` sample from replay, `segment_loop.py`
takes segments in order of arrival. A burst is long compared with the hand-over between the threads and short compared
with human reaction times. The event loop stays responsive during a burst because torch and the kernels release the GIL
and the interpreter's switch interval is short (see `run/switching.py`).

Waiting depends on traffic. While data arrives at intervals under a millisecond, the coroutine sleeps for a millisecond
and checks again, if the update loop allows it (`polls_while_dense`). Otherwise it arms the doorbell with a wake
position per ring, checks once more and sleeps. A lost signal is made up for after 100 ms.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.algorithms.value_bounds import ValueWatch
from asyncrl.interfaces import Bins, Distribution, Metrics, ValuePairs
from asyncrl.learning.learner_thread import LearnerThread
from asyncrl.learning.update_loop import Priorities, UpdateLoop
from asyncrl.learning.weight_snapshots import WeightSnapshots
from asyncrl.shm.doorbell import Doorbell

DENSE_SECONDS = 0.001
"""Wait below which traffic is dense; then also the polling interval, in place of the doorbell."""
DRAIN_SECONDS = 0.1
"""Longest sleep, which bounds the delay by a lost doorbell signal."""


@dataclass(frozen=True)
class LearnerReport:
    """What an update loop has measured, by public name.

    Attributes:
        metrics: numbers since the last report.
        distributions: distributions since the start.
        bins: histograms of now.
        value_pairs: see `UpdateLoop.value_pairs`.
    """

    metrics: Metrics = field(default_factory=dict)
    distributions: dict[str, Distribution] = field(default_factory=dict)
    bins: dict[str, Bins] = field(default_factory=dict)
    value_pairs: ValuePairs | None = None


class Learner:
    """Control of the update loop by the event loop; the module docstring describes the two threads.

    Args:
        loop: update loop, which turns rows into updates.
        doorbell: rung by actors while the learner sleeps; the event loop watches its read end.
        thread: the learner's thread.
        burst_seconds: duration of a burst.
        snapshots: queue of weights to evaluate, filled by `loop`.
    """

    def __init__(
        self,
        loop: UpdateLoop,
        doorbell: Doorbell,
        thread: LearnerThread,
        burst_seconds: float,
        snapshots: WeightSnapshots,
    ) -> None:
        self.snapshots = snapshots
        self._loop = loop
        self._doorbell = doorbell
        self._thread = thread
        self._burst_seconds = burst_seconds
        self._prepared = False
        self._value_watch = ValueWatch()
        self._wait_seconds = 0.0
        self._last_wait = float("inf")
        self._stopping = False
        self._holds = 0
        self._data = asyncio.Event()
        self._resumed = asyncio.Event()
        self._quiet = asyncio.Event()
        self._quiet.set()

    @property
    def updates(self) -> int:
        """Gradient steps so far; any thread."""
        return self._loop.updates

    @property
    def inserted_steps(self) -> int:
        """Environment steps received so far, RESET rows excluded; any thread."""
        return self._loop.inserted_steps

    @property
    def policy_version(self) -> int:
        """Publications of weights so far; any thread."""
        return self._loop.publisher.version

    @property
    def discipline(self) -> str:
        """`replay`, or the discipline of segments or lockstep replay."""
        return self._loop.pace.discipline

    @property
    def priorities(self) -> NDArray[np.float32] | None:
        """Priorities of a replay `[rings, slots, leaves of a row]`, a view valid while held; None for segments."""
        return self._loop.priorities()

    @property
    def core(self) -> Any:
        """Network, optimiser and loss; used on `thread` only."""
        return self._loop.core

    @property
    def thread(self) -> LearnerThread:
        """The learner's thread, which runs functions between two bursts."""
        return self._thread

    # --- loop thread ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Train until `stop`, or until the run's steps are inserted and trained on.

        Raises:
            TrainingDiverged: a priority or weight is NaN or infinite; such weights are not published.
            GPUOutOfMemory: the device ran out of memory.
        """
        loop = asyncio.get_running_loop()
        loop.add_reader(self._doorbell.fileno(), self._on_bell)
        try:
            while not self._stopping:
                if self._holds:
                    self._quiet.set()
                    await self._resumed.wait()
                    continue
                self._quiet.clear()
                starved = await self._thread.call(self._burst)
                if starved and self._loop.finished():
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
        """Pause after the running burst; return when the thread is idle. Actors continue until their grants run out.

        Returns immediately if `run` has ended; the last checkpoint may hold after that. Cancelled, it does not hold.
        """
        self._holds += 1
        self._resumed.clear()
        self._data.set()
        try:
            await self._quiet.wait()
        except asyncio.CancelledError:
            self.resume()
            raise

    def resume(self) -> None:
        """Undo one `hold`; training continues after the last."""
        self._holds -= 1
        if not self._holds:
            self._resumed.set()

    async def report(self) -> LearnerReport:
        """What the update loop has measured, read between two bursts.

        Raises `TrainingDiverged` for a nonfinite loss.
        """
        return await self._thread.call(self._report)

    async def state_dict(self) -> dict[str, Any]:
        """State of core and loop (see `UpdateLoop.state_dict`), copied between two bursts."""
        return await self._thread.call(
            lambda: {**self._loop.state_dict(), "wait_seconds": self._wait_seconds}
        )

    async def restore(self, state: Mapping[str, Any], priorities: Priorities | None) -> None:
        """Restore a result of `state_dict` before the first burst; see `UpdateLoop.restore`."""
        await self._thread.call(lambda: self._loop.restore(state, priorities))
        self._wait_seconds = float(state["wait_seconds"])

    async def close(self) -> None:
        """End the update loop after the last burst, before the rings are closed; see `UpdateLoop.close`."""
        await self._thread.call(self._loop.close)

    async def current_weights(self) -> tuple[NDArray[np.float32], int]:
        """Copy of the acting weights, and the policy version that they have or will be published under."""
        return await self._thread.call(self._loop.publisher.current)

    async def critics(self) -> NDArray[np.float32] | None:
        """Copy of the weights of the algorithm's critics (see `acting.critics`); None if it has none."""
        weights: Any = getattr(self._loop.core, "critic_weights", lambda: None)
        return await self._thread.call(weights)

    @property
    def reward_scale(self) -> float | None:
        """Factor from the environment's rewards to those of the learned values; None if the algorithm has none."""
        scale: float | None = getattr(self._loop.core, "learned_reward_scale", None)
        return scale

    def _on_bell(self) -> None:
        self._doorbell.drain()
        self._data.set()

    def data_arrived(self) -> None:
        """Wake the coroutine; called on the loop thread when an actor died, whose signal may be lost."""
        self._data.set()

    async def _wait_for_data(self) -> None:
        """Sleep until there is data for a burst, by polling or doorbell; see the module docstring."""
        started = time.perf_counter()
        if self._loop.polls_while_dense and self._last_wait < DENSE_SECONDS:
            await asyncio.sleep(DENSE_SECONDS)
            self._last_wait = DENSE_SECONDS
        else:
            await self._sleep_until_bell()
            self._last_wait = time.perf_counter() - started
        self._wait_seconds += time.perf_counter() - started

    async def _sleep_until_bell(self) -> None:
        self._data.clear()
        rings, targets = self._loop.rings, self._loop.wake_positions()
        for ring, target in zip(rings, targets, strict=True):
            ring.wake_at(target)
        self._doorbell.arm()
        arrived = any(ring.reached(target) for ring, target in zip(rings, targets, strict=True))
        if arrived or self._stopping or self._holds:
            self._doorbell.disarm()
            return
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                await self._data.wait()
        except TimeoutError:
            pass
        finally:
            self._doorbell.disarm()

    # --- learner thread ---------------------------------------------------------------------------------------------

    def _burst(self) -> bool:
        """Run ticks, one at least, until the time is over or a tick found nothing to do; return whether one did."""
        if not self._prepared:
            self._loop.prepare()
            self._prepared = True
        starved = False
        end = time.perf_counter() + self._burst_seconds
        while not (starved or self._stopping or self._holds):
            starved = not self._loop.tick()
            if time.perf_counter() >= end:  # not before the first tick: a short burst would never learn
                break
        return starved

    def _report(self) -> LearnerReport:
        loop = self._loop
        values = loop.core.metrics() if loop.updates else {}
        core = {name if "/" in name else f"train/{name}": float(value) for name, value in values.items()}
        if "train/loss" in core:
            loop.divergence.check(core["train/loss"], loop.updates)
        self._value_watch.check(core, loop.updates)
        metrics = {**core, **loop.statistics(), "learner_wait_seconds": self._wait_seconds}
        return LearnerReport(metrics, loop.distributions(), loop.bins(), loop.value_pairs())
