"""Relabelled goals against a reference that keeps every row and looks for an episode's end row by row."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray
from oracles import slow_stack
from replay_rig import EPS, Rig, check_against_twin, copy_of, interpret, random_operation, rig

from asyncrl.envs.goals import GoalRewards, Goals, goal_rewards, goals_of
from asyncrl.errors import EnvironmentRaised, NonFiniteStep, SpacesDoNotFit
from asyncrl.interfaces import RESET, TERMINATED, TRUNCATED, Batch, DiscreteAction, EnvSpec, Leaf
from asyncrl.replay import gather, hindsight, tables
from asyncrl.replay.hindsight import Hindsight
from asyncrl.replay.replay_state import priorities_of

VALUES = EnvSpec(
    "goals",
    (8,),
    "float32",
    DiscreteAction(5),
    leaves=(
        Leaf(("achieved_goal",), "values", (3,)),
        Leaf(("desired_goal",), "values", (3,)),
        Leaf(("observation",), "values", (2,)),
    ),
)
BYTES = EnvSpec(
    "images",
    (4 + 12 + 4,),
    "uint8",
    DiscreteAction(5),
    leaves=(
        Leaf(("achieved_goal",), "image", (2, 2)),
        Leaf(("camera",), "values", (3,)),
        Leaf(("desired_goal",), "image", (2, 2)),
    ),
)


def distance(achieved: NDArray[Any], desired: NDArray[Any], info: Any) -> NDArray[Any]:
    """Minus the distance along the axes: exact for whole numbers."""
    assert achieved.shape == desired.shape and len(info) == len(achieved)
    axes = tuple(range(1, achieved.ndim))
    result: NDArray[Any] = -np.abs(achieved.astype(np.float64) - desired).sum(axis=axes)
    return result


def slow_relabelled(r: Rig, goals: Goals, key: Any, draw: float, share: float, strategy: str) -> Any:
    """(goal, reward, discount, stack of the bootstrap) of an item, or None if it keeps its goal."""
    if draw >= share:
        return None
    ring, position, env = key
    rows, twin = r.twin.rows[ring], r.twin
    later = []
    for at in range(position + 1, twin.seen[ring]):
        if rows[at].incarnation != rows[position].incarnation:
            break
        later.append(rows[at])
        if rows[at].flags[env] & RESET:
            break

    def achieved(row: Any) -> NDArray[Any]:
        of = row.obs[env].view(np.uint8)[goals.achieved : goals.achieved + goals.row_bytes]
        return np.asarray(goals.arrays(of[None])[0])

    index = len(later) - 1 if strategy == "final" else int(draw / share * len(later))
    wanted, total, discount, bootstrap = achieved(later[index]), 0.0, 1.0, position
    for k in range(twin.n_step):
        row = rows[position + k]
        if rows[position + k + 1].incarnation != row.incarnation:
            break
        reached = achieved(rows[position + k + 1])
        total += twin.gamma**k * distance(reached[None], wanted[None], [{}])[0]
        bootstrap = position + k + 1
        discount = 0.0 if row.flags[env] & TERMINATED else twin.gamma ** (k + 1)
        if row.flags[env] & (TERMINATED | TRUNCATED) or k == index:
            break
    return wanted, total, discount, slow_stack(rows, bootstrap, env, twin.frame_stack)


@contextmanager
def goal_rig(
    seed: int,
    spec: EnvSpec,
    strategy: Any,
    n_sampled_goal: int = 4,
    n_step: int = 1,
    frames: int = 1,
    **options: Any,
) -> Iterator[tuple[Rig, Goals]]:
    goals = goals_of(spec)
    assert goals is not None
    relabelled = Hindsight(
        GoalRewards(spec.name, goals, distance),
        n_sampled_goal=n_sampled_goal,
        strategy=strategy,
        n_step=n_step,
        gamma=0.5,
    )
    with rig(seed, spec=spec, n_step=n_step, frame_stack=frames, hindsight=relabelled, **options) as r:
        yield r, goals


def check_relabelled(r: Rig, batch: Batch, goals: Goals, strategy: str, share: float) -> int:
    """Sample, and check goals, rewards and everything else of every item; returns how many were relabelled."""
    random = copy_of(r.replay._rng)
    uniforms, draws = random.random(batch.size), random.random(batch.size)
    r.replay.sample(batch, 0.5)
    keys = r.keys(batch.ids)
    assert keys == r.twin.sample(uniforms)
    relabelled = 0
    for i, key in enumerate(keys):
        wanted = r.twin.transition(key)
        reward, discount = wanted.reward, wanted.discount
        if (new := slow_relabelled(r, goals, key, draws[i], share, strategy)) is not None:
            relabelled += 1
            goal, reward, discount, stack = new
            wanted.obs, wanted.next_obs = (
                wanted.obs.copy(),
                stack if r.twin.frame_stack > 1 else stack[0].copy(),
            )
            for obs in (wanted.obs, wanted.next_obs):
                frames = obs.reshape(-1, obs.shape[-1]).view(np.uint8)
                for frame in frames:
                    frame[goals.desired : goals.desired + goals.row_bytes] = goal.reshape(-1).view(np.uint8)
        np.testing.assert_array_equal(batch.obs[i], wanted.obs)
        np.testing.assert_array_equal(batch.next_obs[i], wanted.next_obs)
        np.testing.assert_array_equal(batch.action[i], wanted.action)
        assert batch.reward[i] == np.float32(reward)
        assert batch.discount[i] == np.float32(discount)
    return relabelled


@pytest.mark.parametrize("strategy", ["future", "final"])
@pytest.mark.parametrize(
    ("spec", "rings", "envs", "slots", "n_step", "frames"),
    [
        (VALUES, 1, 1, 16, 1, 1),
        (VALUES, 3, 4, 32, 1, 1),
        (BYTES, 2, 3, 16, 1, 2),
        (VALUES, 2, 2, 64, 3, 1),
        (BYTES, 1, 2, 32, 3, 2),
    ],
)
def test_random_operations_agree_with_the_twin(
    monkeypatch: pytest.MonkeyPatch,
    strategy: str,
    spec: EnvSpec,
    rings: int,
    envs: int,
    slots: int,
    n_step: int,
    frames: int,
) -> None:
    monkeypatch.setattr(Rig, "check_batch", lambda *_: None)  # of batches with their own goals
    options = {"rings": rings, "envs": envs, "slots": slots, "n_step": n_step, "frames": frames}
    for seed in range(3):
        with goal_rig(seed, spec, strategy, **options) as (r, goals):
            batch, relabelled, drawn = r.batch(16), 0, 0
            for _ in range(400):
                random_operation(r, batch, [])
                check_against_twin(r)
                if r.replay.sampleable and r.rng.random() < 0.2:
                    relabelled += check_relabelled(r, batch, goals, strategy, 0.8)
                    drawn += batch.size
            assert 0.7 < relabelled / drawn < 0.9
            assert max(a.incarnation for a in r.actors) > 0, "an actor must die"
            assert max(len(rows) for rows in r.twin.rows) > 2 * slots, "the rings must wrap"


def test_random_operations_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    interpret(monkeypatch, hindsight, gather, tables)
    monkeypatch.setattr(Rig, "check_batch", lambda *_: None)
    with goal_rig(0, VALUES, "future", rings=2, envs=3, n_step=2, frames=2) as (r, goals):
        batch = r.batch(6)
        for _ in range(150):
            random_operation(r, batch, [])
            if r.replay.sampleable and r.rng.random() < 0.2:
                check_relabelled(r, batch, goals, "future", 0.8)


def test_a_goal_of_the_next_episode_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: the twin must detect an episode that goes on after its RESET row."""
    monkeypatch.setattr(hindsight, "RESET", 0)
    interpret(monkeypatch, hindsight)
    with goal_rig(0, VALUES, "final") as (r, goals), pytest.raises(AssertionError):
        r.actors[0].write(15)
        r.ingest()
        for _ in range(10):
            check_relabelled(r, r.batch(16), goals, "final", 0.8)


