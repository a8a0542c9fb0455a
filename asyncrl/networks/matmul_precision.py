"""Precision of matrix products during an update."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Literal, get_args

import torch

Precision = Literal["highest", "medium", "bfloat16"]


class MatmulPrecision:
    """Context manager that sets the precision of float32 matrix products and restores the previous one.

    `highest` is float32. On a GPU it takes convolutions out of TF32, which is torch's default there; products keep the
    process's setting. `medium` rounds the factors and accumulates in float32: to bfloat16 (8 bits of mantissa) on a CPU
    with AMX, where a product of two 256x256 matrices then takes 55 instead of 211 microseconds, and to TF32 (10 bits)
    on a GPU, where convolutions keep the process's setting. On any other CPU `medium` is `highest`, because the
    conversion costs more than it saves. It also does on any CPU if a side of the matrices is below 128: keep those out
    of the context.

    `bfloat16` is `medium` with autocast to bfloat16: the outputs of a module's convolutions and linear layers are also
    bfloat16, which halves their memory and traffic. Parameters, gradients, losses and Adam stay float32. Autocast does
    not apply to a perceptron's products, which are those of `medium`. Autocast works on every device.

    The settings belong to the process, not the thread, so they apply to concurrent products of other threads; with
    bfloat16 on the CPU, products on a GPU are in TF32. They are restored at the end of the last of several contexts
    that overlap, such as those of two runs. A context may be entered repeatedly, but not nested in itself. Entering and
    leaving take a few microseconds.

    Args:
        precision: `"highest"`, `"medium"` or `"bfloat16"`.
        device: device of the products.
    """

    def __init__(self, precision: Precision, device: str | torch.device = "cpu") -> None:
        if precision not in ("highest", "medium", "bfloat16"):
            raise ValueError(f"matmul_precision must be one of highest, medium, bfloat16, got {precision!r}")
        kind = torch.device(device).type
        self._setting = _setting_of(precision, kind)
        self._autocast: Any = None
        if precision == "bfloat16":  # no cache: a CUDA graph would keep the casts of its capture
            self._autocast = torch.autocast(kind, torch.bfloat16, cache_enabled=False)

    @property
    def reduced(self) -> bool:
        """Whether the context lowers a precision on this device."""
        return self._setting in ("tf32", "bfloat16") or self._autocast is not None

    def __enter__(self) -> None:
        """Set the precision."""
        if self._setting is not None:
            _SETTINGS.enter(self._setting)
        if self._autocast is not None:
            self._autocast.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Restore the previous precision, also after an exception, which propagates."""
        if self._autocast is not None:
            self._autocast.__exit__(kind, error, trace)
        if self._setting is not None:
            _SETTINGS.leave(self._setting)


Setting = Literal["tf32", "bfloat16", "float32 convolutions"]


class _Settings:
    """Torch's settings of precision, changed while any thread is in a context that asks for it.

    Torch has two interfaces, and where one was used alone the other's getters raise an error, in every thread. So each
    setting is made by the old one, which keeps both in step, and restored by both. `bfloat16` implies `tf32` on a GPU,
    as the old interface knows one precision of products for all devices.
    """

    def __init__(self) -> None:
        self._lock, self._inside = threading.Lock(), dict.fromkeys(get_args(Setting), 0)
        self._products: Setting | None = None
        self._products_before: tuple[Any, Any, Any] = (None, "", "")
        self._convolutions_before: tuple[Any, Any, Any] = (None, "", "")

    def enter(self, setting: Setting) -> None:
        """Enter a context with this setting."""
        with self._lock:
            self._inside[setting] += 1
            if self._inside[setting] == 1:
                self._apply(setting)

    def leave(self, setting: Setting) -> None:
        """Leave a context; the last one sets the precision back."""
        with self._lock:
            self._inside[setting] -= 1
            if self._inside[setting] == 0:
                self._apply(setting)

    def _apply(self, setting: Setting) -> None:
        if setting == "float32 convolutions":
            self._set_convolutions(self._inside[setting] > 0)
        else:
            self._set_products(next((name for name in ("bfloat16", "tf32") if self._inside[name]), None))

    def _set_products(self, wanted: Any) -> None:
        backends: Any = torch.backends
        on_gpu, on_cpu = backends.cuda.matmul, backends.mkldnn.matmul
        if wanted == self._products:
            return
        if self._products is None:
            before = _legacy(torch.get_float32_matmul_precision), on_gpu.fp32_precision, on_cpu.fp32_precision
            self._products_before = before
        legacy, gpu, cpu = self._products_before
        self._products = wanted
        if wanted == "bfloat16":
            torch.set_float32_matmul_precision("medium")
            return
        if legacy is not None:
            torch.set_float32_matmul_precision(legacy)
        on_cpu.fp32_precision = cpu
        if wanted is None:
            on_gpu.fp32_precision = gpu
        elif on_gpu.fp32_precision != "tf32":
            on_gpu.allow_tf32 = True

    def _set_convolutions(self, float32: bool) -> None:
        cudnn: Any = torch.backends.cudnn
        if float32:
            before = _legacy(lambda: cudnn.allow_tf32), cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision
            self._convolutions_before = before
            cudnn.allow_tf32 = False
            cudnn.conv.fp32_precision = cudnn.rnn.fp32_precision = "ieee"
            return
        legacy, conv, rnn = self._convolutions_before
        if legacy is not None:
            cudnn.allow_tf32 = legacy
        cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision = conv, rnn


_SETTINGS = _Settings()


def _legacy(getter: Callable[[], Any]) -> Any:
    """Value of the old interface; None where the process has set the new one alone."""
    try:
        return getter()
    except RuntimeError:
        return None


def _setting_of(precision: Precision, kind: str) -> Setting | None:
    """Return the setting of a precision on this type of device; None if it has no effect or no gain there."""
    # PyTorch before 2.9 has no such attribute, and none that could be restored exactly.
    if not hasattr(getattr(torch.backends.mkldnn, "matmul", None), "fp32_precision"):
        return None
    if kind == "cuda":
        return "float32 convolutions" if precision == "highest" else "tf32"
    return "bfloat16" if kind == "cpu" and precision != "highest" and _has_amx() else None


def _has_amx() -> bool:
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(capabilities.get("amx_bf16", False))
