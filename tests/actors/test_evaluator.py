from __future__ import annotations

import asyncio
import math
import os
import pickle
import random
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import fakes
import gymnasium
import numpy as np
import pytest
from actors_rig import run_episodes, until
from gymnasium.vector import SyncVectorEnv

from asyncrl.actors import evaluator as evaluator_module
from asyncrl.actors.child import Child
from asyncrl.actors.episodes import EpisodePlayer
from asyncrl.actors.evaluator import RemoteEvaluator
from asyncrl.actors.forkserver import ForkServer
from asyncrl.actors.limits import ProcessLimits
from asyncrl.envs.source import EnvSource, describe
from asyncrl.errors import (
    ActorKilled,
    EnvironmentHung,
    EnvironmentRaised,
    EvaluationIncomplete,
    NonFiniteStep,
)


class Lottery(fakes.SimpleEnv):
    """Environment whose episodes have length and return drawn from the seed at reset."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.steps = 0
        obs = super().reset(seed=seed)
        self.length = int(self.np_random.integers(1, 60))
        return obs

    def step(self, action: Any) -> Any:
        obs, _, _, _, info = super().step(action)
        return obs, 0.5, self.steps == self.length, False, info


def expected_lengths(seed: int, episodes: int) -> list[int]:
    seeds = np.random.SeedSequence(seed).generate_state(episodes)
    return [int(gymnasium.utils.seeding.np_random(int(s))[0].integers(1, 60)) for s in seeds]


@pytest.mark.parametrize(("episodes", "max_envs"), [(1, 100), (7, 100), (20, 6), (9, 1)])
def test_exactly_the_seeded_episodes_are_played(episodes: int, max_envs: int) -> None:
    returns, lengths = run_episodes(Lottery, fakes.RandomPolicy(), episodes, 3, max_envs=max_envs)
    assert lengths.tolist() == expected_lengths(3, episodes)
    assert returns.tolist() == [n / 2 for n in lengths]


@pytest.mark.parametrize("vector", [False, True])
def test_the_player_tells_how_many_episodes_have_finished(vector: bool) -> None:
    env: Any = (lambda: SyncVectorEnv([fakes.FixedLength] * 3)) if vector else fakes.FixedLength
    told: list[int] = []
    player = EpisodePlayer(EnvSource.from_user(env), fakes.RandomPolicy(), 3, told.append)
    player.play(7, 0)
    assert told == sorted(told) and told[0] == 0 and max(told) >= 6 and len(set(told)) > 2
    told.clear()
    player.play(2, 0)
    assert told[0] == 0, "each evaluation counts its own"
    player.close()


@pytest.mark.parametrize("what", ["observation", "return"])
@pytest.mark.parametrize("vector", [False, True])
def test_what_is_not_finite_is_no_result(what: str, vector: bool) -> None:
    """No later evaluation would be better than one of NaN: the run's best policy would be that one for ever."""

    class Diverged(fakes.FixedLength):
        def step(self, action: Any) -> Any:
            obs, reward, *rest = super().step(action)
            if what == "observation":
                return np.full_like(obs, np.inf), reward, *rest
            return obs, math.nan, *rest

    env: Any = (lambda: SyncVectorEnv([fakes.FixedLength, Diverged])) if vector else Diverged
    with pytest.raises(
        NonFiniteStep, match=rf"\[ASYNC011\] .* gave {what}s that are NaN or infinite in an eval"
    ):
        run_episodes(env, fakes.RandomPolicy(), 4, 0)


def test_vector_environments_play_their_share_each() -> None:
    class Longer(fakes.FixedLength):
        length = 9

    def make() -> Any:
        return SyncVectorEnv([fakes.FixedLength, Longer])

    returns, lengths = run_episodes(make, fakes.RandomPolicy(), 7, 0)
    assert lengths.tolist() == [3, 9, 3, 9, 3, 9, 3], "not the first seven to end"
    assert returns.tolist() == lengths.tolist()


