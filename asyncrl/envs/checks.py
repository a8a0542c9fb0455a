"""Checks of an environment: spaces that rings can store, and the results of reset and step; and its closing.

This module uses attributes of spaces and environments only; it does not import gymnasium.
"""

from __future__ import annotations

import functools
import math
import sys
import traceback
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.envs.observations import kind_of_observations, mask_reader, space_class, stored_as
from asyncrl.errors import (
    TRACEBACK_LIMIT,
    AsyncRLError,
    AutoresetUnknown,
    EnvironmentNotBuilt,
    EnvironmentRaised,
    NonFiniteStep,
    ObservationOffSpace,
    OldGymAPI,
    SpacesDoNotFit,
    environment_exceptions,
    error_text,
    printable,
)
from asyncrl.interfaces import (
    ActionSpec,
    AgentPolicy,
    BoxAction,
    DiscreteAction,
    EnvSpec,
    MultiDiscreteAction,
)

NEXT_STEP, DISABLED = "NextStep", "Disabled"
_CHECK_SEED = 0
_SCALARS = ("reward", "terminated", "truncated")
_WEIGH = "weigh the objectives: --wrapper mo_gymnasium.wrappers:LinearReward, or a wrapper of yours that does"
"""Fix for a vector of rewards, as environments of MO-Gymnasium return it."""
_STORED = ("Box", "MultiBinary", "Discrete", "MultiDiscrete")
"""Kinds of parts of a structured observation that are stored; text is left out, others are refused."""


def spec_of(name: str, env: Any) -> EnvSpec:
    """Return the environment's spaces and limits as an `EnvSpec`.

    Raises:
        SpacesDoNotFit: an observation space that is not one array, or an unsupported action space (ASYNC005).
        AutoresetUnknown: a vector environment with an unsupported or no autoreset mode (ASYNC018).
    """
    vector_envs = getattr(env, "num_envs", None)
    mode = "" if vector_envs is None else autoreset_mode(name, env)
    obs_space = env.observation_space if vector_envs is None else env.single_observation_space
    action_space = env.action_space if vector_envs is None else env.single_action_space
    shape, dtype = _observation_storage(name, obs_space, vector_envs is not None)
    registered = getattr(env, "spec", None)
    return EnvSpec(
        name=name,
        observation_shape=shape,
        observation_dtype=dtype,
        action=_action_spec(name, action_space),
        max_episode_steps=getattr(registered, "max_episode_steps", None),
        reward_threshold=getattr(registered, "reward_threshold", None),
        vector_envs=None if vector_envs is None else int(vector_envs),
        resets_itself=mode == NEXT_STEP,
        leaves=getattr(env, "packed_leaves", ()),
        observation_kind=kind_of_observations(env),
        unread=getattr(env, "unread", ()),
        has_goal_reward=has_method(env, "compute_reward"),
        agents=getattr(env, "agents_spec", ()),
        policies=tuple(
            AgentPolicy(policy.name, policy.pattern, policy.members, spec_of(name, policy.form))
            for policy in getattr(env, "policies", ())
        ),
        state_values=getattr(env, "state_values", 0),
    )


OWN_LIMITS = ("_max_episode_steps", "max_steps", "max_episode_length")
"""Attributes with an environment's own time limit: of `gymnasium.wrappers.TimeLimit` and level-based foraging, of
MiniGrid, BabyAI and Stable-Baselines3's bit flipping, and of POPGym."""
_WRAPPERS = 32
"""Most wrappers in which a limit is looked for."""


def checked_spec(name: str, env: Any) -> EnvSpec:
    """Return the `EnvSpec` after a reset and a step (`check_calls`), with the time limit of an attribute.

    The limit is read after the reset: BabyAI's depends on the mission and is 0 before.
    """
    spec = spec_of(name, env)
    check_calls(name, env, spec)
    return replace(spec, own_limit=_own_limit(env))


