"""Times of publication, its cost, and values that are never published, with a test clock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from asyncrl.errors import TrainingDiverged
from asyncrl.learning import publication
from asyncrl.learning.publication import COLD, COST_SHARE, LONGEST_INTERVAL, WINDOW, CostWindow, Publisher
from asyncrl.saved_state import restore, saved
from asyncrl.shm import WeightMailbox

COUNT = 5


class Clock:
    """Clock that advances only by the test."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


class FakeCore:
    """Core that writes `value` everywhere; each write takes `seconds` on the clock."""

    weight_count = COUNT

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.value = 0.0
        self.seconds = 1e-5
        self.raises: Exception | None = None

    def write_weights(self, out: np.ndarray) -> None:
        out[:-1] = 0.5
        if self.raises is not None:
            raise self.raises
        out[-1] = self.value
        self.clock.now += self.seconds

    def metrics(self) -> Mapping[str, float]:
        return {}

    def state_dict(self) -> Mapping[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        raise NotImplementedError


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(publication, "time", SimpleNamespace(perf_counter=clock.perf_counter))
    return clock


@pytest.fixture
def core(clock: Clock) -> FakeCore:
    return FakeCore(clock)


@pytest.fixture
def mailbox() -> Iterator[WeightMailbox]:
    mailbox = WeightMailbox.create(COUNT, poison=True)
    yield mailbox
    mailbox.close()


def publisher_of(core: FakeCore, mailbox: WeightMailbox, interval: Any) -> Publisher:
    return Publisher(core, mailbox, lambda what: TrainingDiverged(f"{what} became NaN"), interval)


def updates_at_publications(
    publisher: Publisher, mailbox: WeightMailbox, updates: int, seconds: float
) -> list[int]:
    """Make `updates` updates of `seconds` each; returns the updates after which weights were published."""
    published = []
    for _ in range(updates):
        before = mailbox.version
        publisher.updated(seconds)
        if mailbox.version > before:
            assert mailbox.version == before + 1
            published.append(publisher.updates)
    return published


class Vector:
    """Vector of a core whose updates run on a GPU, `seconds` each, after they were launched."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self.clock, self.seconds, self.in_flight = clock, seconds, 0

    def wait(self) -> None:
        self.clock.now += self.in_flight * self.seconds
        self.in_flight = 0


def test_updates_in_flight_are_no_cost_of_a_publication(
    core: FakeCore, clock: Clock, mailbox: WeightMailbox
) -> None:
    """Without priorities nothing waits for the device before the copy of the weights, which waits for all updates."""
    core.vector = vector = Vector(clock, 1e-3)  # type: ignore[attr-defined]
    core.seconds = copy = 1e-4
    write = core.write_weights

    def write_behind_the_updates(out: np.ndarray) -> None:
        vector.wait()
        write(out)

    core.write_weights = write_behind_the_updates  # type: ignore[method-assign]
    publisher = publisher_of(core, mailbox, "auto")
    for _ in range(2 * (COLD + WINDOW)):
        vector.in_flight += 1
        publisher.updated(1e-5)
    assert publisher.statistics()["publish_seconds"] == pytest.approx(copy)
    assert publisher.interval == np.ceil(copy / (COST_SHARE * (1e-3 + 1e-5)))


@pytest.mark.parametrize("interval", [1, 2, 7])
def test_a_fixed_interval_counts_updates(core: FakeCore, mailbox: WeightMailbox, interval: int) -> None:
    publisher = publisher_of(core, mailbox, interval)
    assert publisher.unpublished and publisher.version == 0
    publisher.publish()
    assert not publisher.unpublished and publisher.version == 1
    published = updates_at_publications(publisher, mailbox, 50, 1e-3)
    assert published == list(range(interval, 51, interval))
    assert publisher.interval == interval and publisher.updates == 50
    assert publisher.unpublished == (50 % interval > 0)
    out = np.zeros(COUNT, np.float32)
    mailbox.refresh(out, 0)
    assert mailbox.updates == 50 - 50 % interval


@pytest.mark.parametrize(
    ("before", "now", "interval"), [(4, 1, 1), (1, 4, 4), (9, "auto", 1), ("auto", 5, 5), ("auto", "auto", 3)]
)
def test_a_resumed_run_has_its_own_interval_or_that_chosen_by_auto_before(
    core: FakeCore, mailbox: WeightMailbox, before: Any, now: Any, interval: int
) -> None:
    first = publisher_of(core, mailbox, before)
    updates_at_publications(first, mailbox, COLD + WINDOW, seconds=core.seconds / (2.5 * COST_SHARE))
    resumed = publisher_of(core, mailbox, now)
    restore(resumed, saved(first))
    assert resumed.interval == interval


def test_publishing_in_between_begins_a_new_interval(core: FakeCore, mailbox: WeightMailbox) -> None:
    publisher = publisher_of(core, mailbox, 4)
    publisher.publish()
    assert updates_at_publications(publisher, mailbox, 6, 1e-3) == [4]
    publisher.publish()
    assert updates_at_publications(publisher, mailbox, 6, 1e-3) == [10]


def test_without_an_interval_only_publish_publishes(core: FakeCore, mailbox: WeightMailbox) -> None:
    publisher = publisher_of(core, mailbox, None)
    publisher.publish()
    assert updates_at_publications(publisher, mailbox, 30, 1e-3) == []
    assert publisher.unpublished
    publisher.publish()
    updates_at_publications(publisher, mailbox, 10, 1e-3)
    publisher.publish()
    assert publisher.interval == 20.0, "40 updates, two publications after the first"


def settled(core: FakeCore, mailbox: WeightMailbox, publication: float, update: float) -> Publisher:
    """A publisher with `auto` that has measured enough of these costs."""
    core.seconds = publication
    publisher = publisher_of(core, mailbox, "auto")
    while mailbox.version < COLD + WINDOW:
        publisher.updated(update)
    return publisher


@pytest.mark.parametrize(
    ("publication", "update", "expected"),
    [
        (12e-6, 500e-6, 1),  # 12 <= 25
        (26e-6, 500e-6, 2),  # 25 < 26 <= 50
        (26e-6, 100e-6, 6),  # 25 < 26 <= 30
        (127e-6, 5e-3, 1),
        (529e-6, 1e-3, 11),  # 500 < 529 <= 550
        (1.0, 1e-6, LONGEST_INTERVAL),
    ],
)
def test_auto_is_the_smallest_number_that_costs_a_twentieth_at_most(
    core: FakeCore, mailbox: WeightMailbox, publication: float, update: float, expected: int
) -> None:
    publisher = settled(core, mailbox, publication, update)
    assert publisher.interval == expected
    assert publisher.statistics()["publish_seconds"] == pytest.approx(publication)
    if expected < LONGEST_INTERVAL:
        assert publication <= COST_SHARE * expected * update
        assert expected == 1 or publication > COST_SHARE * (expected - 1) * update
    published = updates_at_publications(publisher, mailbox, 5 * expected, update)
    assert np.diff([COLD + WINDOW, *published]).tolist() == [expected] * 5


def test_auto_publishes_every_update_until_it_knows_and_leaves_cold_ones_out(
    core: FakeCore, mailbox: WeightMailbox
) -> None:
    publisher = publisher_of(core, mailbox, "auto")
    for number in range(1, COLD + WINDOW):
        cold = number <= COLD
        core.seconds = 1.0 if cold else 26e-6
        publisher.updated(1e-9 if cold else 100e-6)
        assert publisher.interval == 1 and mailbox.version == number
        assert publisher.statistics()["publish_seconds"] == 0.0
    publisher.updated(100e-6)
    assert publisher.interval == 6 and publisher.statistics()["publish_seconds"] == pytest.approx(26e-6)


def test_a_single_slow_publication_or_update_changes_nothing(core: FakeCore, mailbox: WeightMailbox) -> None:
    publisher = settled(core, mailbox, 26e-6, 100e-6)
    for slow in (15e-3, 1.5):
        core.seconds = slow  # one is preempted
        assert updates_at_publications(publisher, mailbox, 6, 100e-6) == [publisher.updates]
        core.seconds = 26e-6
        publisher.updated(slow)
        for _ in range(3 * WINDOW * 6):
            assert publisher.interval == 6
            publisher.updated(100e-6)
        while publisher.unpublished:
            publisher.updated(100e-6)


def test_auto_follows_costs_that_stay(core: FakeCore, mailbox: WeightMailbox) -> None:
    publisher = settled(core, mailbox, 26e-6, 100e-6)
    core.seconds = 260e-6
    updates_at_publications(publisher, mailbox, 2 * WINDOW * 6, 100e-6)
    assert publisher.interval == 52
    updates_at_publications(publisher, mailbox, 2 * WINDOW * 52, 10e-3)
    assert publisher.interval == 1


@pytest.mark.parametrize("interval", [3, "auto"])
def test_seconds_never_decide(clock: Clock, core: FakeCore, mailbox: WeightMailbox, interval: Any) -> None:
    """A machine that is a thousand times slower, or stops between two updates, publishes at the same updates."""
    published = []
    for factor, pause in ((1.0, 0.0), (1000.0, 0.0), (1.0, 3600.0)):
        with_own = WeightMailbox.create(COUNT)
        core.seconds = 26e-6 * factor
        publisher = publisher_of(core, with_own, interval)
        publisher.publish()
        seen = []
        for _ in range(1500):
            clock.now += pause
            seen += updates_at_publications(publisher, with_own, 1, 100e-6 * factor)
        published.append(seen)
        with_own.close()
    assert published[0] == published[1] == published[2]


def test_weights_that_are_not_finite_are_not_published(core: FakeCore, mailbox: WeightMailbox) -> None:
    publisher = publisher_of(core, mailbox, 1)
    core.value = 1.0
    publisher.publish()
    out = np.zeros(COUNT, np.float32)
    for bad in (np.nan, np.inf, -np.inf):
        core.value = bad
        with pytest.raises(TrainingDiverged, match="the weights became NaN"):
            publisher.updated(1e-3)
        with pytest.raises(TrainingDiverged, match="the weights became NaN"):
            publisher.current()
        assert publisher.unpublished and mailbox.version == 1
        assert mailbox.refresh(out, 0) == 1 and out[-1] == 1.0 and mailbox.updates == 0


def test_an_exception_while_weights_are_written_leaves_the_mailbox_sound(
    core: FakeCore, mailbox: WeightMailbox
) -> None:
    publisher = publisher_of(core, mailbox, None)
    core.value = 1.0
    publisher.publish()
    publisher.updated(1e-3)
    core.value, core.raises = 2.0, RuntimeError("the device is gone")
    for _ in range(3):
        with pytest.raises(RuntimeError, match="the device is gone"):
            publisher.publish()
    out = np.zeros(COUNT, np.float32)
    assert (mailbox.refresh(out, 0), mailbox.updates, out[-1]) == (1, 0, 1.0) and publisher.unpublished
    core.raises = None
    publisher.publish()
    assert (mailbox.refresh(out, 1), mailbox.updates, out[-1]) == (2, 1, 2.0) and not publisher.unpublished


def test_current_weights_are_a_copy_and_publish_nothing(core: FakeCore, mailbox: WeightMailbox) -> None:
    publisher = publisher_of(core, mailbox, None)
    core.value = 1.0
    publisher.publish()
    assert publisher.current()[1] == 1, "they are what version 1 is"
    publisher.updated(1e-3)
    core.value = 2.0
    weights, version = publisher.current()
    assert version == 2 and weights[-1] == 2.0 and mailbox.version == 1
    core.value = 3.0
    assert weights[-1] == 2.0


def test_window_is_a_median_without_the_first_costs() -> None:
    window = CostWindow()
    renewed = []
    for number in range(1, COLD + 3 * WINDOW + 1):
        window.add(float(number))
        if window.renewed:
            renewed.append((number, window.median))
    middle = (WINDOW + 1) / 2
    assert renewed == [(COLD + k * WINDOW, COLD + (k - 1) * WINDOW + middle) for k in (1, 2, 3)]
