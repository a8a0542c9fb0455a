from __future__ import annotations

import asyncio
import gc
import itertools
import os
import random
import re
import signal
import time
from typing import Any

import fakes
import misbehaving
import numpy as np
import psutil
import pytest
from actors_rig import Rig, until
from waiting import is_running

from asyncrl.actors import limits, supervised
from asyncrl.actors.child import Child
from asyncrl.actors.forkserver import ForkServer
from asyncrl.actors.global_generators import restore_generators, states_of_generators
from asyncrl.actors.probe import probe, trial
from asyncrl.envs.source import EnvSource
from asyncrl.errors import (
    ActorKilled,
    EnvironmentHung,
    EnvironmentNotBuilt,
    EnvironmentRaised,
    NonFiniteStep,
    ObservationOffSpace,
    ResourceError,
)
from asyncrl.interfaces import FieldSpec


class StreamChecker:
    """Check of every row of a counting environment's streams, in place, as the rows arrive."""

    def __init__(self, ring: Any) -> None:
        self.ring = ring
        self.checked = 0
        self.expected = [fakes.counting_rows(e) for e in range(ring.num_envs)]
        self.now = [next(rows) for rows in self.expected]

    def check(self) -> None:
        ring = self.ring
        published = ring.published()
        for position in range(self.checked, published):
            slot, after = position % ring.num_slots, (position + 1) % ring.num_slots
            for e in range(ring.num_envs):
                seen, reward, flags = self.now[e]
                assert tuple(ring.obs[e, slot, :3]) == seen, f"row {position} of stream {e}"
                assert ring.reward[e, slot] == reward
                assert ring.flags[e, slot] == flags
                self.now[e] = next(self.expected[e])
                if position + 1 < published and not flags & fakes.RESET:
                    # The environment was given the stored action, moved to where its space starts.
                    assert ring.obs[e, after, 3] == ring.action[e, slot] + 1
        self.checked = published


@pytest.mark.parametrize("env", [fakes.CountingEnv, misbehaving.ForksAndGoesOn])
def test_every_row_of_every_stream_can_be_recomputed(server: ForkServer, env: Any) -> None:
    async def story() -> None:
        async with Rig(server, env, num_actors=2, num_envs=3, num_slots=32) as rig:
            checkers = [StreamChecker(ring) for ring in rig.pool.rings]
            rig.publish_weights()
            while min(c.checked for c in checkers) < 3000:
                for i, checker in enumerate(checkers):
                    checker.ring.grant(checker.checked + checker.ring.num_slots)
                    if checker.ring.take_waiting():
                        rig.pool.wake(i)
                await until(lambda: all(c.ring.published() > c.checked for c in checkers), "rows")
                for checker in checkers:
                    checker.check()
            assert all(np.all(c.ring.incarnation[:] == 0) for c in checkers)
            assert all(np.all(c.ring.version[:] == 1) for c in checkers)
            assert not rig.deaths and not rig.failures

    asyncio.run(story())


def test_counters_and_episodes_follow_from_the_rows(server: ForkServer) -> None:
    async def story() -> None:
        async with Rig(server, fakes.CountingEnv, num_envs=2, num_slots=512) as rig:
            rig.publish_weights()
            rig.grant()
            await rig.rows(511)
            ring = rig.pool.rings[0]
            flags = ring.flags[:, :511]
            assert ring.statistics().env_steps == int(np.sum(flags != fakes.RESET))
            episodes = list(rig.pool.episodes())
            assert len(episodes) == int(np.sum((flags & 3) != 0)) == ring.statistics().episodes
            by_hand = {}
            for e in range(2):
                for episode in range(512):
                    length = next(n for n in itertools.count(1) if fakes.counting_flags(e, episode, n))
                    total = sum(fakes.counting_reward(e, episode, n + 1) for n in range(length))
                    by_hand[total, length] = by_hand.get((total, length), 0) + 1
            assert {(total, length) for _, total, length, _ in episodes} <= set(by_hand)
            assert list(rig.pool.episodes()) == []
            # The actor publishes its last row before it waits.
            await until(lambda: rig.pool.statistics()[0].state == "waiting", "the end of the grant")
            actor = rig.pool.statistics()[0]
            assert actor.pid > 0 and actor.restarts == 0
            assert rig.pool.exploration_rate() == 0.25

    asyncio.run(story())


