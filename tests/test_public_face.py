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


def typed_names(source: Path) -> set[str]:
    """Names that a module imports from the package, for type checkers or at run time."""
    return {
        alias.name
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("asyncrl.")
        for alias in node.names
    }


def own_records() -> set[str]:
    """Names of the package's records; another test of this process may have registered its own."""
    return {r.__name__ for r in ALGORITHMS.values() if r.__module__.startswith("asyncrl.")}


def test_the_face_is_sorted_and_complete() -> None:
    typed = typed_names(SOURCE)
    assert typed == set(asyncrl.__all__) and not own_records() & set(asyncrl._HOMES)
    assert typed == set(asyncrl._HOMES) | own_records()
    assert list(asyncrl._HOMES) == sorted(asyncrl._HOMES)
    # As ruff sorts: constants, then classes, then the rest.
    assert len(asyncrl.__all__) == len(set(asyncrl.__all__))
    assert {"DQN", "Trainer", "train"} <= set(asyncrl.__all__)


def test_type_checkers_know_every_algorithm() -> None:
    assert len(own_records()) >= 13
    assert typed_names(SOURCE.parent / "algorithms" / "__init__.py") == {"ALGORITHMS"} | own_records()


@pytest.mark.parametrize("name", asyncrl.__all__)
def test_every_name_loads_from_its_home(name: str) -> None:
    value = getattr(asyncrl, name)
    home = asyncrl._HOMES.get(name, f"asyncrl.algorithms.{name.lower()}")
    assert getattr(value, "__module__", home) == home
    assert name in dir(asyncrl)


def test_every_algorithm_can_be_imported_by_its_class_name() -> None:
    for record in ALGORITHMS.values():
        assert getattr(asyncrl, record.__name__) is record and record.__name__ in dir(asyncrl)


def test_dir_has_public_names_only() -> None:
    records = {record.__name__ for record in ALGORITHMS.values()}
    assert set(dir(asyncrl)) == {*asyncrl.__all__, *records}


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
