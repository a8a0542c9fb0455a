"""Adam on one flat parameter vector: one fused operation for all layers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

BETA2 = 0.999
"""Decay rate of the second moment."""


class FlatAdam:
    """Adam (Kingma & Ba 2015) with an optional maximum gradient norm; reads no value back to the host.

    Used from the learner's thread only, without gradient tracking. A step may be captured in a CUDA graph: the learning
    rate is a tensor that `step` fills only when it has changed.

    Args:
        parameters: flat `[P]` float32, changed in place; may be a view of a longer vector.
        gradient: `[P]`, read at every step, and clipped in place if there is a maximum norm.
        eps: term added to the denominator.
        max_grad_norm: maximum gradient norm; None disables clipping.
        beta1: decay rate of the first moment.
        sizes: sizes of consecutive parts of the vector, with which `step` can move one part alone; None: one part.

    Attributes:
        learning_rate: learning rate of the last step, 0 before it.
    """

    STATE = ("_exp_avg", "_exp_avg_sq", "_step")

    def __init__(
        self,
        parameters: Tensor,
        gradient: Tensor,
        *,
        eps: float = 1e-8,
        max_grad_norm: float | None = None,
        beta1: float = 0.9,
        sizes: Sequence[int] | None = None,
    ) -> None:
        self.learning_rate = 0.0
        self._stepped = False
        self._gradient = gradient
        self._eps, self._beta1, self._limited = eps, beta1, max_grad_norm is not None
        self._exp_avg, self._exp_avg_sq = torch.zeros_like(parameters), torch.zeros_like(parameters)
        self._step = torch.zeros(() if sizes is None else len(sizes), device=parameters.device)
        vectors = (parameters, gradient, self._exp_avg, self._exp_avg_sq)
        split = [[vector] if sizes is None else [*vector.split(sizes)] for vector in vectors]
        steps = [self._step] if sizes is None else [*self._step.unbind()]
        self._whole: tuple[list[Tensor], ...] = (*split, [], steps)
        self._parts: list[tuple[list[Tensor], ...]] = [
            ([w], [g], [m], [v], [], [n]) for w, g, m, v, n in zip(*split, steps, strict=True)
        ]
        self._gradients = split[1]
        self._rate, self._norm = (torch.zeros((), device=parameters.device) for _ in range(2))
        self._one = torch.ones((), device=parameters.device)
        self._inverse_max_norm = self._one / (max_grad_norm or 1.0)

    def step(self, learning_rate: float, part: int | None = None) -> None:
        """Make one step with the current gradient; with `part` the others, with their moments, stay as they are."""
        self.set_learning_rate(learning_rate)
        lists, gradient, count = self._whole, self._gradient, self._step
        if part is not None:
            lists, gradient, count = self._parts[part], self._gradients[part], self._step[part]
        scale = None
        if self._limited:
            torch.linalg.vector_norm(gradient, out=self._norm)
            scale = torch.maximum(self._norm * self._inverse_max_norm, self._one)
        self._stepped = True
        count.add_(self._one)
        torch._fused_adam_(
            *lists,
            lr=self._rate,
            beta1=self._beta1,
            beta2=BETA2,
            weight_decay=0.0,
            eps=self._eps,
            amsgrad=False,
            maximize=False,
            grad_scale=scale,
        )

    def set_learning_rate(self, learning_rate: float) -> None:
        """Set the learning rate of the next step; for callers whose steps a CUDA graph replays."""
        if learning_rate != self.learning_rate:
            self.learning_rate = learning_rate
            self._rate.fill_(learning_rate)

    @property
    def moments(self) -> tuple[Tensor, Tensor]:
        """First and second moment `[P]`; not copies, and their memory never moves."""
        return self._exp_avg, self._exp_avg_sq

    @property
    def grad_norm(self) -> Tensor | None:
        """Norm of the last step's gradient before clipping, a scalar tensor; None before the first step.

        Without a maximum norm it is computed here, from the current gradient.
        """
        if not self._stepped:
            return None
        return self._norm if self._limited else torch.linalg.vector_norm(self._gradient)