def _own_limit(env: Any) -> int | None:
    """The first of `OWN_LIMITS` that is a whole number above 0, of the outermost wrapper that has one."""
    for _ in range(_WRAPPERS):
        own = getattr(env, "__dict__", {})
        for name in OWN_LIMITS:
            if isinstance(limit := own.get(name), int | np.integer) and limit > 0:
                return int(limit)
        env = own.get("parallel", own.get("env"))
    return None


def has_method(env: Any, name: str) -> bool:
    """Whether an environment, or one inside of its wrappers, has a method of this name; False for a vector."""
    has = getattr(env, "has_wrapper_attr", None)
    return has is not None and has(name) and callable(env.get_wrapper_attr(name))


UNKNOWN, FAILED, SUCCEEDED = 0, 1, 121
"""Whether an episode ended in success; UNKNOWN where the environment does not say.

A number between FAILED and SUCCEEDED is the share of several agents that succeeded, exact for up to six of them.
"""
SUCCESS_KEYS = ("is_success", "success")
"""Keys of `info` at an episode's end, as of Stable-Baselines3 and of PointMaze and Meta-World."""


def success_of(info: Any, index: int | None = None) -> int:
    """Success of an episode by the `info` of its last step; of a vector's, of environment `index`.

    UNKNOWN where the value is not one number or bool: an environment may use the key for something else.
    """
    if not isinstance(info, dict):
        return UNKNOWN
    for key in SUCCESS_KEYS:
        if key in info:
            try:
                value = info[key] if index is None else info[key][index]
                said = index is None or "_" + key not in info or info["_" + key][index]
            except (LookupError, TypeError):  # not one value for each environment
                return UNKNOWN
            one = isinstance(value, bool | int | float) or getattr(value, "shape", None) in ((), (1,))
            return UNKNOWN if not (one and said) or value != value else SUCCEEDED if value else FAILED
    each = info.get("infos")  # see `asyncrl.envs.vectors`
    return success_of(each[index]) if isinstance(each, list) and index is not None else UNKNOWN


def success_rate(successes: NDArray[np.int8]) -> float | None:
    """Fraction of success of the episodes of which it is known; None if it is known of none."""
    known = successes[(successes >= FAILED) & (successes <= SUCCEEDED)].astype(np.int64)
    most = (SUCCEEDED - FAILED) * len(known)
    return float((known - FAILED).sum() / most) if most else None  # files take no NumPy number


def share_of_agents(successes: NDArray[np.int8]) -> int:
    """Success of an episode of several agents: the mean over those of which it is known."""
    rate = success_rate(successes)
    return UNKNOWN if rate is None else FAILED + round(rate * (SUCCEEDED - FAILED))


def require_spaces(spec: EnvSpec, env: Any) -> None:
    """Raise `SpacesDoNotFit` (ASYNC005) unless `env` has the spaces and agents of `spec`, which another one gave."""
    own = spec_of(spec.name, env)
    for what, first, here in (
        ("one action space", spec.action, own.action),
        ("one observation space", _stored(spec), _stored(own)),
        ("the same agents", agents_text(spec), agents_text(own)),
    ):
        if here != first:
            raise SpacesDoNotFit(
                f"All environments of {spec.name} must have {what}, and they differ.",
                facts={"the first": first, "this one": here},
                fix="build every environment of a factory with the same spaces",
            )


def require_same_spaces(spec: EnvSpec, other: EnvSpec) -> None:
    """Raise `SpacesDoNotFit` (ASYNC005) unless a policy trained in an environment with `spec` fits the one of `other`.

    One of several policies (`TrainedPolicy.by_policy`) that was saved by itself does not fit its own environment,
    unless it acts for all agents there.
    """
    spec, other = _of_shared_policy(spec), _of_shared_policy(other)
    own, agents = ([agent.name for agent in one.agents] for one in (spec, other))
    policies, those_here = (_policies(one) for one in (spec, other))
    if own != agents:
        raise SpacesDoNotFit(
            f"The agents of {other.name} are not those that this policy acts for.",
            facts={
                "the policy acts for": ", ".join(own) or "one agent",
                "the agents": ", ".join(agents) or "one agent",
            },
            fix="play the agents that it was trained for; one of several policies plays together with the others: play "
            "the run, or the file of them all",
        )
    for what, verb, trained, here in (
        ("action space", "is not that", spec.action, other.action),
        ("observation space", "is not that", _stored(spec), _stored(other)),
        ("agents", "are not those", agents_text(spec), agents_text(other)),
        ("policies", "are not those", _names(policies), _names(those_here)),
    ):
        if trained != here:
            raise SpacesDoNotFit(
                f"The {what} of {other.name} {verb} of a policy's training in {spec.name}.",
                facts={"trained in": trained, "this one": here},
                fix="play it in an environment with the same spaces: the code and arguments of its training, or a "
                "wrapper (wrappers are for training and evaluation)"
                + ("; pad_spaces=True pads every agent to the largest" if what == "agents" else ""),
            )
    for name, of_policy in policies.items():
        require_same_spaces(of_policy, those_here[name])


