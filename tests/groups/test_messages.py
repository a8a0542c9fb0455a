"""Messages: encoding, decoding, and no loss in the long run."""

from __future__ import annotations

import pytest
import torch

from asyncrl.groups.messages import ENCODINGS, Feedback

SIZE = 1000


def sent(name: str, vector: torch.Tensor) -> torch.Tensor:
    encoding = ENCODINGS[name](vector.numel())
    message = torch.zeros(encoding.message_bytes, dtype=torch.uint8)
    encoding.encode(vector, message)
    out = torch.full_like(vector, torch.nan)
    encoding.decode(message, out)
    return out


@pytest.mark.parametrize(
    ("name", "count"), [("float32", 4000), ("bfloat16", 2000), ("int8", 4 * 260), ("topk", 63 * 8)]
)
def test_bytes_of_a_message(name: str, count: int) -> None:
    assert ENCODINGS[name](SIZE).message_bytes == count


@pytest.mark.parametrize(("name", "error"), [("float32", 0.0), ("bfloat16", 2**-8), ("int8", 0.5 / 127)])
def test_error_of_a_message_is_bounded(name: str, error: float) -> None:
    vector = torch.randn(SIZE, generator=torch.Generator().manual_seed(0))
    largest = vector.abs().max()
    assert (sent(name, vector) - vector).abs().max() <= error * largest * 1.001


def test_int8_sends_blocks_of_zeros_as_zeros() -> None:
    vector = torch.zeros(600)
    vector[300] = -3.0
    out = sent("int8", vector)
    assert out[300] == -3.0 and torch.count_nonzero(out) == 1


def test_topk_sends_the_largest_and_nothing_else() -> None:
    vector = torch.arange(1.0, 33.0) * torch.tensor([1.0, -1.0]).repeat(16)
    out = sent("topk", vector)
    assert out.nonzero().flatten().tolist() == [30, 31]
    assert out[30:].tolist() == [31.0, -32.0]


@pytest.mark.parametrize("name", ["bfloat16", "int8", "topk"])
def test_what_a_message_loses_is_in_the_next_ones(name: str) -> None:
    encoding = ENCODINGS[name](SIZE)
    feedback, generator = Feedback(encoding), torch.Generator().manual_seed(1)
    message = torch.zeros(encoding.message_bytes, dtype=torch.uint8)
    given, received = torch.zeros(SIZE, dtype=torch.float64), torch.zeros(SIZE, dtype=torch.float64)
    for _ in range(300):
        vector = torch.randn(SIZE, generator=generator)
        given += vector
        received += feedback.encode(vector, message)
    assert torch.allclose(received + feedback.residual, given, atol=1e-3)
    assert feedback.residual.abs().max() < 60, "the residual stays bounded"


def test_bfloat16_with_feedback_is_exact_on_integers() -> None:
    encoding = ENCODINGS["bfloat16"](64)
    feedback, generator = Feedback(encoding), torch.Generator().manual_seed(2)
    message = torch.zeros(encoding.message_bytes, dtype=torch.uint8)
    given, received = torch.zeros(64), torch.zeros(64)
    for _ in range(2000):
        vector = torch.randint(-1000, 1001, (64,), generator=generator).float()
        given += vector
        received += feedback.encode(vector, message)
        assert torch.equal(received + feedback.residual, given)
