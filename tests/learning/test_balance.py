"""The balance against its formulas: hand-worked bounds, a random simulation, and the settings that it must refuse."""

import numpy as np
import pytest

from asyncrl.learning.balance import Balance
from asyncrl.saved_state import restore, saved

ARGUMENTS = {
    "samples_per_insert": 4.0,
    "batch_size": 8,
    "learning_starts": 10,
    "num_actors": 2,
    "envs_per_actor": 2,
    "num_slots": 256,
    "error_samples": 40.0,  # what liveness needs for M = 4 rows: 2 e = 8 + 4 * 2 * (2 * 4 + 1)
}


def make(**changes):
    return Balance(**{**ARGUMENTS, **changes})


def fresh(rings=2):
    return np.zeros(rings, np.int64), np.zeros(rings, np.int64)


def test_rows_ahead_are_what_liveness_allows_for_the_band():
    assert make().rows_ahead == 4
    assert make(error_samples=39.9).rows_ahead == 3


def test_default_band_is_eight_batches_or_what_liveness_needs_for_four_rows():
    few = make(error_samples=None)
    assert (few.error_samples, few.rows_ahead) == (64, 7)  # 8 * 8; (2 * 64 - 8) / 8 = 15 = 2 M + 1
    many = make(error_samples=None, samples_per_insert=32.0)
    assert (many.error_samples, many.rows_ahead) == (292, 4)  # 2 e = 8 + 64 * 9


def test_a_starved_learner_sleeps_for_half_of_the_half_width():
    assert make().updates_worth_waking == 2  # 40 / (2 * 8)
    assert make(error_samples=16.0).updates_worth_waking == 1
    assert make(samples_per_insert=None, error_samples=None).updates_worth_waking == 1


def test_replay_receives_what_is_inserted():
    balance = make()
    balance.inserted(12)
    assert balance.discipline == "replay" and balance.statistics()["received_steps"] == 12


def test_learner_waits_for_learning_starts_then_for_the_cursor():
    balance = make()
    balance.inserted(9)
    assert balance.updates_allowed() == 0
    balance.inserted(1)  # cursor 0: 5 batches of 8 fit into an error of 40
    assert balance.updates_allowed() == 5
    balance.sampled(5 * 8)
    assert balance.updates_allowed() == 0
    balance.inserted(1)  # cursor -36: still half a batch short
    assert balance.updates_allowed() == 0
    balance.inserted(1)
    assert balance.updates_allowed() == 1


def test_steps_wanted_are_exactly_enough():
    balance = make()
    assert balance.steps_wanted(1) == 10
    balance.inserted(10)
    balance.sampled(5 * 8)
    wanted = balance.steps_wanted(1)
    assert wanted == 2
    balance.inserted(wanted - 1)
    assert balance.updates_allowed() == 0
    balance.inserted(1)
    assert balance.updates_allowed() == 1


def test_first_grant_gives_rows_to_step_and_one_to_write_ahead():
    published, granted = fresh()
    assert make().grant(published, granted)
    assert granted.tolist() == [5, 5]  # 4 rows to step, and slot 4 for the observation after them
    assert not make().grant(published, granted)


def test_actors_are_stopped_when_the_learner_does_not_consume():
    balance = make()
    published, granted = fresh()
    for _ in range(100):
        balance.grant(published, granted)
        before = published.sum()
        published[:] = np.maximum(granted - 1, published)
        balance.inserted(int(published.sum() - before) * 2)
    # sigma (I - 10) <= 40 allows 20 steps; a whole row of 2 is not cut in half
    assert published.sum() * 2 == 20


def test_free_pace_is_bounded_by_room_only():
    balance = make(samples_per_insert=None)
    published, granted = fresh()
    balance.grant(published, granted)
    assert granted.tolist() == [17, 17]  # a sixteenth of 256 slots ahead
    assert balance.updates_allowed() == 0
    balance.inserted(10)
    assert balance.updates_allowed() > 1 << 60
    assert balance.statistics()["async/samples_per_insert_target"] is None


def test_nothing_is_granted_beyond_max_env_steps():
    balance = make(max_env_steps=30, samples_per_insert=1.0)
    published, granted = fresh()
    for _ in range(200):
        balance.sampled(8 * min(balance.updates_allowed(), 1))
        balance.grant(published, granted)
        before = published.sum()
        published[:] = np.maximum(granted - 1, published)
        balance.inserted(int(published.sum() - before) * 2)
    assert published.sum() * 2 == 30
    assert balance.exhausted()


def test_not_exhausted_while_the_last_steps_are_not_learned_from():
    balance = make(max_env_steps=30)
    balance.inserted(30)
    assert not balance.exhausted()  # 4 * 20 samples are owed
    balance.sampled(73)
    assert balance.exhausted()  # 7 are left, less than a batch