def agents_text(spec: EnvSpec) -> str:
    """All that is known of the agents of an environment beside their spaces, for an error."""
    return ", ".join(map(str, spec.agents)) or "one agent"


def _stored(spec: EnvSpec) -> tuple[object, ...]:
    return spec.observation_shape, spec.observation_dtype, tuple(stored_as(leaf) for leaf in spec.leaves)


def _of_shared_policy(spec: EnvSpec) -> EnvSpec:
    """Spec without `policies` where one of them acts for all agents."""
    return spec.policies[0].spec if len(spec.policies) == 1 else spec


def _policies(spec: EnvSpec) -> dict[str, EnvSpec]:
    """Specs of several policies by name, in the order of names."""
    found = {policy.name: policy.spec for policy in sorted(spec.policies, key=lambda policy: policy.name)}
    return {name: replace(own, name=f"policy {name} in {spec.name}") for name, own in found.items()}


def _names(policies: dict[str, EnvSpec]) -> str:
    return ", ".join(policies) or "one of all agents"


def autoreset_mode(name: str, env: Any) -> str:
    """Return the autoreset mode that a vector environment declares, `NEXT_STEP` or `DISABLED`.

    Raises:
        AutoresetUnknown: it declares another mode or none (ASYNC018).
    """
    declared = (getattr(env, "metadata", None) or {}).get("autoreset_mode")
    mode = getattr(declared, "value", declared)
    if mode in (NEXT_STEP, DISABLED):
        return str(mode)
    said = (
        "does not declare its autoreset mode" if declared is None else f"declares autoreset mode {declared}"
    )
    fix = (
        'set metadata["autoreset_mode"] = gymnasium.vector.AutoresetMode.NEXT_STEP (or DISABLED) in its class'
        if declared is None
        else "make it with autoreset_mode=gymnasium.vector.AutoresetMode.NEXT_STEP (or DISABLED), which the vectors of "
        "gymnasium take; a vector of your own must reset so"
    )
    if declared is None:
        fix += (
            ", or say by a wrapper what it does: --wrapper asyncrl.envs.vectors:NextStep (SameStep, Disabled)"
        )
    raise AutoresetUnknown(
        f"The vector environment {name} {said}; the true final observation of an episode would be lost.",
        facts={"class": type(env).__qualname__, "metadata['autoreset_mode']": declared},
        fix=fix,
    )


def _observation_storage(name: str, space: Any, in_vector: bool) -> tuple[tuple[int, ...], str]:
    if space_class(space) not in ("Box", "MultiBinary"):
        raise _no_array(name, space, in_vector)
    dtype = np.dtype(space.dtype)
    if 0 in space.shape:
        raise SpacesDoNotFit(
            f"Every axis of an observation must be at least 1, but that of {name} has shape {tuple(space.shape)}.",
            facts={"observation space": space},
            fix="give the policy something to see, such as a constant: a Box of shape (1,)",
        )
    return tuple(int(n) for n in space.shape), "float32" if dtype == np.float64 else dtype.name


