"""Matrix products: both libraries against float64, the choice of the library, and its threads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from asyncrl.algorithms import ALGORITHMS
from asyncrl.interfaces import Batch, BoxAction, EnvSpec
from asyncrl.networks import products as module
from asyncrl.networks.mlp import FlatMLP
from asyncrl.networks.products import product_library, product_threads, products, uses_numpy
from tests.networks.test_mlp import SHAPES, network

CPU = torch.device("cpu")


def random_operand(rng: np.random.Generator, copies: int | None, rows: int, columns: int) -> torch.Tensor:
    """Values as a contiguous tensor, a transposed one, or columns of a wider one."""
    lead = () if copies is None else (copies,)
    kind = rng.integers(3)
    shape = (*lead, columns, rows) if kind == 1 else (*lead, rows, columns + 3 * (kind == 2))
    values = torch.from_numpy(rng.standard_normal(shape, np.float32))
    return values.mT if kind == 1 else values[..., :columns]


@pytest.mark.parametrize("numpy", [True, False])
@pytest.mark.parametrize("copies", [None, 1, 3])
def test_products_of_random_shapes_and_strides_are_those_in_float64(copies: int | None, numpy: bool) -> None:
    rng = np.random.default_rng(0)
    for _ in range(60):
        rows, inner, columns = rng.choice([1, 2, 5, 17, 64], 3)
        x, w = random_operand(rng, copies, rows, inner), random_operand(rng, copies, inner, columns)
        out = torch.full((*x.shape[:-1], columns), torch.nan)
        calls = products(x, w, out, numpy=numpy)
        for _ in range(2):  # the operands are read at each call
            x.mul_(2)
            for call in calls:
                call()
        np.testing.assert_allclose(out, x.double() @ w.double(), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize(("sizes", "copies"), SHAPES)
def test_passes_of_both_libraries_agree(sizes: tuple[int, ...], copies: int | None, activation: Any) -> None:
    """Forward pass, gradients of the weights, and gradients at the input, summed over the copies."""
    found = []
    for numpy in (True, False):
        net = network(sizes, copies, activation)
        x = torch.linspace(-1, 1, 12 * sizes[0]).sin().view(12, -1)
        gradient = torch.full_like(net.flat, torch.nan)
        options: Any = {"weight_rows": 5, "input_rows": 4, "input_columns": sizes[0] // 2, "numpy": numpy}
        passed = net.make_pass(x, gradient, **options)
        output = passed.forward().clone()
        grad = torch.linspace(1, 2, output[..., :9, :].numel()).view(output[..., :9, :].shape)
        found.append((output, passed.backward(grad), gradient))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("numpy", [True, False])
def test_infinite_weights_give_nan_without_a_warning(numpy: bool) -> None:
    net = network((3, 4, 4, 2), None)
    net.flat.fill_(torch.inf)
    passed = net.make_pass(
        torch.tensor([[1.0, -1.0, 0.0]]), torch.empty_like(net.flat), weight_rows=1, numpy=numpy
    )
    assert passed.forward().isnan().all()
    passed.backward(torch.ones(1, 2))


def test_only_wide_products_enter_the_reduced_precision() -> None:
    entered = []

    class Precision:
        reduced = True

        def __enter__(self) -> None:
            entered.append(True)

        def __exit__(self, *_: object) -> None:
            pass

    for side, expected in ((module.NARROW - 1, 0), (module.NARROW, 1)):
        x = torch.randn(module.NARROW, side)
        w, out = torch.randn(side, module.NARROW), torch.empty(module.NARROW, module.NARROW)
        for call in products(x, w, out, Precision(), numpy=True):  # type: ignore[arg-type]
            call()
        assert len(entered) == expected
        torch.testing.assert_close(out, x @ w, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("numpy", [True, False])
def test_an_update_in_float32_takes_the_library_of_the_processor_for_wide_products_too(
    numpy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "product_library", lambda: "numpy (openblas)" if numpy else "torch (mkl)")
    sides: list[int] = []
    dot = np.dot

    def counted(x: Any, w: Any, out: Any) -> Any:
        sides.append(min(*x.shape, w.shape[-1]))
        return dot(x, w, out)

    monkeypatch.setattr(np, "dot", counted)
    spec = EnvSpec("any", (3,), "float32", BoxAction((-1.0,), (1.0,), (1,)))
    width = module.NARROW
    core = ALGORITHMS["sac"](hidden_sizes=(width, width), batch_size=width).make_updater(spec, "cpu", 0)
    core.update(drawn_batch(width, spec))
    # Between hidden layers: forward of actor, two critics and their targets; two gradients each but the targets.
    assert sides.count(width) == (5 + 2 * 3 if numpy else 0)


def drawn_batch(size: int, spec: EnvSpec) -> Batch:
    rng, batch = np.random.default_rng(0), Batch.allocate(size, spec)
    batch.obs[:], batch.next_obs[:] = rng.standard_normal((2, *batch.obs.shape))
    batch.action[:] = rng.uniform(-1.0, 1.0, batch.action.shape)
    batch.reward[:], batch.discount[:], batch.weight[:] = 1.0, 0.9, 1.0
    return batch


class Controller:
    def __init__(self, *architectures: str) -> None:
        self._architectures = architectures

    def info(self) -> list[dict[str, str]]:
        return [{"architecture": name} for name in self._architectures]


@pytest.fixture
def fresh_choice() -> Iterator[None]:
    product_library.cache_clear()
    yield
    product_library.cache_clear()


@pytest.mark.usefixtures("fresh_choice")
@pytest.mark.parametrize(
    ("processor", "avx512", "blas", "kernels", "expected"),
    [
        ("AMD EPYC", True, "mkl", ("SkylakeX",), "numpy (openblas SkylakeX)"),
        ("AMD EPYC", True, "mkl", ("Haswell",), "torch (mkl)"),  # OPENBLAS_CORETYPE, or an old OpenBLAS
        ("AMD EPYC", True, "mkl", ("SkylakeX", "Haswell"), "torch (mkl)"),
        ("AMD EPYC", True, "mkl", (), "torch (mkl)"),  # a NumPy without OpenBLAS
        ("AMD EPYC", True, "open", ("SkylakeX",), "torch (open)"),
        ("AMD EPYC", False, "mkl", ("Zen",), "torch (mkl)"),
        ("Intel(R) Xeon(R)", True, "mkl", ("SkylakeX",), "torch (mkl)"),
    ],
)
def test_the_library_follows_from_the_processor_and_the_builds(
    monkeypatch: pytest.MonkeyPatch,
    processor: str,
    avx512: bool,
    blas: str,
    kernels: tuple[str, ...],
    expected: str,
) -> None:
    capabilities = {"cpu_name": processor, "avx512_f": avx512}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    monkeypatch.setattr(
        torch.__config__, "show", lambda: f"  - Build settings: BLAS_INFO={blas}, BUILD_TYPE=x"
    )
    monkeypatch.setattr(module, "_openblas", lambda: Controller(*kernels))
    assert product_library() == expected
    assert uses_numpy(CPU) == expected.startswith("numpy")
    assert not uses_numpy(torch.device("cuda"))
    assert uses_numpy(CPU, True) and not uses_numpy(CPU, False)


def threads() -> set[int]:
    return {library["num_threads"] for library in module._openblas().info()}


def test_threads_of_numpy_are_limited_until_the_last_run_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "product_library", lambda: "numpy (openblas)")
    if not threads():
        pytest.skip("this NumPy has no OpenBLAS")
    with module._openblas().limit(limits=2):
        first, second = product_threads(1), product_threads(1)
        with first:
            assert threads() == {1}
            second.__enter__()
        assert threads() == {1}
        second.__exit__(None, None, None)
        assert threads() == {2}


def test_threads_stay_where_torch_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "product_library", lambda: "torch (mkl)")
    before = threads()
    with product_threads(1 if before != {1} else 2):
        assert threads() == before


def test_a_network_takes_the_library_of_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default of a pass is what `product_library` says."""
    used = []

    def dot(x: Any, w: Any, out: Any) -> None:
        used.append(True)
        np.matmul(x, w, out=out)

    monkeypatch.setattr(np, "dot", dot)
    for library, expected in (("torch (mkl)", False), ("numpy (openblas)", True)):
        monkeypatch.setattr(module, "product_library", lambda library=library: library)
        used.clear()
        net = network((3, 4, 2), None)
        assert isinstance(net, FlatMLP)
        net.make_pass(torch.zeros(5, 3)).forward()
        assert bool(used) == expected
