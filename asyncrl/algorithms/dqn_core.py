"""The learner's half of DQN: network, loss and optimiser, without autograd (see `networks.py` for why)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.core import Batch, EnvSpec, UpdateResult
from asyncrl.losses.td import bootstrap, dqn_loss, dqn_loss_gradient, dueling, dueling_gradient, td_error
from asyncrl.networks import FlatMLP, MLPPass, initial_weights
from asyncrl.schedules import ramp

if TYPE_CHECKING:
    from asyncrl.algorithms.dqn import DQN

_BETAS = (0.9, 0.999)
_OPTIMIZER = ("exp_avg", "exp_avg_sq", "step")


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
        self._exp_avg = torch.zeros_like(self._online.flat)
        self._exp_avg_sq = torch.zeros_like(self._online.flat)
        self._step = torch.zeros((), device=self._device)
        self._learning_rate = torch.tensor(config.learning_rate, device=self._device)
        self._one = torch.ones((), device=self._device)
        self._inverse_max_norm = self._one / (config.max_grad_norm or 1.0)
        self._updates = 0
        self._work: _Work | None = None

    @torch.inference_mode()
    def update(self, batch: Batch) -> UpdateResult:
        """One gradient step; priorities are |TD error| where `prioritized`, else None.

        Nothing of `batch` is kept. A loss that is not finite is not looked for here; it shows in the
        priorities and in `metrics`.
        """
        work = self._work
        if work is None or work.size != batch.size:
            work = self._work = _Work(batch.size, self)
        if self.config.learning_rate_schedule == "linear":
            self._learning_rate.fill_(self._rate(self._updates))
        work.stage(batch)
        self._compute(work)
        self._updates += 1
        if self.config.target_update == "hard" and self._updates % self.config.target_update_interval == 0:
            self._target.flat.copy_(self._online.flat)
        return UpdateResult(work.host_priorities() if self.config.prioritized else None)

    def _compute(self, work: _Work) -> None:
        """Everything of an update that happens on the device; the same operations for every batch."""
        config = self.config
        q, next_q_online = self._action_values(work)
        next_q = self._heads(work.target.forward())
        work.q = q
        next_value = bootstrap(next_q, next_q_online if config.double else None)
        work.td = td_error(q, work.action, work.reward, work.discount, next_value)
        grad = dqn_loss_gradient(work.td, work.action, work.weight, q.shape[1], config.huber_delta)
        work.online.backward(dueling_gradient(grad) if config.dueling else grad)
        if self._mask is not None:
            self._gradient.head.mul_(self._mask)
        self._adam(work)
        if config.target_update == "soft":
            self._target.flat.lerp_(self._online.flat, config.tau)

    def _action_values(self, work: _Work) -> tuple[Tensor, Tensor | None]:
        """Online action values `[B, A]` of obs, and of next_obs where double Q-learning asks for them."""
        out = self._heads(work.online.forward())
        return out[: work.size], out[work.size :] if self.config.double else None

    def _heads(self, out: Tensor) -> Tensor:
        return dueling(out[:, :1], out[:, 1:]) if self.config.dueling else out

    def _adam(self, work: _Work) -> None:
        """One step of Adam on the flat vector, the gradient shortened to `max_grad_norm` on the way."""
        scale = None
        if self.config.max_grad_norm is not None:
            work.grad_norm = torch.linalg.vector_norm(self._gradient.flat)
            scale = torch.maximum(work.grad_norm * self._inverse_max_norm, self._one)
        self._step.add_(self._one)
        torch._fused_adam_(
            [self._online.flat],
            [self._gradient.flat],
            [self._exp_avg],
            [self._exp_avg_sq],
            [],
            [self._step],
            lr=self._learning_rate,
            beta1=_BETAS[0],
            beta2=_BETAS[1],
            weight_decay=0.0,
            eps=self.config.adam_eps,
            amsgrad=False,
            maximize=False,
            grad_scale=scale,
        )

    def _rate(self, updates: int) -> float:
        """Learning rate of the update that `updates` others came before."""
        config = self.config
        if config.learning_rate_schedule == "constant":
            return config.learning_rate
        return ramp(config.learning_rate, config.learning_rate_final, config.learning_rate_updates, updates)

    def write_weights(self, out: NDArray[np.float32]) -> None:
        """Copy the online network into `out` `[weight_count]`, in the order of `QLayout`."""
        torch.from_numpy(out).copy_(self._online.flat)

    @torch.inference_mode()
    def metrics(self) -> Mapping[str, float]:
        """Loss, learning rate, mean action value and gradient norm (before clipping) of the last update.

        Waits for the device. Before the first update there is only the learning rate.
        """
        values = {"train/learning_rate": self._rate(max(self._updates - 1, 0))}
        work = self._work
        if work is None or work.td is None or work.q is None:
            return values
        norm = work.grad_norm if work.grad_norm is not None else torch.linalg.vector_norm(self._gradient.flat)
        values["train/loss"] = float(dqn_loss(work.td, work.weight, self.config.huber_delta))
        values["train/q_mean"] = float(work.q.mean())
        values["train/grad_norm"] = float(norm)
        return values

    def state_dict(self) -> Mapping[str, Any]:
        """Both networks by layer name, Adam's moments and the number of updates, as copies on the host."""
        adam = {name: getattr(self, f"_{name}").cpu().clone() for name in _OPTIMIZER}
        return {
            "online": self._online.named(),
            "target": self._target.named(),
            "optimizer": adam,
            "updates": self._updates,
        }

    @torch.inference_mode()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned, to the same numbers on the same device.

        Raises:
            ValueError: a part is missing or has another shape.
        """
        wanted = {"online", "target", "optimizer", "updates"}
        if set(state) != wanted or set(state["optimizer"]) != set(_OPTIMIZER):
            raise ValueError(f"state must hold {sorted(wanted)} with {_OPTIMIZER}, got {sorted(state)}")
        for name in _OPTIMIZER:
            own = getattr(self, f"_{name}")
            if own.shape != state["optimizer"][name].shape:
                shapes = f"{tuple(own.shape)}, got {tuple(state['optimizer'][name].shape)}"
                raise ValueError(f"optimizer.{name} must have shape {shapes}")
        self._online.load(state["online"])
        self._target.load(state["target"])
        for name in _OPTIMIZER:
            getattr(self, f"_{name}").copy_(state["optimizer"][name])
        self._updates = int(state["updates"])


class _Work:
    """Buffers of an update for one batch size: the batch on the device, and the passes over it.

    On a GPU a batch travels as one copy from one pinned block, which `stage` writes again only when that copy
    is done. On the CPU the block is the destination.

    Attributes:
        size: B.
        action, reward, discount, weight: columns `[B, 1]` on the device; weight is divided by B.
        online: pass over `[obs, next_obs]` (only obs without double Q-learning), with gradient for obs.
        target: pass over next_obs.
        td, q, grad_norm: of the last update.
    """

    def __init__(self, size: int, core: DQNCore) -> None:
        self.size = size
        self.td: Tensor | None = None
        self.q: Tensor | None = None
        self.grad_norm: Tensor | None = None
        device, width = core._device, core.layout.inputs + 1
        pinned = device.type == "cuda"
        self._host = torch.zeros(size * (2 * width + 5), pin_memory=pinned)
        self._block = self._host if device.type == "cpu" else torch.zeros_like(self._host, device=device)
        self._copied = torch.cuda.Event() if pinned else None
        rows, numbers, action = (field.numpy() for field in _fields(self._host, size, width))
        self._obs, self._next_obs = rows[:size, :-1], rows[size:, :-1]
        self._numbers, self._action = [*numbers[:, :, 0]], action[:, 0]
        both, (self.reward, self.discount, self.weight), self.action = _fields(self._block, size, width)
        rows[:, -1] = 1.0
        both[:, -1] = 1.0
        x = both if core.config.double else both[:size]
        self.online = MLPPass(core._online, x, core._gradient, size)
        self.target = MLPPass(core._target, both[size:])
        self._scale = np.float32(1 / 255) if core._spec.observation_dtype == "uint8" else None
        self._priorities = torch.zeros(size, 1, pin_memory=pinned)
        self._priorities_host = self._priorities.view(size).numpy()

    def stage(self, batch: Batch) -> None:
        """Copy the batch in; observations become float32 rows, bytes are scaled to 0..1."""
        if self._copied is not None:
            self._copied.synchronize()
        shape = self._obs.shape
        if self._scale is None:
            np.copyto(self._obs, batch.obs.reshape(shape), casting="same_kind")
            np.copyto(self._next_obs, batch.next_obs.reshape(shape), casting="same_kind")
        else:
            np.multiply(batch.obs.reshape(shape), self._scale, out=self._obs)
            np.multiply(batch.next_obs.reshape(shape), self._scale, out=self._next_obs)
        reward, discount, weight = self._numbers
        np.copyto(reward, batch.reward)
        np.copyto(discount, batch.discount)
        np.divide(batch.weight, self.size, out=weight)
        np.copyto(self._action, batch.action)
        if self._block is not self._host:
            self._block.copy_(self._host, non_blocking=True)
        if self._copied is not None:
            self._copied.record()

    def host_priorities(self) -> NDArray[np.float32]:
        """|TD error| `[B]` on the host; the same array every time."""
        assert self.td is not None
        if self._block is self._host:
            torch.abs(self.td, out=self._priorities)
        else:
            self._priorities.copy_(self.td.abs())
        return self._priorities_host


def _fields(block: Tensor, size: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Views of a flat block: observations `[2 B, width]`, numbers `[3, B, 1]` and actions `[B, 1]` int64.

    Numbers are reward, discount and weight. Actions come first, where they are aligned to 8 bytes.
    """
    action = block[: 2 * size].view(torch.int64).view(size, 1)
    numbers = block[2 * size : 5 * size].view(3, size, 1)
    return block[5 * size :].view(2 * size, width), numbers, action


def _head_mask(head: Tensor, stream: int) -> Tensor:
    """Ones where a dueling head has weights: value by first stream, advantages by second, biases."""
    mask = torch.ones_like(head)
    mask[0, stream:-1] = 0.0
    mask[1:, :stream] = 0.0
    return mask
