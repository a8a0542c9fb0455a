"""Joint rows against a reference that keeps every row and looks at one agent after the other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from replay_rig import (
    AGENTS_SPEC,
    EXTRAS,
    FRAMES_SPEC,
    check_against_twin,
    churn,
    interpret,
    random_operation,
    rig,
)

from asyncrl.interfaces import RESET, TERMINATED, TRUNCATED
from asyncrl.replay import (
    JointReplay,
    gather,
    joint_replay,
    power,
    rows,
    sampling,
    sum_tree,
    tables,
    tree_kernels,
)
from asyncrl.replay.replay_state import priorities_of, restore_replay
from asyncrl.saved_state import saved

FRAMES = replace(FRAMES_SPEC, agents=AGENTS_SPEC.agents)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("of_team", [False, True])
@pytest.mark.parametrize(
    ("rings", "envs", "slots", "n_step", "frames", "spec", "states"),
    [
        (1, 3, 16, 1, 1, AGENTS_SPEC, 0),
        (2, 6, 32, 3, 1, FRAMES, 5),
        (3, 9, 32, 5, 1, AGENTS_SPEC, 1),
        (2, 6, 16, 3, 3, FRAMES, 2),
        (2, 3, 32, 2, 1, replace(AGENTS_SPEC, agents=AGENTS_SPEC.agents[:1]), 3),
    ],
)
def test_random_operations_agree_with_the_twin(
    seed: int,
    of_team: bool,
    rings: int,
    envs: int,
    slots: int,
    n_step: int,
    frames: int,
    spec: Any,
    states: int,
) -> None:
    options: dict[str, Any] = {"n_step": n_step, "frame_stack": frames, "extras": EXTRAS, "window": 3}
    options |= {"states": states, "of_team": of_team}
    with rig(seed, rings=rings, envs=envs, slots=slots, spec=spec, joint=True, **options) as r:
        batch, old = r.batch(12), []
        for _ in range(400):
            random_operation(r, batch, old)
            check_against_twin(r)
        assert r.twin.ignored > 0
        assert max(len(rows) for rows in r.twin.rows) > 2 * slots, "the rings must wrap"


def test_random_operations_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = (tree_kernels, tables, power, gather, rows, sampling, joint_replay, sum_tree)
    interpret(monkeypatch, *modules)
    options: dict[str, Any] = {"n_step": 2, "frame_stack": 2, "spec": FRAMES, "extras": EXTRAS, "states": 2}
    with rig(0, rings=2, envs=6, slots=32, window=3, joint=True, of_team=True, **options) as r:
        batch, old = r.batch(4), []
        for _ in range(150):
            random_operation(r, batch, old)
            check_against_twin(r)
        assert r.twin.ignored > 0


@pytest.mark.parametrize("frames", [1, 3])
def test_no_joint_row_shows_what_was_granted_away(frames: int) -> None:
    options: dict[str, Any] = {"n_step": 2, "frame_stack": frames, "spec": AGENTS_SPEC, "states": 2}
    with rig(5, rings=2, envs=6, slots=32, joint=True, **options) as r:
        churn(r, 60)


def test_a_grant_without_retiring_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control of the test above."""
    monkeypatch.setattr(rows, "retire", lambda *_: None)
    with rig(5, rings=2, envs=6, n_step=2, spec=AGENTS_SPEC, joint=True) as r, pytest.raises(AssertionError):
        churn(r, 60)


def test_joint_rows_by_hand() -> None:
    """Two steps, gamma 1/2: agent a goes on, b terminates in its second step and then waits, c takes no part."""
    with rig(0, envs=3, slots=16, n_step=2, spec=AGENTS_SPEC, joint=True, states=1) as r:
        actor = r.actors[0]
        actor.write(6)
        ring, w = r.replay.rings[0], actor.writer
        w.global_state[0, :6, 0] = np.arange(6)
        w.flags[0, :6] = [0, 0, 0, TRUNCATED, RESET, 0]
        w.flags[1, :6] = [0, TERMINATED, RESET, RESET, RESET, 0]
        w.flags[2, :6] = [RESET, RESET, RESET, RESET, RESET, 0]
        w.reward[:, :6] = [[1, 2, 4, 8, 0, 16], [32, 64, 0, 0, 0, 128], [0, 0, 0, 0, 0, 256]]
        r.replay.ingest()
        assert r.replay.sampleable == 4, "rows 0 to 3: row 4 is a reset, row 5 has no successors yet"
        batch = r.batch(4)
        r.replay.sample(batch, 1.0)
        assert r.keys(batch.ids) == [(0, 0, 0), (0, 1, 0), (0, 2, 0), (0, 3, 0)]
        assert batch.trained.tolist() == [[1, 1, 0], [1, 1, 0], [1, 0, 0], [1, 0, 0]]
        assert batch.reward.tolist() == [[2, 64, 0], [4, 64, 0], [8, 0, 0], [8, 0, 0]]
        assert batch.discount.tolist() == [[0.25, 0, 0], [0.25, 0, 0], [0.25, 0, 0], [0.5, 0, 0]]
        assert batch.state[:, 0].tolist() == [0, 1, 2, 3]
        assert batch.next_state[:, 0].tolist() == [2, 3, 4, 4], "that of agent a, who goes on longest"
        obs = ring.obs.swapaxes(0, 1)
        for i, after in enumerate(([2, 2, 0], [3, 2, 1], [4, 2, 2], [4, 3, 3])):
            np.testing.assert_array_equal(batch.obs[i], obs[i])
            np.testing.assert_array_equal(batch.next_obs[i], [ring.obs[n, after[n]] for n in range(3)])


