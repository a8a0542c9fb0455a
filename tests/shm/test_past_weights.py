"""Mailbox with past versions: which are kept, what a reader finds, and checkpoints."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest
from shm_processes import WEIGHTS

from asyncrl.interfaces import SelfPlay
from asyncrl.shm import past_weights as module
from asyncrl.shm.past_weights import PastWeights

SELF_PLAY = SelfPlay("uniform", 1, interval=10, kept=3)


def full(value: float) -> np.ndarray:
    return np.full(WEIGHTS, value, np.float32)


@pytest.fixture
def mailbox() -> Iterator[PastWeights]:
    mailbox = PastWeights.create_for(WEIGHTS, SELF_PLAY)
    yield mailbox
    mailbox.close()


def held(mailbox: PastWeights) -> dict[int, float]:
    """Value of every kept version."""
    found, out = {}, full(-1)
    for updates in mailbox.versions():
        assert mailbox.copy_version(updates, out) and out.min() == out.max()
        found[updates] = float(out[0])
    return found


def test_versions_are_kept_at_the_first_publication_of_every_interval(mailbox: PastWeights) -> None:
    assert mailbox.versions() == []
    wanted = [(0, [0]), (4, [0]), (9, [0]), (13, [0, 13]), (19, [0, 13]), (20, [0, 13, 20])]
    for version, (updates, kept) in enumerate(wanted, 1):
        assert mailbox.publish(full(updates), updates) == version == mailbox.version
        assert mailbox.versions() == kept
        newest = full(-1)
        assert mailbox.refresh(newest, 0) == version and (newest == updates).all()
    mailbox.publish(full(57), 57)
    assert held(mailbox) == {13: 13, 20: 20, 57: 57}, "the oldest is replaced"


def test_a_reader_finds_the_same_and_no_version_that_is_gone(mailbox: PastWeights) -> None:
    reader = PastWeights.attach_for(os.dup(mailbox.fd), WEIGHTS, SELF_PLAY)
    for updates in (0, 10, 20, 30):
        mailbox.publish(full(updates), updates)
    assert held(reader) == {10: 10, 20: 20, 30: 30}
    assert not reader.copy_version(0, full(-1))
    mailbox._begin_slot(1)
    assert reader.versions() == [20, 30] and not reader.copy_version(10, full(-1)), "it is being written"
    reader.close()


@pytest.mark.parametrize("interpreted", [False, True])
def test_a_copy_counts_only_if_its_slot_held_the_version_all_the_time(
    interpreted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = module._copy_kept
    if interpreted:
        copied = copied.py_func
        loads = iter([7, 8])
        monkeypatch.setattr(module, "load_acquire", lambda words, i: next(loads))
        monkeypatch.setattr(module, "fence", lambda: None)
        monkeypatch.setattr(module, "copy_words", np.copyto)
        assert not copied(np.array([7]), np.ones((1, 4), np.float32), np.zeros(4, np.float32), 0, 7)
        return
    values, out = np.arange(8, dtype=np.float32).reshape(2, 4), np.zeros(4, np.float32)
    assert copied(np.array([5, 7]), values, out, 1, 7) and (out == values[1]).all()
    assert not copied(np.array([5, 8]), values, out, 1, 7)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_neither_kept_nor_published(mailbox: PastWeights, bad: float) -> None:
    mailbox.publish(full(1), 0)
    assert mailbox.publish_with(lambda out: out.fill(bad), 10) == 0
    assert mailbox.version == 1 and held(mailbox) == {0: 1}
    mailbox.publish(full(3), 12)
    assert held(mailbox) == {0: 1, 12: 3}


def test_the_only_version_stays_until_there_is_another() -> None:
    """Actors that draw an opponent find it while the weights are written, and after some that are not finite."""
    mailbox = PastWeights.create_for(WEIGHTS, SelfPlay("newest", 1, interval=1, kept=1))
    mailbox.publish(full(1), 0)
    found = []

    def fill(out: np.ndarray) -> None:
        found.append(held(mailbox))
        out.fill(np.nan if len(found) == 1 else 2.0)

    assert mailbox.publish_with(fill, 1) == 0 and held(mailbox) == {0: 1}
    assert mailbox.publish_with(fill, 2) == 2 and held(mailbox) == {2: 2}
    assert found == [{0: 1}, {0: 1}]
    mailbox.close()


def test_past_versions_go_through_a_checkpoint(mailbox: PastWeights) -> None:
    for updates in (0, 10, 20, 30):
        mailbox.publish(full(updates), updates)
    state = mailbox.past()
    for kept, wanted in ((3, [10, 20, 30]), (2, [20, 30]), (5, [10, 20, 30])):
        other = PastWeights.create_for(WEIGHTS, SelfPlay("uniform", 1, 10, kept))
        other.restore_past(state)
        assert list(held(other).values()) == wanted == other.versions()
        other.publish(full(30), 30)
        assert other.versions() == wanted, "the restored version is not kept twice"
        other.publish(full(41), 41)
        assert other.versions() == [*wanted, 41][-kept:]
        other.close()
    mailbox.restore_past({"weights": full(0)})
    assert mailbox.versions() == [10, 20, 30], "a run without self-play kept none"
