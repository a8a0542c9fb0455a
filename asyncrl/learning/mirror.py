"""Copy of the rings' observations on the learner's device, from which batches are gathered there.

Images dominate the transfers to a GPU: a batch of 32 stacks of 4 frames, with the next ones, has 1.8 MB, and each frame
is sampled about `samples_per_insert` times, in up to 2 k stacks. With a mirror each frame is transferred once. The rest
of a batch (action, n-step return, discount, weight) is gathered on the CPU, because bounds, staleness and diagnostics
read it there, and transferred in one block of about 30 bytes per item (see `StagedBatch`).

    thread          the learner's only
    memory          the actors own the rings, which are registered as pinned memory; the learner owns the mirror
    copy            rows `[copied, published)` at every call of `follow`, on a CUDA stream of its own, concurrently with
                    the update, but after the last gather (which may read the rows that they replace)
    gather          on the learner's CUDA stream, after the copies issued before it (the device waits)
    end             `close` unregisters the rings: their memory is used again, and CUDA refuses to register it twice
    overwriting     rows are granted for overwriting only when an event shows that their copy is done. The event is
                    polled; the loop holds a grant that must wait until its next tick, so that an actor waits and never
                    the learner

On the CPU the same code makes synchronous copies, for tests.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.errors import ConfigurationError, ResourceError, error_text
from asyncrl.interfaces import Batch, EnvSpec
from asyncrl.replay.replay import PrioritizedReplay
from asyncrl.shm.ring import RingReader

_FREE_SHARE = 0.5
"""Maximum share of the device's free memory used with `auto`."""


class ObservationMirror:
    """Observations of all rings as `[R E S, bytes]` on a device; the `source` of a batch.

    Created before the first sample; from then on the replay does not fill `obs` and `next_obs` of batches.

    Args:
        replay: replay whose observations are arrays of bytes.
        device: device of the learner.
        batch_size: B.
        byte_factor: factor from bytes to network inputs; see `EnvSpec.byte_factor`.
    """

    def __init__(
        self,
        replay: PrioritizedReplay,
        device: torch.device | str,
        batch_size: int,
        byte_factor: float = 1 / 255,
    ) -> None:
        self._replay, device, self._byte_factor = replay, torch.device(device), byte_factor
        rings = replay.rings
        rows = (ring.obs.reshape(ring.num_envs, ring.num_slots, -1) for ring in rings)
        self._host = [torch.from_numpy(bytes_of.view(np.uint8)) for bytes_of in rows]
        shape = (len(rings), *self._host[0].shape)
        self._rows = torch.zeros(shape, dtype=torch.uint8, device=device)
        self._frames = self._rows.view(-1, shape[-1])
        cuda, frames = device.type == "cuda", replay.frame_stack
        self._places = torch.zeros(2, batch_size, frames, dtype=torch.int64, pin_memory=cuda)
        self._on_device = torch.zeros_like(self._places, device=device) if cuda else self._places
        self._taken = torch.zeros(2 * batch_size * frames, shape[-1], dtype=torch.uint8, device=device)
        self._copied, self._safe = np.zeros(len(rings), np.int64), np.zeros(len(rings), np.int64)
        self._pending: deque[tuple[Any, NDArray[np.int64]]] = deque()
        self._pinned: list[NDArray[Any]] = []
        self._stream: Any = None
        self._gathered: Any = torch.cuda.Event() if cuda else None  # type: ignore[no-untyped-call]
        if cuda:
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._stream.wait_stream(torch.cuda.current_stream(device))  # which fills the mirror with zeros
            self._pin(rings)
        replay.leave_observations()

    def follow(self, published: NDArray[np.int64]) -> None:
        """Begin to copy new rows; `published` `[R]` is the number of rows of each ring ingested by the replay."""
        if (published == self._copied).all():
            return
        with torch.cuda.stream(self._stream) if self._stream is not None else contextlib.nullcontext():
            if self._stream is not None:
                self._stream.wait_event(self._gathered)
            for index in np.flatnonzero(published > self._copied):
                self._copy(int(index), int(self._copied[index]), int(published[index]))
            event = None
            if self._stream is not None:
                event = torch.cuda.Event()  # type: ignore[no-untyped-call]
                event.record()
        self._copied[:] = published
        self._pending.append((event, self._copied.copy()))

    def _copy(self, index: int, start: int, stop: int) -> None:
        """Copy rows of one ring, which are one or two contiguous pieces per environment."""
        host, device = self._host[index], self._rows[index]
        slots = host.shape[1]
        start = max(start, stop - slots)
        low = start & (slots - 1)
        head = min(stop - start, slots - low)
        for begin, end in ((low, low + head), (0, stop - start - head)):
            if end > begin:
                for env in range(host.shape[0]):
                    device[env, begin:end].copy_(host[env, begin:end], non_blocking=True)

    def is_safe(self, ring: int, position: int) -> bool:
        """Whether a ring's rows below `position` are copied and may be overwritten; does not wait."""
        while self._pending and (self._pending[0][0] is None or self._pending[0][0].query()):
            self._safe = self._pending.popleft()[1]
        return position <= int(self._safe[ring])

    def locate(self, batch: Batch) -> None:
        """Store the positions of the observations of the batch sampled last, for `gather`."""
        if self._gathered is not None:
            self._gathered.synchronize()  # the last gather reads its positions from this memory; done long ago
        self._replay.find_frames(batch, self._places.numpy())

    def gather(self, rows: Tensor) -> None:
        """Fill `rows` `[2 B, values]` float32 on the device: obs, then next_obs, multiplied by `byte_factor`."""
        current = None if self._stream is None else torch.cuda.current_stream(self._rows.device)
        if current is not None:
            current.wait_stream(self._stream)
        if self._on_device is not self._places:
            self._on_device.copy_(self._places, non_blocking=True)
        torch.index_select(self._frames, 0, self._on_device.view(-1), out=self._taken)
        if self._gathered is not None:
            self._gathered.record(current)
        rows.copy_(self._taken.view(rows.shape)).mul_(self._byte_factor)

    def arrays(self, batch: Batch) -> dict[str, NDArray[Any]]:
        """`obs` and `next_obs` of the batch gathered last, as copies on the host; for diagnostics."""
        both = self._taken.cpu().numpy().copy().view(batch.obs.dtype).reshape(2, *batch.obs.shape)
        return {"obs": both[0], "next_obs": both[1]}

    def close(self) -> None:
        """Wait for the device and unregister the rings; idempotent. Nothing may be copied or gathered afterwards."""
        if self._pinned:
            torch.cuda.synchronize(self._rows.device)
        self._host.clear()  # the views of the rings
        while self._pinned:
            torch.cuda.cudart().cudaHostUnregister(self._pinned.pop().ctypes.data)  # type: ignore[no-untyped-call]

    def _pin(self, rings: Sequence[RingReader]) -> None:
        """Register the observations as pinned memory until `close`, so that copies are asynchronous.

        Raises:
            RuntimeError: CUDA refused a registration; none is left.
        """
        cudart: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        for ring in rings:
            try:
                torch.cuda.check_error(cudart.cudaHostRegister(ring.obs.ctypes.data, ring.obs.nbytes, 0))
            except RuntimeError:
                # CUDA keeps the error for the next launch, which raises it.
                with contextlib.suppress(RuntimeError):
                    torch.ones(1, device=self._rows.device)
                self.close()
                raise
            self._pinned.append(ring.obs)


