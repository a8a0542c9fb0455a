"""Replay of sequences against a reference that keeps every row permanently."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from replay_rig import (
    EPS,
    EXTRAS,
    FRAMES_SPEC,
    check_against_twin,
    churn,
    count,
    interpret,
    random_operation,
    rig,
)
from scipy import stats

from asyncrl.interfaces import RESET, TERMINATED, TRUNCATED, SequenceBatch, SequenceShape
from asyncrl.replay import (
    SequenceReplay,
    gather,
    power,
    rows,
    sampling,
    sequence_replay,
    sum_tree,
    tables,
    tree_kernels,
)
from asyncrl.replay.replay_state import priorities_of, restore_replay
from asyncrl.replay.tables import ID_BITS, SAMPLED
from asyncrl.saved_state import saved


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("rings", "envs", "slots", "n_step", "frames", "sequences"),
    [
        (1, 1, 16, 1, 1, (0, 1, 1)),
        (2, 3, 32, 3, 1, (2, 4, 2)),
        (3, 2, 32, 2, 1, (0, 5, 3)),
        (2, 2, 64, 1, 3, (3, 3, 1)),
        (1, 3, 32, 5, 1, (1, 2, 7)),
    ],
)
def test_random_operations_agree_with_the_twin(
    seed: int, rings: int, envs: int, slots: int, n_step: int, frames: int, sequences: tuple[int, int, int]
) -> None:
    with rig(
        seed,
        rings=rings,
        envs=envs,
        slots=slots,
        n_step=n_step,
        frame_stack=frames,
        spec=FRAMES_SPEC,
        extras=EXTRAS,
        window=3,
        sequences=sequences,
    ) as r:
        batch, old = r.batch(8), []
        for _ in range(500):
            random_operation(r, batch, old)
            check_against_twin(r)
        assert r.twin.ignored > 0
        assert max(len(rows) for rows in r.twin.rows) > 2 * slots, "the rings must wrap"


def test_random_operations_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = (tree_kernels, tables, power, gather, rows, sampling, sequence_replay, sum_tree)
    interpret(monkeypatch, *modules)
    options: dict[str, Any] = {"n_step": 2, "frame_stack": 2, "spec": FRAMES_SPEC, "extras": EXTRAS}
    with rig(0, rings=2, envs=2, slots=32, window=3, sequences=(2, 3, 2), **options) as r:
        batch, old = r.batch(4), []
        for _ in range(150):
            random_operation(r, batch, old)
            check_against_twin(r)
        assert r.twin.ignored > 0


@pytest.mark.parametrize("frames", [1, 3])
def test_no_sequence_shows_what_was_granted_away(frames: int) -> None:
    with rig(5, rings=2, envs=2, slots=32, n_step=2, frame_stack=frames, sequences=(2, 4, 2)) as r:
        churn(r, 60)


def test_a_grant_without_retiring_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control of the test above."""
    monkeypatch.setattr(rows, "retire", lambda *_: None)
    with rig(5, rings=2, envs=2, slots=32, n_step=2, sequences=(2, 4, 2)) as r, pytest.raises(AssertionError):
        churn(r, 60)


def test_a_sequence_by_hand() -> None:
    """Burn-in of 1, three trained rows, n-step 2, gamma 1/2: an episode ends within the sequence."""
    with rig(0, slots=16, n_step=2, sequences=(1, 3, 6)) as r:
        actor = r.actors[0]
        actor.write(8)
        ring, w = r.replay.rings[0], actor.writer
        w.flags[0, :8] = [0, 0, TERMINATED, RESET, 0, TRUNCATED, RESET, 0]
        w.reward[0, :8] = [1, 2, 4, 0, 8, 16, 0, 32]
        r.replay.ingest()
        assert r.replay.sampleable == 1 and r.replay.stored_steps == 6
        batch = r.batch(1)
        r.replay.sample(batch, 1.0)
        assert batch.ids.tolist() == [0]
        assert batch.begins[0].tolist() == [False, False, False, False, True, False]
        assert batch.trained[0].tolist() == [True, True, False]
        assert batch.reward[0].tolist() == [2 + 4 / 2, 4, 0]
        assert batch.discount[0].tolist() == [0, 0, 0]
        assert batch.bootstrap[0].tolist() == [3, 3, 3]
        np.testing.assert_array_equal(batch.obs[0], ring.obs[0, :6])
        np.testing.assert_array_equal(batch.action[0], ring.action[0, 1:4])


def test_sequences_begin_at_every_period_th_row_and_none_without_a_row_to_train_on() -> None:
    with rig(3, envs=2, slots=64, n_step=1, sequences=(2, 2, 4)) as r:
        r.actors[0].write(40)
        r.ingest()
        flags = r.replay.rings[0].flags
        starts = [
            (0, i, env)
            for i in range(0, 36, 4)
            for env in range(2)
            if not (flags[env, i + 2] & RESET and flags[env, i + 3] & RESET)
        ]
        assert sorted(r.twin.priority) == starts
        for env in range(2):  # RESET in both trained rows of the next sequence
            flags[env, 42:44] = RESET
        before = r.replay.sampleable
        r.actors[0].write(8)
        flags[:, 42:44] = RESET
        r.replay.ingest()
        assert r.replay.sampleable == before + 2, "rows 36 and 40 begin sequences, that of 40 trains nothing"