@pytest.mark.parametrize("vector", [False, True])
def test_actions_are_greedy_or_drawn_from_the_seed(vector: bool) -> None:
    env: Any = (lambda: SyncVectorEnv([fakes.PaysAction] * 2)) if vector else fakes.PaysAction
    assigned: list[tuple[int, ...]] = []

    class Noted(fakes.RandomPolicy):
        def assign_streams(self, *streams: int) -> None:
            assigned.append(streams)

    policy = Noted()
    assert run_episodes(env, policy, 2, 3)[0].tolist() == [0.0, 0.0] and not assigned
    rng = np.random.default_rng(3)
    expected = np.sum([rng.integers(0, 5, 2) for _ in range(3)], axis=0).tolist()
    assert run_episodes(env, policy, 2, 3, deterministic=False)[0].tolist() == expected
    assert assigned == [(0, 2, 2)], "runs of random actions and noise go on from step to step"
    assert run_episodes(env, policy, 2, 4, deterministic=False)[0].tolist() != expected


def test_cartpole_pushed_one_way_falls_soon() -> None:
    policy = fakes.RandomPolicy(num_actions=2)
    _, lengths = run_episodes("CartPole-v1", policy, 20, 0)
    assert lengths.min() >= 8 and lengths.max() <= 11


class RaisesInGreedy(fakes.RandomPolicy):
    def greedy(self, obs: Any) -> Any:
        raise ArithmeticError("the network of the user")


@pytest.mark.parametrize("vector", [False, True])
def test_the_environment_is_not_blamed_for_its_policy(vector: bool) -> None:
    env: Any = (lambda: SyncVectorEnv([fakes.FixedLength])) if vector else fakes.FixedLength
    with pytest.raises(ArithmeticError, match="the network of the user"):
        run_episodes(env, RaisesInGreedy(), 1, 0)


def test_episodes_must_be_positive(server: ForkServer) -> None:
    async def story(evaluator: RemoteEvaluator) -> None:
        with pytest.raises(ValueError, match="episodes must be at least 1, got 0"):
            await evaluator.evaluate(weights(0), 0)

    remotely(server, fakes.SimpleEnv, story)


class EchoesAction(fakes.FixedLength):
    """Environment with reward = action = the policy's first weight."""

    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(action)
        return (obs, float(action), *rest)


def remotely(
    server: ForkServer,
    env: Any,
    story: Callable[[RemoteEvaluator], Coroutine[Any, Any, None]],
    **options: Any,
) -> None:
    async def run() -> None:
        source = EnvSource.from_user(env)
        policy = pickle.dumps(fakes.RandomPolicy())
        evaluator = RemoteEvaluator(
            server, source, describe(source), policy, seed=5, limits=ProcessLimits(**options)
        )
        try:
            await story(evaluator)
        finally:
            await evaluator.close()

    asyncio.run(run())


