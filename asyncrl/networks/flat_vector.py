"""Flat parameter and gradient vectors of a learner, with the callbacks by which groups of learners synchronise.

Without groups every callback is one comparison with None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Shareable(Protocol):
    """Running statistics of a learner's data that groups share; learner's thread only.

    Attributes:
        size: N, number of float64 values in a message.
    """

    @property
    def size(self) -> int: ...  # noqa: D102

    def take_message(self) -> NDArray[np.float64]:
        """Return the message `[N]`: statistics of the data since the last call; of no data at the first call."""
        ...

    def merge(self, message: NDArray[np.float64]) -> None:
        """Merge another learner's message into the statistics."""
        ...

    def merged(self, first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
        """Merge two messages into one; zeros are a message of no data."""
        ...


@dataclass(frozen=True)
class Drawn:
    """The shard of a replay that a batch was drawn from.

    Attributes:
        priority: total priority of the shard.
        largest_weight: largest importance weight of the batch before normalisation, p^-beta of its smallest p.
    """

    priority: float
    largest_weight: float


class Moments(NamedTuple):
    """Moments of the values that a learner standardises.

    Attributes:
        number: number of values.
        mean: their mean.
        square: sum of their squared deviations from the mean.
    """

    number: float
    mean: float
    square: float


NO_VALUES = Moments(0.0, 0.0, 0.0)


class FlatVector:
    """Parameters and gradient of all networks that one learner trains; learner's thread only.

    Args:
        parameters: `[P]` float32; the memory never moves.
        gradient: `[P]`, gradient of the next step.
        weighted: part of the gradient that importance weights affect.
        shared: statistics that groups share.
        buffers: running statistics of modules, which no step changes; views of `parameters`.

    Attributes:
        parameters, gradient, weighted, shared: as given.
        buffers: `[K]` int64 on the CPU, positions of the running statistics.
        moments: first and second moment of the optimiser of each part; their memory never moves. Set by the owner.
        velocity: `[P]`, velocity of the outer step with which groups fuse; part of a checkpoint. None without one.
        drawn: shard that the batch of this update was drawn from; None without groups or without replay.
        on_update: callback before an update reads the parameters; it may change them in place. None without groups.
        on_step: callback once the gradient is filled, before clipping; it may change it in place. Its arguments are
            those of `begin_step`; it returns whether the pass ends. None without groups.
        on_moments: callback before values are standardised, with their moments. It returns those of all groups' values,
            and whether `gradient` holds a step that the other groups make meanwhile, which this learner must make too.
            None unless groups fuse gradients.
    """

    def __init__(
        self,
        parameters: Tensor,
        gradient: Tensor,
        weighted: slice = slice(None),
        shared: tuple[Shareable | None, ...] = (),
        buffers: Iterable[Tensor] = (),
    ) -> None:
        assert parameters.shape == gradient.shape and parameters.dim() == 1
        self.parameters, self.gradient, self.weighted = parameters, gradient, weighted
        first = parameters.storage_offset()
        starts = [(int(view.storage_offset() - first), view.numel()) for view in buffers]
        places = [torch.arange(start, start + count) for start, count in starts]
        self.buffers = torch.cat(places) if places else torch.zeros(0, dtype=torch.int64)
        self.shared = tuple(one for one in shared if one is not None)
        self.moments: tuple[tuple[Tensor, Tensor], ...] = ()
        self.velocity: NDArray[np.float32] | None = None
        self.drawn: Drawn | None = None
        self.on_update: Callable[[], None] | None = None
        self.on_step: Callable[[float, bool, slice], bool] | None = None
        self.on_moments: Callable[[Moments], tuple[Moments, bool]] | None = None

    @property
    def in_group(self) -> bool:
        """Whether groups synchronise this learner."""
        return self.on_update is not None or self.on_step is not None

    def begin_update(self) -> None:
        """Call `on_update`; to be called before the forward pass of an update."""
        if self.on_update is not None:
            self.on_update()

    def wait(self) -> None:
        """Wait until the device has made the updates that were launched on it; on the CPU they are made."""
        if self.parameters.is_cuda:
            torch.cuda.current_stream(self.parameters.device).synchronize()

    def begin_step(self, samples: float = 1.0, ends: bool = False, part: slice = slice(None)) -> bool:
        """Call `on_step` between backward pass and optimiser step; return whether the pass ends.

        Args:
            samples: number of samples that the gradient is the mean of; groups weight their gradients by it.
            ends: whether this learner would end the pass here, without a step.
            part: part of the gradient that the step uses; what else is there is of an earlier step.
        """
        return ends if self.on_step is None else self.on_step(samples, ends, part)
