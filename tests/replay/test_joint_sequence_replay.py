"""Joint sequences against a reference that keeps every row and looks at one agent's sequence after the other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from replay_rig import (
    AGENTS_SPEC,
    EPS,
    EXTRAS,
    FRAMES_SPEC,
    check_against_twin,
    churn,
    interpret,
    random_operation,
    rig,
)

from asyncrl.interfaces import RESET, TERMINATED, TRUNCATED, JointSequenceBatch, SequenceShape
from asyncrl.replay import (
    JointSequenceReplay,
    gather,
    joint_sequence_replay,
    power,
    rows,
    sampling,
    sequence_replay,
    sum_tree,
    tables,
    tree_kernels,
)
from asyncrl.replay.replay_state import priorities_of, restore_replay
from asyncrl.saved_state import saved

FRAMES = replace(FRAMES_SPEC, agents=AGENTS_SPEC.agents)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("rings", "envs", "slots", "n_step", "frames", "sequences", "spec", "states"),
    [
        (1, 3, 16, 1, 1, (0, 1, 1), AGENTS_SPEC, 0),
        (2, 6, 32, 3, 1, (2, 4, 2), FRAMES, 5),
        (3, 9, 32, 2, 1, (0, 5, 3), AGENTS_SPEC, 1),
        (2, 6, 64, 1, 3, (3, 3, 1), FRAMES, 2),
        (2, 3, 32, 5, 1, (1, 2, 7), replace(AGENTS_SPEC, agents=AGENTS_SPEC.agents[:1]), 3),
    ],
)
def test_random_operations_agree_with_the_twin(
    seed: int,
    rings: int,
    envs: int,
    slots: int,
    n_step: int,
    frames: int,
    sequences: tuple[int, int, int],
    spec: Any,
    states: int,
) -> None:
    options: dict[str, Any] = {"n_step": n_step, "frame_stack": frames, "extras": EXTRAS, "window": 3}
    options |= {"sequences": sequences, "states": states, "joint": True}
    with rig(seed, rings=rings, envs=envs, slots=slots, spec=spec, **options) as r:
        batch, old = r.batch(8), []
        for _ in range(400):
            random_operation(r, batch, old)
            check_against_twin(r)
        assert r.twin.ignored > 0
        assert max(len(rows) for rows in r.twin.rows) > 2 * slots, "the rings must wrap"


def test_random_operations_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = (tree_kernels, tables, power, gather, rows, sampling, sequence_replay, joint_sequence_replay)
    interpret(monkeypatch, *modules, sum_tree)
    options: dict[str, Any] = {"n_step": 2, "frame_stack": 2, "spec": FRAMES, "extras": EXTRAS, "states": 2}
    with rig(0, rings=2, envs=6, slots=32, window=3, joint=True, sequences=(2, 3, 2), **options) as r:
        batch, old = r.batch(4), []
        for _ in range(150):
            random_operation(r, batch, old)
            check_against_twin(r)
        assert r.twin.ignored > 0


OPTIONS: dict[str, Any] = {"n_step": 2, "spec": AGENTS_SPEC, "sequences": (2, 4, 2), "joint": True}


@pytest.mark.parametrize("frames", [1, 3])
def test_no_joint_sequence_shows_what_was_granted_away(frames: int) -> None:
    with rig(5, rings=2, envs=6, slots=32, frame_stack=frames, states=2, **OPTIONS) as r:
        churn(r, 60)


def test_a_grant_without_retiring_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control of the test above."""
    monkeypatch.setattr(rows, "retire", lambda *_: None)
    with rig(5, rings=2, envs=6, slots=32, **OPTIONS) as r, pytest.raises(AssertionError):
        churn(r, 60)


def test_a_joint_sequence_by_hand() -> None:
    """Burn-in of 1, three trained rows, n-step 2, gamma 1/2: a goes on to the end, b ends before, c takes no part."""
    options = {**OPTIONS, "sequences": (1, 3, 6)}
    with rig(0, envs=3, slots=16, states=1, **options) as r:
        actor = r.actors[0]
        actor.write(8)
        ring, w = r.replay.rings[0], actor.writer
        w.global_state[0, :8, 0] = np.arange(8)
        w.flags[0, :8] = [0, 0, 0, TRUNCATED, RESET, 0, 0, 0]
        w.flags[1, :8] = [0, TERMINATED, RESET, RESET, RESET, 0, 0, 0]
        w.flags[2, :8] = [RESET, RESET, RESET, RESET, RESET, 0, 0, 0]
        w.reward[:, :8] = [
            [1, 2, 4, 8, 0, 16, 32, 64],
            [1, 2, 0, 0, 0, 4, 8, 16],
            [0, 0, 0, 0, 0, 1, 2, 4],
        ]
        r.replay.ingest()
        assert r.replay.sampleable == 1 and r.replay.stored_steps == 6 * 3
        batch = r.batch(1)
        r.replay.sample(batch, 1.0)
        assert r.keys(batch.ids) == [(0, 0, 0)]
        assert batch.trained[0].tolist() == [[1, 1, 1], [1, 0, 0], [0, 0, 0]]
        assert batch.reward[0].tolist() == [[4, 8, 8], [2, 0, 0], [0, 0, 0]]
        assert batch.discount[0].tolist() == [[0.25, 0.25, 0.5], [0, 0, 0], [0, 0, 0]]
        assert batch.bootstrap[0].tolist() == [[3, 4, 4], [2, 2, 3], [1, 2, 3]]
        assert batch.begins[0].tolist() == [[0, 0, 0, 0, 0, 1], [0, 0, 0, 1, 1, 1], [0, 1, 1, 1, 1, 1]]
        assert batch.state[0, :, 0].tolist() == [0, 1, 2, 3, 4, 5]
        np.testing.assert_array_equal(batch.obs[0], ring.obs[:, :6])
        np.testing.assert_array_equal(batch.action[0], ring.action[:, 1:4])


