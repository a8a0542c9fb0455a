"""Imports point downwards without cycles, heavy libraries enter by few modules, and no function is too long."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import asyncrl

PACKAGE = Path(asyncrl.__file__).parent

# From the top down, as in docs: a room imports from the rooms before it. A file outside of them is a room of its own.
ROOMS = (
    *("version", "timer_slack", "errors", "options", "interfaces"),
    *("saved_state", "protocols", "config"),
    *("shm", "envs", "acting", "replay", "networks", "actors", "algorithms"),
    *(
        "learning",
        "groups",
        "storage",
        "show",
        "server",
        "policies",
        "run",
        "trainer",
        "tuning",
        "cli",
        "__main__",
    ),
)

# Where a library may be imported, at the top of a file or inside a function. `actors.forking` only loads what
# its children will use.
DOORS = {
    "gymnasium": ("envs.*", "actors.forking"),
    "pettingzoo": ("envs.agents",),
    "aiohttp": ("server.*",),
    "numba": (*("shm.kernel", "shm.kernel_cache", "shm.atomics", "shm.views", "replay.handles"),),
    "llvmlite": ("shm.atomics", "replay.handles"),
    "mmap": ("shm.segment", "shm.env_kwargs", "replay.sum_tree"),
    "torch": (
        *(
            "networks.*",
            "algorithms.*",
            "acting.modules",
            "acting.convolutions",
            "acting.noisy_layers",
            "acting.own_module",
            "acting.recurrent_module",
            "acting.sale_module",
            "learning.learner_thread",
            "learning.divergence",
            "learning.mirror",
        ),
        *("storage.state_tree", "run.machine", "groups.*", "policies.onnx_export", "policies.onnx_module"),
    ),
    "torch.distributed": ("groups.*",),
    "matplotlib": ("show.picture",),
    "shtab": ("cli.completion",),
    "rich": ("show.console", "show.screen", "show.runs_view"),
    "prometheus_client": ("server.prometheus",),
    "cloudpickle": ("envs.*", "actors.forking"),
    "uvloop": ("trainer.trainer",),
    "tomli_w": ("storage.config_file",),
    "tensorboard": ("show.writers",),
    "IPython": ("show.notebook",),
    "imageio_ffmpeg": ("envs.video",),
    "onnx": ("policies.onnx_export",),
    "minari": ("storage.dataset",),
    "h5py": ("storage.dataset",),
    "huggingface_hub": ("policies.hub",),
    "threadpoolctl": ("networks.products",),
    "optuna": ("tuning.study",),
    "safetensors": (),
    "multiprocessing": (),
}


def matches(module: str, patterns: tuple[str, ...]) -> bool:
    return any(module == p or (p.endswith(".*") and f"{module}.".startswith(p[:-1])) for p in patterns)


def room_of(module: str) -> int | None:
    """Index of the module's room in `ROOMS`, or None."""
    room = module.partition(".")[0]
    return ROOMS.index(room) if room in ROOMS else None


