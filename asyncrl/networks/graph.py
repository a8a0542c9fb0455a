"""A function of tensors as a CUDA graph: one launch in place of many, whose cost dominates in a small network."""

from __future__ import annotations

from collections.abc import Callable
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
            with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
                self._function()
            self._graph.replay()

    def _beside(self) -> None:
        """Call the function on another CUDA stream, as required before a capture."""
        stream, current = torch.cuda.Stream(), torch.cuda.current_stream()
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            self._function()
        current.wait_stream(stream)
