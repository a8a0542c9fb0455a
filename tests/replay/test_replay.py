"""The whole replay against a reference that keeps every row permanently."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import njit
from replay_rig import (
    AGENTS_SPEC,
    EPS,
    EXTRAS,
    FRAMES_SPEC,
    Rig,
    check_against_twin,
    churn,
    count,
    interpret,
    random_operation,
    rig,
)
from scipy import stats

from asyncrl.errors import RingCorrupt
from asyncrl.interfaces import FROZEN, RESET
from asyncrl.replay import PrioritizedReplay, gather, power, rows, sampling, sum_tree, tables, tree_kernels
from asyncrl.replay.replay_state import priorities_of, restore_replay
from asyncrl.replay.tables import ID_BITS, IGNORED
from asyncrl.saved_state import saved
from asyncrl.shm import RingWriter
from asyncrl.shm.kernel import inlined
from asyncrl.shm.ring_layout import PUBLISHED


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    ("rings", "envs", "slots", "n_step", "frames"),
    [(1, 1, 16, 1, 1), (2, 3, 16, 3, 1), (3, 4, 32, 5, 1), (2, 2, 16, 3, 4), (1, 5, 64, 2, 2)],
)
def test_random_operations_agree_with_the_twin(
    seed: int, rings: int, envs: int, slots: int, n_step: int, frames: int
) -> None:
    with rig(
        seed,
        rings=rings,
        envs=envs,
        slots=slots,
        n_step=n_step,
        frame_stack=frames,
        spec=FRAMES_SPEC,
        extras=EXTRAS[:1],
        window=3,
    ) as r:
        batch, old = r.batch(16), []
        for _ in range(500):
            random_operation(r, batch, old)
            check_against_twin(r)
        assert r.twin.ignored > 0
        assert len(r.twin.maxima) > 4 * 3, "windows must follow one another"
        assert max(len(rows) for rows in r.twin.rows) > 2 * slots, "the rings must wrap"


@pytest.mark.parametrize("self_play", [False, True])
@pytest.mark.parametrize("sequences", [None, (2, 3, 2)])
@pytest.mark.parametrize("seed", range(3))
def test_random_operations_agree_with_the_twin_for_agents_that_wait(
    seed: int, sequences: tuple[int, int, int] | None, self_play: bool
) -> None:
    """Agents that have ended have several RESET rows; a step is one of an environment, a sample one of an agent.

    In self-play some agents act with past versions: their steps count, and their rows are never trained on.
    """
    options: dict[str, Any] = {"n_step": 3, "frame_stack": 2, "spec": AGENTS_SPEC, "window": 3}
    with rig(seed, rings=2, envs=6, slots=32, sequences=sequences, **options) as r:
        batch, old = r.batch(16), []
        for actor in r.actors:
            actor.self_play = self_play
        for _ in range(400):
            random_operation(r, batch, old)
            check_against_twin(r)
        flags = np.concatenate([row.flags for row in r.twin.rows[0]]).reshape(-1, 3)
        assert ((flags & FROZEN).sum() > 300) == self_play
        flags &= ~np.uint8(FROZEN)
        assert ((flags == 4).any(axis=1) & ~(flags == 4).all(axis=1)).sum() > 50, "agents waited"
        assert (
            r.twin.inserted
            < (np.concatenate([row.flags for rows in r.twin.rows for row in rows]) & RESET == 0).sum()
        )


def test_random_operations_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    interpret(monkeypatch, tree_kernels, tables, power, gather, rows, sampling, sum_tree)
    with rig(
        0, rings=2, envs=3, slots=16, n_step=3, frame_stack=2, spec=FRAMES_SPEC, extras=EXTRAS, window=3
    ) as r:
        batch, old = r.batch(6), []
        for _ in range(250):
            random_operation(r, batch, old)
            check_against_twin(r)
        assert r.twin.ignored > 0


def test_the_place_of_a_row_is_found_without_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a call from Python numba would load its compiler on the learner's thread."""
    monkeypatch.setattr(tables, "split_id", fresh := inlined(tables.split_id.py_func))
    with rig(0, rings=2, envs=3, slots=16) as r:
        for actor in r.actors:
            actor.write(15)
        r.ingest()
        keys = sorted(r.twin.priority)
        assert [r.replay.place_of(row_id) for row_id in r.ids(keys).tolist()] == keys and len(keys) > 60
    assert fresh.signatures == []


