"""Comparison of frame stacks, rewards and episode ends of Atari games with gymnasium's, row by row.

Ours is the code of training: an actor's environments, its ring, the stacks that its policy sees, and the stacks that
replay and segments cut out of the ring. The peer is gymnasium alone: `AtariPreprocessing`, `TransformReward` and
`FrameStackObservation` in a `SyncVectorEnv` with NEXT_STEP autoreset, with the same seeds and the same actions. Lost
lives end episodes by Stable-Baselines3's `EpisodicLifeEnv`, or by a copy of it if that is not installed. Sticky actions
and no-ops are on; games are truncated after 2,000 frames.

    lives       a lost life ends an episode, and the game goes on (the default in training)
    restarts    a lost life ends the game: gymnasium's `terminal_on_life_loss`
    games       episodes end only with games: evaluations
    vector      ale-py's `AtariVectorEnv` in an actor, against the wrappers of `restarts` without no-ops and sticky
                actions, which it seeds differently

    python -m benchmarks.systems.atari_boundaries [--steps 100000]
"""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from typing import Any

import ale_py
import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation, TransformReward

from asyncrl.actors.actor import Actor, actor_seeds
from asyncrl.actors.streams import make_streams
from asyncrl.envs.atari_vector import AtariVector
from asyncrl.envs.source import EnvSource, describe
from asyncrl.interfaces import RESET, TERMINATED, TRUNCATED, Batch
from asyncrl.replay import PrioritizedReplay
from asyncrl.replay.segments import SegmentQueue
from asyncrl.replay.tables import ID_BITS
from asyncrl.shm import RingLayout, RingReader, RingWriter, Segment, WeightMailbox
from benchmarks.harness.report import Report, script_parser

ENVS, SLOTS, FRAMES, LENGTH, SAMPLE = 4, 128, 4, 16, 64
MOST_FRAMES = 2_000
GAMES = {"Pong": "pong", "Breakout": "breakout", "Qbert": "qbert", "Seaquest": "seaquest"}
KINDS = ("lives", "restarts", "games", "vector")


