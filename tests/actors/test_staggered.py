"""Staggered first episodes: rows against environments that truncate themselves, the log, the state, and a whole run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from fakes import RandomPolicy
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from several_agents import Parallel

from asyncrl import PPO, Trainer
from asyncrl.actors.actor import Actor, staggered_steps
from asyncrl.actors.actor_state import _restore_streams, _streams_state
from asyncrl.actors.streams import AgentStreams, PlainStreams, Streams, VectorStreams, make_streams
from asyncrl.envs.checks import spec_of
from asyncrl.envs.source import EnvSource
from asyncrl.interfaces import RESET, TRUNCATED
from asyncrl.shm import RingLayout, RingReader, RingWriter, Segment, WeightMailbox

LIMIT, ROWS = 12, 200


class Walk(gymnasium.Env[Any, Any]):
    """Episodes that end at a random step, or by their limit; observation and reward tell episode and step.

    `first`: step after which the first episode is truncated, 0 for none. Of three episodes one succeeds.
    """

    observation_space = gymnasium.spaces.Box(-1e6, 1e6, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(5)

    def __init__(self, first: int = 0) -> None:
        self.first, self.episode = first, -1

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.episode, self.steps = self.episode + 1, 0
        self.end = int(self.np_random.integers(2, 2 * LIMIT))
        return np.array([self.episode, 0], np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        over = self.steps in (self.end, LIMIT) or (self.episode == 0 and self.steps == self.first)
        obs = np.array([self.episode, self.steps], np.float32)
        return obs, float(self.episode + 1), False, over, {"is_success": self.episode % 3 == 0}


class CutParallel(Parallel):
    """`Parallel` that truncates the first episode of all live agents after `first` steps."""

    def __init__(self, first: int) -> None:
        super().__init__()
        self.first = first

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        obs, rewards, terminated, truncated, infos = super().step(actions)
        if self.episode == 0 and self.steps == self.first:
            truncated = {name: truncated[name] or name in self.agents for name in truncated}
            self.agents = []
        return obs, rewards, terminated, truncated, infos


SPEC = spec_of("walk", Walk())


def plain(cuts: list[int], *, itself: bool) -> Streams:
    streams = PlainStreams([Walk(first if itself else 0) for first in cuts], SPEC)
    if not itself:
        streams.stagger(cuts)
    return streams


def vector(cuts: list[int], *, itself: bool, mode: AutoresetMode = AutoresetMode.DISABLED) -> Streams:
    makers = [lambda first=first: Walk(first if itself else 0) for first in cuts]
    streams = VectorStreams(SyncVectorEnv(makers, autoreset_mode=mode), SPEC)
    if not itself:
        streams.stagger(cuts)
    return streams


def agents(cuts: list[int], *, itself: bool) -> AgentStreams:
    source = EnvSource.from_user(Parallel)
    streams = make_streams(source, spec_of("agents", source.build()), 3 * len(cuts))
    assert isinstance(streams, AgentStreams)
    for env, first in zip(streams.envs, cuts, strict=True):
        env.parallel = CutParallel(first if itself else 0)
    if not itself:
        streams.stagger(cuts)
    return streams


def rows_of(streams: Streams, rows: int = ROWS, obs: Any = None, seed: int = 0) -> dict[str, Any]:
    """obs `[T + 1, E, ...]`, rewards and flags `[T, E]`, and the streams that were cut in each row."""
    count = streams.num_envs
    actions = np.random.default_rng(seed).integers(0, 5, (rows, count))
    seen = np.zeros((rows + 1, count, *streams._spec.observation_shape), np.float32)
    rewards, flags = np.zeros((rows, count)), np.zeros((rows, count), np.uint8)
    cut = []
    if obs is None:
        streams.reset(range(5, 5 + count), seen[0])
    for t, row in enumerate(actions):
        for i, flag in streams.step(row, seen[t + 1], rewards[t]):
            flags[t, i] = flag
        cut.append(sorted(streams.cut))
        streams.cut.clear()
    return {"obs": seen, "rewards": rewards, "flags": flags, "cut": cut}


@pytest.mark.parametrize("make", [plain, vector, agents])
def test_rows_are_those_of_environments_that_truncate_their_first_episode(make: Any) -> None:
    """Cuts from the first step on: before an episode's end, at it and after it."""
    cuts = [*range(1, 9), *range(1, 9), 12, 12, 50]
    ours, slow = rows_of(make(cuts, itself=False)), rows_of(make(cuts, itself=True))
    for name in ("flags", "rewards", "obs"):
        np.testing.assert_array_equal(ours[name], slow[name], name)
    # Rows in which nobody acts are those after an episode's end.
    never = rows_of(make([0] * len(cuts), itself=True))["flags"].reshape(ROWS, len(cuts), -1)
    ends = (never & RESET != 0).all(axis=2).argmax(axis=0)
    agents_of = never.shape[2]
    expected = {
        e * agents_of + n: cuts[e] for e in range(len(cuts)) if cuts[e] < ends[e] for n in range(agents_of)
    }
    assert {e: t + 1 for t, row in enumerate(ours["cut"]) for e in row} == expected
    assert any(cuts[e] == ends[e] for e in range(len(cuts))), "one ends by itself in the row of its cut"
    assert len(expected) > 3 * agents_of and slow["cut"] == [[]] * ROWS