def test_rows_of_an_episode_in_progress_are_those_ingested() -> None:
    with goal_rig(4, VALUES, "final") as (r, _):
        actor = r.actors[0]
        actor.write(3)
        for row in actor.rows:
            row.flags[:] = 0
        actor.writer.flags[:, :3] = 0
        r.ingest()
        actor.write(5)  # published and not ingested
        batch = r.batch(64)
        r.replay.sample(batch, 0.0)
        relabelled = batch.obs[:, 3:6][(batch.obs[:, 3:6] == actor.rows[2].obs[0][:3]).all(axis=1)]
        assert 40 < len(relabelled) < 64


def test_every_later_row_is_equally_probable() -> None:
    with goal_rig(1, VALUES, "future", slots=64) as (r, _):
        actor = r.actors[0]
        actor.write(40)
        for row in actor.rows:
            row.flags[:] = 0
        actor.writer.flags[:] = 0
        r.ingest()
        batch, counts = r.batch(64), np.zeros(40)
        achieved = np.stack([row.obs[0][:3] for row in actor.rows])
        for _ in range(400):
            r.replay.sample(batch, 0.0)
            first = (
                batch.obs[r.keys(batch.ids).index((0, 30, 0))] if (0, 30, 0) in r.keys(batch.ids) else None
            )
            if first is not None:
                counts += (achieved == first[3:6]).all(axis=1)
        assert counts[:31].sum() == 0 and (counts[31:] > 0).all()
        assert counts.sum() == pytest.approx(0.8 * 400 * 0.8, rel=0.3)


