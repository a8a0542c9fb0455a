"""Options of all algorithms that define the networks and their inputs, and those of recurrent policies."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from asyncrl.acting.images import NetworkName, choose_network, with_shape
from asyncrl.acting.layouts import NetworkFactory
from asyncrl.algorithms.preset_files import WithPresets
from asyncrl.interfaces import EnvSpec
from asyncrl.options import Count, Range, check_options

if TYPE_CHECKING:
    from asyncrl.acting.recurrent import Cell


@dataclass(frozen=True, kw_only=True)
class Observing(WithPresets):
    """Options of observations and networks, common to all algorithms, whose records extend this one.

    Raises:
        ValueError: an option, also one of a subclass, has the wrong type or is outside its range; the text begins with
            the option's name.
    """

    takes_images: ClassVar[bool] = True

    frame_stack: Annotated[int, Range(at_least=1, at_most=64)] = 1
    """Number of consecutive observations that the policy sees; an episode's first one is repeated."""

    network: NetworkName | tuple[int, ...] | NetworkFactory | None = field(
        default="auto", metadata={"type": NetworkName}
    )
    """Network: auto (a convolutional one for images, else a perceptron), mlp, small, nature or impala."""
    # In Python also a tuple, which sets `hidden_sizes`, or a function `network(inputs, outputs)` that makes each of the
    # algorithm's networks, a `torch.nn.Module` over flat rows; a parameter `observation_shape` is filled in.

    inference: Literal["actor", "server"] = "actor"
    """Place of the policy network: in every actor, or once for all, on the learner's device."""

    def __post_init__(self) -> None:
        if self.network is None:
            object.__setattr__(self, "network", "auto")
        if isinstance(self.network, tuple | list):
            object.__setattr__(self, "hidden_sizes", tuple(self.network))
            object.__setattr__(self, "network", "mlp")
        check_options(self, keep=("network",) if callable(self.network) else ())
        self._require_servable()

    def _require_servable(self) -> None:
        """Raise ValueError if an inference server cannot run the policy's network; see also `acting.network_policy`."""
        if self.inference == "actor":
            return
        if getattr(self, "noisy", False):
            raise ValueError(
                "inference must be actor where noisy is set, got server: actors draw each row's noise"
            )
        if getattr(self, "recurrent", "none") != "none":
            raise ValueError(
                "inference must be actor where recurrent is set, got server: actors keep the state"
            )

    @property
    def own_network(self) -> NetworkFactory | None:
        """Network factory given by the user; None if `network` is a name."""
        return self.network if callable(self.network) else None

    def seen(self, spec: EnvSpec) -> EnvSpec:
        """Specification of an environment with observations in stacks of `frame_stack`, as the policy sees it."""
        return spec if spec.frame_stack > 1 else spec.stacked(self.frame_stack)

    def network_for(
        self, spec: EnvSpec, value_outputs: int = 0, noisy_sigma: float = 0.0
    ) -> NetworkFactory | None:
        """Network factory for the stacked observations of `spec`; None stands for a perceptron.

        Args:
            spec: the environment.
            value_outputs: outputs of the value stream of a dueling network, else 0.
            noisy_sigma: initial standard deviation of noisy layers, 0 without them; perceptrons handle noise elsewhere.

        Raises:
            SpacesDoNotFit: the requested network does not support these observations (ASYNC005).
        """
        seen, network = self.seen(spec), self.network
        if callable(network):
            made: Any = with_shape(network, seen)
            return made  # type: ignore[no-any-return]
        assert isinstance(network, str)
        return choose_network(network, seen, value_outputs, noisy_sigma)


@dataclass(frozen=True, kw_only=True)
class Recurrent(Observing):
    """Options of a policy's recurrent cell."""

    recurrent: Literal["none", "gru", "lstm"] = "none"
    """Recurrent cell between hidden layers and outputs: none, gru or lstm; its state is reset at episode starts."""

    recurrent_size: Count = 64
    """Outputs of the recurrent cell."""

    @property
    def cell(self) -> Cell | None:
        """Kind and size of the cell; None without one."""
        from asyncrl.acting.recurrent import Cell

        return None if self.recurrent == "none" else Cell(self.recurrent, self.recurrent_size)
