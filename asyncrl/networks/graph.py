"""Functions of tensors that are called again and again, made cheap.

A CUDA graph is one launch in place of many, whose cost dominates in a small network. Views of a buffer that is the same
at every call are made once.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import is_
from typing import Any

import torch

_WARM_UP = 3
"""Calls before the capture: cuDNN and cuBLAS allocate memory and choose algorithms in the first ones."""


class GraphedFunction:
    """Callable that runs `function`, on a GPU as a CUDA graph from the fourth call on.

    Every call has the function's effect once. The function must read and write the same tensors at every call, not
    wait for the device, read nothing from the host, and not branch on values of tensors; its caller changes all state
    outside of tensors. Used from one thread.

    Args:
        function: function without arguments or result.
        device: device of its tensors.
    """

    def __init__(self, function: Callable[[], None], device: torch.device) -> None:
        self._function, self._cuda, self._calls = function, device.type == "cuda", 0
        self._device = device
        self._stream: Any = None
        self._graph: Any = None

    def __call__(self) -> None:
        """Run the function or its graph."""
        if not self._cuda:
            self._function()
        elif self._graph is not None:
            self._graph.replay()
        elif self._calls < _WARM_UP:
            self._calls += 1
            self._beside()
        else:
            self._graph = torch.cuda.CUDAGraph()
            # Other threads, such as the inference server's, use the device during the capture.
            with torch.cuda.graph(self._graph, stream=self._stream, capture_error_mode="thread_local"):
                self._function()
            self._graph.replay()

    def _beside(self) -> None:
        """Call the function on another CUDA stream, as required before a capture.

        It is the capture's: autograd accumulates a parameter's gradient on the stream of the first call that is alive.
        """
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._device)
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            self._function()
        current.wait_stream(self._stream)


class Kept:
    """Callable that calls `function` only if one of its arguments is another object than at the last call."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function, self._result = function, None
        self._arguments: tuple[Any, ...] = ()

    def __call__(self, *arguments: Any) -> Any:
        """The function's result, or the kept one."""
        if len(self._arguments) != len(arguments) or not all(map(is_, self._arguments, arguments)):
            self._arguments, self._result = arguments, self._function(*arguments)
        return self._result
