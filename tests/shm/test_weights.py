"""Weight mailbox: readers get the newest complete weights, whatever the publisher does and whenever it dies."""

from __future__ import annotations

import os
import re
import time

import numpy as np
import pytest
from shm_processes import WEIGHTS
from waiting import PATIENCE_SECONDS

from asyncrl.shm import WeightMailbox
from asyncrl.shm import weights as module

KILLS = 100


@pytest.fixture
def mailbox():
    mailbox = WeightMailbox.create(WEIGHTS, poison=True)
    yield mailbox
    mailbox.close()


def full(value: float) -> np.ndarray:
    return np.full(WEIGHTS, value, np.float32)


def assert_holds(out: np.ndarray, version: int) -> None:
    assert out.min() == out.max() == np.float32(version), f"torn: {out.min()} to {out.max()} at {version}"


def test_nothing_is_copied_before_the_first_publication(mailbox):
    out = full(-5)
    assert (mailbox.version, mailbox.refresh(out, 0)) == (0, 0)
    assert_holds(out, -5)


def test_versions_count_publications_and_only_newer_ones_are_copied(mailbox):
    reader = WeightMailbox.attach(os.dup(mailbox.fd), WEIGHTS)
    out, have = np.empty(WEIGHTS, np.float32), 0
    for version in range(1, 6):
        assert mailbox.publish(full(version), 10 * version) == version == reader.version
        have = reader.refresh(out, have)
        assert have == version and reader.updates == 10 * version
        assert_holds(out, version)
    out.fill(-1)
    assert reader.refresh(out, have) == have and reader.updates == 50
    assert_holds(out, -1)
    reader.close()


def test_publish_with_fills_shared_memory_in_place(mailbox):
    assert mailbox.publish_with(lambda back: back.fill(9)) == 1
    out = np.empty(WEIGHTS, np.float32)
    assert mailbox.refresh(out, 0) == 1
    assert_holds(out, 9)


def test_a_fill_that_raises_publishes_nothing(mailbox):
    mailbox.publish(full(1), 5)

    def fill(back: np.ndarray) -> None:
        back[:10] = -7
        raise OverflowError("half way")

    for _ in range(3):
        with pytest.raises(OverflowError, match="half way"):
            mailbox.publish_with(fill, 99)
        out = np.empty(WEIGHTS, np.float32)
        assert (mailbox.version, mailbox.refresh(out, 0), mailbox.updates) == (1, 1, 5)
        assert_holds(out, 1)
    assert mailbox.publish(full(2), 6) == 2
    assert (mailbox.refresh(out, 1), mailbox.updates) == (2, 6)
    assert_holds(out, 2)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 1, WEIGHTS // 2, WEIGHTS - 1])
def test_weights_that_are_not_finite_are_never_committed(mailbox, bad, at):
    mailbox.publish(full(1), 5)
    values, out = full(2), np.empty(WEIGHTS, np.float32)
    values[at] = bad
    assert mailbox.publish_with(lambda back: np.copyto(back, values), 6) == 0
    with pytest.raises(ValueError, match="values must be finite, got NaN or infinity"):
        mailbox.publish(values, 6)
    assert (mailbox.version, mailbox.refresh(out, 0), mailbox.updates) == (1, 1, 5)
    assert_holds(out, 1)
    assert (mailbox.publish(full(3), 7), mailbox.refresh(out, 1), mailbox.updates) == (2, 2, 7)
    assert_holds(out, 3)


def test_the_largest_finite_weights_are_committed(mailbox):
    values = full(np.finfo(np.float32).max)
    values[::2] *= -1
    values[1] = np.finfo(np.float32).tiny / 2
    assert mailbox.publish(values) == 1


def test_readers_never_see_torn_weights_while_they_are_published(nursery, mailbox):
    out, have, refreshed, until = np.empty(WEIGHTS, np.float32), 0, 0, 0
    deadline = time.monotonic() + PATIENCE_SECONDS
    while refreshed <= 20 and time.monotonic() < deadline:
        until += 10_000
        pid = nursery.fork("publish_weights", until, fds=(mailbox.fd,))
        while have < until and time.monotonic() < deadline:
            version = mailbox.refresh(out, have)
            if version > have:
                refreshed += 1
                assert_holds(out, version)
                assert mailbox.updates == 7 * version, "weights of one version with the updates of another"
            assert version >= have
            have = version
        assert nursery.join(pid) == until and have == until
    assert refreshed > 20, "a publisher on the same core may end between two looks"


def test_the_test_sees_a_reader_that_does_not_check(nursery, mailbox):
    """Negative control: copying one buffer without the check for completeness gets torn weights."""
    pid = nursery.fork("publish_weights", 1 << 23, fds=(mailbox.fd,))
    values, torn, deadline = mailbox.segment["values"], 0, time.monotonic() + PATIENCE_SECONDS
    while torn == 0 and time.monotonic() < deadline:
        out = values[1].copy()
        torn += out.min() != out.max()
    nursery.kill(pid)
    assert torn, "no torn copy in all that time: the test is blind"