def _no_array(name: str, space: Any, in_vector: bool) -> SpacesDoNotFit:
    """Return the error for observations that are not one array, and that `asyncrl.envs.packing` did not make one."""
    is_what = type(space).__name__
    fix = "wrap it in a gymnasium.ObservationWrapper that returns a Box"
    if in_vector:
        fix = (
            "give a single environment, of which an actor steps several (envs_per_actor), or flatten the vector's "
            "observations: gymnasium.wrappers.vector.FlattenObservation"
        )
    elif space_class(space) == "OneOf":
        fix = "flatten it, in a factory: lambda: gymnasium.wrappers.FlattenObservation(gymnasium.make(...))"
    elif parts := _parts(space):
        odd = [f"{key!r} is {type(part).__name__}" for key, part in parts if not _is_taken(part)]
        is_what += ", and its part " + ", ".join(odd) if odd else " without a part that is an array"
        fix = "leave that part out or turn it into a Box: wrap the environment in a gymnasium.ObservationWrapper"
    elif space_class(space) in ("Dict", "Tuple"):
        is_what += " without parts"
        fix = "give the policy something to see, such as a constant: a Box of shape (1,)"
    return SpacesDoNotFit(
        f"An observation must be an array or made of arrays, but the observation space of {name} is {is_what}.",
        facts={"observation space": space},
        fix=fix,
    )


def _is_taken(part: Any) -> bool:
    return space_class(part) in _STORED or np.dtype(getattr(part, "dtype", None)).kind == "U"


def _parts(space: Any, path: str = "") -> list[tuple[str, Any]]:
    """Return the innermost parts of a Dict or Tuple space with their paths, `robot.name`; [] for other spaces."""
    if space_class(space) not in ("Dict", "Tuple"):
        return [(path.removeprefix("."), space)] if path else []
    inner = space.spaces.items() if space_class(space) == "Dict" else enumerate(space.spaces)
    return [found for key, part in inner for found in _parts(part, f"{path}.{key}")]


def _action_spec(name: str, space: Any) -> ActionSpec:
    kind = space_class(space)
    if kind == "Discrete":
        return DiscreteAction(int(space.n), int(space.start), _taken_dtype(space, DiscreteAction.dtype))
    if kind in ("MultiDiscrete", "MultiBinary"):
        shape, binary = tuple(int(n) for n in space.shape), kind == "MultiBinary"
        counts = (2,) * math.prod(shape) if binary else tuple(int(n) for n in np.ravel(space.nvec))
        start = tuple(int(n) for n in np.ravel(getattr(space, "start", ())))
        taken = "int64" if binary else _taken_dtype(space, MultiDiscreteAction.dtype)
        space_shape = shape if len(shape) != 1 else ()
        return MultiDiscreteAction(counts, start if any(start) else (), space_shape, taken, binary)
    if kind == "Box":
        low, high = (tuple(float(x) for x in np.ravel(bound)) for bound in (space.low, space.high))
        return BoxAction(low, high, tuple(int(n) for n in space.shape), _taken_dtype(space, BoxAction.dtype))
    raise SpacesDoNotFit(
        f"The action space of {name} must be Discrete, MultiDiscrete, MultiBinary or Box, got {type(space).__name__}.",
        facts={"action space": space},
        fix="wrap it in a gymnasium.ActionWrapper whose action space is one of these",
    )


def _taken_dtype(space: Any, ours: str) -> str:
    """Dtype in which an environment is given its actions: `ours` if the space contains values of it."""
    return ours if np.can_cast(ours, space.dtype) else str(np.dtype(space.dtype).name)


def check_calls(name: str, env: Any, spec: EnvSpec) -> None:
    """Reset with a seed and take one step.

    Raises:
        OldGymAPI: the arguments or results of a call are those of the API before Gymnasium 0.26 (ASYNC013).
        ObservationOffSpace: an observation does not have the shape and dtype of its space (ASYNC012).
        EnvironmentRaised: a call raised (ASYNC002).
    """
    batch = spec.axes
    obs = check_reset(name, first_reset(name, env))
    shape, dtype = (*batch, *spec.observation_shape), np.dtype(env.observation_space.dtype)
    obs = check_observation(name, "reset", obs, shape, dtype)
    seed_actions(env)
    action = random_action(env, spec, obs)
    step = check_step(name, _call(name, "step", lambda: env.step(action), action), batch)
    check_observation(name, "step", step[0], shape, dtype)


