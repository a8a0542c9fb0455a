"""Doorbell: rings if it must, is silent otherwise, and lost bells are recovered."""

from __future__ import annotations

import os

import pytest
from shm_processes import COUNTING, WORDS
from waiting import PATIENCE_SECONDS

from asyncrl.shm import Doorbell, DoorbellWriter, RingReader, Segment
from asyncrl.shm import doorbell as module
from asyncrl.shm.ring import GRANTED

ROUNDS = 200_000
SECONDS = 3.0


@pytest.fixture
def bell():
    bell = Doorbell.create()
    yield bell
    bell.close()


@pytest.fixture
def ring():
    with Segment.create("test", COUNTING.arrays()) as segment:
        reader = RingReader(segment, COUNTING)
        reader.grant(COUNTING.num_slots)
        yield reader
        reader.close()


def attach(bell: Doorbell) -> DoorbellWriter:
    return DoorbellWriter.attach(*map(os.dup, bell.writer_fds()))


def test_many_actors_ring_a_sleeper_once(bell):
    actors = [attach(bell) for _ in range(3)]
    assert [module.take_bell(a.armed) for a in actors] == [False, False, False]
    bell.arm()
    assert [module.take_bell(a.armed) for a in actors] == [True, False, False]
    actors[0].ring()
    assert bell.wait(0) and bell.drain() == 1 and not bell.wait(0)
    bell.arm()
    bell.disarm()
    assert not module.take_bell(actors[1].armed)
    for actor in actors:
        actor.close()
        actor.close()


def test_a_full_pipe_does_not_block_an_actor(bell):
    actor = attach(bell)
    for _ in range(100_000):
        actor.ring()
    assert 4096 <= bell.drain() < 100_000
    actor.close()


def test_ringing_for_a_consumer_that_is_gone_is_no_error():
    bell = Doorbell.create()
    actor = attach(bell)
    bell.close()
    bell.close()
    actor.ring()
    actor.close()


def test_descriptors_are_not_inherited(bell):
    assert not any(os.get_inheritable(fd) for fd in (bell.fileno(), *bell.writer_fds()))


def test_a_bell_lost_between_flag_and_ring_is_recovered(nursery, bell, ring):
    """The actor is killed after it took the word and before it wrote the byte."""
    bell.arm()
    pid = nursery.fork("die_before_ringing", fds=(ring.segment.fd, *bell.writer_fds()))
    nursery.join(pid, killed=True)
    assert not bell.wait(0.02) and not bell.armed, "the bell is lost"
    assert ring.published() == 1, "looking at the ring, as on every death and every 100 ms, finds the row"
    bell.arm()
    pid = nursery.fork("publish_some", 1, fds=(ring.segment.fd, *bell.writer_fds()))
    assert bell.wait(PATIENCE_SECONDS), "armed again, the bell is heard again"
    nursery.join(pid)
    assert ring.published() == 2


def test_moderation_rings_once_for_a_batch_of_rows(nursery, bell, ring):
    ring.wake_at(50)
    bell.arm()
    pid = nursery.fork("publish_some", 60, fds=(ring.segment.fd, *bell.writer_fds()))
    assert bell.wait(PATIENCE_SECONDS)
    assert ring.published() >= 50
    nursery.join(pid)
    assert bell.drain() == 1


def litmus(nursery, fenced: bool) -> tuple[int, int]:
    """Rounds in which one side arms and reads, the other publishes and reads; and the wake-ups lost in them."""
    bell = Doorbell.create()
    with Segment.create("ring", COUNTING.arrays()) as ring, Segment.create("words", WORDS) as words:
        RingReader(ring, COUNTING).header[GRANTED] = 1 << 40
        fds = (ring.fd, bell.writer_fds()[0], words.fd)
        publishing = nursery.fork("publishing_side", fenced, fds=fds)
        arming = nursery.fork("arming_side", ROUNDS, SECONDS, fenced, fds=fds)
        rounds, lost = nursery.join(arming)
        nursery.join(publishing)
    bell.close()
    return rounds, lost


def test_no_wake_up_is_lost_between_store_and_load(nursery):
    """Store-load litmus test: arm and read against publish and read; at least one side must see the other."""
    rounds, lost = litmus(nursery, fenced=True)
    assert rounds >= 100 and lost == 0


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one core never reorders what it sees of itself")
def test_the_litmus_sees_what_missing_fences_do(nursery):
    """Negative control: the same without the fences loses wake-ups, on most machines in 10 to 40 % of the rounds.

    Reordering is the processor's choice: a virtual machine was seen that made none in 200,000 rounds. There the
    test above says less, which is reported as a skip: it is no fault of the doorbell.
    """
    attempts = []
    for _ in range(5):
        rounds, lost = litmus(nursery, fenced=False)
        if lost > 0:
            return
        attempts.append(rounds)
    pytest.skip(
        f"this machine reordered nothing in {attempts} rounds without a fence: the litmus is blind on it"
    )
