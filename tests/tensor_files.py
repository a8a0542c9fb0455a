"""Changed and forged files of the one format, made without the product's own writer."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

START = 8 + len('{"__metadata__":{"sha256":"')


def sealed(data: bytes) -> bytes:
    """The file with the right digest."""
    digest = hashlib.sha256(data[:START] + b"0" * 64 + data[START + 64 :]).hexdigest()
    return data[:START] + digest.encode() + data[START + 64 :]


def is_sealed(data: bytes) -> bool:
    """Whether the digest is right."""
    return len(data) >= START + 64 and sealed(data) == data


def split(data: bytes) -> tuple[Any, bytes]:
    """The table of a file, and the bytes of its arrays."""
    end = 8 + struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8:end]), data[end:]


def joined(table: Any, arrays: bytes) -> bytes:
    """The file with this table."""
    text = json.dumps(table, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text)) + text + arrays


def rewritten(path: Path, change: Callable[[Any], Any]) -> Path:
    """The file after its table has been changed by `change`, with the right digest."""
    table, arrays = split(path.read_bytes())
    table = change(table) or table
    path.write_bytes(sealed(joined(table, arrays)))
    return path


def with_header(path: Path, change: Callable[[Any], Any]) -> Path:
    """The file after its header has been changed by `change`, with the right digest."""

    def changed(table: Any) -> None:
        header = json.loads(table["__metadata__"]["header"])
        header = change(header) or header
        table["__metadata__"]["header"] = header if isinstance(header, str) else json.dumps(header)

    return rewritten(path, changed)
