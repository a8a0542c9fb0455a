"""Options of recurrent policies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from asyncrl.algorithms.observing import Observing
from asyncrl.options import require_at_least

if TYPE_CHECKING:
    from asyncrl.acting.recurrent import Cell


@dataclass(frozen=True, kw_only=True)
class Recurrent(Observing):
    """Options of a policy's recurrent cell."""

    recurrent: Literal["none", "gru", "lstm"] = "none"
    """Recurrent cell between hidden layers and outputs: none, gru or lstm; its state is reset at episode starts."""

    recurrent_size: int = 64
    """Outputs of the recurrent cell, at least 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least("recurrent_size", self.recurrent_size, 1)

    @property
    def cell(self) -> Cell | None:
        """Kind and size of the cell; None without one."""
        from asyncrl.acting.recurrent import Cell

        return None if self.recurrent == "none" else Cell(self.recurrent, self.recurrent_size)
