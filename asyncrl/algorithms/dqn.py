"""Deep Q-learning with its usual extensions, each of which can be switched off: the hyper-parameters.

    Mnih et al. 2015    Human-level control through deep reinforcement learning

The network, the loss and the optimiser are in `dqn_core.py`, which imports torch; this module does not, so
that a command line shows its help, and an actor unpickles its policy, at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from asyncrl.algorithms.q_learning import QLearning
from asyncrl.interfaces import EnvSpec
from asyncrl.options import require_positive

if TYPE_CHECKING:
    from asyncrl.algorithms.dqn_core import DQNCore


@dataclass(frozen=True, kw_only=True)
class DQN(QLearning):
    """Hyper-parameters of deep Q-learning. Implements `asyncrl.interfaces.ReplayAlgorithm`.

    Raises:
        ValueError: a value of the wrong type or outside its range; the text begins with the option's name.
    """

    name: ClassVar[str] = "dqn"

    huber_delta: float | None = 1.0
    """Size of the error from which the loss grows linearly, above 0; none is the squared loss."""

    bound_targets: bool = True
    """Clip bootstrapped values to what the transitions seen so far allow, so that no estimate runs off."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive("huber_delta", self.huber_delta)

    def make_core(self, spec: EnvSpec, device: str, seed: int) -> DQNCore:
        """The learner's half on `device`, initialised from `seed`; imports torch. Raises `SpacesDoNotFit`."""
        from asyncrl.algorithms.dqn_core import DQNCore
        from asyncrl.algorithms.q_heads import ValueHead

        return DQNCore(self, ValueHead(self), spec, device, seed)
