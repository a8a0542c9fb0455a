"""The learner's half of DQN: network, loss and optimiser, without autograd (see `networks.py` for why)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.algorithms.saved_state import require_like
from asyncrl.algorithms.staging import StagedBatch
from asyncrl.core import Batch, EnvSpec, UpdateResult
from asyncrl.losses.td import bootstrap, dqn_loss, dqn_loss_gradient, dueling, dueling_gradient, td_error
from asyncrl.networks import FlatMLP, MLPPass, initial_weights
from asyncrl.optimizer import FlatAdam

if TYPE_CHECKING:
    from asyncrl.algorithms.dqn import DQN


class DQNCore:
    """Online and target network of one DQN learner. Implements `asyncrl.core.LearnerCore`.

    Used from one thread, the learner's. The arrays of a batch are copied out of it first; everything after
    that runs on `device` without a look at a value, and the only wait is for the new priorities.

    Args:
        config: hyper-parameters.
        spec: the environment.
        device: `"cpu"` or `"cuda"`.
        seed: of the initial weights, which are the same on every device.
    """

    def __init__(self, config: DQN, spec: EnvSpec, device: str = "cpu", seed: int = 0) -> None:
        self.config = config
        self.layout = config.layout(spec)
        self.weight_count = self.layout.weight_count
        self._spec = spec
        self._device = torch.device(device)
        with torch.inference_mode():
            self._initialise(seed)

    def _initialise(self, seed: int) -> None:
        config, layout = self.config, self.layout
        generator = torch.Generator().manual_seed(seed)
        start = initial_weights(layout.blocks, generator)
        self._online = FlatMLP(layout.blocks, start.to(self._device, copy=True))
        self._mask = _head_mask(self._online.head, config.hidden_sizes[-1]) if config.dueling else None
        if self._mask is not None:
            self._online.head.mul_(self._mask)
        self._target = FlatMLP(layout.blocks, self._online.flat.clone())
        self._gradient = FlatMLP(layout.blocks, torch.zeros_like(self._online.flat))
        self._adam = FlatAdam(
            self._online.flat,
            self._gradient.flat,
            eps=config.adam_eps,
            max_grad_norm=config.max_grad_norm,
        )
        self._updates = 0
        self._work: _Work | None = None

    @torch.inference_mode()
    def update(self, batch: Batch) -> UpdateResult:
        """One gradient step; priorities are |TD error| where `prioritized`, else None.

        Nothing of `batch` is kept. A loss that is not finite is not looked for here; it shows in the
        priorities and in `metrics`.
        """
        work = self._work
        if work is None or work.batch.size != batch.size:
            work = self._work = _Work(batch.size, self)
        work.batch.stage(batch)
        self._compute(work)
        self._updates += 1
        if self.config.target_update == "hard" and self._updates % self.config.target_update_interval == 0:
            self._target.flat.copy_(self._online.flat)
        return UpdateResult(work.priorities() if self.config.prioritized else None)

    def _compute(self, work: _Work) -> None:
        """Everything of an update that happens on the device; the same operations for every batch."""
        config = self.config
        q, next_q_online = self._action_values(work)
        next_q = self._heads(work.target.forward())
        work.q = q
        next_value = bootstrap(next_q, next_q_online if config.double else None)
        batch = work.batch
        work.td = td_error(q, batch.action, batch.reward, batch.discount, next_value)
        grad = dqn_loss_gradient(work.td, batch.action, batch.weight, q.shape[1], config.huber_delta)
        work.online.backward(dueling_gradient(grad) if config.dueling else grad)
        if self._mask is not None:
            self._gradient.head.mul_(self._mask)
        self._adam.step(config.learning_rate_at(self._updates))
        if config.target_update == "soft":
            self._target.flat.lerp_(self._online.flat, config.tau)

    def _action_values(self, work: _Work) -> tuple[Tensor, Tensor | None]:
        """Online action values `[B, A]` of obs, and of next_obs where double Q-learning asks for them."""
        out = self._heads(work.online.forward())
        return out[: work.batch.size], out[work.batch.size :] if self.config.double else None

    def _heads(self, out: Tensor) -> Tensor:
        return dueling(out[:, :1], out[:, 1:]) if self.config.dueling else out

    def write_weights(self, out: NDArray[np.float32]) -> None:
        """Copy the online network into `out` `[weight_count]`, in the order of `QLayout`."""
        torch.from_numpy(out).copy_(self._online.flat)

    @torch.inference_mode()
    def metrics(self) -> Mapping[str, float]:
        """Loss, learning rate, mean action value and gradient norm (before clipping) of the last update.

        Waits for the device. Before the first update there is only the learning rate.
        """
        values = {"train/learning_rate": self.config.learning_rate_at(max(self._updates - 1, 0))}
        work = self._work
        if work is None or work.td is None or work.q is None:
            return values
        values["train/loss"] = float(dqn_loss(work.td, work.batch.weight, self.config.huber_delta))
        values["train/q_mean"] = float(work.q.mean())
        norm = self._adam.grad_norm
        if norm is not None:
            values["train/grad_norm"] = float(norm)
        return values

    def state_dict(self) -> Mapping[str, Any]:
        """Both networks by layer name, Adam's moments and the number of updates, as copies on the host."""
        return {
            "online": self._online.named(),
            "target": self._target.named(),
            "optimizer": self._adam.state_dict(),
            "updates": self._updates,
        }

    @torch.inference_mode()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned, to the same numbers on the same device.

        Raises:
            ValueError: a part is missing or has another shape; nothing has been written then.
        """
        require_like(state, self.state_dict(), "state")
        self._online.load(state["online"])
        self._target.load(state["target"])
        self._adam.load_state_dict(state["optimizer"])
        self._updates = int(state["updates"])


class _Work:
    """Buffers of an update for one batch size: the batch on the device, and the passes over it.

    Attributes:
        batch: on the device.
        online: pass over `[obs, next_obs]` (only obs without double Q-learning), with gradient for obs.
        target: pass over next_obs.
        td, q: of the last update.
    """

    def __init__(self, size: int, core: DQNCore) -> None:
        self.batch = StagedBatch(size, core._spec, core._device)
        self.td: Tensor | None = None
        self.q: Tensor | None = None
        rows = self.batch.rows
        self.online = MLPPass(core._online, rows if core.config.double else rows[:size], core._gradient, size)
        self.target = MLPPass(core._target, rows[size:])

    def priorities(self) -> NDArray[np.float32]:
        """|TD error| `[B]` on the host; the same array every time."""
        assert self.td is not None
        return self.batch.on_host(self.td)


def _head_mask(head: Tensor, stream: int) -> Tensor:
    """Ones where a dueling head has weights: value by first stream, advantages by second, biases."""
    mask = torch.ones_like(head)
    mask[0, stream:-1] = 0.0
    mask[1:, :stream] = 0.0
    return mask
