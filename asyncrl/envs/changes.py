"""Changes to an environment: keyword arguments of its constructor, and wrappers around it.

Both have a text form (`gravity:9`, `module:Name`) for the command line, `config.toml` and checkpoints, and are sent as
JSON, which executes no code; the name of a wrapper may be followed by keyword arguments as JSON. A wrapper that other
processes cannot import by name is sent as a pickle instead.
"""

from __future__ import annotations

import importlib
import json
import re
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from asyncrl.envs.checks import close_env
from asyncrl.errors import ConfigurationError, EnvironmentNotBuilt, error_text
from asyncrl.options import mapping_from_texts, texts_of_mapping

Wrapper = str | Callable[[Any], Any]
"""`"module:Name"`, or a class or function that takes an environment and returns one."""


def name_of_wrapper(wrapper: Wrapper) -> str | None:
    """Return `module:Name` of a wrapper; None if other processes cannot import it by name.

    Raises:
        TypeError: it is neither a name nor callable.
    """
    if isinstance(wrapper, str):
        return wrapper
    if not callable(wrapper):
        raise TypeError(f"wrappers must be 'module:Name' or callable, got {wrapper!r}")
    module, name = getattr(wrapper, "__module__", None), getattr(wrapper, "__qualname__", "")
    if module in (None, "__main__") or not name.isidentifier():
        return None
    return f"{module}:{name}"


def described(wrapper: Wrapper) -> str:
    """Return the name of a wrapper for `config.toml`."""
    return name_of_wrapper(wrapper) or str(getattr(wrapper, "__qualname__", type(wrapper).__name__))


def pack_changes(env_id: str, kwargs: Mapping[str, Any], wrappers: Sequence[str]) -> bytes:
    """Encode an id with its changes as bytes."""
    return json.dumps([env_id, texts_of_mapping(kwargs), list(wrappers)]).encode()


def unpack_changes(payload: bytes) -> tuple[str, dict[str, Any], list[str]]:
    """Decode the result of `pack_changes`."""
    env_id, kwargs, wrappers = json.loads(payload)
    return env_id, mapping_from_texts(kwargs), wrappers


def wrapped(env: Any, wrappers: Sequence[Wrapper]) -> Any:
    """Apply the wrappers to `env`, the first one innermost.

    Raises:
        ConfigurationError: a wrapper cannot be found (ASYNC017).
        EnvironmentNotBuilt: a wrapper cannot be called with an environment alone (ASYNC004).
    """
    for wrapper in wrappers:
        found = _find(wrapper) if isinstance(wrapper, str) else wrapper
        try:
            env = found(env)
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise  # from inside of the wrapper
            raise _takes_more(described(wrapper), error) from error
    return env


def missing_arguments(what: str) -> list[str]:
    """Names in the text of a TypeError about required arguments; [] if `what` holds no such text.

    Positional-only arguments cannot be given by name, but Python's text does not tell them apart.
    """
    found = re.search(r"\w\(\) missing \d+ required (?:positional|keyword-only) arguments?: (.*)", what)
    return re.findall(r"'(\w+)'", found[1]) if found else []


def _takes_more(name: str, error: TypeError) -> EnvironmentNotBuilt:
    """Return the error for a wrapper whose call with the environment failed because of its signature."""
    called = name.partition("{")[0].rpartition(":")[2].rpartition(".")[2]
    given = ", ".join(f"{missing}=..." for missing in missing_arguments(error_text(error)))
    return EnvironmentNotBuilt(
        f"The wrapper {name} cannot be called with an environment alone: {error_text(error)}.",
        fix="write a function in a module of your own that gives it the rest, def wrap(env): return "
        f"{called}(env, {given or '...'}), and name that: --wrapper my_module:wrap; in Python a lambda is enough: "
        f"wrappers=[lambda env: {called}(env, {given or '...'})]",
        remote_traceback=traceback.format_exc(),
    )


