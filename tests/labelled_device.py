"""A GPU without a GPU: tensors of the CPU whose storages are labelled `cuda`.

    numbers         those of the CPU, in every operation
    mixing          an operation on tensors of two devices raises, except for those that torch allows: copies, scalars
                    on the host in pointwise operations, indices on the host, the lengths of packed sequences
    host reads      `numpy()`, `np.asarray` and the like of a labelled tensor raise
    waits           everything that makes the host wait for the device is listed in `LabelledDevice.waits`
    streams         each has a vector clock. Two accesses to a storage from two streams, one of them a write, raise if
                    no event orders them. Memory of the host that changes while a copy reads it raises, too
    graphs          the operations of a capture are recorded and repeated on the same memory; the capture itself
                    changes nothing, and a wait in it raises
    errors          a refused `cudaHostRegister` stays latched until the next launch, which raises it

Labels belong to storages, so views carry them. The modes below are those of a thread; threads that start meanwhile
enter them, too. Not modelled: reuse of freed memory by another stream, and the duration of anything.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

COPIES = {"aten::copy_", "aten::_to_copy", "aten::set_"}
HOST_INDEX = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}
HOST_LENGTHS = {
    "aten::_pack_padded_sequence",
    "aten::_pad_packed_sequence",
    "aten::_pack_padded_sequence_backward",
}
READS_BACK = {
    "aten::_local_scalar_dense",
    "aten::item",
    "aten::is_nonzero",
    "aten::equal",
    "aten::allclose",
    "aten::nonzero",
    "aten::masked_select",
    "aten::_unique2",
    "aten::unique_dim",
    "aten::unique_consecutive",
    "aten::bincount",
}
"""Operations whose result, or its size, the host has to wait for."""


class WrongDevice(RuntimeError):
    """An operation that a GPU would refuse."""


class StreamRace(RuntimeError):
    """Two accesses to the same memory that nothing orders."""


class CaptureFailed(RuntimeError):
    """Something in a CUDA graph's capture that cannot be captured."""


class LaunchFailed(RuntimeError):
    """An error of an earlier call that a launch reports."""


@dataclass(frozen=True)
class Wait:
    """One wait of the host for the device: what waited, and the first line of asyncrl or of a test above it."""

    what: str
    where: str


class Clock(dict[int, int]):
    """Vector clock: number of operations, by stream, that have happened before."""

    def join(self, other: dict[int, int]) -> None:
        for stream, time in dict(other).items():  # a copy: another thread may add a stream meanwhile
            self[stream] = max(self.get(stream, 0), time)

    def knows(self, stream: int, time: int) -> bool:
        return self.get(stream, 0) >= time


class Stream:
    """Stand-in for `torch.cuda.Stream`."""

    def __init__(self, owner: LabelledDevice, device: torch.device, name: str) -> None:
        self.owner, self.device, self.name = owner, device, name
        self.clock, self.number = Clock(), owner.next_number()

    def wait_stream(self, stream: Stream) -> None:
        self.clock.join(stream.clock)

    def wait_event(self, event: Event) -> None:
        self.clock.join(event.clock)

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event(self.owner)
        event.record(self)
        return event

    def synchronize(self) -> None:
        self.owner.wait("Stream.synchronize", self.clock)

    def query(self) -> bool:
        self.owner.host.join(self.clock)
        return True


class Event:
    """Stand-in for `torch.cuda.Event`."""

    def __init__(self, owner: LabelledDevice, **_: Any) -> None:
        self.owner, self.clock = owner, Clock()

    def record(self, stream: Stream | None = None) -> None:
        self.clock = Clock((stream or self.owner.current_stream()).clock)

    def wait(self, stream: Stream | None = None) -> None:
        (stream or self.owner.current_stream()).wait_event(self)

    def synchronize(self) -> None:
        self.owner.wait("Event.synchronize", self.clock)

    def query(self) -> bool:
        """Whether it has happened; every second answer is no while `LabelledDevice.slow` is set."""
        self.owner.queries += 1
        if self.owner.slow and self.owner.queries % 2:
            return False
        self.owner.arrive(self.clock)
        return True


