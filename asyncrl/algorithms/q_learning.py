"""What the records of the DQN family share: how action values are learned, and how they are acted on.

van Hasselt et al. 2016 (double), Wang et al. 2016 (dueling), Schaul et al. 2016 (prioritized replay),
Horgan et al. 2018 (Ape-X: n-step, a ladder of exploration rates over the streams), Fortunato et al. 2018 (noisy)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from asyncrl.acting.policies import QLayout, QPolicy
from asyncrl.acting.schedules import EpsilonSchedule
from asyncrl.algorithms.off_policy import OffPolicy
from asyncrl.algorithms.registry import supported_algorithms
from asyncrl.errors import SpacesDoNotFit
from asyncrl.interfaces import DiscreteAction, EnvSpec
from asyncrl.options import require_at_least, require_fraction, require_positive


@dataclass(frozen=True, kw_only=True)
class QLearning(OffPolicy):
    """Options that mean the same to every algorithm of the DQN family.

    Raises:
        ValueError: a value of the wrong type or outside its range; the text begins with the option's name.
    """

    action_kinds: ClassVar[tuple[type, ...]] = (DiscreteAction,)
    needs_bounds: ClassVar[bool] = False

    n_step: int = 3
    prioritized: bool = True
    max_grad_norm: float | None = 10.0

    double: bool = True
    """Let the online network choose the action whose target value is bootstrapped (van Hasselt 2016)."""

    dueling: bool = False
    """Have a value and an advantage stream, each `hidden_sizes[-1]` wide, as last layer (Wang 2016)."""

    noisy: bool = False
    """Explore by learned noise in the weights of all layers but the first (Fortunato 2018), beside epsilon."""

    noisy_sigma: float = 0.5
    """Standard deviation of a noisy weight at the start, times the root of its layer's inputs; above 0."""

    target_update: Literal["soft", "hard"] = "soft"
    """How the target follows: by `tau` at every update, or by a copy every `target_update_interval`."""

    target_update_interval: int = 500
    """Updates between two copies of a hard target, at least 1."""

    exploration_initial: float = 1.0
    """Share of random actions at the start, from 0 to 1."""

    exploration_final: float = 0.05
    """Share of random actions after `exploration_steps`, from 0 to 1."""

    exploration_steps: int = 10_000
    """Environment steps over all actors in which exploration falls to its final share, at least 0."""

    exploration_ladder: float = 0.0
    """Ape-X exponent: stream i of M explores with share^(1 + ladder i / (M - 1)); 0 treats streams alike."""

    exploration_repeat: int = 1
    """Most steps for which a random action is kept, at least 1; how many is drawn each time (Dabney 2021)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive("noisy_sigma", self.noisy_sigma)
        require_at_least("target_update_interval", self.target_update_interval, 1)
        for name in ("exploration_initial", "exploration_final"):
            require_fraction(name, getattr(self, name))
        for name in ("exploration_steps", "exploration_ladder"):
            require_at_least(name, getattr(self, name), 0)
        require_at_least("exploration_repeat", self.exploration_repeat, 1)

    def check(self, spec: EnvSpec) -> None:
        """Refuse anything but a discrete action space. Raises `SpacesDoNotFit` (ASYNC005)."""
        if isinstance(spec.action, DiscreteAction):
            return
        raise SpacesDoNotFit(
            f"{self.name} needs a discrete action space, and {spec.name} has {spec.action}",
            facts={"action space": spec.action, "algorithms that fit": supported_algorithms(spec)},
            fix="choose one of these, an environment with a Discrete action space, or a wrapper that gives it one",
        )

    def make_policy(self, spec: EnvSpec) -> QPolicy:
        """An epsilon-greedy policy with zero weights; imports no torch. Raises `SpacesDoNotFit`."""
        epsilon = EpsilonSchedule(
            self.exploration_initial,
            self.exploration_final,
            self.exploration_steps,
            self.exploration_ladder,
            self.exploration_repeat,
        )
        return QPolicy(spec, self.acting_layout(spec), epsilon, self.support())

    def layout(self, spec: EnvSpec) -> QLayout:
        """The learner's network: its shape and weight order. Raises `SpacesDoNotFit`."""
        self.check(spec)
        assert isinstance(spec.action, DiscreteAction)
        inputs, actions = math.prod(spec.observation_shape), spec.action.n
        return QLayout(inputs, self.hidden_sizes, actions, self.dueling, self.atoms(), self.noisy)

    def acting_layout(self, spec: EnvSpec) -> QLayout:
        """The actors' network, whose weights are published: the learner's, unless a smaller one acts alike."""
        return self.layout(spec)

    def atoms(self) -> int:
        """Outputs of the network for one action."""
        return 1

    def support(self) -> NDArray[np.float32] | None:
        """Returns `[atoms]` whose probabilities the outputs are, as logits; None where they are returns."""
        return None
