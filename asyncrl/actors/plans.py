"""Plans that the main process sends to forked processes, and the messages that follow."""

from __future__ import annotations

from dataclasses import dataclass

from asyncrl.envs.source import EnvSource
from asyncrl.shm.ring import RingLayout

SPACE, QUIT, SAVE = b"S", b"Q", b"C"
"""Commands to an actor: rows were granted; close the environments and leave; send your state (`actor_state.py`)."""


@dataclass(frozen=True)
class ActorPlan:
    """What one life of an actor needs to know; travels pickled.

    Attributes:
        source: the environment.
        policy: pickled `Policy`.
        layout: of its ring.
        index, num_actors: which actor, of how many.
        seed: the run's seed.
        incarnation: which life, from 0.
        state: what the actor of an earlier run had sent, with which this life goes on; None begins new episodes.
    """

    source: EnvSource
    policy: bytes
    layout: RingLayout
    index: int
    num_actors: int
    seed: int
    incarnation: int
    state: bytes | None = None


@dataclass(frozen=True)
class EvaluatorPlan:
    """What an evaluator needs to know; travels pickled.

    Attributes:
        source: the environment.
        policy: pickled `Policy`.
        max_envs: the most environments to build.
    """

    source: EnvSource
    policy: bytes
    max_envs: int
