"""Checks of an environment: spaces that rings can store, and the results of reset and step; and its closing.

This module uses attributes of spaces and environments only; it does not import gymnasium.
"""

from __future__ import annotations

import math
import sys
import traceback
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncrl.envs.observations import kind_of_observations, mask_reader
from asyncrl.errors import (
    AsyncRLError,
    AutoresetUnknown,
    EnvironmentNotBuilt,
    EnvironmentRaised,
    ObservationOffSpace,
    OldGymAPI,
    SpacesDoNotFit,
)
from asyncrl.interfaces import ActionSpec, BoxAction, DiscreteAction, EnvSpec, MultiDiscreteAction
from asyncrl.printable import TRACEBACK_LIMIT, error_text, printable

NEXT_STEP, DISABLED = "NextStep", "Disabled"
_CHECK_SEED = 0
_SCALARS = ("reward", "terminated", "truncated")


def spec_of(name: str, env: Any) -> EnvSpec:
    """Return the environment's spaces and limits as an `EnvSpec`.

    Raises:
        SpacesDoNotFit: an observation space that is not one array, or an unsupported action space (ASYNC005).
        AutoresetUnknown: a vector environment with an unsupported or no autoreset mode (ASYNC018).
    """
    vector_envs = getattr(env, "num_envs", None)
    if vector_envs is not None:
        autoreset_mode(name, env)
    obs_space = env.observation_space if vector_envs is None else env.single_observation_space
    action_space = env.action_space if vector_envs is None else env.single_action_space
    shape, dtype = _observation_storage(name, obs_space)
    registered = getattr(env, "spec", None)
    return EnvSpec(
        name=name,
        observation_shape=shape,
        observation_dtype=dtype,
        action=_action_spec(name, action_space),
        max_episode_steps=getattr(registered, "max_episode_steps", None),
        reward_threshold=getattr(registered, "reward_threshold", None),
        vector_envs=None if vector_envs is None else int(vector_envs),
        leaves=getattr(env, "packed_leaves", ()),
        observation_kind=kind_of_observations(env),
    )


def require_spaces(spec: EnvSpec, env: Any) -> None:
    """Raise `SpacesDoNotFit` (ASYNC005) unless the spaces of `env` are those of `spec`, which another one gave."""
    own = spec_of(spec.name, env)
    for what, first, here in (
        ("action", spec.action, own.action),
        ("observation", _stored(spec), _stored(own)),
    ):
        if here != first:
            raise SpacesDoNotFit(
                f"All environments of {spec.name} must have one {what} space, and they differ.",
                facts={"the first": first, "this one": here},
                fix="build every environment of a factory with the same spaces",
            )


def _stored(spec: EnvSpec) -> tuple[object, ...]:
    return spec.observation_shape, spec.observation_dtype, spec.leaves


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
    where = "its class" if declared is None else "its constructor (or gymnasium.make_vec)"
    raise AutoresetUnknown(
        f"The vector environment {name} {said}; the true final observation of an episode would be lost.",
        facts={"class": type(env).__qualname__, "metadata['autoreset_mode']": declared},
        fix='set metadata["autoreset_mode"] = gymnasium.vector.AutoresetMode.NEXT_STEP (or DISABLED) in '
        f"{where}, and behave so",
    )


def _observation_storage(name: str, space: Any) -> tuple[tuple[int, ...], str]:
    kind = type(space).__name__
    if kind not in ("Box", "MultiBinary"):
        flattens = kind in ("Dict", "Tuple", "Discrete", "MultiDiscrete", "OneOf")
        fix = (
            "flatten it, in a factory: lambda: gymnasium.wrappers.FlattenObservation(gymnasium.make(...))"
            if flattens
            else "wrap it in a gymnasium.ObservationWrapper that returns a Box"
        )
        raise SpacesDoNotFit(
            f"A stream holds one array per step, but the observation space of {name} is {kind}.",
            facts={"observation space": space},
            fix=fix,
        )
    dtype = np.dtype(space.dtype)
    return tuple(int(n) for n in space.shape), "float32" if dtype == np.float64 else dtype.name