def first_reset(name: str, env: Any) -> Any:
    """Result of a reset with a fixed seed. Raises `OldGymAPI` and `EnvironmentRaised` as `check_calls` does."""
    return _call(name, "reset(seed=0)", lambda: env.reset(seed=_CHECK_SEED))


def seed_actions(env: Any) -> None:
    """Seed the space that `random_action` draws from."""
    for policy in getattr(env, "policies", ()):
        policy.form.action_space.seed(_CHECK_SEED)
    (env.single_action_space if _has_single_spaces(env) else env.action_space).seed(_CHECK_SEED)


def random_action(env: Any, spec: EnvSpec, obs: Any) -> Any:
    """Return a sample of the action space, of the actions that the mask in the observation `obs` allows.

    An environment may raise for a forbidden action.
    """
    if spec.policies:
        chosen: dict[int, Any] = {}
        for policy, of_env in zip(spec.policies, env.policies, strict=True):
            own = policy.own_observations(np.asarray(obs)[list(policy.members)])
            chosen |= dict(zip(policy.members, random_action(of_env.form, policy.spec, own), strict=True))
        return [chosen[n] for n in range(len(spec.agents))]
    space, read = env.action_space, mask_reader(spec)
    if _has_single_spaces(env):
        return np.stack([env.single_action_space.sample() for _ in range(env.num_envs)])
    if read is None:
        return [space.sample() for _ in spec.agents] if spec.agents else space.sample()
    masks = read(np.asarray(obs).reshape(-1, *spec.observation_shape))
    samples = [_allowed_action(space, spec.action, mask) for mask in masks]
    return samples if spec.agents else samples[0]


def _allowed_action(space: Any, action: ActionSpec, mask: NDArray[np.bool_]) -> Any:
    """Draw one of the choices that `mask` allows for each component of an action, with the space's generator."""
    parts = np.split(mask, np.cumsum(action.nvec)[:-1]) if isinstance(action, MultiDiscreteAction) else [mask]
    choices = [space.np_random.choice(np.flatnonzero(part)) for part in parts]
    chosen = np.array(choices).reshape(space.shape) + getattr(space, "start", 0)
    return chosen.astype(space.dtype)[()]


def observations_fit(env: Any, obs: Any) -> bool:
    """Whether `obs`, one observation or those of a vector or of several agents, lies in its space."""
    obs = converted(np.asarray(obs), np.dtype(env.observation_space.dtype))
    if obs is None:
        return False
    if _has_single_spaces(env):
        return all(env.single_observation_space.contains(one) for one in obs)
    if hasattr(env, "policies"):
        return all(
            policy.form.observation_space.contains(
                np.asarray(obs[n, *map(slice, policy.form.observation_space.shape)])
            )
            for policy in env.policies
            for n in policy.members
        )
    if hasattr(env, "agents_spec"):
        return all(env.observation_space.contains(one) for one in obs)
    return bool(env.observation_space.contains(obs))


def _has_single_spaces(env: Any) -> bool:
    """Whether a vector environment gives the space of one environment as that of all, as EnvPool does."""
    return hasattr(env, "num_envs") and bool(env.action_space == env.single_action_space)


def _call(name: str, call: str, function: Any, action: object = None) -> Any:
    try:
        return function()
    except AsyncRLError:
        raise
    except environment_exceptions() as error:
        if isinstance(error, TypeError) and call.startswith("reset") and "seed" in error_text(error):
            must = "take the keyword arguments seed and options"
            raise _old(name, "reset(seed=0)", f"raised {error_text(error)}", must) from error
        facts: dict[str, object] = {"call": call, "seed": _CHECK_SEED}
        if action is not None:
            facts["action"] = action
        raise EnvironmentRaised(
            f"The environment {name} raised {type(error).__name__} in {call}: {error_text(error)}",
            facts=facts,
            fix="mend the environment; the same call fails outside of asyncrl too",
            remote_traceback=traceback.format_exc(),
        ) from error


