"""Base of the records of all algorithms: presets, checks of the options, and the network for an environment."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from asyncrl.acting.images import NetworkName, choose_network, with_shape
from asyncrl.acting.layouts import NetworkFactory
from asyncrl.acting.schedules import Rate, not_called_with, parameters_of
from asyncrl.algorithms.other_names import (
    Answering,
    refuse_other_value,
    unknown_attribute,
    unknown_option,
)
from asyncrl.algorithms.preset_files import preset_for
from asyncrl.interfaces import EnvSpec
from asyncrl.options import Range, check_options

if TYPE_CHECKING:
    from asyncrl.acting.critics import CriticLayout


def _require_factory(network: NetworkFactory) -> None:
    """Raise TypeError unless `network` can be called as `network(inputs, outputs)`."""
    must = "network must be a function network(inputs, outputs) that returns a new torch.nn.Module"
    if hasattr(network, "state_dict") and not isinstance(network, type):
        raise TypeError(f"{must}, got the module {type(network).__name__}: every network is made by a call")
    shape = {"observation_shape": ()} if "observation_shape" in parameters_of(network) else {}
    if refused := not_called_with(partial(network, **shape), 1, 1):
        raise TypeError(f"{must}, got one whose call fails: {refused}")


GAMMA, SHORT_LIMIT, LEAST_GAMMA = 0.99, 200, 0.8
"""Discount by default, and time limit below which it is 1 - 2 / limit, at least the last number. With 0.99 values reach
further than such episodes, and the values of states that earn nothing stay too high (docs/defaults-study.md)."""


@dataclass(frozen=True, kw_only=True)
class Hyperparameters(metaclass=Answering):
    """Options common to all algorithms. `OffPolicy`, `SegmentLearning` and `Offline` extend this record.

    Raises:
        ValueError: an option, also one of a subclass, has the wrong type or is outside its range; the text begins with
            the option's name.
    """

    name: ClassVar[str]
    takes_images: ClassVar[bool] = True
    needs_agents: ClassVar[bool] = False
    """Whether the algorithm trains the agents of an environment together, and so needs several."""

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

    learning_rate: Rate = 1e-3
    """Learning rate of Adam; the initial one with a schedule. In Python also a function of progress."""

    if TYPE_CHECKING:  # every record has these too, with its own values
        learning_rate_schedule: str
        discipline: str
        gamma: Any

    @property
    def discount(self) -> float:
        """`gamma`, which `for_run` has chosen where it was left to the run."""
        return GAMMA if self.gamma is None else self.gamma

    def gamma_for(self, spec: EnvSpec) -> float:
        """`gamma`, or the one chosen by the time limit; see `GAMMA`."""
        limit = spec.time_limit
        if self.gamma is not None or limit is None or limit >= SHORT_LIMIT:
            return self.discount
        return max(LEAST_GAMMA, round(1.0 - 2.0 / limit, 4))

    def __new__(cls, *values: object, **options: object) -> Self:
        """Raise TypeError for an unknown option, or a value without a name.

        The message translates names of other libraries to ours, and `PPO("MlpPolicy", env)` of Stable-Baselines3.
        """
        known = cls.__dict__.get("__dataclass_fields__", {})
        if values and known and all(field.kw_only for field in known.values() if field.init):
            raise TypeError(
                f"{cls.__name__} takes options by name only, got {str(values[0])[:60]!r}; the environment is Trainer's "
                f'and decides the network: Trainer("CartPole-v1", {cls.__name__}()).learn(total_steps=...)'
            )
        for name in options:
            if known and name not in known:
                raise TypeError(unknown_option(name, known, cls.__name__))
            refuse_other_value(name, options[name])
        return super().__new__(cls)

    if not TYPE_CHECKING:  # a type checker would take every name

        def __getattr__(self, name: str) -> Any:
            raise unknown_attribute(self, name)

    def __post_init__(self) -> None:
        if self.network is None:
            object.__setattr__(self, "network", "auto")
        if isinstance(self.network, tuple | list):
            object.__setattr__(self, "hidden_sizes", tuple(self.network))
            object.__setattr__(self, "network", "mlp")
        if callable(self.network):
            _require_factory(self.network)
        check_options(self, keep=("network",) if callable(self.network) else ())
        if callable(self.learning_rate) and self.learning_rate_schedule not in (None, "constant"):
            raise ValueError(
                "learning_rate_schedule must be constant where learning_rate is a function, got "
                f"{self.learning_rate_schedule}"
            )
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

    @classmethod
    def preset(cls, env_name: str, **overrides: Any) -> Self:
        """Record with the preset of an environment's id (defaults without one) and `overrides` applied.

        With a network of one's own the preset's heads (`dueling`, `noisy`) are left out, with a learning rate that is a
        function the preset's schedule.
        """
        preset = preset_for(cls.name, env_name)
        tuned = dict(preset.algorithm) if preset else {}
        if callable(overrides.get("network")):
            tuned = {name: value for name, value in tuned.items() if name not in ("dueling", "noisy")}
        if callable(overrides.get("learning_rate")):
            tuned.pop("learning_rate_schedule", None)
        return cls(**{**tuned, **overrides})

    @classmethod
    def preset_options(cls, env_name: str) -> dict[str, Any]:
        """Options of the run that belong to the preset, as a new dict."""
        preset = preset_for(cls.name, env_name)
        return dict(preset.run) if preset else {}

    @property
    def exact(self) -> bool:
        """Whether the numbers of a run do not depend on timing: every discipline but the relaxed one."""
        return self.discipline != "relaxed"

    @property
    def own_network(self) -> NetworkFactory | None:
        """Network factory given by the user; None if `network` is a name."""
        return self.network if callable(self.network) else None

    def uses_graph(self, cuda_graph: bool | None) -> bool:
        """Whether a GPU's updates run as CUDA graphs: as `cuda_graph` says; none: unless the network is the user's."""
        return self.own_network is None if cuda_graph is None else cuda_graph

    def stacked_spec(self, spec: EnvSpec) -> EnvSpec:
        """Specification of an environment with observations in stacks of `frame_stack`, as the policy sees it."""
        return spec if spec.frame_stack > 1 else spec.stacked(self.frame_stack)

    def critic_layout(self, spec: EnvSpec) -> CriticLayout | None:
        """Shape of the critics that the updater's `critic_weights` returns; None if it has none beside the policy."""
        return None

    def network_for(
        self, spec: EnvSpec, value_outputs: int = 0, noisy_sigma: float = 0.0, layer_norm: bool = False
    ) -> NetworkFactory | None:
        """Network factory for the stacked observations of `spec`; None stands for a perceptron.

        Args:
            spec: the environment.
            value_outputs: outputs of the value stream of a dueling network, else 0.
            noisy_sigma: initial standard deviation of noisy layers, 0 without them; perceptrons handle noise elsewhere.
            layer_norm: normalise the layers of a convolutional network; perceptrons do so elsewhere.

        Raises:
            SpacesDoNotFit: the requested network does not support these observations (ASYNC005).
        """
        seen, network = self.stacked_spec(spec), self.network
        if callable(network):
            made: Any = with_shape(network, seen)
            return made  # type: ignore[no-any-return]
        assert isinstance(network, str)
        return choose_network(network, seen, value_outputs, noisy_sigma, layer_norm)
