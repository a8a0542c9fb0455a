"""Precision of matrix products during an update."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any, Literal

import torch

Precision = Literal["highest", "medium", "bfloat16"]


class MatmulPrecision:
    """Context manager that sets the precision of float32 matrix products and restores the previous one.

    `highest` is float32 and changes nothing. `medium` rounds the factors and accumulates in float32: to bfloat16 (8
    bits of mantissa) on a CPU with AMX, where a product of two 256x256 matrices then takes 55 instead of 211
    microseconds, and to TF32 (10 bits) on a GPU. On any other CPU `medium` is `highest`, because the conversion costs
    more than it saves. It also does on any CPU if a side of the matrices is below 128: keep those out of the context.

    `bfloat16` is `medium` with autocast to bfloat16: the outputs of a module's convolutions and linear layers are also
    bfloat16, which halves their memory and traffic. Parameters, gradients, losses and Adam stay float32. Autocast does
    not apply to a perceptron's products, which are those of `medium`. Autocast works on every device.

    The matmul setting belongs to the process, not the thread, so it applies to concurrent products of other threads. It
    is restored at the end of the last of several contexts that overlap, such as those of two runs. A context may be
    entered repeatedly, but not nested in itself. Entering and leaving take a microsecond.

    Args:
        precision: `"highest"`, `"medium"` or `"bfloat16"`.
        device: device of the products.
    """

    def __init__(self, precision: Precision, device: str | torch.device = "cpu") -> None:
        if precision not in ("highest", "medium", "bfloat16"):
            raise ValueError(f"matmul_precision must be one of highest, medium, bfloat16, got {precision!r}")
        self._setting = None if precision == "highest" else _setting_of(torch.device(device))
        self._autocast: Any = None
        if precision == "bfloat16":  # no cache: a CUDA graph would keep the casts of its capture
            self._autocast = torch.autocast(torch.device(device).type, torch.bfloat16, cache_enabled=False)

    @property
    def reduced(self) -> bool:
        """Whether the context changes anything on this device."""
        return self._setting is not None or self._autocast is not None

    def __enter__(self) -> None:
        """Set the precision."""
        if self._setting is not None:
            self._setting.reduce()
        if self._autocast is not None:
            self._autocast.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Restore the previous precision, also after an exception, which propagates."""
        if self._autocast is not None:
            self._autocast.__exit__(kind, error, trace)
        if self._setting is not None:
            self._setting.restore()


class _Setting:
    """Precision of a backend's products, reduced while any thread is in a context.

    Args:
        backend: object with the attribute `fp32_precision`.
        value: reduced precision.
    """

    def __init__(self, backend: Any, value: str) -> None:
        self._backend, self._value = backend, value
        self._lock, self._inside, self._before = threading.Lock(), 0, ""

    def reduce(self) -> None:
        """Enter a context."""
        with self._lock:
            if self._inside == 0:
                self._before = self._backend.fp32_precision
                self._backend.fp32_precision = self._value
            self._inside += 1

    def restore(self) -> None:
        """Leave a context; the last one sets the precision back."""
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._backend.fp32_precision = self._before


_SETTINGS: dict[str, _Setting] = {}
"""Settings by type of device, shared by all contexts."""


def _setting_of(device: torch.device) -> _Setting | None:
    """Return the setting that applies to this device; None if a reduced precision has no gain there."""
    backend: Any = None
    value = ""
    if device.type == "cuda":
        backend, value = torch.backends.cuda.matmul, "tf32"
    elif device.type == "cpu" and _has_amx():
        backend, value = getattr(torch.backends.mkldnn, "matmul", None), "bf16"
    # PyTorch before 2.9 has no such attribute, and none that could be restored exactly.
    if not hasattr(backend, "fp32_precision"):
        return None
    return _SETTINGS.setdefault(device.type, _Setting(backend, value))


def _has_amx() -> bool:
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(capabilities.get("amx_bf16", False))
