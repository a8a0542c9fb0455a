"""Sums between ranks that have a GPU each, by NCCL: gradients do not pass through the hosts' memory.

`gradients` waits for a sum at every update, so it uses NCCL where it can. `average` and `async` send snapshots in the
background, at most once in `fusion_interval` updates; they lie in the host's memory and gloo sends them.

NCCL needs a different GPU for every rank. A first sum of one value, with a time limit, shows whether it works. If it
fails on any rank, all ranks use gloo, and a line in the log says why. The tests run this file over gloo on the CPU;
`nccl_group` and `gpu_name` need two GPUs.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from asyncrl.errors import describe_error
from asyncrl.groups.peers import FOREVER, PeerLost, Peers, Pending, dist, first_line

LOGGER = logging.getLogger("asyncrl.groups")
FIRST_SUM_SECONDS = 30.0
"""Time limit of the first sum, in which NCCL connects the GPUs."""
_POLL_SECONDS = 20e-6
_TEXT_BYTES = 256


class DeviceSums:
    """Sums of vectors on one device per rank, with the methods of `Peers`; used by one thread at a time.

    Args:
        peers: connection of the same ranks: counts the bytes, and when it is closed every wait ends.
        group: process group of torch.distributed for `device`.
        device: device of the vectors.
    """

    def __init__(self, peers: Peers, group: Any, device: torch.device) -> None:
        self.device = device
        self._peers, self._group = peers, group
        self._pending = Pending(group)

    def begin_sum(self, vector: Tensor) -> Any:
        """See `Peers`; the group owns `vector` until the work is done."""
        self._peers.count_sum(vector)
        return self._pending.begin(self._group.allreduce, [vector])

    def wait(self, work: Any, seconds: float | None = None) -> None:
        """See `Peers`; polls, because NCCL's own wait cannot be ended. Raises `PeerLost` also after `seconds`."""
        deadline = None if seconds is None else time.monotonic() + seconds
        try:
            while not work.is_completed():
                if self._peers.closed or (deadline is not None and time.monotonic() > deadline):
                    with contextlib.suppress(Exception):
                        self._group.abort()
                    raise PeerLost("the connection was closed here" if self._peers.closed else "no answer")
                time.sleep(_POLL_SECONDS)
            work.wait()
        except RuntimeError as error:
            raise PeerLost(first_line(error)) from error


Sums = Peers | DeviceSums
"""Sums of vectors on `device` over all ranks: by gloo on the CPU, or by NCCL."""


def nccl_group(store: Any, rank: int, size: int) -> Any:
    """Make an NCCL process group on the current GPU."""
    # By default torch ends the process when a rank is lost; here the heartbeat notices, and the run saves its state.
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = FOREVER
    return dist.ProcessGroupNCCL(store, rank, size, options)


def gpu_name(device: torch.device) -> str:
    """Name of the GPU `device`, different for every GPU of all hosts; "" if NCCL cannot use it."""
    if device.type != "cuda" or not dist.is_nccl_available():
        return ""
    return str(torch.cuda.get_device_properties(device).uuid)


def device_sums(
    peers: Peers,
    store: Any,
    device: torch.device,
    *,
    name_of: Callable[[torch.device], str] = gpu_name,
    make: Callable[[Any, int, int], Any] = nccl_group,
    seconds: float = FIRST_SUM_SECONDS,
) -> Sums:
    """Return sums by NCCL if every rank has a GPU of its own and NCCL works, otherwise `peers`; collective.

    Args:
        peers: connection of all ranks.
        store: store of the job.
        device: device of this rank's learner.
        name_of: returns the name of a rank's GPU, "" if it has none.
        make: makes the process group of a store, a rank and a number of ranks.
        seconds: time limit of the first sum.

    Raises:
        PeerLost: a rank was lost meanwhile.
    """
    names = _gathered(peers, name_of(device))
    if "" in names or len(set(names)) < len(names):
        return peers
    prefix, group, failure = dist.PrefixStore("sums", store), None, ""
    try:
        group = make(prefix, peers.rank, peers.size)
    except Exception as error:  # whatever fails in NCCL, gloo does not need it
        failure = describe_error(error)
    if _agreed(peers, failure):
        sums = DeviceSums(peers, group, device)
        if _agreed(peers, _failure_of_first_sum(sums, peers.size, seconds)):
            return sums
    return peers


def _failure_of_first_sum(sums: DeviceSums, size: int, seconds: float) -> str:
    """Sum a one over all ranks; returns what failed, "" if nothing did.

    NCCL connects the GPUs in its first sum, on the caller's thread and without a time limit if a rank does not come. So
    that thread is another one, which is left alone after `seconds`.
    """
    failures = ["no answer"]

    def add() -> None:
        try:
            if sums.device.type == "cuda":
                torch.cuda.set_device(sums.device)
            one = torch.ones(1, device=sums.device)
            sums.wait(sums.begin_sum(one), seconds)
            failures[0] = "" if one.item() == size else f"the sum of {size} ones is {one.item():g}"
        except Exception as error:
            failures[0] = describe_error(error)

    thread = threading.Thread(target=add, name="asyncrl-first-sum", daemon=True)
    thread.start()
    thread.join(seconds + 1.0)
    return failures[0]


def _agreed(peers: Peers, failure: str) -> bool:
    """Whether no rank has failed; collective. Failures are logged."""
    causes = [f"rank {rank}: {text}" for rank, text in enumerate(_gathered(peers, failure)) if text]
    if causes:
        LOGGER.warning("gloo sums the gradients, because NCCL failed: %s", "; ".join(causes))
    return not causes


def _gathered(peers: Peers, text: str) -> list[str]:
    """Texts of all ranks, each cut to 256 bytes."""
    message = torch.zeros(_TEXT_BYTES, dtype=torch.uint8)
    data = text.encode()[:_TEXT_BYTES]
    message[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else 0
    found = [torch.zeros_like(message) for _ in range(peers.size)]
    peers.gather(message, found)
    return [bytes(one.tolist()).rstrip(b"\0").decode(errors="replace") for one in found]
