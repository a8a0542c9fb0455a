"""Shared memory between processes: segments, rings, the weight mailbox, the doorbell; NumPy and numba only."""

from asyncrl.shm.doorbell import Doorbell, DoorbellWriter
from asyncrl.shm.free_memory import available_bytes
from asyncrl.shm.ring import RingReader, RingWriter
from asyncrl.shm.ring_layout import RingLayout, RingStatistics
from asyncrl.shm.segment import ArraySpec, Segment, bytes_needed
from asyncrl.shm.weights import WeightMailbox

__all__ = [
    "ArraySpec",
    "Doorbell",
    "DoorbellWriter",
    "RingLayout",
    "RingReader",
    "RingStatistics",
    "RingWriter",
    "Segment",
    "WeightMailbox",
    "available_bytes",
    "bytes_needed",
]
