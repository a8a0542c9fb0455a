"""Twin delayed deep deterministic policy gradient: the hyper-parameters.

    Fujimoto et al. 2018    Addressing function approximation error in actor-critic methods

The networks, the loss and the optimiser are in `td3_core.py`, which imports torch; this module does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from asyncrl.algorithms.deterministic import DeterministicActor
from asyncrl.interfaces import EnvSpec
from asyncrl.options import require_at_least

if TYPE_CHECKING:
    from asyncrl.algorithms.td3_core import TD3Core


@dataclass(frozen=True, kw_only=True)
class TD3(DeterministicActor):
    """Hyper-parameters of TD3.

    Raises:
        ValueError: a value of the wrong type or outside its range; the text begins with the option's name.
    """

    name: ClassVar[str] = "td3"

    policy_delay: int = 2

    num_critics: int = 2
    """Critics whose smallest target value is bootstrapped, at least 1."""

    target_noise: float = 0.2
    """Deviation of the noise on the target's action, in units of half the action range, at least 0."""

    target_noise_clip: float = 0.5
    """Where that noise is cut off, in units of half the action range, at least 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least("num_critics", self.num_critics, 1)
        for name in ("target_noise", "target_noise_clip"):
            require_at_least(name, getattr(self, name), 0)

    def make_core(self, spec: EnvSpec, device: str, seed: int) -> TD3Core:
        """The learner's half on `device`, initialised from `seed`; imports torch. Raises `SpacesDoNotFit`."""
        from asyncrl.algorithms.td3_core import TD3Core

        return TD3Core(self, spec, device, seed)
