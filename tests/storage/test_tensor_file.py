"""The one file format: any safetensors reader opens it, arrays come back equal, every flipped bit is seen."""

from __future__ import annotations

import itertools
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from numpy.typing import NDArray

from asyncrl.errors import CheckpointError
from asyncrl.storage import atomic_file
from asyncrl.storage.atomic_file import write_atomically
from asyncrl.storage.replay_file import REPLAY, read_rows, write_rows
from asyncrl.storage.tensor_file import StoredArray, begins_as, is_whole, read_tensors, stored, write_tensors


def arrays() -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(0)
    kinds = (
        "bool",
        "uint8",
        "int8",
        "uint16",
        "int16",
        "int32",
        "uint64",
        "int64",
        "float16",
        "float32",
        "float64",
    )
    made = {kind: rng.integers(0, 2, (3, 5)).astype(kind) for kind in kinds}
    return {**made, "scalar": np.array(2.5), "empty": np.zeros((0, 4), np.int32), "odd": np.ones(3, np.uint8)}


def assert_equal(found: dict[str, NDArray[Any]], expected: dict[str, NDArray[Any]]) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        assert (found[name] == array).all()


@pytest.mark.parametrize("mapped", [False, True])
def test_arrays_and_header_come_back_and_any_reader_opens_the_file(tmp_path: Path, mapped: bool) -> None:
    path = tmp_path / "file"
    write_tensors(path, REPLAY, {"a": [1, None, float("inf")]}, stored(arrays()))
    header, found = read_tensors(path, REPLAY, lambda header, shapes: (header, shapes), mapped=mapped)
    assert header == ({"a": [1, None, float("inf")]}, {name: array.shape for name, array in arrays().items()})
    assert_equal(found, arrays())
    assert_equal(safetensors.numpy.load_file(path), arrays())
    assert all(
        array.flags.aligned and array.flags.writeable != (mapped and array.size > 0)
        for array in found.values()
    )


def test_rows_are_written_piece_by_piece(tmp_path: Path) -> None:
    whole = np.arange(24, dtype=np.float32).reshape(6, 4)

    def pieces() -> Iterator[NDArray[Any]]:
        return iter((whole[:1], whole[1:4], whole[4:]))

    write_rows(tmp_path / "made" / "x.replay", [StoredArray("ring0/obs", "float32", (6, 4), pieces)])
    assert_equal(read_rows(tmp_path / "made" / "x.replay"), {"ring0/obs": whole})


def test_every_flipped_bit_and_every_cut_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.replay"
    write_rows(
        path, stored({"actor0": np.arange(40, dtype=np.uint8), "ring0/reward": np.ones(6, np.float32)})
    )
    whole = path.read_bytes()
    for bit in range(8 * len(whole)):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << (bit % 8)
        path.write_bytes(data)
        assert not is_whole(path, REPLAY)
        with pytest.raises(CheckpointError) as error:
            read_rows(path)
        assert error.value.facts["file"] == path and error.value.facts["failed check"]
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        with pytest.raises(CheckpointError, match="the replay of the checkpoint is damaged"):
            read_rows(path)
    path.write_bytes(whole)
    assert is_whole(path, REPLAY) and begins_as(path, REPLAY) and read_rows(path)["actor0"][39] == 39


def test_a_dtype_without_a_name_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_tensors(path, REPLAY, {}, stored({"x": np.ones(2)}))
    with pytest.raises(TypeError, match=r"dtype of y must be one of bool, .*, got complex128"):
        write_tensors(path, REPLAY, {}, stored({"y": np.ones(2, np.complex128)}))
    assert read_rows(path)["x"].tolist() == [1, 1]
    assert list(tmp_path.iterdir()) == [path]


def test_a_path_that_cannot_be_written_is_named_as_it_was_given(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as error:
        write_atomically(tmp_path / "none" / "file", [b"x"])
    assert error.value.filename == str(tmp_path / "none" / "file")
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError) as off:
        write_atomically(tmp_path / "file" / "inner", [b"x"])
    assert off.value.filename == str(tmp_path / "file" / "inner")
    with pytest.raises(IsADirectoryError, match="Is a directory"):
        write_atomically(Path(""), [b"x"])


def test_two_writers_of_a_file_do_not_share_their_temporary_files(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with atomic_file.replaced_atomically(path) as one:
        one.write(b"one, ")
        with atomic_file.replaced_atomically(path) as other:
            other.write(b"another")
        assert path.read_bytes() == b"another"
        one.write(b"whole")
    assert path.read_bytes() == b"one, whole" and list(tmp_path.iterdir()) == [path]


def test_a_secret_is_never_readable_by_others_and_no_link_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, path = tmp_path / "other", tmp_path / "http.json"
    other.write_text("of somebody else")
    path.symlink_to(other)
    monkeypatch.setattr(atomic_file, "_COUNT", itertools.count(7))
    (tmp_path / f".http.json.{os.getpid()}.7.tmp").symlink_to(other)
    modes = []

    def chunks() -> Iterator[bytes]:
        (temporary,) = tmp_path.glob(".*")
        modes.append(stat.S_IMODE(temporary.stat().st_mode))
        yield b"token"

    before = os.umask(0)
    try:
        write_atomically(path, chunks(), mode=0o600)
    finally:
        os.umask(before)
    assert modes == [0o600] and stat.S_IMODE(path.lstat().st_mode) == 0o600
    assert (path.read_bytes(), other.read_text()) == (b"token", "of somebody else")
    assert sorted(tmp_path.iterdir()) == [path, other]
