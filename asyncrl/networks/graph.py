"""A function of tensors as a CUDA graph: launched as one, where a small network's many kernels cost more to launch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_WARM_UP = 3
"""Calls before the capture: cuDNN and cuBLAS allocate and choose in the first ones."""


class GraphedFunction:
    """Calls `function`, on a GPU as a graph from the fourth call on; elsewhere just so.

    Every call has the function's effect once. The function reads and writes the same tensors at every call, waits for
    nothing, takes nothing from the host, and decides nothing by numbers; whatever changes outside of tensors is done
    by its caller. Used from one thread.

    Args:
        function: without arguments or result.
        device: on which it runs.
    """

    def __init__(self, function: Callable[[], None], device: torch.device) -> None:
        self._function, self._cuda, self._calls = function, device.type == "cuda", 0
        self._graph: Any = None

    def __call__(self) -> None:
        """Call it."""
        if not self._cuda:
            self._function()
        elif self._graph is not None:
            self._graph.replay()
        elif self._calls < _WARM_UP:
            self._calls += 1
            self._beside()
        else:
            self._graph = torch.cuda.CUDAGraph()
            # Other threads, such as the inference server's, go on using the device meanwhile.
            with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
                self._function()
            self._graph.replay()

    def _beside(self) -> None:
        """One call on another stream, as a capture needs it."""
        stream, current = torch.cuda.Stream(), torch.cuda.current_stream()
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            self._function()
        current.wait_stream(stream)
