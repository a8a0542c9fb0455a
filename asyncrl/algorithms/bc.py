"""Behavioural cloning: supervised learning of a dataset's actions.

    Pomerleau 1988          ALVINN: an autonomous land vehicle in a neural network
    Fujimoto & Gu 2021      A minimalist approach to offline reinforcement learning (BC as its baseline)

Real-valued actions are learned by the squared error of a deterministic policy, as in Fujimoto & Gu 2021, choices by
their log-likelihood. The update is in `bc_update.py`, which imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from asyncrl.acting.noise import GaussianNoise
from asyncrl.algorithms.continuous import actor_layout
from asyncrl.algorithms.offline import Offline
from asyncrl.envs.observations import FORBIDDEN
from asyncrl.interfaces import BoxAction, DiscreteAction, EnvSpec, MultiDiscreteAction
from asyncrl.options import Coefficient

if TYPE_CHECKING:
    from torch import Tensor

    from asyncrl.acting.box import BoxLayout, DeterministicPolicy
    from asyncrl.acting.stochastic import ActorLayout, StochasticPolicy
    from asyncrl.algorithms.bc_update import CloningUpdate


class CloningLoss(NamedTuple):
    """Result of the loss."""

    loss: Tensor
    """Scalar to minimise."""


def squared_loss(out: Tensor, taken: Tensor) -> CloningLoss:
    """Mean over batch and values of (pi(s) - a)^2, pi(s) = tanh(out).

    Args:
        out: outputs of the network `[B, d]`.
        taken: a `[B, d]`, of the dataset, in units of half the action range.
    """
    assert out.shape == taken.shape
    return CloningLoss((out.tanh() - taken).square().mean())


def likelihood_loss(
    logits: Tensor, taken: Tensor, mask: Tensor | None = None, *, choices: tuple[int, ...]
) -> CloningLoss:
    """Negative log-likelihood of the dataset's choices: -mean log pi(a|s), summed over the parts of an action.

    With masks pi is the policy that acts: forbidden choices have probability 0. A row whose own action is forbidden,
    which that policy could never take, counts as 0.

    Args:
        logits: `[B, sum(choices)]`.
        taken: a `[B, k]`, whole numbers.
        mask: `[B, sum(choices)]` bool, choices that are allowed; None without action masks.
        choices: number of choices of each part.
    """
    from asyncrl.networks.distributions import categorical_log_prob

    taken = taken.long().reshape(len(logits), -1)
    if mask is None:
        return CloningLoss(-categorical_log_prob(logits, taken, choices).mean())
    log_prob = categorical_log_prob(logits.masked_fill(~mask, float(FORBIDDEN)), taken, choices)
    columns = taken + taken.new_tensor([0, *accumulate(choices[:-1])])
    return CloningLoss(-(log_prob * mask.gather(1, columns).all(dim=1)).mean())


@dataclass(frozen=True, kw_only=True)
class BC(Offline):
    """Hyper-parameters of behavioural cloning."""

    name: ClassVar[str] = "bc"
    action_kinds: ClassVar[tuple[type, ...]] = (DiscreteAction, MultiDiscreteAction, BoxAction)
    gamma: ClassVar[float] = 0.0  # type: ignore[misc]

    exploration_scale: Coefficient = 0.1
    """Standard deviation of the noise of exploring real-valued actions, in units of half the action range."""

    def layout(self, spec: EnvSpec) -> BoxLayout | ActorLayout:
        """Shape and weight order of the policy. Raises `SpacesDoNotFit`."""
        if isinstance(spec.action, BoxAction):
            return actor_layout(self, spec, gaussian=False)
        self.check(spec)
        from asyncrl.acting.stochastic import ActorLayout

        return ActorLayout(
            inputs=self.stacked_spec(spec).observation_values,
            hidden=self.hidden_sizes,
            action=spec.action,
            activation="relu",
            normalized=bool(self.normalize_observations),
            network=self.network_for(spec),
        )

    def make_policy(self, spec: EnvSpec) -> DeterministicPolicy | StochasticPolicy:
        """Make a policy with zero weights, without importing torch. Raises `SpacesDoNotFit`."""
        from asyncrl.acting.box import BoxLayout, DeterministicPolicy
        from asyncrl.acting.stochastic import StochasticPolicy

        layout, seen = self.layout(spec), self.stacked_spec(spec)
        if isinstance(layout, BoxLayout):
            return DeterministicPolicy(seen, layout, GaussianNoise(self.exploration_scale))
        return StochasticPolicy(seen, layout)

    def make_updater(self, spec: EnvSpec, device: str, seed: int) -> CloningUpdate:
        """Make the updater on `device`, initialised from `seed`; imports torch. Raises `SpacesDoNotFit`."""
        from asyncrl.acting.box import BoxLayout
        from asyncrl.algorithms.bc_update import CloningUpdate

        layout = self.layout(spec)
        if isinstance(layout, BoxLayout):
            return CloningUpdate(self, spec, device, seed, layout=layout, loss=squared_loss)
        loss = partial(likelihood_loss, choices=layout.choices)
        return CloningUpdate(self, spec, device, seed, layout=layout, loss=loss)