def test_nothing_is_written_before_weights_and_grant(server: ForkServer) -> None:
    async def story() -> None:
        async with Rig(server, fakes.CountingEnv) as rig:
            ring = rig.pool.rings[0]
            assert rig.pool.exploration_rate() is None
            rig.grant()
            await until(lambda: rig.pool.statistics()[0].state == "running", "an actor waiting for weights")
            assert ring.published() == 0 and np.all(ring.version == ring.version[0])
            rig.publish_weights()
            await rig.rows(63)
            # The last granted slot takes the next observation only.
            await until(lambda: rig.pool.statistics()[0].state == "waiting", "the end of the grant")
            assert ring.published() == 63 < ring.granted == 64

    asyncio.run(story())


def test_policies_see_new_weights_and_fill_extra_fields(server: ForkServer) -> None:
    async def story() -> None:
        echo = (FieldSpec("echo", (2,), "float32"),)
        options: dict[str, Any] = {"policy": fakes.EchoPolicy(), "extra_fields": echo, "num_actors": 2}
        async with Rig(server, fakes.CountingEnv, **options) as rig:
            for version in (1, 2, 3):
                assert rig.publish_weights(float(version)) == version
                target = 20 * version
                for i, ring in enumerate(rig.pool.rings):
                    ring.grant(target + 1)
                    if ring.take_waiting():
                        rig.pool.wake(i)
                await rig.rows(target)
            for i, ring in enumerate(rig.pool.rings):
                versions = ring.version[:60]
                assert list(versions) == [1] * 20 + [2] * 20 + [3] * 20
                for e in range(2):
                    assert np.array_equal(ring.extras["echo"][e, :60, 0], versions)
                    assert np.all(ring.extras["echo"][e, :60, 1] == 2 * i + e)

    asyncio.run(story())


def test_actors_are_light_deaf_to_interrupts_and_single_threaded(server: ForkServer) -> None:
    async def story() -> None:
        async with Rig(server, fakes.ShowsProcess, num_envs=1) as rig:
            rig.publish_weights()
            rig.grant()
            await rig.rows(10)
            torch, deaf, threads, private, _ = rig.pool.rings[0].obs[0, 9]
            assert (torch, deaf, threads) == (0, 1, 1)
            assert private < 150
            assert 0 < rig.pool.statistics()[0].private_bytes < 150 * 2**20

    asyncio.run(story())


def test_actor_killed_is_started_again_as_next_incarnation(server: ForkServer) -> None:
    async def story() -> None:
        async with Rig(server, fakes.CountingEnv, num_slots=1024) as rig:
            ring = rig.pool.rings[0]
            rig.publish_weights()
            rig.grant(101)
            await rig.rows(100)
            first = rig.pool.statistics()[0].pid
            os.kill(first, signal.SIGKILL)
            await until(lambda: rig.deaths == [0], "a death")
            rig.grant(101)
            await rig.rows(200)
            assert rig.pool.statistics()[0].restarts == 1
            assert rig.pool.statistics()[0].pid not in (0, first)
            assert list(ring.incarnation[98:102]) == [0, 0, 1, 1]
            assert ring.flags[0, 100] == fakes.RESET, "the dead life's next observation is its true final one"
            assert tuple(ring.obs[0, 101, 1:3]) == (0, 0), "a new life begins a new episode"
            assert ring.statistics().env_steps == int(np.sum(ring.flags[:, :200] != fakes.RESET))
            assert ring.statistics().incarnation == 1 and not rig.failures

    asyncio.run(story())


