"""Encodings of a flat float32 vector as the bytes of a message, with error feedback for the lossy ones.

    float32    4 bytes per value, exact
    bfloat16   2 bytes per value
    int8       1 byte per value, and a float32 scale for every 256 values
    topk       8 bytes for each of the 1/16 of the values that are largest in magnitude, nothing for the others

Running statistics among the values are exact in every message.

Error feedback adds the encoding error of one message to the next one.

    Seide et al. 2014         1-bit stochastic gradient descent and its application to speech networks
    Karimireddy et al. 2019   Error feedback fixes SignSGD and other gradient compression schemes
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor

_BLOCK = 256
"""Number of values that share a scale in int8."""
_LARGEST_BYTE = 127
_TOP_SHARE = 1 / 16
"""Share of the values that top-k sends."""
_HEAD_BYTES = 16


class Encoding(ABC):
    """Encodes vectors `[size]` as `message_bytes` bytes, and decodes them; stateless.

    Attributes:
        size: number of values of a vector.
        message_bytes: bytes of a message.
        exact: whether decoding gives the vector without error.
    """

    exact = False

    def __init__(self, size: int, message_bytes: int) -> None:
        self.size, self.message_bytes = size, message_bytes

    @abstractmethod
    def encode(self, vector: Tensor, out: Tensor) -> None:
        """Write `vector` `[size]` float32 into `out` `[message_bytes]` uint8."""

    @abstractmethod
    def decode(self, message: Tensor, out: Tensor) -> None:
        """Write the vector of `message` `[message_bytes]` uint8 into `out` `[size]` float32."""


class _Cast(Encoding):
    """Values converted to another floating-point type."""

    dtype: torch.dtype

    def __init__(self, size: int) -> None:
        super().__init__(size, self.dtype.itemsize * size)

    def encode(self, vector: Tensor, out: Tensor) -> None:
        """See `Encoding`."""
        out.view(self.dtype).copy_(vector)

    def decode(self, message: Tensor, out: Tensor) -> None:
        """See `Encoding`."""
        out.copy_(message.view(self.dtype))


class Float32(_Cast):
    """Four bytes per value; exact."""

    exact = True
    dtype = torch.float32


class BFloat16(_Cast):
    """Two bytes per value, with eight significant bits."""

    dtype = torch.bfloat16


class Int8(Encoding):
    """One byte per value, rounded to a multiple of 1/127 of the largest magnitude in its block of 256."""

    def __init__(self, size: int) -> None:
        self._blocks = math.ceil(size / _BLOCK)
        super().__init__(size, self._blocks * (_BLOCK + 4))

    def encode(self, vector: Tensor, out: Tensor) -> None:
        """See `Encoding`."""
        scales, values = self._parts(out)
        padded = torch.zeros(self._blocks * _BLOCK)
        padded[: self.size] = vector
        blocks = padded.view(self._blocks, _BLOCK)
        largest = blocks.abs().amax(dim=1, keepdim=True)
        scales.copy_(largest / _LARGEST_BYTE)
        values.copy_((blocks * (_LARGEST_BYTE / largest.clamp(min=1e-30))).round_())

    def decode(self, message: Tensor, out: Tensor) -> None:
        """See `Encoding`."""
        scales, values = self._parts(message)
        out.copy_((values * scales).view(-1)[: self.size])

    def _parts(self, message: Tensor) -> tuple[Tensor, Tensor]:
        """Scales `[blocks, 1]` and values `[blocks, 256]`, views into the message."""
        head = 4 * self._blocks
        values = message[head:].view(torch.int8).view(self._blocks, _BLOCK)
        return message[:head].view(torch.float32).unsqueeze(1), values


class TopK(Encoding):
    """The 1/16 of the values with the largest magnitudes, with their indices; zeros elsewhere."""

    def __init__(self, size: int) -> None:
        self._count = math.ceil(size * _TOP_SHARE)
        super().__init__(size, 8 * self._count)

    def encode(self, vector: Tensor, out: Tensor) -> None:
        """See `Encoding`."""
        places = vector.abs().topk(self._count, sorted=False).indices
        kept, values = self._parts(out)
        kept.copy_(places)
        values.copy_(vector[places])

    def decode(self, message: Tensor, out: Tensor) -> None:
        """See `Encoding`."""
        places, values = self._parts(message)
        out.zero_()
        out[places.long()] = values

    def _parts(self, message: Tensor) -> tuple[Tensor, Tensor]:
        head = 4 * self._count
        return message[:head].view(torch.int32), message[head:].view(torch.float32)


ENCODINGS: dict[str, type[Float32 | BFloat16 | Int8 | TopK]] = {
    "float32": Float32,
    "bfloat16": BFloat16,
    "int8": Int8,
    "topk": TopK,
}
"""Encodings by their name in `fusion_dtype`."""


class ExactPart(Encoding):
    """An encoding of all values but some, which have four bytes each and are exact.

    Args:
        others: encoding of the other values, of the same size.
        places: `[K]` int64, positions of the exact values.
    """

    def __init__(self, others: Encoding, places: Tensor) -> None:
        self._others, self._places, self._head = others, places, 4 * places.numel()
        super().__init__(others.size, self._head + others.message_bytes)

    def encode(self, vector: Tensor, out: Tensor) -> None:
        """See `Encoding`."""
        out[: self._head].view(torch.float32).copy_(vector[self._places])
        rest = vector.clone()
        rest[self._places] = 0.0
        self._others.encode(rest, out[self._head :])

    def decode(self, message: Tensor, out: Tensor) -> None:
        """See `Encoding`."""
        self._others.decode(message[self._head :], out)
        out[self._places] = message[: self._head].view(torch.float32)


def encoding_of(name: str, size: int, exact: Tensor) -> Encoding:
    """Make the encoding `name` of `size` values, of which those at the positions `exact` `[K]` have no error."""
    encoding = ENCODINGS[name](size)
    return encoding if encoding.exact or not exact.numel() else ExactPart(encoding, exact)


class Feedback:
    """Error feedback of one sender: the accumulated encoding error is added to the next message.

    Attributes:
        residual: `[size]`, accumulated error, still to be sent; zeros if the encoding is exact.
    """

    def __init__(self, encoding: Encoding) -> None:
        self._encoding = encoding
        self.residual = torch.zeros(encoding.size)
        self._sent = torch.zeros(encoding.size)

    def encode(self, vector: Tensor, out: Tensor, part: slice = slice(None)) -> Tensor:
        """Encode `vector` plus the residual into `out`; returns the receiver's vector, valid until the next call.

        Of a lossy message only `part` is used; it holds zeros for the rest, whose residual is kept.
        """
        encoding, sent = self._encoding, self._sent
        if encoding.exact:
            encoding.encode(vector, out)
            return vector
        sent.zero_()
        sent[part] = self.residual[part].add_(vector[part])
        encoding.encode(sent, out)
        encoding.decode(out, sent)
        self.residual.sub_(sent)
        return sent


class AsyncMessage:
    """Bytes of one message of `async`, and views of its parts; one layout for both directions.

    Args:
        encoding: encoding of the vector.
        statistics: K, number of float32 values of statistics.

    Attributes:
        bytes: `[16 + 4 K + message_bytes]` uint8.
        head: `[2]` int64; to rank 0 the base version and `finished`, back the new version and the delta's staleness.
        statistics: `[K]` float32 of NumPy, the statistics.
        body: `[message_bytes]` uint8, the encoded vector.
    """

    def __init__(self, encoding: Encoding, statistics: int) -> None:
        end = _HEAD_BYTES + 4 * statistics
        self.bytes = torch.zeros(end + encoding.message_bytes, dtype=torch.uint8)
        self.head = self.bytes[:_HEAD_BYTES].view(torch.int64)
        self.statistics = self.bytes[_HEAD_BYTES:end].view(torch.float32).numpy()
        self.body = self.bytes[end:]
