"""Options of algorithms whose policies may be recurrent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from asyncrl.algorithms.observing import Observing
from asyncrl.options import require_at_least

if TYPE_CHECKING:
    from asyncrl.acting.recurrent import Cell


@dataclass(frozen=True, kw_only=True)
class Recurrent(Observing):
    """Options about the memory of a policy.

    Raises:
        ValueError: a value of the wrong type or outside its range; the text begins with the option's name.
    """

    recurrent: Literal["none", "gru", "lstm"] = "none"
    """Recurrent cell between the hidden layers and the outputs: none, gru or lstm; its state begins with an episode."""

    recurrent_size: int = 64
    """Outputs of the recurrent cell, at least 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least("recurrent_size", self.recurrent_size, 1)

    @property
    def cell(self) -> Cell | None:
        """Kind and size of the cell; None where the policy has no memory."""
        from asyncrl.acting.recurrent import Cell

        return None if self.recurrent == "none" else Cell(self.recurrent, self.recurrent_size)