class DrawsGlobally(fakes.SimpleEnv):
    """Environment whose observations are draws of the global generators of NumPy and `random`."""

    def observe(self) -> Any:
        return np.array([np.random.random(), random.random()], np.float32)


def test_global_generators_differ_over_actors_and_lives_and_repeat_over_runs(server: ForkServer) -> None:
    runs = []

    async def story() -> None:
        async with Rig(server, DrawsGlobally, num_actors=2, num_envs=1) as rig:
            rig.publish_weights()
            rig.grant(21)
            await rig.rows(20)
            os.kill(rig.pool.statistics()[0].pid, signal.SIGKILL)
            await until(lambda: rig.deaths == [0], "a death")
            rig.grant(21)
            await rig.rows(40)
            lives = [ring.obs[0, first : first + 19].copy() for ring in rig.pool.rings for first in (0, 21)]
            runs.append(np.stack(lives))

    for _ in range(2):
        asyncio.run(story())
    first, again = runs
    assert (first == again).all()
    assert np.unique(first[..., 0]).size == first[..., 0].size, "no draw of NumPy's comes twice"
    assert np.unique(first[..., 1]).size == first[..., 1].size


def test_states_of_global_generators_are_restored() -> None:
    def draws() -> tuple[float, float, float]:
        return random.random(), np.random.random(), torch.rand(()).item()

    import torch

    kept = states_of_generators()
    try:
        first, _ = draws(), draws()
        restore_generators(kept)
        assert draws() == first
    finally:
        restore_generators(kept)


class DrawsFromTorch(fakes.SimpleEnv):
    """Environment whose observations are draws of torch's global generator."""

    def __init__(self) -> None:
        super().__init__()
        import torch

        self.draw = torch.rand

    def observe(self) -> Any:
        return self.draw(2).numpy()


def test_draws_from_torch_differ_over_actors_and_repeat_over_runs(server: ForkServer) -> None:
    runs = []

    async def story() -> None:
        async with Rig(server, DrawsFromTorch, num_actors=2, num_envs=1) as rig:
            rig.publish_weights()
            rig.grant(11)
            await rig.rows(10)
            runs.append(np.stack([ring.obs[0, :10] for ring in rig.pool.rings]))

    for _ in range(2):
        asyncio.run(story())
    first, again = runs
    assert (first == again).all() and np.unique(first).size == first.size


def test_actor_that_dies_too_often_is_reported(server: ForkServer) -> None:
    async def story() -> None:
        async with Rig(server, fakes.Segfaults, max_restarts=1) as rig:
            rig.publish_weights()
            rig.grant()
            error = await rig.failure()
            text = r"ASYNC003\] Actor 0 was killed by SIGSEGV \(Segmentation fault\), after 1 restart\."
            with pytest.raises(ActorKilled, match=text):
                raise error
            assert rig.deaths == [0, 0]
            assert rig.pool.statistics()[0].state == "stopped"
            assert "SIGSEGV" in rig.pool.statistics()[0].last_error

    asyncio.run(story())


def test_actor_that_leaks_is_ended_at_its_limit_and_started_again(server: ForkServer) -> None:
    limit = 300_000_000

    async def story() -> None:
        options = {"num_envs": 1, "max_restarts": 1, "max_actor_bytes": limit}
        async with Rig(server, misbehaving.Leaks, **options) as rig:
            rig.publish_weights()
            rig.grant()
            await until(lambda: rig.pool.statistics()[0].restarts == 1, "another life")
            assert "exceeds max_actor_bytes" in rig.pool.statistics()[0].last_error
            await until(lambda: rig.pool.statistics()[0].pid, "its process")
            last = rig.pool.statistics()[0].pid
            rig.grant(20)
            error = await rig.failure()
            assert isinstance(error, ActorKilled) and "ASYNC003" in str(error)
            found = re.fullmatch(
                r"Actor 0 was killed because its private memory of ([\d,]+) bytes exceeds max_actor_bytes\.",
                error.what,
            )
            assert found is not None and int(found[1].replace(",", "")) > limit
            assert error.facts == {"pid": last, "max_actor_bytes": "300,000,000"}
            assert "raise max_actor_bytes" in str(error)
            assert rig.deaths == [0, 0], "the restart budget counts it"

    asyncio.run(story())