def check_reset(name: str, returned: Any) -> Any:
    """Return the observation from the result of `reset`. Raises `OldGymAPI` (ASYNC013)."""
    if not (isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], dict)):
        raise _old(name, "reset", f"returned {_shape_of(returned)}", "return (observation, info)")
    return returned[0]


def check_step(name: str, returned: Any, batch: tuple[int, ...] = ()) -> tuple[Any, ...]:
    """Return the five values of the result of `step`. Raises `OldGymAPI` (ASYNC013)."""
    must = "return (observation, reward, terminated, truncated, info)"
    if not (isinstance(returned, tuple) and len(returned) == 5):
        raise _old(name, "step", f"returned {_shape_of(returned)}", must)
    for value, what, kind in zip(returned[1:4], _SCALARS, ("number", "bool", "bool"), strict=True):
        if (shape := np.shape(value)) != batch:
            wanted = "number" if not batch else f"array of shape {batch}"
            did = f"returned {what} {value!r} of shape {shape}"
            objectives = what == "reward" and len(shape) == len(batch) + 1 and shape[-1] > 1
            fix = _WEIGH if objectives and not batch else ""
            raise _old(name, "step", did, f"return a {wanted} there", fix)
        if not is_real(value) or (kind == "bool" and np.not_equal(value, value).any()):  # NaN is no end
            kind = kind if not batch else f"array of {kind}s"
            raise _old(name, "step", f"returned {value!r} as {what}", f"return a {kind} there")
    return returned


def refuse_non_finite(name: str, what: str, values: NDArray[Any], where: str, **facts: object) -> None:
    """Raise `NonFiniteStep` (ASYNC011) for NaN or infinity among an environment's observations, rewards or returns."""
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise NonFiniteStep(
            f"The environment {name} gave {what}s that are NaN or infinite in {where}.",
            facts={"first of them": values[~np.isfinite(values)][0], **facts},
            fix="mend the environment (a diverged simulation?); greedy actions lead where exploration had not been",
        )


def is_real(values: object) -> bool:
    """Whether values are real numbers, bools or objects of such, not None, text, complex numbers or times.

    NumPy would convert the latter: None to NaN, "1.5" to a number, 1j to its real part, five seconds to 5; Python
    "False" to True.
    """
    array = np.asarray(values)
    if array.dtype.kind == "O":
        return not any(value is None or isinstance(value, str | bytes | complex) for value in array.flat)
    return array.dtype.kind in "fiub"


