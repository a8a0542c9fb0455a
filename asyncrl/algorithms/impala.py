"""IMPALA, the actor-critic that corrects for policy lag by V-trace.

    Espeholt et al. 2018    IMPALA: scalable distributed deep-RL with importance weighted actor-learner architectures

PPO makes many small steps on a batch and stays near the policy that acted. IMPALA makes few large steps and corrects
for stale batches: every gradient step recomputes the value targets under the present policy. So a segment may arrive
late, be trained on in several passes, or be kept and mixed into later batches (`past_segments`).

Real-valued actions: rewards and observations are normalised, segments have 16 steps, a gradient step has 64, those of
four streams, and the rate falls to 0 (`BOX`). These options were chosen for A2C, on HalfCheetah, Hopper, Pendulum and
FetchReachDense: segments of 5 or 8, a constant rate, a rate of 0.002 and raw observations learned less, and gradient
steps of one stream lost FetchReachDense. In the mean of three seeds IMPALA learned more with them than with those of
discrete actions in all eleven environments where both were run (docs/defaults-study.md).

Two of them keep a run from ending worse than it began, as some of A2C's in Reacher and FetchReachDense did. The value
function comes from 0 to its level in the first 250 gradient steps, and meanwhile the policy follows its errors into
constant actions: so the value network has four passes of its own over every batch (`value_epochs`). Beyond the bounds
all actions are alike, so that a mean which got there would stay: `bounds_coef` leads it back.

Importing this module does not import torch; making an updater does.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np

from asyncrl.acting.images import ImageNetwork
from asyncrl.algorithms.on_policy import ActorCriticLoss, OnPolicy
from asyncrl.config import TrainerConfig
from asyncrl.errors import ConfigurationError
from asyncrl.interfaces import UNTRAINED, BoxAction, EnvSpec
from asyncrl.options import Coefficient, Count, Fraction, NotNegative, Positive
from asyncrl.protocols import SegmentUpdater

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from asyncrl.algorithms.on_policy_kernel import Outputs
    from asyncrl.algorithms.rollout import Minibatch, Part, PolicyRollout

DISCRETE: Mapping[str, Any] = {
    "bounds_coef": 0.0,
    "ent_coef": 0.01,
    "gae_lambda": 1.0,
    "learning_rate_schedule": "constant",
    "normalize_rewards": False,
    "segment_length": 20,
    "value_epochs": 0,
}
BOX: Mapping[str, Any] = {
    "bounds_coef": 0.5,
    "ent_coef": 0.0,
    "gae_lambda": 0.95,
    "learning_rate_schedule": "linear",
    "normalize_observations": True,
    "normalize_rewards": True,
    "segment_length": 16,
    "value_epochs": 4,
}
"""Options for discrete and for real-valued actions that are chosen where they are none."""
BOX_GRADIENT_STEPS = 64
"""Environment steps of a gradient step for real-valued actions, where `minibatches` is none."""


def impala_loss(
    distribution: tuple[Tensor, Tensor],
    value: Tensor,
    advantage: Tensor,
    target: Tensor,
    weight: Tensor,
    *,
    vf_coef: float,
    ent_coef: float,
) -> ActorCriticLoss:
    """Loss of B rows; its gradient is the negative of that in section 4.2 of Espeholt et al. 2018 for `vf_coef` 0.5.

        L = sum of w (-A log pi + c_1 (V - v)^2 - c_2 H)

    Args:
        distribution: log-probability of the actions and entropy, `[B]` each, under the learned policy.
        value: `[B]`.
        advantage: A `[B]`, multiplied by its importance weight.
        target: v `[B]`.
        weight: w `[B]`, 1 / B for a mean.
        vf_coef: c_1.
        ent_coef: c_2.
    """
    log_prob, entropy = distribution
    assert (
        log_prob.shape == entropy.shape == advantage.shape == target.shape == value.shape == weight.shape
        and value.dim() == 1
    )
    policy_loss = -(weight * advantage * log_prob).sum()
    value_loss = (weight * (value - target).square()).sum()
    loss = policy_loss + vf_coef * value_loss - ent_coef * (weight * entropy).sum()
    return ActorCriticLoss(loss, policy_loss, value_loss, entropy)


@dataclass(frozen=True, kw_only=True)
class IMPALA(OnPolicy):
    """Hyper-parameters of IMPALA.

    A gradient step consists of a forward pass over whole streams, V-trace on the host with the values and
    log-probabilities of that pass, and a backward pass. So targets are always computed with the weights being updated,
    for any number of passes. On a GPU a step waits for the device.
    """

    name: ClassVar[str] = "impala"

    _discrete: ClassVar[Mapping[str, Any]] = DISCRETE
    _gradient_steps: ClassVar[int | None] = None
    """Environment steps of a gradient step for discrete actions, where `minibatches` is none; None for all streams."""

    # What is none here `for_run` chooses.
    bounds_coef: Coefficient | None = None  # type: ignore[assignment]
    """Coefficient of the penalty for mean actions beyond the bounds, squared, in units of half the action range; none:
    0.5 for real-valued actions."""

    ent_coef: Coefficient | None = None
    """Entropy coefficient of the loss; none: 0.01 for discrete actions, 0 for real-valued ones."""

    gae_lambda: Fraction | None = None
    """Lambda of the value targets and advantages: 0 is one step, 1 the rest of the segment; none: 1 (real-valued
    actions 0.95)."""

    learning_rate_schedule: Literal["constant", "cooldown", "linear"] | None = None  # type: ignore[assignment]
    """Schedule of the learning rate: constant, linear to 0 over the run's steps, or cooldown (linear to 0 over their
    last fifth); none: constant (linear for real-valued actions where `total_steps` is given)."""

    normalize_observations: bool | None = None
    """Normalise observations by their running mean and standard deviation, and clip them to +-10; none: for real-valued
    actions, unless observations are bytes, and for bytes from 0 to 255 that are no image or grid."""

    normalize_rewards: bool | None = None  # type: ignore[assignment]
    """Divide rewards by the running standard deviation of the discounted return, and clip them to +-10; a rare penalty
    is not enlarged; none: for real-valued actions."""

    segment_length: Count | None = None
    """Steps of each environment in a segment; none: 20 (real-valued actions 16)."""

    correction: Literal["vtrace", "none"] = "vtrace"
    """Correction for actions of older policies: V-trace, or none."""

    rho_bar: Positive = 1.0
    """Truncation of V-trace's rho, which determines the policy whose values are learned."""

    c_bar: Positive = 1.0
    """Truncation of V-trace's c, which limits how far back an error is propagated."""

    pg_rho_bar: Positive = 1.0
    """Truncation of the policy gradient's importance weight."""

    minibatches: Count | None = None
    """Minibatches per pass, each of whole streams; none: one (real-valued actions: gradient steps of 64 steps)."""

    normalize_advantages: bool = False
    """Standardise the advantages of a gradient step to mean 0 and standard deviation 1."""

    value_epochs: NotNegative | None = None
    """Passes over a batch that train the value network alone (of a shared trunk its head), before the epochs; none: 4
    for real-valued actions, 0 for discrete ones, convolutional networks, recurrent policies and fused gradients."""

    past_segments: NotNegative = 0
    """Capacity of the replay of past segments; `past_per_batch` of them are mixed into a batch."""

    past_per_batch: NotNegative = 0
    """Past segments sampled into every batch, at most `past_segments`."""

    past_newest: Fraction | None = None
    """Probability that a past segment is the newest one left; else the softmax of the sums of rewards draws it. None:
    all alike."""
    # 0.5 halves the steps where the only reward is at the end, and does nothing elsewhere (docs/results.md).

    staleness_correction: Literal["none", "power", "exponential"] = "none"
    """Loss weight for a staleness of s, beside V-trace: none, power ((1 + s)^-rate) or exponential (exp(-rate s))."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.past_per_batch > self.past_segments:
            rule = f"at most past_segments ({self.past_segments})"
            raise ValueError(f"past_per_batch must be {rule}, got {self.past_per_batch}")
        if self.past_segments and not self.past_per_batch:
            raise ValueError("past_per_batch must be at least 1 where past_segments is set, got 0")
        if self.past_newest is not None and not self.past_segments:
            raise ValueError(f"past_newest must be None without past_segments, got {self.past_newest}")

    @property
    def value_passes(self) -> int:
        """See `SegmentLearning`."""
        return self.value_epochs or 0

    @property
    def kept_segments(self) -> tuple[int, int, float | None]:
        """`past_segments`, `past_per_batch` and `past_newest`."""
        return self.past_segments, self.past_per_batch, self.past_newest

    @property
    def row_correction(self) -> Literal["none", "power", "exponential"]:
        """Staleness correction that the learner applies as a factor on a row."""
        return self.staleness_correction

    def for_run(self, config: TrainerConfig, spec: EnvSpec) -> Self:
        """See `SegmentLearning.for_run`; what is none follows from the kind of actions and the number of streams.

        Raises `ConfigurationError` (ASYNC017): `value_epochs` with fused gradients. Groups that fuse gradients make the
        same steps of batches of different lengths, so one of them may be in a pass for the value network while another
        one is in a pass for both.
        """
        if self.value_epochs and config.fuses_gradients:
            raise ConfigurationError(
                "value_epochs must be 0 where groups fuse gradients",
                facts={"value_epochs": self.value_epochs, "groups": config.groups},
                fix="set fusion to average or async, or value_epochs to 0",
            )
        chosen = self._chosen(config, spec)
        left = {name: value for name, value in chosen.items() if getattr(self, name) is None}
        record = super(IMPALA, dataclasses.replace(self, **left)).for_run(config, spec)
        if record.minibatches is not None:
            return record
        streams = record.streams_of_batch(config, spec)
        rows = BOX_GRADIENT_STEPS if isinstance(spec.action, BoxAction) else self._gradient_steps
        count = 1 if rows is None else streams * record.segment_rows // rows
        return dataclasses.replace(record, minibatches=max(1, min(streams, count)))

    def _chosen(self, config: TrainerConfig, spec: EnvSpec) -> dict[str, Any]:
        """Values for the options that are none, by name."""
        real = isinstance(spec.action, BoxAction)
        chosen = dict(BOX if real else self._discrete)
        if spec.observation_dtype == "uint8":
            chosen.pop("normalize_observations", None)
        if real and (self._convolves(spec) or self.cell is not None or config.fuses_gradients):
            chosen["value_epochs"] = 0
        if not self.rate_may_fall(config):
            chosen["learning_rate_schedule"] = "constant"
        return chosen

    def _convolves(self, spec: EnvSpec) -> bool:
        return isinstance(self.network_for(spec), ImageNetwork)

    def make_updater(self, spec: EnvSpec, device: str, seed: int) -> SegmentUpdater:
        """Make the updater on `device`, initialised from `seed`; imports torch. Raises `SpacesDoNotFit`."""
        from asyncrl.algorithms.on_policy_update import OnPolicyUpdate

        return OnPolicyUpdate(self, spec, device, seed)

    def divide(self, rollout: PolicyRollout, seed: Sequence[int]) -> list[Part]:
        """Divide the streams into minibatches: rows of G whole streams, then the observations after their ends."""
        from asyncrl.algorithms.rollout import parts_of_streams

        streams = rollout.shape[0]
        count = min(self.minibatches or 1, streams)
        if count == 1:
            return parts_of_streams(rollout, [np.arange(streams)])
        order = np.random.default_rng(seed).permutation(streams)
        return parts_of_streams(rollout, np.array_split(order, count))

    def gradients(self, rollout: PolicyRollout, batch: Minibatch) -> Outputs:
        """Gradients of `impala_loss`, with targets computed from the present weights.

        Computed by a kernel where the minibatch has one (on the CPU, not recurrent), else by autograd. The kernel is
        PPO's: if the old policy is the present one and nothing is clipped, its gradient is the policy gradient.
        """
        if batch.kernel is not None:
            self._trace(rollout, batch, batch.log_prob(), batch.value)
            coefficients = (math.inf, math.inf, self.vf_coef, self.ent_coef or 0.0)
            return batch.kernel(batch.outputs, batch.columns, batch.part.samples, coefficients)[1]
        from asyncrl.networks.gradients import output_gradients

        traced = partial(self._traced_loss, rollout, batch)
        _, (by_out, by_value, by_log_std) = output_gradients(traced, batch.outputs)
        return by_out, by_value, by_log_std

    def _traced_loss(
        self, rollout: PolicyRollout, batch: Minibatch, out: Tensor, value: Tensor, log_std: Tensor
    ) -> ActorCriticLoss:
        log_prob, entropy = batch.distribution(out, log_std)
        self._trace(rollout, batch, log_prob.detach(), value.detach())
        return self._loss((log_prob, entropy), value, batch.columns)

    def _loss(self, distribution: tuple[Tensor, Tensor], value: Tensor, columns: Tensor) -> ActorCriticLoss:
        _, _, advantage, target, _, weight, _ = columns
        return impala_loss(
            distribution,
            value,
            advantage,
            target,
            weight,
            vf_coef=self.vf_coef,
            ent_coef=self.ent_coef or 0.0,
        )

    @np.errstate(over="ignore", invalid="ignore")
    def _trace(self, rollout: PolicyRollout, batch: Minibatch, log_prob: Tensor, value: Tensor) -> None:
        """Set the batch's columns: PPO's with the present policy as the old one, then log pi - log mu.

        Before the first reward values count as 0, see `Rollout.rewarded`. All but the first two columns are zero in the
        rows after the streams.
        """
        import torch

        from asyncrl.algorithms.returns import vtrace

        values, log_probs, rows = value.cpu().numpy(), log_prob.cpu().numpy(), batch.part.rows
        if not rollout.rewarded:
            values = np.zeros_like(values)
        length = rollout.shape[1]
        streams = rows.size // (length + 1)
        own = streams * length
        at = rows[:own].reshape(streams, length)
        flags = rollout.flags.reshape(-1)[at]
        log_ratio = log_probs[:own].reshape(at.shape) - rollout.behaviour.reshape(-1)[at]
        target, advantage = vtrace(
            log_ratio if self.correction == "vtrace" else np.zeros_like(log_ratio),
            rollout.reward.reshape(-1)[at],
            values[:own].reshape(at.shape),
            values[own:],
            flags,
            self.discount,
            1.0 if self.gae_lambda is None else self.gae_lambda,
            (self.rho_bar, self.c_bar, self.pg_rho_bar),
        )
        if self.normalize_advantages:
            advantage = rollout.standardised(advantage, (flags & UNTRAINED) == 0)
        weight = rollout.weight.reshape(-1)[at] / np.float32(max(batch.part.samples, 1))
        columns = np.zeros((7, rows.size), np.float32)
        columns[0], columns[1] = log_probs, 1.0
        for column, numbers in zip((2, 3, 5, 6), (advantage, target, weight, log_ratio), strict=True):
            columns[column, :own] = numbers.reshape(-1)
        batch.columns = torch.from_numpy(columns).to(value.device)

    def metrics(self, rollout: PolicyRollout, batch: Minibatch) -> Mapping[str, float]:
        """Losses, entropy and importance ratios."""
        from asyncrl.algorithms.returns import explained_variance

        found = self._loss(batch.distribution(batch.out, batch.log_std), batch.value, batch.columns)
        log_ratio = batch.columns[6]
        return {
            "train/loss": float(found.loss),
            "train/policy_loss": float(found.policy_loss),
            "train/value_loss": float(found.value_loss),
            "train/entropy": float(batch.mean(found.entropy)),
            "train/approx_kl": float(batch.mean(log_ratio.expm1() - log_ratio)),
            "train/rho_truncated": float(batch.mean((log_ratio > math.log(self.rho_bar)).float())),
            "train/explained_variance": explained_variance(*self.values_and_returns(rollout, batch)),
        }

    def values_and_returns(
        self, rollout: PolicyRollout, batch: Minibatch
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Values of the rows of the last step, and their V-trace targets."""
        trained = batch.part.trained
        values, target = (column.cpu()[trained].numpy() for column in (batch.value, batch.columns[3]))
        return values, target
