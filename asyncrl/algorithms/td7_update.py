"""Update of TD7. Its networks are in `networks/sale.py`.

All trained networks are parts of one flat vector, and all their gradients are computed with the weights before the
update, as in `continuous_update.py`; the paper's code updates encoders, critics and actor one after the other.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.acting.box import scaling
from asyncrl.acting.modules import MAKING, bind, flat_size
from asyncrl.acting.sale import SaleNetwork
from asyncrl.algorithms.continuous import ActorLoss, CriticLoss, DeterministicActor
from asyncrl.algorithms.continuous_update import actor_learning_rate
from asyncrl.algorithms.replay_update import ReplayUpdate
from asyncrl.algorithms.staging import StagedBatch
from asyncrl.interfaces import EnvSpec
from asyncrl.networks.flat_vector import FlatVector
from asyncrl.networks.gradients import output_gradients, vector_jacobian_product
from asyncrl.networks.module import ModuleGradient
from asyncrl.networks.optimizer import FlatAdam
from asyncrl.networks.parameters import HostCopy
from asyncrl.networks.sale import HandPasses, ModulePasses, Passes, SaleInputs, SaleNetworks


class Losses(NamedTuple):
    """Formulas of TD7: its record says what they are.

    Attributes:
        encoders: function of `(pair, next_z)`.
        targets: function of `(next_q, batch, low, high)`.
        critics: function of `(q, y, weight)`.
        priorities: function of `(td,)`.
        actor: function of `(q,)`.
    """

    encoders: Callable[[Tensor, Tensor], Tensor]
    targets: Callable[[Tensor, StagedBatch, Tensor, Tensor], Tensor]
    critics: Callable[[Tensor, Tensor, Tensor], CriticLoss]
    priorities: Callable[[Tensor], Tensor]
    actor: Callable[[Tensor], ActorLoss]


class Learned(NamedTuple):
    """Results of an update other than the gradient, on the device.

    Attributes:
        critic, encoder: losses, scalars.
        q: values of the batch's actions `[C, B, 1]`.
        actor: loss, a scalar; None if the actor was not updated.
    """

    critic: Tensor
    encoder: Tensor
    q: Tensor
    actor: Tensor | None


class TD7Update(ReplayUpdate):
    """Encoders, actor and critics of TD7, and their targets. See `ReplayUpdate`.

    Args:
        config, spec, device: see `ReplayUpdate`.
        seed: seed of the initial weights, which are the same on every device, and of the noise, which is not.
        losses: the formulas.
        smoothing: function from the target policy's action and standard normal noise to the smoothed action `[B, d]`.
        copies: number of critics.
        interval: updates between replacements.

    Attributes:
        layout: shape of the network that acts.
        networks: the trained networks, on one flat vector.
        fixed: encoders that actor and critics read; those of the last replacement.
        gradients: where the gradients of the trained networks' parts go.
        target: target networks; its encoders are those before the last replacement.
        generator: random generator of the noise.
    """

    config: DeterministicActor
    STATE = (
        *ReplayUpdate.STATE,
        *("_flat", "_fixed", "_target", "_range", "_optimizers", "generator", "_actor_loss"),
    )

    def __init__(
        self,
        config: DeterministicActor,
        spec: EnvSpec,
        device: str = "cpu",
        seed: int = 0,
        *,
        losses: Losses,
        smoothing: Callable[[Tensor, Tensor], Tensor],
        copies: int,
        interval: int,
    ) -> None:
        self.layout = layout = config.layout(spec)
        super().__init__(config, spec, device, layout)
        self._losses, self._smoothing, self._interval = losses, smoothing, interval
        self._scaling = scaling(layout.action)
        self.movable = torch.from_numpy(self._scaling[1] > 0).to(self.device, torch.float32)
        with torch.no_grad():
            self._make_networks(seed, copies)
        self._make_optimizers()
        own = np.random.SeedSequence(seed).spawn(1)[0].generate_state(1)[0]
        where = "cuda" if self.device.type == "cuda" else "cpu"
        self.generator = torch.Generator(where).manual_seed(int(own))
        self._learned: Learned | None = None
        self._actor_loss = torch.full((), math.nan, device=self.device)
        self._acting = False

    def _make_networks(self, seed: int, copies: int) -> None:
        layout, network = self.layout, self.layout.network
        assert isinstance(network, SaleNetwork)
        widths = network.hidden, self.config.critic_hidden_sizes or network.hidden, network.embedding
        with MAKING, torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            made = SaleNetworks(layout.inputs, layout.action_values, *widths, copies)
        flat = torch.cat([p.detach().reshape(-1) for p in made.parameters()]).to(self.device)
        head = flat_size([made.head])
        encoders = slice(head, head + flat_size([made.encoders]))
        # What moves in every update is the last part, the actor's head the first.
        self._slices = {"policy": slice(head), "encoders": encoders, "critics": slice(encoders.stop, None)}
        self._flat, self._target, self._fixed = flat, flat.clone(), flat[encoders].clone()
        self.networks, self.target = made.to(self.device), copy.deepcopy(made).requires_grad_(False)
        self.fixed = copy.deepcopy(self.target.encoders)
        for module, vector in (
            (self.networks, flat),
            (self.target, self._target),
            (self.fixed, self._fixed),
        ):
            bind([module], vector)
        self._states = flat_size([made.encoders.states])
        self._head_to_host = HostCopy(flat[self._slices["policy"]])
        self._encoder_to_host = HostCopy(self._fixed[: self._states])
        self._range = torch.tensor((0.0, 0.0, math.inf, -math.inf), device=self.device)
        self._unbounded = torch.tensor((-math.inf, math.inf), device=self.device)

    def _make_optimizers(self) -> None:
        flat, gradient, norm = self._flat, torch.zeros_like(self._flat), self.config.max_grad_norm
        self._optimizers = {
            name: FlatAdam(flat[at], gradient[at], eps=self.config.adam_eps, max_grad_norm=norm)
            for name, at in self._slices.items()
        }
        parts = self.networks.head, self.networks.encoders, self.networks.critics
        self.gradients = {
            name: ModuleGradient(([part], gradient[at]))
            for part, (name, at) in zip(parts, self._slices.items(), strict=True)
        }
        self.vector = FlatVector(flat, gradient, self._slices["critics"], (self.statistics, self.bounds))
        self.vector.moments = tuple(adam.moments for adam in self._optimizers.values())

    def _make_buffers(self, batch: StagedBatch) -> TD7Buffers:
        return TD7Buffers(batch, self)

    def _update(self, buffers: TD7Buffers) -> Tensor | None:
        """Make one step of encoders and critics and, at every `policy_delay`-th update, of the actor."""
        config, rate = self.config, self.config.learning_rate_at(self._updates, self._progress)
        acting = self._acting = (self._updates + 1) % config.policy_delay == 0
        of_actor = actor_learning_rate(config, self._updates, self._progress)
        for name, adam in self._optimizers.items():
            adam.set_learning_rate(of_actor if name == "policy" else rate)
        buffers.noise.normal_(generator=self.generator)
        self._run(partial(self._compute, buffers, acting), acting)
        learned = self._learned = buffers.learned[acting]
        if learned.actor is not None:
            self._actor_loss.copy_(learned.actor)
        if (self._updates + 1) % self._interval == 0:
            self._replace_targets()
        return buffers.priorities if config.prioritized else None

    def _compute(self, buffers: TD7Buffers, acting: bool) -> None:
        """Run the part of an update that needs the device only; the operations are the same for every batch."""
        with torch.inference_mode(False), self.precision:
            buffers.learned[acting] = self._learn(buffers, acting)
        self.vector.begin_step(part=slice(0 if acting else self._slices["policy"].stop, None))
        for name, adam in self._optimizers.items():
            if acting or name != "policy":
                adam.step(adam.learning_rate)

    def _learn(self, buffers: TD7Buffers, acting: bool) -> Learned:
        """Fill the gradient, the actor's only if `acting`, and the priorities."""
        batch, passes = buffers.batch, buffers.passes
        pair, next_z = passes.embed()
        of_encoders, pull_back = vector_jacobian_product(self._losses.encoders, pair, next_z)
        passes.fill_encoders(pull_back(buffers.one))
        y = self._targets(buffers)
        q = passes.values()
        of_critics, (grad_q,) = output_gradients(self._losses.critics, (q,), y, batch.weight)
        passes.fill_critics(grad_q)
        buffers.priorities.copy_(self._losses.priorities(of_critics.td))
        losses = of_critics.loss.detach(), of_encoders, q
        if not acting:
            return Learned(*losses, None)
        of_actor, (grad_q,) = output_gradients(self._losses.actor, (passes.own_values(),))
        passes.fill_actor(grad_q)
        return Learned(*losses, of_actor.loss.detach())

    def _targets(self, buffers: TD7Buffers) -> Tensor:
        """Targets of the critics `[B, 1]`; the range that was seen takes them in."""
        action = self._smoothing(buffers.passes.next_action(), buffers.noise) * self.movable
        next_q = buffers.passes.next_values(action)
        low, high, lowest, highest = self._range
        if not self.config.bound_targets:
            low, high = self._unbounded
        y = self._losses.targets(next_q, buffers.batch, low, high)
        torch.minimum(lowest, y.min(), out=lowest)
        torch.maximum(highest, y.max(), out=highest)
        return y

    def _replace_targets(self) -> None:
        """Replace the targets by the trained networks, their encoders by the fixed ones, and these by the trained."""
        encoders = self._slices["encoders"]
        self._target.copy_(self._flat)
        self._target[encoders].copy_(self._fixed)
        self._fixed.copy_(self._flat[encoders])
        self._range[:2] = self._range[2:]

    def _write_network(self, out: NDArray[np.float32]) -> None:
        """Copy the encoder that the actor reads, and the head."""
        self._encoder_to_host(out[: self._states])
        self._head_to_host(out[self._states :])

    def _begin_network(self, flat: Tensor) -> None:
        for vector in (self._flat, self._target):
            vector[self._slices["policy"]].copy_(flat[self._states :])
        for encoders in (*(v[self._slices["encoders"]] for v in (self._flat, self._target)), self._fixed):
            encoders[: self._states].copy_(flat[: self._states])

    def metrics(self) -> Mapping[str, float]:
        """`ReplayUpdate.metrics`, and the losses of encoders and actor, the actor's at its last update.

        The gradient norm includes the actor's gradient only if the last update moved it.
        """
        values, learned = super().metrics(), self._learned
        if learned is None:
            return values
        own = {"train/encoder_loss": float(learned.encoder)}
        if not math.isnan(loss := float(self._actor_loss)):
            own["train/actor_loss"] = loss
        return {**values, **own}

    def _last_update(self) -> tuple[float, Tensor, float] | None:
        if self._learned is None:
            return None
        moved = [adam for name, adam in self._optimizers.items() if self._acting or name != "policy"]
        norm = math.hypot(*(float(adam.grad_norm) for adam in moved if adam.grad_norm is not None))
        return float(self._learned.critic), self._learned.q, norm

    def _of_actions(self, q: Tensor, action: NDArray[Any]) -> Tensor | None:
        return q.squeeze(2).mean(dim=0) if q.shape[1] == len(action) else None


class TD7Buffers:
    """Inputs and passes of an update for one batch size.

    Attributes:
        batch: the batch on the device; `stage` fills it.
        noise: `[B, d]`, standard normal noise of the smoothing.
        priorities: `[B, 1]`.
        one: gradient of a loss at itself.
        passes: passes of the networks over the batch.
        learned: results of the last update with the actor and of the last one without it.
    """

    def __init__(self, batch: StagedBatch, update: TD7Update) -> None:
        self.batch, self.stage = batch, batch.stage
        self.noise = batch.rows.new_zeros(batch.size, update.layout.action_values)
        self.priorities, self.one = batch.rows.new_zeros(batch.size, 1), batch.rows.new_ones(())
        inputs = SaleInputs(
            networks=update.networks,
            fixed=update.fixed,
            target=update.target,
            rows=batch.rows,
            action=batch.action,
            movable=update.movable,
            gradients=update.gradients,
            precision=update.precision,
        )
        self.passes: Passes = HandPasses(inputs) if passes_by_hand(batch.rows) else ModulePasses(inputs)
        self.learned: dict[bool, Learned] = {}


def passes_by_hand(rows: Tensor) -> bool:
    """Whether the passes need no autograd: on the CPU."""
    return rows.device.type == "cpu"
