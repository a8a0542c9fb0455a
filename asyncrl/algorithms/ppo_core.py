"""The learner's half of PPO: minibatches of an iteration, without autograd (see `networks/mlp.py` for why)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from asyncrl.algorithms.on_policy_core import OnPolicyCore
from asyncrl.algorithms.ppo_minibatch import Minibatch
from asyncrl.algorithms.rollout import Rollout
from asyncrl.interfaces import EnvSpec
from asyncrl.losses.advantages import gae
from asyncrl.losses.policy_gradient import truncated_importance
from asyncrl.networks.distributions import distribution

if TYPE_CHECKING:
    from asyncrl.algorithms.ppo import PPO


class PPOCore(OnPolicyCore):
    """Networks, loss and optimiser of one PPO learner. Implements `asyncrl.interfaces.SegmentCore`.

    Minibatches come from a permutation. Rows are divided evenly into as few minibatches as `minibatch_size` allows,
    which are padded to one size with rows of weight zero.

    Staleness: with `importance`, ratios are clipped against the policy as it stands when the iteration begins (the
    proximal policy of Hilton et al. 2021), and the loss of a row is weighted by what it gives the action over what
    the behaviour policy gave it, at most `rho_bar`. Otherwise ratios are taken of the behaviour policy itself.

    Args:
        config: hyper-parameters.
        spec: the environment.
        device: `"cpu"` or `"cuda"`.
        seed: of the initial weights and the permutations.
    """

    def __init__(self, config: PPO, spec: EnvSpec, device: str = "cpu", seed: int = 0) -> None:
        super().__init__(config, spec, device, seed)
        self.config = config
        self._batch: Minibatch | None = None
        self._order = torch.zeros(0, 0, dtype=torch.int64)
        self._counts: list[int] = []

    @np.errstate(over="ignore", invalid="ignore")
    def _prepare(self, rollout: Rollout) -> None:
        """Fill the rollout's numbers: values, advantages, and both log-probabilities.

        Where numbers have left float32's range it is the learner that says so, by the weights that come of it.
        """
        config = self.config
        decoupled = config.staleness_correction == "importance"
        value, last, log_prob = rollout.look(distribution(self.nets.layout) if decoupled else None)
        policy_weight = rollout.weight
        if decoupled:
            proximal, behaviour = (torch.from_numpy(a.reshape(-1)) for a in (log_prob, rollout.behaviour))
            rho = truncated_importance(proximal, behaviour, config.rho_bar)
            policy_weight = np.where(
                rollout.weight == 0, 0, rollout.weight * rho.numpy().reshape(rollout.shape)
            )
        reward = self._scaled_reward(rollout)
        advantage, target = gae(reward, value, last, rollout.flags, config.gamma, config.gae_lambda)
        self._explained_variance = _explained_variance(value, target, rollout.valid)
        # Every row has the same share in its minibatch's mean, however the rows were divided.
        share = np.float32(self._minibatches(rollout) / max(rollout.valid.size, 1))
        rollout.fill(
            log_prob=log_prob if decoupled else rollout.behaviour,
            advantage=_standardised(advantage, rollout.valid) if config.normalize_advantages else advantage,
            target=target,
            value=value,
            policy_weight=policy_weight * share,
            value_weight=rollout.weight * (share * config.value_coefficient),
            entropy_weight=rollout.weight * (-share * config.entropy_coefficient),
        )

    def _minibatches(self, rollout: Rollout) -> int:
        """How many gradient steps a pass has."""
        return max(1, -(-rollout.valid.size // self.config.minibatch_size))

    def _shuffle(self, rollout: Rollout) -> int:
        """Divide the rows into minibatches, padded with row N."""
        rows = rollout.shape[0] * rollout.shape[1]
        size = min(self.config.minibatch_size, rows)
        parts = np.array_split(self._pass_rng().permutation(rollout.valid), self._minibatches(rollout))
        self._counts = [part.size for part in parts]
        order = np.full((len(parts), size), rows, np.int64)
        for row, part in zip(order, parts, strict=True):
            row[: part.size] = part
        self._order = torch.from_numpy(order).to(self.nets.device)
        if self._batch is None or self._batch.size != size:
            self._batch = Minibatch(self.config, self.nets, rollout, size)
        return len(parts)

    def _gradient(self, rollout: Rollout) -> int | None:
        """That of a minibatch; None where the policy has left the old one farther than `target_kl` allows."""
        assert self._batch is not None
        self._batch.gather(rollout, self._order[self._position], self._counts[self._position])
        return self._batch.count if self._batch.gradient() else None

    def _step_metrics(self) -> Mapping[str, float]:
        """Losses, entropy, divergence and clipped share. `train/explained_variance` is of the iteration's begin."""
        return {} if self._batch is None else self._batch.metrics()


def _standardised(advantage: NDArray[np.float32], valid: NDArray[np.int64]) -> NDArray[np.float32]:
    """`advantage` with mean 0 and deviation 1 over the rows `valid`; zero elsewhere."""
    flat = advantage.reshape(-1)
    result, own = np.zeros_like(flat), flat[valid]
    if own.size:
        result[valid] = (own - own.mean()) / (own.std() + np.float32(1e-8))
    return result.reshape(advantage.shape)


def _explained_variance(
    value: NDArray[np.float32], target: NDArray[np.float32], valid: NDArray[np.int64]
) -> float:
    """Share of the targets' variance over the rows `valid` that the values explain; 0 where there is none."""
    own = target.reshape(-1)[valid]
    variance = float(own.var()) if own.size else 0.0
    return 1.0 - float((own - value.reshape(-1)[valid]).var()) / variance if variance > 0 else 0.0
