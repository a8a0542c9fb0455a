"""Message of `async`, with one layout for both directions: a head of two integers, statistics and an encoded vector."""

from __future__ import annotations

import torch

from asyncrl.groups.messages import Encoding

_HEAD_BYTES = 16


class AsyncMessage:
    """Bytes of one message, and views of its parts.

    Args:
        encoding: encoding of the vector.
        told: K, number of float32 values of statistics.

    Attributes:
        bytes: `[16 + 4 K + message_bytes]` uint8.
        head: `[2]` int64; to rank 0 the base version and `finished`, back the new version and the delta's staleness.
        told: `[K]` float32 of NumPy, the statistics.
        body: `[message_bytes]` uint8, the encoded vector.
    """

    def __init__(self, encoding: Encoding, told: int) -> None:
        end = _HEAD_BYTES + 4 * told
        self.bytes = torch.zeros(end + encoding.message_bytes, dtype=torch.uint8)
        self.head = self.bytes[:_HEAD_BYTES].view(torch.int64)
        self.told = self.bytes[_HEAD_BYTES:end].view(torch.float32).numpy()
        self.body = self.bytes[end:]