INSIDE = ("env", "parallel", "aec_env")
"""Attribute of a layer with the one inside: of wrappers, of several agents, and of PettingZoo's conversion."""
_STATISTICS = {
    "NormalizeObservation": "normalize_observations=True (--ppo.normalize-observations) of the algorithm, whose "
    "statistics are saved with the policy",
    "NormalizeReward": "normalize_rewards=True of PPO, where it is the default, A2C, IMPALA, PQN and MAPPO; the other "
    "algorithms scale rewards by themselves, or by reward_scale",
}
"""Wrappers of gymnasium that normalise by running statistics, for single environments and vectors, and the option
that takes their place."""


def refuse_running_statistics(name: str, env: Any) -> None:
    """Close and refuse an environment, or a vector, in which a wrapper of `_STATISTICS` updates its statistics.

    Every actor and the evaluator would have their own, and no file keeps them, so a policy would see other numbers in
    each of them, and evaluations would report normalised rewards. Nothing tells such returns from true ones, so a
    warning would not do. Frozen statistics (`update_running_mean = False`) are a fixed function, and are taken.

    Raises:
        ConfigurationError: it has such a wrapper (ASYNC017).
    """
    found: dict[str, str] = {}
    for layer in _layers(env):
        found |= _of_other_processes(layer) if "parent_pipes" in held_by(layer) else _normaliser(layer)
    if found:
        close_env(env)
        wrappers = " and ".join(found)
        raise ConfigurationError(
            f"The environment {name} has gymnasium's {wrappers}: running statistics of one process, which are not kept "
            "with the policy, so that actors, evaluations and saved policies would each see other numbers.",
            facts={"wrapper": ", ".join(found.values())},
            fix=f"take {'it' if len(found) == 1 else 'them'} off, and set "
            + "; and ".join(_STATISTICS[wrapper] for wrapper in found),
        )


def _normaliser(layer: Any) -> dict[str, str]:
    """The key of `_STATISTICS` for a layer that is such a wrapper, or derives from it, with the name of its class."""
    return {
        base.__name__: type(layer).__qualname__
        for base in type(layer).__mro__
        if base.__name__ in _STATISTICS and base.__module__.startswith("gymnasium.wrappers.")
        if getattr(layer, "update_running_mean", True)
    }


def _of_other_processes(vector: Any) -> dict[str, str]:
    """`_normaliser` of all layers of the environments of gymnasium's `AsyncVectorEnv`."""
    attributes = {"NormalizeObservation": "obs_rms", "NormalizeReward": "return_rms"}
    found = {name: name for name, held in attributes.items() if any(vector.call("has_wrapper_attr", held))}
    updates = found and all(vector.call("has_wrapper_attr", "update_running_mean"))
    return found if updates and any(vector.get_attr("update_running_mean")) else {}


def _layers(env: Any) -> Iterator[Any]:
    """An environment and all inside of it: of wrappers, of a vector in this process, and of several agents."""
    waiting, seen = [env], set()
    while waiting:
        layer = waiting.pop()
        if id(layer) in seen:
            continue
        seen.add(id(layer))
        yield layer
        held = held_by(layer)
        waiting += [held[name] for name in INSIDE if name in held]
        if isinstance(inside := held.get("envs"), list | tuple):
            waiting += inside


def held_by(layer: Any) -> dict[str, Any]:
    """The attributes of a layer itself, without those that a wrapper passes on."""
    return vars(layer) if hasattr(layer, "__dict__") else {}


def with_arguments(name: str, **arguments: Any) -> str:
    """Return the text of the wrapper `name` with keyword arguments, which are JSON values."""
    return name + json.dumps(arguments)


def _find(name: str) -> Callable[[Any], Any]:
    name, brace, arguments = name.partition("{")
    module, _, attribute = name.rpartition(":")
    found: Any = None
    reason = "it is not of the form module:Name"
    if module:
        try:
            found = importlib.import_module(module)
            for part in attribute.split("."):
                found = getattr(found, part)
        except (ImportError, AttributeError) as error:
            found, reason = None, str(error)
    if not callable(found):
        raise ConfigurationError(
            f"the wrapper {name} cannot be found: {reason if found is None else 'it cannot be called'}",
            fix="name a class or function that takes the environment, such as "
            "gymnasium.wrappers:FlattenObservation or my_module:MyWrapper",
        )
    wrapper: Callable[[Any], Any] = partial(found, **json.loads(brace + arguments)) if brace else found
    return wrapper
