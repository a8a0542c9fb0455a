"""Plans that the main process sends to forked processes, and the commands that follow."""

from __future__ import annotations

from dataclasses import dataclass

from asyncrl.envs.source import EnvSource
from asyncrl.shm.requests import RequestLayout
from asyncrl.shm.ring import RingLayout

SPACE, QUIT, SAVE = b"S", b"Q", b"C"
"""Commands to an actor: read the grant or answer again; close the environments and exit; send the state
(`actor_state.py`)."""


@dataclass(frozen=True)
class PoolPlan:
    """Part of the plan that is common to all actors of a run.

    Attributes:
        source: the environment.
        policy: pickled `Policy`.
        layout: layout of every ring.
        num_actors: number of actors.
        seed: seed of the run, from which those of actors, lives and environments are derived.
        requests: layout of every request block if an inference server runs the network, else None.
        among: index of the first actor among the actors of all groups, and their number; None for (0, `num_actors`).
            Exploration differs along these indices.
    """

    source: EnvSource
    policy: bytes
    layout: RingLayout
    num_actors: int
    seed: int
    requests: RequestLayout | None = None
    among: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.num_actors < 1:
            raise ValueError(f"num_actors must be at least 1, got {self.num_actors}")


@dataclass(frozen=True)
class ActorPlan:
    """Plan of one life of an actor; sent pickled.

    Attributes:
        pool: the common part.
        index: index of the actor.
        incarnation: index of the life, from 0.
        state: state of the actor in an earlier run, from which this life continues; None to begin new episodes.
    """

    pool: PoolPlan
    index: int
    incarnation: int
    state: bytes | None = None


@dataclass(frozen=True)
class EvaluatorPlan:
    """Plan of an evaluator; sent pickled.

    Attributes:
        source: the environment.
        policy: pickled `Policy`.
        max_envs: largest number of environments to build.
    """

    source: EnvSource
    policy: bytes
    max_envs: int
