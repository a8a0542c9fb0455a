"""Lockstep training on replay: equal numbers in any order of its processes. The test steps the actors."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from replay_world import Setting, World, world

from asyncrl.errors import TrainingDiverged
from asyncrl.learning import lockstep_replay
from asyncrl.learning.lockstep_replay import MOST_ROWS, LockstepBalance, quantum_rows
from asyncrl.saved_state import restore, saved


def balance(**changes: Any) -> LockstepBalance:
    fields: dict[str, Any] = {
        "samples_per_insert": 2.0,
        "batch_size": 4,
        "learning_starts": 10,
        "num_actors": 2,
        "envs_per_actor": 3,
        "rows": 4,
    }
    return LockstepBalance(**{**fields, **changes})


@pytest.mark.parametrize(("sigma", "batch"), [(2.0, 4), (0.5, 4), (16.0, 4), (2.0, 64)])
def test_a_resumed_run_makes_the_updates_of_its_new_steps(sigma: float, batch: int) -> None:
    before = balance()
    before.inserted(1_000)
    assert before.schedule() == 495
    resumed = balance(samples_per_insert=sigma, batch_size=batch)
    restore(resumed, saved(before))
    resumed.inserted(400)
    most = 400 * sigma / batch
    assert most - 10 * sigma / batch - 1 <= resumed.schedule() <= most, (
        "less those of 10 steps, learning_starts"
    )


# ---- numbers by hand -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("samples_per_insert", "batch_size", "streams", "num_slots", "lag", "rows"),
    [
        (32.0, 64, 8, 1024, 4, 1),  # a row pays for 4 updates
        (31.0, 64, 8, 1024, 4, 2),  # a row pays for less than 4
        (8.0, 64, 8, 1024, 4, 4),
        (1.0, 256, 2, 65536, 4, MOST_ROWS),  # 512 rows would pay for 4
        (0.25, 32, 16, 1 << 20, 1, 8),
        (8.0, 64, 8, 32, 4, 2),  # a sixteenth of the ring
        (0.01, 64, 1, 8, 4, 1),
    ],
)
def test_a_quantum_is_as_few_rows_as_pay_for_the_lag(
    samples_per_insert: float, batch_size: int, streams: int, num_slots: int, lag: int, rows: int
) -> None:
    assert rows == quantum_rows(
        samples_per_insert=samples_per_insert,
        batch_size=batch_size,
        streams=streams,
        num_slots=num_slots,
        lag=lag,
    )


def test_every_quantum_pays_for_whole_updates_and_fractions_are_kept() -> None:
    b = balance(samples_per_insert=0.5, batch_size=4, learning_starts=10)
    due = []
    for steps in (6, 6, 6, 6, 6, 6, 50):  # an update for every eight steps beyond ten
        b.inserted(steps)
        due.append(b.schedule())
    # beyond ten: 0, 2, 8, 14, 20, 26, 76 -> paid 0, 0, 1, 1, 2, 3, 9
    assert due == [0, 0, 1, 0, 1, 1, 6]
    assert b.schedule() == 0, "nothing was inserted since"


def test_fractions_that_binary_numbers_lack_do_not_drift() -> None:
    b = balance(samples_per_insert=0.1, batch_size=1, learning_starts=1)
    total = 0
    for _ in range(10_000):
        b.inserted(3)
        total += b.schedule()
    assert total == math.floor(0.1 * 29_999)


def test_the_last_quantum_is_whole() -> None:
    b = balance(max_env_steps=50)  # 6 steps a row, 24 a quantum
    rows = []
    for steps in (24, 20, 5, 1):
        rows.append(b.next_rows())
        b.inserted(steps)
    assert rows == [4, 4, 4, 4] and b.next_rows() == 0
    assert balance().next_rows() == 4


def test_statistics_say_what_was_asked_and_reached() -> None:
    b = balance()
    b.inserted(30)
    b.sampled(4 * b.schedule())
    assert (b.discipline, b.rows, b.cursor) == ("lockstep", 4, 0.0)
    assert b.statistics() == {
        "async/samples_per_insert": 2.0,
        "async/samples_per_insert_target": 2.0,
        "received_steps": 30,
        "consumed_samples": 40,
    }


# ---- the order of things ---------------------------------------------------------------------------------------------


@pytest.fixture
def sliced(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Interrupt the learner's thread at random: a tick ends after any number of updates."""
    rng = np.random.default_rng(0)

    class Time:
        @staticmethod
        def perf_counter() -> float:
            return float(rng.random())

    monkeypatch.setattr(lockstep_replay, "TICK_SECONDS", 0.3)
    monkeypatch.setattr(lockstep_replay, "time", Time)
    yield


