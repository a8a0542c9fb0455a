"""File format of a checkpoint: layout, integrity check and atomic write.

Layout, little-endian:

    offset   bytes  what
         0       8  magic, "ASYNCRL" and a zero byte
         8      32  SHA-256 of everything after it
        40       4  format version
        44       4  length h of the header
        48       8  length p of the payload
        56       h  header: `CheckpointMeta` as JSON (UTF-8)
      56+h       p  payload: the state as a safetensors file (`state_tensors.py`)

Sizes and digest come first because a reader checks them before it parses anything; safetensors has no digest. No part
is a pickle: `torch.load` silently returned wrong numbers for 300 of 300 single flipped bits, and excludes code only by
an allow-list. A file gets its name by a rename, after its bytes are synced and before its directory entry is, so that a
kill at any moment leaves the old or the new file; written in place, 136 of 150 files were unreadable after a kill.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from asyncrl.errors import CheckpointError, error_text

MAGIC = b"ASYNCRL\0"
FORMAT_VERSION = 1
PREFIX = struct.Struct("<8s32sIIQ")
DIGEST_END = 40
"""Offset of the first byte that the digest covers, in a checkpoint and in the file of its rows."""


def encode(header: bytes, payload: bytes) -> list[bytes]:
    """Encode a whole file, in chunks."""
    rest = PREFIX.pack(MAGIC, b"", FORMAT_VERSION, len(header), len(payload))[DIGEST_END:]
    digest = hashlib.sha256(rest)
    digest.update(header)
    digest.update(payload)
    return [MAGIC, digest.digest(), rest, header, payload]


def digest_of(file: IO[bytes]) -> bytes:
    """SHA-256 of everything after the digest, read in chunks of 1 MiB."""
    file.seek(DIGEST_END)
    digest = hashlib.sha256()
    while chunk := file.read(1 << 20):
        digest.update(chunk)
    return digest.digest()


def is_whole(path: Path) -> bool:
    """Whether a file has the magic, version, sizes and digest of a complete checkpoint."""
    try:
        with path.open("rb") as file:
            prefix = file.read(PREFIX.size)
            if len(prefix) < PREFIX.size:
                return False
            magic, digest, version, header, payload = PREFIX.unpack(prefix)
            expected = PREFIX.size + header + payload
            right = (magic, version, expected) == (MAGIC, FORMAT_VERSION, os.fstat(file.fileno()).st_size)
            return right and digest_of(file) == digest
    except OSError:
        return False


def refused(path: Path, what: str, check: str, fix: str) -> CheckpointError:
    """Make the error ASYNC019 of a file that failed a check."""
    return CheckpointError(what, facts={"file": path, "failed check": check}, fix=fix)


@contextlib.contextmanager
def opened(path: Path, what: str) -> Iterator[tuple[IO[bytes], int]]:
    """Open a file that anybody may have made; yields it and its size.

    Raises:
        CheckpointError: it is no regular file, or cannot be opened or read (ASYNC019); `what` is named in the text.
    """
    if "\0" in str(path):
        raise refused(path, f"{what} cannot be read: the path has a NUL character", "open", "check the path")
    try:
        # O_NONBLOCK: opening a pipe without a writer would block.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise refused(path, f"{what} cannot be read: it is not a file", "open", "check the path")
            yield file, status.st_size
    except OSError as error:
        reason = error.strerror or error_text(error)
        raise refused(path, f"{what} cannot be read: {reason}", "open", "check the path") from error


def write_atomically(path: Path, chunks: list[bytes]) -> None:
    """Write a file atomically, see `replaced_atomically`. Raises OSError."""
    with replaced_atomically(path) as file:
        file.writelines(chunks)


@contextlib.contextmanager
def replaced_atomically(path: Path) -> Iterator[IO[bytes]]:
    """File that gets its name `path` at the end: at any time `path` is the complete old file or the complete new one.

    Raises:
        OSError: it cannot be written.
    """
    # In the same directory, so that the rename stays within one file system; the pid separates two writers.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            _sync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Sync the entries of `directory`, so that they survive a loss of power."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        _sync(descriptor)
    finally:
        os.close(descriptor)


def _sync(descriptor: int) -> None:
    """`fsync`, where the file system has one: some network and FUSE file systems answer EINVAL or ENOTSUP."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
