"""Functions of tensors that are called again and again, made cheap.

A CUDA graph is one launch in place of many, whose cost dominates in a small network. Views of a buffer that is the same
at every call are made once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
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
        stream: CUDA stream of warm-up and capture; None makes one.
    """

    def __init__(self, function: Callable[[], None], device: torch.device, stream: Any = None) -> None:
        self._function, self._cuda, self._calls = function, device.type == "cuda", 0
        self._device = device
        self._stream: Any = torch.cuda.Stream(device) if self._cuda and stream is None else stream
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
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            self._function()
        current.wait_stream(self._stream)


class Graphs:
    """Functions of one owner that run as CUDA graphs, see `GraphedFunction`.

    Their warm-ups and captures are on one stream, because they may accumulate gradients of the same parameters.

    Args:
        device: device of their tensors.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._functions = device, dict[Hashable, GraphedFunction]()
        self._stream: Any = torch.cuda.Stream(device) if device.type == "cuda" else None

    def run(self, name: Hashable, function: Callable[[], None]) -> None:
        """Run `function`; later calls with this name repeat the first one's function, whatever theirs is."""
        if name not in self._functions:
            self._functions[name] = GraphedFunction(function, self._device, self._stream)
        self._functions[name]()

    def clear(self) -> None:
        """Forget all functions, since the memory that they read is replaced."""
        self._functions.clear()


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