@pytest.mark.parametrize("of_team", [False, True])
def test_an_agent_that_is_truncated_alone(of_team: bool) -> None:
    """Two steps, gamma 1/2: b is truncated in row 1, a terminates in row 2 and with it the team; c is truncated there.

    Each for itself, b and c bootstrap from their last observations. The team goes on from row 1 without b, whose value
    is no part of the team's any more; with c it would have gone on from row 2.
    """
    with rig(0, envs=3, slots=16, n_step=2, spec=AGENTS_SPEC, joint=True, of_team=of_team) as r:
        actor = r.actors[0]
        actor.write(6)
        w = actor.writer
        w.flags[0, :6] = [0, 0, TERMINATED, RESET, 0, 0]
        w.flags[1, :6] = [0, TRUNCATED, RESET, RESET, 0, 0]
        w.flags[2, :6] = [0, 0, TRUNCATED, RESET, 0, 0]
        r.replay.ingest()
        batch = r.batch(3)
        r.replay.sample(batch, 1.0)
        assert r.keys(batch.ids) == [(0, 0, 0), (0, 1, 0), (0, 2, 0)]
        alone = [0.25, 0.5, 0.0] if not of_team else [0.0, 0.0, 0.0]
        assert batch.discount[:, 0].tolist() == [0.25, 0, 0]
        assert batch.discount[:, 1].tolist() == alone
        assert batch.discount[:, 2].tolist() == [0.25, 0.25, 0.5]


def test_a_death_cuts_the_rows_of_all_agents() -> None:
    """The last row of a life is not trained on, and no return reaches into the next one, of any agent."""
    with rig(1, envs=6, slots=32, n_step=3, spec=AGENTS_SPEC, joint=True) as r:
        actor = r.actors[0]
        actor.writer.flags[:] = 0
        actor.write(8)
        actor.restart()
        actor.write(12)
        actor.writer.flags[:, :20] = 0
        actor.writer.reward[:, :20] = 1
        r.replay.ingest()
        batch = r.batch(64)
        r.replay.sample(batch, 1.0)
        positions = {key[1] for key in r.keys(batch.ids)}
        assert positions == {*range(7), *range(8, 17)}, "row 7 has no successor"
        for i, (_, position, _) in enumerate(r.keys(batch.ids)):
            steps = min(3, 7 - position) if position < 7 else 3
            assert batch.trained[i].all()
            assert (batch.reward[i] == 2 - 0.5 ** (steps - 1)).all()
            assert (batch.discount[i] == 0.5**steps).all()


def test_a_restored_replay_draws_the_same_joint_rows() -> None:
    with rig(3, rings=2, envs=6, slots=32, n_step=3, spec=AGENTS_SPEC, joint=True) as r:
        for actor in r.actors:
            actor.write(25)
        r.ingest()
        batch = r.batch(16)
        r.replay.sample(batch, 0.5)
        r.replay.update_priorities(batch.ids, r.rng.random(16).astype(np.float32))
        other = JointReplay(r.replay.rings, n_step=3, gamma=0.5, rng=np.random.default_rng(9))
        kept = [(0, values[:25].copy()) for values in priorities_of(r.replay)]
        restore_replay(other, saved(r.replay), kept)
        assert other.sampleable == r.replay.sampleable
        again = r.batch(16)
        for replay, to in ((r.replay, batch), (other, again)):
            replay._rng = np.random.default_rng(7)
            replay.sample(to, 0.5)
        for name in (
            "obs",
            "action",
            "reward",
            "discount",
            "next_obs",
            "trained",
            "weight",
            "ids",
            "version",
        ):
            np.testing.assert_array_equal(getattr(batch, name), getattr(again, name))