def test_frequencies_follow_the_priorities() -> None:
    with rig(11, rings=2, envs=2, slots=16, n_step=2) as r:
        for actor in r.actors:
            actor.write(15)
        r.ingest()
        keys = sorted(r.twin.priority)
        errors = (r.rng.random(len(keys)).astype(np.float32) + 0.05) ** 2
        r.replay.update_priorities(r.ids(keys), errors)
        priorities = errors.astype(np.float64) + EPS
        batch, counts = r.batch(32), dict.fromkeys(keys, 0)
        for _ in range(3000):
            r.replay.sample(batch, 1.0)
            for key in r.keys(batch.ids):
                counts[key] += 1
        expected = priorities / priorities.sum() * 32 * 3000
        assert stats.chisquare([counts[key] for key in keys], expected).pvalue > 0.01


@pytest.mark.parametrize("frames", [1, 3])
def test_no_sample_shows_what_was_granted_away(frames: int) -> None:
    with rig(5, rings=2, envs=2, n_step=2, frame_stack=frames) as r:
        churn(r, 60)


def test_a_grant_without_retiring_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control of the test above: it must detect poison if priorities are not set to zero first."""
    monkeypatch.setattr(rows, "retire", lambda *_: None)
    with rig(5, rings=2, envs=2, n_step=2) as r, pytest.raises(AssertionError):
        churn(r, 60)


def test_a_stack_guard_one_row_short_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control of the guard behind granted rows: without it a stack contains poison."""
    retire = rows.retire

    def short(*arguments: Any) -> None:
        *tables, ring, position = arguments
        retire(*tables, ring, position - 1)

    monkeypatch.setattr(rows, "retire", short)
    with rig(5, rings=2, envs=2, n_step=2, frame_stack=3) as r, pytest.raises(AssertionError):
        churn(r, 60)


def test_priorities_are_zero_before_the_actor_may_write(monkeypatch: pytest.MonkeyPatch) -> None:
    with rig(1, n_step=1) as r:
        r.actors[0].write(15)
        r.ingest()
        reader, seen = r.replay.rings[0], []
        monkeypatch.setattr(
            reader, "grant", lambda position: seen.append((position, r.replay.tree.leaves[:4].tolist()))
        )
        before = r.replay.tree.leaves[:4].copy()
        r.replay.grant(0, 16 + 3)
        assert seen == [(19, [0.0, 0.0, 0.0, before[3]])]


def test_updates_of_retired_rows_are_ignored_and_counted() -> None:
    with rig(2, slots=16) as r:
        r.actors[0].write(15)
        r.ingest()
        batch = r.batch(64)
        r.replay.sample(batch, 0.5)
        positions = batch.ids & (1 << ID_BITS) - 1
        r.grant(0, 16 + 6)
        gone = int((positions < 6).sum())
        assert 0 < gone < 64
        assert r.replay.update_priorities(batch.ids, np.full(64, 3, np.float32)) == gone
        assert count(r.replay, IGNORED) == gone
        # The slots are taken by new rows: the old ids still do not touch them.
        r.actors[0].write(6)
        r.ingest()
        leaves = r.replay.tree.leaves.copy()
        old = batch.ids[positions < 6]
        assert r.replay.update_priorities(old, np.full(len(old), 50, np.float32)) == len(old)
        assert np.array_equal(leaves, r.replay.tree.leaves)


def test_rows_that_were_never_sampleable_cannot_be_given_a_priority() -> None:
    with rig(3, envs=3, slots=32) as r:
        r.actors[0].write(25)
        r.ingest()
        reset = [(0, i, env) for i in range(20) for env in range(3) if r.twin.rows[0][i].flags[env] & RESET]
        nobody = [(0, 5, 3)]  # E is 3: the place beside the last environment
        ids, total = r.ids(reset + nobody), r.replay.tree.total
        assert len(reset) > 0
        assert r.replay.update_priorities(ids, np.ones(len(ids), np.float32)) == len(ids)
        assert r.replay.tree.total == total


def priority_of_new_rows(r: Rig) -> float:
    """Priority of some new rows, which all have the same."""
    before = r.replay.tree.leaves.copy()
    while r.actors[0].write(4):
        r.ingest()
        new = r.replay.tree.leaves[(before == 0) & (r.replay.tree.leaves > 0)]
        if len(new):
            assert len(set(new.tolist())) == 1
            return float(new[0])
    raise AssertionError("the ring is full")