def test_a_publisher_killed_half_way_is_never_noticed(nursery, mailbox):
    mailbox.publish(full(1))
    out = np.empty(WEIGHTS, np.float32)
    for version in (1, 2):
        pid = nursery.fork("die_while_publishing", fds=(mailbox.fd,))
        nursery.join(pid, killed=True)
        assert mailbox.version == version
        assert mailbox.refresh(out, 0) == version
        assert_holds(out, version)
        assert nursery.join(nursery.fork("publish_weights", version + 1, fds=(mailbox.fd,))) == version + 1
        assert mailbox.refresh(out, version) == version + 1
        assert_holds(out, version + 1)


def test_publishers_killed_anywhere_leave_whole_weights_and_a_successor_goes_on(nursery, mailbox):
    rng, out, have, advanced = np.random.default_rng(4), np.empty(WEIGHTS, np.float32), 0, 0
    for number in range(KILLS):
        before = have
        pid = nursery.fork("publish_weights", 1 << 23, fds=(mailbox.fd,))
        deadline = time.monotonic() + rng.uniform(0, 0.005)
        # Every other one is killed only after a publication, so that a busy machine does not kill all before it.
        patience = deadline + 60 if number % 2 else deadline
        while time.monotonic() < (patience if have == before else deadline):
            version = mailbox.refresh(out, have)
            assert version >= have
            if version > have:
                assert_holds(out, version)
            have = version
        nursery.kill(pid)
        have = mailbox.refresh(out, 0) if mailbox.version else 0
        if have:
            assert_holds(out, have)
        advanced += have > before
    assert advanced >= KILLS // 2


# ---- the reader's kernel as plain Python, overtaken where we like --------------------------------


@pytest.fixture
def plain(monkeypatch, mailbox):
    """`refresh` as a Python function, on a mailbox that publishes `during()` in the middle of each copy."""
    during = []

    def copy(target: np.ndarray, source: np.ndarray) -> None:
        half = target.size // 2
        target[:half] = source[:half]
        if during:
            during.pop(0)()
        target[half:] = source[half:]

    # The compiled kernels that publish keep their own atomics; only what is interpreted sees these.
    monkeypatch.setattr(module, "load_acquire", lambda a, i: int(a[i]))
    monkeypatch.setattr(module, "copy_words", copy)
    monkeypatch.setattr(module, "fence", lambda: None)

    def refresh(out: np.ndarray, have: int) -> int:
        return module._refresh.py_func(mailbox._header, mailbox._values, out, have, mailbox._refreshed)

    yield refresh, during


def test_a_reader_that_is_overtaken_twice_takes_the_newest(plain, mailbox):
    refresh, during = plain
    mailbox.publish(full(1))
    out = full(0)
    during.append(lambda: [mailbox.publish(full(v), 7 * v) for v in (2, 3)])
    during.append(lambda: mailbox.publish_with(lambda back: back.fill(4), 28))
    assert refresh(out, 0) == 3, "overtaken by 2 and 3 once, then undisturbed by 4 in the other buffer"
    assert_holds(out, 3)
    assert mailbox.updates == 21


def test_a_reader_that_cannot_find_whole_weights_keeps_what_it_has(plain, mailbox):
    refresh, _ = plain
    mailbox.publish(full(1))
    mailbox._header[module.HOLDS + 16] = -99
    out = full(7)
    assert refresh(out, 0) == 0
    assert_holds(out, 7)
    assert mailbox.refresh(out, 0) == 0


def test_a_reader_spoilt_for_good_says_so(plain, mailbox):
    refresh, during = plain
    mailbox.publish(full(1))
    during.append(lambda: mailbox._header.__setitem__(module.HOLDS + 16, -99))
    assert refresh(full(0), 0) == -1


# ---- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (np.zeros(WEIGHTS, np.float64), "got float64 of shape (50000,)"),
        (np.zeros(WEIGHTS - 1, np.float32), "got float32 of shape (49999,)"),
        (np.zeros(2 * WEIGHTS, np.float32)[::2], "got float32 of shape (50000,)"),
        (np.zeros((1, WEIGHTS), np.float32), "got float32 of shape (1, 50000)"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(mailbox, values, text):
    rule = re.escape("must be contiguous float32 of shape (50000,), " + text)
    with pytest.raises(ValueError, match=f"values {rule}"):
        mailbox.publish(values)
    with pytest.raises(ValueError, match=f"out {rule}"):
        mailbox.refresh(values, 0)
    assert mailbox.version == 0


def test_other_bad_input_is_refused(mailbox):
    with pytest.raises(ValueError, match="have must be at least 0, got -1"):
        mailbox.refresh(full(0), -1)
    with pytest.raises(ValueError, match="weight_count must be at least 1, got 0"):
        WeightMailbox.create(0)
    fd = os.dup(mailbox.fd)
    with pytest.raises(ValueError, match="segment must hold the layout's"):
        WeightMailbox.attach(fd, WEIGHTS * 2)
    os.close(fd)
