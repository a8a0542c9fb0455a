"""Public names of the package: complete, sorted, and imported only on use."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import asyncrl
from asyncrl.algorithms import ALGORITHMS

SOURCE = Path(asyncrl.__file__)
ROOT = SOURCE.parent.parent


def test_the_face_is_sorted_and_complete() -> None:
    tree = ast.parse(SOURCE.read_text())
    typed = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("asyncrl.")
        for alias in node.names
    }
    records = {record.__name__ for record in ALGORITHMS.values()}
    assert typed == set(asyncrl.__all__) and not records & set(asyncrl._HOMES)
    assert set(asyncrl._HOMES) <= typed <= set(asyncrl._HOMES) | records
    assert list(asyncrl._HOMES) == sorted(asyncrl._HOMES)
    # As ruff sorts: constants, then classes, then the rest.
    assert len(asyncrl.__all__) == len(set(asyncrl.__all__))
    assert {"DQN", "Trainer", "train"} <= set(asyncrl.__all__)


@pytest.mark.parametrize("name", asyncrl.__all__)
def test_every_name_loads_from_its_home(name: str) -> None:
    value = getattr(asyncrl, name)
    home = asyncrl._HOMES.get(name, f"asyncrl.algorithms.{name.lower()}")
    assert getattr(value, "__module__", home) == home
    assert name in dir(asyncrl)


def test_every_algorithm_can_be_imported_by_its_class_name() -> None:
    for record in ALGORITHMS.values():
        assert getattr(asyncrl, record.__name__) is record and record.__name__ in dir(asyncrl)


def test_a_name_that_does_not_exist() -> None:
    with pytest.raises(AttributeError, match="module 'asyncrl' has no attribute 'Trainr'"):
        asyncrl.Trainr  # noqa: B018


def modules_after(statement: str) -> set[str]:
    code = f"{statement}; import json, sys; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(json.loads(done.stdout))


def test_importing_asyncrl_loads_nothing() -> None:
    loaded = modules_after("import asyncrl")
    assert not loaded & {"torch", "numpy", "numba", "gymnasium", "aiohttp"}
    assert {name for name in loaded if name.startswith("asyncrl")} == {"asyncrl"}


LIGHT = [
    ".".join(("asyncrl", *path.relative_to(SOURCE.parent).with_suffix("").parts)).removesuffix(".__init__")
    for folder in ("shm", "actors")
    for path in sorted((SOURCE.parent / folder).glob("*.py"))
]


def test_what_an_actor_imports_is_free_of_torch() -> None:
    assert len(LIGHT) > 8
    names = [
        *LIGHT,
        "asyncrl.envs.source",
        "asyncrl.acting.policies",
        "asyncrl.algorithms",
        "asyncrl.interfaces",
        "asyncrl.errors",
    ]
    loaded = modules_after("import " + ", ".join(names))
    assert set(names) <= loaded
    assert not loaded & {"torch", "aiohttp", "rich", "uvloop"}


def test_the_version_is_a_version() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", asyncrl.__version__)
    assert f"## {asyncrl.__version__}" in (ROOT / "CHANGELOG.md").read_text()
