"""The learner's half of TD3 and DDPG: one update, written out (see `continuous_core.py` for what surrounds it).

DDPG (Lillicrap et al. 2016) is TD3 (Fujimoto et al. 2018) with one critic, without delay and without smoothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from asyncrl.algorithms.continuous_core import ContinuousCore, ContinuousWork
from asyncrl.algorithms.critic_heads import critic_head
from asyncrl.interfaces import EnvSpec
from asyncrl.losses.soft import smoothed_action, squashed_gradient
from asyncrl.networks.aligned_pass import AlignedPass
from asyncrl.networks.ensembles import EnsemblePass

if TYPE_CHECKING:
    from asyncrl.algorithms.ddpg import DDPG
    from asyncrl.algorithms.td3 import TD3


class TD3Core(ContinuousCore):
    """Actor and critics of TD3 or DDPG, and the targets of both. See `ContinuousCore`.

    Args:
        config: hyper-parameters.
        spec: the environment.
        device: `"cpu"` or `"cuda"`.
        seed: of weights and noise.
    """

    config: TD3 | DDPG
    _follows_policy = True

    def __init__(self, config: TD3 | DDPG, spec: EnvSpec, device: str = "cpu", seed: int = 0) -> None:
        super().__init__(config, spec, device, seed, config.num_critics)

    def _make_work(self, size: int) -> TD3Work:
        return TD3Work(size, self)

    def _moves_target(self, acting: bool) -> bool:
        return acting


class TD3Work(ContinuousWork):
    """Buffers of TD3's update. See `ContinuousWork`.

    The actor follows the first critic alone (as in the paper's code), so its actions are a pass of their own.

    Attributes:
        noise: `[B, d]`, standard normal, what the target's action was last moved by.
    """

    def __init__(self, size: int, core: TD3Core, kernels: bool | None = None) -> None:
        super().__init__(size, core)
        self._core = core
        obs, values = self.staged.rows[:, :-1], core.layout.action_values
        self.noise = torch.zeros(size, values, device=core.device)
        assert core.target_policy is not None
        self._actor = AlignedPass(
            core.policy, obs[:size], core.policy_gradient, size, core.precision, kernels
        )
        self._target_actor = AlignedPass(
            core.target_policy, obs[size:], precision=core.precision, kernels=kernels
        )
        batch, own, following = self.x.split(size)
        self._own_action, self._next_action = self.actions[size:].split(size)
        self._target = EnsemblePass(core.target_critics, following, precision=core.precision, kernels=kernels)
        self._critics = EnsemblePass(
            core.critics, batch, core.critics_gradient, precision=core.precision, kernels=kernels
        )
        self._judge = EnsemblePass(
            core.critics,
            own,
            critics=1,
            input_rows=size,
            input_columns=values,
            precision=core.precision,
            kernels=kernels,
        )
        self._slope = torch.full((1, size, 1), -1.0 / size, device=core.device)
        self._head = critic_head(self.staged, core.critics.count, size, kernels)
        self.td, self.q = self._head.td, self._critics.q

    def compute(self, acting: bool) -> None:
        """See `ContinuousWork.compute`."""
        core, config = self._core, self._core.config
        out = self._target_actor.forward()
        if config.target_noise > 0:
            noise = core.draw(self.noise)
            smoothed = smoothed_action(out.tanh(), noise, config.target_noise, config.target_noise_clip)
            self._next_action.copy_(smoothed)
        else:
            torch.tanh(out, out=self._next_action)
        next_q = self._target.forward()
        if config.bound_targets:
            next_q.clamp_(self.staged.low, self.staged.high)
        self._critics.backward(self._head.gradient(self._critics.forward(), next_q, None, None))
        if acting:
            self._follow_critic()

    def _follow_critic(self) -> None:
        """The actor's gradient, of minus the mean of what the first critic says of its actions."""
        torch.tanh(self._actor.forward(), out=self._own_action)
        self._judge.forward()
        self._actor.backward(squashed_gradient(self._own_action, self._judge.backward(self._slope)))

    def actor_loss(self) -> Tensor:
        """See `ContinuousWork.actor_loss`."""
        return self._judge.q.mean().neg()