def test_new_rows_get_the_largest_of_the_recent_priorities() -> None:
    with rig(2, slots=256, n_step=1, window=2) as r:
        assert priority_of_new_rows(r) == 1.0, "before any priority was given"
        (key, *_) = sorted(r.twin.priority)
        # Windows of two calls: (7, 0.25), (0.5, 0.125), (0.25, 0.25), (3, ...)
        for error, largest in (
            *((7.0, 7.0), (0.25, 7.0), (0.5, 7.0), (0.125, 7.0)),
            *((0.25, 0.5), (0.25, 0.5), (3.0, 3.0)),
        ):
            assert r.replay.update_priorities(r.ids([key]), np.array([error], np.float32)) == 0
            assert r.replay.numbers[0] == largest + EPS
            assert priority_of_new_rows(r) == largest + EPS


def test_the_first_priority_does_not_outlast_the_first_update() -> None:
    with rig(2, slots=64, n_step=1) as r:
        priority_of_new_rows(r)
        (key, *_) = sorted(r.twin.priority)
        r.replay.update_priorities(r.ids([key]), np.array([0.25], np.float32))
        assert priority_of_new_rows(r) == 0.25 + EPS


def test_a_call_that_sets_nothing_counts_in_no_window() -> None:
    with rig(2, slots=16, n_step=1, window=1) as r:
        priority_of_new_rows(r)
        keys = sorted(r.twin.priority)
        r.replay.update_priorities(r.ids(keys[:1]), np.array([0.25], np.float32))
        closed = [(0, keys[-1][1] + 1, 0)]  # not decided yet
        for _ in range(3):
            assert r.replay.update_priorities(r.ids(closed), np.array([5.0], np.float32)) == 1
        assert r.replay.numbers[0] == 0.25 + EPS


@pytest.mark.parametrize(
    "form", [sampling.importance_weights.py_func, njit(sampling.importance_weights.py_func)]
)
def test_importance_weights_by_hand(form: Any) -> None:
    out = np.empty(4, np.float32)

    def weights(beta: float, *priorities: float) -> np.ndarray[Any, Any]:
        form(np.array(priorities), 16.0, 4, beta, out)  # a total of 16 among N = 4, so N p is priority / 4
        return out

    np.testing.assert_allclose(weights(1.0, 1.0, 2.0, 4.0, 8.0), [4.0, 2.0, 1.0, 0.5], rtol=1e-7)
    np.testing.assert_allclose(weights(0.5, 1.0, 2.0, 4.0, 8.0), [2.0, 2.0**0.5, 1.0, 0.5**0.5], rtol=1e-7)
    assert weights(0.0, 1.0, 2.0, 4.0, 8.0).tolist() == [1.0] * 4
    extremes = weights(1.0, 1e-300, 1e-30, 1.0, 1e30)
    assert (extremes > 0).all() and (extremes < np.inf).all()


@pytest.mark.parametrize("form", [power.power.py_func, njit(power.power.py_func)])
@pytest.mark.parametrize("exponent", [1.0, 0.6, 0.5, 0.0, -0.4, -1.0])
def test_powers_are_float32_exact(exponent: float, form: Any) -> None:
    values = np.exp(np.random.default_rng(0).uniform(-60, 60, 500)).astype(np.float32)
    out = np.empty_like(values)
    form(values, 0.0, exponent, out)
    np.testing.assert_allclose(out, values.astype(np.float64) ** exponent, rtol=1e-7)
    form(values, 0.25, exponent, out)
    np.testing.assert_allclose(out, (values + np.float32(0.25)).astype(np.float64) ** exponent, rtol=1e-7)


def test_weights_of_a_batch_by_hand() -> None:
    with rig(0, slots=16, n_step=1) as r:
        r.actors[0].write(15)
        r.ingest()
        keys = sorted(r.twin.priority)
        errors = np.arange(1, len(keys) + 1, dtype=np.float32)
        r.replay.update_priorities(r.ids(keys), errors)
        priority = dict(zip(keys, errors.astype(np.float64) + EPS, strict=True))
        batch = r.batch(64)
        for beta in (0.0, 0.4, 1.0):
            r.replay.sample(batch, beta)
            sampled = np.array([priority[key] for key in r.keys(batch.ids)])
            weights = (len(keys) * sampled / sum(priority.values())) ** -beta
            np.testing.assert_allclose(batch.weight, weights / weights.max(), rtol=1e-5)
            drawn = sum(priority.values()), sampled.min() ** -beta
            np.testing.assert_allclose(r.replay.drawn(batch, beta), drawn, rtol=1e-5)


