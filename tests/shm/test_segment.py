"""Segments: layout, seals, reservation, and sizes that are refused before anything starts."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from waiting import PATIENCE_SECONDS

from asyncrl import errors
from asyncrl.errors import SharedMemoryTooSmall
from asyncrl.shm import control_groups, free_memory
from asyncrl.shm import segment as segment_module
from asyncrl.shm.free_memory import available_bytes
from asyncrl.shm.segment import ALIGNMENT, ArraySpec, Segment, bytes_needed

ARRAYS = (
    ArraySpec("header", (3,), "int64", control=True),
    ArraySpec("frames", (2, 5, 7), "uint8"),
    ArraySpec("reward", (4,), "float32"),
)


def address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def test_arrays_lie_in_order_on_cache_lines_of_their_own():
    with Segment.create("test", ARRAYS) as segment:
        starts = [address(segment[a.name]) for a in ARRAYS]
        assert [s - starts[0] for s in starts] == [0, 64, 192]
        assert starts[0] % ALIGNMENT == 0
        assert segment.nbytes == bytes_needed(ARRAYS) == 256
        for a in ARRAYS:
            view = segment[a.name]
            assert (view.shape, view.dtype, view.flags.c_contiguous) == (a.shape, np.dtype(a.dtype), True)
            assert not view.any()


def test_two_mappings_see_the_same_bytes():
    with Segment.create("test", ARRAYS) as one, Segment.attach(os.dup(one.fd), ARRAYS) as two:
        one["reward"][:] = [1, 2, 3, 4]
        assert two["reward"].tolist() == [1, 2, 3, 4]
        assert address(one["reward"]) != address(two["reward"])


def test_poison_fills_what_is_not_a_control_word():
    with Segment.create("test", ARRAYS, poison=True) as segment:
        assert (segment["header"] == 0).all()
        assert (segment["frames"] == 0xFB).all()
        assert (segment["reward"] < -2e36).all()


def test_memory_is_anonymous_reserved_and_not_inherited():
    before = set(os.listdir("/dev/shm"))
    with Segment.create("test", ARRAYS) as segment:
        assert set(os.listdir("/dev/shm")) == before
        assert os.fstat(segment.fd).st_blocks * 512 >= segment.nbytes, "pages are allocated, not promised"
        assert not os.get_inheritable(segment.fd)


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="only a memfd can be sealed")
def test_size_is_sealed():
    with Segment.create("test", ARRAYS) as segment:
        seals = fcntl.fcntl(segment.fd, fcntl.F_GET_SEALS)
        wanted = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        assert seals & wanted == wanted
        for size in (0, 1 << 20):
            with pytest.raises(PermissionError):
                os.ftruncate(segment.fd, size)


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="only Linux has memfd")
@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOSYS, errno.EACCES])
def test_a_refused_memfd_is_replaced_by_a_posix_object(monkeypatch, number):
    """As the seccomp filter of a container does, or `vm.memfd_noexec=2`."""

    def refused(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "memfd_create", refused)
    with Segment.create("test", ARRAYS) as segment:
        assert os.readlink(f"/proc/self/fd/{segment.fd}").startswith("/dev/shm/asyncrl-")
        segment[ARRAYS[0].name][:] = 3
        with Segment.attach(os.dup(segment.fd), ARRAYS) as other:
            assert (other[ARRAYS[0].name] == 3).all()


def test_memory_beyond_the_limit_of_file_sizes_names_the_limit(monkeypatch):
    def beyond(*_):
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))

    monkeypatch.setattr(os, "posix_fallocate", beyond)
    monkeypatch.setattr(segment_module, "file_size_limit", lambda: 4096)
    with pytest.raises(
        errors.SharedMemoryTooSmall, match=r"ASYNC008.*needs .* but `ulimit -f` allows files of 4,096"
    ):
        Segment.create("test", ARRAYS)


def test_without_memfd_the_name_is_gone_at_once(monkeypatch):
    monkeypatch.delattr(os, "memfd_create")
    before = set(os.listdir("/dev/shm"))
    with Segment.create("test", ARRAYS) as one, Segment.attach(os.dup(one.fd), ARRAYS) as two:
        assert set(os.listdir("/dev/shm")) == before
        assert not os.get_inheritable(one.fd)
        one["reward"][0] = 7
        assert two["reward"][0] == 7


def test_a_view_outlives_close():
    segment = Segment.create("test", ARRAYS)
    reward, fd = segment["reward"], segment.fd
    reward[0] = 5
    there = os.dup(fd)
    attached = Segment.attach(os.dup(fd), ARRAYS)
    attached.close()
    assert reward[0] == 5  # only the owner gives the memory back
    segment.close()
    segment.close()
    if sys.platform == "linux":
        assert os.fstat(there).st_blocks == 0  # reading a view takes a page again
    assert segment.closed and reward[0] == (0 if sys.platform == "linux" else 5)
    reward[0] = 6
    os.close(there)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    with pytest.raises(KeyError):
        segment["reward"]


def test_attach_refuses_memory_that_is_too_small():
    with Segment.create("test", ARRAYS) as segment:
        larger = (*ARRAYS, ArraySpec("more", (100,), "int64"))
        fd = os.dup(segment.fd)
        with pytest.raises(
            ValueError, match="segment must hold the layout's 1088 bytes, got a descriptor of 256"
        ):
            Segment.attach(fd, larger)
        os.close(fd)


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        ((), "arrays must hold at least one ArraySpec, got none"),
        ((ARRAYS[0], ARRAYS[0]), r"array names must be distinct, got \['header', 'header'\]"),
        ((ArraySpec("x", (2, 0), "int8"),), r"every axis of x must be at least 1, got shape \(2, 0\)"),
        ((ArraySpec("x", (2,), "object"),), "x must hold plain numbers, got dtype object"),
    ],
)
def test_a_layout_that_means_nothing_is_refused(arrays, text):
    with pytest.raises(ValueError, match=text):
        Segment.create("test", arrays)


def test_too_large_is_found_by_arithmetic_alone(monkeypatch):
    monkeypatch.setattr(os, "memfd_create", lambda *_: pytest.fail("memory was asked for"))
    arrays = (ArraySpec("obs", (1 << 30, 1 << 20), "float32"), ArraySpec("reward", (8,), "float32"))
    with pytest.raises(
        SharedMemoryTooSmall, match="Shared memory for ring of actor 0 needs 4,503,"
    ) as caught:
        Segment.create("ring of actor 0", arrays)
    text = str(caught.value)
    assert text.startswith("[ASYNC008]")
    assert "needed: 4,503,599,627,370,560 bytes" in text
    assert "available: " in text
    assert "largest: obs 4,503,599,627,370,496 bytes [1073741824, 1048576] float32" in text
    assert "fix: lower the replay capacity, num_actors or envs_per_actor" in text


def test_an_interrupted_reservation_leaves_no_memory_behind(monkeypatch):
    def interrupted(fd: int, offset: int, length: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "posix_fallocate", interrupted)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(KeyboardInterrupt):
        Segment.create("interrupted", (ArraySpec("a", (8,), "int64"),))
    assert os.listdir("/proc/self/fd") == before


def test_too_large_is_found_by_reservation(monkeypatch):
    def full(fd: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    opened = len(os.listdir("/proc/self/fd"))
    with pytest.raises(SharedMemoryTooSmall, match=r"ASYNC008.*needs 256 bytes"):
        Segment.create("test", ARRAYS)
    assert len(os.listdir("/proc/self/fd")) == opened, "the descriptor is closed again"


def test_a_system_that_cannot_reserve_still_gets_the_size(monkeypatch):
    def unsupported(fd: int, offset: int, length: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "posix_fallocate", unsupported)
    with Segment.create("test", ARRAYS) as segment:
        assert os.fstat(segment.fd).st_size == 256


def fake_machine(monkeypatch, root: Path, membership: str, files: dict[str, str]) -> None:
    """A machine with 1 GB left and these control groups."""
    (root / "meminfo").write_text("MemTotal: 4000000 kB\nMemAvailable: 1000000 kB\n")
    (root / "cgroup").write_text(membership)
    for name, text in files.items():
        path = root / "fs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(free_memory, "_MEMORY_INFO", root / "meminfo")
    monkeypatch.setattr(control_groups, "_MEMBERSHIPS", root / "cgroup")
    monkeypatch.setattr(control_groups, "_ROOT", root / "fs")


def version_2(group: str, limit: str, used: int, cache: int = 0) -> dict[str, str]:
    return {
        f"{group}/memory.max": limit,
        f"{group}/memory.current": str(used),
        f"{group}/memory.stat": f"anon 5\ninactive_file {cache}\n",
    }


@pytest.mark.parametrize(
    ("membership", "files", "available"),
    [
        ("", {}, 1_024_000_000),
        ("0::/a/b\n", version_2("a/b", "max", 10), 1_024_000_000),
        ("0::/a/b\n", version_2("a/b", "500000", 300_000, cache=50_000), 250_000),
        ("0::/a/b\n", version_2("a", "400000", 100_000) | version_2("a/b", "max", 0), 300_000),
        ("0::/seen/from/outside\n", version_2(".", "700000", 0), 700_000),
        ("0::/a\n", version_2("a", "1000", 5000), 0),
        (
            "3:cpu:/x\n2:memory:/x\n",
            {
                "memory/x/memory.limit_in_bytes": "900000",
                "memory/x/memory.usage_in_bytes": "100000",
                "memory/x/memory.stat": "inactive_file 1\ntotal_inactive_file 20000\n",
            },
            820_000,
        ),
    ],
)
def test_available_is_the_least_of_machine_and_control_groups(
    monkeypatch, tmp_path, membership, files, available
):
    fake_machine(monkeypatch, tmp_path, membership, files)
    assert available_bytes() == available


def test_available_bytes_of_this_machine_is_plausible():
    assert 1 << 20 < available_bytes() < 1 << 50


def test_memory_attached_read_only_is_seen_by_kernels_and_ends_a_process_that_writes() -> None:
    with Segment.create("test", ARRAYS) as one:
        name = ARRAYS[0].name
        one[name][:] = 3
        two = Segment.attach(os.dup(one.fd), ARRAYS, writable=False)
        view = two[name]
        assert view.flags.writeable, "kernels are compiled for writable arrays"
        two.close()
        assert (view == 3).all(), "a view keeps the mapping"
        code = (
            "import sys; from asyncrl.shm.segment import ArraySpec, Segment;"
            f"s = Segment.attach(int(sys.argv[1]), {ARRAYS!r}, writable=False);"
            f"assert (s[{name!r}] == 3).all(); s[{name!r}][:] = 4"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, str(one.fd)], pass_fds=(one.fd,), timeout=PATIENCE_SECONDS
        )
        assert done.returncode == -signal.SIGSEGV
        assert (one[name] == 3).all()
