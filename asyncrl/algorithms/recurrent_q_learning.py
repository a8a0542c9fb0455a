"""Base record of the algorithms of the DQN family with a recurrent network, and the priority of a sequence.

    Hausknecht, Stone 2015  Deep recurrent Q-learning for partially observable MDPs
    Kapturowski et al. 2019 Recurrent experience replay in distributed reinforcement learning

They learn from sequences (`SequenceShape`) that begin with the recurrent state that the actor stored. The first
`burn_in` rows recompute it with the present weights, without gradient; the rows after them are trained on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from asyncrl.algorithms.q_learning import QLearning
from asyncrl.interfaces import EnvSpec, FieldSpec, SequenceShape
from asyncrl.options import Count, Fraction, NotNegative

if TYPE_CHECKING:
    from torch import Tensor

    from asyncrl.acting.policies import QLayout
    from asyncrl.acting.recurrent import Cell


def sequence_priorities(error: Tensor, trained: Tensor, sequences: int, eta: float) -> Tensor:
    """Priorities `[B, 1]` of B sequences of T rows: p = eta max_t |delta_t| + (1 - eta) mean_t |delta_t|.

    Kapturowski et al. 2019, section 2.3. Maximum and mean are taken over the trained rows.

    Args:
        error: delta `[B T, 1]`.
        trained: `[B T, 1]`, 1 for rows that are trained on, at least one of each sequence, else 0.
        sequences: B.
        eta: weight of the largest error.
    """
    size = (error.detach().abs() * trained).view(sequences, -1)
    mean = size.sum(dim=1) / trained.view(sequences, -1).sum(dim=1)
    return (eta * size.amax(dim=1) + (1.0 - eta) * mean).unsqueeze(1)


@dataclass(frozen=True, kw_only=True)
class RecurrentQLearning(QLearning):
    """Options of the DQN family with a recurrent cell: those of DQN and of sequences."""

    recurrent: Literal["none", "gru", "lstm"] = "none"
    """Recurrent cell between hidden layers and outputs: none, gru or lstm; its state is reset at episode starts."""

    recurrent_size: Count = 64
    """Outputs of the recurrent cell."""

    sequence_length: Count = 40
    """Trained rows of a sequence."""

    burn_in: NotNegative = 20
    """Rows before the trained ones, only used to recompute the recurrent state."""

    sequence_period: Count | None = None
    """Rows of a stream from the start of one sequence to the next; none: half of `sequence_length`."""

    eta: Fraction = 0.9
    """Weight of a sequence's largest error in its priority; the mean error has weight 1 - eta."""

    @property
    def cell(self) -> Cell | None:
        """Kind and size of the recurrent cell; None without one."""
        from asyncrl.acting.recurrent import Cell

        return None if self.recurrent == "none" else Cell(self.recurrent, self.recurrent_size)

    @property
    def sequence_shape(self) -> SequenceShape | None:
        """Shape of a sequence, and the period at which sequences begin; None without a cell."""
        if self.cell is None:
            return None
        period = self.sequence_period or max(1, self.sequence_length // 2)
        return SequenceShape(self.burn_in, self.sequence_length, period, self.n_step, self.discount)

    @property
    def sample_rows(self) -> int:
        """See `OffPolicy.sample_rows`."""
        shape = self.sequence_shape
        return super().sample_rows if shape is None else shape.ahead + shape.period

    def extra_fields(self, spec: EnvSpec) -> tuple[FieldSpec, ...]:
        """Field of the recurrent state before the row's observation, if there is a cell."""
        return () if self.cell is None else (self.cell.field,)

    def layout(self, spec: EnvSpec) -> QLayout:
        """Shape and weight order of the learner's network. Raises `SpacesDoNotFit`."""
        plain = super().layout(spec)
        if self.cell is None:
            return plain
        return replace(plain, network=self.network_for(spec), cell=self.cell)
