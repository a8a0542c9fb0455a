"""The flat vectors of a learner, and the points of an update at which groups of learners meet.

Without groups every point is one comparison with None.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


class Shareable(Protocol):
    """Statistics of what a learner has seen, which groups share; learner's thread.

    Attributes:
        size: N, float64 values that tell of them.
    """

    @property
    def size(self) -> int: ...  # noqa: D102

    def tell(self) -> NDArray[np.float64]:
        """What this learner has seen since it told last, `[N]`; the first call tells nothing."""
        ...

    def hear(self, told: NDArray[np.float64]) -> None:
        """Take in what another learner has told."""
        ...

    def merged(self, first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
        """What tells of both; zeros tell of nothing."""
        ...


@dataclass(frozen=True)
class Drawn:
    """The shard of a replay that a batch was drawn from.

    Attributes:
        priority: its total priority.
        largest_weight: the batch's largest importance weight before it was divided by it, p^-beta of its smallest p.
    """

    priority: float
    largest_weight: float


class FlatVector:
    """Parameters and gradient of everything that one learner trains; learner's thread only.

    Args:
        parameters: `[P]` float32, whose memory never moves.
        gradient: `[P]`, what the next step is taken along.
        weighted: the part of the gradient that importance weights count in.
        shared: statistics that groups share.

    Attributes:
        parameters, gradient, weighted, shared: as given.
        moments: first and second moment of the optimiser of each part, whose memory never moves; set by the owner.
        drawn: where the batch of this update was drawn from; None without groups, and where nothing is drawn.
        on_update: called before an update reads the parameters, which it may change in place; None without groups.
        on_step: called with the gradient filled and not yet clipped, which it may change in place. Gets the samples
            behind the gradient and whether this learner would end its pass here; returns whether the pass ends.
    """

    def __init__(
        self,
        parameters: Tensor,
        gradient: Tensor,
        weighted: slice = slice(None),
        shared: tuple[Shareable | None, ...] = (),
    ) -> None:
        assert parameters.shape == gradient.shape and parameters.dim() == 1
        self.parameters, self.gradient, self.weighted = parameters, gradient, weighted
        self.shared = tuple(one for one in shared if one is not None)
        self.moments: tuple[tuple[Tensor, Tensor], ...] = ()
        self.drawn: Drawn | None = None
        self.on_update: Callable[[], None] | None = None
        self.on_step: Callable[[float, bool], bool] | None = None

    def begin_update(self) -> None:
        """An update begins: its forward pass comes next."""
        if self.on_update is not None:
            self.on_update()

    def begin_step(self, samples: float = 1.0, ends: bool = False) -> bool:
        """The gradient of `samples` samples stands, the optimiser's step comes next; returns whether the pass ends.

        Args:
            samples: what the gradient is the mean of; groups weigh their gradients by it.
            ends: whether this learner would end the pass here, without a step.
        """
        return ends if self.on_step is None else self.on_step(samples, ends)
