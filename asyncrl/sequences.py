"""Shape and batch of the sequences of recurrent replay.

Kapturowski et al., "Recurrent Experience Replay in Distributed Reinforcement Learning" (R2D2), ICLR 2019, section 2.3.

A sequence is U consecutive rows of one stream:

    row      0 ........ burn_in ......... burn_in + length ..... burn_in + length - 1 + n_step
             |  burn-in  |  T = length rows, trained  |  used to bootstrap only |

The network starts from the recurrent state that the actor stored in row 0 and runs over all U rows. A sequence
continues across the ends of episodes, and the state is reset at each row that begins an episode. So every row is used
and none is padding. (The paper ends sequences with the episode; with episodes shorter than a sequence most of a batch
would be padding.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.interfaces import LONGEST_N_STEP, EnvSpec, FieldSpec


@dataclass(frozen=True)
class SequenceShape:
    """Shape of a sequence, and distance between the starts of sequences.

    Attributes:
        burn_in: rows before the trained ones, over which the recurrent state is recomputed; at least 0.
        length: T, trained rows, at least 1.
        period: rows of a stream from the start of one sequence to that of the next, at least 1. With half the length,
            as in the paper, every row is trained in two sequences. With a period of 1 every row would be in `length`
            sequences, and after an update the priorities of all but one would be out of date.
        n_step: steps of the n-step return, from 1 to 255.
        gamma: discount per step, from 0 to 1.

    Raises:
        ValueError: a number is out of its range.
    """

    burn_in: int
    length: int
    period: int
    n_step: int
    gamma: float

    def __post_init__(self) -> None:
        for name, least in (("burn_in", 0), ("length", 1), ("period", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if not 1 <= self.n_step <= LONGEST_N_STEP:
            raise ValueError(f"n_step must be between 1 and {LONGEST_N_STEP}, got {self.n_step}")
        if not 0.0 <= self.gamma <= 1.0:
            raise ValueError(f"gamma must be between 0 and 1, got {self.gamma}")

    @property
    def rows(self) -> int:
        """U, number of rows of a sequence."""
        return self.burn_in + self.length + self.n_step

    @property
    def ahead(self) -> int:
        """Number of rows that must be published after the first before a sequence can be sampled."""
        return self.rows - 1


@dataclass
class SequenceBatch:
    """Batch of B sequences, gathered from the rings directly into these arrays.

    The creator of the batch owns the arrays, and the next gather overwrites them. All are C-contiguous with axis 0 = B.
    U and T are those of `SequenceShape`.

    Attributes:
        obs: `[B, U, *obs_shape]` in the ring's dtype.
        begins: `[B, U]` bool, whether an episode begins at the row, or the actor was restarted there; the recurrent
            state is reset before such a row. Always False at row 0, which starts from the stored state.
        action: `[B, T, *act_shape]` of the trained rows.
        reward: `[B, T]` float32, n-step return of the trained rows, cut off at the end of an episode or of the actor's
            life.
        discount: `[B, T]` float32, `gamma**k`, or 0 if the k-th step terminated the episode.
        bootstrap: `[B, T]` int64, row in 0 .. U - 1 whose value is multiplied by `discount`.
        trained: `[B, T]` bool, False for RESET rows, whose action was not taken, and for the last row of an actor's
            life, which has no successor. There `reward` and `discount` are 0 and `bootstrap` is the row itself.
        weight: `[B]` float32, importance weight times staleness correction.
        ids: `[B]` int64, identifies the sequence for `update_priorities`; never reused during a run.
        version: `[B]` int64, policy version that acted in row 0, the oldest of the sequence.
        policy_updates: `[B]` int64, updates that the learner had made when it published that version.
        staleness: `[B]` int64, updates made since then, filled by the learner when the batch is used.
        extras: extra fields of row 0 (the recurrent state), each `[B, ...]`.
        progress: fraction of the run's `total_steps` done, 0 to 1; 0 if the run has no limit.
    """

    obs: NDArray[Any]
    begins: NDArray[np.bool_]
    action: NDArray[Any]
    reward: NDArray[np.float32]
    discount: NDArray[np.float32]
    bootstrap: NDArray[np.int64]
    trained: NDArray[np.bool_]
    weight: NDArray[np.float32]
    ids: NDArray[np.int64]
    version: NDArray[np.int64]
    policy_updates: NDArray[np.int64]
    staleness: NDArray[np.int64]
    extras: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    progress: float = 0.0

    @classmethod
    def allocate(
        cls, batch_size: int, shape: SequenceShape, spec: EnvSpec, extra_fields: tuple[FieldSpec, ...] = ()
    ) -> SequenceBatch:
        """Create an uninitialised batch of `batch_size` sequences for this environment."""
        trained, counted = (batch_size, shape.length), (batch_size,)
        return cls(
            obs=np.empty((batch_size, shape.rows, *spec.observation_shape), spec.observation_dtype),
            begins=np.empty((batch_size, shape.rows), np.bool_),
            action=np.empty((*trained, *spec.action.shape), spec.action.dtype),
            reward=np.empty(trained, np.float32),
            discount=np.empty(trained, np.float32),
            bootstrap=np.empty(trained, np.int64),
            trained=np.empty(trained, np.bool_),
            weight=np.empty(counted, np.float32),
            ids=np.empty(counted, np.int64),
            version=np.empty(counted, np.int64),
            policy_updates=np.empty(counted, np.int64),
            staleness=np.zeros(counted, np.int64),
            extras={f.name: np.empty((batch_size, *f.shape), f.dtype) for f in extra_fields},
        )

    @property
    def size(self) -> int:
        """B, the number of sequences."""
        return int(self.ids.shape[0])