def weights(first: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.array([first, 0, 0], np.float32)


def test_remote_evaluations_use_the_weights_they_were_given(server: ForkServer) -> None:
    async def story(evaluator: RemoteEvaluator) -> None:
        await evaluator.start(3)
        pid = evaluator.pid
        assert pid > 0
        for first, episodes in ((2.0, 5), (4.0, 1), (3.0, 12)):
            returns, lengths = await evaluator.evaluate(weights(first), episodes)
            assert returns.dtype == np.float64 and lengths.dtype == np.int64
            assert returns.tolist() == [3 * first] * episodes and lengths.tolist() == [3] * episodes
        assert evaluator.pid == pid

    remotely(server, EchoesAction, story)


class PaysGlobalDraws(fakes.FixedLength):
    """Environment with rewards from the global generators of NumPy and `random`."""

    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(action)
        return (obs, np.random.random() + 100 * random.randrange(100), *rest)


def test_draws_of_global_generators_repeat_with_the_key(server: ForkServer) -> None:
    async def story(evaluator: RemoteEvaluator) -> None:
        returns = [(await evaluator.evaluate(weights(0), 4, key))[0].tolist() for key in ((0,), (1,), (0,))]
        assert returns[0] == returns[2]
        assert not set(returns[0]) & set(returns[1])

    remotely(server, PaysGlobalDraws, story)


def test_requests_take_turns_and_the_key_alone_says_which_episodes_are_played(server: ForkServer) -> None:
    keys = [(0, 0), (0, 1), (1, 0), (2,)]
    played: list[dict[tuple[int, ...], list[int]]] = []

    async def play(evaluator: RemoteEvaluator, order: list[tuple[int, ...]]) -> None:
        rounds = await asyncio.gather(*(evaluator.evaluate(weights(0), 8, key) for key in order))
        played.append({key: lengths.tolist() for key, (_, lengths) in zip(order, rounds, strict=True)})

    remotely(server, Lottery, lambda evaluator: play(evaluator, keys))
    remotely(server, Lottery, lambda evaluator: play(evaluator, keys[::-1]))
    assert len({tuple(lengths) for lengths in played[0].values()}) == 4
    assert played[0] == played[1], "the same seed and key play the same episodes, in whatever order"


def test_loop_stays_live_during_an_evaluation(server: ForkServer) -> None:
    async def story(evaluator: RemoteEvaluator) -> None:
        task = asyncio.create_task(evaluator.evaluate(weights(1), 20))
        turns = 0
        while not task.done():
            await asyncio.sleep(0)
            turns += 1
        assert turns > 10

    remotely(server, Lottery, story)


def test_killed_evaluator_is_replaced_and_plays_the_same_episodes_again(server: ForkServer) -> None:
    undisturbed: list[list[int]] = []

    async def whole(evaluator: RemoteEvaluator) -> None:
        undisturbed.append((await evaluator.evaluate(weights(0), 8))[1].tolist())

    async def story(evaluator: RemoteEvaluator) -> None:
        await evaluator.start(3)
        first = evaluator.pid
        os.kill(first, signal.SIGSTOP)  # it is killed with the request unanswered
        given = weights(0)
        task = asyncio.create_task(evaluator.evaluate(given, 8))
        await asyncio.sleep(0)
        given[:] = np.nan
        os.kill(first, signal.SIGKILL)
        _, lengths = await task
        assert lengths.tolist() == undisturbed[0]
        assert evaluator.pid not in (0, first)

    remotely(server, Lottery, whole)
    remotely(server, Lottery, story)


class TellsTime(fakes.SimpleEnv):
    """Environment that never ends and whose return is about the number of seconds since the reset."""

    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(action)
        time.sleep(0.001)
        return (obs, 0.001, *rest)


def test_the_limit_of_time_is_of_all_tries_together(server: ForkServer) -> None:
    async def story(evaluator: RemoteEvaluator) -> None:
        await evaluator.start(3)
        limits: list[float] = []
        send, now = Child.send, 100.0

        def note(self: Child, message: dict[str, Any]) -> None:
            limits.append(message["max_seconds"])
            send(self, message)
            if len(limits) == 1:
                os.kill(self.pid, signal.SIGSTOP)

        with pytest.MonkeyPatch.context() as patch, pytest.warns(EvaluationIncomplete):
            patch.setattr(Child, "send", note)
            patch.setattr(evaluator_module, "time", SimpleNamespace(monotonic=lambda: now))
            evaluator.max_seconds = 2.0
            task = asyncio.create_task(evaluator.evaluate(weights(0), 1))
            await until(lambda: limits, "the first try")
            first = evaluator.pid
            now += 0.5
            os.kill(first, signal.SIGKILL)
            await task
        assert limits == [2.0, 1.5]

    remotely(server, TellsTime, story)


@pytest.mark.parametrize("env", [fakes.Hangs, fakes.HangsInC])
def test_environment_that_hangs_in_an_evaluation_is_shown_and_killed(server: ForkServer, env: Any) -> None:
    async def story(evaluator: RemoteEvaluator) -> None:
        with pytest.raises(EnvironmentHung, match=r"ASYNC015\].*did not return for .* in an evaluation"):
            await evaluator.evaluate(weights(0), 1)
        assert evaluator.pid == 0

    remotely(server, env, story, step_timeout_seconds=0.3)


class SlowSteps(fakes.FixedLength):
    def step(self, action: Any) -> Any:
        time.sleep(0.8)
        return super().step(action)


def test_an_evaluation_that_is_only_long_is_waited_for(server: ForkServer) -> None:
    """Six steps of 0.8 s each with heartbeats in between, with a limit of 4 s for silence."""

    async def story(evaluator: RemoteEvaluator) -> None:
        returns, _ = await evaluator.evaluate(weights(0), 2)
        assert returns.tolist() == [3.0, 3.0]

    remotely(server, SlowSteps, story, step_timeout_seconds=4.0)


def test_evaluator_that_is_killed_too_often_is_reported_and_the_next_request_forks_another(
    server: ForkServer,
) -> None:
    async def story(evaluator: RemoteEvaluator) -> None:
        await evaluator.start(3)
        task = asyncio.create_task(evaluator.evaluate(weights(0), 1))
        os.kill(evaluator.pid, signal.SIGKILL)
        with pytest.raises(ActorKilled, match=r"ASYNC003\] The evaluator of .* was killed by SIGKILL"):
            await task
        returns, _ = await evaluator.evaluate(weights(2), 1)
        assert returns.tolist() == [6.0]

    remotely(server, EchoesAction, story, max_restarts=0)


def test_evaluator_whose_environment_is_not_built_in_time_is_shown_and_killed(server: ForkServer) -> None:
    async def story() -> None:
        spec = describe(EnvSource.from_user(fakes.SimpleEnv))
        source = EnvSource.from_user(fakes.HangsWhenBuilt)
        policy = pickle.dumps(fakes.RandomPolicy())
        limits = ProcessLimits(ready_timeout_seconds=0.3)
        evaluator = RemoteEvaluator(server, source, spec, policy, seed=5, limits=limits)
        with pytest.raises(EnvironmentHung, match=r"(?s)was not built and reset within 0\..*in __init__"):
            await evaluator.evaluate(weights(0), 1)
        assert evaluator.pid == 0
        await evaluator.close()

    asyncio.run(story())


def test_evaluation_that_is_cancelled_leaves_no_process(server: ForkServer) -> None:
    async def endless(evaluator: RemoteEvaluator) -> None:
        await evaluator.start(3)
        task = asyncio.create_task(evaluator.evaluate(weights(0), 1))
        pid = evaluator.pid
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: not os.path.exists(f"/proc/{pid}"), "the end of a process nobody waits for")

    remotely(server, fakes.SimpleEnv, endless)


