from typing import Any

import pytest
import torch

from asyncrl.networks import matmul_precision
from asyncrl.networks.matmul_precision import MatmulPrecision

pytestmark = pytest.mark.skipif(
    not hasattr(torch.backends.mkldnn, "matmul"), reason="this torch has no precision of products to set"
)


def setting() -> str:
    return str(torch.backends.mkldnn.matmul.fp32_precision)


@pytest.fixture
def amx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul_precision, "_has_amx", lambda: True)


def test_medium_holds_inside_and_not_after(amx: None) -> None:
    before, context = setting(), MatmulPrecision("medium")
    assert context.reduced
    for _ in range(2):
        with context:
            assert setting() == "bf16"
        assert setting() == before


def test_it_is_set_back_after_an_exception(amx: None) -> None:
    before = setting()
    with pytest.raises(KeyError), MatmulPrecision("medium"):
        assert setting() == "bf16"
        raise KeyError
    assert setting() == before


def test_what_someone_else_has_set_comes_back(amx: None) -> None:
    before = setting()
    torch.backends.mkldnn.matmul.fp32_precision = "ieee"
    try:
        with MatmulPrecision("medium"):
            assert setting() == "bf16"
        assert setting() == "ieee"
    finally:
        torch.backends.mkldnn.matmul.fp32_precision = before


def test_the_contexts_of_two_learners_may_overlap(amx: None) -> None:
    before, first, second = setting(), MatmulPrecision("medium"), MatmulPrecision("medium")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert setting() == "bf16", "the second is still inside"
    second.__exit__(None, None, None)
    assert setting() == before


def test_nothing_changes_without_a_unit_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul_precision, "_has_amx", lambda: False)
    before = setting()
    for context in (MatmulPrecision("medium"), MatmulPrecision("highest"), MatmulPrecision("medium", "meta")):
        assert not context.reduced
        with context:
            assert setting() == before


def test_gpus_use_tf32() -> None:
    before = torch.backends.cuda.matmul.fp32_precision
    with MatmulPrecision("medium", "cuda"):
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    assert torch.backends.cuda.matmul.fp32_precision == before


def test_other_words_are_refused() -> None:
    word: Any = "low"
    with pytest.raises(
        ValueError, match="matmul_precision must be one of highest, medium, bfloat16, got 'low'"
    ):
        MatmulPrecision(word)


def test_products_are_rounded_only_inside() -> None:
    context = MatmulPrecision("medium")
    if not context.reduced:
        pytest.skip("this processor has no AMX")
    a, b = torch.rand(128, 128), torch.rand(128, 128)
    exact = a @ b
    with context:
        rough = a @ b
    assert torch.equal(a @ b, exact)
    assert not torch.equal(rough, exact)
    torch.testing.assert_close(rough, exact, rtol=0.02, atol=0.02)
