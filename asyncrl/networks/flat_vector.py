"""The flat vectors of a learner, and the two points of an update at which groups of learners meet.

Without groups both points are one comparison with None.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor


class FlatVector:
    """Parameters and gradient of everything that one learner trains; learner's thread only.

    Args:
        parameters: `[P]` float32, whose memory never moves.
        gradient: `[P]`, what the next step is taken along.

    Attributes:
        parameters, gradient: as given.
        on_update: called before an update reads the parameters, which it may change in place; None without groups.
        on_step: called with the gradient filled and not yet clipped, which it may change in place. Gets the samples
            behind the gradient and whether this learner would end its pass here; returns whether the pass ends.
    """

    def __init__(self, parameters: Tensor, gradient: Tensor) -> None:
        assert parameters.shape == gradient.shape and parameters.dim() == 1
        self.parameters, self.gradient = parameters, gradient
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
