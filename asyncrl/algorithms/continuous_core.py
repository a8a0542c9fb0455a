"""What the learner's halves of DDPG, TD3 and SAC share: networks, optimisers, counters and what is saved.

Actor, temperature and critics lie one after the other in one flat vector, so that Adam is one call where nothing asks
for two. All three algorithms take the gradients of actor and critics from the same weights, those before the update;
the papers' code updates the critics first and lets the actor see the new ones. The difference is one step of Adam, and
one pass of the critics then does for both. There is no autograd (why: `networks/mlp.py`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.acting.box import scaling
from asyncrl.algorithms.continuous import ContinuousControl
from asyncrl.algorithms.saved_state import require_like
from asyncrl.algorithms.staging import StagedBatch
from asyncrl.algorithms.value_bounds import ValueBounds
from asyncrl.interfaces import Batch, EnvSpec, UpdateResult
from asyncrl.losses.soft import critic_loss
from asyncrl.networks.ensembles import FlatEnsemble, parameter_count
from asyncrl.networks.matmul_precision import MatmulPrecision
from asyncrl.networks.mlp import FlatMLP, HostCopy, initial_weights
from asyncrl.networks.optimizer import FlatAdam

_ALIGNED = 16
"""Float32 values in a cache line; critics begin at a multiple."""


class ContinuousWork(ABC):
    """Buffers of an update for one batch size.

    Attributes:
        size: B.
        staged: the batch on the device.
        x: `[3 B, inputs + d]`, rows that critics look at: (obs, action), (obs, own action), (next_obs, own action).
        actions: `[3 B, d]`, view of the last columns of `x`.
        td: `[C, B, 1]`, errors of the last update.
        q: `[C, B, 1]`, what the critics said of the batch's actions.
    """

    td: Tensor
    q: Tensor

    def __init__(self, size: int, core: ContinuousCore) -> None:
        self.size = size
        assert core.layout.action == core.spec.action
        self.staged = StagedBatch(
            size, core.spec, core.device, scaling(core.layout.action), core.config.reward_scale, core.bounds
        )
        inputs, values = core.layout.inputs, core.layout.action_values
        self.x = torch.zeros(3 * size, inputs + values, device=core.device)
        self.actions = self.x[:, inputs:]
        obs = self.staged.rows[:, :-1]
        self._copies = [
            (self.x[:size, :inputs], obs[:size]),
            (self.x[size:, :inputs], obs),
            (self.actions[:size], self.staged.action),
        ]

    def stage(self, batch: Batch) -> None:
        """Copy the batch in; nothing of it is kept."""
        self.staged.stage(batch)
        for into, source in self._copies:
            into.copy_(source)

    @abstractmethod
    def compute(self, acting: bool) -> None:
        """Fill the gradient; the actor's only where `acting`. The same operations for every batch."""

    @abstractmethod
    def actor_loss(self) -> Tensor:
        """Scalar, of the last update that was `acting`."""