@pytest.mark.parametrize("limit", [None, 10**12])
def test_actor_within_its_limit_is_left_alone(
    server: ForkServer, monkeypatch: pytest.MonkeyPatch, limit: int | None
) -> None:
    looks: list[int] = []
    monkeypatch.setattr(supervised, "private_bytes", lambda pid: looks.append(pid) or 10**11)
    monkeypatch.setattr(supervised, "MEMORY_CHECK_SECONDS", 0.0)

    async def story() -> None:
        async with Rig(server, fakes.SimpleEnv, max_actor_bytes=limit) as rig:
            rig.publish_weights()
            rig.grant()
            if limit is not None:
                await until(lambda: len(looks) > 3, "some looks")
            await rig.rows(20)
            assert rig.deaths == []

    asyncio.run(story())
    assert bool(looks) == (limit is not None)


@pytest.mark.parametrize(
    ("env", "mark"),
    [
        (misbehaving.ReadsNull, "Fatal Python error: Segmentation fault"),
        (misbehaving.Aborts, "Fatal Python error: Aborted"),
        (misbehaving.OverwritesWeights, "Fatal Python error: Segmentation fault"),
    ],
)
def test_crash_is_shown_where_it_happened_and_stands_in_the_log(
    server: ForkServer, tmp_path: Any, env: Any, mark: str
) -> None:
    """The weights are mapped read-only: a process that writes to them crashes, and no other process sees the write."""

    async def story() -> ActorKilled:
        async with Rig(server, env, max_restarts=1, log_dir=tmp_path) as rig:
            rig.publish_weights()
            rig.grant()
            error = await rig.failure()
            out = np.ones(3, np.float32)
            assert rig.mailbox.refresh(out, 0) == 1 and not out.any()
            assert isinstance(error, ActorKilled)
            return error

    error = asyncio.run(story())
    for text in (str(error), log := (tmp_path / "0.log").read_text()):
        assert mark in text and "in follow_a_wild_pointer" in text
    assert log.count(mark) == 2, "of both lives"
    assert error.facts["log"] == tmp_path / "0.log"


def test_sigkill_names_the_memory_of_process_and_machine(server: ForkServer) -> None:
    async def story() -> None:
        async with Rig(server, fakes.SimpleEnv, max_restarts=0) as rig:
            os.kill(rig.pool.statistics()[0].pid, signal.SIGKILL)
            error = await rig.failure()
            assert isinstance(error, ActorKilled)
            assert "was killed by SIGKILL (Killed)." in error.what
            assert "GiB" in str(error.facts["most memory it had resident"])
            assert "GiB free of" in str(error.facts["memory of the machine"])

    asyncio.run(story())


@pytest.mark.parametrize("env", [misbehaving.CloseRaises, misbehaving.CloseHangs])
def test_environment_that_does_not_close_is_no_failure(server: ForkServer, env: Any, tmp_path: Any) -> None:
    async def story() -> None:
        async with Rig(server, env, log_dir=tmp_path) as rig:  # the probe has closed one
            rig.publish_weights()
            rig.grant()
            await until(lambda: rig.pool.rings[0].published() > 0, "rows")
        assert not rig.failures
        assert env is misbehaving.CloseHangs or "the window is gone" in (tmp_path / "0.log").read_text()

    asyncio.run(story())