def test_choices_are_given_as_they_were() -> None:
    leaves = tuple(Leaf((key,), "choices", (2,), (3, 2), (5, 0)) for key in ("achieved_goal", "desired_goal"))
    goals = goals_of(EnvSpec("choices", (10,), "float32", DiscreteAction(2), leaves=leaves))
    assert goals is not None and (goals.achieved, goals.desired, goals.row_bytes) == (0, 20, 20)
    row = np.array([[0, 0, 1, 1, 0], [1, 0, 0, 0, 1]], np.float32).view(np.uint8)
    assert goals.arrays(row).tolist() == [[7, 0], [5, 1]]


def test_goals_must_be_two_and_alike() -> None:
    achieved, desired, _ = VALUES.leaves
    for leaves in ((achieved,), (desired,), (achieved, Leaf(desired.path, "values", (4,))), ()):
        assert goals_of(EnvSpec("none", (7,), "float32", DiscreteAction(2), leaves=leaves)) is None


@pytest.mark.parametrize("wrong", [np.array(["one", "two"]), np.array([1j, 2])])
def test_rewards_that_are_no_real_numbers_are_refused(wrong: Any) -> None:
    goals = goals_of(VALUES)
    assert goals is not None
    with pytest.raises(SpacesDoNotFit, match="must return real numbers, got dtype"):
        GoalRewards("wrong", goals, lambda achieved, desired, info: wrong)


def test_a_reward_of_relabelled_goals_that_is_not_finite_is_named() -> None:
    """It was the learner's divergence. Goals of zeros, which are tried first, need not exist."""
    goals = goals_of(VALUES)
    assert goals is not None
    rewards = GoalRewards("nan", goals, lambda achieved, desired, info: np.array([0.0, np.nan]))
    with pytest.raises(NonFiniteStep, match="compute_reward of nan returned nan for relabelled goals"):
        rewards(*np.zeros((2, 2, goals.row_bytes), np.uint8))


def test_a_reward_that_is_not_of_a_batch_is_refused() -> None:
    goals = goals_of(VALUES)
    assert goals is not None
    with pytest.raises(SpacesDoNotFit, match=r"must return a reward per goal, \[2\], got \[\]"):
        GoalRewards("one", goals, lambda achieved, desired, info: -1.0)
    with pytest.raises(EnvironmentRaised, match="compute_reward of reads raised TypeError for 2 goals"):
        GoalRewards("reads", goals, lambda achieved, desired, info: info["crashed"])


def test_an_environment_whose_rewards_are_refused_is_closed() -> None:
    class Environment:
        closed = False

        def get_wrapper_attr(self, name: str) -> Any:
            return lambda achieved, desired, info: -1.0

        def close(self) -> None:
            self.closed = True

    env = Environment()
    source: Any = SimpleNamespace(build=lambda: env)
    with pytest.raises(SpacesDoNotFit, match="must return a reward per goal"):
        goal_rewards(source, VALUES, None)
    assert env.closed