class Graph:
    """Stand-in for `torch.cuda.CUDAGraph`."""

    def __init__(self, owner: LabelledDevice) -> None:
        self.owner, self.operations = owner, list[tuple[Any, Any, Any, Any]]()
        self.before: dict[int, tuple[Tensor, Tensor]] = {}
        self.stream: Stream | None = None

    def replay(self) -> None:
        """Repeat the operations on the memory of the capture."""
        self.owner.check_latched()
        with torch.no_grad():
            for func, args, kwargs, out in self.operations:
                with self.owner._lock:
                    again = self.owner.operation(func, args, kwargs)
                for old, new in zip(tree_leaves(out), tree_leaves(again), strict=True):
                    if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                        old.copy_(new)

    def remember(self, written: list[Tensor]) -> None:
        """Keep the bytes of memory that the capture is about to write, and that was there before it."""
        for tensor in written:
            key = tensor.untyped_storage()._cdata
            if key not in self.before:
                whole = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
                self.before[key] = whole, whole.clone()

    def undo(self) -> None:
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():  # no operation of the device
            for whole, before in self.before.values():
                whole.copy_(before)
        self.before.clear()


class Generator(torch.Generator):
    """Stand-in for `torch.Generator`, which remembers its device."""

    def __new__(cls, device: Any = "cpu") -> Generator:
        return super().__new__(cls, "cpu")

    def __init__(self, device: Any = "cpu") -> None:
        self.label = torch.device(device)