def test_alpha_shapes_priorities() -> None:
    with rig(0, slots=16, alpha=0.5) as r:
        r.actors[0].write(15)
        r.ingest()
        keys = sorted(r.twin.priority)
        r.replay.update_priorities(r.ids(keys[:2]), np.array([4.0, 0.0], np.float32))
        values = r.replay.tree.leaves[[key[1] for key in keys[:2]]]
        np.testing.assert_allclose(values, [(4 + EPS) ** 0.5, EPS**0.5], rtol=1e-6)


def test_uniform_sampling_ignores_priorities() -> None:
    with rig(4, envs=2, slots=16, uniform=True) as r:
        r.actors[0].write(15)
        r.ingest()
        batch = r.batch(32)
        counts = dict.fromkeys(r.twin.priority, 0)
        for _ in range(1500):
            r.replay.sample(batch, 0.7)
            assert (batch.weight == 1.0).all() and r.replay.drawn(batch, 0.7) == (r.replay.sampleable, 1.0)
            errors = (batch.ids % 7).astype(np.float32)
            assert r.replay.update_priorities(batch.ids, errors) == 0
            for key in r.keys(batch.ids):
                counts[key] += 1
        r.check_batch(batch)
        assert stats.chisquare(list(counts.values())).pvalue > 0.01


def test_rows_become_sampleable_when_n_more_are_published() -> None:
    with rig(9, slots=64, n_step=3) as r:
        sizes = []
        for _ in range(6):
            r.actors[0].write(1)
            r.ingest()
            sizes.append({key[1] for key in r.twin.priority})
        assert all(position <= i - 3 for i, s in enumerate(sizes) for position in s)
        assert r.replay.sampleable == len(r.twin.priority) > 0


def test_stale_rows_are_given_up_once_and_for_all() -> None:
    with rig(6, envs=2, slots=32) as r:
        actor = r.actors[0]
        for version in range(10):
            actor.version, actor.policy_updates = version, 100 * version
            actor.write(2)
        r.ingest()
        discarded = r.replay.retire_older_than(500)
        assert discarded == r.twin.retire_older_than(500) > 0
        assert r.replay.retire_older_than(300) == 0
        batch = r.batch(64)
        r.replay.sample(batch, 0.5)
        assert batch.version.min() == 5 and batch.policy_updates.min() == 500, "by updates, not by versions"
        # Rows that arrive too old are never sampleable.
        actor.policy_updates = 900
        r.replay.retire_older_than(901)
        assert r.replay.sampleable == 0
        actor.write(4)
        r.replay.ingest()
        assert r.replay.sampleable == 0


def test_wrong_calls_are_named() -> None:
    with rig(0, slots=16) as r:
        batch = r.batch(4)
        with pytest.raises(ValueError, match="replay must hold a sampleable row, got none"):
            r.replay.sample(batch, 0.5)
        r.actors[0].write(10)
        with pytest.raises(ValueError, match="position must be at most ingested \\+ num_slots = 16, got 20"):
            r.replay.grant(0, 20)
        r.ingest()
        with pytest.raises(ValueError, match="position must not move back from 16, got 4"):
            r.replay.grant(0, 4)
        with pytest.raises(ValueError, match=r"beta must be between 0 and 1, got 1\.5"):
            r.replay.sample(batch, 1.5)
        r.replay.sample(batch, 0.5)
        leaves = r.replay.tree.leaves.copy()
        for bad in (np.nan, np.inf, -1.0):
            with pytest.raises(ValueError, match="td_abs must be finite and at least 0"):
                r.replay.update_priorities(batch.ids, np.array([1, 1, 1, bad], np.float32))
        with pytest.raises(ValueError, match="ids from a batch"):
            r.replay.update_priorities(batch.ids + (1 << ID_BITS), np.ones(4, np.float32))
        with pytest.raises(ValueError, match=r"ids and td_abs must be \[B\] alike"):
            r.replay.update_priorities(batch.ids, np.ones(3, np.float32))
        assert np.array_equal(leaves, r.replay.tree.leaves)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"n_step": 0}, "n_step must be between 1 and 255, got 0"),
        ({"gamma": 1.5}, "gamma must be between 0 and 1, got 1.5"),
        ({"frame_stack": 0}, "frame_stack must be at least 1, got 0"),
        ({"n_step": 16}, r"num_slots must be at least 17 for .* n_step 16 and frame_stack 1, got 16"),
        ({"alpha": -0.1}, "alpha must be between 0 and 1, or None, got -0.1"),
        ({"priority_window_updates": 0}, "priority_window_updates must be at least 1, got 0"),
        ({"priority_eps": 0.0}, "priority_eps must be between 1e-30 and 1e30, got 0.0"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], text: str) -> None:
    with rig(0, slots=16) as r, pytest.raises(ValueError, match=text):
        PrioritizedReplay(
            r.replay.rings, **{"n_step": 1, "gamma": 0.9, "rng": np.random.default_rng(0), **options}
        )


