"""PQN, parallelised Q-networks: Q-learning with neither replay nor target network, stable by layer normalisation.

    Gallici et al. 2024     Simplifying deep temporal difference learning (arXiv 2407.04811)
    Peng & Williams 1996    Incremental multi-step Q-learning (Q(lambda))
    Ba et al. 2016          Layer normalization
    Liu et al. 2020         On the variance of the adaptive learning rate and beyond (RAdam)

Actors act epsilon-greedily, and the learner trains on their segments as PPO does: targets once per batch, with the
values of the network at that moment, then some epochs of minibatches. Importing this module does not import torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self

import numpy as np

from asyncrl.acting.schedules import EpsilonSchedule, Rate
from asyncrl.algorithms.action_spaces import check_action_space
from asyncrl.algorithms.segment_learning import SegmentLearning
from asyncrl.config import TrainerConfig
from asyncrl.interfaces import DiscreteAction, EnvSpec
from asyncrl.options import Count, Fraction, NotNegative, Widths
from asyncrl.protocols import SegmentUpdater

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from asyncrl.acting.policies import QLayout, QPolicy
    from asyncrl.algorithms.pqn_update import ActionValueBatch, ActionValueRollout
    from asyncrl.algorithms.rollout import Part

EXPLORING_SHARE = 0.1
"""Share of a run's steps in which epsilon falls, where `exploration_steps` is none: that of the paper's Atari runs."""
ENDLESS_STEPS = 10_000
"""`exploration_steps` of a run without a number of steps."""


class PQNLoss(NamedTuple):
    """Result of `pqn_loss`.

    Attributes:
        loss: scalar to minimise.
        error: `[B]`, Q(o, a) minus its target.
    """

    loss: Tensor
    error: Tensor


def pqn_loss(q: Tensor, action: Tensor, target: Tensor, weight: Tensor) -> PQNLoss:
    """Squared error of the values of the actions taken: sum of w (Q(o, a) - target)^2 / 2 (Gallici et al. 2024, eq. 5).

    Args:
        q: Q(o, .) `[B, A]`.
        action: a `[B]` int64.
        target: `[B]`, constants.
        weight: w `[B]`, 1 / B for a mean.
    """
    assert q.dim() == 2 and action.shape == target.shape == weight.shape == q.shape[:1]
    error = q.gather(1, action.unsqueeze(1)).squeeze(1) - target
    return PQNLoss(0.5 * (weight * error.square()).sum(), error)


@dataclass(frozen=True, kw_only=True)
class PQN(SegmentLearning):
    """Hyper-parameters of PQN.

    The target of a row is Peng's Q(lambda), over the rest of its episode in the segment:

        G_t = r_t + gamma ((1 - lambda) max_a Q(o_{t+1}, a) + lambda G_{t+1})

    It is not corrected for exploring actions or for older policies (the discipline `synchronous` has none). As for PPO,
    a random permutation of the rows is divided evenly into as few minibatches as `minibatch_size` allows. A `network`
    of the user's own must bring its normalisation.
    """

    name: ClassVar[str] = "pqn"
    action_kinds: ClassVar[tuple[type, ...]] = (DiscreteAction,)
    rollout_columns: ClassVar[tuple[str, ...]] = ("target", "value", "weight")

    learning_rate: Rate = 5e-4
    """Learning rate of RAdam; the initial one with a schedule. In Python also a function of progress."""

    epochs: Count = 2
    max_grad_norm: float | None = 10.0
    max_staleness: int | None = 4

    hidden_sizes: Widths = (128, 128)
    """Widths of a perceptron's hidden layers; a convolutional network has its own."""

    layer_norm: bool = True
    """Normalise every layer but the last before its ReLU; without it training may diverge."""

    q_lambda: Fraction = 0.65
    """Lambda of the targets: 0 is one step, 1 the rest of the segment."""

    minibatch_size: Count = 128
    """Maximum steps of a minibatch; an epoch is divided evenly."""

    exploration_initial: Fraction = 1.0
    """Initial epsilon: fraction of random actions."""

    exploration_final: Fraction = 0.05
    """Final epsilon, after `exploration_steps`."""

    exploration_steps: NotNegative | None = None
    """Environment steps, over all actors, in which epsilon falls linearly; none: a tenth of the run's steps."""

    staleness_correction: Literal["none", "power", "exponential"] = "none"
    """Loss weight for a staleness of s: none, power ((1 + s)^-rate) or exponential (exp(-rate s))."""

    cuda_graph: bool | None = None
    """On a GPU, run a gradient step as one CUDA graph, which saves launches; none: yes, unless `network` is given."""

    @property
    def static_steps(self) -> bool:
        """See `SegmentLearning`."""
        return self.uses_graph(self.cuda_graph)

    @property
    def row_correction(self) -> Literal["none", "power", "exponential"]:
        """Staleness correction that the learner applies as a factor on a row."""
        return self.staleness_correction

    def check(self, spec: EnvSpec) -> None:
        """Refuse all actions but discrete ones. Raises `SpacesDoNotFit` (ASYNC005)."""
        check_action_space(self, spec)

    def for_run(self, config: TrainerConfig, spec: EnvSpec) -> Self:
        """See `SegmentLearning.for_run`; `exploration_steps` follow from the run's steps."""
        record = super().for_run(config, spec)
        if record.exploration_steps is not None:
            return record
        total = config.total_steps
        steps = ENDLESS_STEPS if total is None else round(EXPLORING_SHARE * total)
        return dataclasses.replace(record, exploration_steps=steps)

    def make_policy(self, spec: EnvSpec) -> QPolicy:
        """Make an epsilon-greedy policy with zero weights, without importing torch. Raises `SpacesDoNotFit`."""
        from asyncrl.acting.policies import QPolicy

        steps = ENDLESS_STEPS if self.exploration_steps is None else self.exploration_steps
        epsilon = EpsilonSchedule(initial=self.exploration_initial, final=self.exploration_final, steps=steps)
        return QPolicy(self.stacked_spec(spec), self.layout(spec), epsilon)

    def layout(self, spec: EnvSpec) -> QLayout:
        """Shape and weight order of the network, shared by actors and updater. Raises `SpacesDoNotFit`."""
        self.check(spec)
        assert isinstance(spec.action, DiscreteAction)
        from asyncrl.acting.policies import QLayout

        network = self.network_for(spec, layer_norm=self.layer_norm)
        return QLayout(
            inputs=self.stacked_spec(spec).observation_values,
            hidden=self.hidden_sizes,
            num_actions=spec.action.n,
            network=network,
            normalized=bool(self.normalize_observations),
            layer_norm=self.layer_norm and network is None,
        )

    def make_updater(self, spec: EnvSpec, device: str, seed: int) -> SegmentUpdater:
        """Make the updater on `device`, initialised from `seed`; imports torch. Raises `SpacesDoNotFit`."""
        from asyncrl.algorithms.pqn_update import PQNUpdate

        return PQNUpdate(self, spec, device, seed)

    @np.errstate(over="ignore", invalid="ignore")
    def prepare(self, rollout: ActionValueRollout) -> None:
        """Fill the targets; nonfinite values show in the network's weights.

        With V(o) = max_a Q(o, a), Peng's Q(lambda) is the lambda-return of `gae`.
        """
        from asyncrl.algorithms.returns import gae

        value, last_value = rollout.greatest_values()
        _, target = gae(rollout.reward, value, last_value, rollout.flags, self.discount, self.q_lambda)
        # Every row has the same weight in its minibatch's mean, independent of the division of the rows.
        rows = int(np.count_nonzero(rollout.trained))
        share = np.float32(self._minibatches(rows) / max(rows, 1))
        rollout.fill(target=target, value=value, weight=rollout.weight * share)

    def _minibatches(self, rows: int) -> int:
        """Number of gradient steps of a pass over `rows` trained rows."""
        return max(1, -(-rows // self.minibatch_size))

    def divide(self, rollout: ActionValueRollout, seed: Sequence[int]) -> list[Part]:
        """Divide the rows into minibatches padded with row N."""
        from asyncrl.algorithms.rollout import parts_of_rows

        count = self._minibatches(int(np.count_nonzero(rollout.trained)))
        return parts_of_rows(rollout, count, self.minibatch_size, seed)

    def gradients(self, rollout: ActionValueRollout, batch: ActionValueBatch) -> Tensor:
        """Gradient `[R, A]` of `pqn_loss` at the action values, by autograd."""
        from asyncrl.networks.gradients import output_gradients

        target, _, weight = batch.columns
        _, (by_q,) = output_gradients(pqn_loss, (batch.q,), batch.action, target, weight)
        return by_q

    def metrics(self, rollout: ActionValueRollout, batch: ActionValueBatch) -> Mapping[str, float]:
        """Loss, action values, and the variance of the targets that their rows' greatest values explain."""
        from asyncrl.algorithms.returns import explained_variance

        target, _, weight = batch.columns
        q = batch.q[batch.part.trained]
        shown: dict[str, Any] = {"train/q_mean": q.mean(), "train/q_max": q.abs().max()} if len(q) else {}
        return {
            "train/loss": float(pqn_loss(batch.q, batch.action, target, weight).loss),
            **{name: float(value) for name, value in shown.items()},
            "train/explained_variance": explained_variance(*self.values_and_returns(rollout, batch)),
        }

    def values_and_returns(
        self, rollout: ActionValueRollout, batch: ActionValueBatch
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Greatest action values before the first pass, and Q(lambda) targets, of the rows of the iteration."""
        trained = rollout.trained
        return rollout.column("value")[trained], rollout.column("target")[trained]
