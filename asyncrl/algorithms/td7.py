"""TD7: TD3 with learned embeddings of states and actions.

    Fujimoto et al. 2023    For SALE: state-action representation learning for deep reinforcement learning
    Fujimoto et al. 2020    An equivalence between loss functions and non-uniform sampling in experience replay (LAP)
    Fujimoto et al. 2018    Addressing function approximation error in actor-critic methods (TD3)

Encoders f and g are trained to predict the embedding of the next state, f(s'), by g(f(s), a). Actor and critics take
these embeddings, of encoders that stand still between replacements, beside states and actions. What the paper adds for
datasets, the term of behaviour cloning, is in `td3bc.py`; its checkpoints are the run's: the weights that were
evaluated best are kept as `best`.

The update is in `td7_update.py`, which imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from asyncrl.acting.images import ImageNetwork
from asyncrl.acting.sale import SaleNetwork
from asyncrl.algorithms.continuous import ActorLoss, CriticLoss, DeterministicActor
from asyncrl.algorithms.td3 import smoothed_action
from asyncrl.errors import SpacesDoNotFit
from asyncrl.interfaces import EnvSpec
from asyncrl.options import Coefficient, Count, Fraction

if TYPE_CHECKING:
    from torch import Tensor

    from asyncrl.acting.box import BoxLayout
    from asyncrl.algorithms.staging import StagedBatch
    from asyncrl.algorithms.td7_update import TD7Update

LEAST_PRIORITY = 1.0
"""Least TD error that counts for a priority, and the error at which the critics' loss turns linear (LAP)."""


def encoder_loss(pair: Tensor, next_z: Tensor) -> Tensor:
    """Mean squared error of the prediction of the next state's embedding, a scalar (Fujimoto et al. 2023, eq. 2).

    Args:
        pair: g(f(s), a) `[B, E]`.
        next_z: f(s') `[B, E]`, constants.
    """
    assert pair.shape == next_z.shape
    return (pair - next_z).square().mean()


def targets(next_q: Tensor, batch: StagedBatch, low: Tensor, high: Tensor) -> Tensor:
    """Targets `[B, 1]` of the critics: y = r + gamma clip(min_c Q'_c(s', a'), low, high).

    Args:
        next_q: Q'_c(s', a') `[C, B, 1]`, a' from the smoothed target policy.
        batch: `discount` is gamma^n, or 0 after a termination.
        low: scalar, the smallest target before the target networks were last replaced.
        high: scalar, the largest one.
    """
    assert next_q.dim() == 3 and next_q.shape[1:] == batch.reward.shape
    y: Tensor = batch.reward + batch.discount * next_q.amin(dim=0).clamp(low, high)
    return y


def critic_loss(q: Tensor, y: Tensor, weight: Tensor) -> CriticLoss:
    """Huber loss of all critics (Fujimoto et al. 2020): sum of w h(q - y), which is linear from 1 on.

    Args:
        q: Q_c(s, a) `[C, B, 1]`.
        y: targets `[B, 1]`.
        weight: w `[B, 1]`, importance weights divided by B.
    """
    assert q.dim() == 3 and q.shape[1:] == y.shape == weight.shape and y.shape[1] == 1
    td = (q - y).detach()
    size = (q - y).abs()
    huber = size.where(td.abs() >= LEAST_PRIORITY, 0.5 * size.square())
    return CriticLoss((weight * huber).sum(), td)


def priorities(td: Tensor) -> Tensor:
    """Priorities `[B, 1]` before alpha: the largest |TD error| of the critics, at least `LEAST_PRIORITY` (LAP).

    Args:
        td: TD errors `[C, B, 1]`.
    """
    return td.abs().amax(dim=0).clamp(min=LEAST_PRIORITY)


def actor_loss(q: Tensor) -> ActorLoss:
    """Deterministic policy gradient over all critics: -mean Q_c(s, mu(s)).

    Args:
        q: Q_c(s, mu(s)) `[C, B, 1]`.
    """
    assert q.dim() == 3 and q.shape[2] == 1
    return ActorLoss(-q.mean())


@dataclass(frozen=True, kw_only=True)
class TD7(DeterministicActor):
    """Hyper-parameters of TD7.

    By default there is one update of 128 transitions per step, of networks with layers and embeddings of 128. The paper
    has 256 of all three, which take four times the time on a CPU or more.

    Priorities are max(|TD error|, 1)^alpha, of the largest error of the critics, and there are no importance weights:
    the loss is linear where the priority is not the least (LAP). `tau` has no effect: all target networks are replaced
    at once, every `target_update_interval` updates. The paper has returns of one step; with a larger `n_step` the
    encoders predict the state so many steps on, which later actions decide too.
    """

    name: ClassVar[str] = "td7"
    takes_images: ClassVar[bool] = False

    policy_delay: int = 2

    num_critics: Count = 2
    """Number of critics; the smallest of their target values is bootstrapped."""

    embedding_size: Count | None = None
    """Values of an embedding; none takes the width of the last hidden layer."""

    target_update_interval: Count = 250
    """Updates between replacements of all target networks, and of the encoders that actor and critics read."""

    target_noise: Coefficient = 0.2
    """Standard deviation of target policy smoothing, in units of half the action range."""

    target_noise_clip: Coefficient = 0.5
    """Clip of the target noise, in units of half the action range."""

    bound_targets: bool = True
    """Clip bootstrapped values to the range that the targets had before the target networks were last replaced."""

    prioritized: bool = True
    alpha: Fraction = 0.4
    beta_start: Fraction = 0.0
    beta_end: Fraction = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if callable(self.network):
            raise ValueError(
                "network must be a name for td7, whose networks are perceptrons over embeddings, got a function"
            )

    def check(self, spec: EnvSpec) -> None:
        """Refuse actions as `OffPolicy.check` does, and images. Raises `SpacesDoNotFit` (ASYNC005)."""
        super().check(spec)
        if isinstance(self.network_for(spec), ImageNetwork):
            raise SpacesDoNotFit(
                f"td7 has encoders of plain values, and the observations of {spec.name} are images",
                facts={"observation shape": spec.observation_shape, "dtype": spec.observation_dtype},
                fix="use sac, td3 or ppo, or set network to mlp",
            )

    def layout(self, spec: EnvSpec) -> BoxLayout:
        """Shape and weight order of encoder and head, shared by policy and updater. Raises `SpacesDoNotFit`."""
        embedding = self.embedding_size or self.hidden_sizes[-1]
        return replace(super().layout(spec), network=SaleNetwork(self.hidden_sizes, embedding))

    def critic_layout(self, spec: EnvSpec) -> None:  # type: ignore[override]
        """None: the critics read embeddings, so that they are no function of observation and action alone."""

    def make_updater(self, spec: EnvSpec, device: str, seed: int) -> TD7Update:
        """Make the updater on `device`, initialised from `seed`; imports torch. Raises `SpacesDoNotFit`."""
        from asyncrl.algorithms.td7_update import Losses, TD7Update

        return TD7Update(
            self,
            spec,
            device,
            seed,
            losses=Losses(encoder_loss, targets, critic_loss, priorities, actor_loss),
            smoothing=partial(smoothed_action, scale=self.target_noise, clip=self.target_noise_clip),
            copies=self.num_critics,
            interval=self.target_update_interval,
        )