def test_a_vector_that_resets_by_itself_is_not_staggered() -> None:
    cuts = [3, 1, 5, 50]
    never = rows_of(vector([0] * 4, itself=True, mode=AutoresetMode.NEXT_STEP))
    ours = rows_of(vector(cuts, itself=False, mode=AutoresetMode.NEXT_STEP))
    np.testing.assert_array_equal(ours["flags"], never["flags"])
    assert not any(ours["cut"])


@pytest.mark.parametrize("make", [plain, vector, agents])
@pytest.mark.parametrize("stop", [1, 4, 25])
def test_the_state_continues_in_the_middle_of_the_first_episode(make: Any, stop: int) -> None:
    cuts = [3, 1, 6, 40]
    whole = make(cuts, itself=False)
    rows_of(whole, stop)
    again = make([1] * 4, itself=False)
    newest = np.array(whole.newest)
    _restore_streams(again, _streams_state(whole), newest)
    rest, expected = rows_of(again, 60, newest, seed=9), None
    twin = make(cuts, itself=False)
    rows_of(twin, stop)
    expected = rows_of(twin, 60, newest, seed=9)
    for name in ("flags", "rewards", "obs"):
        np.testing.assert_array_equal(rest[name], expected[name], name)
    assert rest["cut"] == expected["cut"] and (any(rest["cut"]) or stop > 1)


@pytest.mark.parametrize("make", [plain, vector, agents])
def test_a_state_of_before_there_was_staggering_cuts_nothing(make: Any) -> None:
    whole = make([0] * 4, itself=True)
    rows_of(whole, 1)
    state = _streams_state(whole)
    del state["steps_to_cut"]
    again = make([3] * 4, itself=False)
    _restore_streams(again, state, np.array(whole.newest))
    assert not any(rows_of(again, 60, again.newest)["cut"])


