"""Matrix products of the learner on the CPU, by the library that is fastest on the processor.

torch computes float32 products with MKL, which takes no AVX-512 kernels on AMD's processors; NumPy's OpenBLAS does.
GFLOP/s on one thread of a Zen 5, torch / NumPy: 111 / 237 for (256, 256, 256), 88 / 184 for (64, 64, 64). On a Zen 4,
whose AVX-512 units are half as wide, wide products are equal and narrow ones differ: (256, 256, 6) takes 88 / 8.5
microseconds. On a Zen 3, which has no such units, wide products are about equal too (NumPy's 0.91 to 1.2 times as fast;
`results/products_zen3.json`). `benchmarks/systems/products.py` measures both.

The choice follows from the processor and from how torch and NumPy were built, never from a timing: the digits of a
lockstep run depend on it. `np.dot` is used rather than `np.matmul`: its fixed cost is smaller and it computes outer
products by a BLAS routine. Both release the GIL.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asyncrl.networks.matmul_precision import MatmulPrecision

NARROW = 128
"""Products with a side below this run outside of the reduced precision, where they are faster."""
AVX512_KERNELS = ("SkylakeX", "Cooperlake", "SapphireRapids", "Zen4", "Zen5")
"""OpenBLAS's names of processors whose kernels use AVX-512. `OPENBLAS_CORETYPE` overrides what it detects."""

Product = Callable[[], Any]
"""A product of given operands into a given output."""


@functools.cache
def product_library() -> str:
    """Library of the products on the CPU, for a run's files: `"torch (mkl)"` or, say, `"numpy (openblas SkylakeX)"`.

    NumPy's if the processor is AMD's with AVX-512, torch was built with MKL, and NumPy with an OpenBLAS that uses its
    AVX-512 kernels; otherwise torch's.
    """
    built = next((word for word in torch.__config__.show().split() if word.startswith("BLAS_INFO=")), "")
    torch_blas = built.removeprefix("BLAS_INFO=").rstrip(",") or "unknown"
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    amd = str(capabilities.get("cpu_name", "")).startswith("AMD") and capabilities.get("avx512_f", False)
    if amd and torch_blas == "mkl":
        kernels = {library["architecture"] for library in _openblas().info()}
        if kernels and kernels <= {*AVX512_KERNELS}:
            return f"numpy (openblas {', '.join(sorted(kernels))})"
    return f"torch ({torch_blas})"


def uses_numpy(device: torch.device, asked: bool | None = None) -> bool:
    """Whether NumPy computes the products on a device: only on the CPU, and there if `product_library` says so."""
    return device.type == "cpu" and (product_library().startswith("numpy") if asked is None else asked)


def silent(numpy: bool) -> AbstractContextManager[Any]:
    """Context for calls of `products`: infinite and NaN operands give no warning, as in torch."""
    return np.errstate(all="ignore") if numpy else nullcontext()


def products(
    x: Tensor,
    w: Tensor,
    out: Tensor,
    precision: MatmulPrecision | None = None,
    numpy: bool = False,
) -> list[Product]:
    """Return calls that fill `out` with the products `x` times `w`; they read the operands when they are called.

    Args:
        x: float32 `[R, N]`, or `[K, R, N]` for K products; any strides.
        w: `[N, M]` or `[K, N, M]`.
        out: `[R, M]` or `[K, R, M]`, contiguous for each of the K.
        precision: context for products with no side below `NARROW`; None for float32, as of one that reduces nothing.
        numpy: whether NumPy computes those in float32.
    """
    if precision is not None and (not precision.reduced or min(*x.shape[-2:], w.shape[-1]) < NARROW):
        precision = None
    if numpy and precision is None:
        arrays = x.numpy(), w.numpy(), out.numpy()
        return [
            partial(np.dot, *three) for three in (zip(*arrays, strict=True) if x.dim() == 3 else [arrays])
        ]
    product = torch.bmm
    if x.dim() == 3 and x.shape[0] == 1:  # faster as a product of two matrices
        x, w, out = x[0], w[0], out[0]
    if x.dim() == 2:
        product = torch.mm
    if precision is not None:
        return [partial(_reduced, precision, partial(product, x, w, out=out))]
    if x.dim() == 2 and w.shape[1] == 1:  # a quarter of the time of a product of matrices
        return [partial(torch.mv, x, w[:, 0], out=out[:, 0])]
    return [partial(product, x, w, out=out)]


def _reduced(precision: MatmulPrecision, product: Product) -> None:
    with precision:
        product()


class _Threads:
    """Threads of NumPy's products while runs need them; the setting belongs to the process."""

    def __init__(self) -> None:
        self._lock, self._runs = threading.Lock(), 0
        self._limit: Any = None

    @contextmanager
    def limited(self, count: int) -> Iterator[None]:
        with self._lock:
            limit = _openblas().limit(limits=count)
            self._limit = self._limit or limit  # the first one knows the program's own setting
            self._runs += 1
        try:
            yield
        finally:
            with self._lock:
                self._runs -= 1
                if self._runs == 0:
                    self._limit.restore_original_limits()
                    self._limit = None


_THREADS = _Threads()


def product_threads(count: int) -> AbstractContextManager[None]:
    """Context in which NumPy's products use `count` threads, if products are NumPy's, as a learner's do of torch's.

    The setting belongs to the process. The program's own returns at the end of the last of several runs.
    """
    return _THREADS.limited(count) if uses_numpy(torch.device("cpu")) else nullcontext()


def _openblas() -> Any:
    """Controller of the OpenBLAS libraries in this process."""
    import threadpoolctl

    return threadpoolctl.ThreadpoolController().select(internal_api="openblas")
