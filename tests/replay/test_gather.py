"""n-step cuts, frame stacks and copies against the definitions, compiled and interpreted."""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit
from oracles import SlowRow, slow_n_step
from replay_rig import DEFAULT_SPEC, EXTRAS, FRAMES_SPEC, interpret, rig

from asyncrl.interfaces import RESET, TERMINATED, TRUNCATED, Batch
from asyncrl.replay import gather, power, rows, sampling, sum_tree, tables, tree_kernels
from asyncrl.replay.handles import address_of, copy_bytes, float32s

FORMS = pytest.mark.parametrize("form", ["compiled", "interpreted"])


@FORMS
@pytest.mark.parametrize("gamma", [0.0, 0.5, 0.99, 1.0])
@pytest.mark.parametrize("n_step", [1, 2, 3, 4, 5])
def test_n_step_cut_agrees_with_the_definition(n_step: int, gamma: float, form: str) -> None:
    cut = gather.cut if form == "compiled" else gather.cut.py_func
    rng = np.random.default_rng(n_step)
    slots, position = 32, 20  # some windows wrap around
    for _ in range(60 if form == "compiled" else 20):
        rows = []
        life = 0
        for _ in range(position + slots):
            life += int(rng.random() < 0.1)
            flags = rng.choice([0, 0, 0, TERMINATED, TRUNCATED, 3], size=2).astype(np.uint8)
            nothing = np.zeros(2)
            rows.append(SlowRow(nothing, nothing, rng.normal(size=2).astype(np.float32), flags, 0, 0, life))
        reward, flags = np.zeros(2 * slots, np.float32), np.zeros(2 * slots, np.uint8)
        incarnation = np.zeros(slots, np.int32)
        for p in range(position, position + slots):
            for env in range(2):
                reward[env * slots + p % slots] = rows[p].reward[env]
                flags[env * slots + p % slots] = rows[p].flags[env]
            incarnation[p % slots] = rows[p].incarnation
        for p in range(position, position + slots - n_step):
            for env in range(2):
                total, discount, ahead = cut(reward, flags, incarnation, env * slots, p, n_step, gamma)
                expected = slow_n_step(rows, p, env, n_step, gamma)
                assert total == pytest.approx(expected[0], rel=1e-12, abs=1e-12)
                assert discount == pytest.approx(expected[1], rel=1e-12)
                assert p + ahead == expected[2]


def test_n_step_cut_by_hand() -> None:
    reward = np.array([1, 2, 4, 8], np.float32)
    same_life = np.zeros(4, np.int32)

    def cut(flags: list[int], lives: list[int] | None = None) -> tuple[float, float, int]:
        incarnation = same_life if lives is None else np.array(lives, np.int32)
        return gather.cut(reward, np.array(flags, np.uint8), incarnation, 0, 0, 3, 0.5)

    assert cut([0, 0, 0, 0]) == (1 + 0.5 * 2 + 0.25 * 4, 0.125, 3)
    assert cut([0, TERMINATED, RESET, 0]) == (1 + 0.5 * 2, 0.0, 2)
    assert cut([0, TRUNCATED, RESET, 0]) == (1 + 0.5 * 2, 0.25, 2)
    assert cut([0, TERMINATED | TRUNCATED, RESET, 0]) == (1 + 0.5 * 2, 0.0, 2)
    assert cut([0, 0, 0, 0], [0, 0, 1, 1]) == (1.0, 0.5, 1)
    assert cut([0, 0, TERMINATED, 0]) == (3.0, 0.0, 3)


@FORMS
@pytest.mark.parametrize("frames", [1, 2, 4])
@pytest.mark.parametrize("n_step", [1, 3])
def test_batches_equal_what_the_actors_wrote(
    frames: int, n_step: int, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with rig(
        3, rings=2, envs=3, slots=32, n_step=n_step, frame_stack=frames, spec=FRAMES_SPEC, extras=EXTRAS
    ) as r:
        batch = r.batch(64)
        if form == "interpreted":
            interpret(monkeypatch, tree_kernels, tables, power, gather, rows, sampling, sum_tree)
        for _ in range(8 if form == "compiled" else 2):
            for ring, actor in enumerate(r.actors):
                actor.write(int(r.rng.integers(5, 20)))
                if r.rng.random() < 0.4:
                    actor.restart()
                r.ingest()
                r.grant(ring, max(32, actor.writer.published + int(r.rng.integers(2, 12))))
            r.replay.sample(batch, 0.5)
            r.check_batch(batch)


@FORMS
def test_stack_begins_with_its_episode(form: str) -> None:
    first = gather.first_of_stack if form == "compiled" else gather.first_of_stack.py_func
    #                  0  1  2           3      4  5  6  7
    flags = np.array([0, 0, TERMINATED, RESET, 0, 0, 0, 0], np.uint8)
    life = np.array([0, 0, 0, 0, 0, 0, 1, 1], np.int32)
    assert [first(flags, life, 0, p, 3) for p in range(8)] == [0, 0, 0, 1, 4, 4, 6, 6]
    assert [first(flags, life, 0, p, 1) for p in range(8)] == list(range(8))


def test_copies_of_every_size() -> None:
    @njit
    def copy(to: int, of: int, count: int) -> None:
        copy_bytes(to, of, count)

    source = np.random.default_rng(0).integers(1, 256, 100).astype(np.uint8)
    for count in (0, 1, 3, 4, 7, 8, 12, 16, 17, 32, 33, 64, 99):
        for form in (copy, copy.py_func):
            target = np.zeros(100, np.uint8)
            form(address_of(target), address_of(source), count)
            assert (target[:count] == source[:count]).all()
            assert not target[count:].any()


def test_arrays_by_address_in_python_and_compiled() -> None:
    values = np.arange(5, dtype=np.float32)

    @njit
    def second(address: int) -> float:
        return float32s(address, 5)[1]

    assert second(address_of(values)) == second.py_func(address_of(values)) == 1.0
    with pytest.raises(ValueError, match="array must be C-contiguous"):
        address_of(values[::2])


def test_a_batch_that_does_not_fit_is_refused() -> None:
    with rig(0, rings=1, envs=2, slots=16, extras=EXTRAS) as r:
        r.actors[0].write(10)
        r.ingest()
        batch = r.batch(8)
        batch.reward = np.empty(8, np.float64)
        with pytest.raises(
            ValueError, match=r"batch\.reward must be a writeable \[8\] float32, got \[8\] float64"
        ):
            r.replay.sample(batch, 0.5)
        with pytest.raises(ValueError, match=r"batch\.extras must hold 'hidden'"):
            r.replay.sample(Batch.allocate(8, DEFAULT_SPEC), 0.5)
        batch = r.batch(8)
        batch.obs = np.empty((8, 6), np.float32)[:, ::2]
        with pytest.raises(ValueError, match="array must be C-contiguous"):
            r.replay.sample(batch, 0.5)


def test_a_batch_may_be_given_new_arrays() -> None:
    with rig(0, slots=16) as r:
        r.actors[0].write(12)
        r.ingest()
        batch = r.batch(8)
        r.replay.sample(batch, 0.5)
        old = batch.obs
        kept = old.copy()
        batch.obs = np.zeros_like(old)
        r.replay.sample(batch, 0.5)
        r.check_batch(batch)
        assert np.array_equal(old, kept)
