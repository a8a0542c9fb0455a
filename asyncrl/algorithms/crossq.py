"""CrossQ: soft actor-critic with batch normalisation and without target networks.

    Bhatt et al. 2024   CrossQ: batch normalization in deep reinforcement learning for greater sample efficiency and
                        simplicity
    Ioffe 2017          Batch renormalization: towards reducing minibatch dependence in batch-normalized models

The losses are SAC's. One pass of the critics computes Q(s, a) and Q(s', a'), so that both are normalised by joint batch
statistics; the loss's gradient is taken with respect to Q(s, a) only. After a warm-up, batch renormalisation pulls the
statistics of a batch towards the running ones. When weights are published, the actor's batch
normalisation is folded into the layers that follow it, so actors run plain perceptrons.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Self

from asyncrl.acting.images import ImageNetwork
from asyncrl.algorithms.maximum_entropy import MaximumEntropy
from asyncrl.config import TrainerConfig
from asyncrl.errors import SpacesDoNotFit
from asyncrl.interfaces import EnvSpec
from asyncrl.options import Fraction, NotNegative, Range, Widths

if TYPE_CHECKING:
    from asyncrl.algorithms.crossq_update import CrossQUpdate

WIDE = 64
"""Values of an observation from which on critics are twice as wide as the actor by default.

In Ant-v5 (105 values) and Humanoid-v5 (348) critics of 256 learn far more from as many steps than those of 128, in
HalfCheetah-v5 (17) they do not (docs/defaults-study.md).
"""


@dataclass(frozen=True, kw_only=True)
class CrossQ(MaximumEntropy):
    """Hyper-parameters of CrossQ.

    By default there is one update of 128 transitions per step, of networks with layers of 128. The paper has critics of
    2048. Critics of 128 and 256 learn as much from 20,000 steps of HalfCheetah and Hopper (docs/defaults-study.md), and
    256 take two to three times the time on a CPU.

    `tau` has no effect: there are no target networks. Images are refused, unless a `network` of the user's own has the
    batch normalisation that stands in for them.
    """

    name: ClassVar[str] = "crossq"
    takes_images: ClassVar[bool] = False

    policy_delay: int = 3

    batch_size: Annotated[int, Range(at_least=2)] = 128
    """Transitions per update; batch normalisation needs more than one."""

    critic_hidden_sizes: Widths | None = None
    """Widths of each critic's hidden layers; none takes the actor's, and twice these where an observation has 64 values
    or more."""

    norm_momentum: Fraction = 0.99
    """Momentum of batch normalisation's running statistics: fraction kept at every update."""

    renorm_warmup: NotNegative | None = 100_000
    """Updates with plain batch normalisation before batch renormalisation begins; none never begins it."""

    adam_beta1: Annotated[float, Range(at_least=0, below=1)] = 0.5
    """Decay rate of Adam's first moment; 0.9 is Adam's usual one."""

    def for_run(self, config: TrainerConfig, spec: EnvSpec) -> Self:
        """See `OffPolicy.for_run`; critics of `WIDE` observed values or more are twice as wide as the actor."""
        record = super().for_run(config, spec)
        wide = self.stacked_spec(spec).observation_values >= WIDE and not callable(self.network)
        if not wide or self.critic_hidden_sizes is not None:
            return record
        return replace(record, critic_hidden_sizes=tuple(2 * width for width in self.hidden_sizes))

    def check(self, spec: EnvSpec) -> None:
        """Refuse actions as `OffPolicy.check` does, and images. Raises `SpacesDoNotFit` (ASYNC005).

        Without target networks everything rests on batch normalisation, which convolutional networks lack.
        """
        super().check(spec)
        if isinstance(self.network_for(spec), ImageNetwork):
            raise SpacesDoNotFit(
                "crossq needs batch normalisation in all layers, and the convolutional network for the observations "
                f"of {spec.name} has none",
                facts={"observation shape": spec.observation_shape, "dtype": spec.observation_dtype},
                fix="use sac, tqc, td3 or ppo; or in Python give crossq a network of your own with BatchNorm layers",
            )

    def make_updater(self, spec: EnvSpec, device: str, seed: int) -> CrossQUpdate:
        """Make the updater on `device`, initialised from `seed`; imports torch. Raises `SpacesDoNotFit`."""
        from asyncrl.algorithms.crossq_update import CrossQUpdate

        return CrossQUpdate(
            self,
            spec,
            device,
            seed,
            momentum=self.norm_momentum,
            renorm_warmup=self.renorm_warmup,
            beta1=self.adam_beta1,
        )