def test_process_that_leaves_by_itself_is_a_death_too(server: ForkServer) -> None:
    async def story() -> None:
        async with Rig(server, fakes.HugeReward, max_restarts=0) as rig:
            rig.publish_weights()
            rig.grant()
            assert isinstance(await rig.failure(), NonFiniteStep)
        with pytest.raises(ActorKilled, match="exited with status 7 without a word"):
            async with Rig(server, fakes.LeavesWithoutAWord, max_restarts=0):
                pass

    asyncio.run(story())


def test_environment_that_raises_is_reported_with_everything(server: ForkServer) -> None:
    async def story() -> EnvironmentRaised:
        async with Rig(server, fakes.Raises, num_actors=2) as rig:
            pids = [a.pid for a in rig.pool.statistics()]
            rig.publish_weights()
            rig.pool.rings[1].grant(64)
            error = await rig.failure()
            assert rig.pool.rings[1].published() == 6
            assert isinstance(error, EnvironmentRaised)
            assert error.facts["pid"] == pids[1]
            assert rig.pool.statistics()[1].restarts == 0
            return error

    error = asyncio.run(story())
    assert error.what.startswith("Environment 0 of actor 1 raised UnicodeTranslateError in step")
    assert {k: error.facts[k] for k in ("actor", "env index", "episode step")} == {
        "actor": 1,
        "env index": 0,
        "episode step": 6,
    }
    assert "action" in error.facts and "seed" in error.facts
    assert error.remote_traceback is not None and "the wheels came off" in error.remote_traceback
    assert "fakes.py" in error.remote_traceback


@pytest.mark.parametrize(
    ("env", "kind", "text", "rows"),
    [
        (
            fakes.NaNReward,
            NonFiniteStep,
            r"ASYNC011\] Environment 0 of actor 0 returned a reward that is NaN",
            3,
        ),
        (fakes.InfiniteObservation, NonFiniteStep, r"ASYNC011\].* observation that is NaN or infinite", 3),
        (
            fakes.FloatForByteLater,
            ObservationOffSpace,
            r"ASYNC012\].*float32.*rint\(obs\).astype\(np.uint8\)",
            3,
        ),
    ],
)
def test_bad_row_is_refused_and_nothing_of_it_stored(
    server: ForkServer, env: Any, kind: type[Exception], text: str, rows: int
) -> None:
    async def story() -> None:
        async with Rig(server, env) as rig:
            rig.publish_weights()
            rig.grant()
            error = await rig.failure()
            with pytest.raises(kind, match=f"(?s){text}"):
                raise error
            assert rig.pool.rings[0].published() == rows
            for fact in ("actor", "env index", "action", "seed"):
                assert fact in error.facts
            assert error.facts["episode step"] == rows

    asyncio.run(story())


def test_start_raises_what_a_constructor_raised(server: ForkServer) -> None:
    async def story() -> None:
        with pytest.raises(EnvironmentNotBuilt, match=r"(?s)ASYNC004\].*OSError: display :0 is missing"):
            await probe(server, EnvSource.from_user(fakes.FailingConstructor))
        with pytest.raises(EnvironmentRaised, match=r"(?s)ASYNC002\].*no map for this level"):
            await probe(server, EnvSource.from_user(fakes.RaisesInReset))
        with pytest.raises(EnvironmentRaised, match=r"ASYNC002\].*raised KeyboardInterrupt in step"):
            await probe(server, EnvSource.from_user(fakes.Interrupts))
        os.environ["ASYNCRL_TEST_BUILDS"] = "1"
        try:
            with pytest.raises(EnvironmentNotBuilt, match="only the first may be built"):
                async with Rig(server, _first_only):
                    pass
        finally:
            del os.environ["ASYNCRL_TEST_BUILDS"]

    asyncio.run(story())


def _first_only() -> Any:
    """Factory that works once per process: it passes the probe and fails in an actor of two environments."""
    builds = int(os.environ["ASYNCRL_TEST_BUILDS"])
    os.environ["ASYNCRL_TEST_BUILDS"] = str(builds - 1)
    if builds == 0:
        raise RuntimeError("only the first may be built")
    return fakes.SimpleEnv()


