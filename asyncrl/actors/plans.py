"""Plans that the main process sends to forked processes, and the messages that follow."""

from __future__ import annotations

from dataclasses import dataclass

from asyncrl.envs.source import EnvSource
from asyncrl.shm.requests import RequestLayout
from asyncrl.shm.ring import RingLayout

SPACE, QUIT, SAVE = b"S", b"Q", b"C"
"""Commands to an actor: rows were granted; close the environments and leave; send your state (`actor_state.py`)."""


@dataclass(frozen=True)
class PoolPlan:
    """What all actors of a run have in common.

    Attributes:
        source: the environment.
        policy: pickled `Policy`.
        layout: of every ring.
        num_actors: how many.
        seed: the run's seed; seeds of actors, lives and environments are spread from it.
        requests: of every request block, where the learner's side runs the network; else None.
    """

    source: EnvSource
    policy: bytes
    layout: RingLayout
    num_actors: int
    seed: int
    requests: RequestLayout | None = None

    def __post_init__(self) -> None:
        if self.num_actors < 1:
            raise ValueError(f"num_actors must be at least 1, got {self.num_actors}")


@dataclass(frozen=True)
class ActorPlan:
    """What one life of an actor needs to know; travels pickled.

    Attributes:
        pool: what all actors have in common.
        index: which actor.
        incarnation: which life, from 0.
        state: what the actor of an earlier run had sent, with which this life goes on; None begins new episodes.
    """

    pool: PoolPlan
    index: int
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
