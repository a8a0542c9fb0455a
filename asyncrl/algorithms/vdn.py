"""Value-decomposition networks: the joint action value is the sum of the agents' values.

    Sunehag et al. 2018     Value-decomposition networks for cooperative multi-agent learning based on team reward

Q_tot(s, u) = sum_a Q_a(o_a, u_a)                                                          (eq. 3)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from asyncrl.algorithms.value_decomposition import ValueDecomposition
from asyncrl.interfaces import EnvSpec

if TYPE_CHECKING:
    from torch import nn

    from asyncrl.algorithms.value_decomposition_update import ValueDecompositionUpdate


@dataclass(frozen=True, kw_only=True)
class VDN(ValueDecomposition):
    """Hyper-parameters of value-decomposition networks."""

    name: ClassVar[str] = "vdn"

    def make_mixer(self, agents: int, state_size: int) -> nn.Module:
        """See `ValueDecomposition.make_mixer`."""
        from asyncrl.algorithms.mixers import SumMixer

        return SumMixer()

    def make_updater(self, spec: EnvSpec, device: str, seed: int) -> ValueDecompositionUpdate:
        """Make the updater on `device`, initialised from `seed`; imports torch. Raises `SpacesDoNotFit`."""
        from asyncrl.algorithms.value_decomposition_update import ValueDecompositionUpdate

        return ValueDecompositionUpdate(self, spec, device, seed, loss=self.loss)
