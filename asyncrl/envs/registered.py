"""Look-up of an environment's id in gymnasium's registry, and the error for an unknown one (ASYNC006)."""

from __future__ import annotations

import difflib
import importlib.util
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from asyncrl.errors import UnknownEnvironment

if TYPE_CHECKING:
    from gymnasium.envs.registration import EnvSpec as GymnasiumSpec

_EXTRAS = (
    ("atari", "ale_py", re.compile(r"^ALE/|NoFrameskip-|Deterministic-|\bale[-_]py\b", re.IGNORECASE)),
    ("mujoco", "mujoco", re.compile(r"mujoco", re.IGNORECASE)),
    ("box2d", "Box2D", re.compile(r"box2d", re.IGNORECASE)),
    *(("multi-agent", name, re.compile(rf"^{name}\b")) for name in ("pettingzoo", "mpe2", "lbforaging")),
)
_LIBRARIES = (
    (r"MinAtar/", "minatar.gym", "minatar"),
    (r"MiniGrid-|BabyAI-", "minigrid", "minigrid"),
    (r"dm_control/", "shimmy", "shimmy[dm-control]"),
    (r"popgym-", "popgym", "popgym"),
    (r"Panda[A-Z]", "panda_gym", "panda-gym"),
    (r"FlappyBird-", "flappy_bird_gymnasium", "flappy-bird-gymnasium"),
    (r"(highway|merge|roundabout|parking|intersection|racetrack)-", "highway_env", "highway-env"),
    (r"\w+BulletEnv-", "pybullet_envs_gymnasium", "pybullet-envs-gymnasium"),
    (r"Fetch|Hand[RM]|AdroitHand|FrankaKitchen|\w+Maze_", "gymnasium_robotics", "gymnasium-robotics"),
    (r"mo-|deep-sea-treasure", "mo_gymnasium", "mo-gymnasium"),
    (r"Foraging-", "lbforaging", "lbforaging"),
    (r"rware-", "rware", "rware"),
)
"""Libraries whose environments are registered when their module is imported: beginning of the ids, module, package."""
_OF_AGENTS = re.compile(r"\w+_v\d+")
"""Names of PettingZoo's modules of environments."""
_LISTED = 5
"""Maximum number of names that an error lists."""
MUJOCO_BELOW = "3.12"
"""First version of MuJoCo that gymnasium-robotics 1.4.2 does not work with; dm-control 1.0.44 is the last for it."""
BUILDS_BOX2D = (3, 14)
"""First version of Python for which Box2D has no wheel, and pip builds box2d-py."""
_OWN = {
    "asyncrl/BitFlip-v0": ("asyncrl.envs.bit_flip:BitFlip", 0.95),
    "asyncrl/Catch-v0": ("asyncrl.envs.catch:Catch", 0.95),
    "asyncrl/ConnectFour-v0": ("asyncrl.envs.connect_four:ConnectFour", None),
    "asyncrl/Recall-v0": ("asyncrl.envs.recall:Recall", 0.95),
}
"""Environments of this package by id: where they are, and the return from which they count as solved."""


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
    imported = _imported(module, name) if module else None
    made = getattr(imported, env_id, None)
    if imported is not None and env_id not in gymnasium.registry:
        made = _maker_of_agents(imported, env_id, made)
        if made is None:
            _register_by(imported)
    if env_id not in gymnasium.registry and _EXTRAS[0][2].search(env_id):
        _register_atari()
    if env_id.startswith("asyncrl/"):
        for own_id, (entry_point, threshold) in _OWN.items():
            if own_id not in gymnasium.registry:
                gymnasium.register(own_id, entry_point, reward_threshold=threshold)
    if env_id not in gymnasium.registry and callable(made):
        maker: Callable[..., Any] = made
        return maker
    try:
        return gymnasium.spec(env_id)
    except gymnasium.error.Error as error:
        if imported is not None:
            raise _module_lacks(name, imported, env_id) from None
        raise _unknown(name, env_id, str(error), main_only) from None


