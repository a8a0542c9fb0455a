"""Plans that the main process sends to forked processes, and the commands that follow."""

from __future__ import annotations

from dataclasses import dataclass

from asyncrl.envs.source import EnvSource
from asyncrl.interfaces import EnvSpec, SelfPlay
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
        num_actors: number of actors; 0 for a run on a dataset.
        seed: seed of the run, from which those of actors, lives and environments are derived.
        requests: layout of every request block if an inference server runs the network, else None.
        staggered: time limit of an episode over which the first episodes are spread (`staggered_steps`); 0 if they
            are not.
        self_play: opponents of agents, None if all agents act with the newest weights.
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
    self_play: SelfPlay | None = None
    staggered: int = 0

    def __post_init__(self) -> None:
        if self.num_actors < 0:
            raise ValueError(f"num_actors must be at least 0, got {self.num_actors}")


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
class FilmPlan:
    """Plan of the film of one episode; sent pickled.

    Attributes:
        source: the environment, which is made with `render_mode="rgb_array"`.
        policy: pickled `Policy`.
        weights: its weights, float32 as bytes.
        seed: seed of the evaluation whose first episode is filmed.
        max_steps: steps after which the film ends.
        deterministic: whether actions are greedy.
        path: the video file.
    """

    source: EnvSource
    policy: bytes
    weights: bytes
    seed: int
    max_steps: int
    deterministic: bool
    path: str


@dataclass(frozen=True)
class EvaluatorPlan:
    """Plan of an evaluator; sent pickled.

    Attributes:
        sources: the environment of every level; the first is built before the process is ready.
        policy: pickled `Policy`.
        spec: spec of the environment in which the policy was trained.
    """

    sources: tuple[EnvSource, ...]
    policy: bytes
    spec: EnvSpec
