"""Kernels: one signature, compiled on first use, and a cache that a change of any of their sources invalidates."""

from __future__ import annotations

import errno
import io
import os
import pickle
import subprocess
import sys
import threading

import numpy as np
import pytest
from waiting import PATIENCE_SECONDS

from asyncrl.replay import rows
from asyncrl.shm import kernel_cache
from asyncrl.shm.atomics import load_acquire
from asyncrl.shm.kernel import inlined, kernel
from asyncrl.shm.kernel_cache import source_stamp
from asyncrl.shm.prepare import Progress


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
    """Machine code for another file's table layout causes a segmentation fault, not an error."""
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


# ---- where the cache is --------------------------------------------------------------------------


@pytest.fixture
def places(monkeypatch, tmp_path):
    """The four possible places of the cache, empty; a test sets the writable ones by `places.only`."""
    sources, numba, user, system = (tmp_path / name for name in ("sources", "numba", "user", "system"))
    for folder in (sources, numba, user, system):
        folder.mkdir()
    monkeypatch.setattr(kernel_cache.config, "CACHE_DIR", str(numba))
    monkeypatch.setenv("XDG_CACHE_HOME", str(user))
    monkeypatch.setattr(kernel_cache.tempfile, "gettempdir", lambda: str(system))
    writable = kernel_cache.is_writable

    def only(*names):
        allowed = [tmp_path / name for name in names]
        monkeypatch.setattr(
            kernel_cache,
            "is_writable",
            lambda folder: any(folder.is_relative_to(place) for place in allowed) and writable(folder),
        )
        kernel_cache.cache_folder.cache_clear()
        return kernel_cache.cache_folder(sources)

    yield only
    kernel_cache.cache_folder.cache_clear()


def test_without_any_temporary_directory_kernels_are_for_this_run_alone(places, monkeypatch):
    def none():
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr(kernel_cache.tempfile, "gettempdir", none)
    assert places() is None


@pytest.mark.parametrize(
    "writable, chosen",
    [
        (("sources", "numba", "user", "system"), "numba"),
        (("sources", "user", "system"), "sources/__pycache__"),
        (("user", "system"), "user/asyncrl/kernels"),
        (("system",), "system"),
    ],
)
def test_the_cache_is_in_the_first_place_that_can_be_written(places, tmp_path, writable, chosen):
    folder = places(*writable)
    assert folder.is_relative_to(tmp_path / chosen) and folder.is_dir()


def test_kernels_are_not_taken_from_a_temporary_folder_of_others(places, tmp_path):
    kernel_cache.temporary_folder().mkdir(mode=0o777)
    kernel_cache.temporary_folder().chmod(0o777)
    assert places("system") is None


def test_a_kernel_runs_where_nothing_can_be_stored(places):
    assert places() is None
    assert kernel("int64(int64)")(lambda x: x + 1)(1) == 2


# ---- processes -----------------------------------------------------------------------------------

MODULE = """
import sys
from asyncrl.shm.kernel import kernel
from asyncrl.shm.prepare import prepare_run

@kernel("int64(int64)")
def one(x):
    return x + 1

@kernel("int64(int64)")
def two(x):
    return one(x) + 1

@kernel("int64(int64)", cold=True)
def rare(x):
    return two(x) + 1

if __name__ == "__main__":
    prepare_run(("asyncrl",))
    print(two(1), *(int(sum(f._cache_misses.values())) for f in (one, two, rare)), rare.is_ready)
    print("numba.np.arraymath" in sys.modules, rare(1) if "rare" in sys.argv else "")
"""