class LabelledDevice:
    """GPUs of a test; the fixture `labelled_device` makes one.

    Attributes:
        waits: waits of the host for the device so far; see `waits_of`.
        host: clock of the host: what it knows to have happened.
        slow: whether every second query of an event says that it has not happened yet.
        refuses_pinning: number of calls of `cudaHostRegister` that are accepted before all others are refused.
        registered: address and size of registered memory.
    """

    def __init__(self, count: int = 2) -> None:
        self.count, self.waits, self.host = count, list[Wait](), Clock()
        self.slow, self.queries, self.refuses_pinning = False, 0, sys.maxsize
        self.registered: dict[int, int] = {}
        self.latched: str | None = None
        self._numbers = 0
        self._labels: dict[int, tuple[StorageWeakRef, torch.device]] = {}
        self._pinned: dict[int, StorageWeakRef] = {}
        self._writes: dict[int, tuple[int, int]] = {}
        self._reads: dict[int, Clock] = {}
        self._copies: list[tuple[Tensor, Tensor, int, int, str]] = []
        self._thread, self._lock = threading.local(), threading.RLock()
        self._default = {i: Stream(self, torch.device("cuda", i), f"default {i}") for i in range(count)}

    @property
    def capture(self) -> Graph | None:
        """Graph that this thread captures."""
        return getattr(self._thread, "capture", None)

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    # --- labels -------------------------------------------------------------------------------------------------------

    def device_of(self, tensor: Tensor) -> torch.device:
        found = self._labels.get(tensor.untyped_storage()._cdata)
        return torch.device("cpu") if found is None else found[1]

    def label(self, tensor: Tensor, device: torch.device) -> Tensor:
        storage = tensor.untyped_storage()
        with self._lock:  # the threads of a run share the tables
            if device.type == "cpu":
                self._labels.pop(storage._cdata, None)
            else:
                # The weak reference keeps the address from being used again.
                self._labels[storage._cdata] = StorageWeakRef(storage), device
            if len(self._labels) % 1024 == 0:
                self._forget()
        return tensor

    def _forget(self) -> None:
        gone = [key for key, (weak, _) in self._labels.items() if weak.expired()]
        for key in gone:
            for table in (self._labels, self._writes, self._reads):
                table.pop(key, None)

    def named(self, device: Any) -> torch.device:
        """The device with its index: that of the current GPU if it has none."""
        device = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
        if device.type != "cuda":
            return device
        index = self.current if device.index is None else device.index
        if index >= self.count:
            raise RuntimeError(f"CUDA error: invalid device ordinal {index}")
        return torch.device("cuda", index)

    @property
    def current(self) -> int:
        return int(getattr(self._thread, "index", 0))

    def pin(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        with self._lock:
            self._pinned[storage._cdata] = StorageWeakRef(storage)
        return tensor

    def is_pinned(self, tensor: Tensor) -> bool:
        address = tensor.data_ptr()
        with self._lock:
            registered = any(at <= address < at + size for at, size in self.registered.items())
        return registered or tensor.untyped_storage()._cdata in self._pinned

    # --- streams ------------------------------------------------------------------------------------------------------

    def current_stream(self, device: Any = None) -> Stream:
        index = self.current if device is None else self.named(device).index
        streams: dict[int, Stream] = self._thread.__dict__.setdefault("streams", {})
        return streams.get(index, self._default[index])

    @contextlib.contextmanager
    def on_stream(self, stream: Stream | None) -> Iterator[None]:
        if stream is None:
            yield
            return
        streams: dict[int, Stream] = self._thread.__dict__.setdefault("streams", {})
        index, before, current = stream.device.index, self.current_stream(stream.device), self.current
        streams[index], self._thread.index = stream, index
        try:
            yield
        finally:
            streams[index], self._thread.index = before, current

    @contextlib.contextmanager
    def capturing(
        self, graph: Graph, pool: Any = None, stream: Stream | None = None, capture_error_mode: str = "global"
    ) -> Iterator[None]:
        """Stand-in for `torch.cuda.graph`."""
        stream = stream or Stream(self, self.current_stream().device, "capture")
        self.arrive(self.current_stream().clock)  # torch synchronises before a capture
        stream.clock.join(self.current_stream().clock)
        graph.stream, random = stream, torch.get_rng_state()
        with self.on_stream(stream):
            self._thread.capture = graph
            try:
                yield
            finally:
                self._thread.capture = None
                graph.undo()
                torch.set_rng_state(random)
        self.arrive(stream.clock)

    def wait(self, what: str, clock: dict[int, int]) -> None:
        """List a wait of the host."""
        where = _caller()
        if self.capture is not None:
            raise CaptureFailed(f"{what} in a capture, at {where}")
        self.waits.append(Wait(what, where))
        self.arrive(clock)

    def arrive(self, clock: dict[int, int]) -> None:
        """Note that the host knows what `clock` knows; check the memory that finished copies have read."""
        with self._lock:
            self.host.join(clock)
            copies, self._copies = self._copies, []
            for copy in copies:
                if self.host.knows(copy[2], copy[3]):
                    self._check_copy(copy)
                else:
                    self._copies.append(copy)

    def _check_copy(self, copy: tuple[Tensor, Tensor, int, int, str]) -> None:
        source, seen, _, _, where = copy
        if not torch.equal(source.contiguous().view(torch.uint8), seen.view(torch.uint8)):
            raise StreamRace(f"memory of the host was overwritten while a copy read it, begun at {where}")

    def finish(self) -> None:
        """Check the memory of all copies that nobody waited for."""
        copies, self._copies = self._copies, []
        for copy in copies:
            self._check_copy(copy)

    def waits_of(self, function: Callable[[], Any]) -> list[str]:
        """Waits for the device while `function` runs, those for events excluded: their work is done long ago."""
        before = len(self.waits)
        function()
        return [
            f"{wait.what} at {wait.where}" for wait in self.waits[before:] if wait.what != "Event.synchronize"
        ]

    # --- operations ---------------------------------------------------------------------------------------------------

    def check_latched(self) -> None:
        if self.latched is not None:
            error, self.latched = self.latched, None
            raise LaunchFailed(f"CUDA error: {error}")

    def operation(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run one operation of ATen; called below autograd, or by a graph."""
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        places = [self.device_of(tensor) for tensor in tensors]
        labels = {place for place in places if place.type == "cuda"}
        name = func._schema.name
        if not labels:
            return func(*args, **kwargs)
        written = _written(func, args, kwargs)
        copies = name == "aten::copy_" and len(set(places[:2])) > 1
        if copies:
            self.transfer(
                args[0], args[1], bool(args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
            )
            label = next(iter(labels))
        else:
            self._check_places(func, tensors, places, written)
            (label,) = labels
        self._check_waits(name, args, kwargs, label)
        self.check_latched()
        if self.capture is not None:
            self.capture.remember([t for t in written if self.device_of(t).type == "cuda"])
        known = {tensor.untyped_storage()._cdata for tensor in tensors}
        if not copies:
            self._order(label, tensors, {t.untyped_storage()._cdata for t in written})
        out = func(*args, **kwargs)
        on_device = out[:1] if name == "aten::_pack_padded_sequence" else out  # its counts are on the host
        for made in tree_leaves(on_device):
            if isinstance(made, Tensor) and made.untyped_storage()._cdata not in known:
                self.label(made, label)
                self._order(label, [made], {made.untyped_storage()._cdata})
        if self.capture is not None:
            self.capture.operations.append((func, args, kwargs, out))
        return out

    def make(self, tensor: Tensor, device: torch.device, name: str) -> None:
        """Label a new tensor; filling it is a launch."""
        with self._lock:
            self.label(tensor, device)
            if device.type == "cuda":
                if "empty" not in name:
                    self.check_latched()
                self._order(device, [tensor], {tensor.untyped_storage()._cdata})

    def _check_places(
        self, func: Any, tensors: list[Tensor], places: list[torch.device], written: Any
    ) -> None:
        name, devices = func._schema.name, {*places}
        if name == "aten::_pack_padded_sequence" and places[1].type == "cuda":
            raise WrongDevice(f"{name} got lengths on {places[1]}, at {_caller()}")
        if len(devices) == 1:
            return
        pointwise = torch.Tag.pointwise in func.tags
        for tensor, place in zip(tensors, places, strict=True):
            scalar = pointwise and tensor.dim() == 0 and not any(tensor is one for one in written)
            if place.type == "cpu" and not (scalar or name in HOST_INDEX | HOST_LENGTHS):
                raise WrongDevice(
                    f"{name} got tensors of {' and '.join(sorted(map(str, devices)))}, at {_caller()}"
                )
        if len({place for place in places if place.type == "cuda"}) > 1:
            raise WrongDevice(
                f"{name} got tensors of {' and '.join(sorted(map(str, devices)))}, at {_caller()}"
            )

    def _check_waits(self, name: str, args: Any, kwargs: Any, label: torch.device) -> None:
        clock = self.current_stream(label).clock
        if name in READS_BACK or (name == "aten::repeat_interleave" and kwargs.get("output_size") is None):
            self.wait(name, clock)
        elif name in HOST_INDEX:
            indices = [index for index in args[1] if index is not None]
            if any(index.dtype in (torch.bool, torch.uint8) for index in indices):
                self.wait(f"{name} with a mask", clock)
            elif any(self.device_of(index).type == "cpu" for index in indices):
                self.wait(f"{name} with an index on the host", clock)

    def _order(self, label: torch.device, tensors: list[Tensor], written: set[int]) -> None:
        """Check that every access comes after those it depends on, and note it."""
        stream = self.current_stream(label)
        clock = stream.clock
        clock.join(self.host)  # launched after what the host has seen
        clock[stream.number] = clock.get(stream.number, 0) + 1
        for tensor in tensors:
            key = tensor.untyped_storage()._cdata
            if key not in self._labels:
                continue
            write = self._writes.get(key)
            if write is not None and not clock.knows(*write):
                raise StreamRace(
                    f"{stream.name} accesses memory that another stream may still write, at {_caller()}"
                )
            if key not in written:
                self._reads.setdefault(key, Clock())[stream.number] = clock[stream.number]
                continue
            for other, time in self._reads.get(key, {}).items():
                if not clock.knows(other, time):
                    raise StreamRace(
                        f"{stream.name} writes memory that another stream may still read, at {_caller()}"
                    )
            self._writes[key] = stream.number, clock[stream.number]
            self._reads.pop(key, None)

    def transfer(self, into: Tensor, source: Tensor, non_blocking: bool) -> None:
        """Note a copy between two devices."""
        to, of = self.device_of(into), self.device_of(source)
        label, host = (to, source) if to.type == "cuda" else (of, into)
        self.check_latched()
        stream = self.current_stream(label)
        if to.type == of.type == "cuda":  # torch lets the streams of both GPUs wait for each other
            stream.clock.join(self.current_stream(of).clock)
        self._order(label, [into, source], {into.untyped_storage()._cdata})
        if to.type == of.type == "cuda":
            self.current_stream(of).clock.join(stream.clock)
            return
        where = _caller()
        if not self.is_pinned(host):
            self.wait("copy from pageable memory" if host is source else "copy to the host", stream.clock)
        elif not non_blocking:
            self.wait("blocking copy", stream.clock)
        elif host is source:
            time = stream.clock[stream.number]
            self._copies.append((source, source.contiguous().clone(), stream.number, time, where))
        else:
            raise WrongDevice(f"a copy to the host that nobody waits for, at {where}")

    @contextlib.contextmanager
    def here(self) -> Iterator[None]:
        """Label tensors of the calling thread."""
        with _Functions(self), _Operations(self):
            yield


def _written(func: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """Arguments that an operation writes."""
    found = []
    if func._schema.name == "aten::native_batch_norm" and args[5]:  # its schema does not tell
        found += [statistic for statistic in args[3:5] if statistic is not None]
    for index, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[index] if index < len(args) else kwargs.get(argument.name)
            found += [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]
    return found


def _caller() -> str:
    """File and line of the innermost frame of asyncrl or of a test."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name != __file__ and ("/asyncrl/" in name or "/tests/" in name):
            return f"{name.rsplit('/', 1)[1]}:{frame.f_lineno}"
        frame = frame.f_back
    return "?"


class _Operations(TorchDispatchMode):
    def __init__(self, owner: LabelledDevice) -> None:
        super().__init__()
        self._owner = owner

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunction(), self._owner._lock:
            return self._owner.operation(func, args, kwargs or {})


class _Functions(TorchFunctionMode):
    """Attributes and functions that name a device or leave torch."""

    def __init__(self, owner: LabelledDevice) -> None:
        super().__init__()
        self._owner = owner

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, owner = dict(kwargs or {}), self._owner
        own = _OWN.get(func)
        if own is not None:
            return own(owner, func, args, kwargs)
        generator = kwargs.get("generator")
        device = kwargs.get("device")
        pinned = kwargs.pop("pin_memory", False)
        if generator is not None:
            self._check_generator(func, args, device, generator)
        if device is None:
            out = func(*args, **kwargs)
        else:
            device = owner.named(device)
            out = func(*args, **{**kwargs, "device": "cpu"})
            owner.make(out, device, func.__name__)
        return owner.pin(out) if pinned else out

    def _check_generator(self, func: Any, args: Any, device: Any, generator: Any) -> None:
        tensors = [leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor)]
        place = (
            self._owner.device_of(tensors[0]) if device is None and tensors else torch.device(device or "cpu")
        )
        label = getattr(generator, "label", torch.device("cpu"))
        if label.type != place.type:
            raise WrongDevice(f"a generator of {label} for a tensor of {place}, at {_caller()}")


def _device(owner: LabelledDevice, func: Any, args: Any, kwargs: Any) -> torch.device:
    found = owner.device_of(args[0])
    return func(*args) if found.type == "cpu" else found


def _is_cuda(owner: LabelledDevice, func: Any, args: Any, kwargs: Any) -> bool:
    return owner.device_of(args[0]).type == "cuda"


def _is_cpu(owner: LabelledDevice, func: Any, args: Any, kwargs: Any) -> bool:
    return owner.device_of(args[0]).type == "cpu"


def _leaves_torch(owner: LabelledDevice, func: Any, args: Any, kwargs: Any) -> Any:
    if owner.device_of(args[0]).type == "cuda":
        raise WrongDevice(f"{func.__name__} of a tensor on {owner.device_of(args[0])}, at {_caller()}")
    return func(*args, **kwargs)


def _reads_back(owner: LabelledDevice, func: Any, args: Any, kwargs: Any) -> Any:
    place = owner.device_of(args[0])
    if place.type == "cuda":
        owner.wait(func.__name__, owner.current_stream(place).clock)
    return func(*args, **kwargs)


def _to(owner: LabelledDevice, func: Any, args: Any, kwargs: Any) -> Any:
    tensor, *rest = args
    device, dtype = kwargs.pop("device", None), kwargs.pop("dtype", None)
    flags = [kwargs.pop("non_blocking", False), kwargs.pop("copy", False)]
    position = 0
    for value in rest:
        if isinstance(value, Tensor):
            device, dtype = owner.device_of(value), value.dtype
        elif isinstance(value, torch.dtype):
            dtype = value
        elif isinstance(value, bool):
            flags[position] = value
            position += 1
        elif value is not None:
            device = value
    target = owner.device_of(tensor) if device is None else owner.named(device)
    return _moved(owner, tensor, target, dtype or tensor.dtype, *flags, **kwargs)


def _moved(
    owner: LabelledDevice,
    tensor: Tensor,
    target: torch.device,
    dtype: torch.dtype,
    non_blocking: bool,
    copy: bool,
    **kw: Any,
) -> Tensor:
    if target == owner.device_of(tensor):
        return tensor.to(dtype, copy=copy, **kw)
    if tensor.requires_grad and torch.is_grad_enabled():
        raise NotImplementedError("a tensor with a graph is moved to another device")
    with torch.no_grad():
        converted = tensor.detach().to(dtype, copy=False)
        out = torch.empty_like(converted)
        owner.label(out, target)
        out.copy_(converted, non_blocking=non_blocking)
    return out


def _cpu(owner: LabelledDevice, func: Any, args: Any, kwargs: Any) -> Tensor:
    return _moved(owner, args[0], torch.device("cpu"), args[0].dtype, False, False)


def _cuda(owner: LabelledDevice, func: Any, args: Any, kwargs: Any) -> Tensor:
    device = args[1] if len(args) > 1 else kwargs.get("device", "cuda")
    return _moved(
        owner, args[0], owner.named(device), args[0].dtype, kwargs.get("non_blocking", False), False
    )


def _pin_memory(owner: LabelledDevice, func: Any, args: Any, kwargs: Any) -> Tensor:
    return owner.pin(args[0].clone())


def _is_pinned(owner: LabelledDevice, func: Any, args: Any, kwargs: Any) -> bool:
    return owner.is_pinned(args[0])


def _deep_copy(owner: LabelledDevice, func: Any, args: Any, kwargs: Any) -> Tensor:
    return owner.label(func(*args, **kwargs), owner.device_of(args[0]))


def _like(owner: LabelledDevice, func: Any, args: Any, kwargs: Any) -> Tensor:
    """`zeros_like` and `new_zeros`: on the device of the tensor, or on the one that is named."""
    place, pinned = owner.device_of(args[0]), kwargs.pop("pin_memory", False)
    device = kwargs.pop("device", None)
    out = func(*args, **kwargs)
    target = place if device is None else owner.named(device)
    owner.make(out, target, func.__name__)
    return owner.pin(out) if pinned else out


def _from_data(owner: LabelledDevice, func: Any, args: Any, kwargs: Any) -> Tensor:
    """`torch.tensor` and `as_tensor`: numbers of the host, which are uploaded, and waited for."""
    device = kwargs.pop("device", None)
    if isinstance(args[0], Tensor) and owner.device_of(args[0]).type == "cuda":
        if device is None:
            return func(*args, **kwargs)
        return _moved(owner, args[0], owner.named(device), kwargs.get("dtype") or args[0].dtype, False, False)
    out = func(*args, **kwargs)
    return out if device is None else _moved(owner, out, owner.named(device), out.dtype, False, False)


_OWN: dict[Any, Callable[[LabelledDevice, Any, Any, Any], Any]] = {
    Tensor.device.__get__: _device,  # type: ignore[attr-defined]
    Tensor.is_cuda.__get__: _is_cuda,  # type: ignore[attr-defined]
    Tensor.is_cpu.__get__: _is_cpu,  # type: ignore[attr-defined]
    Tensor.numpy: _leaves_torch,
    Tensor.__array__: _leaves_torch,
    Tensor.__dlpack__: _leaves_torch,
    Tensor.tolist: _reads_back,
    Tensor.__repr__: _reads_back,
    Tensor.to: _to,
    Tensor.cpu: _cpu,
    Tensor.cuda: _cuda,
    Tensor.pin_memory: _pin_memory,
    Tensor.is_pinned: _is_pinned,
    Tensor.__deepcopy__: _deep_copy,
    torch.tensor: _from_data,
    torch.as_tensor: _from_data,
    **{getattr(torch, f"{name}_like"): _like for name in ("zeros", "ones", "empty", "full", "rand", "randn")},
    **{getattr(Tensor, f"new_{name}"): _like for name in ("zeros", "ones", "empty", "full")},
}


class _Runtime:
    """Stand-in for the module that `torch.cuda.cudart()` returns."""

    def __init__(self, owner: LabelledDevice) -> None:
        self._owner = owner

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        owner = self._owner
        if any(at < address + size and address < at + length for at, length in owner.registered.items()):
            owner.latched = "part or all of the requested memory range is already mapped"
            return 712
        if len(owner.registered) >= owner.refuses_pinning:
            owner.latched = "operation not supported"
            return 801
        owner.registered[address] = size
        return 0

    def cudaHostUnregister(self, address: int) -> int:
        return 0 if self._owner.registered.pop(address, None) is not None else 713


def _check_error(code: int) -> None:
    if code:
        raise RuntimeError(f"CUDA error {code}")


def make_labelled_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[LabelledDevice]:
    """Replace `torch.cuda` by the stand-ins; label the tensors of this thread and of those that start meanwhile."""
    owner = LabelledDevice()
    cuda, autocast, run = torch.cuda, torch.autocast, threading.Thread.run

    def run_here(thread: threading.Thread) -> None:
        with owner.here():
            run(thread)

    monkeypatch.setattr(threading.Thread, "run", run_here)

    def make_stream(device: Any = None, **_: Any) -> Stream:
        return Stream(owner, owner.named("cuda" if device is None else device), "a side stream")

    def set_device(device: Any) -> None:
        owner._thread.index = owner.named(device).index

    def synchronize(device: Any = None) -> None:
        streams = [*owner._thread.__dict__.get("streams", {}).values(), *owner._default.values()]
        everything = Clock()
        for stream in streams:
            everything.join(stream.clock)
        for number in range(owner._numbers + 1):
            everything[number] = sys.maxsize
        owner.wait("synchronize", everything)
        owner.host = Clock(dict.fromkeys(everything, sys.maxsize))

    stand_ins = {
        "is_available": lambda: True,
        "device_count": lambda: owner.count,
        "current_device": lambda: owner.current,
        "set_device": set_device,
        "Stream": make_stream,
        "Event": lambda **options: Event(owner, **options),
        "CUDAGraph": lambda *_, **__: Graph(owner),
        "graph": owner.capturing,
        "stream": owner.on_stream,
        "current_stream": owner.current_stream,
        "default_stream": lambda device=None: owner._default[owner.named(device or "cuda").index],
        "synchronize": synchronize,
        "is_current_stream_capturing": lambda: owner.capture is not None,
        "mem_get_info": lambda device=None: (1 << 36, 1 << 37),
        "memory_allocated": lambda device=None: 1 << 20,
        "cudart": lambda: _Runtime(owner),
        "check_error": _check_error,
        "is_bf16_supported": lambda *_, **__: True,
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(cuda, name, stand_in)
    monkeypatch.setattr(torch.backends.cudnn, "is_acceptable", lambda tensor: False)
    monkeypatch.setattr(torch, "Generator", Generator)
    monkeypatch.setattr(torch, "autocast", lambda kind, *args, **options: autocast("cpu", *args, **options))
    with owner.here():
        yield owner
        owner.finish()
