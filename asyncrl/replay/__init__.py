"""Replay and segments over the rings: sampleable rows, priorities, and the gathering of batches."""

from asyncrl.replay.replay import PrioritizedReplay, ReplayStatistics
from asyncrl.replay.segments import SegmentQueue, SegmentStatistics
from asyncrl.replay.sequence_replay import SequenceReplay
from asyncrl.replay.sum_tree import SumTree

__all__ = [
    "PrioritizedReplay",
    "ReplayStatistics",
    "SegmentQueue",
    "SegmentStatistics",
    "SequenceReplay",
    "SumTree",
]