def line_of_goals(r: Rig, rewards: list[float]) -> None:
    """Write rows 0, 1, ... of one stream in which row k has achieved goal (k, 0, 0); no episode ends."""
    actor = r.actors[0]
    actor.write(len(rewards) + 1)
    for k, row in enumerate(actor.rows):
        row.flags[:] = 0
        row.obs[0][:6] = (k, 0, 0, 50, 0, 0)
        actor.writer.obs[0, k, :6] = (k, 0, 0, 50, 0, 0)
    actor.writer.flags[:, : len(actor.rows)] = 0
    actor.writer.reward[0, : len(rewards)] = rewards
    r.ingest()


@pytest.mark.parametrize(
    ("draw", "reward", "discount", "bootstrap"),
    [
        (0.0, 0.0, 0.5, 3),  # the goal of row 3: one reward, 0, and the value of row 3
        (0.2, -1.0, 0.25, 4),  # of row 4: -1 + 0.5 * 0
        (0.4, -2.0 - 0.5, 0.125, 5),  # of row 5: -2 + 0.5 * -1 + 0.25 * 0
        (0.61, -3.0 - 1.0 - 0.25, 0.125, 5),  # of row 6, which is beyond the three steps
        (0.79, -3.0 - 1.0 - 0.25, 0.125, 5),  # the last row, again row 6
        (0.8, 8.0 + 0.5 * 16.0 + 0.25 * 32.0, 0.125, 5),  # its own goal and rewards
    ],
)
def test_a_return_ends_where_its_goal_was_taken_from(
    draw: float, reward: float, discount: float, bootstrap: int
) -> None:
    """Row 2 of goals on a line, three steps, discount 1/2; the reward is minus the distance to the goal."""
    with goal_rig(0, VALUES, "future", envs=1, slots=16, n_step=3) as (r, _):
        line_of_goals(r, [2.0, 4.0, 8.0, 16.0, 32.0, 64.0])
        batch = r.batch(1)
        replay: Any = r.replay

        class Draws:
            """The third of the four rows that have three successors, which is row 2; then `draw`."""

            drawn: ClassVar[list[float]] = [0.6, draw]

            def random(self, size: int = 0, out: Any = None) -> Any:
                out = np.zeros(size) if out is None else out
                out[:] = self.drawn.pop(0)
                return out

        replay._rng = Draws()
        replay.sample(batch, 0.0)
        assert r.keys(batch.ids) == [(0, 2, 0)]
        assert (batch.reward[0], batch.discount[0]) == (reward, discount)
        assert batch.next_obs[0, 0] == bootstrap
        assert batch.next_obs[0, 3] == batch.obs[0, 3] == (50 if draw >= 0.8 else 3 + int(draw / 0.2))


def test_priorities_are_those_of_the_rows_whatever_their_goals() -> None:
    """Relabelled or not, every sampled row gets the priority of its last error, and no other row a new one."""
    with goal_rig(5, VALUES, "future", rings=2, envs=3, slots=32) as (r, _):
        for actor in r.actors:
            actor.write(20)
        r.ingest()
        batch, kinds = r.batch(64), set()
        for _ in range(20):
            r.replay.sample(batch, 0.5)
            before = priorities_of(r.replay).copy()
            errors = r.rng.integers(1, 64, batch.size).astype(np.float32)
            r.replay.update_priorities(batch.ids, errors)
            last = dict(zip(r.keys(batch.ids), errors, strict=True))
            after, expected = priorities_of(r.replay), before
            for (ring, position, env), error in last.items():
                expected[ring, position % 32, env] = np.float32(error + EPS)
                own = r.twin.rows[ring][position].obs[env][3:6]
                item = r.keys(batch.ids).index((ring, position, env))
                kinds.add(bool((batch.obs[item, 3:6] == own).all()))
            assert len(last) < batch.size, "some rows twice, with two goals"
            np.testing.assert_array_equal(after, expected)
        assert kinds == {True, False}