class Lives(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Copy of Stable-Baselines3's `EpisodicLifeEnv`."""

    lives, was_real_done = 0, True

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.was_real_done = terminated or truncated
        lives = self.env.unwrapped.ale.lives()  # type: ignore[attr-defined]
        if 0 < lives < self.lives:
            terminated = True
        self.lives = lives
        return obs, reward, terminated, truncated, info

    def reset(self, **kwargs: Any) -> Any:
        if self.was_real_done:
            obs, info = self.env.reset(**kwargs)
        else:
            obs, _, terminated, truncated, info = self.env.step(0)
            if terminated or truncated:
                obs, info = self.env.reset(**kwargs)
        self.lives = self.env.unwrapped.ale.lives()  # type: ignore[attr-defined]
        return obs, info


def lives_wrapper() -> Any:
    """Stable-Baselines3's wrapper if it is installed, else the copy."""
    try:
        from stable_baselines3.common.atari_wrappers import EpisodicLifeEnv
    except ImportError:
        return Lives
    return EpisodicLifeEnv


def options(kind: str) -> dict[str, Any]:
    """Options of the game and its no-ops."""
    if kind == "vector":
        return {"repeat_action_probability": 0.0, "noop_max": 0}
    return {}


def peer(game: str, kind: str) -> Any:
    """One environment made of gymnasium's wrappers."""
    made = options(kind)
    no_ops = made.pop("noop_max", 30)
    env = gymnasium.make(f"ALE/{game}-v5", frameskip=1, max_num_frames_per_episode=MOST_FRAMES, **made)
    ends = kind in ("restarts", "vector")
    env = AtariPreprocessing(env, noop_max=no_ops, terminal_on_life_loss=ends)
    if kind == "lives":
        env = lives_wrapper()(env)
    if kind != "games":
        env = TransformReward(env, lambda reward: np.sign(float(reward)))
    return FrameStackObservation(env, FRAMES)


def source(game: str, kind: str) -> EnvSource:
    """The same environment as asyncrl's users specify it."""
    made = options(kind) | {"max_num_frames_per_episode": MOST_FRAMES}
    if kind == "vector":
        return EnvSource.from_user(partial(AtariVector, GAMES[game], ENVS, **made))
    if kind == "restarts":
        made["terminal_on_life_loss"] = True
    return EnvSource.from_user(f"ALE/{game}-v5").changed(made, ())


class Recorder:
    """Policy of random actions that keeps the newest stacks."""

    weight_count, exploration_rate, frame_stack = 1, 1.0, FRAMES

    def __init__(self, actions: int) -> None:
        self.weights = np.zeros(1, np.float32)
        self._actions = actions
        self.seen: Any = None
        self.chosen: Any = None

    def assign_streams(self, first: int, count: int, total: int) -> None: ...

    def weights_changed(self) -> None: ...

    def act(self, obs: Any, rng: np.random.Generator, total_steps: int) -> tuple[Any, dict[str, Any]]:
        self.seen, self.chosen = obs.copy(), rng.integers(0, self._actions, len(obs))
        return self.chosen, {}


class Ours:
    """An actor with its ring, and replay or segments over it."""

    def __init__(self, game: str, kind: str, replay: bool) -> None:
        named = source(game, kind)
        spec = describe(named)
        self.policy = Recorder(spec.action.n)  # type: ignore[union-attr]
        self.layout = RingLayout(ENVS, SLOTS, spec)
        self.segment = Segment.create("ring", self.layout.arrays())
        self.reader = RingReader(self.segment, self.layout)
        self.mailbox = WeightMailbox.create(1)
        self.mailbox.publish(np.ones(1, np.float32))
        if kind == "games":  # environments of an evaluation, in an actor
            streams = make_streams(EnvSource.from_user(lambda: named.build()), spec, ENVS)
        else:
            streams = make_streams(named, spec, ENVS)
        writer = RingWriter(self.segment, self.layout)
        self.actor = Actor(streams, self.policy, writer, self.mailbox, index=0, num_actors=1, seed=3)  # type: ignore[arg-type]
        self.actor.begin()
        self.seeds = actor_seeds(3, 0, 0, ENVS)[0]
        self.stacks: dict[int, Any] = {}  # stacks acted on, by row position
        self.compared = 0
        rng = np.random.default_rng(0)
        self.replay = PrioritizedReplay([self.reader], n_step=3, gamma=0.5, frame_stack=FRAMES, rng=rng)
        self.batch = Batch.allocate(SAMPLE, spec.stacked(FRAMES))
        self.queue = None if replay else SegmentQueue([self.reader], length=LENGTH, frame_stack=FRAMES)

    def step(self) -> int:
        """Write one row and return its position."""
        position = self.reader.published()
        if self.queue is None:
            self.replay.ingest()
            self.replay.grant(0, max(SLOTS, position + 2))
        else:
            self.queue.grant(0, int(self.queue.released[0]) + SLOTS)
        assert self.actor.step()
        self.stacks[position] = self.policy.seen
        self.stacks.pop(position - SLOTS, None)
        return position

    def compare_cuts(self) -> None:
        """Compare the stacks that replay or segments cut out with those acted on."""
        if self.queue is None:
            self._compare_samples()
        else:
            self.queue.poll()
            for segment in self.queue.take(self.queue.ready):
                for t in range(LENGTH):
                    np.testing.assert_array_equal(segment.obs[:, t], self.stacks[segment.first + t])
                    self.compared += ENVS
                self.queue.release(segment)

    def _compare_samples(self) -> None:
        self.replay.ingest()
        if not self.replay.sampleable:
            return
        self.replay.sample(self.batch, 0.4)
        for i, row_id in enumerate(self.batch.ids.tolist()):
            position, env = divmod(row_id & ((1 << ID_BITS) - 1), ENVS)
            np.testing.assert_array_equal(self.batch.obs[i], self.stacks[position][env])
            self.compared += 1
            if self.batch.discount[i] > 0:  # 0.5 to the power of the number of rows to the bootstrap stack
                after = position + round(-np.log2(self.batch.discount[i]))
                if after in self.stacks:
                    np.testing.assert_array_equal(self.batch.next_obs[i], self.stacks[after][env])
                    self.compared += 1

    def close(self) -> None:
        self.actor.close()
        for thing in ("queue", "replay", "reader", "actor", "policy"):
            delattr(self, thing)
        self.segment.close()
        self.mailbox.close()


def rows(theirs: Any, seeds: list[int]) -> Generator[tuple[Any, Any, Any], Any]:
    """Yield stacks, rewards and flags of each row of the peer; actions are sent to the generator."""
    obs, _ = theirs.reset(seed=seeds)
    ended = np.zeros(ENVS, np.bool_)
    while True:
        actions = yield obs, None, None
        after, reward, terminated, truncated, _ = theirs.step(actions)
        flags = TERMINATED * terminated + TRUNCATED * truncated
        yield obs, np.where(ended, 0.0, reward), np.where(ended, RESET, flags)
        obs, ended = after, terminated | truncated


def compare(game: str, kind: str, steps: int, replay: bool) -> dict[str, int]:
    """Compare `steps` steps of one game; raises AssertionError at the first row that differs."""
    gymnasium.register_envs(ale_py)
    ours = Ours(game, kind, replay)
    theirs = SyncVectorEnv(
        [partial(peer, game, kind) for _ in range(ENVS)], autoreset_mode=AutoresetMode.NEXT_STEP
    )
    seeds = [ours.seeds[0] + i for i in range(ENVS)] if kind == "vector" else ours.seeds
    peers = rows(theirs, seeds)
    count = {"rows": 0, "terminated": 0, "truncated": 0, "resets": 0}
    for turn in range(-(-steps // ENVS)):
        stacks, _, _ = next(peers)
        slot = ours.step() & (SLOTS - 1)
        np.testing.assert_array_equal(ours.policy.seen, stacks, f"{game} {kind}: stacks of row {turn}")
        _, reward, flags = peers.send(ours.policy.chosen)
        found = ours.reader.reward[:, slot], ours.reader.flags[:, slot]
        np.testing.assert_array_equal(found, (reward, flags), f"{game} {kind}: row {turn}")
        count["rows"] += ENVS
        for name, flag in (("terminated", TERMINATED), ("truncated", TRUNCATED), ("resets", RESET)):
            count[name] += int(np.count_nonzero(flags & flag))
        if turn % (LENGTH // 2) == 0:
            ours.compare_cuts()
    count["stacks cut"] = ours.compared
    peers.close()
    theirs.close()
    ours.close()
    return count


def main() -> None:
    """Compare and write results/atari_boundaries.json."""
    parser = script_parser(__doc__)
    parser.add_argument("--steps", type=int, default=100_000, help="of all games and kinds together")
    parsed = parser.parse_args()
    report = Report("atari_boundaries", ("ale-py", "stable-baselines3", "opencv-python-headless"))
    report.note("lives", f"{lives_wrapper().__module__}.{lives_wrapper().__name__}")
    share = -(-parsed.steps // (len(GAMES) * len(KINDS)))
    total: dict[str, float] = {}
    for game in GAMES:
        for kind in KINDS:
            count = compare(game, kind, share, replay=game in ("Pong", "Breakout"))
            report.note(f"{game} {kind}", count)
            print(game, kind, count, flush=True)
            total = {name: total.get(name, 0) + n for name, n in count.items()}
    for name, n in total.items():
        report.add(name.replace(" ", "_"), [float(n)], "equal" if name in ("rows", "stacks cut") else "")
    report.write()


if __name__ == "__main__":
    main()
