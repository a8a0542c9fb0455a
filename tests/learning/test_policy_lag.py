"""Policy lag against hand-worked numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from asyncrl.interfaces import Agent, DiscreteAction, EnvSpec
from asyncrl.learning.replay_loop import PolicyLagMeter
from asyncrl.shm import RingLayout, RingReader, Segment

LAYOUT = RingLayout(3, 8, EnvSpec("nothing", (1,), "float32", DiscreteAction(2)))


@pytest.fixture
def rings() -> Iterator[list[RingReader]]:
    memory = [Segment.create(f"ring {i}", LAYOUT.arrays(), poison=True) for i in range(2)]
    readers = [RingReader(m, LAYOUT) for m in memory]
    yield readers
    readers.clear()
    for m in memory:
        m.close()


def write(ring: RingReader, first: int, updates: list[int]) -> None:
    """Write rows from position `first` on, made with the weights of these updates; other slots hold a poison value."""
    for position, made in enumerate(updates, first):
        ring.policy_updates[position % 8] = made


def lags(meter: PolicyLagMeter) -> dict[int, int]:
    """Count of every lag since the last call; exact for lags below 16."""
    statistics = meter.overall()
    now = dict(zip(statistics.edges, statistics.counts, strict=True))
    before, meter.seen_by_test = getattr(meter, "seen_by_test", {}), now  # type: ignore[attr-defined]
    return {lag: n - before.get(lag, 0) for lag, n in now.items() if n > before.get(lag, 0)}


def receive(meter: PolicyLagMeter, published: list[int], updates: int) -> dict[int, int]:
    meter.receive(np.array(published, np.int64), updates)
    return lags(meter)


def test_each_step_counts_once_by_the_updates_since_its_weights(rings: list[RingReader]) -> None:
    meter = PolicyLagMeter(rings[:1])
    write(rings[0], 0, [0, 0, 4])
    assert receive(meter, [3], 6) == {6: 2 * 3, 2: 3}, "three environments in a row"
    assert receive(meter, [3], 9) == {}, "nothing new, however many updates were made meanwhile"
    write(rings[0], 3, [8])
    assert receive(meter, [4], 9) == {1: 3}
    statistics = meter.overall()
    assert (statistics.mean, statistics.max, statistics.samples) == ((6 + 6 + 2 + 1) / 4, 6, 12)


def test_rows_that_wrap_around_the_ring(rings: list[RingReader]) -> None:
    meter = PolicyLagMeter(rings[:1])
    write(rings[0], 0, [0] * 6)
    assert receive(meter, [6], 0) == {0: 18}
    write(rings[0], 6, [1, 2, 3, 4, 5])  # slots 6, 7, 0, 1, 2
    assert receive(meter, [11], 10) == {9: 3, 8: 3, 7: 3, 6: 3, 5: 3}
    write(rings[0], 11, list(range(10, 18)))  # a whole ring at once, from slot 3 to slot 2
    assert receive(meter, [19], 17) == dict.fromkeys(range(8), 3)
    write(rings[0], 19, [20] * 5)  # up to the last slot
    assert receive(meter, [24], 20) == {0: 15}
    write(rings[0], 24, [20] * 8)  # a whole ring from its first slot
    assert receive(meter, [32], 23) == {3: 24}


def test_several_rings_move_on_their_own(rings: list[RingReader]) -> None:
    meter = PolicyLagMeter(rings)
    write(rings[0], 0, [0, 0])
    assert receive(meter, [2, 0], 3) == {3: 6}
    write(rings[1], 0, [1, 4])
    assert receive(meter, [2, 2], 5) == {4: 3, 1: 3}
    write(rings[0], 2, [5])
    write(rings[1], 2, [2])
    assert receive(meter, [3, 3], 5) == {0: 3, 3: 3}


def test_a_step_of_several_agents_counts_once() -> None:
    """Two environments of three agents: six streams, and two steps in a row."""
    spec = replace(LAYOUT.spec, agents=tuple(map(Agent, "abc")))
    layout = RingLayout(6, 8, spec)
    memory = Segment.create("ring", layout.arrays())
    try:
        ring = RingReader(memory, layout)
        meter = PolicyLagMeter([ring])
        write(ring, 0, [0, 0, 4])
        assert receive(meter, [3], 6) == {6: 2 * 2, 2: 2}
        assert meter.overall().samples == 3 * 2
    finally:
        memory.close()
