"""Credits for segments against their formulas: grants by hand, a slow reference in random runs, liveness, the limit."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from asyncrl.learning.segment_balance import SegmentBalance, slots_for

T, E = 8, 4

ARGUMENTS = {
    "discipline": "relaxed",
    "num_rings": 2,
    "envs_per_actor": E,
    "length": T,
    "num_slots": 64,
    "segments_per_batch": 2,
    "queue_batches": 1,
    "samples_per_insert": 3.0,
    "max_env_steps": None,
}


def make(**changes):
    return SegmentBalance(**{**ARGUMENTS, **changes})


def rows(*segments):
    return np.array(segments, np.int64) * T


def granted_segments(balance, released, complete, granted, **options):
    """Segments granted by `grant` for these numbers of segments."""
    positions = np.array([n * T + 1 if n else 0 for n in granted], np.int64)
    before = positions.copy()
    moved = balance.grant(rows(*released), rows(*complete), positions, **options)
    assert moved == (positions != before).any()
    assert all(p == 0 or p % T == 1 for p in positions)
    return [max(0, p - 1) // T for p in positions.tolist()]


# ---- lockstep and synchronous by hand ------------------------------------------------------------


@pytest.mark.parametrize("discipline", ["lockstep", "synchronous"])
def test_lockstep_grants_one_segment_beyond_what_is_released(discipline):
    balance = make(discipline=discipline, num_rings=3, segments_per_batch=3, num_slots=16)
    granted = np.zeros(3, np.int64)
    assert balance.grant(rows(0, 0, 0), rows(0, 0, 0), granted)
    assert granted.tolist() == [9, 9, 9]
    assert not balance.grant(rows(0, 0, 0), rows(1, 1, 0), granted)
    assert not balance.grant(rows(0, 0, 0), rows(1, 1, 1), granted)
    assert balance.grant(rows(1, 1, 1), rows(1, 1, 1), granted)
    assert granted.tolist() == [17, 17, 17]
    assert balance.grant(rows(2, 1, 1), rows(2, 2, 2), granted)
    assert granted.tolist() == [25, 17, 17]


def test_lockstep_begins_a_round_for_all_rings_or_for_none():
    balance = make(discipline="lockstep", max_env_steps=T * E * 2 + 1)
    assert granted_segments(balance, (0, 0), (0, 0), (0, 0)) == [1, 1]
    balance.inserted(2 * T * E)  # one step is missing
    assert granted_segments(balance, (1, 0), (1, 1), (1, 1)) == [2, 1]
    balance.inserted(T * E)  # the limit is reached, but the round was begun
    assert granted_segments(balance, (1, 1), (2, 1), (2, 1)) == [2, 2]
    assert not balance.exhausted(ready=1)
    balance.inserted(T * E)
    assert granted_segments(balance, (2, 2), (2, 2), (2, 2)) == [2, 2]
    assert balance.exhausted(ready=0)


# ---- relaxed by hand -----------------------------------------------------------------------------


def test_relaxed_first_grant_is_the_credits_dealt_evenly():
    assert granted_segments(make(), (0, 0), (0, 0), (0, 0)) == [1, 1]  # C = 2
    assert granted_segments(make(queue_batches=3), (0, 0), (0, 0), (0, 0)) == [3, 3]  # C = 6
    odd = make(num_rings=3, segments_per_batch=4)  # C = 4
    assert granted_segments(odd, (0, 0, 0), (0, 0, 0), (0, 0, 0)) == [2, 1, 1]
    few = make(num_rings=3, segments_per_batch=1)  # C = N = 3
    assert granted_segments(few, (0, 0, 0), (0, 0, 0), (0, 0, 0)) == [1, 1, 1]


def test_a_fast_actor_goes_on_while_the_learner_has_nothing_to_begin_with():
    balance = make()  # ring 0 is hung
    assert granted_segments(balance, (0, 0), (0, 0), (1, 1)) == [1, 1]
    assert granted_segments(balance, (0, 0), (0, 1), (1, 1)) == [1, 2]  # D = 1 < K = 2
    assert granted_segments(balance, (0, 0), (0, 2), (1, 2)) == [1, 2]  # a batch is complete
    assert granted_segments(balance, (0, 2), (0, 2), (1, 2)) == [1, 3]  # F = 1 < C


def test_a_fast_actor_waits_while_the_learner_has_a_batch_to_train_on():
    balance = make()
    assert granted_segments(balance, (0, 0), (0, 1), (1, 1), learning=True) == [1, 1]  # F = 2 = C
    assert granted_segments(balance, (0, 0), (0, 1), (1, 1), learning=False) == [1, 2]
    assert granted_segments(balance, (0, 2), (0, 2), (1, 2), learning=True) == [1, 3]  # f = 0


@pytest.mark.parametrize("seed", range(6))
def test_where_the_learner_is_the_bottleneck_data_is_one_batch_old(seed):
    rng = np.random.default_rng(seed)
    arguments = {**ARGUMENTS, "num_rings": 8, "segments_per_batch": 8}
    run = Run(arguments, rng, 0.5 + 0.4 * rng.random(8))
    while len(run.batches) < 40:
        run.tick(0.05)
    lags = np.array(run.batches[5:])
    # 0.15 and 0.85 where busy learners count as waiting.
    assert (lags == 1).mean() > 0.9 and (lags > 1).mean() < 0.05


def test_a_learner_that_is_the_bottleneck_finds_no_more_than_the_credits():
    balance = make(num_rings=4, segments_per_batch=2, queue_batches=3)  # C = 6
    assert granted_segments(balance, (0,) * 4, (2, 2, 1, 1), (2, 2, 1, 1)) == [2, 2, 1, 1]


def test_credits_go_to_the_ring_with_the_fewest_in_flight():
    balance = make(num_rings=3, segments_per_batch=3, queue_batches=2)  # C = 6
    assert granted_segments(balance, (3, 0, 1), (3, 0, 1), (4, 2, 2)) == [5, 2, 3]


def test_a_ring_without_any_in_flight_is_always_given_one():
    balance = make(num_rings=3, segments_per_batch=2)  # C = 3
    # Ring 1 holds a complete batch and an open segment: F = 3 = C, D = 2 = K.
    assert granted_segments(balance, (1, 0, 1), (1, 2, 1), (1, 3, 1)) == [2, 3, 2]


def test_room_bounds_a_ring_with_the_row_after_its_segments():
    narrow = {"segments_per_batch": 6, "num_rings": 2}
    assert granted_segments(make(**narrow, num_slots=32), (0, 0), (0, 0), (0, 0)) == [3, 3]  # 31 / 8 = 3
    wide = make(segments_per_batch=8, num_slots=64, num_rings=2)
    assert granted_segments(wide, (0, 0), (0, 4), (4, 4)) == [4, 5]
    assert granted_segments(wide, (0, 0), (0, 7), (4, 7)) == [4, 7]  # 63 / 8 = 7


def test_published_rows_do_as_well_as_complete_ones():
    granted = np.array([T + 1, T + 1], np.int64)
    balance = make()
    assert not balance.grant(rows(0, 0), np.array([3, 7], np.int64), granted)
    assert balance.grant(rows(0, 0), np.array([3, 8], np.int64), granted)
    assert granted.tolist() == [T + 1, 2 * T + 1]


def test_nothing_is_granted_where_nothing_may_be_inserted():
    balance = make(max_env_steps=0)
    assert granted_segments(balance, (0, 0), (0, 0), (0, 0)) == [0, 0]
    assert balance.exhausted(0)


def test_a_begun_batch_is_completed_and_no_other_is_begun():
    # Three segments would do, a batch has two.
    balance = make(queue_batches=4, max_env_steps=3 * T * E)
    assert granted_segments(balance, (0, 0), (0, 0), (0, 0)) == [2, 2]
    balance.inserted(3 * T * E)
    assert granted_segments(balance, (1, 0), (2, 1), (2, 2)) == [2, 2]
    assert not balance.exhausted(ready=1)  # one open segment completes a batch
    balance.inserted(T * E)
    assert granted_segments(balance, (1, 0), (2, 2), (2, 2)) == [2, 2]
    assert not balance.exhausted(ready=2)
    assert balance.exhausted(ready=0)


def test_reset_rows_are_made_up_for():
    balance = make(max_env_steps=2 * T * E)
    assert granted_segments(balance, (0, 0), (0, 0), (0, 0)) == [1, 1]
    balance.inserted(2 * T * E - 1)
    assert granted_segments(balance, (1, 1), (1, 1), (1, 1)) == [2, 2]


def test_segments_left_over_by_dropped_ones_do_not_keep_the_run_alive():
    balance = make(max_env_steps=2 * T * E)
    granted_segments(balance, (0, 0), (0, 0), (0, 0))
    balance.inserted(2 * T * E)
    granted_segments(balance, (1, 0), (1, 1), (1, 1))
    assert balance.exhausted(ready=1)


# ---- statistics ----------------------------------------------------------------------------------


def test_statistics():
    balance = make(num_rings=3, segments_per_batch=2, queue_batches=2)  # C = 4, K + 2 * 2 = 6 in flight
    balance.inserted(100)
    balance.received(70)
    balance.sampled(210)
    assert balance.statistics() == {
        "async/samples_per_insert": 2.1,
        "async/samples_per_insert_target": 3.0,
        "received_steps": 70,
        "consumed_samples": 210,
    }
    assert (balance.discipline, balance.cursor) == ("relaxed", 90.0)
    assert balance.error_samples == 3.0 * (6 + 2) * T * E
    assert make().achieved == 0.0


@pytest.mark.parametrize(("discipline", "batches"), [("lockstep", 2), ("synchronous", 1)])
def test_band_of_the_exact_disciplines(discipline, batches):
    balance = make(discipline=discipline)
    assert balance.error_samples == 3.0 * batches * 2 * T * E
    assert balance.discipline == discipline


# ---- random runs ---------------------------------------------------------------------------------


def slow_grant(balance, released, complete, have, learning):
    """Equation (2) and the limit, implemented again from the docstring; segments, one credit at a time."""
    a = balance.arguments
    n, k = a["num_rings"], a["segments_per_batch"]
    c, room = max(n, a["queue_batches"] * k), (a["num_slots"] - 1) // a["length"]
    have = list(have)
    while True:
        opened = sum(have) - sum(complete)
        begun = sum(have) % k != 0
        limit = a["max_env_steps"]
        if not begun and limit is not None and balance.steps + opened * a["length"] * E >= limit:
            return have
        in_flight = [h - r for h, r in zip(have, released, strict=True)]
        may = [
            r
            for r in range(n)
            if in_flight[r] < room
            and (
                sum(in_flight) < c
                or in_flight[r] == 0
                or (have[r] == complete[r] and sum(complete) - sum(released) < k and not learning)
            )
        ]
        if not may:
            return have
        have[min(may, key=lambda r: (in_flight[r], r))] += 1


@dataclass
class Run:
    """Rows, segments and a learner without data: who may continue, and with what."""

    arguments: dict
    rng: np.random.Generator
    speed: np.ndarray
    reset_share: float = 0.0
    steps: int = 0
    ready: list = field(default_factory=list)  # (ring, version that acted in its first row)
    batches: list = field(default_factory=list)  # lags of each batch's segments
    version: int = 0
    training: list = field(default_factory=list)
    updates_left: int = 0
    dropped: int = 0

    def __post_init__(self):
        n = self.arguments["num_rings"]
        self.balance = SegmentBalance(**self.arguments)
        self.published, self.granted, self.released = (np.zeros(n, np.int64) for _ in range(3))
        self.stamp = [0] * n
        self.most_cursor = 0.0
        self.grant()

    @property
    def relaxed(self):
        return self.arguments["discipline"] == "relaxed"

    def segments(self, positions):
        return (positions // T).tolist()

    def grant(self):
        have = (np.maximum(self.granted - 1, 0) // T).tolist()
        if self.relaxed:
            rows = self.segments(self.released), self.segments(self.published), have
            expected = slow_grant(self, *rows, bool(self.training))
        before = self.granted.copy()
        rows = self.released, self.published, self.granted
        moved = self.balance.grant(*rows, learning=bool(self.training))
        assert moved == (self.granted != before).any()
        assert (self.granted >= before).all()
        assert (self.granted <= self.released + self.arguments["num_slots"]).all()
        have = (np.maximum(self.granted - 1, 0) // T).tolist()
        if self.relaxed:
            assert have == expected
        in_flight = np.array(have) - self.released // T
        assert in_flight.sum() <= self.balance.most_in_flight
        return moved

    def act(self):
        """Every actor publishes some rows by its speed; returns whether any did."""
        moved = False
        for r in range(len(self.speed)):
            left = int(self.granted[r] - 1 - self.published[r])
            if left <= 0 or self.rng.random() >= self.speed[r]:
                continue
            for _ in range(min(left, int(self.rng.integers(1, 2 * T)))):
                if self.published[r] % T == 0:
                    self.stamp[r] = self.version
                self.published[r] += 1
                if self.published[r] % T == 0:
                    self.ready.append((r, self.stamp[r]))
                    steps = int(self.rng.binomial(T * E, 1 - self.reset_share))
                    self.steps += steps
                    self.balance.inserted(steps)
            moved = True
        return moved

    def may_begin(self):
        if self.relaxed:
            return len(self.ready) >= self.arguments["segments_per_batch"]
        return len({r for r, _ in self.ready}) == len(self.speed)

    def take(self):
        k, kept = self.arguments["segments_per_batch"], []
        if self.relaxed:
            kept, self.ready = self.ready[:k], self.ready[k:]
        else:
            for r in range(len(self.speed)):
                kept.append(next(s for s in self.ready if s[0] == r))
                self.ready.remove(kept[-1])
        self.batches.append([self.version - stamp for _, stamp in kept])
        self.balance.received(T * E * k)
        return kept

    def release(self, segments):
        for r, _ in segments:
            self.released[r] += T

    def learn(self):
        """One step of an iteration, or the begin of the next; returns whether it was possible."""
        if self.training:
            self.updates_left -= 1
            if self.updates_left == 0:
                self.end()
            return True
        if not self.may_begin():
            return False
        if self.arguments["discipline"] == "lockstep":
            self.version = len(self.batches)  # what the iterations before have learned
        self.training = self.take()
        if self.arguments["discipline"] != "synchronous":
            self.release(self.training)
        self.updates_left = int(self.rng.integers(1, 4))
        return True

    def end(self):
        sigma, batch = self.arguments["samples_per_insert"], len(self.training)
        self.balance.sampled(round(sigma * batch * T * E))
        if self.arguments["discipline"] != "lockstep":
            self.version += 1
        if self.arguments["discipline"] == "synchronous":
            self.release(self.training)
        self.training = []

    def answering_can_go_on(self):
        return bool((self.granted - 1 > self.published)[self.speed > 0].any())

    def tick(self, learner=1.0):
        acted = self.act()
        learned = self.rng.random() < learner and self.learn()
        granted = self.grant()
        if self.reset_share == 0.0 and not self.dropped:
            cursor, most = self.balance.cursor, self.balance.error_samples
            assert 0 <= cursor <= most
            self.most_cursor = max(self.most_cursor, cursor / most)
        return acted or learned or granted


def random_run(seed, *, stuck=0, discipline="relaxed", reset_share=0.0, **changes):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1 + stuck, 6))
    k = n if discipline != "relaxed" else int(rng.integers(1, 9))
    arguments = {
        **ARGUMENTS,
        "discipline": discipline,
        "num_rings": n,
        "segments_per_batch": k,
        "queue_batches": int(rng.integers(1, 4)),
        "samples_per_insert": float(rng.choice([1.0, 4.0])),
        **changes,
    }
    names = ("discipline", "num_rings", "length", "segments_per_batch", "queue_batches")
    arguments["num_slots"] = slots_for(**{name: arguments[name] for name in names})
    speed = 0.9 * rng.random(n) ** 2 + 0.1
    speed[rng.permutation(n)[:stuck]] = 0.0
    return Run(arguments, rng, speed, reset_share)


@pytest.mark.parametrize("stuck", [0, 1])
@pytest.mark.parametrize("seed", range(12))
def test_relaxed_never_stands_still_whoever_is_slow_or_hung(seed, stuck):
    """At every moment the learner can begin, or an actor that is not hung has rows to write."""
    run = random_run(seed, stuck=stuck)
    learner = float(run.rng.choice([0.1, 1.0]))
    for _ in range(1500):
        run.tick(learner)
        assert run.training or run.may_begin() or run.answering_can_go_on(), "neither side may go on"
    assert len(run.batches) > 10


@pytest.mark.parametrize("seed", range(3))
def test_all_rings_but_one_may_be_hung_where_one_has_room_for_a_batch(seed):
    run = random_run(seed, stuck=0)
    run.speed[:] = 0.0
    run.speed[0] = 0.8
    run.arguments["num_slots"] = 128
    run.__post_init__()
    for _ in range(600):
        run.tick()
        assert run.training or run.may_begin() or run.answering_can_go_on()
    assert len(run.batches) > 10


@pytest.mark.parametrize("seed", range(4))
def test_a_hung_actor_waits_on_no_more_than_its_share_of_the_credits(seed):
    run = random_run(seed, stuck=1)
    for _ in range(1000):
        run.tick(0.5)
    n, k, q = (run.arguments[name] for name in ("num_rings", "segments_per_batch", "queue_batches"))
    hung = int(np.flatnonzero(run.speed == 0)[0])
    assert (run.granted[hung] - 1) // T <= -(-max(n, q * k) // n)
    others = run.published[run.speed > 0]
    assert (others > 20 * T).any()


@pytest.mark.parametrize(("discipline", "lag"), [("lockstep", 1), ("synchronous", 0)])
@pytest.mark.parametrize("seed", range(6))
def test_the_exact_disciplines_grant_exactly_and_lag_exactly(seed, discipline, lag):
    run = random_run(seed, discipline=discipline)
    for _ in range(1500):
        run.tick(0.7)
        assert (run.granted == run.released + T + 1).all()
        assert run.training or run.may_begin() or run.answering_can_go_on()
    assert len(run.batches) > 20
    assert set(run.batches[0]) == {0}
    assert all(set(lags) == {lag} for lags in run.batches[1:])


@pytest.mark.parametrize("discipline", ["relaxed", "lockstep", "synchronous"])
@pytest.mark.parametrize("reset_share", [0.0, 0.3])
@pytest.mark.parametrize("seed", range(5))
def test_a_run_ends_just_beyond_its_limit_with_nothing_left_over(seed, discipline, reset_share):
    limit = int(np.random.default_rng(seed).integers(1, 60 * T * E))
    run = random_run(seed, discipline=discipline, reset_share=reset_share, max_env_steps=limit)
    for _ in range(20_000):
        run.tick(0.5)
        if run.balance.exhausted(len(run.ready)) and not run.training:
            break
        assert run.training or run.may_begin() or run.answering_can_go_on()
    else:
        pytest.fail("the run never ended")
    batch = run.arguments["segments_per_batch"] * T * E
    assert limit <= run.steps < limit + batch
    assert run.ready == []
    assert (run.granted == run.published + 1).all()
    assert len(run.batches) * run.arguments["segments_per_batch"] == run.published.sum() // T


def test_the_bound_on_what_is_in_flight_is_reached():
    """Equation (3) is tight: hung rings hold their shares, and one ring completes a batch less one and one more."""
    balance = make(num_rings=3, segments_per_batch=3, queue_batches=1, num_slots=64)
    assert balance.most_in_flight == 5
    assert granted_segments(balance, (0, 0, 0), (0, 0, 2), (1, 1, 2)) == [1, 1, 3]
    credits_twice = make(num_rings=3, segments_per_batch=3, queue_batches=2, num_slots=64)
    assert credits_twice.most_in_flight == 7  # K + 2 * 2


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"discipline": "tight"}, "discipline must be one of relaxed, lockstep, synchronous, got 'tight'"),
        ({"num_rings": 0}, "num_rings must be at least 1, got 0"),
        ({"envs_per_actor": 0}, "envs_per_actor must be at least 1, got 0"),
        ({"length": 0}, "length must be at least 1, got 0"),
        ({"segments_per_batch": 0}, "segments_per_batch must be at least 1, got 0"),
        ({"queue_batches": 0}, "queue_batches must be at least 1, got 0"),
        ({"samples_per_insert": 0.0}, "samples_per_insert must be positive and finite, got 0.0"),
        ({"samples_per_insert": float("nan")}, "samples_per_insert must be positive and finite, got nan"),
        ({"num_slots": 8}, r"num_slots must be at least length \+ 1 = 9, got 8"),
        (
            {"segments_per_batch": 15},
            "segments_per_batch must be at most 14, got 15: 2 rings of 64 slots hold no more segments of 8 rows",
        ),
        (
            {"discipline": "lockstep", "segments_per_batch": 3},
            "segments_per_batch must be the number of actors, 2, with discipline='lockstep', got 3",
        ),
        (
            {"discipline": "synchronous", "segments_per_batch": 1},
            "segments_per_batch must be the number of actors, 2, with discipline='synchronous', got 1",
        ),
    ],
)
def test_bad_settings_are_refused_with_the_reason(changes, text):
    with pytest.raises(ValueError, match=text):
        make(**changes)


@pytest.mark.parametrize(
    ("discipline", "rings", "length", "batch", "queue", "slots"),
    [
        ("lockstep", 4, 128, 4, 1, 256),
        ("synchronous", 4, 100, 4, 1, 128),
        ("relaxed", 4, 128, 4, 1, 512),  # 2 segments and a row
        ("relaxed", 2, 128, 4, 1, 1024),  # one ring alone must hold a batch: 4 segments and a row
        ("relaxed", 1, 127, 2, 1, 256),  # 254 rows and a row
        ("relaxed", 1, 128, 2, 1, 512),
        ("relaxed", 4, 16, 4, 5, 128),  # 20 credits among 4
    ],
)
def test_slots_for(discipline, rings, length, batch, queue, slots):
    assert slots == slots_for(
        discipline=discipline,
        num_rings=rings,
        length=length,
        segments_per_batch=batch,
        queue_batches=queue,
    )


def test_a_step_of_several_agents_inserts_a_sample_of_each():
    balance = make(num_agents=4, samples_per_insert=2.0)
    balance.inserted(100)
    balance.sampled(600)
    statistics = balance.statistics()
    assert statistics["async/samples_per_insert_target"] == 2.0
    assert statistics["async/samples_per_insert"] == 1.5 and balance.cursor == 2.0 * 4 * 100 - 600
