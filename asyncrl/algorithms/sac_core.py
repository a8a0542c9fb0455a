"""The learner's half of SAC: one update, written out (see `continuous_core.py` for what surrounds it)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from asyncrl.algorithms.continuous_core import ContinuousCore, ContinuousWork
from asyncrl.algorithms.critic_heads import critic_head
from asyncrl.algorithms.gaussian_heads import gaussian_head
from asyncrl.interfaces import EnvSpec
from asyncrl.losses.soft import temperature_gradient
from asyncrl.networks.aligned_pass import AlignedPass
from asyncrl.networks.ensembles import EnsemblePass

if TYPE_CHECKING:
    from asyncrl.algorithms.sac import SAC


class SACCore(ContinuousCore):
    """Actor, critics and temperature of soft actor-critic. See `ContinuousCore`.

    Args:
        config: hyper-parameters.
        spec: the environment.
        device: `"cpu"` or `"cuda"`.
        seed: of weights and noise.
    """

    config: SAC
    _follows_policy = False

    def __init__(self, config: SAC, spec: EnvSpec, device: str = "cpu", seed: int = 0) -> None:
        super().__init__(config, spec, device, seed, config.num_critics)
        with torch.inference_mode():
            self.log_alpha.fill_(math.log(config.ent_coef or config.ent_coef_initial))
        values = self.layout.action_values
        self.target_entropy = -float(values) if config.target_entropy is None else config.target_entropy

    def _make_work(self, size: int) -> SACWork:
        return SACWork(size, self)

    def _moves_target(self, acting: bool) -> bool:
        return True

    def state_dict(self) -> dict[str, Any]:
        """As `ContinuousCore.state_dict`, and the logarithm of the temperature."""
        return {**super().state_dict(), "log_alpha": self.log_alpha.cpu().clone()}

    @torch.inference_mode()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `ContinuousCore.load_state_dict`. Raises ValueError where it does not fit."""
        super().load_state_dict(state)
        self.log_alpha.copy_(state["log_alpha"])

    @torch.inference_mode()
    def metrics(self) -> Mapping[str, float]:
        """As `ContinuousCore.metrics`, and the temperature that the last update used."""
        values = dict(super().metrics())
        if isinstance(self._work, SACWork):
            values["train/ent_coef"] = float(self._work.alpha)
        return values


class SACWork(ContinuousWork):
    """Buffers of SAC's update. See `ContinuousWork`.

    The actor looks at obs and next_obs in one pass, the critics at the batch's and the actor's actions in another.
    In an update that leaves the actor alone both look at half as much.

    Attributes:
        alpha: scalar, the temperature before the update.
        noise: `[2 B, d]`, what the actions of obs and next_obs were drawn with.
    """

    def __init__(self, size: int, core: SACCore, kernels: bool | None = None) -> None:
        super().__init__(size, core)
        self._core = core
        self.noise = torch.zeros(2 * size, core.layout.action_values, device=core.device)
        self._target = EnsemblePass(
            core.target_critics, self.x[2 * size :], precision=core.precision, kernels=kernels
        )
        self._acting = _Passes(core, self, True, kernels)
        self._learning = None if core.config.policy_delay == 1 else _Passes(core, self, False, kernels)
        self.alpha = self._acting.alpha

    def compute(self, acting: bool) -> None:
        """See `ContinuousWork.compute`."""
        core, size = self._core, self.size
        passes = self._acting if acting or self._learning is None else self._learning
        alpha = self.alpha = torch.exp(core.log_alpha, out=passes.alpha)
        noise = core.draw(self.noise)
        out = passes.actor.forward()
        passes.gaussian.draw(out, noise[-out.shape[0] :])
        next_q = self._target.forward()
        q = passes.critics.forward()
        next_log_prob = passes.gaussian.log_prob[-size:]
        grad_action = passes.critics.backward(passes.head.gradient(q, next_q, next_log_prob, alpha))
        self.td, self.q = passes.head.td, q[:, :size]
        if not acting:
            return
        passes.actor.backward(passes.gaussian.gradient(grad_action, alpha))
        if core.config.ent_coef is None:
            log_prob = passes.gaussian.log_prob[:size]
            core.log_alpha_gradient.copy_(temperature_gradient(log_prob, core.target_entropy))

    def actor_loss(self) -> Tensor:
        """See `ContinuousWork.actor_loss`."""
        passes, size = self._acting, self.size
        smallest = passes.critics.q[:, size:].amin(dim=0)
        return (passes.alpha * passes.gaussian.log_prob[:size] - smallest).mean()


class _Passes:
    """What an update passes through, with the actor's half of the rows (`acting`) or without."""

    def __init__(self, core: SACCore, work: SACWork, acting: bool, kernels: bool | None) -> None:
        size, values = work.size, core.layout.action_values
        skipped = 0 if acting else size
        obs = work.staged.rows[skipped:, :-1]
        self.alpha = torch.zeros((), device=core.device)
        self.actor = AlignedPass(
            core.policy, obs, core.policy_gradient if acting else None, size, core.precision, kernels
        )
        self.gaussian = gaussian_head(work.actions[size + skipped :], size, kernels)
        self.critics = EnsemblePass(
            core.critics,
            work.x[: 2 * size - skipped],
            core.critics_gradient,
            input_rows=size - skipped,
            input_columns=values if acting else 0,
            precision=core.precision,
            kernels=kernels,
        )
        self.head = critic_head(work.staged, core.critics.count, 2 * size - skipped, kernels)