@pytest.mark.parametrize("env", [fakes.Hangs, fakes.HangsInC, misbehaving.HangsInAnotherGroup])
def test_hanging_environment_is_shown_and_killed(server: ForkServer, env: Any) -> None:
    async def story() -> EnvironmentHung:
        async with Rig(server, env, num_envs=1, step_timeout_seconds=1.0, max_restarts=0) as rig:
            rig.publish_weights()
            rig.grant()
            error = await rig.failure()
            assert isinstance(error, EnvironmentHung)
            return error

    error = asyncio.run(story())
    assert error.what.startswith("Environment 0 of actor 0 did not return for 1.")
    assert "wait_for_godot" in str(error.facts["stack (most recent call first)"])
    assert "ms" in str(error.facts["median step time"])
    assert "step_timeout_seconds" in error.fix


def test_hanging_environment_is_restarted_first(server: ForkServer) -> None:
    async def story() -> None:
        async with Rig(server, fakes.Hangs, step_timeout_seconds=1.0, max_restarts=1) as rig:
            rig.publish_weights()
            rig.grant()
            assert isinstance(await rig.failure(), EnvironmentHung)
            assert rig.deaths == [0, 0]
            assert rig.pool.rings[0].published() == 9, "four rows of each life, and the second one's reset"

    asyncio.run(story())


def test_environment_that_is_never_built_runs_into_the_time_out(server: ForkServer) -> None:
    async def story() -> None:
        os.environ["ASYNCRL_TEST_BUILDS"] = "1"
        try:
            with pytest.raises(EnvironmentHung, match="was not built and reset within 0"):
                async with Rig(server, _hangs_second, ready_timeout_seconds=0.4, max_restarts=0):
                    pass
        finally:
            del os.environ["ASYNCRL_TEST_BUILDS"]

    asyncio.run(story())


def _hangs_second() -> Any:
    builds = int(os.environ["ASYNCRL_TEST_BUILDS"])
    os.environ["ASYNCRL_TEST_BUILDS"] = str(builds - 1)
    return fakes.SimpleEnv() if builds else fakes.HangsWhenBuilt()


def test_actor_that_hangs_before_it_was_ever_ready_is_not_started_again(server: ForkServer) -> None:
    async def story() -> None:
        os.environ["ASYNCRL_TEST_BUILDS"] = "1"
        try:
            rig = Rig(server, _hangs_second, ready_timeout_seconds=0.3, max_restarts=3)
            with pytest.raises(EnvironmentHung, match=r"(?s)ready_timeout_seconds"):
                async with rig:
                    pass
            assert rig.deaths == [0]
        finally:
            del os.environ["ASYNCRL_TEST_BUILDS"]

    asyncio.run(story())


@pytest.mark.parametrize("env", [fakes.HangsWhenBuilt, misbehaving.HangsInReset])
def test_probe_of_an_environment_that_hangs_ends_with_its_stack(server: ForkServer, env: Any) -> None:
    async def story() -> EnvironmentHung:
        with pytest.raises(EnvironmentHung) as raised:
            await probe(server, EnvSource.from_user(env), 0.3)
        return raised.value

    error = asyncio.run(story())
    assert error.what.startswith("The environment ") and "was not built and reset within 0." in error.what
    assert ("in __init__" if env is fakes.HangsWhenBuilt else "in reset") in str(error)
    assert "raise ready_timeout_seconds" in error.fix


def test_trial_of_an_environment_whose_close_hangs_has_a_result(server: ForkServer) -> None:
    source = EnvSource.from_user(misbehaving.CloseHangs)
    assert asyncio.run(trial(server, source, 0.05, 5.0)).steps > 0


