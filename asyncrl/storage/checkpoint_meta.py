"""Header of a checkpoint, as a record and as JSON with a check of every key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, get_type_hints

import msgspec
import numpy as np
from numpy.typing import NDArray

from asyncrl.interfaces import (
    ActionSpec,
    AgentPolicy,
    BoxAction,
    DiscreteAction,
    EnvSpec,
    MultiDiscreteAction,
)
from asyncrl.version import __version__

_ACTIONS: dict[str, type[Any]] = {
    "discrete": DiscreteAction,
    "multi_discrete": MultiDiscreteAction,
    "box": BoxAction,
}


@dataclass(frozen=True, kw_only=True)
class CheckpointMeta:
    """Header of a checkpoint.

    Attributes:
        env: name of the environment (see `EnvSpec.name`).
        algo: name of the algorithm.
        spec: the environment's spaces, as the policy sees them.
        options: the algorithm's hyper-parameters by name, JSON values only.
        seed: seed of the run.
        env_steps, updates, episodes, policy_version: the run's counters.
        weights_env_steps: environment steps at which evaluated acting weights were copied; None for the current ones.
        train_seconds: the run's training clock.
        return_mean: mean return of the evaluation of these weights, or None.
        policy_returns: part of it of each of several policies by name; empty of one policy, or without an evaluation.
        reward_scale: factor from the environment's rewards to those whose values the networks have learned; None if it
            is not known.
        asyncrl_version: version of asyncrl that wrote the file.
    """

    env: str
    algo: str
    spec: EnvSpec
    options: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    env_steps: int = 0
    updates: int = 0
    episodes: int = 0
    policy_version: int = 0
    train_seconds: float = 0.0
    weights_env_steps: int | None = None
    return_mean: float | None = None
    policy_returns: Mapping[str, float] = field(default_factory=dict)
    reward_scale: float | None = None
    asyncrl_version: str = __version__


@dataclass(frozen=True, eq=False)
class PolicyWeights:
    """Weights that a policy is made of.

    Attributes:
        acting: flat float32, those that act.
        critics: those of the critics, for the policy's values, or None; see `acting.critics`.
        reward_scale: see `CheckpointMeta`.
    """

    acting: NDArray[np.float32]
    critics: NDArray[np.float32] | None = None
    reward_scale: float | None = None


def meta_to_json(meta: CheckpointMeta) -> dict[str, Any]:
    """Convert the header to a JSON object."""
    record = asdict(meta)
    specs = [(meta.spec, record["spec"])]
    for policy, written in zip(meta.spec.policies, record["spec"]["policies"], strict=True):
        specs.append((policy.spec, written["spec"]))
    for spec, written in specs:
        kind = next(name for name, cls in _ACTIONS.items() if isinstance(spec.action, cls))
        written["action"]["kind"] = kind
    return record


def meta_from_json(record: Any) -> CheckpointMeta:
    """Make the record from a parsed header. Raises TypeError or ValueError if a key is missing or wrong."""
    spec = _table("spec", _table("the header", record).pop("spec", None))
    policies = tuple(
        _record(AgentPolicy, own, spec=_spec(_table("policy.spec", own.pop("spec", None)), policies=()))
        for own in (_table("policy", policy) for policy in spec.pop("policies", ()))
    )
    meta: CheckpointMeta = _record(CheckpointMeta, record, spec=_spec(spec, policies=policies))
    return meta


def _spec(spec: dict[str, Any], **made_of: Any) -> EnvSpec:
    """Make a spec from its table; `made_of` are fields that are records."""
    spec = {name: value for name, value in spec.items() if name not in made_of}
    action = _table("spec.action", spec.pop("action", None))
    kind = action.pop("kind", None)
    if not isinstance(kind, str) or kind not in _ACTIONS:
        raise ValueError(f"spec.action.kind must be one of {', '.join(_ACTIONS)}, got {kind!r}")
    made: ActionSpec = _record(_ACTIONS[kind], action)
    made_spec: EnvSpec = _record(EnvSpec, spec, action=made, **made_of)
    if np.dtype(made_spec.observation_dtype).kind not in "biuf":
        raise ValueError(f"observation_dtype must be of numbers, got {made_spec.observation_dtype}")
    if made_spec.frame_stack != 1:
        raise ValueError(f"frame_stack of an environment's own spec must be 1, got {made_spec.frame_stack}")
    return made_spec


def _table(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{name} must be an object, got {type(value).__name__}")
    return value


def _record(kind: type[Any], values: dict[str, Any], **made: Any) -> Any:
    """Make a record of `kind`; every field must be known and of its type, and none without a default may be missing."""
    hints = get_type_hints(kind)
    names = {field.name for field in fields(kind)}
    unknown = sorted(values.keys() - names | values.keys() & made.keys())
    if unknown:
        raise ValueError(f"{kind.__name__} has no {', '.join(unknown)}")
    converted = {}
    for name, value in values.items():
        try:
            converted[name] = msgspec.convert(value, hints[name])
        except msgspec.ValidationError as error:
            raise ValueError(f"{kind.__name__}.{name}: {error}") from None
    return kind(**converted, **made)