def test_environment_that_raises_in_an_evaluation(server: ForkServer) -> None:
    async def story(evaluator: RemoteEvaluator) -> None:
        text = r"(?s)ASYNC002\].*UnicodeTranslateError in an evaluation.*the wheels came off"
        with pytest.raises(EnvironmentRaised, match=text):
            await evaluator.evaluate(weights(0), 2)

    remotely(server, fakes.Raises, story)


class ExitsInEvaluation(fakes.SimpleEnv):
    def step(self, action: Any) -> Any:
        return sys.exit(2) if self.steps == 6 else super().step(action)


def test_environment_that_exits_in_an_evaluation(server: ForkServer) -> None:
    async def story(evaluator: RemoteEvaluator) -> None:
        with pytest.raises(EnvironmentRaised, match=r"ASYNC002\].*SystemExit in an evaluation: 2"):
            await evaluator.evaluate(weights(0), 2)

    remotely(server, ExitsInEvaluation, story)


class InterruptsInEvaluation(fakes.SimpleEnv):
    def step(self, action: Any) -> Any:
        if self.steps == 6:
            raise KeyboardInterrupt
        return super().step(action)


def test_environment_that_interrupts_in_an_evaluation(server: ForkServer) -> None:
    async def story(evaluator: RemoteEvaluator) -> None:
        with pytest.raises(EnvironmentRaised, match=r"ASYNC002\].*KeyboardInterrupt in an evaluation"):
            await evaluator.evaluate(weights(0), 2)

    remotely(server, InterruptsInEvaluation, story)