def test_an_agent_that_is_truncated_before_its_team_is_not_bootstrapped() -> None:
    """One step, gamma 1/2: b is truncated in row 1; the team ends in row 2, where a terminates and c is truncated."""
    with rig(0, envs=3, slots=16, **{**OPTIONS, "n_step": 1, "sequences": (0, 3, 6)}) as r:
        actor = r.actors[0]
        actor.write(8)
        w = actor.writer
        w.flags[0, :8] = [0, 0, TERMINATED, RESET, 0, 0, 0, 0]
        w.flags[1, :8] = [0, TRUNCATED, RESET, RESET, 0, 0, 0, 0]
        w.flags[2, :8] = [0, 0, TRUNCATED, RESET, 0, 0, 0, 0]
        r.replay.ingest()
        batch = r.batch(1)
        r.replay.sample(batch, 1.0)
        assert batch.discount[0].tolist() == [[0.5, 0.5, 0], [0.5, 0, 0], [0.5, 0.5, 0.5]]


def test_a_joint_sequence_is_of_no_use_only_if_no_agent_acts_in_it() -> None:
    with rig(3, envs=6, slots=64, **{**OPTIONS, "n_step": 1, "sequences": (2, 2, 4)}) as r:
        actor = r.actors[0]
        actor.write(16)
        actor.writer.flags[:, :16] = 0
        actor.writer.flags[:3, 6:8] = RESET  # all trained rows of the first environment's sequence at row 4
        actor.writer.flags[3:5, 6:8] = RESET  # and those of two agents of the second one's
        r.replay.ingest()
        batch = r.batch(64)
        r.replay.sample(batch, 1.0)
        assert set(r.keys(batch.ids)) == {(0, 0, 0), (0, 0, 3), (0, 4, 3), (0, 8, 0), (0, 8, 3)}
        assert r.replay.sampleable == 5
        (at,) = np.flatnonzero((batch.ids >> 3 == 4) & (batch.ids & 7 == 3))[:1]
        assert batch.trained[at].tolist() == [[0, 0], [0, 0], [1, 1]]


def test_priorities_are_of_joint_sequences() -> None:
    with rig(2, envs=6, slots=64, **OPTIONS) as r:
        r.actors[0].write(40)
        r.ingest()
        batch = r.batch(4)
        r.replay.sample(batch, 0.5)
        r.replay.update_priorities(batch.ids, np.array([1, 2, 3, 4], np.float32))
        own = priorities_of(r.replay)[0]
        found = [own[position, env] for _, position, env in r.keys(batch.ids)]
        assert found == [1 + EPS, 2 + EPS, 3 + EPS, 4 + EPS]
        assert not own[:, [1, 2, 4, 5]].any(), "at the first agents' leaves alone"


@pytest.mark.parametrize("burn_in", [2, 5])
def test_a_replay_goes_on_from_its_state(burn_in: int) -> None:
    """Restored to the same priorities and draws; if sequences are longer now, with those published to their end."""
    with rig(2, rings=2, envs=6, slots=32, states=2, **OPTIONS) as r:
        for actor in r.actors:
            actor.write(31)
        r.ingest()
        batch = r.batch(16)
        r.replay.sample(batch, 0.5)
        r.replay.update_priorities(batch.ids, np.arange(1, 17, dtype=np.float32))
        state, kept = saved(r.replay), [(0, own.copy()) for own in priorities_of(r.replay)]
        shape = SequenceShape(burn_in, 4, 2, 2, 0.5)
        other = JointSequenceReplay(r.replay.rings, shape=shape, rng=np.random.default_rng(0))
        restore_replay(other, state, kept)
        other.tree.check()
        wanted = np.stack([own for _, own in kept])
        wanted[:, 31 - shape.ahead :] = 0.0
        assert np.array_equal(priorities_of(other), wanted)
        assert other.sampleable == np.count_nonzero(wanted)
        layout = other.rings[0].layout
        again = JointSequenceBatch.allocate(16, shape, layout.spec, (), layout.state_values)
        for replay, to in ((r.replay, batch), (other, again)):
            replay._rng = np.random.default_rng(7)
            replay.sample(to, 0.5)
        same = all(
            np.array_equal(getattr(batch, n), getattr(again, n)) for n in ("ids", "obs", "weight", "state")
        )
        assert same == (burn_in == 2)


def test_wrong_batches_are_named() -> None:
    with rig(0, envs=3, slots=32, extras=EXTRAS[:1], states=2, **OPTIONS) as r:
        r.actors[0].write(20)
        r.ingest()
        batch = r.batch(4)
        batch.state = batch.state[:, :-1]
        with pytest.raises(
            ValueError, match=r"batch.state must be a writeable \[4, 8, 2\] float32, got \[4, 7, 2\]"
        ):
            r.replay.sample(batch, 0.5)
        batch = r.batch(4)
        batch.extras = {}
        with pytest.raises(ValueError, match=r"batch\.extras must hold 'log_probability'"):
            r.replay.sample(batch, 0.5)
        with pytest.raises(AssertionError, match="joint sequences are gathered into a JointSequenceBatch"):
            r.replay.sample(r.batch(4).by_agent(), 0.5)
