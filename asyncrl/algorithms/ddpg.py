"""Deep deterministic policy gradient: the hyper-parameters.

    Lillicrap et al. 2016   Continuous control with deep reinforcement learning

It is TD3 with one critic, no delay and no noise on the target's action, and runs on its core (`td3_core.py`, which
imports torch; this module does not). The paper's batch normalisation and weight decay are left out, as in the field's
other implementations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from asyncrl.algorithms.deterministic import DeterministicActor
from asyncrl.interfaces import EnvSpec

if TYPE_CHECKING:
    from asyncrl.algorithms.td3_core import TD3Core


@dataclass(frozen=True, kw_only=True)
class DDPG(DeterministicActor):
    """Hyper-parameters of DDPG.

    Raises:
        ValueError: a value of the wrong type or outside its range; the text begins with the option's name.
    """

    name: ClassVar[str] = "ddpg"
    num_critics: ClassVar[int] = 1
    target_noise: ClassVar[float] = 0.0
    target_noise_clip: ClassVar[float] = 0.0

    def make_core(self, spec: EnvSpec, device: str, seed: int) -> TD3Core:
        """The learner's half on `device`, initialised from `seed`; imports torch. Raises `SpacesDoNotFit`."""
        from asyncrl.algorithms.td3_core import TD3Core

        return TD3Core(self, spec, device, seed)