def test_waiting_for_a_grant_is_not_hanging(server: ForkServer) -> None:
    async def story() -> None:
        async with Rig(server, fakes.SimpleEnv, step_timeout_seconds=1.0) as rig:
            rig.publish_weights()
            rig.grant(5)
            await rig.rows(4)
            waited = rig.pool.rings[0].statistics().wait_seconds
            await until(lambda: rig.pool.rings[0].statistics().wait_seconds > waited + 1.5, "a long wait")
            assert not rig.failures and not rig.deaths

    asyncio.run(story())


def test_close_ends_actors_that_are_stuck_in_c_within_two_seconds(
    server: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits_of_waits, wait = [], Child.wait

    async def counted(child: Child, timeout_seconds: float) -> bool:
        limits_of_waits.append(timeout_seconds)
        return await wait(child, timeout_seconds)

    async def story() -> None:
        rig = Rig(server, fakes.HangsInC, num_actors=2, num_envs=1)
        async with rig:
            rig.publish_weights()
            rig.grant()
            await rig.rows(4)
            pids = [a.pid for a in rig.pool.statistics()]
            monkeypatch.setattr(Child, "wait", counted)
            await rig.pool.close()
            # Not the time that passes: the fork server, which kills and reports, may have to wait for a core.
            assert 0.0 < sum(limits_of_waits) / len(pids) <= 2.0
            assert not any(psutil.pid_exists(pid) for pid in pids)
            await rig.pool.close()

    asyncio.run(story())


def test_close_ends_an_actor_that_is_being_forked(server: ForkServer) -> None:
    class StopsServer(list[int]):
        def append(self, index: int) -> None:
            super().append(index)
            os.kill(server.pid, signal.SIGSTOP)  # the fork of its next life gets no answer

    async def story() -> None:
        rig = Rig(server, fakes.SimpleEnv)
        rig.deaths = StopsServer()
        try:
            async with rig:
                os.kill(rig.pool.statistics()[0].pid, signal.SIGKILL)
                await until(lambda: rig.deaths, "a death")
                closing = asyncio.create_task(rig.pool.close())
                done, _ = await asyncio.wait({closing}, timeout=0.1)
                assert not done
                os.kill(server.pid, signal.SIGCONT)
                await closing
                await until(lambda: not psutil.Process(server.pid).children(), "no process")
        finally:
            os.kill(server.pid, signal.SIGCONT)

    asyncio.run(story())


def test_no_life_begins_while_the_pool_closes(server: ForkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PAUSES_SECONDS", (0.1,))

    class SlowToClose(fakes.SimpleEnv):
        def close(self) -> None:
            time.sleep(0.4)

    class Closes(list[int]):
        def append(self, index: int) -> None:
            super().append(index)
            closing.append(asyncio.create_task(rig.pool.close()))  # before the pause of the actor ends

    closing: list[asyncio.Task[None]] = []
    rig = Rig(server, SlowToClose, num_actors=2, num_envs=1)
    rig.deaths = Closes()

    async def story() -> None:
        async with rig:
            before = [a.child for a in rig.pool.actors]
            os.kill(rig.pool.statistics()[0].pid, signal.SIGKILL)
            await until(lambda: closing, "a death")
            await closing[0]
        assert [a.child for a in rig.pool.actors] == before
        assert [a.restarts for a in rig.pool.statistics()] == [0, 0]

    asyncio.run(story())


def test_wake_is_harmless_for_the_dead(server: ForkServer) -> None:
    async def story() -> None:
        async with Rig(server, fakes.SimpleEnv, max_restarts=0) as rig:
            os.kill(rig.pool.statistics()[0].pid, signal.SIGSTOP)
            for _ in range(
                100_000
            ):  # far more than a socket holds: a reader that does not read must not block
                rig.pool.wake(0)
            os.kill(rig.pool.statistics()[0].pid, signal.SIGKILL)
            await rig.failure()
            rig.pool.wake(0)
        rig.pool.wake(0)

    asyncio.run(story())


@pytest.mark.parametrize("env", [fakes.StartsHelper, misbehaving.DetachesHelper])
def test_helpers_of_an_environment_die_with_its_actor_and_not_before(server: ForkServer, env: Any) -> None:
    async def story() -> None:
        async with Rig(server, env, num_actors=2, num_envs=1) as rig:
            rig.publish_weights()
            rig.grant()
            await rig.rows(2)
            (actor, helper), (_, other) = ((int(pid) for pid in ring.obs[0, 0]) for ring in rig.pool.rings)
            assert is_running(helper) and is_running(other)
            os.kill(actor, signal.SIGKILL)
            await until(lambda: not is_running(helper), "the end of the helper")
            await until(lambda: rig.pool.rings[0].statistics().incarnation == 1, "the next life")
            assert is_running(other), "its actor lives"
        await until(
            lambda: not is_running(other), "the end of the other helper, whose actor was told to quit"
        )

    asyncio.run(story())


def test_output_of_actors_goes_to_their_logs(server: ForkServer, tmp_path: Any) -> None:
    async def story() -> None:
        async with Rig(server, fakes.Talks, num_actors=2, num_envs=1, log_dir=tmp_path / "actors"):
            pass

    asyncio.run(story())
    for i in range(2):
        log = (tmp_path / "actors" / f"{i}.log").read_text()
        assert log == "hello from the environment\nand its error stream\n"


def test_lost_fork_server_is_replaced_and_its_actors_begin_their_next_life() -> None:
    async def story() -> None:
        own = ForkServer(max_restarts=1)
        own.start()
        try:
            async with Rig(own, misbehaving.DetachesHelper, num_actors=2, num_envs=1, max_restarts=0) as rig:
                ring = rig.pool.rings[0]
                rig.publish_weights()
                rig.grant(10)
                await rig.rows(9)
                pids = [own.pid, *(int(pid) for ring in rig.pool.rings for pid in ring.obs[0, 0])]
                os.kill(own.pid, signal.SIGKILL)
                await until(lambda: sorted(rig.deaths) == [0, 1], "two deaths")
                rig.grant(12)
                await rig.rows(20)
                assert not any(is_running(pid) for pid in pids), (
                    "nothing of the old server is left before the new one"
                )
                assert list(ring.incarnation[8:11]) == [0, 1, 1] and ring.flags[0, 9] == fakes.RESET
                assert "fork server died" in rig.pool.statistics()[0].last_error

                os.kill(own.pid, signal.SIGKILL)
                error = await rig.failure()
                text = r"No actor could be started: the fork server ended, after 1 restarts within 60 s\."
                with pytest.raises(ResourceError, match=text):
                    raise error
        finally:
            own.close()

    asyncio.run(story())


def test_no_descriptor_is_left_open(server: ForkServer) -> None:
    def descriptors() -> int:
        gc.collect()  # a mapping lives as long as somebody has a view of it
        return len(os.listdir("/proc/self/fd"))

    async def story() -> None:
        for round_number in range(4):
            async with Rig(server, fakes.SimpleEnv, num_actors=2) as rig:
                os.kill(rig.pool.statistics()[0].pid, signal.SIGKILL)
                await until(lambda: rig.deaths == [0], "a death")
            if round_number == 0:
                before = descriptors()
        assert descriptors() == before
        # Where no core is free for 2 s, `close` ends before the fork server has answered.
        await until(lambda: len(os.listdir(f"/proc/{server.pid}/fd")) < 12, "the server's descriptors closed")
        await until(lambda: not psutil.Process(server.pid).children(), "no process")

    asyncio.run(story())


def test_pool_works_on_uvloop(server: ForkServer) -> None:
    uvloop = pytest.importorskip("uvloop")

    async def story() -> None:
        async with Rig(server, fakes.CountingEnv) as rig:
            rig.publish_weights()
            rig.grant(11)
            await rig.rows(10)
            os.kill(rig.pool.statistics()[0].pid, signal.SIGKILL)
            await until(lambda: rig.deaths == [0], "a death")
            rig.grant(11)
            await rig.rows(20)

    uvloop.run(story())