@pytest.fixture
def endless_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lockstep_replay, "TICK_SECONDS", 1e9)


def numbers(w: World) -> dict[str, Any]:
    """All numbers that must not depend on timing."""
    while w.evaluate():
        pass
    return {
        "batches": w.core.batches,
        "steps": w.learning.inserted_steps,
        "version": w.mailbox.version,
        "received": w.received,
        "evaluated": w.taken,
        "lag": w.learning.policy_lag.overall(),
        "staleness": w.meter.in_updates.overall(),
        "discarded": w.learning.discarded_steps,
    }


def in_order(w: World) -> dict[str, Any]:
    """Each actor as far as it may go, then the learner as far as it may go, and so on."""
    while True:
        w.run_all()
        worked = False
        while w.tick():
            worked = True
        worked |= w.evaluate()
        if not worked and w.learning.finished():
            return numbers(w)


def at_random(setting: dict[str, Any], seed: int) -> dict[str, Any]:
    with world(**setting) as w:
        w.finish(np.random.default_rng(seed))
        return numbers(w)


SETTINGS: dict[str, dict[str, Any]] = {
    "prioritized": {},
    "uniform": {"prioritized": False},
    "one actor": {"actors": 1},
    "three actors": {"actors": 3, "envs": 1},
    "several updates a row": {"samples_per_insert": 8.0},
    "less than one update a quantum": {"samples_per_insert": 0.25, "rows": 2},
    "quanta beyond the lag": {"samples_per_insert": 4.0, "rows": 8, "lag": 2},
    "n_step beyond the quantum": {"n_step": 9, "rows": 2, "learning_starts": 1},
    "replay that wraps around": {"slots": 16, "total_steps": 400},
    "a bound on staleness": {"samples_per_insert": 8.0, "rows": 4, "max_staleness": 9},
    "evaluated": {"eval_steps": 50, "eval_waiting": 1},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_any_order_of_actors_and_learner_gives_the_same_batches(name: str, sliced: None) -> None:
    setting = {"total_steps": 200, **SETTINGS[name]}
    with world(**setting) as w:
        expected = in_order(w)
    assert len(expected["batches"]) > 10
    for seed in range(6):
        found = at_random(setting, seed)
        for what, value in expected.items():
            assert found[what] == value, (name, seed, what)


def test_the_test_sees_an_order_that_matters() -> None:
    """Negative control: in the relaxed discipline the same orders give different batches."""
    setting = {"discipline": "relaxed", "total_steps": 200}
    assert at_random(setting, 0)["batches"] != at_random(setting, 1)["batches"]


def due_by_hand(s: Setting, inserted: list[int]) -> list[int]:
    """n_k of every quantum, from the steps inserted at its end."""
    assert s.samples_per_insert is not None
    paid = [math.floor(s.samples_per_insert * max(0, i - s.learning_starts) / s.batch) for i in inserted]
    return [b - a for a, b in zip([0, *paid], paid, strict=False)]


@pytest.mark.parametrize("lag", [1, 2, 4, 9])
@pytest.mark.parametrize("rows", [None, 1, 5])
def test_policy_lag_is_the_lag_or_all_that_the_quantum_pays_for(
    lag: int, rows: int | None, sliced: None
) -> None:
    with world(lag=lag, rows=rows, samples_per_insert=3.0, total_steps=300) as w:
        w.finish(np.random.default_rng(lag))
        due = due_by_hand(w.setting, [r.inserted_steps for r in w.received])
        assert w.learning.updates == sum(due), "every update that is due is made"
        assert [r.updates for r in w.received] == [sum(due[:k]) for k in range(len(due))]
        for k, received in enumerate(w.received):
            expected = min(lag, due[k - 1]) if k else 0
            assert set(received.lags) == {expected}, f"quantum {k}"
        lags = np.repeat([lag for r in w.received for lag in r.lags], w.setting.envs)
        overall = w.learning.policy_lag.overall()
        assert (overall.mean, overall.max) == (pytest.approx(lags.mean()), lags.max())


def test_every_batch_is_drawn_from_what_was_received_before(sliced: None) -> None:
    with world(samples_per_insert=3.0, total_steps=300) as w:
        w.finish(np.random.default_rng(0))
        assert w.core.acted
        for update, (versions, made) in enumerate(w.core.acted):
            assert max(made) <= update and max(versions) <= w.mailbox.version


@pytest.mark.parametrize("total", [1, 7, 50, 201, 203])
@pytest.mark.parametrize(("actors", "envs"), [(1, 1), (2, 3), (3, 2)])
def test_steps_end_within_a_quantum_of_the_limit(total: int, actors: int, envs: int) -> None:
    with world(actors=actors, envs=envs, total_steps=total, samples_per_insert=1.0) as w:
        w.finish(np.random.default_rng(total))
        quantum = actors * envs * w.learning.pace.rows
        assert total <= w.learning.inserted_steps < total + quantum
        assert sum(due_by_hand(w.setting, [w.learning.inserted_steps])) == w.learning.updates


def test_actors_make_the_next_quantum_while_the_learner_learns(endless_beats: None) -> None:
    with world(samples_per_insert=8.0, rows=4, lag=3) as w:
        assert w.run(0) == 4 and w.run(1) == 4 and w.run(0) == 0, "one quantum, no more"
        assert w.tick() and w.learning.updates == 0 and w.run(0) == 0, "16 updates are due, 3 may be left"
        lockstep_replay.TICK_SECONDS = 0.0
        for _ in range(w.learning._due - 3):
            assert w.run(0) == w.run(1) == 0
            assert w.tick()
        version = w.mailbox.version
        assert w.tick() and w.mailbox.version == version + 1
        assert w.learning._due == 2 and w.run(0) == w.run(1) == 4
        assert w.tick() and w.tick() and w.learning._due == 0, "two updates while the rows lay there"


def test_nothing_happens_before_every_actor_has_made_its_quantum() -> None:
    with world(actors=3, rows=2) as w:
        assert not w.tick()
        w.run(0)
        w.run(2)
        assert not w.tick() and w.learning.inserted_steps == 0
        w.run(1, 1)
        assert not w.tick()
        w.run(1)
        assert w.tick() and w.learning.inserted_steps > 0


def test_waiting_actors_are_woken_when_the_next_quantum_is_granted() -> None:
    with world(samples_per_insert=0.5) as w:
        for _ in range(3):
            w.run_all()
            assert all(a.writer.must_sleep(a.writer.published + 2) for a in w.actors)
            w.woken.clear()
            while w.tick():
                pass
            assert sorted(w.woken) == [0, 1]


def test_wake_positions_lie_at_the_end_of_the_quantum() -> None:
    with world(actors=3, rows=4) as w:
        assert w.learning.wake_positions() == [4, 4, 4]
        w.run(1)
        assert w.learning.wake_positions() == [4, 5, 4], "who has reached it can ring no more"
        w.run(0)
        w.run(2)
        assert w.learning.wake_positions() == [4, 4, 4], (
            "all arrived since the learner looked: no need to sleep"
        )


def test_all_rows_too_stale_gives_up_what_they_pay_for(endless_beats: None) -> None:
    """A quantum allows 16 updates, but after 4 every row is more than 3 updates old."""
    setting = {"samples_per_insert": 16.0, "rows": 1, "lag": 2, "max_staleness": 3, "total_steps": 160}
    with world(**setting) as w:
        w.finish(np.random.default_rng(0))
        due = sum(due_by_hand(w.setting, [w.learning.inserted_steps]))
        assert max(max(s) for s in w.core.staleness) == 3
        assert 20 < w.learning.updates < due / 2
        assert w.learning.discarded_steps > 100
        assert all(set(r.lags) <= {0, 1, 2} for r in w.received)


def test_what_is_given_up_is_not_owed(endless_beats: None) -> None:
    setting = {"samples_per_insert": 16.0, "rows": 1, "lag": 2, "max_staleness": 3, "total_steps": 60}
    with world(**setting) as w:
        given_up = 0
        while not w.learning.finished():
            w.run_all()
            w.tick()
            if w.learning.updates and not w.learning._replay.sampleable:
                given_up += 1
                assert w.learning._due == 0, "the next quantum pays for itself"
        assert given_up > 3


def test_weights_are_published_before_rows_are_granted() -> None:
    """An actor that continues as soon as it is woken acts with the weights of its quantum."""
    with world(samples_per_insert=3.0, total_steps=200) as w:
        expected = in_order(w)
    with world(samples_per_insert=3.0, total_steps=200) as w:
        w.learning._wake = lambda index: w.run(index)
        w.run_all()
        working = True
        while working or not w.learning.finished():
            for actor in w.actors:
                actor.writer.must_sleep(actor.writer.published + 2)
            working = w.tick()
        assert numbers(w)["batches"] == expected["batches"]


def test_updates_wait_for_the_first_row_with_n_successors(sliced: None) -> None:
    with world(n_step=20, rows=2, learning_starts=1, samples_per_insert=8.0, batch=32, total_steps=301) as w:
        w.finish(np.random.default_rng(0))
        first = next(i for i, r in enumerate(w.received) if r.updates > 0)
        assert w.received[first - 1].inserted_steps > 20 * 2
        assert w.learning.updates == 8 * (w.learning.inserted_steps - 1) // 32


@pytest.mark.parametrize("seed", range(3))
def test_weights_are_copied_for_evaluation_at_the_end_of_a_quantum(seed: int, sliced: None) -> None:
    with world(eval_steps=60, eval_waiting=1, total_steps=300) as w:
        w.finish(np.random.default_rng(seed))
        while w.evaluate():
            pass
        assert [env_steps // 60 for *_, env_steps in w.taken] == [1, 2, 3, 4, 5]
        ends = [r.inserted_steps for r in w.received]
        due = due_by_hand(w.setting, ends)
        for weight, _, updates, env_steps in w.taken:
            assert weight == updates == sum(due[: ends.index(env_steps) + 1]), "after the updates it pays for"


def test_learner_waits_for_the_evaluator_and_the_run_does_not_end_before(endless_beats: None) -> None:
    with world(eval_steps=100, eval_waiting=1, total_steps=200) as w:
        for _ in range(100):
            w.run_all()
            w.tick()
        assert w.learning.inserted_steps >= 200 and w.snapshots.full and not w.learning.finished()
        assert not w.tick() and not w.learning.finished(), "the copy at 200 steps is still to be made"
        reached = [reader.published() for reader in w.readers]
        assert all(p > r for p, r in zip(w.learning.wake_positions(), reached, strict=True)), "no hot loop"
        assert w.evaluate() and not w.tick() and w.learning.finished()
        assert w.evaluate() and [env_steps // 100 for *_, env_steps in w.taken] == [1, 2]


def test_weights_that_are_not_finite_are_never_acted_with() -> None:
    with world() as w:
        w.core.weights_are = np.float32(np.inf)
        with pytest.raises(TrainingDiverged, match="the weights became NaN or infinite"):
            w.finish(np.random.default_rng(0))
        assert w.mailbox.version == 1


@pytest.mark.parametrize("seed", range(60))
def test_nobody_waits_for_ever_and_orders_agree_under_random_settings(seed: int, sliced: None) -> None:
    rng = np.random.default_rng(1000 + seed)
    actors, envs, slots = int(rng.integers(1, 4)), int(rng.integers(1, 4)), int(rng.choice([16, 32, 64]))
    setting: dict[str, Any] = {
        "actors": actors,
        "envs": envs,
        "slots": slots,
        "n_step": int(rng.integers(1, slots)) if rng.random() < 0.3 else int(rng.integers(1, 6)),
        "batch": int(rng.integers(1, 9)),
        "samples_per_insert": float(rng.choice([0.1, 0.5, 1.0, 3.0, 8.0])),
        "learning_starts": int(rng.integers(1, actors * envs * slots)),
        "total_steps": int(rng.integers(1, 400)),
        "max_staleness": [None, None, 0, 2, 30][rng.integers(5)],
        "prioritized": bool(rng.integers(2)),
        "lag": int(rng.integers(1, 7)),
        "eval_steps": [None, 30][rng.integers(2)],
        "eval_waiting": 1,
    }
    first, second = at_random(setting, 0), at_random(setting, 1)
    assert first == second
    quantum = actors * envs * max(1, slots // 16)
    assert setting["total_steps"] <= first["steps"] < setting["total_steps"] + quantum
