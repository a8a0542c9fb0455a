"""Precision of matrix products during an update."""

from __future__ import annotations

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

    The matmul setting belongs to the process, not the thread, so it applies to concurrent products of other threads. A
    context may be entered repeatedly, but not nested in itself. Entering and leaving take half a microsecond.

    Args:
        precision: `"highest"`, `"medium"` or `"bfloat16"`.
        device: device of the products.
    """

    def __init__(self, precision: Precision, device: str | torch.device = "cpu") -> None:
        if precision not in ("highest", "medium", "bfloat16"):
            raise ValueError(f"matmul_precision must be one of highest, medium, bfloat16, got {precision!r}")
        self._setting: Any = None
        self._value = self._before = ""
        if precision != "highest":
            self._setting, self._value = _reduced(torch.device(device))
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
            self._before = self._setting.fp32_precision
            self._setting.fp32_precision = self._value
        if self._autocast is not None:
            self._autocast.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Restore the previous precision, also after an exception, which propagates."""
        if self._autocast is not None:
            self._autocast.__exit__(kind, error, trace)
        if self._setting is not None:
            self._setting.fp32_precision = self._before


def _reduced(device: torch.device) -> tuple[Any, str]:
    """Return the object whose `fp32_precision` applies to this device, and its value; None if there is no gain."""
    backend: Any = None
    value = ""
    if device.type == "cuda":
        backend, value = torch.backends.cuda.matmul, "tf32"
    elif device.type == "cpu" and _has_amx():
        backend, value = getattr(torch.backends.mkldnn, "matmul", None), "bf16"
    # PyTorch before 2.9 has no such attribute, and none that could be restored exactly.
    return (backend, value) if hasattr(backend, "fp32_precision") else (None, "")


def _has_amx() -> bool:
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(capabilities.get("amx_bf16", False))