def make_mirror(
    choice: Literal["auto", "cpu", "cuda"],
    replay: Any,
    device: torch.device | str,
    batch_size: int,
    seen: EnvSpec,
    normalized: bool,
) -> ObservationMirror | None:
    """Make the mirror for the option `replay_device`; None if batches are gathered on the CPU.

    With `auto` that is so wherever a mirror cannot be made. `device` is the learner's, with its index if it has one.

    Raises:
        ConfigurationError: `choice` is `cuda`, but the learner's device, replay or observations do not allow a mirror.
        ResourceError: `choice` is `cuda`, but memory is short or CUDA refused to pin the rings.
    """
    plain = isinstance(replay, PrioritizedReplay) and seen.observation_dtype == "uint8" and not seen.leaves
    device = torch.device(device)
    possible = device.type == "cuda" and plain and not normalized
    if choice == "cpu" or (choice == "auto" and not possible):
        return None
    if not possible:
        raise ConfigurationError(
            "replay_device cuda needs a learner on cuda and transitions of images that are not normalised",
            facts={
                "device": str(device),
                "observations": f"{seen.observation_dtype} {seen.observation_shape}",
            },
            fix="set replay_device to auto, which gathers on the CPU where it must",
        )
    needed = sum(ring.obs.nbytes for ring in replay.rings)
    if choice == "auto" and needed > _FREE_SHARE * torch.cuda.mem_get_info(device)[0]:
        return None
    try:
        return ObservationMirror(replay, device, batch_size, seen.byte_factor)
    except RuntimeError as error:
        if choice == "auto":
            return None
        raise ResourceError(
            f"the copy of the replay on the device cannot be made: {error_text(error)}",
            facts={"bytes": needed},
            fix="set replay_device to auto, which gathers on the CPU where it must",
        ) from error
