"""Thread of the learner.

Torch's thread count is a setting per thread, so this thread sets its own: with the default, a tiny network ran four
times slower.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from asyncrl.networks.products import product_threads
from asyncrl.timer_slack import set_timer_slack

T = TypeVar("T")


class LearnerThread:
    """The only thread that uses the networks; the trainer creates and closes it.

    Args:
        torch_threads: intra-operation threads of torch on this thread, and of NumPy's products in the process.
    """

    def __init__(self, torch_threads: int = 1) -> None:
        self._products = product_threads(torch_threads)
        self._products.__enter__()
        self._executor = ThreadPoolExecutor(
            max_workers=1,
            thread_name_prefix="asyncrl-learner",
            initializer=_prepare_thread,
            initargs=(torch_threads,),
        )

    async def call(self, function: Callable[[], T]) -> T:
        """Run `function` on the thread after the calls before it; return its result or raise its exception."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, function)

    def close(self) -> None:
        """End the thread after the running call and wait for it; pending calls are cancelled."""
        self._executor.shutdown(wait=True, cancel_futures=True)
        self._products.__exit__(None, None, None)


def _prepare_thread(torch_threads: int) -> None:
    """Apply settings that are per thread. Denormal moments of dead units slow Adam by up to a twentieth.

    Timed waits end on time: those for the interpreter's lock last 10 us in a run.
    """
    set_timer_slack(1)
    torch.set_num_threads(torch_threads)
    torch.set_flush_denormal(True)
