"""A message of `async`, the same both ways: a head of two integers, shared statistics, and an encoded vector."""

from __future__ import annotations

import torch

from asyncrl.groups.messages import Encoding

_HEAD_BYTES = 16


class AsyncMessage:
    """The bytes of one message, and views of its parts.

    Args:
        encoding: of the vector.
        told: K, float32 values of statistics.

    Attributes:
        bytes: `[16 + 4 K + message_bytes]` uint8.
        head: `[2]` int64: base version and whether the group has finished; version and staleness on the way back.
        told: `[K]` float32.
        body: `[message_bytes]` uint8.
    """

    def __init__(self, encoding: Encoding, told: int) -> None:
        end = _HEAD_BYTES + 4 * told
        self.bytes = torch.zeros(end + encoding.message_bytes, dtype=torch.uint8)
        self.head = self.bytes[:_HEAD_BYTES].view(torch.int64)
        self.told = self.bytes[_HEAD_BYTES:end].view(torch.float32)
        self.body = self.bytes[end:]
