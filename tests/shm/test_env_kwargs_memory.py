"""The file of changed keyword arguments: what an actor sees at which row."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from asyncrl.shm.env_kwargs import EnvKwargs, EnvKwargsReader, EnvKwargsWriter


@pytest.fixture
def writer() -> Iterator[EnvKwargsWriter]:
    made = EnvKwargsWriter()
    yield made
    made.close()


def offered(writer: EnvKwargsWriter, number: int, first_row: int = 0) -> None:
    writer.offer(EnvKwargs(number, [f"level:{number}"]))
    writer.publish(first_row, 100 * number)


def test_a_change_is_seen_once_from_its_row_on(writer: EnvKwargsWriter) -> None:
    reader = EnvKwargsReader(writer.fd)
    assert reader.at(0) is None
    offered(writer, 1, first_row=5)
    assert [reader.at(row) is not None for row in range(8)] == [False] * 5 + [True, False, False]
    assert writer.newest == EnvKwargs(1, ["level:1"], 5, 100) and writer.newest.values == {"level": 1}


def test_of_several_changes_the_newest_that_counts_is_seen(writer: EnvKwargsWriter) -> None:
    reader = EnvKwargsReader(writer.fd)
    for number, row in ((1, 0), (2, 3), (3, 3), (4, 9)):
        offered(writer, number, row)
    seen = [reader.at(row) for row in (2, 4, 8, 20)]
    assert [change and change.number for change in seen] == [1, 3, None, 4]


def test_a_successor_sees_all_that_counts_at_its_first_row(writer: EnvKwargsWriter) -> None:
    for number, row in ((1, 0), (2, 30), (3, 60)):
        offered(writer, number, row)
    successor = EnvKwargsReader(writer.fd)
    first = successor.at(40)
    assert first is not None and first.values == {"level": 2}
    later = successor.at(60)
    assert later is not None and later.values == {"level": 3}


def test_what_was_offered_is_published_once_and_the_newest_in_its_place(writer: EnvKwargsWriter) -> None:
    seen: list[EnvKwargs] = []
    writer._on_published = seen.append
    writer.publish()
    writer.offer(EnvKwargs(1, ["level:1"]))
    writer.offer(EnvKwargs(2, ["level:2", "name:'x:y'"]))
    writer.publish(7, 50)
    writer.publish(9, 70)
    assert [(change.number, change.first_row, change.env_steps) for change in seen] == [(2, 7, 50)]
    assert seen[0].values == {"level": 2, "name": "x:y"}


def test_a_resumed_run_begins_with_the_change_that_its_actors_have(writer: EnvKwargsWriter) -> None:
    writer.begin_with(EnvKwargs())
    assert EnvKwargsReader(writer.fd).at(0) is None
    writer.begin_with(EnvKwargs(3, ["level:3"], first_row=640, env_steps=900))
    found = EnvKwargsReader(writer.fd).at(0)
    assert found is not None and found.number == 3, "the rows of the resumed run count anew"
    writer.offer(EnvKwargs(3, ["level:3"]))
    writer.publish(5)
    assert writer.newest.env_steps == 900, "it is not published again"
