"""Proximal policy optimisation on segments of asynchronous actors.

    Schulman et al. 2017    Proximal policy optimization algorithms
    Schulman et al. 2016    High-dimensional continuous control using generalized advantage estimation
    Hilton et al. 2021      Batch size-invariance for policy optimization (the decoupled objective; arXiv 2110.00641)
    Schulman 2020           Approximating KL divergence (the k3 estimator)

Importing this module does not import torch; making an updater does.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from asyncrl.acting.schedules import Rate, value_at
from asyncrl.algorithms.on_policy import ActorCriticLoss, OnPolicy
from asyncrl.config import TrainerConfig
from asyncrl.interfaces import BoxAction, EnvSpec
from asyncrl.options import Coefficient, Count, Fraction, Positive, Range
from asyncrl.protocols import SegmentUpdater

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from asyncrl.algorithms.on_policy_kernel import Outputs
    from asyncrl.algorithms.rollout import Minibatch, Part, PolicyRollout

_KL_MARGIN = 1.5
DISCRETE_ENTROPY = 0.01
"""Entropy coefficient for discrete actions if it is left to the run."""


def ppo_loss(
    distribution: tuple[Tensor, Tensor],
    value: Tensor,
    columns: Tensor,
    *,
    clip_range: float,
    value_clip_range: float | None = None,
    vf_coef: float = 0.5,
    ent_coef: float = 0.0,
) -> ActorCriticLoss:
    """Loss of a minibatch of B items: the negative of equation 9 of Schulman et al. 2017.

        r = pi / pi_old
        L = sum of w (-rho min(r A, clip(r, 1 - epsilon, 1 + epsilon) A) + c_1 (V - target)^2 - c_2 H)

    The first term is equation 7. With the importance weight rho = pi_old / mu, mu the behaviour policy, it is the
    decoupled objective of Hilton et al. 2021 (pi_old is then the proximal policy). With `value_clip_range` the squared
    error is the larger of those of V and of V clipped to this range around its old value, as in the code published with
    Schulman et al. 2017 (not in the paper).

    Args:
        distribution: log-probability of the actions and entropy, `[B]` each, under the learned policy.
        value: `[B]`.
        columns: `[6, B]`, see `PPO.rollout_columns`; `weight` is 1 / B for a mean.
        clip_range: epsilon.
        value_clip_range: clip range of the value around the old one, or None.
        vf_coef: c_1.
        ent_coef: c_2.
    """
    import torch

    log_prob, entropy = distribution
    old_log_prob, rho, advantage, target, old_value, weight = columns
    assert log_prob.shape == entropy.shape == value.shape == weight.shape and value.dim() == 1
    log_ratio = log_prob - old_log_prob
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1.0 - clip_range, 1.0 + clip_range)
    policy_loss = -(weight * rho * torch.minimum(ratio * advantage, clipped * advantage)).sum()
    error = (value - target).square()
    if value_clip_range is not None:
        held = value.clamp(old_value - value_clip_range, old_value + value_clip_range)
        error = torch.maximum(error, (held - target).square())
    value_loss = (weight * error).sum()
    loss = policy_loss + vf_coef * value_loss - ent_coef * (weight * entropy).sum()
    return ActorCriticLoss(loss, policy_loss, value_loss, entropy, log_ratio)


@dataclass(frozen=True, kw_only=True)
class PPO(OnPolicy):
    """Hyper-parameters of proximal policy optimisation.

    A random permutation of the rows is divided evenly into as few minibatches as `minibatch_size` allows, which are
    padded to equal size with rows of weight zero. Minibatches of a recurrent policy consist of whole streams: as many
    as fit into `minibatch_size` rows, at least one.

    Staleness: with `importance`, probability ratios are taken and clipped relative to the policy at the start of the
    iteration (the proximal policy of Hilton et al. 2021), and the policy loss of a row is multiplied by the importance
    weight of that policy over the behaviour policy, at most `rho_bar`. Otherwise ratios are relative to the behaviour
    policy.
    """

    name: ClassVar[str] = "ppo"
    rollout_columns: ClassVar[tuple[str, ...]] = (
        "old_log_prob",
        "importance",
        "advantage",
        "target",
        "old_value",
        "weight",
    )

    learning_rate: Rate = 3e-4
    learning_rate_schedule: Literal["constant", "cooldown", "linear"] | None = None  # type: ignore[assignment]
    """Schedule of the learning rate: constant, linear to 0 over the run's steps, or cooldown (linear to 0 over their
    last fifth); none: cooldown where `total_steps` is given."""

    epochs: int = 10
    normalize_rewards: bool = True
    segment_length: Count | None = None
    """Steps of each environment in a segment; none: as many as make a batch of 2,048 steps (recurrent, with discrete
    actions: 1,024), at least 32."""

    staggered_resets: bool | None = None
    max_staleness: int | None = 4

    ent_coef: Coefficient | None = None
    """Entropy coefficient of the loss; none: 0.01 for discrete actions, 0 for real-valued ones."""

    gae_lambda: Fraction = 0.95
    """Lambda of generalized advantage estimation: 0 is one step, 1 the rest of the segment."""

    clip_range: Rate = 0.2
    """Epsilon: range around 1 to which the ratio of new to old probability is clipped; or a function."""

    value_clip_range: Rate | None = None
    """Range around the old value to which a value is clipped in the loss; none disables clipping."""

    minibatch_size: Count = 64
    """Maximum steps of a minibatch; an epoch is divided evenly. Recurrent: at least one whole segment."""

    target_kl: Positive | None = None
    """Stop the epochs of a batch at 1.5 times this KL divergence from the old policy; none never stops."""

    normalize_advantages: bool = True
    """Standardise the advantages of a batch to mean 0 and standard deviation 1."""

    staleness_correction: Literal["none", "power", "exponential", "importance"] = "importance"
    """Correction of staleness s: none, a factor (1 + s)^-rate or exp(-rate s), or the decoupled objective."""

    rho_bar: Annotated[float, Range(at_least=1)] = 2.0
    """Largest importance weight of the decoupled loss."""

    cuda_graph: bool | None = None
    """On a GPU, run a gradient step as one CUDA graph, which saves launches; none: yes, unless `network` is given."""

    @property
    def batch_steps(self) -> tuple[int, int]:
        """See `SegmentLearning.batch_steps`.

        A recurrent policy's minibatch is a whole stream of a segment, so that segments of twice the length have half
        the gradient steps: with them it comes to 114 in CartPole in place of 403.
        """
        return (2_048, 2_048) if self.cell is None else super().batch_steps

    @property
    def static_steps(self) -> bool:
        """See `SegmentLearning`; not with a recurrent policy, `target_kl` or clip ranges that change."""
        scheduled = callable(self.clip_range) or callable(self.value_clip_range)
        return (
            self.uses_graph(self.cuda_graph)
            and self.cell is None
            and self.target_kl is None
            and not scheduled
        )

    @property
    def row_correction(self) -> Literal["none", "power", "exponential"]:
        """Staleness correction that the learner applies as a factor on a row; none with the decoupled loss."""
        return "none" if self.staleness_correction == "importance" else self.staleness_correction

    def for_run(self, config: TrainerConfig, spec: EnvSpec) -> Self:
        """See `OnPolicy.for_run`; the entropy coefficient follows from the kind of actions.

        Without an entropy bonus a discrete policy may become certain too early: one of five seeds then lost one of six
        cases of a bandit for good. For real-valued actions no gain was seen. At a constant rate a greedy policy that is
        learned dips now and then, and the run may end in a dip (docs/defaults-study.md), hence the cooldown.
        """
        record = super().for_run(config, spec)
        entropy, schedule = record.ent_coef, record.learning_rate_schedule
        if entropy is None:
            entropy = 0.0 if isinstance(spec.action, BoxAction) else DISCRETE_ENTROPY
        if schedule is None:
            schedule = "cooldown" if record.rate_may_fall(config) else "constant"
        return dataclasses.replace(record, ent_coef=entropy, learning_rate_schedule=schedule)

    def make_updater(self, spec: EnvSpec, device: str, seed: int) -> SegmentUpdater:
        """Make the updater on `device`, initialised from `seed`; imports torch. Raises `SpacesDoNotFit`."""
        from asyncrl.algorithms.on_policy_update import OnPolicyUpdate

        return OnPolicyUpdate(self, spec, device, seed)

    @np.errstate(over="ignore", invalid="ignore")
    def prepare(self, rollout: PolicyRollout) -> None:
        """Fill values, advantages, targets and importance weights; nonfinite values show in the network's weights.

        Before the first reward values count as 0, see `Rollout.rewarded`.
        """
        decoupled, behaviour = self.staleness_correction == "importance", rollout.behaviour
        value, last_value, log_prob = rollout.evaluate(log_prob=decoupled)
        if not rollout.rewarded:
            value, last_value = np.zeros_like(value), np.zeros_like(last_value)
        old_log_prob = log_prob if decoupled else behaviour
        advantage, target = self.advantages(rollout, value, last_value)
        if self.normalize_advantages:
            advantage = rollout.standardised(advantage, rollout.trained)
        # Every row has the same weight in its minibatch's mean, independent of the division of the rows.
        rows = int(np.count_nonzero(rollout.trained))
        share = np.float32(self._minibatches(rollout, rows) / max(rows, 1))
        rollout.fill(
            old_log_prob=old_log_prob,
            importance=np.minimum(np.exp(old_log_prob - behaviour), np.float32(self.rho_bar)),
            advantage=advantage,
            target=target,
            old_value=value,
            weight=rollout.weight * share,
        )

    def advantages(
        self, rollout: PolicyRollout, value: NDArray[np.float32], last_value: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Advantages and value targets `[S, T]`, from values `[S, T]` and values `[S]` after the last rows."""
        from asyncrl.algorithms.returns import gae

        return gae(rollout.reward, value, last_value, rollout.flags, self.discount, self.gae_lambda)

    def _minibatches(self, rollout: PolicyRollout, rows: int) -> int:
        """Number of gradient steps of a pass over `rows` trained rows."""
        if self.cell is None:
            return max(1, -(-rows // self.minibatch_size))
        return -(-len(rollout.trained_streams) // max(1, self.minibatch_size // rollout.shape[1]))

    def divide(self, rollout: PolicyRollout, seed: Sequence[int]) -> list[Part]:
        """Divide the rows into minibatches padded with row N; for a recurrent policy, the streams with trained rows."""
        from asyncrl.algorithms.rollout import parts_of_rows, parts_of_streams

        count = self._minibatches(rollout, int(np.count_nonzero(rollout.trained)))
        if self.cell is None:
            return parts_of_rows(rollout, count, self.minibatch_size, seed)
        order = np.random.default_rng(seed).permutation(rollout.trained_streams)
        return parts_of_streams(rollout, np.array_split(order, count))

    def gradients(self, rollout: PolicyRollout, batch: Minibatch) -> Outputs | None:
        """Gradients of `ppo_loss`; None if the divergence from the old policy exceeds 1.5 times `target_kl`.

        Computed by a kernel where the minibatch has one (on the CPU, not recurrent), else by autograd.
        """
        clips = self._clip_ranges(rollout.progress)
        kl: float | Tensor
        if batch.kernel is not None:
            clip, value_clip = clips
            held = math.inf if value_clip is None else value_clip
            coefficients = (clip, held, self.vf_coef, self.ent_coef or 0.0)
            kl, gradients = batch.kernel(batch.outputs, batch.columns, batch.part.samples, coefficients)
        else:
            from asyncrl.networks.gradients import output_gradients

            loss = partial(self._loss, batch, clips)
            found, (by_out, by_value, by_log_std) = output_gradients(loss, batch.outputs)
            gradients = by_out, by_value, by_log_std
            if self.target_kl is None:
                return gradients
            kl = _k3(found.log_ratio.detach()[batch.part.trained])
        return gradients if self.target_kl is None or float(kl) <= _KL_MARGIN * self.target_kl else None

    def _clip_ranges(self, progress: float) -> tuple[float, float | None]:
        """Clip ranges of the probability ratio and of the value at this progress of the run."""
        held = self.value_clip_range
        return value_at(self.clip_range, progress), None if held is None else value_at(held, progress)

    def _loss(
        self, batch: Minibatch, clips: tuple[float, float | None], out: Tensor, value: Tensor, log_std: Tensor
    ) -> ActorCriticLoss:
        return ppo_loss(
            batch.distribution(out, log_std),
            value,
            batch.columns,
            clip_range=clips[0],
            value_clip_range=clips[1],
            vf_coef=self.vf_coef,
            ent_coef=self.ent_coef or 0.0,
        )

    def metrics(self, rollout: PolicyRollout, batch: Minibatch) -> Mapping[str, float]:
        """Losses, entropy, divergence, clip fraction, and the explained variance before the first pass."""
        from asyncrl.algorithms.returns import explained_variance

        clips = self._clip_ranges(rollout.progress)
        found = self._loss(batch, clips, *batch.outputs)
        return {
            "train/loss": float(found.loss),
            "train/policy_loss": float(found.policy_loss),
            "train/value_loss": float(found.value_loss),
            "train/entropy": float(batch.mean(found.entropy)),
            "train/approx_kl": float(_k3(found.log_ratio[batch.part.trained])),
            "train/clip_fraction": float(batch.mean((found.log_ratio.expm1().abs() > clips[0]).float())),
            "train/explained_variance": explained_variance(*self.values_and_returns(rollout, batch)),
        }

    def values_and_returns(
        self, rollout: PolicyRollout, batch: Minibatch
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Values before the first pass, and lambda returns, of the rows of the iteration."""
        trained = rollout.trained
        return rollout.column("old_value")[trained], rollout.column("target")[trained]


def _k3(log_ratio: Tensor) -> Tensor:
    """Estimate of KL(pi_old, pi) for actions of pi_old: mean of `(r - 1) - log r` (Schulman 2020, k3), 0 of no rows."""
    found = log_ratio.expm1() - log_ratio
    return found.mean() if found.numel() else found.sum()