def sources() -> dict[str, str]:
    """Text of every module by its name without `asyncrl.`; an `__init__` has its package's name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix("__init__").rstrip(".")
        if name:  # the face, `asyncrl/__init__.py`, imports lazily from everywhere and is imported by nobody
            found[name] = path.read_text(encoding="utf-8")
    return found


def imports(text: str) -> Iterator[tuple[str, bool]]:
    """Absolute names of all imported modules, and whether they are imported only for the type checker."""
    tree = ast.parse(text)
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            names = [ast.literal_eval(a) for a in node.args[:1] if isinstance(a, ast.Constant)]
        for name in names:
            yield name, id(node) in typing_only


def graph(texts: Mapping[str, str]) -> dict[str, set[str]]:
    """Modules of ours that each module imports, including imports only for the type checker."""
    edges: dict[str, set[str]] = {}
    for module, text in texts.items():
        edges[module] = set()
        for name, _ in imports(text):
            target = _ours(name, texts)
            if target and target != module:
                edges[module].add(target)
    return edges


def _ours(name: str, texts: Mapping[str, str]) -> str | None:
    if not name.startswith("asyncrl."):
        return None
    inner = name.removeprefix("asyncrl.")
    while inner and inner not in texts:
        inner = inner.rpartition(".")[0]
    return inner or None


def upward_imports(texts: Mapping[str, str]) -> list[str]:
    found = []
    for module, targets in graph(texts).items():
        own = room_of(module)
        for target in sorted(targets):
            other = room_of(target)
            if own is not None and other is not None and other > own:
                found.append(f"{module} imports {target}, which stands after it")
    return found


def cycle(edges: Mapping[str, set[str]]) -> list[str] | None:
    """The modules of one import cycle, or None."""
    done: set[str] = set()

    def visit(module: str, path: list[str]) -> list[str] | None:
        if module in path:
            return path[path.index(module) :]
        if module in done:
            return None
        for target in sorted(edges.get(module, ())):
            found = visit(target, [*path, module])
            if found:
                return found
        done.add(module)
        return None

    return next((found for module in edges if (found := visit(module, []))), None)


def forced_doors(texts: Mapping[str, str]) -> list[str]:
    found = []
    for module, text in texts.items():
        for name, typing_only in imports(text):
            for library in (own for own in DOORS if f"{name}.".startswith(f"{own}.")):
                if not typing_only and not matches(module, DOORS[library]):
                    doors = ", ".join(DOORS[library]) or "no door"
                    found.append(f"{module} imports {name}; {library} enters by {doors}")
    return found


def test_every_module_has_a_place() -> None:
    lost = [module for module in sources() if room_of(module) is None]
    assert not lost, f"say in ROOMS where these stand: {lost}"


def test_imports_point_downwards() -> None:
    assert upward_imports(sources()) == []


def test_there_are_no_cycles() -> None:
    assert cycle(graph(sources())) is None


def test_libraries_enter_by_their_doors() -> None:
    assert forced_doors(sources()) == []


@pytest.mark.parametrize(
    ("texts", "fault"),
    [
        (
            {"errors": "from asyncrl.trainer.trainer import Trainer", "trainer.trainer": ""},
            "errors imports trainer.trainer",
        ),
        ({"shm.ring": "def f():\n  import asyncrl.replay.replay", "replay.replay": ""}, "shm.ring imports"),
        (
            {"shm.ring": "from asyncrl.learning import learner", "learning.learner": ""},
            "shm.ring imports learning.learner",
        ),
    ],
)
def test_an_upward_import_is_seen(texts: dict[str, str], fault: str) -> None:
    assert any(fault in line for line in upward_imports(texts))


def test_a_cycle_is_seen() -> None:
    texts = {
        "interfaces": "import asyncrl.options",
        "options": "def f():\n  from asyncrl.errors import x",
        "errors": "import asyncrl.interfaces",
    }
    assert cycle(graph(texts)) == ["interfaces", "options", "errors"]
    assert cycle(graph({**texts, "errors": "if TYPE_CHECKING:\n  import asyncrl.interfaces"})) is not None
    assert cycle(graph({**texts, "errors": "import asyncrl.version"})) is None


@pytest.mark.parametrize(
    "text",
    [
        "import torch",
        "def f():\n  from torch import nn",
        "import_module('torch.nn')",
        "import torch.nn as nn",
        "from torch import multiprocessing",
    ],
)
def test_a_forced_door_is_seen(text: str) -> None:
    assert len(forced_doors({"actors.worker": text})) == 1
    assert forced_doors({"learning.divergence": text}) == []


FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
MOST_BODY_LINES = 40


def long_functions(texts: Mapping[str, str]) -> dict[str, int]:
    """Lines of every function over the limit that is no kernel; a docstring is not counted."""
    found = {}
    for module, text in texts.items():
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.Module | ast.ClassDef):
                continue
            for function in (n for n in node.body if isinstance(n, FUNCTIONS)):
                kernel = any("kernel" in ast.unparse(decorator) for decorator in function.decorator_list)
                if not kernel and (count := body_lines(function)) > MOST_BODY_LINES:
                    found[f"{module}.{getattr(node, 'name', '')}.{function.name}".replace("..", ".")] = count
    return found


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from `def` on, without the docstring."""
    docstring = ast.get_docstring(function, clean=False)
    assert function.end_lineno is not None
    return function.end_lineno - function.lineno + 1 - (docstring.count("\n") + 1 if docstring else 0)


def test_no_function_is_too_long() -> None:
    assert long_functions(sources()) == {}


def test_a_function_that_is_too_long_is_seen() -> None:
    long = "def long():\n  'Docstring.'\n" + "  x = 1\n" * MOST_BODY_LINES
    texts = {"a": long, "b": "class A:\n" + textwrap.indent(long, "  "), "c": "@kernel('')\n" + long}
    assert long_functions(texts) == {"a.long": MOST_BODY_LINES + 1, "b.A.long": MOST_BODY_LINES + 1}
