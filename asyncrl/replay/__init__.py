"""What the learner side knows about rows: which may be sampled, how likely each is, how a batch is cut out."""

from asyncrl.replay.replay import PrioritizedReplay, ReplayStatistics
from asyncrl.replay.segments import SegmentQueue, SegmentStatistics
from asyncrl.replay.sum_tree import SumTree

__all__ = ["PrioritizedReplay", "ReplayStatistics", "SegmentQueue", "SegmentStatistics", "SumTree"]