@pytest.mark.parametrize("make", [plain, vector, agents])
def test_cut_episodes_are_left_out_of_the_log(make: Any) -> None:
    cuts = [2, 50, 1, 3]
    streams = make(cuts, itself=False)
    spec = streams._spec
    layout = RingLayout(streams.num_envs, 256, spec)
    with Segment.create("ring", layout.arrays(), poison=True) as memory:
        reader, mailbox = RingReader(memory, layout), WeightMailbox.create(RandomPolicy().weight_count)
        reader.grant(250)
        mailbox.publish(np.zeros(RandomPolicy().weight_count, np.float32))
        actor = Actor(
            streams, RandomPolicy(), RingWriter(memory, layout), mailbox, index=0, num_actors=1, seed=0
        )
        actor.begin()
        for _ in range(100):
            assert actor.step()
        count, returns, lengths, successes = reader.episodes_since(0)
        flags, rewards = reader.flags[:, :100].copy(), reader.reward[:, :100].copy()
        mailbox.close()
    found: list[tuple[int, int, float, int]] = []
    left_out = 0
    per = layout.num_envs // len(cuts)
    for e, first in enumerate(cuts):
        own = slice(e * per, (e + 1) * per)
        acts = (flags[own] & RESET == 0).any(axis=0)
        # An episode's last row is the one before a row in which nobody acts.
        ends = [t for t in range(99) if acts[t] and not acts[t + 1]]
        begin = 0
        for episode, t in enumerate(ends):
            length = t + 1 - begin
            is_cut = episode == 0 and length == first and bool((flags[own, t] & TRUNCATED).any())
            left_out += is_cut
            if not is_cut:
                success = 121 if episode % 3 == 0 else 1
                found.append((t, e, float(rewards[own, begin : t + 1].sum()), length, success))
            begin = t + 2
    found.sort()
    logged = list(zip(np.asarray(returns).reshape(len(lengths), -1).sum(axis=1), lengths, strict=True))
    expected = [(r, n) for _, _, r, n, _ in found]
    assert left_out >= 2 and count - left_out == len(lengths) >= len(expected)
    assert [n for _, n in logged[: len(expected)]] == [n for _, n in expected]
    np.testing.assert_allclose([r for r, _ in logged[: len(expected)]], [r for r, _ in expected], rtol=1e-6)
    if per == 1:
        assert successes[: len(found)].tolist() == [s for *_, s in found]


@pytest.mark.parametrize(("limit", "actors", "envs"), [(1_000, 2, 8), (7, 3, 5), (128, 1, 1)])
def test_first_episodes_of_all_actors_are_spread_over_the_limit(limit: int, actors: int, envs: int) -> None:
    each = [staggered_steps(limit, index, actors, envs) for index in range(actors)]
    total = actors * envs
    assert sorted(steps for own in each for steps in own) == [
        max(1, limit * g // total) for g in range(1, total + 1)
    ]
    assert all(steps == sorted(steps) and steps[-1] >= limit * (envs - 1) // envs for steps in each)


def test_hand_worked_steps() -> None:
    assert staggered_steps(1_000, 0, 2, 2) == [250, 750]
    assert staggered_steps(1_000, 1, 2, 2) == [500, 1_000]
    assert staggered_steps(3, 0, 1, 6) == [1, 1, 1, 2, 2, 3]


class Logged(gymnasium.Env[Any, Any]):
    """Episodes of 40 steps, whose lengths it appends to a file."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, path: str) -> None:
        self.path, self.steps, self.max_steps = path, 0, 40

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        if self.steps:
            with open(self.path, "a") as file:
                file.write(f"{self.steps}\n")
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return np.zeros(1, np.float32), 1.0, False, self.steps == self.max_steps, {}


@pytest.mark.parametrize("staggered", [None, False])
def test_a_run_staggers_its_first_episodes_and_counts_whole_ones(
    tmp_path: Path, staggered: bool | None
) -> None:
    path = tmp_path / "lengths.txt"
    algorithm = PPO(staggered_resets=staggered, segment_length=8, discipline="lockstep")
    options: dict[str, Any] = {"num_actors": 2, "envs_per_actor": 2, "eval_interval_steps": None}
    trainer = Trainer(Logged, algorithm, seed=0, env_kwargs={"path": str(path)}, eval_episodes=1, **options)
    result = trainer.learn(total_steps=4 * 130, progress=False)
    lengths = [int(line) for line in path.read_text().split()]
    cut = {length for length in lengths if 8 < length < 40}
    assert cut == ({10, 20, 30} if staggered is None else set())
    assert {mean for _, mean in result.returns} == {40.0}, "of whole episodes"