def test_rings_must_be_alike() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="rings must hold at least one ring, got none"):
        PrioritizedReplay([], n_step=1, gamma=0.9, rng=rng)
    with (
        rig(0, slots=16) as a,
        rig(0, slots=32) as b,
        pytest.raises(ValueError, match="rings must have one layout, got another in ring 1"),
    ):
        PrioritizedReplay([a.replay.rings[0], b.replay.rings[0]], n_step=1, gamma=0.9, rng=rng)


@pytest.mark.parametrize("published", [1000, 3, -1])
def test_a_ring_that_cannot_be_trusted_is_left_alone_and_the_others_are_not(published: int) -> None:
    with rig(0, rings=2, slots=16) as r:
        for actor in r.actors:
            actor.write(5)
        r.ingest()
        liar, sound = r.replay.rings
        of_sound = r.replay.sampleable // 2
        r.actors[1].write(4)
        liar.header[PUBLISHED] = published
        assert r.replay.ingest() > 0, "of the other ring"
        assert f"published is {published}" in liar.fault
        assert not sound.fault
        before = r.replay.sampleable
        given_up = r.replay.give_up(0)
        assert given_up == before - r.replay.sampleable > 0
        batch = r.batch(64)
        r.replay.sample(batch, 0.4)
        assert {ring for ring, _, _ in r.keys(batch.ids)} == {1}
        assert r.replay.ingest() == 0 and r.replay.sampleable >= of_sound
        with pytest.raises(RingCorrupt):
            r.replay.grant(0, 17)

        liar.abandoned = True
        r.replay.begin_again(0, 16)
        writer = RingWriter(liar.segment, liar.layout)
        assert (writer.published, writer.granted) == (5, 16)
        r.actors[0].writer = writer
        r.actors[0].restart()
        r.actors[0].write(6)
        before = r.replay.sampleable
        assert r.replay.ingest() > 0
        assert r.replay.sampleable > before
        r.replay.sample(batch, 0.4)
        assert min(position for ring, position, _ in r.keys(batch.ids) if ring == 0) >= 5


def test_a_replay_that_becomes_uniform_forgets_its_priorities() -> None:
    with rig(2, rings=2, envs=2, slots=32) as r:
        for actor in r.actors:
            actor.write(20)
        r.ingest()
        batch = r.batch(16)
        r.replay.sample(batch, 0.5)
        r.replay.update_priorities(batch.ids, np.arange(1, 17, dtype=np.float32))
        state, kept = saved(r.replay), [(0, own.copy()) for own in priorities_of(r.replay)]
        shape = r.replay.shape
        other = PrioritizedReplay(
            r.replay.rings,
            n_step=shape.n_step,
            gamma=shape.gamma,
            alpha=None,
            rng=np.random.default_rng(0),
        )
        restore_replay(other, state, kept)
        assert np.unique(priorities_of(r.replay)).size > 10
        assert np.array_equal(priorities_of(other), np.stack([own for _, own in kept]) > 0)
        other.tree.check()
        assert other.sampleable == r.replay.sampleable
        for ring, actor in enumerate(r.actors):  # the rows that come are as probable as those that were there
            other.grant(ring, 52)
            actor.write(10)
        other.ingest()
        assert np.unique(priorities_of(other)).tolist() == [0, 1]
