"""Thread of the learner.

Torch keeps its thread count per thread, so this thread sets its own: left alone it ran a tiny network four times
slower.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

T = TypeVar("T")


class LearnerThread:
    """The one thread that touches the network; created by the trainer, shut down by it.

    Args:
        torch_threads: intra-operation threads of torch on this thread.
    """

    def __init__(self, torch_threads: int = 1) -> None:
        self._executor = ThreadPoolExecutor(
            max_workers=1,
            thread_name_prefix="asyncrl-learner",
            initializer=_prepare_thread,
            initargs=(torch_threads,),
        )

    async def call(self, function: Callable[[], T]) -> T:
        """Run `function` on the thread, after whatever runs there now; its exception is raised here."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, function)

    def close(self) -> None:
        """Let the thread end after what it does now."""
        self._executor.shutdown(wait=True, cancel_futures=True)


def _prepare_thread(torch_threads: int) -> None:
    """Both settings are per thread. Denormal moments of dead units would cost Adam up to a twentieth."""
    torch.set_num_threads(torch_threads)
    torch.set_flush_denormal(True)
