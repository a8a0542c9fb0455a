"""Look-up of an environment's id in gymnasium's registry, and the error for an unknown one (ASYNC006)."""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from asyncrl.errors import UnknownEnvironment

if TYPE_CHECKING:
    from gymnasium.envs.registration import EnvSpec as GymnasiumSpec

_EXTRAS = (
    ("atari", "ale_py", re.compile(r"^ALE/|NoFrameskip-|Deterministic-|\bale[-_]py\b", re.IGNORECASE)),
    ("mujoco", "mujoco", re.compile(r"mujoco", re.IGNORECASE)),
    ("box2d", "Box2D", re.compile(r"box2d", re.IGNORECASE)),
)
_OWN = {"asyncrl/Catch-v0": "asyncrl.envs.catch:Catch", "asyncrl/Recall-v0": "asyncrl.envs.recall:Recall"}


def find(name: str, main_only: bool = False) -> GymnasiumSpec | Callable[..., Any]:
    """Return the registered spec of an id, or the class or function `module:Name`; imports the module if given.

    Args:
        name: `CartPole-v1`, `module:Mine-v0` or `module:Mine`.
        main_only: the id is registered only by the main script, in another process.

    Raises:
        UnknownEnvironment: ASYNC006.
    """
    import gymnasium

    module, _, env_id = name.rpartition(":")
    made = getattr(_imported(module, name), env_id, None) if module else None
    if env_id not in gymnasium.registry and _EXTRAS[0][2].search(env_id):
        _register_atari()
    if env_id.startswith("asyncrl/"):
        for own_id, entry_point in _OWN.items():
            if own_id not in gymnasium.registry:
                gymnasium.register(own_id, entry_point, reward_threshold=0.95)
    if env_id not in gymnasium.registry and callable(made):
        maker: Callable[..., Any] = made
        return maker
    try:
        return gymnasium.spec(env_id)
    except gymnasium.error.Error as error:
        raise _unknown(name, env_id, str(error), main_only) from None


def _imported(module: str, name: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name):
            raise
        extra = _missing_extra(name) or _missing_extra(error.name)
        fix = f"install the package that provides {error.name!r}, or correct the id"
        raise UnknownEnvironment(
            f"There is no environment {name}: no module named {error.name!r} can be imported.",
            fix=f'pip install "asyncrl[{extra}]"' if extra else fix,
        ) from None


def _unknown(name: str, env_id: str, reason: str, main_only: bool) -> UnknownEnvironment:
    import gymnasium

    if main_only:
        return UnknownEnvironment(
            f"The environment {name} is registered in __main__ only, where actors cannot see it.",
            fix=f"put its class and gymnasium.register() into a module and use 'module:{env_id}', "
            "or give a factory: Trainer(lambda: MyEnv(), ...)",
        )
    near = difflib.get_close_matches(env_id, list(gymnasium.registry), n=4, cutoff=0.6)
    facts: dict[str, object] = {"gymnasium says": reason}
    if near:
        facts["near misses"] = ", ".join(near)
    extra = _missing_extra(env_id)
    fix = f'pip install "asyncrl[{extra}]"' if extra else "correct the id"
    fix += "" if extra else ", or import the package that registers it ('package:Env-v0')"
    return UnknownEnvironment(f"There is no environment {name}.", facts=facts, fix=fix)


def extra_for(text: str) -> str | None:
    """Return the extra of this package that installs the package named in `text`; None if no extra does."""
    found = _extra_and_package(text)
    return None if found is None else found[0]


def _missing_extra(text: str) -> str | None:
    """Return `extra_for(text)`, but None if its package can be imported: then its absence is not the reason."""
    found = _extra_and_package(text)
    return None if found is None or _importable(found[1]) else found[0]


def _extra_and_package(text: str) -> tuple[str, str] | None:
    env_id = text.rpartition(":")[2]
    for extra, package, pattern in _EXTRAS:
        if pattern.search(text) or pattern.search(env_id):
            return extra, package
    return None


def _importable(package: str) -> bool:
    try:
        importlib.import_module(package)
    except ImportError:
        return False
    return True


def _register_atari() -> None:
    try:
        ale_py: Any = importlib.import_module("ale_py")
    except ImportError:
        return
    import gymnasium

    # As its environments do once they are made: their greeting would be printed into the screen of a run.
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    gymnasium.register_envs(ale_py)