def _imported(module: str, name: str) -> Any:
    if "/" in module or module.endswith(".py"):
        stem, inside = module.removesuffix(".py"), not module.startswith(("/", "..", "~"))
        stem = stem.removeprefix("./").replace("/", ".") if inside else stem.rpartition("/")[2]
        raise UnknownEnvironment(
            f"There is no environment {name}: {module} is the path of a file, not the name of a module.",
            fix=f"write {stem}:{name.rpartition(':')[2]}"
            + ("" if inside else ", in the folder of that file"),
        )
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name):
            raise
        extra = missing_extra(name) or missing_extra(error.name)
        fix = f"install the package that provides {error.name!r}, or correct the id"
        raise UnknownEnvironment(
            f"There is no environment {name}: no module named {error.name!r} can be imported.",
            fix=installing(extra) if extra else fix,
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
    extra = missing_extra(env_id)
    fix = installing(extra) if extra else _of_library(env_id)
    if env_id.endswith(".py"):
        fix = f"name a class or a function of the file: {env_id[:-3].replace('/', '.')}:NAME"
    fix = fix or _of_module(env_id)
    fix = fix or "correct the id, or import the package that registers it ('package:Env-v0')"
    return UnknownEnvironment(f"There is no environment {name}.", facts=facts, fix=fix)


def _of_module(name: str) -> str:
    """Fix for a module's name in place of an id, `mine` or `mine.Env`; "" if no such module can be imported."""
    module, _, inside = name.rpartition(".")
    if not module or (_is_module(name) and not _OF_AGENTS.fullmatch(inside)):
        module, inside = name, "NAME"
    return f"name a class or a function of the module: {module}:{inside}" if _is_module(module) else ""


def _is_module(name: str) -> bool:
    """Whether `name`, with dots for modules in packages, can be imported; imports the packages around it."""
    if not all(map(str.isidentifier, name.split("."))):
        return False
    try:
        return importlib.util.find_spec(name) is not None
    except Exception:  # a package around it may raise anything
        return False


def _of_library(env_id: str) -> str:
    """Fix for an id of a library that is known by the beginning of its ids; "" for another."""
    for pattern, module, package in _LIBRARIES:
        if re.match(pattern, env_id):
            installed = importlib.util.find_spec(module.partition(".")[0]) is not None
            return ("" if installed else f'pip install "{package}", then ') + f"write {module}:{env_id}"
    return ""


def _maker_of_agents(package: ModuleType, name: str, made: Any) -> Any:
    """Return what makes the environment of a module of PettingZoo's form, `mpe2:simple_spread_v3`; else `made`.

    Such a module has `parallel_env` or, where the agents take turns, only `env`.
    """
    if made is None and hasattr(package, "__path__") and name.isidentifier():
        full = f"{package.__name__}.{name}"
        made = importlib.import_module(full) if importlib.util.find_spec(full) is not None else None
    if not isinstance(made, ModuleType):
        return made
    return getattr(made, "parallel_env", None) or getattr(made, "env", None)


def _register_by(module: ModuleType) -> None:
    """Call `register_envs()` of a module that has one and registered nothing at import, as MinAtar's."""
    register = getattr(module, "register_envs", None)
    if inspect.isfunction(register) and not _ids_of(module) and not inspect.signature(register).parameters:
        register()


def _module_lacks(name: str, module: ModuleType, wanted: str) -> UnknownEnvironment:
    """Return the error for `module:Name` where the module neither has `Name` nor registers it; it lists what it has."""
    has = _environments_of(module)
    listed = (difflib.get_close_matches(wanted, has, n=_LISTED, cutoff=0.5) or has)[:_LISTED]
    more = f" and {len(has) - len(listed)} more" if len(has) > len(listed) else ""
    fix = f"it has {', '.join(listed)}{more}" if has else _of_library(wanted)
    return UnknownEnvironment(
        f"There is no environment {name}: the module {module.__name__} has no {wanted}.",
        facts={"module": getattr(module, "__file__", None) or module.__name__},
        fix=fix or "name a class or function that makes an environment, or a module that registers ids",
    )


def _environments_of(module: ModuleType) -> list[str]:
    """Return what `module:Name` may name: classes, functions and PettingZoo modules that make environments, ids."""
    own = [key for key, value in vars(module).items() if key[0] != "_" and _makes(value, module.__name__)]
    inner = pkgutil.iter_modules(getattr(module, "__path__", ()))
    of_agents = [found.name for found in inner if _OF_AGENTS.fullmatch(found.name)]
    return [*own, *of_agents, *_ids_of(module)]


def _ids_of(module: ModuleType) -> list[str]:
    """Return the registered ids whose environments are made by the module's package."""
    import gymnasium

    package = module.__name__.partition(".")[0]
    return [
        key for key, spec in gymnasium.registry.items() if entry_module(spec).partition(".")[0] == package
    ]


def _makes(value: object, module: str) -> bool:
    """Whether `value` is a class of environments, or a function of `module` that may make one."""
    import gymnasium

    kinds = (gymnasium.Env, gymnasium.vector.VectorEnv)
    if isinstance(value, type):
        return issubclass(value, kinds) and value not in kinds
    return inspect.isfunction(value) and value.__module__ == module and "register" not in value.__name__


def entry_module(spec: GymnasiumSpec) -> str:
    """Return the name of the module in which a registered environment is defined; "" if it is not known."""
    entry = spec.entry_point
    if callable(entry):
        return str(getattr(entry, "__module__", ""))
    return str(entry or "").partition(":")[0]


def newer_mujoco(trace: str) -> str:
    """Fix for an environment that fails with a MuJoCo newer than its library works with; "" for another failure."""
    library = next((name for name in ("gymnasium_robotics", "dm_control") if f"/{name}/" in trace), None)
    mujoco = sys.modules.get("mujoco")
    if library is None or mujoco is None:
        return ""
    version = str(getattr(mujoco, "__version__", ""))
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < tuple(map(int, MUJOCO_BELOW.split("."))):
        return ""
    return (
        f"{library} may not work with MuJoCo {version} yet: "
        f'pip install "mujoco<{MUJOCO_BELOW}" {library.replace("_", "-")}'
    )


def installing(extra: str) -> str:
    """Fix that installs an extra; Box2D has no wheel for Python 3.14, where it is built."""
    fix = f'pip install "asyncrl[{extra}]"'
    if extra != "box2d" or sys.version_info < BUILDS_BOX2D:
        return fix
    return f"{fix}, after swig and a C++ compiler (apt install swig g++): Box2D has no wheel for this Python"


def extra_for(text: str) -> str | None:
    """Return the extra of this package that installs the package named in `text`; None if no extra does."""
    found = _extra_and_package(text)
    return None if found is None else found[0]


def extra_of(name: str) -> str | None:
    """Return the extra that installs what a registered environment needs; None if no extra does."""
    import gymnasium

    spec = gymnasium.registry.get(name.rpartition(":")[2])
    return extra_for(name) or (None if spec is None else extra_for(entry_module(spec)))


def missing_extra(text: str) -> str | None:
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
