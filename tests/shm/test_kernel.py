"""Kernels: one signature, compiled on first use, and a cache that every source they are made of makes stale."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from asyncrl.replay import rows
from asyncrl.shm import kernel_cache
from asyncrl.shm.atomics import load_acquire
from asyncrl.shm.kernel import inlined, kernel
from asyncrl.shm.kernel_cache import source_stamp


@inlined
def doubled(x):
    return 2 * x


@kernel("int64(int64)")
def quadrupled(x):
    return doubled(doubled(x))


@kernel("int64(int64)")
def octupled(x):
    return 2 * quadrupled(x)


def test_a_kernel_takes_its_signature_and_nothing_else():
    words = np.zeros(16, np.int64)
    first = kernel("int64(int64[::1])")(lambda words: load_acquire(words, 0))
    assert first(words) == 0
    with pytest.raises(TypeError, match="No matching definition"):
        first(words.astype(np.int32))


def test_a_first_call_with_other_arguments_compiles_the_declared_signature_only():
    twice = kernel("int64(int64[::1])")(lambda words: 2 * words[0])
    with pytest.raises(TypeError, match="No matching definition"):
        twice(np.ones(1))
    assert len(twice.signatures) == 1
    assert twice(np.ones(1, np.int64)) == 2


def test_a_kernel_compiles_on_first_use_with_the_kernels_that_it_calls():
    fresh = kernel("int64(int64)")(octupled.py_func)
    assert not fresh.signatures
    assert fresh(3) == 24 == octupled.py_func(3)
    assert quadrupled.signatures


def test_a_kernel_is_pickled_by_reference():
    assert pickle.loads(pickle.dumps(quadrupled)) is quadrupled


def write(package, **files):
    for name, text in files.items():
        path = package / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_a_stamp_names_every_file_that_a_kernel_is_made_of(tmp_path):
    """Machine code of one file on the table layout of another is a segmentation fault, not an error."""
    names = [name for name, _ in source_stamp(kernel_cache.PACKAGE / "replay" / "rows.py")]
    assert {"interfaces.py", "atomics.py", "kernel.py", "ring_layout.py", "gather.py", "rows.py"} <= set(
        names
    )
    assert "learner.py" not in names
    own = source_stamp(kernel_cache.PACKAGE / "replay" / "rows.py")
    assert rows.ingest._cache._cache_file._source_stamp == own


@pytest.mark.parametrize("edited", ["a", "b", "room__c", "room__d"])
def test_an_edit_of_any_file_of_a_kernel_makes_its_stamp_another(tmp_path, edited):
    package = tmp_path / "pack"
    files = {
        "a": "from pack.b import (\n    X,\n    Y,\n)\n",
        "b": "from pack.room import c\n",
        "room__c": "import pack.room.d\n",
        "room__d": "Z = 1\n",
        "room__e": "not imported\n",
    }
    write(package, **files)
    stamps = []
    for name in (None, "room__e", edited):
        if name is not None:
            write(package, **{name: files[name] + "# edited\n"})
        kernel_cache._read.cache_clear()
        stamps.append(source_stamp(package / "a.py", package))
    assert [name for name, _ in stamps[0]] == ["a.py", "b.py", "c.py", "d.py"]
    assert stamps[0] == stamps[1] != stamps[2]