@pytest.fixture
def program(tmp_path):
    """A program with its own kernels; started with its own cache."""
    path = tmp_path / "program.py"
    path.write_text(MODULE)

    def started(*arguments):
        environment = os.environ | {
            "NUMBA_CACHE_DIR": str(tmp_path / "cache"),
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        return subprocess.Popen(
            [sys.executable, path, *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return started


def test_only_the_first_run_compiles_and_says_so(program, tmp_path):
    first = program().communicate(timeout=PATIENCE_SECONDS)
    assert first == ("3 1 1 0 False\nTrue \n", "compiling 2 kernels, once per installation\n")
    assert program().communicate(timeout=PATIENCE_SECONDS) == ("3 0 0 0 False\nFalse \n", ""), (
        "loads no compiler"
    )
    assert not list(tmp_path.rglob("*.lock"))


def test_a_kernel_is_compiled_over_others_that_were_loaded(program):
    program().communicate(timeout=PATIENCE_SECONDS)
    assert program("rare").communicate(timeout=PATIENCE_SECONDS)[0] == "3 0 0 0 False\nFalse 4\n"


def test_processes_that_start_together_compile_each_kernel_once(program):
    answers = [
        process.communicate(timeout=PATIENCE_SECONDS)[0].split() for process in [program() for _ in range(3)]
    ]
    assert [answer[0] for answer in answers] == ["3"] * 3
    assert [sum(int(answer[i]) for answer in answers) for i in (1, 2)] == [1, 1]


def test_an_edited_source_is_compiled_anew(program, tmp_path):
    program().communicate(timeout=PATIENCE_SECONDS)
    path = tmp_path / "program.py"
    path.write_text(MODULE.replace("return one(x) + 1", "return one(x) + 5"))
    assert program().communicate(timeout=PATIENCE_SECONDS)[0].startswith("7 1 1")


@pytest.mark.parametrize(("files", "content"), [("*.nbc", b"torn"), ("*.nbi", b"torn"), ("*.nbi", b"")])
def test_an_entry_that_cannot_be_read_is_compiled_anew(program, tmp_path, files, content):
    program().communicate(timeout=PATIENCE_SECONDS)
    for path in tmp_path.rglob(files):
        path.write_bytes(content)
    assert program().communicate(timeout=PATIENCE_SECONDS)[0].startswith("3 1 1 0 False\n")
    assert program().communicate(timeout=PATIENCE_SECONDS)[0].startswith("3 0 0 0 False\n")


# ---- the line that says so -----------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_rewrites_one_line_on_a_terminal():
    terminal = Terminal()
    progress = Progress(2, terminal)
    progress.advance()
    progress.advance()
    assert (
        terminal.getvalue()
        == "".join(f"\rcompiling kernels, once per installation: {done}/2" for done in range(3)) + "\n"
    )


def test_progress_is_one_line_elsewhere():
    pipe = io.StringIO()
    progress = Progress(2, pipe)
    progress.advance()
    progress.advance()
    assert pipe.getvalue() == "compiling 2 kernels, once per installation\n"


def test_progress_of_one_kernel_is_in_the_singular():
    pipe = io.StringIO()
    Progress(1, pipe)
    assert pipe.getvalue() == "compiling 1 kernel, once per installation\n"


@pytest.mark.parametrize(
    ("stream", "text"),
    [
        (io.StringIO, "compiling 3 kernels, once per installation\n"),
        (Terminal, "\rcompiling kernels, once per installation: 2/3"),
    ],
)
def test_progress_says_nothing_before_it_may(stream, text):
    written, may_print = stream(), threading.Event()
    progress = Progress(3, written, may_print=may_print)
    progress.advance()
    assert written.getvalue() == ""
    may_print.set()
    progress.advance()
    assert written.getvalue() == text


def test_progress_does_not_tell_of_what_is_done():
    written, may_print = Terminal(), threading.Event()
    progress = Progress(1, written, may_print=may_print)
    may_print.set()
    progress.advance()
    assert written.getvalue() == ""


def test_progress_on_a_closed_stream_is_silent():
    closed = io.StringIO()
    closed.close()
    Progress(2, closed).advance()
    Progress(2, None).advance()
