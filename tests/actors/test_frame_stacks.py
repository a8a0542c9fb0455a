"""Frame stacks of actor, replay and segments against gymnasium's `FrameStackObservation`, row by row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from actors_rig import run_episodes
from fakes import RandomPolicy
from gymnasium.spaces import Box, Discrete
from gymnasium.wrappers import FrameStackObservation
from numpy.typing import NDArray

from asyncrl.acting.frames import FrameStacks, next_stacks
from asyncrl.actors.actor import Actor, actor_seeds
from asyncrl.actors.streams import PlainStreams
from asyncrl.envs.checks import spec_of
from asyncrl.interfaces import Batch
from asyncrl.replay.replay import PrioritizedReplay
from asyncrl.replay.segments import SegmentQueue
from asyncrl.replay.tables import ID_BITS
from asyncrl.shm import RingLayout, RingReader, RingWriter, Segment, WeightMailbox

ENVS, SLOTS = 3, 16


class Noise(gymnasium.Env[Any, Any]):
    """Random bytes; episodes end terminated or truncated at random, some after one step."""

    def __init__(self) -> None:
        self.observation_space = Box(0, 255, (3, 2), np.uint8)
        self.action_space = Discrete(5)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._frame(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        ends = self.np_random.random(2) < 0.12
        return self._frame(), float(action), bool(ends[0]), bool(ends[1]), {}

    def _frame(self) -> NDArray[np.uint8]:
        return self.np_random.integers(0, 256, (3, 2), np.uint8)


class Recorder(RandomPolicy):
    """Policy that records observations and actions of each row."""

    def __init__(self, frames: int) -> None:
        super().__init__()
        self.frame_stack = frames
        self.seen: list[Any] = []
        self.actions: list[Any] = []

    def act(self, obs: Any, rng: np.random.Generator, total_steps: int) -> tuple[Any, dict[str, Any]]:
        actions, extras = super().act(obs, rng, total_steps)
        self.seen.append(obs.copy())
        self.actions.append(actions)
        return actions, extras


class Stream:
    """A ring, and successive lives of an actor that writes it."""

    def __init__(self, frames: int) -> None:
        self.frames = frames
        self.layout = RingLayout(ENVS, SLOTS, spec_of("noise", Noise()))
        self.segment = Segment.create("ring", self.layout.arrays(), poison=True)
        self.reader = RingReader(self.segment, self.layout)
        self.mailbox = WeightMailbox.create(3)
        self.mailbox.publish(np.ones(3, np.float32))
        self.rows: list[Any] = []  # of each row: the stacks, or None where no policy was asked
        self.lives = 0

    def begin(self) -> Actor:
        self.policy = Recorder(self.frames)
        self.actor = Actor(
            PlainStreams([Noise() for _ in range(ENVS)], self.layout.spec),
            self.policy,
            RingWriter(self.segment, self.layout),
            self.mailbox,
            index=0,
            num_actors=1,
            seed=3,
            incarnation=self.lives,
        )
        if self.lives:
            self.rows.append(None)
        self.actor.begin()
        self.lives += 1
        return self.actor

    def write(self) -> None:
        """Write as many rows as are granted."""
        while self.actor.step():
            if self.policy.seen and len(self.rows) < self.reader.published():
                self.rows.append(self.policy.seen[-1])

    def close(self) -> None:
        self.segment.close()
        self.mailbox.close()


@pytest.fixture(params=[2, 4])
def streams(request: pytest.FixtureRequest) -> Iterator[list[Stream]]:
    """One stream in a list that is emptied at the end, as views of its memory must not outlive the test."""
    made = [Stream(request.param)]
    yield made
    made.pop().close()


def test_actor_sees_what_gymnasiums_wrapper_shows(streams: list[Stream]) -> None:
    (stream,) = streams
    stream.begin()
    for _ in range(60):
        stream.reader.grant(stream.reader.published() + SLOTS)
        stream.write()
    seeds, _ = actor_seeds(3, 0, 0, ENVS)
    ends = 0
    for i, seed in enumerate(seeds):
        env = FrameStackObservation(Noise(), stream.frames)
        obs, _ = env.reset(seed=seed)
        ended = False
        for seen, action in zip(stream.policy.seen, stream.policy.actions, strict=True):
            np.testing.assert_array_equal(seen[i], obs)
            if ended:
                obs, _ = env.reset()
                ended = False
            else:
                obs, _, terminated, truncated, _ = env.step(action[i])
                ended = terminated or truncated
                ends += ended
    assert len(stream.policy.seen) > 800 and ends > 200


def test_segments_hold_the_stacks_that_were_acted_on(streams: list[Stream]) -> None:
    (stream,) = streams
    queue = SegmentQueue([stream.reader], length=5, frame_stack=stream.frames)
    wanted = trained = 0
    for life in range(40):
        stream.begin()
        for _ in range(3):
            queue.grant(0, min(int(queue.released[0]) + SLOTS, stream.reader.published() + 1 + life % 7 + 2))
            stream.write()
            queue.poll()
            for segment in queue.take(queue.ready):
                for t in range(5):
                    rows = stream.rows[segment.first + t]
                    if rows is not None:
                        np.testing.assert_array_equal(segment.obs[:, t], rows)
                        wanted += 1
                trained += segment.steps
                following = stream.rows[segment.first + 5 : segment.first + 6]
                if following and following[0] is not None:
                    np.testing.assert_array_equal(segment.last_obs, following[0])
                queue.release(segment)
    assert wanted > 200 and trained > 300


def test_replay_gathers_the_stacks_that_were_acted_on(streams: list[Stream]) -> None:
    (stream,) = streams
    replay = PrioritizedReplay(
        [stream.reader], n_step=2, gamma=0.9, frame_stack=stream.frames, rng=np.random.default_rng(0)
    )
    batch = Batch.allocate(32, stream.layout.spec.stacked(stream.frames))
    compared = 0
    for _ in range(12):
        stream.begin()
        for _ in range(5):
            replay.grant(0, min(int(replay.published_rows()[0]) + SLOTS, stream.reader.published() + 9))
            stream.write()
            replay.ingest()
            if not replay.sampleable:
                continue
            replay.sample(batch, 0.4)
            for i, row_id in enumerate(batch.ids):
                position, env = divmod(int(row_id) & ((1 << ID_BITS) - 1), 4)
                rows = stream.rows[position]
                np.testing.assert_array_equal(batch.obs[i], rows[env])
                compared += 1
                if batch.discount[i] == pytest.approx(0.9**2):  # the bootstrap is two rows on, or ended there
                    later = stream.rows[position + 2]
                    if later is not None:
                        np.testing.assert_array_equal(batch.next_obs[i], later[env])
    assert compared > 1000


class Mirror(RandomPolicy):
    """Policy of greedy actions that depend on all frames; records the stacks."""

    def __init__(self, frames: int) -> None:
        super().__init__()
        self.frame_stack = frames
        self.seen: list[Any] = []

    def greedy(self, obs: Any) -> Any:
        self.seen.extend(obs.copy())
        return np.asarray(obs.reshape(obs.shape[0], -1).sum(axis=1) % 5, np.int64)


def test_evaluation_shows_the_stacks_of_gymnasiums_wrapper() -> None:
    policy, episodes = Mirror(3), 7
    returns, lengths = run_episodes(Noise, policy, episodes, seed=5, max_envs=2)
    seeds = [int(s) for s in np.random.SeedSequence(5).generate_state(episodes)]
    shown = {stack.tobytes() for stack in policy.seen}
    for episode, seed in enumerate(seeds):
        env = FrameStackObservation(Noise(), 3)
        obs, _ = env.reset(seed=seed)
        total, length, ended = 0.0, 0, False
        while not ended:
            assert obs.tobytes() in shown
            obs, reward, terminated, truncated, _ = env.step(int(obs.reshape(-1).sum(dtype=np.int64) % 5))
            total, length, ended = total + reward, length + 1, terminated or truncated
        assert (returns[episode], lengths[episode]) == (total, length)


def test_stacks_of_a_vector_begin_where_its_episodes_do() -> None:
    stacks = FrameStacks(3, 2, (), "uint8")
    stacks.begin(slice(None), np.array([1, 2, 3]))
    stacks.push(slice(None), np.array([4, 5, 6]))
    stacks.begin(np.array([1]), np.array([9]))
    assert stacks.array.tolist() == [[1, 4], [9, 9], [3, 6]]
    stacks.push(2, 7)
    assert stacks.array.tolist() == [[1, 4], [9, 9], [6, 7]]


def test_state_of_predict_is_the_stack() -> None:
    nowhere = np.zeros(2, np.bool_)
    first = next_stacks(None, np.array([1, 2]), nowhere, 3)
    assert first.tolist() == [[1, 1, 1], [2, 2, 2]]
    second = next_stacks(first, np.array([3, 4]), np.array([False, True]), 3)
    assert second.tolist() == [[1, 1, 3], [4, 4, 4]] and first.tolist() == [[1, 1, 1], [2, 2, 2]]
    with pytest.raises(ValueError, match="state must be what the last predict returned"):
        next_stacks(first, np.array([1, 2, 3]), nowhere, 3)
