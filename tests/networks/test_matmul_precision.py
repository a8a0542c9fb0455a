import threading
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


def everything() -> list[Any]:
    """All settings of precision, by both of torch's interfaces, read on another thread; errors among them."""
    backends, found = torch.backends, []
    getters: list[Any] = [
        torch.get_float32_matmul_precision,
        lambda: backends.cuda.matmul.allow_tf32,
        lambda: backends.cudnn.allow_tf32,
        lambda: backends.cuda.matmul.fp32_precision,
        lambda: backends.mkldnn.matmul.fp32_precision,
        lambda: backends.cudnn.conv.fp32_precision,
        lambda: backends.cudnn.rnn.fp32_precision,
    ]

    def read() -> None:
        for getter in getters:
            try:
                found.append(getter())
            except RuntimeError as error:
                found.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    return found


CONTEXTS = [("highest", "cuda"), ("medium", "cuda"), ("medium", "cpu")]


@pytest.mark.parametrize("chosen", ["highest", "high", "medium"])
@pytest.mark.parametrize("second", [None, *CONTEXTS])
@pytest.mark.parametrize("first", CONTEXTS)
def test_both_interfaces_can_be_read_inside_and_give_the_process_its_values_back(
    first: Any, second: Any, chosen: str, amx: None
) -> None:
    contexts = [MatmulPrecision(*names) for names in (first, second) if names is not None]
    untouched = everything()
    torch.set_float32_matmul_precision(chosen)
    try:
        before = everything()
        for context in contexts:
            context.__enter__()
            assert not [value for value in everything() if isinstance(value, RuntimeError)]
        for context in contexts:
            context.__exit__(None, None, None)
            assert not [value for value in everything() if isinstance(value, RuntimeError)]
        assert everything() == before
    finally:
        torch.set_float32_matmul_precision("highest")
        torch.backends.cuda.matmul.fp32_precision = torch.backends.mkldnn.matmul.fp32_precision = "none"
    assert everything() == untouched


@pytest.mark.parametrize("first_out", [0, 1])
def test_a_learner_on_the_cpu_and_one_on_a_gpu_may_overlap(first_out: int, amx: None) -> None:
    contexts = [MatmulPrecision("medium", "cuda"), MatmulPrecision("medium", "cpu")]
    for context in contexts:
        context.__enter__()
    assert (torch.backends.cuda.matmul.fp32_precision, setting()) == ("tf32", "bf16")
    contexts[first_out].__exit__(None, None, None)
    left = "bf16" if first_out == 0 else "none"
    assert (torch.backends.cuda.matmul.fp32_precision, setting()) == ("tf32", left)
    contexts[1 - first_out].__exit__(None, None, None)
    assert (torch.backends.cuda.matmul.fp32_precision, setting()) == ("none", "none")


def test_highest_takes_convolutions_on_a_gpu_out_of_tf32() -> None:
    convolutions = torch.backends.cudnn.conv
    assert convolutions.fp32_precision == "tf32", "torch's default"
    with MatmulPrecision("highest", "cuda"):
        assert convolutions.fp32_precision == "ieee"
    assert convolutions.fp32_precision == "tf32"
    for other in (MatmulPrecision("medium", "cuda"), MatmulPrecision("highest", "cpu")):
        with other:
            assert convolutions.fp32_precision == "tf32"


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
