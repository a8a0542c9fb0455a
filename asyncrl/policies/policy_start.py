"""`init_from`: load the policy whose weights a run begins with, and check that it fits."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.acting.agent_policies import make_policy, own_record
from asyncrl.acting.policies import QPolicy
from asyncrl.envs.observations import text_of_leaves
from asyncrl.errors import CheckpointError
from asyncrl.interfaces import EnvSpec
from asyncrl.policies.load import load
from asyncrl.policies.portable_policy import PortablePolicy
from asyncrl.protocols import Algorithm, Updater


def policy_to_begin_with(path: str | Path, algorithm: Algorithm, spec: EnvSpec) -> PortablePolicy:
    """Load the policy from a run directory, a checkpoint, a policy file or the hub (`hf://user/name`).

    A policy with a name that all agents share, `policies={"all": ".*"}`, is the same as one without a name.

    Raises:
        CheckpointError: it is missing or damaged, or its observations, actions or networks differ from the run's
            (ASYNC019).
    """
    policy = load(path, network=getattr(algorithm, "own_network", None))
    if len(policy.by_policy) == 1:
        (alone,) = policy.by_policy.values()
        assert isinstance(alone, PortablePolicy), "a part of one"
        policy = alone
    record, own_spec = algorithm, spec
    if len(spec.policies) == 1:
        record, own_spec = own_record(algorithm, spec.policies[0]), spec.policies[0].spec
    theirs, ours = _shape(policy.policy, policy.meta.spec), _shape(make_policy(record, own_spec), own_spec)
    for name in ours:
        if theirs[name] != ours[name]:
            before, now = _texts(theirs[name], ours[name])
            own = name in ("networks", "weights", "action values") and now
            raise CheckpointError(
                f"the policy of init_from has other {name} than this run",
                facts={
                    "init_from": path,
                    "policy": f"{policy.meta.algo} on {policy.meta.env}{before}",
                    "run": f"{algorithm.name} on {spec.name}{now}",
                },
                fix="give this run the same options of the network, or begin with another policy"
                if own
                else "begin with a policy of this algorithm, trained in an environment with the same spaces",
            )
    return policy


def begin_with_policy(core: Updater, policy: PortablePolicy, algorithm: Algorithm, spec: EnvSpec) -> None:
    """Copy the policy's weights into the learner's new networks. Raises `CheckpointError` if they do not fit.

    Critics that the policy has are copied as well if the run has the same algorithm, and critics of the same shape:
    new ones would lead a good policy astray until they have learned what it is worth. With them, and with a network of
    action values, comes the factor on rewards by which they were learned, unless this run has one by its options.
    """
    try:
        begin_with = getattr(core, "begin_with", None)
        if begin_with is None:
            raise ValueError(f"{type(core).__name__} does not say how it takes a policy's weights")
        begin_with(_weights_for(policy, spec), policy.meta.env_steps)
        if _begin_with_critics(core, policy, algorithm, spec) or isinstance(policy.policy, QPolicy):
            begin_with_scale = getattr(core, "begin_with_reward_scale", None)
            if begin_with_scale is not None and policy.meta.reward_scale is not None:
                begin_with_scale(policy.meta.reward_scale, policy.meta.env_steps)
    except ValueError as error:
        raise CheckpointError(
            f"this algorithm cannot begin with a policy's weights: {error}",
            facts={"policy": policy.meta.algo},
            fix="leave init_from out, or go on with the run itself: asyncrl resume RUN",
        ) from error


def _begin_with_critics(core: Updater, policy: PortablePolicy, algorithm: Algorithm, spec: EnvSpec) -> bool:
    """Copy the policy's critics if they fit; returns whether they did."""
    begin_with_critics = getattr(core, "begin_with_critics", None)  # a user's algorithm may not have it
    if policy.critics is None or policy.meta.algo != algorithm.name or begin_with_critics is None:
        return False
    if policy.critic_layout != algorithm.critic_layout(spec):  # type: ignore[attr-defined]
        return False
    begin_with_critics(policy.critics)
    return True


def _weights_for(policy: PortablePolicy, spec: EnvSpec) -> NDArray[np.float32]:
    """Weights in the order of the run's policies, which are named in any order."""
    if not policy.by_policy:
        return policy.weights
    return np.concatenate([policy.by_policy[own.name].weights for own in spec.policies])


def _observations(spec: EnvSpec) -> str:
    """Text of all that a row of an observation holds, in its order; of several policies for each of them."""
    row = f"{spec.observation_dtype} {list(spec.observation_shape)}{_scaled(spec)}"
    each = {own.name: own.spec.leaves for own in spec.policies} or {"": spec.leaves}
    texts = (f"{name}: {text_of_leaves(leaves)}" for name, leaves in sorted(each.items()) if leaves)
    return "; ".join((row, *(text.removeprefix(": ") for text in texts)))


def _scaled(spec: EnvSpec) -> str:
    is_scaled = spec.observation_dtype == "uint8" and not spec.leaves and spec.byte_factor != 1
    return " divided by 255" if is_scaled else ""


def _texts(theirs: Any, ours: Any) -> tuple[str, str]:
    """Texts of two values of `_shape`: of networks of one kind what differs, of two kinds nothing."""
    if not isinstance(ours, tuple):
        return f": {theirs}", f": {ours}"
    layouts = theirs[1], ours[1]
    if theirs[0] != ours[0] or type(layouts[0]) is not type(layouts[1]) or not is_dataclass(layouts[0]):
        return "", ""
    names = [f.name for f in fields(layouts[0]) if getattr(layouts[0], f.name) != getattr(layouts[1], f.name)]
    before, now = (", ".join(f"{name}={getattr(layout, name)}" for name in names) for layout in layouts)
    return f": {before}", f": {now}"


def _shape(policy: Any, spec: EnvSpec) -> dict[str, Any]:
    """Properties that must agree: spaces, names of several policies, kind and shape of the network, its outputs."""
    layout: Any = getattr(policy, "layout", None)
    names = [own.name for own in spec.policies]
    if names:
        layout = dict(zip(names, layout, strict=True))
    return {
        "policies": ", ".join(sorted(names)) or "one",
        "observations": _observations(spec),
        "actions": spec.action,
        "networks": (type(policy).__name__, layout),
        "weights": policy.weight_count,
        "action values": ", ".join(_action_values(part) for part in getattr(policy, "parts", (policy,))),
    }


def _action_values(policy: Any) -> str:
    """What a network's outputs are, if they are action values: networks of one shape may have learned others."""
    if not isinstance(policy, QPolicy):
        return "none"
    if (support := policy.support) is not None:
        return f"probabilities of returns from {support[0]:g} to {support[-1]:g}"
    return "rescaled returns" if policy.rescaled else "returns"
