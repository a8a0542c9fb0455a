"""Options of every algorithm that say what its networks see, and which networks they are."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from asyncrl.acting.images import NetworkName, choose_network, with_shape
from asyncrl.acting.layouts import NetworkFactory
from asyncrl.algorithms.preset_files import WithPresets
from asyncrl.interfaces import EnvSpec
from asyncrl.options import coerce, option_help, require_at_least

LONGEST_STACK = 64


@dataclass(frozen=True, kw_only=True)
class Observing(WithPresets):
    """Options about observations and networks, the same for every algorithm.

    Raises:
        ValueError: a value of the wrong type or outside its range; the text begins with the option's name.
    """

    frame_stack: int = 1
    """Observations that a policy sees together, from 1 to 64; the first of an episode is repeated at its start."""

    network: NetworkName | tuple[int, ...] | NetworkFactory | None = field(
        default="auto", metadata={"type": NetworkName}
    )
    """Network: auto (a convolutional one for images, else a perceptron), mlp, small, nature or impala."""
    # In Python also a tuple, which sets `hidden_sizes`, or a function `network(inputs, outputs)` that makes every
    # network of the algorithm, a `torch.nn.Module` over flat rows; an argument `observation_shape` is filled in.

    def __post_init__(self) -> None:
        if self.network is None:
            object.__setattr__(self, "network", "auto")
        if isinstance(self.network, tuple | list):
            object.__setattr__(self, "hidden_sizes", tuple(self.network))
            object.__setattr__(self, "network", "mlp")
        for name, option in option_help(type(self)).items():
            value = getattr(self, name)
            if not (name == "network" and callable(value)):
                object.__setattr__(self, name, coerce(name, option.type, value))
        require_at_least("frame_stack", self.frame_stack, 1)
        if self.frame_stack > LONGEST_STACK:
            raise ValueError(f"frame_stack must be at most {LONGEST_STACK}, got {self.frame_stack}")

    @property
    def own_network(self) -> NetworkFactory | None:
        """The user's own factory of networks, None where `network` is a name."""
        return self.network if callable(self.network) else None

    def seen(self, spec: EnvSpec) -> EnvSpec:
        """What the policy sees of an environment: its observations in stacks of `frame_stack`."""
        return spec if spec.frame_stack > 1 else spec.stacked(self.frame_stack)

    def network_for(
        self, spec: EnvSpec, value_outputs: int = 0, noisy_sigma: float = 0.0
    ) -> NetworkFactory | None:
        """Makes the networks for what is seen of `spec`; None is a perceptron.

        Args:
            spec: the environment.
            value_outputs: outputs of the value stream of a dueling network, 0 without.
            noisy_sigma: initial standard deviation of noisy layers, 0 without; a perceptron has its own.

        Raises:
            SpacesDoNotFit: the network that was asked for takes no such observations (ASYNC005).
        """
        seen, network = self.seen(spec), self.network
        if callable(network):
            made: Any = with_shape(network, seen)
            return made  # type: ignore[no-any-return]
        assert isinstance(network, str)
        return choose_network(network, seen, value_outputs, noisy_sigma)