def check_observation(
    name: str, call: str, obs: Any, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> NDArray[Any]:
    """Return `obs` as an array of that shape and dtype.

    Arrays of other libraries (JAX), lists and numbers of another dtype are converted (`converted`), because a policy
    learns from float32 whatever the environment computes in. An array of the right dtype is not copied.

    Raises:
        ObservationOffSpace: it has another shape, or values that `dtype` does not hold (ASYNC012).
    """
    if type(obs) is np.ndarray and obs.dtype == dtype and obs.shape == shape:
        return obs
    array = _array_of(obs)
    if array is not None and array.shape == shape and (values := converted(array, dtype)) is not None:
        return values
    got, fix = _mismatch(obs, array, shape, dtype)
    raise ObservationOffSpace(
        f"An observation of {name} is off its space: got {got}, expected {dtype.name} of shape {shape}.",
        facts={"call": call, "got": got, "expected": f"{dtype.name} of shape {shape}"},
        fix=f"in the environment, or in a gymnasium.ObservationWrapper around it: {fix}",
    )


def converted(array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """Return numbers in the dtype of their space; None if it does not hold them.

    Floats are rounded to a narrower float, and whole numbers become floats. A whole number beyond the range of `dtype`
    is not converted, a finite float that would become infinite neither, and floats never become whole numbers, which
    hides a mistake (an image of 0 to 1 in a space of bytes would be black).
    """
    if np.can_cast(array.dtype, dtype, "safe"):
        return np.asarray(array, dtype)
    if array.dtype.kind not in "fiub" or (array.dtype.kind == "f" and dtype.kind != "f"):
        return None
    values, lost = _cast(array, dtype)
    return None if lost.any() else values


def _cast(array: NDArray[Any], dtype: np.dtype[Any]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """The array in another dtype, and which of its values that does not hold."""
    with np.errstate(over="ignore", under="ignore"):  # an environment may have NumPy raise
        values = array.astype(dtype)
    lost = np.isinf(values) & np.isfinite(array) if dtype.kind == "f" else values != array
    return values, np.asarray(lost)


def _array_of(obs: Any) -> NDArray[Any] | None:
    """An observation as an array; an array is not copied. None for what is neither an array nor made of numbers."""
    if isinstance(obs, np.ndarray | np.generic | list | tuple | int | float) or hasattr(obs, "__array__"):
        try:
            return np.asarray(obs)
        except ValueError:  # a list of lists of several lengths
            return None
    return None


def _mismatch(
    obs: Any, array: NDArray[Any] | None, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> tuple[str, str]:
    """What an observation is that is off its space, and what to return in its place."""
    got = _shape_of(obs) if array is None else f"{array.dtype.name} of shape {array.shape}"
    if array is None or array.dtype.kind not in "fiub":
        return got, "return an observation of observation_space"
    if array.size != math.prod(shape):
        return got, "return an observation of that shape, or declare the observation space you return"
    if array.shape != shape:
        return got, f"return {'obs' if array is obs else 'np.asarray(obs)'}.reshape({shape})"
    if array.dtype.kind == "f" and dtype.kind != "f":
        return got, (
            f"return whole numbers, np.rint(obs).astype(np.{dtype.name}), or declare a Box of dtype np.float32"
        )
    first = array[_cast(array, dtype)[1]].flat[0]
    return f"{got} with the value {first}", "return values of that dtype, or declare the space that has them"


def not_an_environment(name: str, thing: object) -> AsyncRLError:
    """Return the error for a factory whose result is not an environment."""
    if hasattr(thing, "step") and hasattr(thing, "reset"):
        kind = f"{type(thing).__module__}.{type(thing).__qualname__}"
        did, must = f"returned {kind}, not a gymnasium.Env", "derive from gymnasium.Env"
        fix = (
            "wrap it in shimmy.GymV21CompatibilityV0 (or GymV26CompatibilityV0)" if _is_old_gym(thing) else ""
        )
        return _old(name, "the constructor", did, must, fix)
    return EnvironmentNotBuilt(
        f"The factory {name} returned {type(thing).__name__}, not an environment.",
        fix="return a gymnasium.Env, a gymnasium.vector.VectorEnv or a pettingzoo.ParallelEnv",
    )


def _is_old_gym(thing: object) -> bool:
    """Whether `thing` is an environment of the package gym, which came before gymnasium."""
    gym = sys.modules.get("gym")
    return gym is not None and isinstance(thing, gym.Env)


def _old(name: str, call: str, did: str, must: str, fix: str = "") -> OldGymAPI:
    return OldGymAPI(
        f"The environment {name} does not speak Gymnasium's API: {call} {did}; it must {must}.",
        facts={"call": call, "did": did, "must": must},
        fix=fix
        or "change the environment, or write a gymnasium.Env of a dozen lines that calls it and does so",
    )


def _shape_of(value: object) -> str:
    if isinstance(value, tuple):
        return f"a tuple of {len(value)} values ({', '.join(type(v).__name__ for v in value)})"
    return f"{type(value).__name__}"


def close_env(env: Any) -> None:
    """Close an environment; an exception is written once to standard error (an actor's log) and suppressed."""
    try:
        env.close()
    except Exception:
        _say_once(
            f"The environment raised in close(), which does not affect the run:\n{traceback.format_exc()}"
        )


@functools.cache
def _say_once(text: str) -> None:
    """Write a text to standard error, once in a process, which may close a hundred environments."""
    print(printable(text, TRACEBACK_LIMIT), file=sys.stderr)
