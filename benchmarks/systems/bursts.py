"""Overhead of the learner's coroutine: updates/s in bursts against the same updates in a bare loop.

Both use a prefilled replay and the network of the CartPole preset. The bare loop runs on a new thread with one torch
thread and only samples, corrects, updates and sets priorities. They alternate.

    python -m benchmarks.systems.bursts
"""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from uvloop import new_event_loop

from asyncrl import DQN
from asyncrl.interfaces import Batch, DiscreteAction, EnvSpec
from asyncrl.learning.learner import Learner
from asyncrl.learning.learner_thread import LearnerThread
from asyncrl.learning.relaxed_replay import RelaxedReplayLoop
from asyncrl.learning.staleness import StalenessMeter
from asyncrl.learning.weight_snapshots import WeightSnapshots
from asyncrl.replay.replay import PrioritizedReplay
from asyncrl.shm.doorbell import Doorbell
from asyncrl.shm.ring import RingLayout, RingReader, RingWriter
from asyncrl.shm.segment import Segment
from asyncrl.shm.weights import WeightMailbox
from benchmarks.harness.report import Report, by_turns, script_parser

SPEC = EnvSpec("CartPole-v1", (4,), "float32", DiscreteAction(2))
ENVS, SLOTS = 16, 2048


class Bench:
    """A filled replay and a new network."""

    def __init__(self, algorithm: DQN) -> None:
        layout = RingLayout(ENVS, SLOTS, SPEC)
        self.segment = Segment.create("ring", layout.arrays())
        rng = np.random.default_rng(0)
        writer, self.reader = RingWriter(self.segment, layout), RingReader(self.segment, layout)
        writer.obs[:] = rng.standard_normal(writer.obs.shape)
        writer.action[:] = rng.integers(0, 2, writer.action.shape)
        writer.reward[:] = 1.0
        writer.flags[:] = 0
        writer.version[:] = 1
        writer.policy_updates[:] = 0
        writer.incarnation[:] = 0
        self.replay = PrioritizedReplay([self.reader], n_step=3, gamma=0.99, rng=rng)
        self.replay.grant(0, SLOTS)
        writer.publish(SLOTS - 1, (SLOTS - 1) * ENVS)
        self.replay.ingest()
        self.core = algorithm.make_updater(SPEC, "cpu", 0)
        self.batch = Batch.allocate(algorithm.batch_size, SPEC)
        self.meter = StalenessMeter()


def bare(algorithm: DQN, seconds: float) -> float:
    """Updates/s of a bare loop on a new thread."""
    bench = Bench(algorithm)
    rates: list[float] = []

    def loop() -> None:
        torch.set_num_threads(1)
        torch.set_flush_denormal(True)  # like the learner's thread; denormals are slow on some processors
        updates, started = 0, time.perf_counter()
        while time.perf_counter() - started < seconds:
            bench.replay.sample(bench.batch, 0.4)
            bench.meter.measure(updates, 1, bench.batch)
            result = bench.core.update(bench.batch)
            if result.priorities is not None:
                bench.replay.update_priorities(bench.batch.ids, result.priorities)
            updates += 1
        rates.append(updates / (time.perf_counter() - started))

    thread = threading.Thread(target=loop)
    thread.start()
    thread.join()
    return rates[0]


def bursts(algorithm: DQN, seconds: float, burst_seconds: float) -> float:
    """Updates/s of the learner on its event loop and thread."""
    bench = Bench(algorithm)
    mailbox, doorbell = WeightMailbox.create(bench.core.weight_count), Doorbell.create()
    thread = LearnerThread()
    snapshots = WeightSnapshots(None)
    algorithm = replace(algorithm, samples_per_insert=None, learning_starts=1)
    consumption = RelaxedReplayLoop(
        algorithm, bench.replay, bench.batch, bench.core, mailbox, wake=lambda _: None, snapshots=snapshots
    )
    consumption.pace.inserted(bench.replay.inserted)

    async def run() -> float:
        learner = Learner(consumption, doorbell, thread, burst_seconds, snapshots)
        task = asyncio.create_task(learner.run())
        while learner.updates < 10:
            await asyncio.sleep(0.01)
        before, started = learner.updates, time.perf_counter()
        await asyncio.sleep(seconds)
        rate = (learner.updates - before) / (time.perf_counter() - started)
        learner.stop()
        await task
        return rate

    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            return runner.run(run())
    finally:
        thread.close()
        mailbox.close()
        doorbell.close()


def main() -> None:
    """Measure and write results/bursts.json."""
    parser = script_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--burst-seconds", type=float, default=0.01)
    arguments = parser.parse_args()
    report = Report("bursts")
    for name, algorithm in (
        ("128x128_batch_64", DQN.preset("CartPole-v1")),
        ("256x256_batch_256", DQN(hidden_sizes=(256, 256), batch_size=256)),
    ):
        rates = by_turns(
            arguments.repeats,
            {
                "bare": partial(bare, algorithm, arguments.seconds),
                "burst": partial(bursts, algorithm, arguments.seconds, arguments.burst_seconds),
            },
        )
        for way, values in rates.items():
            report.add(f"{name}_{way}_updates_per_second", values, "/s")
        report.add_ratio(f"{name}_bursts_to_bare", rates["burst"], rates["bare"], "at least 0.95")
    report.write()


if __name__ == "__main__":
    main()