def test_every_row_is_trained_as_often_as_any_other() -> None:
    with rig(4, slots=256, n_step=1, sequences=(4, 8, 4), uniform=True) as r:
        r.actors[0].write(255)
        r.ingest()
        batch, counts = r.batch(16), dict.fromkeys(r.twin.priority, 0)
        for _ in range(1000):
            r.replay.sample(batch, 0.7)
            assert (batch.weight == 1.0).all()
            assert r.replay.update_priorities(batch.ids, np.ones(16, np.float32)) == 0
            for key in r.keys(batch.ids):
                counts[key] += 1
        assert stats.chisquare(list(counts.values())).pvalue > 0.01
        in_sequences = np.zeros(256, int)
        for _, position, _ in counts:
            in_sequences[position + 4 : position + 12] += 1
        assert set(in_sequences[12:240]) == {2}, (
            "half the length is the period: every row is in two sequences"
        )


def test_priorities_are_of_sequences() -> None:
    with rig(2, slots=64, n_step=1, sequences=(0, 4, 2)) as r:
        r.actors[0].write(40)
        r.ingest()
        batch = r.batch(4)
        r.replay.sample(batch, 0.5)
        r.replay.update_priorities(batch.ids, np.array([1, 2, 3, 4], np.float32))
        positions = batch.ids & (1 << ID_BITS) - 1
        assert r.replay.tree.leaves[positions].tolist() == [1 + EPS, 2 + EPS, 3 + EPS, 4 + EPS]
        assert count(r.replay, SAMPLED) == 4


@pytest.mark.parametrize("burn_in", [1, 5])
def test_a_replay_goes_on_from_its_state(burn_in: int) -> None:
    """Restored to the same priorities; if sequences are longer now, with those that are published to their end."""
    with rig(2, rings=2, envs=2, slots=32, n_step=2, sequences=(1, 4, 2)) as r:
        for actor in r.actors:
            actor.write(31)
        r.ingest()
        batch = r.batch(16)
        r.replay.sample(batch, 0.5)
        r.replay.update_priorities(batch.ids, np.arange(1, 17, dtype=np.float32))
        state, kept = saved(r.replay), [(0, own.copy()) for own in priorities_of(r.replay)]
        shape = SequenceShape(burn_in, 4, 2, 2, 0.5)
        other = SequenceReplay(r.replay.rings, shape=shape, rng=np.random.default_rng(0))
        restore_replay(other, state, kept)
        last = 31 - shape.ahead  # the first row whose sequence is not published to its end
        wanted = np.stack([own for _, own in kept])
        assert (wanted[:, last:28] > 0).any() == (burn_in == 5)
        wanted[:, last:] = 0.0
        assert np.array_equal(priorities_of(other), wanted)
        other.tree.check()
        assert other.sampleable == np.count_nonzero(wanted)
        more = SequenceBatch.allocate(64, shape, other.rings[0].layout.spec)
        other.sample(more, 0.5)
        assert ((more.ids & (1 << ID_BITS) - 1) >> 1).max() < last


def test_wrong_batches_are_named() -> None:
    with rig(0, slots=32, extras=EXTRAS[:1], sequences=(1, 2, 1)) as r:
        r.actors[0].write(20)
        r.ingest()
        batch = r.batch(4)
        batch.begins = batch.begins[:, :-1]
        with pytest.raises(ValueError, match=r"batch.begins must be a writeable \[4, 4\] bool, got \[4, 3\]"):
            r.replay.sample(batch, 0.5)
        batch = r.batch(4)
        batch.extras = {}
        with pytest.raises(ValueError, match=r"batch\.extras must hold 'log_probability'"):
            r.replay.sample(batch, 0.5)
        batch = r.batch(4)
        r.replay.sample(batch, 0.5)
        batch.reward = np.empty((4, 3), np.float32)  # another array in the place of one that is known
        with pytest.raises(ValueError, match=r"batch.reward must be a writeable \[4, 2\] float32"):
            r.replay.sample(batch, 0.5)


def test_wrong_shapes_are_named() -> None:
    for options, text in (
        ({"burn_in": -1}, "burn_in must be at least 0, got -1"),
        ({"length": 0}, "length must be at least 1, got 0"),
        ({"period": 0}, "period must be at least 1, got 0"),
        ({"n_step": 256}, "n_step must be between 1 and 255, got 256"),
        ({"gamma": 1.5}, "gamma must be between 0 and 1, got 1.5"),
    ):
        with pytest.raises(ValueError, match=text):
            SequenceShape(**({"burn_in": 1, "length": 2, "period": 1, "n_step": 1, "gamma": 0.5} | options))
    with (
        pytest.raises(ValueError, match="num_slots must be at least 17 for burn_in 8, length 6"),
        rig(0, slots=16, sequences=(8, 6, 3)),
    ):
        pass