class ContinuousCore(ABC):
    """Networks of one learner of continuous actions. Implements `asyncrl.interfaces.LearnerCore`.

    Used from one thread, the learner's. The arrays of a batch are copied out of it first; everything after that runs on
    `device` without a look at a value, and the only wait is for the new priorities: means over critics of |TD error|.
    Importance weights count for the critics; the actor learns from what was drawn.

    Args:
        config: hyper-parameters.
        spec: the environment.
        device: `"cpu"` or `"cuda"`.
        seed: of the initial weights, which are the same on every device, and of the noise, which is not.
        num_critics: C.

    Attributes:
        config, spec, device: as given.
        layout: shape of the actor and order of what is published.
        weight_count: how many float32 values `write_weights` fills.
        precision: context for wide products.
        policy, critics: the networks, views into one flat vector.
        policy_gradient, critics_gradient: shaped as these.
        target_policy: follows `policy`, where the algorithm has one; else None.
        target_critics: follow `critics`.
        log_alpha, log_alpha_gradient: logarithm of the temperature and its gradient, scalars.
        bounds: of action values, or None where an entropy bonus has none.
        generator: of the noise; a CUDA graph that holds an update must have it registered.
    """

    target_policy: FlatMLP | None = None
    _follows_policy: ClassVar[bool]

    def __init__(
        self, config: ContinuousControl, spec: EnvSpec, device: str, seed: int, num_critics: int
    ) -> None:
        self.config, self.spec, self.device = config, spec, torch.device(device)
        self.layout = config.layout(spec)
        self.weight_count = self.layout.weight_count
        self.precision = MatmulPrecision(config.matmul_precision, self.device)
        self.bounds = None if config.entropy_in_values else ValueBounds()
        hidden = config.critic_hidden_sizes or config.hidden_sizes
        self._critics = num_critics, (self.layout.inputs + self.layout.action_values, *hidden, 1)
        with torch.inference_mode():
            self._initialise(torch.Generator().manual_seed(seed))
            self._optimizers = self._make_optimizers()
        where = "cuda" if self.device.type == "cuda" else "cpu"
        (own,) = np.random.SeedSequence(seed).spawn(1)
        self.generator = torch.Generator(where).manual_seed(int(own.generate_state(1)[0]))
        self._updates, self._acting, self._acted = 0, False, False
        self._saved_actor_loss = math.nan
        self._work: ContinuousWork | None = None

    def _initialise(self, generator: torch.Generator) -> None:
        self._start = -(-(self.weight_count + 1) // _ALIGNED) * _ALIGNED
        flat = torch.zeros(self._start + parameter_count(*self._critics))
        flat[: self.weight_count] = initial_weights(self.layout.blocks, generator)
        critics = FlatEnsemble(*self._critics, flat[self._start :])
        critics.initialise(generator)
        # A value of an empty range is staged as 0, so that these weights would never be trained; but the actor does
        # say something of it. They get no gradient and stay zero.
        stuck = torch.from_numpy(scaling(self.layout.action)[1] == 0)
        critics.weights[0][:, self.layout.inputs :][:, stuck] = 0.0
        self._flat = flat.to(self.device, copy=True)
        self._gradient = torch.zeros_like(self._flat)
        self.policy, self.critics, self.log_alpha = self._parts(self._flat)
        self._to_host = HostCopy(self.policy.flat)
        self.policy_gradient, self.critics_gradient, self.log_alpha_gradient = self._parts(self._gradient)
        self._followed = self._flat if self._follows_policy else self._flat[self._start :]
        self._target = self._followed.clone()
        self.target_critics = FlatEnsemble(*self._critics, self._target[-self.critics.flat.numel() :])
        if self._follows_policy:
            self.target_policy = FlatMLP(self.layout.blocks, self._target[: self.weight_count])

    def _parts(self, flat: Tensor) -> tuple[FlatMLP, FlatEnsemble, Tensor]:
        policy, critics = flat[: self.weight_count], flat[self._start :]
        log_alpha = flat[self.weight_count : self.weight_count + 1].view(())
        return FlatMLP(self.layout.blocks, policy), FlatEnsemble(*self._critics, critics), log_alpha

    def _make_optimizers(self) -> dict[str, FlatAdam]:
        """One for everything, or, where rates, delays or lengths of gradients differ, one for each part."""
        config, end, start = self.config, self.weight_count, self._start
        same_rate = config.actor_learning_rate in (None, config.learning_rate)
        if same_rate and config.policy_delay == 1 and config.max_grad_norm is None:
            parts = {"all": slice(None)}
        else:
            parts = {"policy": slice(end), "temperature": slice(end, start), "critics": slice(start, None)}
        eps, norm = config.adam_eps, config.max_grad_norm
        return {
            name: FlatAdam(self._flat[at], self._gradient[at], eps=eps, max_grad_norm=norm)
            for name, at in parts.items()
        }

    @abstractmethod
    def _make_work(self, size: int) -> ContinuousWork: ...

    @abstractmethod
    def _moves_target(self, acting: bool) -> bool:
        """Whether the targets follow at this update."""

    @torch.inference_mode()
    def update(self, batch: Batch) -> UpdateResult:
        """One gradient step of the critics, and at every `policy_delay`-th of the actor.

        Nothing of `batch` is kept. A loss that is not finite is not looked for here; it shows in the priorities and in
        `metrics`.
        """
        work = self._work
        if work is None or work.size != batch.size:
            work, self._acted = self._make_work(batch.size), False
            self._work = work
        acting = self._acting = (self._updates + 1) % self.config.policy_delay == 0
        work.stage(batch)
        work.compute(acting)
        self._step(acting)
        if self._moves_target(acting):
            self._target.lerp_(self._followed, self.config.tau)
        self._updates += 1
        self._acted = self._acted or acting
        if not self.config.prioritized:
            return UpdateResult(None)
        return UpdateResult(work.staged.on_host(work.td.abs().mean(dim=0)))

    def _step(self, acting: bool) -> None:
        config, updates = self.config, self._updates
        for name, adam in self._optimizers.items():
            if name in ("all", "critics"):
                adam.step(config.learning_rate_at(updates))
            elif acting:
                adam.step(config.actor_learning_rate_at(updates))

    def draw(self, noise: Tensor) -> Tensor:
        """Fill `noise` with standard normal values."""
        return noise.normal_(generator=self.generator)

    def write_weights(self, out: NDArray[np.float32]) -> None:
        """Copy the actor into `out` `[weight_count]`, in the order of `BoxLayout`."""
        self._to_host(out)

    @torch.inference_mode()
    def metrics(self) -> Mapping[str, float]:
        """Losses, learning rate, action values and gradient norm (before clipping) of the last update.

        `train/q_mean` is the mean action value, `train/q_max` the largest absolute one, over all critics. The actor's
        loss is that of its last update, and its gradient counts in the norm only where it moved. Waits for the device.
        Before the first update there is only the learning rate.
        """
        values = {"train/learning_rate": self.config.learning_rate_at(max(self._updates - 1, 0))}
        work = self._work
        if work is None:
            return values
        if not math.isnan(actor_loss := self._actor_loss()):
            values["train/actor_loss"] = actor_loss
        return values | {
            "train/loss": float(critic_loss(work.td, work.staged.weight)),
            "train/q_mean": float(work.q.mean()),
            "train/q_max": float(work.q.abs().max()),
            "train/grad_norm": self._grad_norm(),
            **({} if self.bounds is None else self.bounds.metrics()),
        }

    def _grad_norm(self) -> float:
        """Of all gradients that moved something in the last update, which the optimisers have shortened since."""
        moved = ("all", "critics", *(("policy", "temperature") if self._acting else ()))
        norms = [adam.grad_norm for name, adam in self._optimizers.items() if name in moved]
        return math.hypot(*(float(norm) for norm in norms if norm is not None))

    def _actor_loss(self) -> float:
        """Of the actor's last update, also where that was before the state was saved."""
        return float(self._work.actor_loss()) if self._acted and self._work else self._saved_actor_loss

    @torch.inference_mode()
    def state_dict(self) -> dict[str, Any]:
        """Networks by layer name, optimisers, the noise's generator and the counter, as copies on the host."""
        targets = {"target_policy": self.target_policy.named()} if self.target_policy is not None else {}
        bounds = {} if self.bounds is None else {"value_bounds": torch.from_numpy(self.bounds.values.copy())}
        return {
            "policy": self.policy.named(),
            "critics": self.critics.named(),
            **targets,
            **bounds,
            "target_critics": self.target_critics.named(),
            "optimizer": {name: adam.state_dict() for name, adam in self._optimizers.items()},
            "generator": self.generator.get_state(),
            "updates": self._updates,
            "actor_loss": self._actor_loss(),
        }

    @torch.inference_mode()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned, to the same numbers on the same kind of device.

        On another kind of device the noise goes on from this core's own seed: generators of CPU and GPU differ.

        Raises:
            ValueError: a part is missing or has another shape; nothing has been written then.
        """
        own = self.state_dict()
        require_like(state, {**own, "generator": None}, "state")
        self.policy.load(state["policy"])
        self.critics.load(state["critics"])
        if self.target_policy is not None:
            self.target_policy.load(state["target_policy"])
        self.target_critics.load(state["target_critics"])
        if self.bounds is not None:
            self.bounds.values[:] = state["value_bounds"].numpy()
        for name, adam in self._optimizers.items():
            adam.load_state_dict(state["optimizer"][name])
        if state["generator"].shape == own["generator"].shape:
            self.generator.set_state(state["generator"])
        self._updates = int(state["updates"])
        self._saved_actor_loss, self._acted = float(state["actor_loss"]), False