def _action_spec(name: str, space: Any) -> ActionSpec:
    kind = type(space).__name__
    if kind == "Discrete":
        return DiscreteAction(int(space.n), int(space.start), _taken_dtype(space, DiscreteAction.dtype))
    if kind in ("MultiDiscrete", "MultiBinary"):
        shape = tuple(int(n) for n in space.shape)
        counts = (
            (2,) * math.prod(shape) if kind == "MultiBinary" else tuple(int(n) for n in np.ravel(space.nvec))
        )
        start = tuple(int(n) for n in np.ravel(getattr(space, "start", ())))
        taken = "int64" if kind == "MultiBinary" else _taken_dtype(space, MultiDiscreteAction.dtype)
        space_shape = shape if len(shape) != 1 else ()
        return MultiDiscreteAction(counts, start if any(start) else (), space_shape, taken)
    if kind == "Box":
        low, high = (tuple(float(x) for x in np.ravel(bound)) for bound in (space.low, space.high))
        return BoxAction(low, high, tuple(int(n) for n in space.shape), _taken_dtype(space, BoxAction.dtype))
    raise SpacesDoNotFit(
        f"The action space of {name} must be Discrete, MultiDiscrete, MultiBinary or Box, got {kind}.",
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
    batch = () if spec.vector_envs is None else (spec.vector_envs,)
    obs = check_reset(name, _call(name, "reset(seed=0)", lambda: env.reset(seed=_CHECK_SEED)))
    shape, dtype = (*batch, *spec.observation_shape), np.dtype(env.observation_space.dtype)
    obs = check_observation(name, "reset", obs, shape, dtype)
    env.action_space.seed(_CHECK_SEED)
    action = random_action(env, spec, obs)
    step = check_step(name, _call(name, "step", lambda: env.step(action), action), batch)
    check_observation(name, "step", step[0], shape, dtype)


def random_action(env: Any, spec: EnvSpec, obs: Any) -> Any:
    """Return a sample of the action space, of the actions that the mask in the observation `obs` allows.

    An environment may raise for a forbidden action. Masks of MultiBinary spaces are ignored.
    """
    space, read = env.action_space, mask_reader(spec)
    if read is None or type(space).__name__ == "MultiBinary":
        return space.sample()
    mask = read(np.asarray(obs)[None])[0].astype(np.int8)
    if isinstance(spec.action, MultiDiscreteAction):
        return space.sample(tuple(np.split(mask, np.cumsum(spec.action.nvec)[:-1])))
    return space.sample(mask)


def _call(name: str, call: str, function: Any, action: object = None) -> Any:
    try:
        return function()
    except AsyncRLError:
        raise
    except Exception as error:
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
            raise _old(
                name, "step", f"returned {what} {value!r} of shape {shape}", f"return a {wanted} there"
            )
        if not is_real(value):
            kind = kind if not batch else f"array of {kind}s"
            raise _old(name, "step", f"returned {value!r} as {what}", f"return a {kind} there")
    return returned


def is_real(values: object) -> bool:
    """Whether values are real numbers, bools or objects such as None (False), not text, complex numbers or times.

    NumPy would convert the latter: "1.5" to a number, 1j to its real part, five seconds to 5; Python "False" to True.
    """
    array = np.asarray(values)
    if array.dtype.kind == "O":
        return not any(isinstance(value, str | bytes | complex) for value in array.flat)
    return array.dtype.kind in "fiub"


def check_observation(
    name: str, call: str, obs: Any, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> NDArray[Any]:
    """Return `obs` if it is an array of that shape and dtype. Raises `ObservationOffSpace` (ASYNC012)."""
    if isinstance(obs, (np.ndarray, np.generic)) and obs.shape == shape and obs.dtype == dtype:
        return np.asarray(obs)
    if not isinstance(obs, (np.ndarray, np.generic)):
        got, fix = _shape_of(obs), f"return np.asarray(obs, dtype=np.{dtype.name})"
    else:
        got = f"{obs.dtype.name} of shape {obs.shape}"
        fix = f"return obs.astype(np.{dtype.name})" if obs.shape == shape else f"return obs.reshape({shape})"
        if obs.size != math.prod(shape):
            fix = "return an observation of that shape, or declare the observation space you return"
    raise ObservationOffSpace(
        f"An observation of {name} is off its space: got {got}, expected {dtype.name} of shape {shape}.",
        facts={"call": call, "got": got, "expected": f"{dtype.name} of shape {shape}"},
        fix=f"in the environment: {fix}",
    )


def not_an_environment(name: str, thing: object) -> AsyncRLError:
    """Return the error for a factory whose result is not a gymnasium environment."""
    if hasattr(thing, "step") and hasattr(thing, "reset"):
        kind = f"{type(thing).__module__}.{type(thing).__qualname__}"
        return _old(
            name, "the constructor", f"returned {kind}, not a gymnasium.Env", "derive from gymnasium.Env"
        )
    return EnvironmentNotBuilt(
        f"The factory {name} returned {type(thing).__name__}, not an environment.",
        fix="return a gymnasium.Env or a gymnasium.vector.VectorEnv",
    )


def _old(name: str, call: str, did: str, must: str) -> OldGymAPI:
    return OldGymAPI(
        f"The environment {name} does not speak Gymnasium's API: {call} {did}; it must {must}.",
        facts={"call": call, "did": did, "must": must},
        fix="change the environment, or wrap it in shimmy.GymV21CompatibilityV0",
    )


def _shape_of(value: object) -> str:
    if isinstance(value, tuple):
        return f"a tuple of {len(value)} values ({', '.join(type(v).__name__ for v in value)})"
    return f"{type(value).__name__}"


def close_env(env: Any) -> None:
    """Close an environment; an exception is written to standard error (an actor's log) and suppressed."""
    try:
        env.close()
    except Exception:
        text = f"The environment raised in close(), which does not affect the run:\n{traceback.format_exc()}"
        print(printable(text, TRACEBACK_LIMIT), file=sys.stderr)