@pytest.mark.parametrize("seed", range(8))
def test_random_run_never_deadlocks_and_holds_the_ratio(seed):
    """Actors of random speed, one of which may hang from the start, and a learner that updates at random."""
    rng = np.random.default_rng(seed)
    actors, envs = int(rng.integers(1, 5)), int(rng.integers(1, 5))
    sigma, batch = float(rng.choice([0.25, 1.0, 3.5, 32.0])), int(rng.choice([4, 64]))
    balance = Balance(
        samples_per_insert=sigma,
        batch_size=batch,
        learning_starts=int(rng.integers(1, 200)),
        num_actors=actors,
        envs_per_actor=envs,
        num_slots=1024,
    )
    speed = rng.random(actors) + 0.05
    if actors > 1:
        speed[0] = 0.0  # hung: whatever it was granted stays there
    published, granted = fresh(actors)
    error = balance.error_samples
    still = 0
    for _ in range(20_000):
        moved = balance.grant(published, granted)
        steps = np.where(rng.random(actors) < speed, np.minimum(granted - published - 1, 3), 0)
        steps = np.maximum(steps, 0)
        published += steps
        balance.inserted(int(steps.sum()) * envs)
        updates = min(balance.updates_allowed(), int(rng.integers(0, 4)))
        balance.sampled(updates * batch)
        possible = balance.updates_allowed() > 0 or bool((granted - published - 1)[speed > 0].max() > 0)
        still = 0 if moved or updates or steps.any() or possible else still + 1
        assert still == 0, "neither side may go on"
        started = balance._inserted >= balance._start
        if started:
            assert -error <= balance.cursor <= error
    statistics = balance.statistics()
    slack = error / (statistics["received_steps"] - balance._start)
    assert abs(statistics["async/samples_per_insert"] - sigma) <= slack + 1e-9
    assert (
        statistics["consumed_samples"] > 10 * error
    )  # the run was long enough for the band to be a small part


def test_a_free_pace_ends_with_the_last_step():
    balance = make(samples_per_insert=None, error_samples=None, max_env_steps=1_000)
    balance.inserted(999)
    assert balance.updates_allowed() > 10**12 and not balance.exhausted()
    balance.inserted(1)
    assert balance.updates_allowed() == 0 and balance.exhausted()


def test_a_slow_ring_does_not_hold_the_others_back():
    balance = make(num_actors=3)
    published, granted = fresh(3)
    for _ in range(1000):
        balance.grant(published, granted)
        before = published.sum()
        published[1:] = np.maximum(granted[1:] - 1, published[1:])  # ring 0 never moves
        balance.inserted(int(published.sum() - before) * 2)
        while balance.updates_allowed():
            balance.sampled(8)
    assert published[0] == 0
    assert granted[0] <= 1 + balance.rows_ahead
    assert published[1] > 500
    assert published[2] > 500


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"samples_per_insert": 0.0}, "samples_per_insert must be positive and finite, or None, got 0.0"),
        ({"samples_per_insert": float("inf")}, "samples_per_insert must be positive and finite"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"num_actors": 0}, "num_actors must be at least 1, got 0"),
        ({"envs_per_actor": 0}, "envs_per_actor must be at least 1, got 0"),
        ({"learning_starts": 0}, "learning_starts must be at least 1, got 0"),
        (
            {"learning_starts": 513},
            "learning_starts must be at most half of the replay capacity of 1024 steps",
        ),
        ({"error_samples": 15.0}, "samples_per_insert_error must be at least 16 samples, got 15: .* wait"),
    ],
)
def test_bad_settings_are_refused_with_the_reason(changes, text):
    with pytest.raises(ValueError, match=text):
        make(**changes)


def test_least_error_that_is_accepted_does_not_deadlock():
    # (4) with M = 1: 2 e = 8 + 4 * 2 * (2 + 1) = 32
    balance = make(error_samples=16.0)
    assert balance.rows_ahead == 1
    published, granted = fresh()
    for _ in range(2000):
        balance.grant(published, granted)
        before = published.sum()
        published[1] = max(granted[1] - 1, published[1])  # the other ring is hung
        balance.inserted(int(published.sum() - before) * 2)
        if balance.updates_allowed():
            balance.sampled(8)
    assert balance.statistics()["received_steps"] > 1000


def test_a_step_of_several_agents_inserts_a_sample_of_each():
    """The pace is that of as many times the samples per insert; the statistics are per agent."""
    several, one = make(num_agents=4, samples_per_insert=1.0), make(samples_per_insert=4.0)
    for _ in range(50):
        for balance in (several, one):
            balance.inserted(7)
            balance.sampled(8 * balance.updates_allowed())
        assert several.updates_allowed() == one.updates_allowed() and several.cursor == one.cursor
        assert several.steps_wanted(3) == one.steps_wanted(3)
    achieved, target = "async/samples_per_insert", "async/samples_per_insert_target"
    assert several.statistics()[target] == 1.0
    assert several.statistics()[achieved] == one.statistics()[achieved] / 4


@pytest.mark.parametrize("sigma", [ARGUMENTS["samples_per_insert"], 0.5, 32.0, None])
def test_a_resumed_run_is_within_its_band_with_another_ratio(sigma):
    before = make()
    before.inserted(1_000)
    before.sampled(1_000 * int(ARGUMENTS["samples_per_insert"]))
    resumed = make(samples_per_insert=sigma, error_samples=None if sigma is None else 400.0)
    restore(resumed, saved(before))
    assert abs(resumed.cursor) <= resumed.error_samples
    if sigma == ARGUMENTS["samples_per_insert"]:
        assert resumed.cursor == before.cursor


def test_a_run_that_is_resumed_before_its_first_update_still_waits_for_learning_starts():
    before, resumed = make(), make()
    before.inserted(1)
    restore(resumed, saved(before))
    assert resumed.cursor == before.cursor and resumed.updates_allowed() == 0
