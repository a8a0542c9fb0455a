"""Replay and segments over the rings: sampleable rows, priorities, and the gathering of batches."""

from asyncrl.replay.joint_replay import JointReplay
from asyncrl.replay.joint_sequence_replay import JointSequenceReplay
from asyncrl.replay.replay import PrioritizedReplay
from asyncrl.replay.segments import SegmentQueue
from asyncrl.replay.sequence_replay import SequenceReplay
from asyncrl.replay.sum_tree import SumTree

__all__ = [
    "JointReplay",
    "JointSequenceReplay",
    "PrioritizedReplay",
    "SegmentQueue",
    "SequenceReplay",
    "SumTree",
]
